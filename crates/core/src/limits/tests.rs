//! Pace and breaker, with figures.

use super::*;
use crate::{ActionKind, Keeper, Membership, ObjectRef, RuleId, RuleMatch, SubjectRef};
use rstest::rstest;

const HOUR: SignedDuration = SignedDuration::from_hours(1);

struct Tasks;

crate::actions! { enum Deed {
    /// Puts it to sleep.
    Sleep => ActionKind::destructive("sleep"),
    /// Deletes it.
    Delete => ActionKind::destructive("delete"),
    /// Releases it.
    Release => ActionKind::destructive("release"),
    /// Wakes it.
    Wake => ActionKind::plain("wake"),
} }

crate::rules! { enum Rule for Tasks {
    /// It is time.
    Due => never,
} }

fn never((): &(), (): &(), _: Timestamp) -> Option<RuleMatch<Deed>> {
    None
}

impl Keeper for Tasks {
    type Subject = ();
    type World = ();
    type Action = Deed;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "tasks"
    }
    fn subject_ref<'a>(&self, (): &'a ()) -> SubjectRef<'a> {
        ObjectRef { api_version: "v1", kind: "Task", namespace: None, name: "", uid: "" }.into()
    }
    fn facts(&self, (): &(), _: Timestamp) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    fn simulate_action(&self, (): (), _: &Deed, (): &(), _: Timestamp) -> Option<()> {
        None
    }
}

fn population(subjects: usize) -> Population {
    Population { breaker_total: subjects, pace_total: subjects, queued: 0 }
}

fn of_group(group: Option<&str>) -> Membership<'_> {
    Membership { group, ..Membership::default() }
}

fn at(minutes: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
}

fn deed(name: &str) -> Deed {
    [Deed::Sleep, Deed::Delete, Deed::Release, Deed::Wake].into_iter().find(|deed| deed.name() == name).unwrap()
}

fn due(name: &str, minute: i64) -> Verdict<Rule, Deed> {
    let next = Next::Act { action: deed(name), due: at(minute), cause: Cause::Inferred };
    Verdict { rule: RuleId::Keeper(Rule::Due), next, because: "it is time".into() }
}

fn paced(limit: usize, fraction: f64) -> Limits {
    Limits { pace: [("delete".to_owned(), Pace { limit, fraction, window: HOUR })].into(), breaker: None }
}

fn broken(min_count: usize, min_fraction: f64) -> Limits {
    Limits { breaker: Some(Breaker { min_count, min_fraction, ..Breaker::default() }), ..Limits::default() }
}

#[rstest]
#[case::a_count_for_the_few(10, 0.1, 50, 10)]
#[case::a_share_of_the_many(10, 0.1, 500, 50)]
#[case::a_share_is_rounded_up(1, 0.5, 3, 2)]
#[case::never_more_than_all(0, 7.0, 3, 3)]
fn the_greater_of_count_and_share(
    #[case] count: usize,
    #[case] fraction: f64,
    #[case] all: usize,
    #[case] expected: usize,
) {
    assert_eq!(threshold(count, fraction, all), expected);
}

#[test]
fn what_is_due_longest_goes_first_and_the_rest_waits_its_turn() {
    let mut verdicts = vec![due("delete", 30), due("delete", 10), due("delete", 20)];

    enforce(&mut verdicts, &PopulationGroups::default(), population(3), &paced(2, 0.0), &Ledger::default(), at(60));

    assert!(matches!(verdicts[1].next, Next::Act { .. }));
    assert!(matches!(verdicts[2].next, Next::Act { .. }));
    assert_eq!(verdicts[0].rule, EngineRule::Paced.into());
    assert_eq!(verdicts[0].next, Next::Wait { until: at(120), then: deed("delete") });
    assert!(verdicts[0].because.contains("Due: it is time"), "{}", verdicts[0].because);
}

#[test]
fn an_act_half_an_hour_ago_still_takes_its_place() {
    let mut ledger = Ledger::default();
    ledger.record(&due("delete", 30).next, Membership::default(), &paced(1, 0.0), at(30));
    let mut verdicts = vec![due("delete", 0), due("delete", 1)];

    enforce(&mut verdicts, &PopulationGroups::default(), population(2), &paced(1, 0.0), &ledger, at(60));

    assert_eq!(verdicts[0].next, Next::Wait { until: at(90), then: deed("delete") });
    assert_eq!(verdicts[1].next, Next::Wait { until: at(150), then: deed("delete") });
}

