//! The decisions as a table: what an object looks like, what the time is, and what follows.

mod report;
mod state;
mod unreadable;

use std::sync::Arc;

use caretaker_core::window::Window;
use caretaker_core::{Action as _, Keeper, Next, Parsed, RuleSet as _, Timestamp, VerdictOf};
use caretaker_windows::act::{Action, FOREVER, Shown};
use caretaker_windows::api::{CLI_FIELD_MANAGER, FIELD_MANAGER, Switch};
use caretaker_windows::judge::Rule;
use caretaker_windows::subject::{
    Condition, FluxObject, Manager, OnResume, Order, Policy, Relations, WindowRule, World,
};
use caretaker_windows::{Windows, warnings};
use jiff::tz::TimeZone;
use rstest::rstest;

/// Monday. The window of the table is open from 00:00 to 05:00.
const NIGHT: &str = "2026-03-02T02:00:00Z";
const DAY: &str = "2026-03-02T12:00:00Z";
const NIGHT_ENDS: &str = "2026-03-02T05:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn window(text: &str) -> Arc<Window> {
    Arc::new(Window::parse(text, &TimeZone::UTC).unwrap())
}

fn plain() -> FluxObject {
    FluxObject {
        api_version: "kustomize.toolkit.fluxcd.io/v1".to_owned(),
        kind: "Kustomization",
        namespace: "flux-system".to_owned(),
        name: "apps".to_owned(),
        uid: "u".to_owned(),
        resource_version: "1".to_owned(),
        is_deleting: false,
        labels: [("team".to_owned(), "shop".to_owned())].into(),
        switch: Switch::Field,
        has_status: true,
        during: Parsed::Missing,
        suspended: None,
        managers: Vec::new(),
        held_until: None,
        yielded_until: Parsed::Missing,
        is_own_yield: false,
        order: Order::None,
        suspended_until: Parsed::Missing,
        reason: None,
        by: None,
        revision: None,
        condition: None,
        conditions: "[]".into(),
        status_suspended: None,
        relations: Relations::default(),
    }
}

/// With the window of the table.
fn windowed() -> FluxObject {
    FluxObject { during: Parsed::Valid(window("* 0-4 * * *")), ..plain() }
}

fn set_by(mut object: FluxObject, name: &str, applies: bool, suspended: bool) -> FluxObject {
    object.suspended = Some(suspended);
    object.managers.push(Manager { name: name.to_owned(), applies });
    object
}

/// Suspended by the keeper until the end of the night, and shown to be.
fn held() -> FluxObject {
    let mut object = set_by(windowed(), FIELD_MANAGER, true, true);
    object.held_until = Some(at(NIGHT_ENDS));
    object.condition = Some(shown());
    object
}

fn shown() -> Condition {
    let message = "window \"* 0-4 * * *\" is open until 2026-03-02T05:00:00Z";
    Condition { status: "True".to_owned(), reason: "InsideWindow".to_owned(), message: message.to_owned() }
}

/// Inside its window, Git says that it is not suspended, and its condition shows that.
fn in_conflict() -> FluxObject {
    let object = set_by(windowed(), "kustomize-controller", true, false);
    let verdict = judge(&object, Policy::default(), NIGHT);
    let Some(Action::Show(Shown { condition, .. })) = verdict.next.action() else { panic!("{verdict:?}") };
    FluxObject { condition: condition.clone(), ..object }
}

/// Held before, and the field is gone.
fn resumed() -> FluxObject {
    FluxObject { suspended: None, managers: Vec::new(), ..held() }
}

/// Suspended by `caretaker suspend --until`, and shown to be.
fn ordered() -> FluxObject {
    FluxObject {
        suspended_until: Parsed::Valid(at(DAY)),
        order: Order::Active { has_window: false },
        condition: Some(shown_as_ordered(" until 2026-03-02T12:00:00Z")),
        by: Some("ann".to_owned()),
        reason: Some("migration".to_owned()),
        ..set_by(plain(), CLI_FIELD_MANAGER, true, true)
    }
}

fn shown_as_ordered(until: &str) -> Condition {
    let message = format!("suspended by ann{until}: migration");
    Condition { status: "True".to_owned(), reason: "SuspendedByOrder".to_owned(), message }
}

/// Held inside a window of `caretaker suspend --during`.
fn held_by_order() -> FluxObject {
    FluxObject { order: Order::Active { has_window: true }, ..held() }
}

