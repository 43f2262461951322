//! From API objects to subjects.

use crate::support::objects::Objects;
use caretaker_core::{Parsed, Timestamp};
use caretaker_engine::Cache as _;
use caretaker_namespaces::api::{self, State};
use caretaker_namespaces::subject::{Kind, Subject};
use rstest::rstest;
use serde_json::{Value, json};

fn observe(objects: &[(&str, Value)]) -> Vec<Subject> {
    let mut observed = Objects::default();
    for (kind, object) in objects {
        observed.apply(kind, object);
    }
    observed.cache().subjects()
}

fn namespace(name: &str) -> (&'static str, Value) {
    ("Namespace", json!({ "metadata": { "name": name }, "status": { "phase": "Active" } }))
}

fn in_shop(kind: &'static str, name: &str, more: Value) -> (&'static str, Value) {
    let mut object = json!({ "metadata": { "name": name, "namespace": "shop" } });
    merge(&mut object, more);
    (kind, object)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

#[rstest]
#[case::deployment("Deployment", json!({"spec": {"replicas": 3}}), "Deployment/w: 3 replicas")]
#[case::without_a_count("Deployment", json!({}), "Deployment/w: 1 replica")]
#[case::recorded("StatefulSet", json!({"metadata": {"annotations": {"sleepmode.kubefree.com/legacy-replicas": "2"}}, "spec": {"replicas": 0}}), "StatefulSet/w: 0 replicas, recorded 2")]
#[case::recorded_by_us("Deployment", json!({"metadata": {"labels": {"caretaker.dev/scaled-down": "2"}}, "spec": {"replicas": 0}}), "Deployment/w: 0 replicas, recorded 2")]
#[case::our_record_before_kubefrees(
    "Deployment",
    json!({"metadata": {"labels": {"caretaker.dev/scaled-down": "2"}, "annotations": {"sleepmode.kubefree.com/legacy-replicas": "5"}}, "spec": {"replicas": 0}}),
    "Deployment/w: 0 replicas, recorded 2"
)]
#[case::a_copy_whose_label_is_gone(
    "Deployment",
    json!({"metadata": {"annotations": {"sleepmode.kubefree.com/legacy-replicas": "5", "caretaker.dev/legacy-replicas-copy": "true"}}, "spec": {"replicas": 2}}),
    "Deployment/w: 2 replicas"
)]
#[case::a_copy_at_zero_whose_label_is_gone(
    "Deployment",
    json!({"metadata": {"annotations": {"sleepmode.kubefree.com/legacy-replicas": "5", "caretaker.dev/legacy-replicas-copy": "true"}}, "spec": {"replicas": 0}}),
    "Deployment/w: 0 replicas, annotation sleepmode.kubefree.com/legacy-replicas is \"5\": its label caretaker.dev/scaled-down is gone, so it is not restored; scale it to 5 if it should run, or remove the annotation"
)]
#[case::deletes_claims("StatefulSet", json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}}), "StatefulSet/w: 1 replica, whenScaled Delete")]
#[case::keeps_claims_asleep(
    "StatefulSet",
    json!({"metadata": {"labels": {"caretaker.dev/scaled-down": "2", "caretaker.dev/legacy-when-scaled": "Delete"}}, "spec": {"replicas": 0, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain"}}}),
    "StatefulSet/w: 0 replicas, recorded 2, whenScaled Retain, recorded Delete"
)]
#[case::rollout("Rollout", json!({"spec": {"replicas": 2}}), "Rollout/w: 2 replicas")]
#[case::clone_set("CloneSet", json!({"spec": {"replicas": 2}}), "CloneSet/w: 2 replicas")]
#[case::clone_set_with_claims("CloneSet", json!({"spec": {"replicas": 2, "volumeClaimTemplates": [{}]}}), "CloneSet/w: 2 replicas, left running: scaled down, it would delete its claims")]
#[case::standalone("ReplicaSet", json!({"spec": {"replicas": 2}}), "ReplicaSet/w: 2 replicas")]
#[case::daemon_set("DaemonSet", json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}), "DaemonSet/w: on its nodes")]
#[case::parked("DaemonSet", json!({"spec": {"template": {"spec": {"nodeSelector": {"caretaker.dev/asleep": "true"}}}}}), "DaemonSet/w: parked")]
#[case::parked_by_kubefree(
    "DaemonSet",
    json!({"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "sleep.kubefree.com/not-existing-key", "operator": "In", "values": ["sleep"]}]}]}}}}}}}),
    "DaemonSet/w: parked by kubefree"
)]
#[case::kubefree_failed_to_park(
    "DaemonSet",
    json!({"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
        {"matchExpressions": [{"key": "sleep.kubefree.com/not-existing-key", "operator": "In", "values": ["sleep"]}]},
    ]}}}}}}}),
    "DaemonSet/w: on its nodes"
)]
#[case::excluded_by_any_word("Deployment", json!({"metadata": {"labels": {"sleepmode.kubefree.com/exclude": "True"}}}), "Deployment/w: 1 replica, excluded")]
#[case::excluded_without_quotes("Deployment", json!({"metadata": {"labels": {"sleepmode.kubefree.com/exclude": true}}}), "Deployment/w: 1 replica, excluded")]
#[case::not_excluded("Deployment", json!({"metadata": {"labels": {"sleepmode.kubefree.com/exclude": "false"}}}), "Deployment/w: 1 replica")]
#[case::cron_job("CronJob", json!({"spec": {"suspend": false}}), "CronJob/w: scheduled")]
#[case::cron_job_suspended_by_us("CronJob", json!({"metadata": {"annotations": {"caretaker.dev/legacy-suspend": "false"}}, "spec": {"suspend": true}}), "CronJob/w: suspended, recorded scheduled")]
#[case::scaled_object("ScaledObject", json!({}), "ScaledObject/w: scaling")]
#[case::scaled_object_paused("ScaledObject", json!({"metadata": {"annotations": {"autoscaling.keda.sh/paused-replicas": "0", "caretaker.dev/legacy-paused-replicas": ""}}}), "ScaledObject/w: paused at 0 by Caretaker")]
#[case::excluded("Deployment", json!({"metadata": {"labels": {"sleepmode.kubefree.com/exclude": "true"}}}), "Deployment/w: 1 replica, excluded")]
fn each_kind_of_workload_is_read(#[case] kind: &'static str, #[case] object: Value, #[case] expected: &str) {
    let subjects = observe(&[namespace("shop"), in_shop(kind, "w", object)]);

    assert_eq!(subjects[0].workloads.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

/// The present sleep of the namespace, and the one before it.
const PRESENT: &str = "2026-01-10T00:00:00Z";
const EARLIER: &str = "2026-01-02T00:00:00Z";

fn asleep_since(label: Option<&str>) -> (&'static str, Value) {
    ("Namespace", json!({"metadata": {"name": "shop", "labels": {api::STATE: "sleep", api::SLEEP_STARTED: label}}}))
}

#[rstest]
#[case::of_the_present_sleep(Some("20260110T000000Z"), PRESENT, "0 replicas, recorded 5")]
#[case::of_an_earlier_sleep(Some("20260110T000000Z"), EARLIER, "0 replicas")]
#[case::that_names_no_sleep(
    Some("20260110T000000Z"),
    "true",
    "0 replicas, annotation sleepmode.kubefree.com/legacy-replicas is \"5\""
)]
#[case::in_a_sleep_without_a_name(
    None,
    PRESENT,
    "0 replicas, annotation sleepmode.kubefree.com/legacy-replicas is \"5\""
)]
fn a_copy_whose_label_is_gone_counts_in_the_sleep_that_it_names(
    #[case] present: Option<&str>,
    #[case] copy: &str,
    #[case] expected: &str,
) {
    let annotations = json!({api::LEGACY_REPLICAS: "5", api::LEGACY_REPLICAS_COPY: copy});
    let web = json!({"metadata": {"annotations": annotations}, "spec": {"replicas": 0}});

    let subjects = observe(&[asleep_since(present), in_shop("Deployment", "web", web)]);

    let found = subjects[0].workloads[0].to_string();
    assert!(found.starts_with(&format!("Deployment/web: {expected}")), "{found}");
    assert_eq!(found.contains("not restored"), expected.contains("annotation"), "{found}");
}

