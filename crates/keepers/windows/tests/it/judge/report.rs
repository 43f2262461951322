//! Whether a freeze held, by the journal and by the history of an object.

use caretaker_windows::report::{FrozenPeriod, JournalEntry, Witness, read_entry, report};
use serde_json::{Value, json};

use super::*;

const SINCE: &str = "2026-03-01T12:00:00Z";
const NOW: &str = "2026-03-02T12:00:00Z";

/// What the keeper's journal has, at the time of an action with the revision before it.
fn entry(at: &str, action: &str, revision: &str) -> JournalEntry {
    let line = json!({
        "at": at, "keeper": "windows", "kind": "Kustomization", "namespace": "flux-system", "name": "apps", "uid": "u",
        "rule": "InsideWindow", "because": "", "action": action, "outcome": "done", "error": null, "dryRun": false,
        "before": { "suspended": false, "held": false, "revision": revision },
    });
    read_entry(&line.to_string()).unwrap()
}

fn applied(revision: &str, first: &str, last: &str) -> Value {
    json!({ "metadata": { "revision": revision }, "firstReconciled": first, "lastReconciled": last })
}

fn deployed(version: u32, at: &str) -> Value {
    json!({ "version": version, "chartVersion": format!("1.0.{version}"), "firstDeployed": at, "lastDeployed": at })
}

fn findings(kind: &'static str, journal: &[JournalEntry], history: &[Value], now: &str) -> Vec<FrozenPeriod> {
    let object = FluxObject { kind, revision: Some("b".to_owned()), ..windowed() };
    let witness = Witness { object, status: json!({ "history": history }) };
    report(&[witness], journal, &World::default(), at(SINCE), at(now))
}

/// `changed: why`, of the only night.
fn said(findings: &[FrozenPeriod]) -> String {
    let [only] = findings else { panic!("{findings:?}") };
    assert_eq!(only.from, at("2026-03-02T00:00:00Z"));
    format!("{}: {}", json!(only.outcome).as_str().unwrap(), only.because)
}

#[rstest]
#[case::nothing(&[], "unknown: the journal has no suspension; its status has no history")]
#[case::one_revision(
    &[("2026-03-02T00:00:00.4Z", "suspend", "a"), ("2026-03-02T05:00:01Z", "resume", "a")],
    "unchanged: the journal has one revision"
)]
#[case::suspended_a_little_late(
    &[("2026-03-02T00:00:26Z", "suspend", "a"), ("2026-03-02T05:00:01Z", "resume", "a")],
    "unchanged: the journal has one revision from 26s after its begin on"
)]
#[case::another_at_the_end(
    &[("2026-03-02T00:00:01Z", "suspend", "a"), ("2026-03-02T05:00:01Z", "resume", "b")],
    "changed: the journal has another revision at the end"
)]
#[case::another_in_between(
    &[
        ("2026-03-02T00:00:01Z", "suspend", "a"), ("2026-03-02T02:00:00Z", "suspend", "b"),
        ("2026-03-02T05:00:01Z", "resume", "a"),
    ],
    "changed: the journal has another revision at 2026-03-02T02:00:00Z"
)]
#[case::resumed_meanwhile(
    &[
        ("2026-03-02T00:00:01Z", "suspend", "a"), ("2026-03-02T02:00:00Z", "yield", "a"),
        ("2026-03-02T05:00:01Z", "resume", "a"),
    ],
    "unchanged: the journal has one revision from 1s after its begin on, although it was resumed at 2026-03-02T02:00:00Z"
)]
#[case::suspended_too_late(
    &[("2026-03-02T01:00:00Z", "suspend", "a"), ("2026-03-02T05:00:01Z", "resume", "a")],
    "unknown: it was suspended only at 2026-03-02T01:00:00Z; its status has no history"
)]
#[case::the_journal_breaks_off(
    &[("2026-03-02T00:00:01Z", "suspend", "a")],
    "unknown: the journal has no end of the suspension; its status has no history"
)]
fn the_journal_tells(#[case] entries: &[(&str, &str, &str)], #[case] expected: &str) {
    let journal: Vec<JournalEntry> = entries.iter().map(|(at, action, revision)| entry(at, action, revision)).collect();

    assert_eq!(said(&findings("Kustomization", &journal, &[], NOW)), expected);
}

const EARLIER: &str = "2026-02-27T00:00:00Z";
const EVENING: &str = "2026-03-01T20:00:00Z";
const INSIDE: &str = "2026-03-02T03:00:00Z";
const MORNING: &str = "2026-03-02T06:00:00Z";

