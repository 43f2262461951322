//! What users see of an object.

use caretaker_windows::state::EffectiveState;

use super::*;

/// `spec`, `window until 2026-…`, `- from 2026-…`.
fn seen(object: &FluxObject, policy: Policy, now: &str) -> String {
    let world = World { policy: Arc::new(policy), ..World::default() };
    let state = EffectiveState::of(object, &world, at(now));
    assert_eq!(state.is_suspended(), state.by.name().is_some());
    let side = |suspended: bool| if suspended { "from" } else { "until" };
    let next = state.next.map(|next| format!(" {} {}", side(next.suspended), next.at)).unwrap_or_default();
    let late = if state.late.is_some() { ", late" } else { "" };
    format!("{}{next}{late}", state.by.name().unwrap_or("-"))
}

#[rstest]
#[case::no_window(plain(), NIGHT, "-")]
#[case::a_person(set_by(plain(), "flux", false, true), NIGHT, "spec")]
#[case::a_file_without_managers(FluxObject { suspended: Some(true), ..plain() }, NIGHT, "spec")]
#[case::before_the_window(windowed(), DAY, "- from 2026-03-03T00:00:00Z")]
#[case::held(held(), NIGHT, "window until 2026-03-02T05:00:00Z")]
#[case::not_held_yet(windowed(), NIGHT, "window until 2026-03-02T05:00:00Z, late")]
#[case::still_held(held(), DAY, "window, late")]
#[case::both(set_by(held(), "flux", false, true), NIGHT, "both")]
#[case::resumed_inside(yielded(), NIGHT, "- from 2026-03-03T00:00:00Z")]
#[case::let_through(
    FluxObject { yielded_until: Parsed::Valid(at("2026-03-02T02:05:00Z")), ..yielded() }, NIGHT,
    "- from 2026-03-02T02:05:00Z"
)]
#[case::git_says_false(set_by(windowed(), "kustomize-controller", true, false), NIGHT, "-")]
#[case::ordered(ordered(), NIGHT, "spec until 2026-03-02T12:00:00Z")]
#[case::ordered_and_by_a_person(set_by(ordered(), "flux", false, true), NIGHT, "spec")]
#[case::an_order_that_ends_inside_a_window(
    FluxObject {
        during: windowed().during, suspended_until: Parsed::Valid(at("2026-03-03T01:00:00Z")), ..ordered()
    },
    DAY, "spec until 2026-03-03T05:00:00Z"
)]
#[case::an_ordered_window_that_ends(
    FluxObject { suspended_until: Parsed::Valid(at("2026-03-02T03:00:00Z")), ..held_by_order() }, NIGHT,
    "window until 2026-03-02T03:00:00Z"
)]
#[case::always(
    set_by(FluxObject { during: Parsed::Valid(window("@always")), ..plain() }, FIELD_MANAGER, true, true), NIGHT, "window"
)]
fn an_object_is_suspended_by(#[case] object: FluxObject, #[case] now: &str, #[case] expected: &str) {
    assert_eq!(seen(&object, Policy::default(), now), expected);
}

#[test]
fn a_controller_that_honours_the_annotation_is_not_late() {
    let policy = Policy { native_kinds: vec!["Kustomization".to_owned()], ..Policy::default() };

    assert_eq!(seen(&windowed(), policy, NIGHT), "window until 2026-03-02T05:00:00Z");
}
