//! No label deletes what may be in use: which source of activity proves that a subject is unused, and what a label leads
//! to where none does. kubefree leaves a labelled object without `activity-status` alone for ever.

use std::sync::Arc;

use crate::support::objects::Objects;
use crate::support::table::{SubjectBuilder as _, asleep, awake, future, judge, now, past, scaled, short, span};
use caretaker_core::window::Window;
use caretaker_core::{Parsed, RuleSet as _, SignedDuration, Timestamp, time};
use caretaker_engine::{Cache as _, Controller as _, ReplicaRole};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::after_action;
use caretaker_namespaces::activity::unreported::{unreported, warning};
use caretaker_namespaces::api::{self, Activity, State};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::subject::{Deletion, Kind, Policy, Subject, World};
use jiff::tz::TimeZone;
use rstest::rstest;
use serde_json::{Value, json};

/// The world of an empty settings file: activity comes from the annotation, and nothing has written one yet.
fn without_reports() -> World {
    World::default()
}

/// The same, and another program reported activity somewhere in the cluster this long ago.
fn reporter(ago: &str) -> World {
    World { last_report: Some(past(ago)), ..World::default() }
}

fn settings(policy: Policy) -> World {
    World { policy: Arc::new(policy), ..World::default() }
}

fn by_caretaker(subject: Subject, ago: &str) -> Subject {
    subject.change(|s| s.activity = Parsed::Valid(Activity::recorded(past(ago), Rule::FirstSeen)))
}

#[rstest]
#[case::sleep_after(awake().sleep_after("2h").never_seen(), "FirstSeen: act record @+0s")]
#[case::delete_after(awake().delete_after("2h").never_seen(), "NoActivitySource: none")]
#[case::both(awake().sleep_after("2h").delete_after("9h").never_seen(), "FirstSeen: act record @+0s")]
#[case::a_single_deployment(awake().kind(Kind::Deployment).delete_after("2h").never_seen(), "NoActivitySource: none")]
#[case::a_service(awake().kind(Kind::Service).delete_after("2h").never_seen(), "NoActivitySource: none")]
#[case::its_clock_runs(by_caretaker(awake().sleep_after("2h").delete_after("9h"), "1h"), "CountingDown: wait sleep @+1h")]
#[case::it_is_idle(by_caretaker(awake().sleep_after("2h"), "3h"), "SleepAfterElapsed: act sleep @-48m")]
#[case::asleep_for_long(by_caretaker(asleep("99d").sleep_after("2h"), "100d"), "NoActivitySource: none")]
#[case::asleep_without_activity(asleep("99d").sleep_after("2h").never_seen(), "NoActivitySource: none")]
#[case::announced(
    asleep("9h30m").sleep_after("10h").never_seen().announced("30m", future("30m")), "NoActivitySource: act record @+0s"
)]
#[case::its_deletion_had_started(
    asleep("11h").in_state(State::Deleting).sleep_after("10h").never_seen().announced("2h", past("1h")),
    "NoActivitySource: act record @+0s"
)]
#[case::a_use_wakes_it(asleep("1h").sleep_after("2h").idle("1m"), "WokenByActivity: act wake @-1m")]
#[case::its_sleep_is_completed(
    by_caretaker(awake().in_state(State::Sleeping).sleep_after("2h"), "3h").asleep_since(past("1h")),
    "SleepUnfinished: act sleep @+0s"
)]
#[case::what_was_left_scaled_down_is_restored(
    by_caretaker(awake().delete_after("2h").with(scaled(0, Some(3))), "3h"), "StillScaledDown: act wake @+0s"
)]
fn without_a_report_a_label_leads_to_a_sleep_at_most(#[case] subject: Subject, #[case] expected: &str) {
    let verdict = judge(&subject, &without_reports());

    assert_eq!(without_spread(&short(&verdict)), without_spread(expected));
}

/// A first clock is up to a tenth later, by the name of the subject.
fn without_spread(verdict: &str) -> String {
    verdict.split(" @").next().unwrap_or_default().to_owned()
}

/// A window that never closes.
fn always() -> Option<Arc<Window>> {
    api::read_window(api::SLEEP_DURING, Some("@always"), &TimeZone::UTC).get().cloned()
}