#[test]
fn in_a_namespace_that_is_awake_a_copy_of_an_earlier_sleep_is_not_reported() {
    let annotations = json!({api::LEGACY_REPLICAS: "5", api::LEGACY_REPLICAS_COPY: EARLIER});
    let web = json!({"metadata": {"annotations": annotations}, "spec": {"replicas": 0}});

    let subjects = observe(&[namespace("shop"), in_shop("Deployment", "web", web)]);

    assert_eq!(subjects[0].workloads[0].to_string(), "Deployment/web: 0 replicas");
}

#[test]
fn the_copy_of_a_single_deployment_counts_in_its_own_sleep() {
    let web = json!({
        "metadata": {
            "labels": {api::SLEEP_AFTER: "1h", api::STATE: "sleep", api::SLEEP_STARTED: "20260110T000000Z"},
            "annotations": {api::LEGACY_REPLICAS: "5", api::LEGACY_REPLICAS_COPY: PRESENT},
        },
        "spec": {"replicas": 0},
    });

    let subjects = observe(&[namespace("shop"), in_shop("Deployment", "web", web)]);

    assert_eq!(subjects[1].workloads[0].to_string(), "Deployment/web: 0 replicas, recorded 5");
}

fn managed(manager: &str, operation: &str, fields: &Value) -> Value {
    json!({"metadata": {"managedFields": [{"manager": manager, "operation": operation, "fieldsV1": fields}]}, "spec": {
        "replicas": 1, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"},
    }})
}