fn yielded() -> FluxObject {
    let yielded_until = Parsed::Valid(at(NIGHT_ENDS));
    FluxObject { held_until: None, yielded_until, is_own_yield: true, condition: None, ..resumed() }
}

fn judge(object: &FluxObject, policy: Policy, now: &str) -> VerdictOf<Windows> {
    Rule::judge(object, &World { policy: Arc::new(policy), ..World::default() }, at(now))
}

/// `act suspend`, `wait resume 2026-…`, `refuse`, `none`.
fn summary(verdict: &VerdictOf<Windows>) -> String {
    let action = verdict.next.action().map(|action| format!(" {}", action.name())).unwrap_or_default();
    let until = if let Next::Wait { until, .. } = &verdict.next { format!(" {until}") } else { String::new() };
    format!("{} {}{action}{until}", verdict.rule.name(), verdict.next.name())
}

#[rstest]
#[case::no_window(plain(), NIGHT, "NoWindow none")]
#[case::suspended_by_a_person(set_by(plain(), "flux", false, true), NIGHT, "NoWindow none")]
#[case::inside(windowed(), NIGHT, "InsideWindow act suspend")]
#[case::outside(windowed(), DAY, "WaitingForWindow wait suspend 2026-03-03T00:00:00Z")]
#[case::held(held(), NIGHT, "Held wait resume 2026-03-02T05:00:00Z")]
#[case::held_and_not_shown(FluxObject { condition: None, ..held() }, NIGHT, "StateNotShown act show")]
#[case::the_window_is_over(held(), NIGHT_ENDS, "OutsideWindow act resume")]
#[case::resumed_and_still_shown(
    FluxObject { condition: Some(shown()), ..windowed() }, DAY, "StateNotShown act show"
)]
#[case::the_window_grew(
    FluxObject { during: Parsed::Valid(window("* 0-6 * * *")), ..held() }, NIGHT, "InsideWindow act suspend"
)]
#[case::the_annotation_is_gone(FluxObject { during: Parsed::Missing, ..held() }, NIGHT, "WindowRemoved act resume")]
#[case::a_person_suspended_it_before(set_by(windowed(), "flux", false, true), NIGHT, "InsideWindow act suspend")]
#[case::a_person_resumed_it(resumed(), NIGHT, "ResumedByPerson act yield")]
#[case::a_person_set_it_to_false(set_by(resumed(), "kubectl-patch", false, false), NIGHT, "ResumedByPerson act yield")]
#[case::it_stays_resumed(yielded(), NIGHT, "Yielded wait suspend 2026-03-02T05:00:00Z")]
#[case::until_the_window_ends(yielded(), NIGHT_ENDS, "OutsideWindow act resume")]
#[case::and_is_suspended_in_the_next(
    FluxObject { is_own_yield: false, ..yielded() }, "2026-03-03T00:00:00Z", "InsideWindow act suspend"
)]
#[case::false_before_the_window(set_by(windowed(), "kubectl-patch", false, false), NIGHT, "InsideWindow act suspend")]
#[case::git_says_false(
    set_by(windowed(), "kustomize-controller", true, false),
    NIGHT,
    "EnforcementConflict refuse show"
)]
#[case::git_says_false_and_that_is_shown(in_conflict(), NIGHT, "EnforcementConflict refuse")]
#[case::git_says_false_while_it_is_held(
    set_by(resumed(), "kustomize-controller", true, false),
    NIGHT,
    "EnforcementConflict refuse resume"
)]
#[case::git_says_false_and_its_parent_leaves_it_alone(
    FluxObject {
        relations: Relations { is_detached: true, ..Relations::default() },
        ..set_by(windowed(), "kustomize-controller", true, false)
    },
    NIGHT, "InsideWindow act suspend"
)]
#[case::the_window_of_a_conflict_is_over(in_conflict(), DAY, "StateNotShown act show")]
#[case::git_says_true(set_by(windowed(), "kustomize-controller", true, true), NIGHT, "InsideWindow act suspend")]
#[case::git_says_false_outside(
    set_by(windowed(), "kustomize-controller", true, false),
    DAY,
    "WaitingForWindow wait suspend 2026-03-03T00:00:00Z"
)]
#[case::being_deleted(FluxObject { is_deleting: true, ..windowed() }, NIGHT, "BeingDeleted none")]
#[case::being_deleted_inside_its_window(FluxObject { is_deleting: true, ..held() }, NIGHT, "BeingDeleted refuse")]
#[case::always(
    FluxObject { during: Parsed::Valid(window("@always")), ..plain() }, NIGHT, "InsideWindow act suspend"
)]
#[case::never(
    FluxObject { during: Parsed::Valid(window("0 0 30 2 *")), ..plain() }, NIGHT, "WaitingForWindow none"
)]
#[case::ordered(FluxObject { suspended_until: Parsed::Missing, condition: Some(shown_as_ordered("")), ..ordered() }, NIGHT, "NoWindow none")]
#[case::ordered_until(ordered(), NIGHT, "NoWindow wait end-order 2026-03-02T12:00:00Z")]
#[case::ordered_and_not_shown(FluxObject { condition: None, ..ordered() }, NIGHT, "StateNotShown act show")]
#[case::that_order_is_over(ordered(), DAY, "OrderOver act end-order")]
#[case::that_order_was_undone(
    FluxObject { suspended: None, managers: Vec::new(), order: Order::Removed, ..ordered() },
    NIGHT, "OrderOver act end-order"
)]
#[case::an_end_that_no_order_has(
    FluxObject { suspended_until: Parsed::Valid(at(NIGHT)), ..plain() }, DAY, "NoWindow none"
)]
#[case::an_order_that_ends_before_the_window_opens(
    FluxObject { during: windowed().during, ..ordered() }, "2026-03-02T06:00:00Z",
    "WaitingForWindow wait end-order 2026-03-02T12:00:00Z"
)]
#[case::an_order_that_ends_after_the_window_opens(
    FluxObject {
        during: windowed().during, suspended_until: Parsed::Valid(at("2026-03-03T00:00:01Z")),
        condition: Some(shown_as_ordered(" until 2026-03-03T00:00:01Z")), ..ordered()
    },
    DAY, "WaitingForWindow wait suspend 2026-03-03T00:00:00Z"
)]
#[case::an_ordered_window_that_ends_while_it_is_open(
    FluxObject { suspended_until: Parsed::Valid(at("2026-03-02T03:00:00Z")), ..held_by_order() }, NIGHT,
    "Held wait end-order 2026-03-02T03:00:00Z"
)]
fn what_follows(#[case] object: FluxObject, #[case] now: &str, #[case] expected: &str) {
    assert_eq!(summary(&judge(&object, Policy::default(), now)), expected);
}