#[rstest]
#[case::a_reporter_that_lives(awake().delete_after("10h").idle("11h"), reporter("0s"), true)]
#[case::no_report_on_this_object(by_caretaker(awake().delete_after("10h"), "99h"), reporter("0s"), false)]
#[case::silent_for_its_period_and_a_week(awake().delete_after("10h").idle("30d"), reporter("7d10h"), true)]
#[case::silent_for_longer(awake().delete_after("10h").idle("30d"), reporter("7d11h"), false)]
#[case::asleep_silent_for_two_periods_and_a_week(asleep("99d").sleep_after("10h"), reporter("7d20h"), true)]
#[case::asleep_silent_for_longer(asleep("99d").sleep_after("10h"), reporter("7d21h"), false)]
#[case::both_labels_count_the_longer(asleep("99d").sleep_after("10h").delete_after("50h"), reporter("9d2h"), true)]
#[case::both_labels_silent_for_longer(asleep("99d").sleep_after("10h").delete_after("50h"), reporter("9d3h"), false)]
#[case::in_a_schedule_without_an_end(
    asleep("99d").kind(Kind::Deployment).sleep_after("10h").change(|s| s.namespace_sleep_during = always()), reporter("7d20h"), true
)]
#[case::in_a_schedule_without_an_end_silent_for_longer(
    asleep("99d").kind(Kind::Deployment).sleep_after("10h").change(|s| s.namespace_sleep_during = always()), reporter("7d21h"), false
)]
fn what_a_report_proves_depends_on_its_age(#[case] subject: Subject, #[case] world: World, #[case] deletes: bool) {
    let verdict = judge(&subject, &world);

    let action = verdict.next.action().map(caretaker_core::Action::name);
    assert_eq!(action, deletes.then_some("announce"), "{}: {}", short(&verdict), verdict.because);
}

#[rstest]
#[case::audit_with_canaries(Policy { records_activity: true, proves_activity: true, ..Policy::default() }, Kind::Namespace, true)]
#[case::audit_without_canaries(Policy { records_activity: true, ..Policy::default() }, Kind::Namespace, false)]
#[case::audit_sees_no_single_deployment(
    Policy { records_activity: true, proves_activity: true, ..Policy::default() }, Kind::Deployment, false
)]
#[case::the_annotation(Policy::default(), Kind::Namespace, false)]
#[case::the_setting(Policy { delete_without_activity_source: true, ..Policy::default() }, Kind::Namespace, true)]
#[case::the_setting_for_a_service(Policy { delete_without_activity_source: true, ..Policy::default() }, Kind::Service, true)]
#[case::the_setting_deletes_nothing_by_itself(
    Policy { delete_without_activity_source: true, deletion: Deletion::Never, ..Policy::default() }, Kind::Namespace, false
)]
fn what_was_never_reported_is_deleted_only_where_its_use_is_recorded_or_by_that_setting(
    #[case] policy: Policy,
    #[case] kind: Kind,
    #[case] deletes: bool,
) {
    let subject = by_caretaker(awake().kind(kind).delete_after("10h"), "12h");

    let verdict = judge(&subject, &settings(policy));

    assert_eq!(verdict.next.action().is_some(), deletes, "{}: {}", short(&verdict), verdict.because);
}

