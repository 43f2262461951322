//! What is due, round by round: scripts of what a watch tells, and no wire.

use caretaker_core::limits::{Limits, Breaker, Ledger, Pace};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::keep::Ended;
use caretaker_engine::round::{Batch, Round, Rounds};
use caretaker_engine::watch::News;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::carry_out::{Sight, Undone};
use caretaker_namespaces::api;
use caretaker_namespaces::observe::Manifest;
use caretaker_namespaces::subject::World;
use serde_json::{Value, json};

fn at(minutes: i64) -> Timestamp {
    "2036-01-10T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
}

fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

/// A namespace that sleeps after an hour of silence.
fn namespace(name: &str, version: u32, used: Timestamp) -> Value {
    let activity = json!({ "LastActivityTime": used.to_string() }).to_string();
    json!({ "metadata": {
        "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
        "labels": { api::SLEEP_AFTER: "1h", api::DELETE_AFTER: "100h" }, "annotations": { api::ACTIVITY: activity },
    } })
}

fn manifest(object: &Value) -> Manifest {
    serde_json::from_value(object.clone()).unwrap()
}

/// Rounds over namespaces, with their limits and their ledger.
struct Script {
    rounds: Rounds<Namespaces>,
    limits: Limits,
    ledger: Ledger,
}

impl Script {
    fn of(names: &[&str], limits: Limits) -> Self {
        let mut script = Self { rounds: Rounds::default(), limits, ledger: Ledger::default() };
        for name in names {
            script.tell(&namespace(name, 1, at(0)));
        }
        script
    }

    fn tell(&mut self, object: &Value) {
        self.rounds.hear("Namespace", &News::Is(manifest(object)));
    }

    fn round(&mut self, now: Timestamp) -> Round<Namespaces> {
        self.rounds.round(&World::default(), &self.limits, &mut self.ledger, false, now)
    }

    /// What was taken up has gone well, or has not.
    fn end(&mut self, batch: &Batch<Namespaces>, done: bool, now: Timestamp) {
        let outcome = || if done { Ok(()) } else { Err(Undone::Changed("something else".to_owned())) };
        let ended: Vec<_> = batch.due.iter().map(|due| Ended { due: due.clone(), outcome: outcome() }).collect();
        self.rounds.end(&batch.site, &ended, now);
    }

    fn failed(&mut self, batch: &Batch<Namespaces>, now: Timestamp) {
        self.end(batch, false, now);
    }

    /// The names of what may be done.
    fn due(&mut self, now: Timestamp) -> Vec<String> {
        names(&self.round(now).due)
    }
}

fn names(due: &[Batch<Namespaces>]) -> Vec<String> {
    due.iter().flat_map(|batch| &batch.due).map(|d| d.subject.name.clone()).collect()
}

fn one_an_hour() -> Limits {
    let pace = Pace { limit: 1, fraction: 0.0, window: SignedDuration::from_hours(1) };
    Limits { pace: [("sleep".to_owned(), pace)].into(), breaker: None }
}

#[test]
fn nothing_is_judged_before_something_changes_or_a_deadline_passes() {
    let mut script = Script::of(&["a"], Limits::default());

    assert_eq!(script.due(at(1)), Vec::<String>::new());
    assert_eq!(script.rounds.next(), Some(at(60)));
    assert_eq!(script.due(at(60)), Vec::<String>::new(), "at the deadline itself it is not due");
    assert_eq!(script.due(at(60) + seconds(1)), ["a"]);
    assert_eq!(script.due(at(61)), Vec::<String>::new(), "it is under way");
}

#[test]
fn what_failed_is_tried_again_after_a_pause_that_grows() {
    let mut script = Script::of(&["a"], Limits::default());
    let mut now = at(61);
    let mut pauses = Vec::new();
    for _ in 0..11 {
        let round = script.round(now);
        script.failed(&round.due[0], now);
        script.round(now);
        let next = script.rounds.next().unwrap();
        pauses.push(next.duration_since(now).as_secs());
        now = next + seconds(1);
    }

    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
}

#[test]
fn use_does_not_wait_for_the_pause_of_a_sleep_that_failed() {
    let mut script = Script::of(&["a"], Limits::default());
    let round = script.round(at(61));
    script.failed(&round.due[0], at(61));
    let mut used = namespace("a", 2, at(61));
    used["metadata"]["labels"][api::STATE] = json!("sleeping");
    script.tell(&used);

    let round = script.round(at(61));

    assert_eq!(round.due[0].due[0].verdict.rule, "WokenByActivity");
}

#[test]
fn what_was_admitted_and_failed_keeps_its_place_as_long_as_that_counts() {
    let mut script = Script::of(&["a", "b"], one_an_hour());
    let first = script.round(at(61));
    assert_eq!(names(&first.due), ["a"]);
    script.failed(&first.due[0], at(61));

    let again = script.round(at(62));
    assert_eq!(names(&again.due), ["a"], "it needs no second place");
    script.failed(&again.due[0], at(62));
    assert_eq!(script.ledger.admitted["sleep"].len(), 1);

    let later = script.round(at(125));
    assert_eq!(later.due.len(), 1, "an hour later its place is given out anew, and only one");
    assert_eq!(script.ledger.admitted["sleep"], [at(125)]);
}