#[test]
fn a_pace_that_was_lowered_does_not_give_old_places_out_again() {
    let mut ledger = Ledger::default();
    for minute in [10, 20, 30] {
        ledger.record(&due("delete", minute).next, Membership::default(), &paced(3, 0.0), at(minute));
    }
    let mut verdicts = vec![due("delete", 0)];

    enforce(&mut verdicts, &PopulationGroups::default(), population(2), &paced(1, 0.0), &ledger, at(40));

    assert_eq!(verdicts[0].next.deadline(), Some(at(90)), "an hour after the latest");
}

#[test]
fn what_is_not_paced_goes_at_once() {
    let mut verdicts = vec![due("sleep", 0); 30];

    assert_eq!(
        enforce(&mut verdicts, &PopulationGroups::default(), population(30), &paced(1, 0.0), &Ledger::default(), at(0)),
        None
    );

    assert!(verdicts.iter().all(|v| v.rule == RuleId::Keeper(Rule::Due)));
}

#[rstest]
#[case::half_of_forty(20, 40, true)]
#[case::one_less(19, 40, false)]
#[case::half_of_a_handful(10, 20, false)]
#[case::few_of_many(40, 100, false)]
fn the_breaker_opens_for_an_implausible_share(#[case] count: usize, #[case] subjects: usize, #[case] opens: bool) {
    let mut verdicts = vec![due("sleep", 0); count];

    let opened = enforce(
        &mut verdicts,
        &PopulationGroups::default(),
        population(subjects),
        &broken(20, 0.5),
        &Ledger::default(),
        at(0),
    );

    assert_eq!(opened.is_some(), opens);
    assert!(verdicts.iter().all(|v| (v.rule.is_engine(EngineRule::BreakerOpen)) == opens));
}

#[test]
fn what_was_done_in_the_last_ten_minutes_counts_too() {
    let limits = broken(3, 0.5);
    let mut ledger = Ledger::default();
    ledger.record(&due("sleep", 0).next, Membership::default(), &limits, at(0));
    ledger.record(&due("sleep", 5).next, Membership::default(), &limits, at(5));

    assert!(
        enforce(&mut [due("sleep", 9)], &PopulationGroups::default(), population(4), &limits, &ledger, at(9)).is_some()
    );
    assert!(
        enforce(&mut [due("sleep", 14)], &PopulationGroups::default(), population(4), &limits, &ledger, at(14))
            .is_none(),
        "the first is forgotten"
    );
}

#[test]
fn an_open_breaker_stays_open_and_never_holds_back_a_wake() {
    let opened = OpenBreaker { since: at(0), because: "30 of 40".into() };
    let ledger = Ledger { open: Some(opened), ..Ledger::default() };
    let mut verdicts = vec![due("delete", 500), due("wake", 500)];

    assert_eq!(
        enforce(&mut verdicts, &PopulationGroups::default(), population(40), &broken(20, 0.5), &ledger, at(600)),
        None,
        "it does not open twice"
    );

    assert_eq!((verdicts[0].rule, verdicts[0].next.name()), (EngineRule::BreakerOpen.into(), "refuse"));
    assert!(verdicts[0].because.contains("30 of 40"), "{}", verdicts[0].because);
    assert!(matches!(verdicts[1].next, Next::Act { .. }));
}

#[test]
fn a_pace_is_a_share_of_those_it_counts_and_not_of_all() {
    let mut verdicts = vec![due("delete", 0); 30];
    let many = Population { breaker_total: 530, pace_total: 30, queued: 0 };

    enforce(&mut verdicts, &PopulationGroups::default(), many, &paced(10, 0.1), &Ledger::default(), at(0));

    assert_eq!(verdicts.iter().filter(|v| v.next.name() == "act").count(), 10);
}

#[test]
fn a_backlog_that_its_pace_holds_back_does_not_open_the_breaker() {
    let limits = Limits { breaker: broken(20, 0.5).breaker, ..paced(10, 0.1) };
    let mut verdicts = vec![due("delete", 0); 45];

    assert_eq!(
        enforce(&mut verdicts, &PopulationGroups::default(), population(90), &limits, &Ledger::default(), at(600)),
        None
    );

    let mut fresh = vec![due("delete", 595); 45];
    assert!(
        enforce(&mut fresh, &PopulationGroups::default(), population(90), &limits, &Ledger::default(), at(600))
            .is_some(),
        "these fell due together"
    );
    assert!(fresh.iter().all(|v| v.rule.is_engine(EngineRule::BreakerOpen)), "those that wait their turn, too");
}