#[rstest]
#[case::the_design(
    r#"{"LastActivityTime":"2026-01-08T00:00:00Z","ActionBy":"ListPods","UserInfo":{"name":"ann","uid":""}}"#,
    true
)]
#[case::the_release(r#"{"LastActivityTime":"2026-01-08T00:00:00Z","Action":"list","Resource":"pods"}"#, true)]
#[case::a_time_alone(r#"{"LastActivityTime":"2026-01-08T00:00:00Z"}"#, true)]
#[case::an_audit_record(
    r#"{"ActionBy":"ListPods","LastActivityTime":"2026-01-08T00:00:00Z","RecordedBy":"caretaker","UserInfo":{"name":"ann","uid":""}}"#,
    false
)]
#[case::an_audit_record_on_a_report(
    r#"{"ActionBy":"ListPods","LastActivityTime":"2026-01-08T00:00:00Z","LastReport":"2026-01-07T00:00:00Z","RecordedBy":"caretaker"}"#,
    true
)]
#[case::an_audit_record_before_they_were_signed(
    r#"{"ActionBy":"ListPods","LastActivityTime":"2026-01-08T00:00:00Z","UserInfo":{"name":"ann","uid":""}}"#,
    false
)]
#[case::a_first_clock_before_they_were_signed(
    r#"{"ActionBy":"FirstSeen","LastActivityTime":"2026-01-08T00:00:00Z","UserInfo":{"name":"caretaker","uid":""}}"#,
    false
)]
#[case::an_order_before_they_were_signed(
    r#"{"LastActivityTime":"2026-01-08T00:00:00Z","ActionBy":"ManualWake","UserInfo":{"name":"ann"}}"#,
    false
)]
fn what_caretaker_wrote_is_no_report_by_another_program(#[case] annotation: &str, #[case] is_report: bool) {
    // From a file, without the managers of fields, beside a program that reports on other namespaces.
    let mut observed = Objects::default();
    observed.apply(
        "Namespace",
        &json!({
            "metadata": {
                "name": "shop", "labels": { api::DELETE_AFTER: "10h" }, "annotations": { api::ACTIVITY: annotation },
            },
            "status": { "phase": "Active" },
        }),
    );
    let subject = observed.cache().subjects().remove(0);

    let verdict = judge(&subject, &reporter("0s"));

    let expected = if is_report { "DeletionNear" } else { "NoActivitySource" };
    assert_eq!(verdict.rule.name(), expected, "{}", verdict.because);
}

/// To the letter as Caretaker wrote it before its records named their author.
const UNSIGNED: &str =
    r#"{"ActionBy":"ListPods","LastActivityTime":"2026-01-08T00:00:00Z","UserInfo":{"name":"ann","uid":""}}"#;
const OTHER_FORM: &str = r#"{"LastActivityTime":"2026-01-08T00:00:00Z"}"#;

#[rstest]
#[case::of_the_audit("caretaker-activity", OTHER_FORM, false)]
#[case::of_an_order("caretaker-cli", OTHER_FORM, false)]
#[case::of_another_program("sleepmode-reporter", OTHER_FORM, true)]
#[case::of_caretaker_in_its_form("caretaker-activity", UNSIGNED, false)]
#[case::restored_by_another_program("velero-server", UNSIGNED, false)]
fn a_live_record_is_told_by_the_manager_of_its_field(
    #[case] manager: &str,
    #[case] text: &str,
    #[case] is_report: bool,
) {
    let fields = json!({ "f:metadata": { "f:annotations": { "f:sleepmode.kubefree.com/activity-status": {} } } });
    let mut observed = Objects::default();

    observed.apply(
        "Namespace",
        &json!({
            "metadata": {
                "name": "shop", "annotations": { api::ACTIVITY: text },
                "managedFields": [{ "manager": manager, "operation": "Update", "fieldsV1": fields }],
            },
            "status": { "phase": "Active" },
        }),
    );

    assert_eq!(observed.cache().subjects()[0].last_report().is_some(), is_report);
}

#[test]
fn a_report_counts_for_the_cluster_wherever_it_was_made_and_also_if_that_object_is_gone() {
    let mut observed = Objects::default();
    let object = |name: &str, kind: &str, annotation: Value| {
        json!({ "metadata": {
            "name": name, "namespace": if kind == "Namespace" { "" } else { "home" },
            "labels": { api::DELETE_AFTER: "10h" }, "annotations": { api::ACTIVITY: annotation.to_string() },
        }, "spec": {}, "status": {} })
    };
    let last =
        |observed: &Objects| Namespaces::default().world(observed.cache(), ReplicaRole::Leader, now()).last_report;
    assert_eq!(last(&observed), None);

    let service = object("web", "Service", json!({ "LastActivityTime": past("2h").to_string() }));
    observed.apply("Service", &service);
    assert_eq!(last(&observed), Some(past("2h")));
    observed.delete("Service", &service);
    assert_eq!(last(&observed), Some(past("2h")), "the program lived then");

    let ahead = json!({ "LastActivityTime": future("99d").to_string() });
    observed.apply("Namespace", &object("shop", "Namespace", ahead));
    assert_ne!(last(&observed), Some(future("99d")), "a time in the future proves nothing");
}

