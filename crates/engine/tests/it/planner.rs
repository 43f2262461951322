//! What is due, round by round, where many keys are written to one target: no API server.

use std::sync::atomic::Ordering;

use crate::support::box_keeper::{Shelf, Toys, World, at, change};
use caretaker_core::limits::{Breaker, Ledger, Limits, OpenBreaker};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::planner::{Planner, Refusal};
use caretaker_engine::{ActionResult, ApplyError, Batch, ReplicaRole};

/// Rounds over boxes, with their limits and their ledger.
struct Script {
    keeper: Toys,
    feed: CacheFeed<Shelf>,
    planner: Planner<Toys>,
    limits: Limits,
    ledger: Ledger,
    role: ReplicaRole,
    rejudge_held: bool,
}

/// What a round yields.
struct Round {
    batches: Vec<Batch<Toys>>,
    refusals: Vec<Refusal>,
    opens: Option<OpenBreaker>,
}

const ALL: usize = usize::MAX;

impl Script {
    fn new(max_batch: usize, min_interval: u64) -> Self {
        Self {
            keeper: Toys::new(max_batch, min_interval),
            feed: CacheFeed::default(),
            planner: Planner::default(),
            limits: Limits::default(),
            ledger: Ledger::default(),
            role: ReplicaRole::Leader,
            rejudge_held: false,
        }
    }

    /// A box holds these toys.
    fn deliver(&mut self, name: &str, toys: &[(&str, &str)]) {
        let (source, change) = change(name, toys);
        self.feed.update(&source, change);
    }

    fn round(&mut self, now: Timestamp) -> Round {
        let Self { keeper, feed, planner, limits, ledger, role, rejudge_held } = self;
        let world = World { role: *role };
        let mut judged = planner.judge(keeper, feed, &world, limits, ledger, *rejudge_held, now);
        let refusals = std::mem::take(&mut judged.refusals);
        let admitted = planner.limit(keeper, judged, |_| false, limits, ledger, now);
        let opens = admitted.opens.clone();
        Round { batches: planner.batch(keeper, admitted, limits, ledger, now), refusals, opens }
    }

    /// What may be done: the box, and its toys.
    fn due(&mut self, now: Timestamp) -> Vec<(String, Vec<String>)> {
        names(&self.round(now).batches)
    }

    fn finish(&mut self, batch: &Batch<Toys>, result: &Result<(), ApplyError>, now: Timestamp) {
        let results =
            batch.actions.iter().map(|planned| ActionResult { planned: planned.clone(), result: result.clone() });
        self.planner.finish(&self.keeper, &batch.target, &results.collect::<Vec<_>>(), now);
    }

    fn judged(&self) -> usize {
        self.keeper.judged.load(Ordering::Relaxed)
    }
}

fn stale() -> Result<(), ApplyError> {
    Err(ApplyError::Stale("the box has changed".to_owned()))
}

fn names(batches: &[Batch<Toys>]) -> Vec<(String, Vec<String>)> {
    let toys = |batch: &Batch<Toys>| batch.actions.iter().map(|planned| planned.subject.name.clone()).collect();
    batches.iter().map(|batch| (batch.target.key.to_string(), toys(batch))).collect()
}

fn one(name: &str, toys: &[&str]) -> (String, Vec<String>) {
    (name.to_owned(), toys.iter().map(|toy| (*toy).to_owned()).collect())
}

fn breaker() -> Limits {
    let breaker = Breaker { min_count: 3, min_fraction: 0.5, window: SignedDuration::from_mins(10) };
    Limits { breaker: Some(breaker), ..Limits::default() }
}

#[test]
fn what_is_due_at_one_target_is_one_batch() {
    let mut script = Script::new(ALL, 0);
    script.deliver("box-a", &[("ball", "1"), ("bear", "1"), ("kite", "stays")]);
    script.deliver("box-b", &[("ball", "1"), ("bear", "100")]);

    assert_eq!(script.due(at(5)), [one("box-a", &["ball", "bear"]), one("box-b", &["ball"])]);
    assert_eq!(script.planner.next_deadline(), Some(at(100)));
}

#[test]
fn a_batch_has_no_more_actions_than_its_target_allows_and_the_others_follow() {
    let mut script = Script::new(2, 0);
    script.deliver("box", &[("ball", "1"), ("bear", "1"), ("kite", "1")]);
    let round = script.round(at(5));
    assert_eq!(names(&round.batches), [one("box", &["ball", "bear"])]);

    script.deliver("box", &[("kite", "1")]);
    script.finish(&round.batches[0], &Ok(()), at(6));

    assert_eq!(script.due(at(6)), [one("box", &["kite"])]);
}