#[test]
fn what_waits_elsewhere_counts_too() {
    let one_more = Population { breaker_total: 40, pace_total: 40, queued: 19 };

    assert!(
        enforce(
            &mut [due("sleep", 0)],
            &PopulationGroups::default(),
            one_more,
            &broken(20, 0.5),
            &Ledger::default(),
            at(0)
        )
        .is_some()
    );
}

#[test]
fn the_ledger_forgets_what_no_bound_looks_at() {
    let limits = paced(1, 0.0);
    let mut ledger = Ledger::default();
    for minute in 0..1_000 {
        ledger.record(&due("delete", minute).next, Membership::default(), &limits, at(minute));
    }

    assert_eq!(ledger.admitted["delete"].len(), 60);
}

#[test]
fn a_breaker_that_a_person_closed_lets_pass_what_was_due_by_then_and_nothing_later() {
    let limits = broken(3, 0.5);
    let opened = OpenBreaker { since: at(0), because: "3 of 4".into() };
    let mut ledger = Ledger {
        open: Some(opened),
        recent_destructive: vec![GuardedBatch { at: at(0), count: 3, group: None }],
        ..Ledger::default()
    };

    ledger.reset_breaker(at(5));

    let mut seen = vec![due("sleep", 0); 4];
    assert_eq!(enforce(&mut seen, &PopulationGroups::default(), population(4), &limits, &ledger, at(6)), None);
    assert!(seen.iter().all(|v| v.next.name() == "act"), "{seen:?}");
    for _ in &seen {
        ledger.record(&due("sleep", 0).next, Membership::default(), &limits, at(6));
    }
    assert_eq!(
        enforce(&mut [due("sleep", 7)], &PopulationGroups::default(), population(4), &limits, &ledger, at(7)),
        None,
        "what was seen does not count"
    );
    assert!(
        enforce(&mut vec![due("sleep", 7); 3], &PopulationGroups::default(), population(4), &limits, &ledger, at(7))
            .is_some(),
        "the next flood does"
    );
}

#[test]
fn a_time_in_the_future_neither_switches_the_breaker_off_nor_holds_the_pace() {
    let looked = Ledger { reset_at: Some(at(10_000)), ..Ledger::default() };
    assert!(
        enforce(
            &mut vec![due("sleep", 0); 3],
            &PopulationGroups::default(),
            population(4),
            &broken(3, 0.5),
            &looked,
            at(1)
        )
        .is_some()
    );

    let admitted = [("delete".to_owned(), vec![at(10_000)])].into();
    let ahead = Ledger { admitted, ..Ledger::default() };
    let mut verdicts = vec![due("delete", 0)];
    enforce(&mut verdicts, &PopulationGroups::default(), population(4), &paced(1, 0.0), &ahead, at(1));
    assert_eq!(verdicts[0].next.name(), "act");
}

#[test]
fn the_share_of_a_smaller_crowd_opens_it_as_well() {
    let limits = broken(3, 0.5);
    let groups = PopulationGroups {
        of: vec![Some("small"), Some("small"), Some("large")],
        sizes: [("small", 4), ("large", 96)].into(),
        ..PopulationGroups::default()
    };
    let mut ledger = Ledger::default();

    let some = || vec![due("release", 0), due("release", 0), due("release", 0)];
    assert_eq!(
        enforce(&mut some(), &groups, population(100), &limits, &ledger, at(0)),
        None,
        "two of four, but not three"
    );

    ledger.record(&due("release", 0).next, of_group(Some("small")), &limits, at(0));
    let opened = enforce(&mut some(), &groups, population(100), &limits, &ledger, at(1)).unwrap();
    assert_eq!(opened.because, "3 of 4 subjects of small are due for release within 10m, the limit is 3");

    let others = PopulationGroups { of: vec![Some("large"); 3], ..groups.clone() };
    assert_eq!(
        enforce(&mut some(), &others, population(100), &limits, &ledger, at(1)),
        None,
        "what was made elsewhere"
    );
}