#[rstest]
#[case::of_a_namespace("Namespace")]
#[case::of_a_service("Service")]
#[case::of_a_deployment("Deployment")]
fn a_time_in_the_future_that_was_corrected_proves_nothing_once_it_has_come(#[case] kind: &str) {
    let object = |version: u32, at: Timestamp| {
        let annotation = json!({ "LastActivityTime": at.to_string() }).to_string();
        json!({ "metadata": {
            "name": "web", "namespace": if kind == "Namespace" { "" } else { "home" },
            "resourceVersion": version.to_string(),
            "labels": { api::DELETE_AFTER: "10h" }, "annotations": { api::ACTIVITY: annotation },
        }, "spec": {}, "status": {} })
    };
    let mut observed = Objects::default();

    observed.apply(kind, &object(1, future("365d")));
    observed.apply(kind, &object(2, past("2h")));

    assert_eq!(observed.cache().last_report(future("366d")), Some(past("2h")));
}

/// All that happens in sixty days to a namespace that nothing reports on, as the operator would do it.
#[rstest]
#[case::sleep_after(awake().sleep_after("24h").never_seen(), &["record", "sleep"])]
#[case::delete_after(awake().delete_after("24h").never_seen(), &[])]
#[case::both(awake().sleep_after("24h").delete_after("48h").never_seen(), &["record", "sleep"])]
#[case::delete_first(awake().sleep_after("48h").delete_after("24h").never_seen(), &["record", "sleep"])]
fn what_kubefree_ignored_sleeps_and_is_never_deleted(#[case] subject: Subject, #[case] expected: &[&str]) {
    let (mut subject, mut at, mut done) = (subject.created("1d"), now(), Vec::new());
    let end = time::saturating_add(now(), SignedDuration::from_hours(60 * 24));

    while at < end {
        let verdict = Rule::judge(&subject, &without_reports(), at);
        at = next_round(&verdict.next, at);
        if let caretaker_core::Next::Act { action, .. } = &verdict.next {
            done.push(caretaker_core::Action::name(action));
            subject = after_action(subject, action, &without_reports(), at).expect("it is not deleted");
        }
    }

    assert_eq!(done, expected);
}

/// When it is judged again: right after a deadline, right away after an action, and each day.
fn next_round<A>(next: &caretaker_core::Next<A>, at: Timestamp) -> Timestamp {
    let day = time::saturating_add(at, span("1d"));
    match next {
        caretaker_core::Next::Wait { until, .. } => {
            day.min(time::saturating_add(*until, SignedDuration::from_nanos(1)))
        }
        caretaker_core::Next::Act { .. } => at,
        _ => day,
    }
}

#[rstest]
#[case::sleep_after(json!({ api::SLEEP_AFTER: "24h" }), json!({}), "1 namespace sleeps by its labels or schedules, in use or not")]
#[case::a_schedule_alone(json!({}), json!({ api::SLEEP_DURING: "* 20-23 * * *" }), "1 namespace sleeps by its labels or schedules")]
#[case::delete_after_alone(json!({ api::DELETE_AFTER: "24h" }), json!({}), "1 namespace has delete-after, and no label deletes one")]
fn who_cannot_see_use_says_what_becomes_of_namespaces(
    #[case] labels: Value,
    #[case] annotations: Value,
    #[case] expected: &str,
) {
    let policy = Policy::default();
    let mut observed = Objects::default();
    assert_eq!(unreported(observed.cache(), &policy, now()), None);

    observed.apply(
        "Namespace",
        &json!({ "metadata": { "name": "shop", "labels": labels, "annotations": annotations }, "status": { "phase": "Active" } }),
    );

    let warning = unreported(observed.cache(), &policy, now()).map(|unseen| warning(unseen, &policy));
    assert!(warning.as_ref().is_some_and(|warning| warning.contains(expected)), "{warning:?}");
}
