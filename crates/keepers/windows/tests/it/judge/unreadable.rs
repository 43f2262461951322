//! An annotation that cannot be read, on an object that a rule of the settings suspends as well.

use super::*;

/// The rule of the settings: every night.
fn nightly() -> Policy {
    Policy { rules: vec![WindowRule { during: window("* 0-4 * * *"), ..rule(&[], &[], &[]) }], ..Policy::default() }
}

/// A window that cannot be read.
fn bad_window(object: FluxObject) -> FluxObject {
    let error = Window::parse("* 22-5 * * *", &TimeZone::UTC).unwrap_err();
    let invalid = error.in_field("annotation reconcile.fluxcd.io/suspendedDuring", "* 22-5 * * *");
    FluxObject { during: Parsed::Invalid(Box::new(invalid)), ..object }
}

/// An end of a yield that cannot be read.
fn bad_yield(object: FluxObject) -> FluxObject {
    let invalid = caretaker_core::parsed::InvalidValue {
        field: "annotation caretaker.dev/yielded-until".to_owned(),
        value: "tomorrow".to_owned(),
        reason: "not a time".to_owned(),
        remedy: "remove it".to_owned(),
    };
    FluxObject { yielded_until: Parsed::Invalid(Box::new(invalid)), ..object }
}

#[rstest]
#[case::of_one_that_is_not_held_yet(bad_window(plain()), NIGHT, "InsideWindow act suspend")]
#[case::of_one_that_is_held(bad_window(held()), NIGHT, "StateNotShown act show")]
#[case::of_a_yield(bad_yield(plain()), NIGHT, "InsideWindow act suspend")]
#[case::of_a_yield_of_one_that_is_held(bad_yield(held()), NIGHT, "StateNotShown act show")]
#[case::outside_of_the_rule(bad_window(plain()), DAY, "InvalidWindow refuse show")]
#[case::of_one_that_is_held_outside_of_the_rule(bad_window(held()), DAY, "OutsideWindow act resume")]
fn a_mistake_on_one_object_ends_no_freeze_of_the_settings(
    #[case] object: FluxObject,
    #[case] now: &str,
    #[case] expected: &str,
) {
    assert_eq!(summary(&judge(&object, nightly(), now)), expected);
}

#[rstest]
#[case::of_its_window(bad_window(plain()), "write 22-23,0-5")]
#[case::of_its_yield(bad_yield(windowed()), "remove it")]
fn it_comes_to_rest_at_each_edge_of_the_rule_and_shows_the_mistake(
    #[case] mut object: FluxObject,
    #[case] remedy: &str,
) {
    let world = World { policy: Arc::new(nightly()), ..World::default() };
    let rest = |mut object: FluxObject, now: &str| {
        for _ in 0..4 {
            let verdict = Rule::judge(&object, &world, at(now));
            let Some(action) = verdict.next.pending_action() else { break };
            object = Windows::default().simulate_action(object, action, &world, at(now)).unwrap();
        }
        let last = Rule::judge(&object, &world, at(now));
        assert!(object.condition.as_ref().unwrap().message.ends_with(remedy), "{:?}", object.condition);
        (summary(&last), object)
    };

    let mut verdict;
    (verdict, object) = rest(object, NIGHT);
    assert_eq!(verdict, "Held wait resume 2026-03-02T05:00:00Z");
    assert_eq!(object.condition.as_ref().unwrap().status, "True");
    (verdict, object) = rest(object, DAY);
    // The next edge of the rule is not missed.
    assert_eq!(verdict, "WaitingForWindow wait suspend 2026-03-03T00:00:00Z");
    assert_eq!((object.is_suspended(), object.condition.as_ref().unwrap().status.as_str()), (false, "Unknown"));
}

#[test]
fn somebody_is_told_of_the_mistake_when_it_is_suspended() {
    let found = warnings::of(&bad_window(plain()), &nightly());

    assert_eq!(found.len(), 1);
    assert!(found[0].ends_with("write 22-23,0-5"), "{found:?}");
}

#[test]
fn a_rule_that_opens_for_single_minutes_is_worth_a_word() {
    let daily = WindowRule { during: window("@daily"), ..rule(&[], &[], &[]) };
    let policy = Policy { rules: vec![rule(&[], &[], &[]), daily], ..Policy::default() };

    let found = warnings::all(&caretaker_windows::cache::FluxCache::default(), &policy);

    let expected = "keepers.windows.rules[1].during: the window \"@daily\" opens for a single minute at a time";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
}

#[test]
fn a_part_without_a_zone_next_to_one_with_a_zone_is_worth_a_word() {
    let mixed =
        FluxObject { during: Parsed::Valid(window("TZ=Europe/Paris * 20-23 * * MON-FRI; * * * * SAT-SUN")), ..plain() };

    let found = warnings::of(&mixed, &Policy::default());

    let expected = "has a part without a zone, \"* * * * SAT-SUN\", which is read in UTC";
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
}