fn when_scaled() -> Value {
    json!({"f:spec": {"f:persistentVolumeClaimRetentionPolicy": {".": {}, "f:whenScaled": {}}}})
}

#[rstest]
#[case::flux(managed("kustomize-controller", "Apply", &when_scaled()), true)]
#[case::argo_cd(managed("argocd-controller", "Update", &when_scaled()), true)]
#[case::another_that_applies(managed("platform", "Apply", &when_scaled()), true)]
#[case::a_person(managed("kubectl-client-side-apply", "Update", &when_scaled()), false)]
#[case::a_person_on_the_servers_side(managed("kubectl", "Apply", &when_scaled()), false)]
#[case::flux_without_that_field(managed("kustomize-controller", "Apply", &json!({"f:spec": {"f:replicas": {}}})), false)]
fn a_stateful_set_whose_policy_somebody_sets_back_is_left_running(#[case] object: Value, #[case] left: bool) {
    let subjects = observe(&[namespace("shop"), in_shop("StatefulSet", "db", object)]);

    let db = &subjects[0].workloads[0];
    assert_eq!(db.scaled_down().is_none(), left, "{db}");
    assert_eq!(db.to_string().contains("GitOps"), left, "{db}");
}

#[test]
fn a_stateful_set_of_a_controller_that_deletes_claims_is_left_running() {
    let mut object = managed("operator", "Update", &json!({}));
    object["metadata"]["ownerReferences"] = json!([{"kind": "Database", "name": "db", "controller": true}]);

    let subjects = observe(&[namespace("shop"), in_shop("StatefulSet", "db", object)]);

    assert_eq!(subjects[0].workloads[0].scaled_down(), None);
}

#[test]
fn a_replica_set_that_a_deployment_owns_is_not_a_workload() {
    let owned = json!({"metadata": {"ownerReferences": [{"kind": "Deployment", "name": "web", "controller": true}]}});

    assert!(observe(&[namespace("shop"), in_shop("ReplicaSet", "web-1", owned)])[0].workloads.is_empty());
}

