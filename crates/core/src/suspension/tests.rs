//! What a window on an object holds back, and what it does not.

use rstest::rstest;

use super::*;
use crate::{ActionKind, Keeper, ObjectRef, RuleId, RuleMatch, SubjectRef};

struct Beds;

crate::actions! { enum Deed {
    /// Takes something away.
    Sleep => ActionKind::destructive("sleep"),
    /// Takes something away, and is an order on its own object.
    Hold => ActionKind::destructive("hold").not_suspendable(),
    /// Takes nothing away.
    Wake => ActionKind::plain("wake"),
    /// Takes nothing away, and is held back.
    Create => ActionKind::plain("create").suspendable(),
} }

crate::rules! { enum Rule for Beds {
    /// It is late.
    Late => late,
} }

fn late((): &(), (): &(), now: Timestamp) -> Option<RuleMatch<Deed>> {
    Some(RuleMatch::act(Deed::Sleep, now, "it is late"))
}

impl Keeper for Beds {
    type Subject = ();
    type World = ();
    type Action = Deed;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "beds"
    }

    fn subject_ref<'a>(&self, (): &'a ()) -> SubjectRef<'a> {
        ObjectRef { api_version: "v1", kind: "Bed", namespace: None, name: "bed", uid: "" }.into()
    }

    fn facts(&self, (): &(), _: Timestamp) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn simulate_action(&self, (): (), _: &Deed, (): &(), _: Timestamp) -> Option<()> {
        None
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn suspension(text: &str) -> Suspension {
    Suspension::parse(WindowAnnotation::new(SUSPENDED_DURING, text), &TimeZone::UTC)
}

fn due(action: Deed, cause: Cause) -> Verdict<Rule, Deed> {
    let next = Next::Act { action, due: at("2026-03-04T09:00:00Z"), cause };
    Verdict { rule: RuleId::Keeper(Rule::Late), next, because: "it is late".to_owned() }
}

/// A Wednesday.
const IN_OFFICE_HOURS: &str = "2026-03-04T10:00:00Z";
const AT_NIGHT: &str = "2026-03-04T19:00:00Z";
const OFFICE_HOURS: &str = "* 8-18 * * MON-FRI";
const UNREADABLE: &str = "* 25 * * *";

#[rstest]
#[case::inferred(OFFICE_HOURS, IN_OFFICE_HOURS, Deed::Sleep, Cause::Inferred, "Suspended wait")]
#[case::ordered_by_a_schedule_or_a_person(OFFICE_HOURS, IN_OFFICE_HOURS, Deed::Sleep, Cause::Ordered, "Suspended wait")]
#[case::half_done(OFFICE_HOURS, IN_OFFICE_HOURS, Deed::Sleep, Cause::Completion, "Late act")]
#[case::outside_of_the_window(OFFICE_HOURS, AT_NIGHT, Deed::Sleep, Cause::Inferred, "Late act")]
#[case::a_wake(OFFICE_HOURS, IN_OFFICE_HOURS, Deed::Wake, Cause::Inferred, "Late act")]
#[case::a_creation(OFFICE_HOURS, IN_OFFICE_HOURS, Deed::Create, Cause::Inferred, "Suspended wait")]
#[case::a_keeper_whose_order_it_is(OFFICE_HOURS, IN_OFFICE_HOURS, Deed::Hold, Cause::Inferred, "Late act")]
#[case::always("@always", AT_NIGHT, Deed::Sleep, Cause::Inferred, "Suspended none")]
#[case::unreadable(UNREADABLE, AT_NIGHT, Deed::Sleep, Cause::Inferred, "InvalidWindow refuse")]
#[case::unreadable_and_ordered(UNREADABLE, AT_NIGHT, Deed::Sleep, Cause::Ordered, "InvalidWindow refuse")]
#[case::unreadable_and_half_done(UNREADABLE, AT_NIGHT, Deed::Sleep, Cause::Completion, "Late act")]
#[case::unreadable_takes_nothing_away(UNREADABLE, AT_NIGHT, Deed::Create, Cause::Inferred, "Late act")]
#[case::unreadable_wake(UNREADABLE, AT_NIGHT, Deed::Wake, Cause::Inferred, "Late act")]
fn a_window(
    #[case] window: &str,
    #[case] now: &str,
    #[case] action: Deed,
    #[case] cause: Cause,
    #[case] expected: &str,
) {
    let mut verdict = due(action, cause);
    let held = suspension(window).hold_back(&mut verdict, at(now));

    assert_eq!(format!("{} {}", verdict.rule, verdict.next.name()), expected);
    assert_eq!(held, !expected.starts_with("Late"));
}

#[test]
fn what_waits_or_is_refused_stays_as_it_is() {
    let waiting = Next::Wait { until: at(AT_NIGHT), then: Deed::Sleep };
    for next in [Next::Nothing, waiting, Next::Refuse { bookkeeping: Some(Deed::Sleep) }] {
        let mut verdict = Verdict { next: next.clone(), ..due(Deed::Sleep, Cause::Inferred) };

        assert!(!suspension("@always").hold_back(&mut verdict, at(AT_NIGHT)));
        assert_eq!(verdict.next, next);
    }
}

#[test]
fn the_verdict_names_the_window_and_its_end() {
    let mut verdict = due(Deed::Sleep, Cause::Inferred);
    suspension(OFFICE_HOURS).hold_back(&mut verdict, at(IN_OFFICE_HOURS));

    let because = "sleep is due (Late: it is late), but the window \"* 8-18 * * MON-FRI\" on its object holds it back \
                   until 2026-03-04T19:00:00Z";
    assert_eq!(verdict.because, because);
    assert_eq!(verdict.next, Next::Wait { until: at(AT_NIGHT), then: Deed::Sleep });
}

#[test]
fn an_unreadable_window_is_refused_with_annotation_field_and_fix() {
    let mut verdict = due(Deed::Sleep, Cause::Inferred);
    suspension(UNREADABLE).hold_back(&mut verdict, at(AT_NIGHT));

    for words in ["annotation reconcile.fluxcd.io/suspendedDuring is", "the hour \"25\"", "or remove the annotation"] {
        assert!(verdict.because.contains(words), "{}", verdict.because);
    }
}

#[rstest]
#[case::both(&[(SUSPEND_DURING, "b"), (SUSPENDED_DURING, "a")], Some((SUSPENDED_DURING, "a")))]
#[case::the_other_spelling(&[(SUSPEND_DURING, "b")], Some((SUSPEND_DURING, "b")))]
#[case::none(&[("suspendedDuring", "b")], None)]
fn the_first_spelling_wins(#[case] all: &[(&str, &str)], #[case] expected: Option<(&str, &str)>) {
    let find = |key: &str| all.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let found = WindowAnnotation::find(find);
    assert_eq!(found.as_ref().map(|found| (found.key, found.value.as_str())), expected);
}

#[rstest]
#[case::different(&[(SUSPEND_DURING, "b"), (SUSPENDED_DURING, "a")], Some("b"))]
#[case::the_same(&[(SUSPEND_DURING, "a"), (SUSPENDED_DURING, "a")], None)]
#[case::one_alone(&[(SUSPEND_DURING, "b")], None)]
fn two_spellings_that_differ_are_a_conflict(#[case] all: &[(&str, &str)], #[case] expected: Option<&str>) {
    let find = |key: &str| all.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let conflict = WindowAnnotation::find(find).unwrap().conflict();

    assert_eq!(conflict.as_ref().map(|conflict| conflict.value.as_str()), expected);
    if let Some(conflict) = conflict {
        let sentence = "annotation reconcile.fluxcd.io/suspendDuring is \"b\": annotation \
                        reconcile.fluxcd.io/suspendedDuring says something else, and counts; remove it";
        assert_eq!(conflict.to_string(), sentence);
    }
}

#[test]
fn the_zone_that_a_window_does_not_name_is_named_unless_it_is_utc() {
    let paris = TimeZone::get("Europe/Paris").unwrap();
    let parse = |text: &str| Suspension::parse(WindowAnnotation::new(SUSPENDED_DURING, text), &paris);
    let mut verdict = due(Deed::Sleep, Cause::Inferred);
    parse(OFFICE_HOURS).hold_back(&mut verdict, at(IN_OFFICE_HOURS));

    assert!(
        verdict.because.contains("the window \"* 8-18 * * MON-FRI\" in Europe/Paris on its object"),
        "{}",
        verdict.because
    );
    assert_eq!(verdict.next, Next::Wait { until: at("2026-03-04T18:00:00Z"), then: Deed::Sleep });
    let described = parse(OFFICE_HOURS).describe(at(IN_OFFICE_HOURS));
    assert_eq!(described, "* 8-18 * * MON-FRI in Europe/Paris (open until 2026-03-04T18:00:00Z)");
    let named = parse("TZ=UTC * 8-18 * * MON-FRI").describe(at(IN_OFFICE_HOURS));
    assert_eq!(named, "TZ=UTC * 8-18 * * MON-FRI (open until 2026-03-04T19:00:00Z)");
}

#[rstest]
#[case::open(OFFICE_HOURS, IN_OFFICE_HOURS, "* 8-18 * * MON-FRI (open until 2026-03-04T19:00:00Z)")]
#[case::closed(OFFICE_HOURS, AT_NIGHT, "* 8-18 * * MON-FRI (opens at 2026-03-05T08:00:00Z)")]
#[case::always("@always", AT_NIGHT, "@always (open, without an end)")]
#[case::never("0 0 30 2 *", AT_NIGHT, "0 0 30 2 * (never opens)")]
fn it_is_described_for_people(#[case] window: &str, #[case] now: &str, #[case] expected: &str) {
    assert_eq!(suspension(window).describe(at(now)), expected);
}

#[test]
fn which_kinds_can_be_held_back_stands_in_the_table_of_actions() {
    let suspendable: Vec<_> = Deed::KINDS.iter().filter(|kind| kind.suspendable).map(|kind| kind.name).collect();
    assert_eq!(suspendable, ["sleep", "create"]);
}
