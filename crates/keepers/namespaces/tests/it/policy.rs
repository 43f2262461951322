//! What may be put to sleep and deleted at all, on a real API server with its controllers.

use std::sync::Arc;
use std::time::Duration;

use crate::support::context::context;
use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::live::{TestNamespace, becomes_true, hours, is_written_by_us, used};
use caretaker_core::SignedDuration;
use caretaker_core::limits::{Breaker, Ledger, Limits};
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once;
use caretaker_engine::{ApplyError, Context};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api;
use caretaker_namespaces::subject::{Defaults, Deletion, Policy};
use caretaker_testkit::faults::Faults;
use caretaker_testkit::make::{
    Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace, mk_pod, mk_replica_set, mk_stateful_set,
};
use caretaker_testkit::{Cluster, shared, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, PodTemplateSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

const SLEEP_AFTER: &[(&str, &str)] = &[(api::SLEEP_AFTER, "1h")];

/// A namespace that is asleep and announced, and due to be deleted in the fifth hour.
async fn announced(name: &str) -> TestNamespace {
    let home = TestNamespace::new(shared(), name).await;
    home.sleep().await;
    assert!(matches!(home.round(hours(4)).await[..], [Ok(())]));
    assert!(home.annotation(api::DELETE_AT).await.is_some());
    home
}

async fn delete_pod(home: &TestNamespace, name: &str) {
    home.all::<Pod>().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
}

#[tokio::test]
async fn asleep_and_deleted_while_pods_run() {
    let home = announced("pods-run").await;
    home.add_pod(mk_pod("pods-run", "worker")).await;

    let outcomes = home.round(hours(5)).await;

    let [Err(error @ ApplyError::Stale(_))] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(error.to_string().contains("PodsRunning") && error.to_string().contains("Pod/worker"), "{error}");
    assert_eq!(home.state().await, "sleep", "it is kept");
    delete_pod(&home, "worker").await;
    assert!(matches!(home.round(hours(5)).await[..], [Ok(())]));
    assert!(home.namespace().await.is_none(), "the pod is gone, and so is what kept it");
}

#[tokio::test]
async fn a_pod_that_has_ended_does_not_hold_back_a_deletion() {
    let home = announced("pod-ended").await;
    home.add_pod(mk_pod("pod-ended", "done")).await;
    let status = json!({ "status": { "phase": "Succeeded" } });
    let patch = kube::api::Patch::Merge(status);
    home.all::<Pod>().patch_status("done", &kube::api::PatchParams::default(), &patch).await.unwrap();

    assert!(matches!(home.round(hours(5)).await[..], [Ok(())]));

    assert!(home.namespace().await.is_none());
}

async fn own_cluster() -> (Cluster, Client) {
    let cluster = Cluster::builder().controllers().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    (cluster, client)
}

#[tokio::test]
async fn a_deletion_while_pods_run_is_refused_under_its_own_rule_and_idle_time_counts_again() {
    let (cluster, client) = own_cluster().await;
    let home = TestNamespace::new(&cluster, "busy").await;
    home.sleep().await;
    assert!(matches!(home.round(hours(4)).await[..], [Ok(())]), "announced");
    home.add_pod(mk_pod("busy", "worker")).await;
    let (clock, handle) = Clock::manual(hours(5));

    let operator = InProcessOperator::start(&client, clock, Duration::from_mins(10), Policy::default());
    let tells = async |expected: &str| {
        until(&format!("the journal to say {expected}"), LIMIT, async || {
            let entries = operator.entries_of("busy");
            let told = entries.iter().any(|entry| entry == expected);
            Ok(if told { Ok(()) } else { Err(format!("{entries:?} {:?}", operator.blockers())) })
        })
        .await
        .unwrap();
    };
    tells("PodsRunning done").await;
    assert_eq!(home.annotation(api::ASLEEP_SINCE).await.as_deref(), Some("2036-01-10T05:00:00Z"));
    assert_eq!(home.annotation(api::DELETE_AT).await, None, "the announcement is withdrawn");

    delete_pod(&home, "worker").await;
    handle.set(hours(6));
    tells("DeletionNear done").await;
    handle.set(hours(7));
    tells("AsleepTooLong done").await;
    operator.stop().await;
}

#[tokio::test]
async fn what_the_defaults_put_to_sleep_before_it_was_a_system_namespace_is_woken() {
    let defaults = Some(Defaults { sleep_after: SignedDuration::from_hours(1), delete_with_pvcs: false });
    let keeper = || Namespaces::new(Policy { defaults: defaults.clone(), ..Policy::default() }, None);
    let by_defaults = used("late-system", SLEEP_AFTER).annotation(api::DEFAULT_POLICY, "1h");
    let home = TestNamespace::of(shared(), by_defaults).await.with_keeper(keeper());
    home.add(mk_deployment("late-system", "web").replicas(3)).await;
    home.sleep().await;
    let mut agent = mk_daemon_set("late-system", "agent");
    let spec = agent.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    spec.host_network = Some(true);
    home.add(agent).await;

    assert_eq!(home.round(hours(2)).await, [Ok(())]);

    assert_eq!(home.state().await, "normal");
    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(home.round(hours(99)).await, [], "and it is left alone from then on");
}

/// A webhook that the API server would call in this namespace, if there were objects of its kind.
async fn add_webhook(home: &TestNamespace) {
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": { "name": home.name },
        "webhooks": [{
            "name": "check.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Ignore",
            "clientConfig": { "service": { "namespace": home.name, "name": "check" } },
            "rules": [{ "apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["toys"] }],
        }],
    }))
    .unwrap();
    Api::all(home.client.clone()).create(&PostParams::default(), &webhook).await.unwrap();
}