#[rstest]
#[case::design(
    r#"{"LastActivityTime":"2021-05-24T12:47:59Z","ActionBy":"ListPods","UserInfo":{"name":"abc","uid":"x"}}"#,
    "ListPods",
    "abc"
)]
#[case::released(r#"{"LastActivityTime":"2021-05-24T12:47:59Z","Action":"list","Resource":"pods","Namespace":"a","UserInfo":{"Name":"abc","Impersonate":"","RancherName":""}}"#, "list pods", "abc")]
#[case::impersonated(
    r#"{"LastActivityTime":"2021-05-24T12:47:59Z","UserInfo":{"Name":"proxy","Impersonate":"abc"}}"#,
    "",
    "abc"
)]
#[case::any_case(
    r#"{"lastactivitytime":"2021-05-24T14:47:59+02:00","ACTIONBY":"x","userInfo":{"NAME":"abc"}}"#,
    "x",
    "abc"
)]
#[case::no_zone_is_utc_and_the_rest_is_ignored(r#"{"LastActivityTime":"2021-05-24T12:47:59","Other":[1]}"#, "", "")]
fn both_dialects_of_activity_are_read(#[case] text: &str, #[case] by: &str, #[case] user: &str) {
    let Parsed::Valid(activity) = api::read_activity(Some(text)) else { panic!("{text}") };

    assert_eq!(
        (activity.at.to_string().as_str(), activity.by.as_str(), activity.user.as_str()),
        ("2021-05-24T12:47:59Z", by, user)
    );
}

