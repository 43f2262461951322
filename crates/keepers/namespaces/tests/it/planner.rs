//! What is due, round by round: a planner over a cache that the test feeds, without an API server.

use crate::support::objects::Objects;
use caretaker_core::limits::{Breaker, Ledger, Limits, OpenBreaker, Pace};
use caretaker_core::{SignedDuration, Timestamp, VerdictKind};
use caretaker_engine::planner::{Planner, Refusal};
use caretaker_engine::{ActionResult, ApplyError, Batch, ObjectId};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api;
use caretaker_namespaces::subject::World;
use serde_json::{Value, json};

fn at(minutes: i64) -> Timestamp {
    "2036-01-10T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
}

fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

/// A namespace that sleeps after an hour without activity.
fn namespace(name: &str, version: u32, used: Timestamp) -> Value {
    let activity = json!({ "LastActivityTime": used.to_string() }).to_string();
    json!({ "metadata": {
        "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
        "labels": { api::SLEEP_AFTER: "1h", api::DELETE_AFTER: "100h" }, "annotations": { api::ACTIVITY: activity },
    } })
}

/// What one round yields.
struct Round {
    due: Vec<Batch<Namespaces>>,
    refused: Vec<Refusal>,
    opens: Option<OpenBreaker>,
}

/// Rounds over namespaces, with their limits and their ledger.
struct Script {
    keeper: Namespaces,
    objects: Objects,
    planner: Planner<Namespaces>,
    limits: Limits,
    ledger: Ledger,
}

impl Script {
    fn of(names: &[&str], limits: Limits) -> Self {
        let (keeper, objects) = (Namespaces::default(), Objects::default());
        let mut script = Self { keeper, objects, planner: Planner::default(), limits, ledger: Ledger::default() };
        for name in names {
            script.deliver(&namespace(name, 1, at(0)));
        }
        script
    }

    fn deliver(&mut self, object: &Value) {
        self.objects.apply("Namespace", object);
    }

    fn round(&mut self, now: Timestamp) -> Round {
        let Self { keeper, objects, planner, limits, ledger } = self;
        let judged = planner.judge(keeper, &mut objects.feed, &World::default(), limits, ledger, false, now);
        let refused = judged.refusals.clone();
        let admitted = planner.limit(keeper, judged, |_| false, limits, ledger, now);
        let opens = admitted.opens.clone();
        Round { due: planner.batch(keeper, admitted, limits, ledger, now), refused, opens }
    }

    /// A batch succeeded, or failed.
    fn finish(&mut self, batch: &Batch<Namespaces>, done: bool, now: Timestamp) {
        let result = || if done { Ok(()) } else { Err(ApplyError::Stale("something else".to_owned())) };
        let results: Vec<_> =
            batch.actions.iter().map(|planned| ActionResult { planned: planned.clone(), result: result() }).collect();
        self.planner.finish(&self.keeper, &batch.target, &results, now);
    }

    fn failed(&mut self, batch: &Batch<Namespaces>, now: Timestamp) {
        self.finish(batch, false, now);
    }

    /// The names of the subjects with an action that may start.
    fn due(&mut self, now: Timestamp) -> Vec<String> {
        names(&self.round(now).due)
    }
}

fn names(due: &[Batch<Namespaces>]) -> Vec<String> {
    due.iter().flat_map(|batch| &batch.actions).map(|planned| planned.subject.name.clone()).collect()
}

fn one_an_hour() -> Limits {
    let pace = Pace { limit: 1, fraction: 0.0, window: SignedDuration::from_hours(1) };
    Limits { pace: [("sleep".to_owned(), pace)].into(), breaker: None }
}

#[test]
fn nothing_is_judged_before_something_changes_or_a_deadline_passes() {
    let mut script = Script::of(&["a"], Limits::default());

    assert_eq!(script.due(at(1)), Vec::<String>::new());
    assert_eq!(script.planner.next_deadline(), Some(at(60)));
    assert_eq!(script.due(at(60)), Vec::<String>::new(), "at the deadline itself it is not due");
    assert_eq!(script.due(at(60) + seconds(1)), ["a"]);
    assert_eq!(script.due(at(61)), Vec::<String>::new(), "it is running");
}

#[test]
fn a_failed_action_is_tried_again_after_a_growing_pause() {
    let mut script = Script::of(&["a"], Limits::default());
    let mut now = at(61);
    let mut pauses = Vec::new();
    for _ in 0..11 {
        let round = script.round(now);
        script.failed(&round.due[0], now);
        script.round(now);
        let next = script.planner.next_deadline().unwrap();
        pauses.push(next.duration_since(now).as_secs());
        now = next + seconds(1);
    }

    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
}

#[test]
fn activity_does_not_wait_for_the_pause_of_a_failed_sleep() {
    let mut script = Script::of(&["a"], Limits::default());
    let round = script.round(at(61));
    script.failed(&round.due[0], at(61));
    let mut used = namespace("a", 2, at(61));
    used["metadata"]["labels"][api::STATE] = json!("sleeping");
    script.deliver(&used);

    let round = script.round(at(61));

    assert_eq!(round.due[0].actions[0].verdict.rule.name(), "WokenByActivity");
}

