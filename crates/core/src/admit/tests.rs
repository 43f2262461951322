//! Pace and breaker, with figures.

use super::*;
use rstest::rstest;

#[derive(Debug, Clone, PartialEq)]
struct Named(&'static str);

impl Action for Named {
    fn name(&self) -> &'static str {
        self.0
    }
    fn guarded(&self) -> bool {
        self.0 != "wake"
    }
}

const HOUR: SignedDuration = SignedDuration::from_hours(1);

fn crowd(subjects: usize) -> Crowd {
    Crowd { subjects, paced: subjects, queued: 0, leaves: false }
}

fn at(minutes: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
}

fn due(name: &'static str, minute: i64) -> Verdict<Named> {
    Verdict { rule: "Due", next: Next::Act { action: Named(name), due: at(minute) }, because: "it is time".into() }
}

fn paced(at_least: usize, share: f64) -> Bounds {
    Bounds { pace: [("delete".to_owned(), Pace { at_least, share, per: HOUR })].into(), breaker: None }
}

fn broken(at_least: usize, share: f64) -> Bounds {
    Bounds { breaker: Some(Breaker { at_least, share, ..Breaker::default() }), ..Bounds::default() }
}

#[rstest]
#[case::a_count_for_the_few(10, 0.1, 50, 10)]
#[case::a_share_of_the_many(10, 0.1, 500, 50)]
#[case::a_share_is_rounded_up(1, 0.5, 3, 2)]
#[case::never_more_than_all(0, 7.0, 3, 3)]
fn the_greater_of_count_and_share(
    #[case] at_least: usize,
    #[case] share: f64,
    #[case] all: usize,
    #[case] expected: usize,
) {
    assert_eq!(of(at_least, share, all), expected);
}

#[test]
fn what_is_due_longest_goes_first_and_the_rest_waits_its_turn() {
    let mut verdicts = vec![due("delete", 30), due("delete", 10), due("delete", 20)];

    admit(&mut verdicts, &Groups::default(), crowd(3), &paced(2, 0.0), &Ledger::default(), at(60));

    assert!(matches!(verdicts[1].next, Next::Act { .. }));
    assert!(matches!(verdicts[2].next, Next::Act { .. }));
    assert_eq!(verdicts[0].rule, PACED);
    assert_eq!(verdicts[0].next, Next::Wait { until: at(120), then: Named("delete") });
    assert!(verdicts[0].because.contains("Due: it is time"), "{}", verdicts[0].because);
}

#[test]
fn an_act_half_an_hour_ago_still_takes_its_place() {
    let mut ledger = Ledger::default();
    ledger.note(&Named("delete"), at(30), None, &paced(1, 0.0), at(30));
    let mut verdicts = vec![due("delete", 0), due("delete", 1)];

    admit(&mut verdicts, &Groups::default(), crowd(2), &paced(1, 0.0), &ledger, at(60));

    assert_eq!(verdicts[0].next, Next::Wait { until: at(90), then: Named("delete") });
    assert_eq!(verdicts[1].next, Next::Wait { until: at(150), then: Named("delete") });
}

#[test]
fn a_pace_that_was_lowered_does_not_give_old_places_out_again() {
    let mut ledger = Ledger::default();
    for minute in [10, 20, 30] {
        ledger.note(&Named("delete"), at(minute), None, &paced(3, 0.0), at(minute));
    }
    let mut verdicts = vec![due("delete", 0)];

    admit(&mut verdicts, &Groups::default(), crowd(2), &paced(1, 0.0), &ledger, at(40));

    assert_eq!(verdicts[0].next.at(), Some(at(90)), "an hour after the latest");
}

#[test]
fn what_is_not_paced_goes_at_once() {
    let mut verdicts = vec![due("sleep", 0); 30];

    assert_eq!(admit(&mut verdicts, &Groups::default(), crowd(30), &paced(1, 0.0), &Ledger::default(), at(0)), None);

    assert!(verdicts.iter().all(|v| v.rule == "Due"));
}