#[test]
fn activity_is_written_as_the_specification_says_and_can_be_read() {
    let Parsed::Valid(activity) =
        api::read_activity(Some(r#"{"LastActivityTime":"2021-05-24T12:47:59Z","Action":"list","Resource":"pods"}"#))
    else {
        panic!()
    };

    let written = activity.to_json();

    let fields: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(
        (&fields["LastActivityTime"], &fields["ActionBy"]),
        (&"2021-05-24T12:47:59Z".into(), &"list pods".into())
    );
    assert_eq!(api::read_activity(Some(&written)), Parsed::Valid(activity));
}

#[test]
fn standalone_deployments_and_services_with_labels_are_subjects() {
    let labelled = json!({"metadata": {"labels": {"sleepmode.kubefree.com/delete-after": "144h"}}});

    let subjects = observe(&[
        namespace("shop"),
        in_shop("Deployment", "pr-1", labelled.clone()),
        in_shop("Deployment", "plain", json!({})),
        in_shop("Service", "pr-1", labelled),
        in_shop("Service", "plain", json!({})),
    ]);

    let names: Vec<_> = subjects.iter().map(|s| (s.kind, s.name.as_str())).collect();
    assert_eq!(names, [(Kind::Namespace, "shop"), (Kind::Deployment, "pr-1"), (Kind::Service, "pr-1")]);
    assert_eq!(subjects[1].workloads.len(), 1, "it is its own workload");
    assert_eq!(subjects[0].workloads.len(), 2, "and its namespace's");
}

#[rstest]
#[case::an_older_annotation(Some("2026-01-09T00:00:00Z"), "2026-01-10T00:00:00.5Z")]
#[case::a_newer_annotation(Some("2026-01-11T00:00:00Z"), "2026-01-11T00:00:00Z")]
#[case::no_annotation(None, "2026-01-10T00:00:00.5Z")]
fn the_later_of_annotation_and_label_is_the_activity_of_a_deployment(
    #[case] annotation: Option<&str>,
    #[case] expected: &str,
) {
    let labels = json!({ api::SLEEP_AFTER: "1h", api::LAST_ACTIVITY: "20260110T000000.5Z" });
    let mut object = json!({ "metadata": { "labels": labels } });
    if let Some(at) = annotation {
        let activity = json!({ "LastActivityTime": at }).to_string();
        object["metadata"]["annotations"] = json!({ api::ACTIVITY: activity });
    }

    let subjects = observe(&[namespace("shop"), in_shop("Deployment", "web", object)]);

    assert_eq!(subjects[1].activity.get().unwrap().at, expected.parse().unwrap());
}

#[rstest]
#[case::seconds("2026-01-10T00:00:00Z", "20260110T000000Z")]
#[case::nanoseconds("2026-01-10T00:00:00.123456789Z", "20260110T000000.123456789Z")]
fn a_time_in_a_label_is_the_same_time(#[case] time: &str, #[case] label: &str) {
    let time: Timestamp = time.parse().unwrap();

    assert_eq!(api::label_time(time), label);
    assert_eq!(api::read_label_time(api::LAST_ACTIVITY, Some(label)), Parsed::Valid(time));
    assert!(label.len() <= 63 && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '.'), "{label} is a label");
}

#[test]
fn a_deployment_asleep_by_its_own_label_is_not_woken_with_its_namespace() {
    let own = json!({"metadata": {
        "labels": {"sleepmode.kubefree.com/sleep-after": "1h", "sleepmode.kubefree.com/state": "sleep"},
        "annotations": {"sleepmode.kubefree.com/legacy-replicas": "2"},
    }, "spec": {"replicas": 0}});

    let subjects = observe(&[namespace("shop"), in_shop("Deployment", "web", own)]);

    assert_eq!(subjects[0].workloads[0].restored(), None, "as a part of its namespace");
    assert!(subjects[1].workloads[0].restored().is_some(), "of its own");
}

#[rstest]
#[case::admission("ValidatingWebhookConfiguration", json!({"metadata": {"name": "x"}, "webhooks": [{"clientConfig": {"service": {"namespace": "shop"}}}]}))]
#[case::mutation("MutatingWebhookConfiguration", json!({"metadata": {"name": "x"}, "webhooks": [{"clientConfig": {"url": "https://a"}}, {"clientConfig": {"service": {"namespace": "shop"}}}]}))]
#[case::aggregation("APIService", json!({"metadata": {"name": "x"}, "spec": {"service": {"namespace": "shop", "name": "m"}}}))]
#[case::conversion("CustomResourceDefinition", json!({"metadata": {"name": "x"}, "spec": {"conversion": {"webhook": {"clientConfig": {"service": {"namespace": "shop"}}}}}}))]
fn namespaces_that_the_control_plane_calls_are_recognised(#[case] kind: &'static str, #[case] object: Value) {
    let subjects = observe(&[namespace("shop"), namespace("other"), (kind, object)]);

    let callers: Vec<_> = subjects.iter().map(|s| s.used_by_control_plane.clone()).collect();
    assert_eq!(callers, [None, Some(format!("{kind}/x"))]);
}

#[rstest]
#[case::active(json!({"status": {"phase": "Active"}}), None)]
#[case::no_phase_in_a_file(json!({}), None)]
#[case::terminating(json!({"status": {"phase": "Terminating"}}), Some("Terminating"))]
#[case::being_deleted(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Active"}}), Some("Terminating"))]
fn phases(#[case] more: Value, #[case] expected: Option<&str>) {
    let mut object = json!({"metadata": {"name": "shop"}});
    merge(&mut object, more);

    assert_eq!(observe(&[("Namespace", object)])[0].inactive.as_deref(), expected);
}

#[rstest]
#[case::as_the_defaults_wrote_it("168h", true)]
#[case::changed_by_its_owner("24h", false)]
fn the_label_of_the_defaults_is_recognised_until_it_is_changed(#[case] label: &str, #[case] expected: bool) {
    let object = json!({"metadata": {
        "name": "shop",
        "labels": {"sleepmode.kubefree.com/sleep-after": label},
        "annotations": {"caretaker.dev/default-policy": "168h"},
    }});

    assert_eq!(observe(&[("Namespace", object)])[0].default_policy, expected);
}

#[test]
fn labels_without_quotes_are_understood() {
    let object = json!({"metadata": {"name": "shop", "labels": {"sleepmode.kubefree.com/sleep-after": 0, "x": true, "y": null}}});

    let subject = &observe(&[("Namespace", object)])[0];

    assert_eq!((&subject.sleep_after, subject.state()), (&Parsed::Missing, State::Normal));
}

#[test]
fn pvcs_are_counted_once() {
    let pvc = |name| in_shop("PersistentVolumeClaim", name, json!({}));

    assert_eq!(observe(&[namespace("shop"), pvc("a"), pvc("b"), pvc("a")])[0].pvc_count, 2);
}

#[test]
fn kinds_of_other_groups_are_ignored() {
    let labelled = json!({
        "apiVersion": "serving.knative.dev/v1",
        "metadata": {"labels": {"sleepmode.kubefree.com/delete-after": "1h"}},
    });

    assert_eq!(observe(&[namespace("shop"), in_shop("Service", "kn", labelled)]).len(), 1);
}

#[test]
fn where_a_file_names_no_namespace_it_is_default() {
    let labelled =
        json!({"apiVersion": "v1", "metadata": {"name": "s", "labels": {"sleepmode.kubefree.com/delete-after": "1h"}}});

    assert_eq!(observe(&[("Service", labelled)])[0].namespace_name(), "default");
}

#[test]
fn names_in_an_activity_cannot_move_a_cursor() {
    let long = "x".repeat(3_000);
    let text = json!({"LastActivityTime": "2021-05-24T12:47:59Z", "ActionBy": "a\u{1b}[2J\nNamespace prod", "UserInfo": {"name": long}});

    let Parsed::Valid(activity) = api::read_activity(Some(&text.to_string())) else { panic!() };

    assert_eq!((activity.by.as_str(), activity.user.len()), ("a[2JNamespace prod", 80));
}

#[test]
fn the_creation_time_is_read() {
    let object = json!({"metadata": {"name": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"}});

    assert_eq!(
        observe(&[("Namespace", object)])[0].created.map(|t| t.to_string()).as_deref(),
        Some("2026-01-01T00:00:00Z")
    );
}

#[rstest]
#[case::a_slip("labels", "sleepmode.kubefree.com/slep-after", Some("did you mean sleepmode.kubefree.com/sleep-after?"))]
#[case::the_other_prefix(
    "labels",
    "caretaker.dev/sleep-after",
    Some("did you mean sleepmode.kubefree.com/sleep-after?")
)]
#[case::not_a_label("annotations", "sleepmode.kubefree.com/exclude", Some("make it the label"))]
#[case::not_an_annotation("labels", "caretaker.dev/sleep-during", Some("make it the annotation"))]
#[case::right("labels", "sleepmode.kubefree.com/sleep-after", None)]
#[case::of_somebody_else("labels", "example.com/slep-after", None)]
#[case::of_another_version("annotations", "caretaker.dev/awake-since", None)]
#[case::of_the_windows_keeper("annotations", "caretaker.dev/suspended-until", None)]
fn names_that_people_misspell_are_found(#[case] part: &str, #[case] name: &str, #[case] remedy: Option<&str>) {
    let named = json!({ "metadata": { part: { name: "24h" } } });

    let (kind, mut shop) = namespace("shop");
    merge(&mut shop, named.clone());
    let found = observe(&[(kind, shop)]).remove(0).misspelled;
    let alone = observe(&[in_shop("Deployment", "web", named)]);

    assert_eq!(
        found.iter().map(|found| found.remedy.contains(remedy.unwrap_or_default())).next(),
        remedy.map(|_| true)
    );
    let is_right = name == "sleepmode.kubefree.com/sleep-after";
    assert_eq!(alone.len(), usize::from(remedy.is_some() || is_right), "a Deployment's owner hears of it as well");
}
