//! The simulator, on candles.

use super::*;
use crate::limits::{Breaker, Pace};
use crate::{ActionKind, ObjectRef, RuleMatch, SubjectRef};

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// A candle burns for an hour after it was last trimmed, and is then taken away.
#[derive(Debug, Clone, PartialEq)]
struct Candle(Timestamp);

struct Candles;

crate::actions! { enum Take {
    /// Takes it away.
    Take => ActionKind::destructive("take"),
} }

crate::rules! { enum Rule for Candles {
    /// Burnt for an hour.
    BurntDown => burnt_down,
} }

fn burnt_down(candle: &Candle, (): &(), now: Timestamp) -> Option<RuleMatch<Take>> {
    let due = time::saturating_add(candle.0, HOUR);
    Some(RuleMatch::act_after(due, Take::Take, now, "it burns for an hour"))
}

impl Keeper for Candles {
    type Subject = Candle;
    type World = ();
    type Action = Take;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "candles"
    }
    fn subject_ref<'a>(&self, _: &'a Candle) -> SubjectRef<'a> {
        ObjectRef { api_version: "v1", kind: "Candle", namespace: None, name: "candle", uid: "" }.into()
    }
    fn facts(&self, candle: &Candle, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("lit", time::format(candle.0))]
    }
    fn simulate_action(&self, _: Candle, _: &Take, (): &(), _: Timestamp) -> Option<Candle> {
        None
    }
}

fn at(minutes: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
}

fn trimmed(at: Timestamp, subject: usize) -> ExternalChange<Candle> {
    ExternalChange { at, subject, change: Box::new(move |_| Candle(at)) }
}

fn simulate(
    lit: &[i64],
    limits: Limits,
    outside: &[ExternalChange<Candle>],
) -> Vec<(i64, Option<usize>, &'static str)> {
    let candles = lit.iter().map(|m| Candle(at(*m))).collect();
    let mut simulation = Simulation::new(&Candles, (), candles, limits, Ledger::default(), at(0));
    let events = simulation.run(at(600), outside);
    events.into_iter().map(|event| (event.at.as_second() / 60, event.subject, event.rule.name())).collect()
}

#[test]
fn each_falls_due_at_its_deadline_in_order() {
    let events = simulate(&[20, 0], Limits::default(), &[]);

    assert_eq!(events, [(60, Some(1), "BurntDown"), (80, Some(0), "BurntDown")]);
}

#[test]
fn what_is_overdue_at_the_start_happens_at_the_start() {
    assert_eq!(simulate(&[-500], Limits::default(), &[]), [(0, Some(0), "BurntDown")]);
}

#[test]
fn a_change_from_outside_moves_the_deadline() {
    let outside = [trimmed(at(59), 0), trimmed(at(30), 0)];

    assert_eq!(simulate(&[0], Limits::default(), &outside), [(119, Some(0), "BurntDown")]);
}

#[test]
fn what_is_over_its_pace_waits_its_turn() {
    let pace = Pace { limit: 1, fraction: 0.0, window: HOUR };
    let limits = Limits { pace: [("take".to_owned(), pace)].into(), breaker: None };

    let times: Vec<i64> = simulate(&[0, 0, 0], limits, &[]).into_iter().map(|(at, ..)| at).collect();

    assert_eq!(times, [60, 120, 180]);
}

#[test]
fn a_breaker_opens_once_and_ends_it() {
    let breaker = Breaker { min_count: 2, ..Breaker::default() };
    let limits = Limits { breaker: Some(breaker), ..Limits::default() };

    let events = simulate(&[0, 0, 0, 30], limits, &[]);

    assert_eq!(events, [(60, None, EngineRule::BreakerOpen.name())]);
}

#[test]
fn many_changes_leave_one_appointment() {
    let outside: Vec<_> = (0..5_000).map(|i| trimmed(at(0) + SignedDuration::from_secs(i), 0)).collect();
    let mut simulation =
        Simulation::new(&Candles, (), vec![Candle(at(0))], Limits::default(), Ledger::default(), at(0));

    simulation.run(at(84), &outside);

    let valid = simulation.agenda.iter().filter(|Reverse((t, i))| simulation.appointments[*i] == Some(*t)).count();
    assert_eq!(valid, 1);
}

fn two_at_once_open_it() -> Limits {
    Limits { breaker: Some(Breaker { min_count: 2, ..Breaker::default() }), ..Limits::default() }
}

#[test]
fn what_an_open_breaker_holds_back_is_counted() {
    let candles = [0, 0, 0, 30].map(|m| Candle(at(m))).to_vec();
    let mut simulation = Simulation::new(&Candles, (), candles, two_at_once_open_it(), Ledger::default(), at(0));

    simulation.run(at(70), &[]);
    assert_eq!(simulation.held, [0, 1, 2].into(), "the fourth is not due yet");
    simulation.run(at(600), &[trimmed(at(71), 1)]);

    assert_eq!(simulation.held, [0, 1, 2, 3].into());
}

#[test]
fn with_resets_everything_goes_on_at_its_pace() {
    let pace = Pace { limit: 2, fraction: 0.0, window: HOUR };
    let limits = Limits { pace: [("take".to_owned(), pace)].into(), ..two_at_once_open_it() };
    let candles = [0, 0, 0, 200, 200].map(|m| Candle(at(m))).to_vec();
    let mut simulation = Simulation::new(&Candles, (), candles, limits, Ledger::default(), at(0)).with_breaker_resets();

    let events = simulation.run(at(600), &[]);

    let short = events.iter().map(|event| (event.at.as_second() / 60, event.subject)).collect::<Vec<_>>();
    let expected =
        [(60, None), (60, Some(0)), (60, Some(1)), (120, Some(2)), (260, None), (260, Some(3)), (260, Some(4))];
    assert_eq!(short, expected, "it opens for each flood, and is reset each time");
    assert!(simulation.held.is_empty() && simulation.ledger.open.is_none());
}

#[test]
fn with_resets_a_breaker_that_is_open_at_the_start_holds_nothing_back() {
    let ledger = Ledger { open: Some(OpenBreaker { since: at(-9), because: "many".to_owned() }), ..Ledger::default() };
    let simulate = |resets: bool| {
        let candles = vec![Candle(at(-90))];
        let simulation = Simulation::new(&Candles, (), candles, Limits::default(), ledger.clone(), at(0));
        let mut simulation = if resets { simulation.with_breaker_resets() } else { simulation };
        (simulation.run(at(600), &[]).len(), simulation.held.len())
    };

    assert_eq!((simulate(false), simulate(true)), ((0, 1), (1, 0)));
}