#[test]
fn what_changes_or_falls_due_at_a_busy_target_is_judged_when_it_is_free() {
    let mut script = Script::new(ALL, 0);
    script.deliver("box", &[("ball", "1"), ("bear", "10")]);
    let round = script.round(at(5));
    assert_eq!(names(&round.batches), [one("box", &["ball"])]);
    script.deliver("box", &[("ball", "1"), ("bear", "10"), ("kite", "1")]);
    script.deliver("box-other", &[("ball", "1")]);
    assert_eq!(script.due(at(20)), [one("box-other", &["ball"])], "one batch at a time at a target");

    script.deliver("box", &[("bear", "10"), ("kite", "1")]);
    script.finish(&round.batches[0], &Ok(()), at(21));

    assert_eq!(script.due(at(21)), [one("box", &["bear", "kite"])]);
}

#[test]
fn what_failed_alone_waits_while_the_others_of_its_target_go_on() {
    let mut script = Script::new(1, 0);
    script.deliver("box", &[("ball", "1"), ("bear", "1")]);
    let round = script.round(at(5));
    assert_eq!(names(&round.batches), [one("box", &["ball"])]);

    script.finish(&round.batches[0], &stale(), at(5));

    assert_eq!(script.due(at(5)), [one("box", &["bear"])]);
}

#[test]
fn after_a_batch_its_target_rests() {
    let mut script = Script::new(ALL, 10);
    script.deliver("box", &[("ball", "1"), ("bear", "7")]);
    let round = script.round(at(5));
    script.planner.start(&round.batches[0].target);
    script.deliver("box", &[("bear", "7")]);
    script.finish(&round.batches[0], &Ok(()), at(8));

    assert_eq!(script.due(at(9)), [], "it rests");
    assert_eq!(script.planner.next_deadline(), Some(at(18)));
    assert_eq!(script.due(at(18)), [], "at that time itself it still rests");
    assert_eq!(script.due(at(19)), [one("box", &["bear"])]);
}

#[test]
fn however_long_a_batch_takes_the_rest_starts_at_its_end() {
    let mut script = Script::new(ALL, 10);
    script.deliver("box", &[("ball", "1"), ("bear", "7")]);
    let round = script.round(at(5));
    script.planner.start(&round.batches[0].target);
    assert_eq!(script.due(at(30)), [], "it is running");
    script.deliver("box", &[("bear", "7")]);

    script.finish(&round.batches[0], &Ok(()), at(30));

    assert_eq!(script.due(at(40)), []);
    assert_eq!(script.due(at(41)), [one("box", &["bear"])]);
}

#[test]
fn a_batch_that_did_not_start_leaves_no_rest() {
    let mut script = Script::new(ALL, 10);
    script.deliver("box", &[("ball", "1")]);
    let round = script.round(at(5));

    script.planner.requeue(&round.batches[0].target);

    assert_eq!(script.due(at(5)), [one("box", &["ball"])]);
}

#[test]
fn what_was_counted_and_did_not_start_is_not_counted_twice() {
    let mut script = Script::new(ALL, 10);
    script.limits = breaker();
    script.deliver("box", &[("ball", "1"), ("bear", "1"), ("kite", "stays"), ("doll", "stays"), ("drum", "stays")]);
    let round = script.round(at(5));
    let counted = |script: &Script| script.ledger.recent_destructive.iter().map(|batch| batch.count).sum::<usize>();
    assert_eq!(counted(&script), 2);

    script.planner.hand_back(&script.keeper, &round.batches[0], at(5));
    let round = script.round(at(6));

    assert_eq!(names(&round.batches), [one("box", &["ball", "bear"])]);
    assert_eq!((counted(&script), round.opens), (2, None), "twice two would be more than the breaker allows");
}