#[test]
fn an_admitted_action_that_failed_keeps_its_place_while_that_counts() {
    let mut script = Script::of(&["a", "b"], one_an_hour());
    let first = script.round(at(61));
    assert_eq!(names(&first.due), ["a"]);
    script.failed(&first.due[0], at(61));

    let again = script.round(at(62));
    assert_eq!(names(&again.due), ["a"], "it needs no second place");
    script.failed(&again.due[0], at(62));
    assert_eq!(script.ledger.admitted["sleep"].len(), 1);

    let later = script.round(at(125));
    assert_eq!(later.due.len(), 1, "an hour later its place is free again, and only one");
    assert_eq!(script.ledger.admitted["sleep"], [at(125)]);
}

#[test]
fn an_action_that_failed_long_ago_is_admitted_again() {
    let mut script = Script::of(&["a", "b"], one_an_hour());
    let first = script.round(at(61));
    script.failed(&first.due[0], at(61));
    script.deliver(&namespace("a", 2, at(62)));
    assert_eq!(script.due(at(62)), Vec::<String>::new(), "it was used, and b waits its turn");

    let due = script.due(at(123));

    assert_eq!((due.len(), script.ledger.admitted["sleep"].len()), (1, 1), "{due:?}");
}

#[test]
fn an_action_that_succeeded_and_is_due_again_waits_too() {
    let mut script = Script::of(&["a"], Limits::default());
    let mut now = at(61);
    let mut times = Vec::new();
    for _ in 0..60 {
        for batch in script.round(now).due {
            times.push(now.duration_since(at(61)).as_secs());
            script.finish(&batch, true, now);
        }
        now += seconds(1);
    }

    assert_eq!(times, [0, 1, 4, 9, 18, 35], "somebody undoes it each time");
}

#[test]
fn an_open_breaker_holds_back_a_retry() {
    let breaker = Breaker { min_count: 3, min_fraction: 0.5, window: SignedDuration::from_mins(10) };
    let mut script = Script::of(&["a", "b"], Limits { breaker: Some(breaker), ..Limits::default() });
    script.deliver(&namespace("c", 1, at(1)));
    let first = script.round(at(60) + seconds(1));
    assert_eq!(names(&first.due), ["a", "b"]);
    first.due.iter().for_each(|batch| script.failed(batch, at(60) + seconds(1)));

    let round = script.round(at(62));

    assert!(round.opens.is_some());
    assert_eq!(names(&round.due), Vec::<String>::new());
    let counts: Vec<_> = script.planner.verdict_counts().collect();
    let (nothing, wait, act) = (VerdictKind::Nothing, VerdictKind::Wait, VerdictKind::Act);
    assert_eq!(counts, [(nothing, 0), (wait, 0), (act, 0), (VerdictKind::Refuse, 3)]);
}

#[test]
fn a_queued_action_is_due_again_after_leadership_was_lost() {
    let mut script = Script::of(&["a", "b"], Limits::default());
    let round = script.round(at(61));
    assert_eq!(round.due.len(), 2);

    // One is running, the other is still queued.
    script.planner.requeue(&round.due[1].target);
    script.planner.reset();
    script.failed(&round.due[0], at(61));
    script.planner.mark_all_dirty(&script.objects.feed.cache);

    assert_eq!(script.due(at(63)), ["a", "b"]);
}

#[test]
fn a_dry_run_reports_an_action_once_and_again_when_it_is_due_again() {
    let mut script = Script::of(&["a"], Limits::default());
    let round = script.round(at(61));
    script.planner.record_dry_run(&script.keeper, &round.due[0]);
    assert_eq!(script.due(at(62)), Vec::<String>::new());

    script.deliver(&namespace("a", 2, at(63)));
    assert_eq!(script.due(at(63)), Vec::<String>::new(), "it was used");

    assert_eq!(script.due(at(124)), ["a"]);
}

#[test]
fn a_refusal_is_reported_once_and_again_when_its_reason_changes() {
    let mut script = Script::of(&[], Limits::default());
    let mut invalid = namespace("a", 1, at(0));
    invalid["metadata"]["labels"][api::SLEEP_AFTER] = json!("2days");
    script.deliver(&invalid);
    let reported = |round: Round| round.refused.into_iter().map(|r| (r.rule, r.name)).collect::<Vec<_>>();
    assert_eq!(reported(script.round(at(1))), [("InvalidLabel", "a".to_owned())]);

    script.deliver(&invalid);
    assert_eq!(reported(script.round(at(2))), []);

    invalid["metadata"]["labels"][api::SLEEP_AFTER] = json!("3days");
    script.deliver(&invalid);
    assert_eq!(reported(script.round(at(3))), [("InvalidLabel", "a".to_owned())]);
}

#[test]
fn a_deleted_namespace_does_not_come_back_by_a_late_watch_event() {
    let mut script = Script::of(&["a"], Limits::default());
    let round = script.round(at(61));
    let namespaces = Objects::source("Namespace");
    let id = ObjectId { uid: round.due[0].actions[0].subject.uid.clone(), ..ObjectId::named("a") };
    script.objects.feed.deleted_by_us(&namespaces, id);
    script.finish(&round.due[0], true, at(61));

    script.deliver(&namespace("a", 2, at(0)));

    assert_eq!(script.due(at(62)), Vec::<String>::new());
    let mut recreated = namespace("a", 9, at(0));
    recreated["metadata"]["uid"] = json!("another");
    script.deliver(&recreated);
    assert_eq!(script.due(at(62)), ["a"], "a namespace of the same name is another one");
}
