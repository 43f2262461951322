//! What is due, round by round, where many homes are written at one site: no wire.

mod toy;

use caretaker_core::limits::{Limits, Breaker, Ledger};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::keep::Ended;
use caretaker_engine::round::{Batch, Round, Rounds};
use caretaker_engine::watch::News;
use toy::{Case, Changed, Toys, World, at};

type All = Toys<{ usize::MAX }, 0>;
type Pairs = Toys<2, 0>;
type Rested = Toys<{ usize::MAX }, 10>;

/// Rounds over boxes, with their limits and their ledger.
struct Script<const TOGETHER: usize, const REST: u64> {
    rounds: Rounds<Toys<TOGETHER, REST>>,
    limits: Limits,
    ledger: Ledger,
}

impl<const TOGETHER: usize, const REST: u64> Script<TOGETHER, REST> {
    fn new(_: Toys<TOGETHER, REST>) -> Self {
        Self { rounds: Rounds::default(), limits: Limits::default(), ledger: Ledger::default() }
    }

    fn tell(&mut self, case: &str, toys: &[(&str, &str)]) {
        self.rounds.hear("ConfigMap", &News::Is(Case::of(case, toys)));
    }

    fn round(&mut self, now: Timestamp) -> Round<Toys<TOGETHER, REST>> {
        self.rounds.round(&World::default(), &self.limits, &mut self.ledger, false, now)
    }

    /// What may be done: the box, and its toys.
    fn due(&mut self, now: Timestamp) -> Vec<(String, Vec<String>)> {
        names(&self.round(now).due)
    }

    fn end(&mut self, batch: &Batch<Toys<TOGETHER, REST>>, outcome: fn() -> Result<(), Changed>, now: Timestamp) {
        let ended: Vec<_> = batch.due.iter().map(|due| Ended { due: due.clone(), outcome: outcome() }).collect();
        self.rounds.end(&batch.site, &ended, now);
    }

    fn looks(&self) -> usize {
        self.rounds.seen().looks
    }
}

fn names<const TOGETHER: usize, const REST: u64>(due: &[Batch<Toys<TOGETHER, REST>>]) -> Vec<(String, Vec<String>)> {
    let mut names = Vec::new();
    for batch in due {
        names.push((batch.site.clone(), batch.due.iter().map(|due| due.subject.name.clone()).collect()));
    }
    names
}

fn one(case: &str, toys: &[&str]) -> (String, Vec<String>) {
    (case.to_owned(), toys.iter().map(|toy| (*toy).to_owned()).collect())
}

fn breaker() -> Limits {
    let breaker = Breaker { min_count: 3, min_fraction: 0.5, window: SignedDuration::from_mins(10) };
    Limits { breaker: Some(breaker), ..Limits::default() }
}

#[test]
fn what_is_due_at_one_site_is_one_batch() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 0>);
    script.tell("box-a", &[("ball", "1"), ("bear", "1"), ("kite", "stays")]);
    script.tell("box-b", &[("ball", "1"), ("bear", "100")]);

    assert_eq!(script.due(at(5)), [one("box-a", &["ball", "bear"]), one("box-b", &["ball"])]);
    assert_eq!(script.rounds.next(), Some(at(100)));
}

#[test]
fn no_more_are_one_act_than_the_keeper_takes_together_and_the_others_come_after_them() {
    let mut script = Script::new(Toys::<2, 0>);
    script.tell("box", &[("ball", "1"), ("bear", "1"), ("kite", "1")]);
    let round = script.round(at(5));
    assert_eq!(names(&round.due), [one("box", &["ball", "bear"])]);

    script.tell("box", &[("kite", "1")]);
    script.end(&round.due[0], || Ok(()), at(6));

    assert_eq!(script.due(at(6)), [one("box", &["kite"])]);
}

#[test]
fn what_is_touched_or_falls_due_at_a_busy_site_is_judged_when_it_is_free() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 0>);
    script.tell("box", &[("ball", "1"), ("bear", "10")]);
    let round = script.round(at(5));
    assert_eq!(names(&round.due), [one("box", &["ball"])]);
    script.tell("box", &[("ball", "1"), ("bear", "10"), ("kite", "1")]);
    script.tell("box-other", &[("ball", "1")]);
    assert_eq!(script.due(at(20)), [one("box-other", &["ball"])], "one act at a time at a site");

    script.rounds.see(&[Case::of("box", &[("bear", "10"), ("kite", "1")])]);
    script.end(&round.due[0], || Ok(()), at(21));

    assert_eq!(script.due(at(21)), [one("box", &["bear", "kite"])]);
}

#[test]
fn what_failed_alone_waits_while_the_others_of_its_site_go_on() {
    let mut script = Script::new(Toys::<1, 0>);
    script.tell("box", &[("ball", "1"), ("bear", "1")]);
    let round = script.round(at(5));
    assert_eq!(names(&round.due), [one("box", &["ball"])]);

    script.end(&round.due[0], || Err(Changed), at(5));

    assert_eq!(script.due(at(5)), [one("box", &["bear"])]);
}

#[test]
fn after_an_act_its_site_rests() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 10>);
    script.tell("box", &[("ball", "1"), ("bear", "7")]);
    let round = script.round(at(5));
    script.rounds.begin(&round.due[0].site);
    script.rounds.see(&[Case::of("box", &[("bear", "7")])]);
    script.end(&round.due[0], || Ok(()), at(8));

    assert_eq!(script.due(at(9)), [], "it rests");
    assert_eq!(script.rounds.next(), Some(at(18)));
    assert_eq!(script.due(at(18)), [], "at that time itself it is not over");
    assert_eq!(script.due(at(19)), [one("box", &["bear"])]);
}