#[rstest]
#[case::applied_inside(
    "Kustomization", &[applied("b", INSIDE, MORNING), applied("a", EARLIER, EVENING)],
    "changed: its history has b at 2026-03-02T03:00:00Z"
)]
#[case::applied_afterwards(
    "Kustomization", &[applied("b", MORNING, MORNING), applied("a", EARLIER, EVENING)],
    "unchanged: its history has no other revision"
)]
#[case::the_same_all_the_time(
    "Kustomization", &[applied("a", EARLIER, MORNING)], "unchanged: its history has no other revision"
)]
#[case::reconciled_inside_to_the_only_one(
    "Kustomization", &[applied("a", EARLIER, INSIDE)], "unchanged: its history has no other revision"
)]
#[case::perhaps_rolled_back_inside(
    "Kustomization", &[applied("a", EARLIER, INSIDE), applied("b", "2026-02-28T00:00:00Z", EVENING)],
    "unknown: the journal has no suspension; its history does not tell which of its revisions was applied when"
)]
#[case::too_short(
    "Kustomization",
    &[
        applied("f", MORNING, MORNING), applied("e", MORNING, MORNING), applied("d", MORNING, MORNING),
        applied("c", MORNING, MORNING), applied("b", MORNING, MORNING),
    ],
    "unknown: the journal has no suspension; its history does not reach back to it"
)]
#[case::a_release_inside(
    "HelmRelease", &[deployed(3, INSIDE), deployed(2, EVENING)], "changed: its history has 1.0.3 at 2026-03-02T03:00:00Z"
)]
#[case::a_release_before(
    "HelmRelease", &[deployed(3, MORNING), deployed(2, EVENING)], "unchanged: its history has no other revision"
)]
#[case::the_first_release("HelmRelease", &[deployed(1, MORNING)], "unchanged: its history has no other revision")]
#[case::earlier_releases_are_not_known(
    "HelmRelease", &[deployed(3, MORNING)],
    "unknown: the journal has no suspension; its history does not reach back to it"
)]
#[case::another_kind(
    "GitRepository", &[applied("a", EARLIER, MORNING)],
    "unknown: the journal has no suspension; its status has no history"
)]
fn the_history_tells(#[case] kind: &'static str, #[case] history: &[Value], #[case] expected: &str) {
    assert_eq!(said(&findings(kind, &[], history, NOW)), expected);
}

#[test]
fn a_change_that_one_of_them_has_seen_is_a_change() {
    let journal = [entry("2026-03-02T00:00:01Z", "suspend", "a"), entry("2026-03-02T05:00:01Z", "resume", "a")];
    let history = [deployed(3, INSIDE), deployed(2, EVENING)];

    let found = findings("HelmRelease", &journal, &history, NOW);

    assert_eq!(said(&found), "changed: its history has 1.0.3 at 2026-03-02T03:00:00Z");
    assert_eq!((found[0].before.as_deref(), found[0].after.as_deref()), (Some("a"), Some("a")));
}

#[test]
fn a_window_that_is_open_is_compared_with_the_present_revision() {
    let journal = [entry("2026-03-02T00:00:01Z", "suspend", "a")];

    let found = findings("Kustomization", &journal, &[], "2026-03-02T04:00:00Z");

    assert_eq!(said(&found), "changed: the journal has another revision at the end");
    assert_eq!((found[0].until, found[0].after.as_deref()), (None, Some("b")));
}

#[test]
fn what_is_gone_is_known_from_the_journal() {
    let journal = [entry("2026-03-02T00:00:01Z", "suspend", "a"), entry("2026-03-02T05:00:01Z", "resume", "a")];

    let found = report(&[], &journal, &World::default(), at(SINCE), at(NOW));

    let [only] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((only.name.as_str(), only.until), ("apps", Some(at("2026-03-02T05:00:01Z"))));
    assert_eq!(only.because, "the journal has one revision");
}

#[test]
fn what_was_not_done_and_what_others_did_is_no_evidence() {
    let line = |keeper: &str, outcome: &str| {
        json!({
            "at": NOW, "keeper": keeper, "kind": "Kustomization", "namespace": "a", "name": "b", "uid": "u",
            "action": "suspend", "outcome": outcome,
        })
        .to_string()
    };

    assert!(read_entry(&line("windows", "done")).is_some());
    assert!(read_entry(&line("windows", "failed")).is_none());
    assert!(read_entry(&line("namespaces", "done")).is_none());
    assert!(read_entry("not JSON").is_none());
}