#[tokio::test]
async fn a_sleeper_that_becomes_protected_is_still_woken_by_activity() {
    let home = TestNamespace::new(shared(), "now-protected").await;
    home.add(mk_deployment("now-protected", "web").replicas(3)).await;
    home.sleep().await;
    add_webhook(&home).await;
    assert_eq!(home.round(hours(99)).await.len(), 0, "protected, it is neither announced nor deleted");

    home.wake_at(hours(100)).await;

    assert_eq!(home.count::<Deployment>("web").await, (3, None));
    assert_eq!(home.round(hours(999)).await.len(), 0, "protected, it is not put to sleep again");
}

#[tokio::test]
async fn an_announced_deletion_of_what_becomes_protected_is_withdrawn() {
    let home = announced("protected-late").await;
    add_webhook(&home).await;

    let outcomes = home.round(hours(5)).await;

    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert_eq!((home.state().await.as_str(), home.annotation(api::DELETE_AT).await), ("sleep", None));
}

fn with_policy(policy: Policy) -> Namespaces {
    Namespaces::new(policy, None)
}

#[tokio::test]
async fn deletion_is_a_choice_what_sleeps_is_kept_where_nothing_or_only_delete_after_deletes() {
    for (name, deletion) in [("kept-never", Deletion::Never), ("kept-asleep", Deletion::OnlyDeleteAfter)] {
        let home = TestNamespace::of(shared(), used(name, SLEEP_AFTER)).await;
        let home = home.with_keeper(with_policy(Policy { deletion, ..Policy::default() }));
        home.sleep().await;

        assert_eq!(home.round(hours(9_999)).await.len(), 0, "{deletion:?}");

        assert_eq!(home.annotation(api::DELETE_AT).await, None);
        home.wake_at(hours(10_000)).await;
    }
}

#[tokio::test]
async fn deletion_is_a_choice_under_never_delete_after_deletes_nothing_and_otherwise_it_does() {
    let acts = async |name: &str, deletion: Deletion| {
        let home = TestNamespace::of(shared(), used(name, &[(api::DELETE_AFTER, "1h")])).await;
        let home = home.with_keeper(with_policy(Policy { deletion, ..Policy::default() }));
        let results = home.round(hours(99)).await;
        (results.len(), home.annotation(api::DELETE_AT).await.is_some())
    };

    assert_eq!(acts("never-deleted", Deletion::Never).await, (0, false));
    assert_eq!(acts("then-announced", Deletion::OnlyDeleteAfter).await, (1, true));
}

#[tokio::test]
async fn namespaces_with_claims_are_kept_where_the_settings_say_so() {
    let claim = |name: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "data", "namespace": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .unwrap()
    };
    let keeper = || with_policy(Policy { retain_with_pvcs: true, ..Policy::default() });
    let home =
        TestNamespace::of(shared(), used("with-claims", &[(api::DELETE_AFTER, "1h")])).await.with_keeper(keeper());
    home.add(claim("with-claims")).await;

    assert_eq!(home.round(hours(99)).await.len(), 0, "not even announced");

    home.all::<PersistentVolumeClaim>().delete("data", &DeleteParams::default()).await.unwrap();
    becomes_true("the claim to be gone", async || {
        home.all::<PersistentVolumeClaim>().get_opt("data").await.unwrap().is_none()
    })
    .await;
    assert!(matches!(home.round(hours(99)).await[..], [Ok(())]), "without claims it is announced");
}

#[tokio::test]
async fn the_breakers_denominator_counts_only_what_a_label_can_lead_to_sleep() {
    let (_cluster, client) = own_cluster().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for i in 0..30 {
        namespaces.create(&PostParams::default(), &mk_namespace(&format!("unmanaged-{i}"))).await.unwrap();
    }
    for i in 0..20 {
        namespaces.create(&PostParams::default(), &used(&format!("managed-{i}"), SLEEP_AFTER)).await.unwrap();
    }
    let limits = Limits { breaker: Some(Breaker::DEFAULT), ..Limits::default() };
    let context = Context { limits, ..context(&client, Clock::manual(hours(2)).0) };

    let round = run_once(&Arc::new(Namespaces::default()), &context, &mut Ledger::default(), |_| true).await.unwrap();

    let opens = round.opens.expect("all of those to which anything can happen are due at once");
    assert!(opens.because.starts_with("20 of 20 subjects are due for sleep"), "{}", opens.because);
    assert_eq!(round.results.len(), 0);
}