#[test]
fn what_failed_long_ago_has_no_free_pass() {
    let mut script = Script::of(&["a", "b"], one_an_hour());
    let first = script.round(at(61));
    script.failed(&first.due[0], at(61));
    script.tell(&namespace("a", 2, at(62)));
    assert_eq!(script.due(at(62)), Vec::<String>::new(), "it was used, and b waits its turn");

    let due = script.due(at(123));

    assert_eq!((due.len(), script.ledger.admitted["sleep"].len()), (1, 1), "{due:?}");
}

#[test]
fn what_went_well_and_is_asked_for_again_waits_too() {
    let mut script = Script::of(&["a"], Limits::default());
    let mut now = at(61);
    let mut times = Vec::new();
    for _ in 0..60 {
        for batch in script.round(now).due {
            times.push(now.duration_since(at(61)).as_secs());
            script.end(&batch, true, now);
        }
        now += seconds(1);
    }

    assert_eq!(times, [0, 1, 4, 9, 18, 35], "somebody undoes it each time");
}

#[test]
fn an_open_breaker_holds_back_what_is_tried_again() {
    let breaker = Breaker { min_count: 3, min_fraction: 0.5, window: SignedDuration::from_mins(10) };
    let mut script = Script::of(&["a", "b"], Limits { breaker: Some(breaker), ..Limits::default() });
    script.tell(&namespace("c", 1, at(1)));
    let first = script.round(at(60) + seconds(1));
    assert_eq!(names(&first.due), ["a", "b"]);
    first.due.iter().for_each(|batch| script.failed(batch, at(60) + seconds(1)));

    let round = script.round(at(62));

    assert!(round.opened.is_some());
    assert_eq!(names(&round.due), Vec::<String>::new());
    let totals: Vec<_> = script.rounds.totals().collect();
    assert_eq!(totals, [("rest", 0), ("wait", 0), ("act", 0), ("refuse", 3)]);
}

#[test]
fn what_was_taken_up_and_not_begun_is_due_again_after_the_lead_was_lost() {
    let mut script = Script::of(&["a", "b"], Limits::default());
    let round = script.round(at(61));
    assert_eq!(round.due.len(), 2);

    // The one is under way, the other is still queued.
    script.rounds.put_back(&round.due[1], at(61));
    script.rounds.stand_down();
    script.failed(&round.due[0], at(61));
    script.rounds.doubt();

    assert_eq!(script.due(at(63)), ["a", "b"]);
}

#[test]
fn a_dry_run_tells_an_act_once_and_again_when_it_is_due_again() {
    let mut script = Script::of(&["a"], Limits::default());
    let round = script.round(at(61));
    script.rounds.rehearse(&round.due[0], at(61));
    assert_eq!(script.due(at(62)), Vec::<String>::new());

    script.tell(&namespace("a", 2, at(63)));
    assert_eq!(script.due(at(63)), Vec::<String>::new(), "it was used");

    assert_eq!(script.due(at(124)), ["a"]);
}

#[test]
fn a_refusal_is_told_once_and_again_in_other_words() {
    let mut script = Script::of(&[], Limits::default());
    let mut broken = namespace("a", 1, at(0));
    broken["metadata"]["labels"][api::SLEEP_AFTER] = json!("2days");
    script.tell(&broken);
    let told = |round: Round<Namespaces>| round.refused.into_iter().map(|r| (r.rule, r.name)).collect::<Vec<_>>();
    assert_eq!(told(script.round(at(1))), [("BrokenLabel", "a".to_owned())]);

    script.tell(&broken);
    assert_eq!(told(script.round(at(2))), []);

    broken["metadata"]["labels"][api::SLEEP_AFTER] = json!("3days");
    script.tell(&broken);
    assert_eq!(told(script.round(at(3))), [("BrokenLabel", "a".to_owned())]);
}

#[test]
fn what_was_deleted_is_not_brought_back_by_what_the_watch_still_tells() {
    let mut script = Script::of(&["a"], Limits::default());
    let round = script.round(at(61));
    let gone = Sight::Gone(Box::new(round.due[0].due[0].subject.clone()));
    script.rounds.see(&[gone]);
    script.end(&round.due[0], true, at(61));

    script.tell(&namespace("a", 2, at(0)));

    assert_eq!(script.due(at(62)), Vec::<String>::new());
    let mut anew = namespace("a", 9, at(0));
    anew["metadata"]["uid"] = json!("another");
    script.tell(&anew);
    assert_eq!(script.due(at(62)), ["a"], "one of the same name is another one");
}
