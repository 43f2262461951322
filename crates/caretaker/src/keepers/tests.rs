//! Two keepers in one scene.

use super::toy::Toys;
use super::*;
use crate::manifests::Texts;
use crate::scene::Scene;
use crate::{plan, simulate, timeline};
use caretaker_core::Keeper as _;

const TWO: [&dyn Listed; 2] = [ALL[0], &Of::<Toys>(PhantomData)];

/// A namespace that sleeps at ten o'clock, a toy that is put away at half past nine, one in another
/// namespace, and what holds the keepers back.
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

fn scene(text: &str, keepers: &[&dyn Listed]) -> Scene {
    let mut texts = Texts::default();
    texts.add("a.yaml".into(), text.as_bytes().to_vec());
    let mut scene = Scene::default();
    scene.look_into("a.yaml", &mut Manifests::of(&texts), keepers, &Config::default()).expect("stages");
    scene
}

fn json(value: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(value).expect("JSON")
}

#[test]
fn a_plan_has_the_rows_of_each_keeper_and_bounds_are_its_own() {
    let scene = scene(&format!("{CLUSTER}{OPEN}"), &TWO);

    let rows = json(&plan::rows(&scene, None, at("11:00:00")));

    let row =
        |i: usize| ["keeper", "kind", "name", "rule", "action"].map(|f| rows[i][f].as_str().unwrap_or("-").to_owned());
    assert_eq!(row(0), ["namespaces", "Namespace", "shop", "SleepAfterElapsed", "sleep"]);
    assert_eq!(row(1), ["toys", "Toy", "lamp", "BreakerOpen", "-"]);
    assert_eq!(row(2), ["toys", "Toy", "moon", "Dark", "-"]);
    let notes = scene.stages[1].notes();
    assert!(notes[0].ends_with("caretaker breaker reset toys"), "{notes:?}");
}

#[test]
fn a_namespace_shows_what_each_keeper_has_in_it() {
    let scene = scene(CLUSTER, &TWO);

    let rows = json(&plan::rows(&scene, Some("shop"), at("09:00:00")));

    assert_eq!(rows.as_array().map(Vec::len), Some(2), "{rows}");
    assert!(scene.is_missing(Some("shp")).is_some_and(|why| why.contains("did you mean shop?")));
}

#[test]
fn a_keeper_that_does_not_know_all_namespaces_calls_none_missing() {
    assert_eq!(scene(CLUSTER, &TWO[1..]).is_missing(Some("shp")), None);
}

#[test]
fn a_subject_is_explained_by_the_rules_of_its_own_keeper() {
    let scene = scene(CLUSTER, &TWO);
    let explain = |name| scene.stages[1].explain(&Toys::KINDS[0], name, None, at("10:00:00"));

    let story = json(&explain("lamp").expect("a story"));

    assert_eq!((&story["keeper"], &story["verdict"]["rule"]), (&"toys".into(), &"Burnt".into()));
    assert_eq!(story["steps"][0], "put lamp away");
    assert_eq!(explain("lmp").unwrap_err(), "there is no Toy \"lmp\"; did you mean lamp?");
}

#[test]
fn what_happens_is_told_in_order_of_time_with_lanes_and_a_sum_for_each_keeper() {
    let mut scene = scene(CLUSTER, &TWO);
    let (start, end) = (at("09:00:00"), at("11:00:00"));

    scene.stages.iter_mut().for_each(|stage| stage.play(None, start, end));

    let rows = simulate::rows(&scene.stages);
    assert_eq!(rows.iter().map(|r| (r.keeper, r.name)).collect::<Vec<_>>(), [("toys", "lamp"), ("namespaces", "shop")]);
    let drawn = timeline::draw(&scene.stages, &rows, start, end);
    for part in [
        "█ awake",
        "* lit",
        "Of 1 subjects of namespaces 1 are touched: 1 put to sleep.\n",
        "of toys 1 are touched: 1 put away.\n",
    ] {
        assert!(drawn.contains(part), "{drawn}");
    }
}

#[test]
fn only_what_a_keeper_wants_is_counted_as_more_than_other_kinds() {
    let notes = |keepers: &[&dyn Listed]| scene(CLUSTER, keepers).notes;

    assert_eq!(notes(&TWO[1..]), ["2 objects of other kinds were skipped"]);
    assert!(notes(&TWO).contains(&"1 objects of other kinds were skipped".to_owned()), "{:?}", notes(&TWO));
}

#[test]
fn a_keeper_that_is_on_by_what_the_files_hold_is_off_on_a_cluster() {
    let toys = TWO[1];

    assert!(toys.is_on(&Config::default(), Some(&["Toy"].into())));
    assert!(!toys.is_on(&Config::default(), Some(&["Pod"].into())));
    assert!(!toys.is_on(&Config::default(), None));
    assert_eq!(Toys::NAME, toys.name());
}

#[test]
fn settings_are_checked_in_the_name_of_their_keeper() {
    let config =
        Config::parse("keepers: {namespaces: {pace: {delete: {atLeast: 1, per: 1h}}}}", "x").expect("settings");

    let why = TWO[1].check(&config).unwrap_err();

    assert_eq!(why, "keepers.toys.pace.delete: no such action (known: clean)");
}