#[test]
fn however_long_an_act_lasts_the_rest_comes_after_it() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 10>);
    script.tell("box", &[("ball", "1"), ("bear", "7")]);
    let round = script.round(at(5));
    script.rounds.begin(&round.due[0].site);
    assert_eq!(script.due(at(30)), [], "it is under way");
    script.rounds.see(&[Case::of("box", &[("bear", "7")])]);

    script.end(&round.due[0], || Ok(()), at(30));

    assert_eq!(script.due(at(40)), []);
    assert_eq!(script.due(at(41)), [one("box", &["bear"])]);
}

#[test]
fn what_was_not_begun_leaves_no_rest() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 10>);
    script.tell("box", &[("ball", "1")]);
    let round = script.round(at(5));

    script.rounds.put_back(&round.due[0], at(5));

    assert_eq!(script.due(at(5)), [one("box", &["ball"])]);
}

#[test]
fn half_of_one_group_opens_the_breaker_however_many_there_are_elsewhere() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 0>);
    script.limits = breaker();
    let resting: Vec<String> = (0..90).map(|i| format!("toy-{i}")).collect();
    let resting: Vec<(&str, &str)> = resting.iter().map(|toy| (toy.as_str(), "stays")).collect();
    script.tell("box-large", &resting);
    script.tell("box-small", &[("ball", "1"), ("bear", "1"), ("kite", "20"), ("doll", "stays")]);
    assert_eq!(script.due(at(5)), [one("box-small", &["ball", "bear"])], "fewer than the breaker looks at");
    let groups: Vec<_> = script.ledger.recent_destructive.iter().map(|made| (made.group.as_deref(), made.count)).collect();
    assert_eq!(groups, [(Some("box-small"), 2)]);
    script.tell("box-small-too", &[("ball", "1")]);
    assert_eq!(script.round(at(5)).opened, None, "another group");

    script.rounds.stand_down();
    script.tell("box-next", &[("ball", "1"), ("bear", "1"), ("kite", "1")]);
    let round = script.round(at(30));

    assert!(round.due.is_empty());
    let opened = round.opened.map(|opened| opened.because).unwrap_or_default();
    assert_eq!(opened, "3 of 3 subjects of box-next are due for release within 10m, the limit is 3");
}

#[test]
fn a_round_looks_only_at_what_was_touched() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 0>);
    let toys: Vec<String> = (0..1_000).map(|i| format!("toy-{i}")).collect();
    let mut toys: Vec<(&str, &str)> = toys.iter().map(|toy| (toy.as_str(), "stays")).collect();
    script.tell("box", &toys);
    script.round(at(5));
    assert_eq!(script.looks(), 1_000);

    toys[7].1 = "100";
    script.tell("box", &toys);
    script.round(at(6));

    assert_eq!(script.looks(), 1_001);
    let totals: Vec<_> = script.rounds.totals().collect();
    assert_eq!(totals, [("rest", 999), ("wait", 1), ("act", 0), ("refuse", 0)]);
}

#[test]
fn what_an_open_breaker_holds_back_is_not_looked_at_for_each_that_joins_it() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 0>);
    script.limits = breaker();
    script.tell("box", &[("ball", "1"), ("bear", "1"), ("kite", "1")]);
    assert!(script.round(at(5)).opened.is_some());
    let before = script.looks();

    script.tell("box", &[("ball", "1"), ("bear", "1"), ("kite", "1"), ("doll", "1")]);
    assert_eq!(script.due(at(6)), []);
    assert_eq!(script.looks(), before + 1);

    script.ledger.open = None;
    script.limits = Limits::default();
    let round = script.rounds.round(&World::default(), &script.limits, &mut script.ledger, true, at(7));
    assert_eq!(names(&round.due), [one("box", &["ball", "bear", "doll", "kite"])], "nothing was lost");
}

#[test]
fn refusals_and_complaints_are_told_once() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 0>);
    let told = |round: Round<All>| round.refused.into_iter().map(|r| (r.rule, r.name)).collect::<Vec<_>>();
    script.tell("box-bad", &[("ball", "?")]);
    assert_eq!(told(script.round(at(1))), [("BadBox", "box-bad".to_owned()), ("Glued", "ball".to_owned())]);

    script.rounds.doubt();
    assert_eq!(told(script.round(at(2))), []);
}

#[test]
fn in_the_world_of_a_backup_only_what_is_certain_is_due() {
    let mut script = Script::new(Toys::<2, 0>);
    script.tell("box", &[("ball", "1"), ("bear", "!")]);
    let world = World { backs_up: true };

    let round: Round<Pairs> = script.rounds.round(&world, &script.limits, &mut script.ledger, true, at(5));
    assert_eq!(names(&round.due), [one("box", &["bear"])]);

    // It leads from now on.
    script.rounds.put_back(&round.due[0], at(5));
    script.rounds.stand_down();
    script.rounds.doubt();
    assert_eq!(script.due(at(5)), [one("box", &["ball", "bear"])]);
}

#[test]
fn a_site_rests_whoever_judges() {
    let mut script = Script::new(Toys::<{ usize::MAX }, 10>);
    script.tell("box", &[("ball", "1")]);
    let round: Round<Rested> = script.round(at(5));
    script.rounds.begin(&round.due[0].site);
    script.rounds.stand_down();
    script.end(&round.due[0], || Err(Changed), at(6));

    script.rounds.doubt();

    assert_eq!(script.due(at(7)), []);
    assert_eq!(script.due(at(17)), [one("box", &["ball"])]);
}