#[rstest]
#[case::half_of_forty(20, 40, true)]
#[case::one_less(19, 40, false)]
#[case::half_of_a_handful(10, 20, false)]
#[case::few_of_many(40, 100, false)]
fn the_breaker_opens_for_an_implausible_share(#[case] count: usize, #[case] subjects: usize, #[case] opens: bool) {
    let mut verdicts = vec![due("sleep", 0); count];

    let opened = admit(&mut verdicts, &Groups::default(), crowd(subjects), &broken(20, 0.5), &Ledger::default(), at(0));

    assert_eq!(opened.is_some(), opens);
    assert!(verdicts.iter().all(|v| (v.rule == BREAKER_OPEN) == opens));
}

#[test]
fn what_was_done_in_the_last_ten_minutes_counts_too() {
    let bounds = broken(3, 0.5);
    let mut ledger = Ledger::default();
    ledger.note(&Named("sleep"), at(0), None, &bounds, at(0));
    ledger.note(&Named("sleep"), at(5), None, &bounds, at(5));

    assert!(admit(&mut [due("sleep", 9)], &Groups::default(), crowd(4), &bounds, &ledger, at(9)).is_some());
    assert!(
        admit(&mut [due("sleep", 14)], &Groups::default(), crowd(4), &bounds, &ledger, at(14)).is_none(),
        "the first is forgotten"
    );
}

#[test]
fn an_open_breaker_stays_open_and_never_holds_back_a_wake() {
    let opened = Opened { since: at(0), because: "30 of 40".into() };
    let ledger = Ledger { open: Some(opened), ..Ledger::default() };
    let mut verdicts = vec![due("delete", 500), due("wake", 500)];

    assert_eq!(
        admit(&mut verdicts, &Groups::default(), crowd(40), &broken(20, 0.5), &ledger, at(600)),
        None,
        "it does not open twice"
    );

    assert_eq!((verdicts[0].rule, verdicts[0].next.name()), (BREAKER_OPEN, "refuse"));
    assert!(verdicts[0].because.contains("30 of 40"), "{}", verdicts[0].because);
    assert!(matches!(verdicts[1].next, Next::Act { .. }));
}

#[test]
fn a_pace_is_a_share_of_those_it_counts_and_not_of_all() {
    let mut verdicts = vec![due("delete", 0); 30];
    let many = Crowd { subjects: 530, paced: 30, queued: 0, leaves: false };

    admit(&mut verdicts, &Groups::default(), many, &paced(10, 0.1), &Ledger::default(), at(0));

    assert_eq!(verdicts.iter().filter(|v| v.next.name() == "act").count(), 10);
}

#[test]
fn a_backlog_that_its_pace_holds_back_does_not_open_the_breaker() {
    let bounds = Bounds { breaker: broken(20, 0.5).breaker, ..paced(10, 0.1) };
    let mut verdicts = vec![due("delete", 0); 45];

    assert_eq!(admit(&mut verdicts, &Groups::default(), crowd(90), &bounds, &Ledger::default(), at(600)), None);

    let mut fresh = vec![due("delete", 595); 45];
    assert!(
        admit(&mut fresh, &Groups::default(), crowd(90), &bounds, &Ledger::default(), at(600)).is_some(),
        "these fell due together"
    );
    assert!(fresh.iter().all(|v| v.rule == BREAKER_OPEN), "those that wait their turn, too");
}

#[test]
fn what_waits_elsewhere_counts_too() {
    let one_more = Crowd { subjects: 40, paced: 40, queued: 19, leaves: false };

    assert!(
        admit(&mut [due("sleep", 0)], &Groups::default(), one_more, &broken(20, 0.5), &Ledger::default(), at(0))
            .is_some()
    );
}

#[test]
fn the_ledger_forgets_what_no_bound_looks_at() {
    let bounds = paced(1, 0.0);
    let mut ledger = Ledger::default();
    for minute in 0..1_000 {
        ledger.note(&Named("delete"), at(minute), None, &bounds, at(minute));
    }

    assert_eq!(ledger.admitted["delete"].len(), 60);
}

