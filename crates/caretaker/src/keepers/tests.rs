//! Two keepers in one snapshot.

use std::collections::BTreeSet;

use caretaker_core::Timestamp;

use super::toy::toys;
use super::*;
use crate::config::{Config, FileContents};
use crate::manifests::{ManifestSet, RawFiles};
use crate::snapshot::Snapshot;
use crate::{plan, simulate, timeline};

/// The namespaces keeper and the toy keeper.
fn two() -> Vec<Box<dyn DynKeeper>> {
    let config = Config::default();
    vec![by_name(&config, "namespaces").expect("a keeper"), toys(&config)]
}

fn only_toys() -> Vec<Box<dyn DynKeeper>> {
    vec![toys(&Config::default())]
}

/// A namespace that sleeps at ten o'clock, a toy that is put away at half past nine, one in another
/// namespace, and an object of another kind.
const CLUSTER: &str = r#"
kind: Namespace
metadata:
  name: shop
  labels: {sleepmode.kubefree.com/sleep-after: 2h}
  annotations: {sleepmode.kubefree.com/activity-status: '{"LastActivityTime":"2026-03-02T08:00:00Z"}'}
---
kind: Toy
metadata: {name: lamp, namespace: shop}
status: {since: "2026-03-02T08:30:00Z"}
---
kind: Toy
metadata: {name: moon, namespace: sky}
---
kind: Secret
"#;

const OPEN: &str = r#"
---
kind: ConfigMap
metadata: {name: caretaker-state, namespace: caretaker-system}
data: {toys: '{"open":{"since":"2026-03-01T00:00:00Z","because":"too many"}}'}
"#;

fn at(text: &str) -> Timestamp {
    caretaker_core::time::parse(&format!("2026-03-02T{text}Z")).expect("a time")
}

fn snapshot(text: &str, keepers: &[Box<dyn DynKeeper>]) -> Snapshot {
    let mut files = RawFiles::default();
    files.add("a.yaml".into(), text.as_bytes().to_vec());
    let mut manifests = ManifestSet::split(&files);
    let (mut snapshot, state) = (Snapshot::default(), manifests.operator.state());
    snapshot.load_files("a.yaml", &mut manifests, keepers, &state).expect("a snapshot");
    snapshot
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("JSON")
}

#[test]
fn a_plan_has_the_rows_of_each_keeper_and_limits_are_per_keeper() {
    let snapshot = snapshot(&format!("{CLUSTER}{OPEN}"), &two());

    let rows = json(&plan::rows(&snapshot, None, at("11:00:00")));

    let row =
        |i: usize| ["keeper", "kind", "name", "rule", "action"].map(|f| rows[i][f].as_str().unwrap_or("-").to_owned());
    assert_eq!(row(0), ["namespaces", "Namespace", "shop", "SleepAfterElapsed", "sleep"]);
    assert_eq!(row(1), ["toys", "Toy", "lamp", "BreakerOpen", "-"]);
    assert_eq!(row(2), ["toys", "Toy", "moon", "Dark", "-"]);
    let notes = snapshot.keepers[1].notes(at("11:00:00"));
    assert!(notes[0].ends_with("caretaker breaker reset toys"), "{notes:?}");
}

#[test]
fn a_namespace_shows_what_each_keeper_has_in_it() {
    let snapshot = snapshot(CLUSTER, &two());

    let rows = json(&plan::rows(&snapshot, Some("shop"), at("09:00:00")));

    assert_eq!(rows.as_array().map(Vec::len), Some(2), "{rows}");
    assert!(snapshot.missing_namespace(Some("shp")).is_some_and(|message| message.contains("did you mean shop?")));
}

#[test]
fn a_keeper_that_does_not_know_all_namespaces_calls_none_missing() {
    assert_eq!(snapshot(CLUSTER, &only_toys()).missing_namespace(Some("shp")), None);
}

#[test]
fn a_subject_is_explained_by_the_rules_of_its_own_keeper() {
    let snapshot = snapshot(CLUSTER, &two());
    let kind = toys(&Config::default()).kinds().remove(0);
    let explain = |name| snapshot.keepers[1].explain(&kind, name, None, at("10:00:00"));

    let explanation = json(&explain("lamp").expect("an explanation"));

    assert_eq!((&explanation["keeper"], &explanation["verdict"]["rule"]), (&"toys".into(), &"Burnt".into()));
    assert_eq!(explanation["steps"][0], "put lamp away");
    assert_eq!(explain("lmp").unwrap_err(), "there is no Toy \"lmp\"; did you mean lamp?");
}

#[test]
fn a_simulation_is_in_order_of_time_with_lanes_and_a_summary_for_each_keeper() {
    let mut snapshot = snapshot(CLUSTER, &two());
    let (start, end) = (at("09:00:00"), at("11:00:00"));

    snapshot.keepers.iter_mut().for_each(|keeper| keeper.simulate(None, start, end, false));

    let rows = simulate::rows(&snapshot.keepers);
    assert_eq!(rows.iter().map(|r| (r.keeper, r.name)).collect::<Vec<_>>(), [("toys", "lamp"), ("namespaces", "shop")]);
    let drawn = timeline::draw(&snapshot.keepers, &rows, start, end);
    for part in [
        "█ awake",
        "* lit",
        "namespaces: 1 of 1 subject is affected: 1 put to sleep.\n",
        "toys: 1 of 2 subjects is affected: 1 put away.\n",
    ] {
        assert!(drawn.contains(part), "{drawn}");
    }
}

#[test]
fn objects_that_no_keeper_reads_are_counted_as_other_kinds() {
    let notes = |keepers: &[Box<dyn DynKeeper>]| snapshot(CLUSTER, keepers).notes;

    assert_eq!(notes(&only_toys()), ["2 objects of other kinds were skipped"]);
    assert!(notes(&two()).contains(&"1 object of other kinds was skipped".to_owned()), "{:?}", notes(&two()));
}

#[test]
fn a_keeper_that_is_enabled_by_the_files_is_off_on_a_cluster() {
    let toys = toys(&Config::default());
    let applies = |files: Option<&BTreeSet<&str>>| {
        let contents = files.map(|kinds| FileContents { own: toys.has_subjects_in(kinds), others: false });
        toys.selection().applies(contents)
    };

    assert!(applies(Some(&["Toy"].into())));
    assert!(!applies(Some(&["Pod"].into())));
    assert!(!applies(None));
    assert_eq!(toys.name(), "toys");
}

#[test]
fn settings_are_checked_under_the_name_of_their_keeper() {
    let config =
        Config::parse("keepers: {namespaces: {pace: {delete: {limit: 1, window: 1h}}}}", "x").expect("settings");

    let error = toys(&config).validate().unwrap_err();

    assert_eq!(error, "keepers.toys.pace.delete: no such action (known: clean)");
}