#[test]
fn a_crowd_apart_is_held_against_its_own_size_alone() {
    let limits = broken(3, 0.5);
    let groups = PopulationGroups {
        of: vec![Some("beside"), Some("beside"), Some("beside")],
        sizes: [("beside", 4)].into(),
        apart: ["beside"].into(),
        ..PopulationGroups::default()
    };
    let mut ledger = Ledger::default();
    let three = || vec![due("release", 0), due("release", 0), due("release", 0)];

    let opened = enforce(&mut three(), &groups, population(100), &limits, &ledger, at(0)).unwrap();
    assert_eq!(opened.because, "3 of 4 subjects of beside are due for release within 10m, the limit is 3");

    // What was made there is no part of what is due in the whole.
    for _ in 0..3 {
        ledger.record(&due("release", 0).next, of_group(Some("beside")), &limits, at(0));
    }
    let whole = PopulationGroups { of: vec![None; 2], ..groups };
    let two = || vec![due("release", 0), due("release", 0)];
    assert_eq!(enforce(&mut two(), &whole, population(4), &limits, &ledger, at(1)), None);
}

#[test]
fn what_was_made_together_is_one_line_of_the_ledger() {
    let limits = broken(3, 0.5);
    let mut ledger = Ledger::default();
    for group in [Some("a"), Some("b"), Some("a"), None] {
        ledger.record(&due("release", 0).next, of_group(group), &limits, at(0));
    }

    let text = serde_json::to_string(&ledger.recent_destructive).unwrap();

    assert_eq!(
        text,
        r#"[{"at":"1970-01-01T00:00:00Z","count":2,"group":"a"},{"at":"1970-01-01T00:00:00Z","count":1,"group":"b"},"1970-01-01T00:00:00Z"]"#
    );
    assert_eq!(serde_json::from_str::<Vec<GuardedBatch>>(&text).unwrap(), ledger.recent_destructive);
}

#[rstest]
#[case::ordered(Cause::Ordered)]
#[case::completed(Cause::Completion)]
fn what_is_not_inferred_is_neither_paced_nor_counted_nor_refused(#[case] cause: Cause) {
    let limits = Limits { breaker: broken(1, 0.0).breaker, ..paced(1, 0.0) };
    let opened = OpenBreaker { since: at(0), because: "30 of 40".into() };
    let mut ledger = Ledger { open: Some(opened), ..Ledger::default() };
    let next = Next::Act { action: Deed::Delete, due: at(0), cause };
    let mut verdicts = vec![Verdict { next: next.clone(), ..due("delete", 0) }; 3];

    enforce(&mut verdicts, &PopulationGroups::default(), population(4), &limits, &ledger, at(1));
    ledger.record(&next, Membership::default(), &limits, at(1));

    assert!(verdicts.iter().all(|v| v.next == next), "{verdicts:?}");
    assert_eq!((ledger.admitted.len(), ledger.recent_destructive.len()), (0, 0));
}

#[test]
fn an_incident_that_makes_many_due_counts_once() {
    let limits = broken(3, 0.5);
    let mut ledger = Ledger::default();
    let all = || vec![due("release", 0); 4];
    let of =
        |incidents: [Option<&'static str>; 4]| PopulationGroups { incidents: incidents.into(), ..Default::default() };

    let one = of([Some("agent-1"); 4]);
    assert_eq!(enforce(&mut all(), &one, population(4), &limits, &ledger, at(0)), None);

    let several = of([Some("agent-1"), Some("agent-1"), Some("agent-2"), None]);
    let opened = enforce(&mut all(), &several, population(4), &limits, &ledger, at(0)).unwrap();
    assert_eq!(opened.because, "3 of 4 subjects are due for release within 10m, the limit is 3");

    // What was done because of it counts once as well, and what is left of it does not count again.
    let member = Membership { incident: Some("agent-1"), ..Membership::default() };
    for _ in 0..3 {
        ledger.record(&due("release", 0).next, member, &limits, at(0));
    }
    assert_eq!(ledger.recent_destructive.iter().map(|batch| batch.count).sum::<usize>(), 1);
    let left = of([Some("agent-1"), Some("agent-1"), Some("agent-2"), Some("agent-2")]);
    assert_eq!(enforce(&mut all(), &left, population(4), &limits, &ledger, at(1)), None);
    let more = of([Some("agent-1"), Some("agent-3"), Some("agent-2"), Some("agent-2")]);
    assert!(enforce(&mut all(), &more, population(4), &limits, &ledger, at(1)).is_some());
}