fn rule(kinds: &[&str], namespaces: &[&str], labels: &[(&str, &str)]) -> WindowRule {
    WindowRule {
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        namespaces: namespaces.iter().map(|namespace| wildmatch::WildMatch::new(namespace)).collect(),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        during: window("2026-03-01/2026-03-03"),
        reason: Some("release freeze".to_owned()),
    }
}

#[rstest]
#[case::everything(rule(&[], &[], &[]), "InsideWindow act suspend")]
#[case::this_kind(rule(&["Kustomization"], &["flux-*"], &[("team", "shop")]), "InsideWindow act suspend")]
#[case::another_kind(rule(&["HelmRelease"], &[], &[]), "NoWindow none")]
#[case::another_namespace(rule(&[], &["apps"], &[]), "NoWindow none")]
#[case::another_label(rule(&[], &[], &[("team", "web")]), "NoWindow none")]
fn a_rule_of_the_settings_gives_one_window_to_many(#[case] rule: WindowRule, #[case] expected: &str) {
    let policy = Policy { rules: vec![rule], ..Policy::default() };

    assert_eq!(summary(&judge(&plain(), policy, DAY)), expected);
}

#[test]
fn a_window_of_the_object_and_one_of_the_settings_are_open_until_both_end() {
    let policy = Policy { rules: vec![rule(&[], &[], &[])], ..Policy::default() };

    let verdict = judge(&windowed(), policy, NIGHT);

    // The rule ends with the third of March, and the night of the fourth begins at that moment.
    assert_eq!(verdict.next.action(), Some(&Action::Suspend(at("2026-03-04T05:00:00Z"))));
}