#[test]
fn a_breaker_that_a_person_closed_lets_pass_what_was_due_by_then_and_nothing_later() {
    let bounds = broken(3, 0.5);
    let opened = Opened { since: at(0), because: "3 of 4".into() };
    let mut ledger =
        Ledger { open: Some(opened), guarded: vec![Made { at: at(0), count: 3, group: None }], ..Ledger::default() };

    ledger.close(at(5));

    let mut seen = vec![due("sleep", 0); 4];
    assert_eq!(admit(&mut seen, &Groups::default(), crowd(4), &bounds, &ledger, at(6)), None);
    assert!(seen.iter().all(|v| v.next.name() == "act"), "{seen:?}");
    for _ in &seen {
        ledger.note(&Named("sleep"), at(0), None, &bounds, at(6));
    }
    assert_eq!(
        admit(&mut [due("sleep", 7)], &Groups::default(), crowd(4), &bounds, &ledger, at(7)),
        None,
        "what was seen does not count"
    );
    assert!(
        admit(&mut vec![due("sleep", 7); 3], &Groups::default(), crowd(4), &bounds, &ledger, at(7)).is_some(),
        "the next flood does"
    );
}

#[test]
fn a_time_in_the_future_neither_switches_the_breaker_off_nor_holds_the_pace() {
    let looked = Ledger { looked: Some(at(10_000)), ..Ledger::default() };
    assert!(
        admit(&mut vec![due("sleep", 0); 3], &Groups::default(), crowd(4), &broken(3, 0.5), &looked, at(1)).is_some()
    );

    let admitted = [("delete".to_owned(), vec![at(10_000)])].into();
    let ahead = Ledger { admitted, ..Ledger::default() };
    let mut verdicts = vec![due("delete", 0)];
    admit(&mut verdicts, &Groups::default(), crowd(4), &paced(1, 0.0), &ahead, at(1));
    assert_eq!(verdicts[0].next.name(), "act");
}

#[test]
fn the_share_of_a_smaller_crowd_opens_it_as_well() {
    let bounds = broken(3, 0.5);
    let groups =
        Groups { of: vec![Some("small"), Some("small"), Some("large")], sizes: [("small", 4), ("large", 96)].into() };
    let mut ledger = Ledger::default();

    let some = || vec![due("release", 0), due("release", 0), due("release", 0)];
    assert_eq!(admit(&mut some(), &groups, crowd(100), &bounds, &ledger, at(0)), None, "two of four, but not three");

    ledger.note(&Named("release"), at(0), Some("small"), &bounds, at(0));
    let opened = admit(&mut some(), &groups, crowd(100), &bounds, &ledger, at(1)).unwrap();
    assert_eq!(opened.because, "3 of 4 subjects of small are due for release within 10m, the limit is 3");

    let others = Groups { of: vec![Some("large"); 3], sizes: groups.sizes.clone() };
    assert_eq!(admit(&mut some(), &others, crowd(100), &bounds, &ledger, at(1)), None, "what was made elsewhere");
}

#[test]
fn what_was_made_together_is_one_line_of_the_ledger() {
    let bounds = broken(3, 0.5);
    let mut ledger = Ledger::default();
    for group in [Some("a"), Some("b"), Some("a"), None] {
        ledger.note(&Named("release"), at(0), group, &bounds, at(0));
    }

    let text = serde_json::to_string(&ledger.guarded).unwrap();

    assert_eq!(
        text,
        r#"[{"at":"1970-01-01T00:00:00Z","count":2,"group":"a"},{"at":"1970-01-01T00:00:00Z","count":1,"group":"b"},"1970-01-01T00:00:00Z"]"#
    );
    assert_eq!(serde_json::from_str::<Vec<Made>>(&text).unwrap(), ledger.guarded);
}