fn with_defaults() -> Namespaces {
    let defaults = Some(Defaults { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs: false });
    with_policy(Policy { defaults, ..Policy::default() })
}

/// Whether the defaults label a namespace.
async fn gets_a_label(home: TestNamespace) -> bool {
    let home = home.with_keeper(with_defaults());
    let outcomes = home.round(hours(0)).await;
    let namespace = home.namespace().await.unwrap();
    assert_eq!(outcomes.len(), usize::from(is_written_by_us(&namespace)), "{outcomes:?}");
    namespace.labels().contains_key(api::SLEEP_AFTER)
}

#[tokio::test]
async fn the_defaults_leave_system_namespaces_alone_by_their_name() {
    for name in ["argocd", "istio-system", "gke-managed-system", "monitoring-eu"] {
        assert!(!gets_a_label(TestNamespace::of(shared(), mk_namespace(name)).await).await, "{name}");
    }
    assert!(gets_a_label(TestNamespace::of(shared(), mk_namespace("team-a")).await).await);
}

#[tokio::test]
async fn the_defaults_leave_system_namespaces_alone_by_what_runs_in_them() {
    let pod = |agent: &mut DaemonSet, spec: serde_json::Value| {
        let pod = agent.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        let mut merged = serde_json::to_value(&*pod).unwrap();
        merged.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        *pod = serde_json::from_value(merged).unwrap();
    };
    let registry = json!([{ "name": "r", "hostPath": { "path": "/var/lib/kubelet/plugins_registry/" } }]);
    for (name, spec) in [
        ("by-network", json!({ "hostNetwork": true })),
        ("by-driver", json!({ "volumes": registry })),
        ("by-priority", json!({ "priorityClassName": "system-node-critical" })),
    ] {
        let home = TestNamespace::of(shared(), mk_namespace(name)).await;
        let mut agent = mk_daemon_set(name, "agent");
        pod(&mut agent, spec);
        home.add(agent).await;
        assert!(!gets_a_label(home).await, "{name}");
    }
    let home = TestNamespace::of(shared(), mk_namespace("by-nothing")).await;
    home.add(mk_daemon_set("by-nothing", "agent")).await;
    assert!(gets_a_label(home).await, "any other DaemonSet says nothing");

    for kind in ["deployment", "stateful-set", "replica-set", "cron-job"] {
        let name = format!("by-{kind}");
        let home = TestNamespace::of(shared(), mk_namespace(&name)).await;
        let critical = |template: &mut PodTemplateSpec| {
            let pod = template.spec.as_mut().unwrap();
            pod.priority_class_name = Some("system-cluster-critical".to_owned());
        };
        match kind {
            "deployment" => {
                let mut dns = mk_deployment(&name, "dns");
                critical(&mut dns.spec.as_mut().unwrap().template);
                home.add(dns).await;
            }
            "stateful-set" => {
                let mut dns = mk_stateful_set(&name, "dns");
                critical(&mut dns.spec.as_mut().unwrap().template);
                home.add(dns).await;
            }
            "replica-set" => {
                let mut dns = mk_replica_set(&name, "dns");
                critical(dns.spec.as_mut().unwrap().template.as_mut().unwrap());
                home.add(dns).await;
            }
            _ => {
                let mut dns = mk_cron_job(&name, "dns");
                critical(&mut dns.spec.job_template.spec.as_mut().unwrap().template);
                home.add(dns).await;
            }
        }
        assert!(!gets_a_label(home).await, "{name}");
    }
}

/// More definitions than fit into a page.
async fn add_definitions(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for i in 0..21 {
        let definition: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": { "name": format!("toys{i}.example.com") },
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": { "kind": format!("Toy{i}"), "plural": format!("toys{i}") },
                "versions": [{
                    "name": "v1", "served": false, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object" } },
                }],
            },
        }))
        .unwrap();
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
}

#[tokio::test]
async fn deletions_of_one_round_list_every_definition_once_and_in_pages() {
    let (cluster, client) = own_cluster().await;
    add_definitions(&client).await;
    for i in 0..5 {
        let home = TestNamespace::of(&cluster, used(&format!("abandoned-{i}"), SLEEP_AFTER)).await;
        home.sleep().await;
        assert!(matches!(home.round(hours(4)).await[..], [Ok(())]));
    }
    let faults = Faults::none();
    let counted = faults.client(cluster.admin_config().await.unwrap()).unwrap();
    let context = context(&counted, Clock::manual(hours(5)).0);

    let round = run_once(&Arc::new(Namespaces::default()), &context, &mut Ledger::default(), |_| true).await.unwrap();

    assert_eq!(round.results.iter().filter(|done| done.result.is_ok()).count(), 5, "{round:?}");
    let calls = faults.calls();
    let pages: Vec<&str> = calls
        .iter()
        .map(|call| call.path.as_str())
        .filter(|path| path.contains("/customresourcedefinitions"))
        .collect();
    assert!(pages.iter().all(|path| path.contains("limit=20")), "{pages:?}");
    assert_eq!(pages.len(), 4, "two pages for the cache, and two for all five deletions: {pages:?}");
}