#[test]
fn half_of_one_group_opens_the_breaker_however_many_there_are_elsewhere() {
    let mut script = Script::new(ALL, 0);
    script.limits = breaker();
    let resting: Vec<String> = (0..90).map(|i| format!("toy-{i}")).collect();
    let resting: Vec<(&str, &str)> = resting.iter().map(|toy| (toy.as_str(), "stays")).collect();
    script.deliver("box-large", &resting);
    script.deliver("box-small", &[("ball", "1"), ("bear", "1"), ("kite", "20"), ("doll", "stays")]);
    assert_eq!(script.due(at(5)), [one("box-small", &["ball", "bear"])], "fewer than the minimum of the breaker");
    let groups: Vec<_> =
        script.ledger.recent_destructive.iter().map(|batch| (batch.group.as_deref(), batch.count)).collect();
    assert_eq!(groups, [(Some("box-small"), 2)]);
    script.deliver("box-small-too", &[("ball", "1")]);
    assert_eq!(script.round(at(5)).opens, None, "another group");

    script.deliver("box-next", &[("ball", "1"), ("bear", "1"), ("kite", "1")]);
    let round = script.round(at(30));

    assert!(round.batches.is_empty());
    let opened = round.opens.map(|open| open.because).unwrap_or_default();
    assert_eq!(opened, "3 of 3 subjects of box-next are due for release within 10m, the limit is 3");
}

#[test]
fn a_round_judges_only_what_changed() {
    let mut script = Script::new(ALL, 0);
    let toys: Vec<String> = (0..1_000).map(|i| format!("toy-{i}")).collect();
    let mut toys: Vec<(&str, &str)> = toys.iter().map(|toy| (toy.as_str(), "stays")).collect();
    script.deliver("box", &toys);
    script.round(at(5));
    assert_eq!(script.judged(), 1_000);

    toys[7].1 = "100";
    script.deliver("box", &toys);
    script.round(at(6));

    assert_eq!(script.judged(), 1_001);
    let totals: Vec<_> = script.planner.verdict_counts().map(|(kind, count)| (kind.name(), count)).collect();
    assert_eq!(totals, [("none", 999), ("wait", 1), ("act", 0), ("refuse", 0)]);
}

#[test]
fn what_an_open_breaker_holds_back_is_not_judged_again_for_each_that_joins_it() {
    let mut script = Script::new(ALL, 0);
    script.limits = breaker();
    script.deliver("box", &[("ball", "1"), ("bear", "1"), ("kite", "1")]);
    assert!(script.round(at(5)).opens.is_some());
    let before = script.judged();

    script.deliver("box", &[("ball", "1"), ("bear", "1"), ("kite", "1"), ("doll", "1")]);
    assert_eq!(script.due(at(6)), []);
    assert_eq!(script.judged(), before + 1);

    script.ledger.open = None;
    script.limits = Limits::default();
    script.rejudge_held = true;
    let round = script.round(at(7));
    assert_eq!(names(&round.batches), [one("box", &["ball", "bear", "doll", "kite"])], "nothing was lost");
}

#[test]
fn refusals_and_invalid_objects_are_reported_once() {
    let mut script = Script::new(ALL, 0);
    let reported = |round: Round| round.refusals.into_iter().map(|r| (r.rule, r.name)).collect::<Vec<_>>();
    script.deliver("box-bad", &[("ball", "?")]);
    assert_eq!(reported(script.round(at(1))), [("InvalidObject", "box-bad".to_owned()), ("Glued", "ball".to_owned())]);

    script.planner.mark_all_dirty(&script.feed.cache);
    assert_eq!(reported(script.round(at(2))), []);
}

#[test]
fn in_the_world_of_a_standby_only_what_is_certain_is_due() {
    let mut script = Script::new(2, 0);
    script.deliver("box", &[("ball", "1"), ("bear", "!")]);
    script.role = ReplicaRole::Standby;

    let round = script.round(at(5));
    assert_eq!(names(&round.batches), [one("box", &["bear"])]);

    script.role = ReplicaRole::Leader;
    script.planner.requeue(&round.batches[0].target);
    script.planner.reset();
    script.planner.mark_all_dirty(&script.feed.cache);
    assert_eq!(script.due(at(5)), [one("box", &["ball", "bear"])]);
}

#[test]
fn a_target_rests_in_whatever_role_the_keeper_judges() {
    let mut script = Script::new(ALL, 10);
    script.deliver("box", &[("ball", "1")]);
    let round = script.round(at(5));
    script.planner.start(&round.batches[0].target);
    script.planner.reset();
    script.finish(&round.batches[0], &stale(), at(6));

    script.planner.mark_all_dirty(&script.feed.cache);

    assert_eq!(script.due(at(7)), []);
    assert_eq!(script.due(at(17)), [one("box", &["ball"])]);
}