#[test]
fn settings_that_enforce_suspend_again_what_a_person_resumed() {
    let policy = || Policy { on_resume: OnResume::Enforce, ..Policy::default() };

    assert_eq!(summary(&judge(&resumed(), policy(), NIGHT)), "ResumedByPerson act suspend");
    let declared = set_by(resumed(), "kustomize-controller", true, false);
    assert_eq!(summary(&judge(&declared, policy(), NIGHT)), "EnforcementConflict refuse resume");
}

#[test]
fn a_kind_that_honours_the_annotation_itself_is_not_written() {
    let policy = || Policy { native_kinds: vec!["Kustomization".to_owned()], ..Policy::default() };

    assert_eq!(summary(&judge(&windowed(), policy(), NIGHT)), "NativeKind none");
    assert_eq!(summary(&judge(&held(), policy(), NIGHT)), "NativeKind act resume");
}

#[test]
fn an_expression_that_cannot_be_read_keeps_nothing_suspended() {
    let error = Window::parse("* 22-5 * * *", &TimeZone::UTC).unwrap_err();
    let invalid = error.in_field("annotation reconcile.fluxcd.io/suspendedDuring", "* 22-5 * * *");
    let object = FluxObject { during: Parsed::Invalid(Box::new(invalid)), ..plain() };

    let verdict = judge(&object, Policy::default(), NIGHT);
    assert_eq!(summary(&verdict), "InvalidWindow refuse show");
    assert_eq!(
        verdict.because,
        "annotation reconcile.fluxcd.io/suspendedDuring is \"* 22-5 * * *\": the hour \"22-5\" runs backwards; write 22-23,0-5"
    );
    let Some(Action::Show(Shown { condition: Some(condition), .. })) = verdict.next.action() else {
        panic!("{verdict:?}")
    };
    assert_eq!(condition.status, "Unknown");

    let during = object.during.clone();
    assert_eq!(summary(&judge(&FluxObject { during, ..held() }, Policy::default(), NIGHT)), "InvalidWindow act resume");
}

#[test]
fn the_resumes_at_one_end_are_spread_and_the_suspensions_are_not() {
    let policy = || Policy { resume_jitter: caretaker_core::SignedDuration::from_mins(10), ..Policy::default() };
    let due = |uid: &str| match judge(&FluxObject { uid: uid.to_owned(), ..held() }, policy(), NIGHT_ENDS).next {
        Next::Wait { until, .. } => until,
        Next::Act { due, .. } => due,
        other => panic!("{other:?}"),
    };

    let (first, second) = (due("3f1c2b54-aa02"), due("3f1c2b54-aa03"));
    assert_ne!(first, second);
    for time in [first, second] {
        assert!(at(NIGHT_ENDS) <= time && time <= at("2026-03-02T05:10:00Z"), "{time}");
    }
    assert_eq!(summary(&judge(&windowed(), policy(), "2026-03-02T00:00:00Z")), "InsideWindow act suspend");
}

/// Judged and written again and again, an object comes to rest: nothing asks twice for the same.
#[rstest]
#[case::inside(windowed(), NIGHT, true)]
#[case::over(held(), DAY, false)]
#[case::resumed_by_a_person(resumed(), NIGHT, false)]
#[case::a_yield_that_is_over(yielded(), DAY, false)]
#[case::the_annotation_is_gone(FluxObject { during: Parsed::Missing, ..held() }, NIGHT, false)]
#[case::a_person_suspended_it(set_by(held(), "flux", false, true), DAY, true)]
#[case::always(FluxObject { during: Parsed::Valid(window("@always")), ..plain() }, NIGHT, true)]
#[case::an_order_that_is_over(ordered(), DAY, false)]
#[case::an_order_that_is_over_and_that_a_person_made_too(set_by(ordered(), "flux", false, true), DAY, true)]
#[case::an_order_that_nobody_shows(FluxObject { condition: None, ..ordered() }, NIGHT, true)]
#[case::an_ordered_window_that_is_over(
    FluxObject { suspended_until: Parsed::Valid(at("2026-03-02T01:00:00Z")), ..held_by_order() }, NIGHT, false
)]
fn an_object_comes_to_rest(#[case] mut object: FluxObject, #[case] now: &str, #[case] suspended: bool) {
    let keeper = Windows::default();
    let world = World::default();
    for _ in 0..4 {
        let verdict = Rule::judge(&object, &world, at(now));
        let Some(action) = verdict.next.pending_action() else { break };
        object = keeper.simulate_action(object, action, &world, at(now)).unwrap();
    }

    let last = Rule::judge(&object, &world, at(now));
    assert!(last.next.pending_action().is_none(), "{last:?}");
    assert_eq!(object.is_suspended(), suspended);
}

/// Where the schema keeps `status.suspended` that is written instead of a condition; it is known after the first answer.
#[rstest]
#[case::not_known_yet(None, None, false, "StateNotShown act show")]
#[case::not_known_and_shown_by_a_condition(None, None, true, "Held wait resume 2026-03-02T05:00:00Z")]
#[case::not_kept(Some(false), None, true, "Held wait resume 2026-03-02T05:00:00Z")]
#[case::kept_and_not_written(Some(true), None, false, "StateNotShown act show")]
#[case::kept_and_written(Some(true), Some(true), false, "Held wait resume 2026-03-02T05:00:00Z")]
#[case::kept_and_a_condition_as_well(Some(true), Some(true), true, "StateNotShown act show")]
fn the_state_is_shown_where_the_schema_keeps_it(
    #[case] kept: Option<bool>,
    #[case] status: Option<bool>,
    #[case] condition: bool,
    #[case] expected: &str,
) {
    let keeps_status = kept.into_iter().map(|kept| ("Kustomization", kept)).collect();
    let world = World { keeps_status, ..World::default() };
    let condition = condition.then(shown);
    let object = FluxObject { status_suspended: status, condition, ..held() };

    assert_eq!(summary(&Rule::judge(&object, &world, at(NIGHT))), expected);
}

#[test]
fn without_a_condition_the_status_is_tried_once() {
    let policy = Arc::new(Policy { show_condition: false, ..Policy::default() });
    let world = |kept: Option<bool>| World {
        policy: policy.clone(),
        keeps_status: kept.into_iter().map(|kept| ("Kustomization", kept)).collect(),
    };
    let object = FluxObject { condition: None, ..held() };

    assert_eq!(summary(&Rule::judge(&object, &world(None), at(NIGHT))), "StateNotShown act show");
    let rest = "Held wait resume 2026-03-02T05:00:00Z";
    assert_eq!(summary(&Rule::judge(&object, &world(Some(false)), at(NIGHT))), rest);
    let written = FluxObject { status_suspended: Some(true), ..windowed() };
    assert_eq!(
        summary(&Rule::judge(&written, &world(Some(true)), at(DAY))),
        "StateNotShown act show",
        "after the window"
    );
}

#[test]
fn what_somebody_should_know_before_a_suspension() {
    let relations = Relations {
        dependents: vec![("flux-system".to_owned(), "shop".to_owned())],
        awaited_by: Some(("flux-system".to_owned(), "all".to_owned())),
        ..Relations::default()
    };
    let object = FluxObject { relations, during: Parsed::Valid(window("@daily")), ..plain() };
    let found = warnings::of(&object, &Policy::default());
    for (warning, part) in
        found.iter().zip(["single minute", "flux-system/shop depends on it", "flux-system/all waits"])
    {
        assert!(warning.contains(part), "{part}: {found:?}");
    }
    assert_eq!(found.len(), 3);

    let ready = Relations { is_ready: true, dependents: Vec::new(), ..object.relations.clone() };
    let nightly = FluxObject { relations: ready, ..windowed() };
    assert_eq!(
        warnings::of(&nightly, &Policy::default()),
        Vec::<String>::new(),
        "a child that was ready does its parent no harm"
    );
    let pinned = set_by(windowed(), "kustomize-controller", true, false);
    assert!(warnings::of(&pinned, &Policy::default())[0].starts_with("kustomize-controller declares suspend: false"));

    // A window of the settings does the same harm.
    let without_window = FluxObject { during: Parsed::Missing, ..pinned };
    assert_eq!(warnings::of(&without_window, &Policy::default()), Vec::<String>::new());
    let policy = Policy { rules: vec![rule(&[], &[], &[])], ..Policy::default() };
    assert_eq!(warnings::of(&without_window, &policy).len(), 1);
}

#[test]
fn a_window_without_an_end_is_held_for_ever() {
    let object = FluxObject { during: Parsed::Valid(window("@always")), ..plain() };

    assert_eq!(judge(&object, Policy::default(), NIGHT).next.action(), Some(&Action::Suspend(FOREVER)));
}
