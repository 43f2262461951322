//! The policy of the chart for admission: Caretaker's accounts, and people who are named, change what a sleep writes and
//! nothing else.

use crate::support::foreign_kinds::add_custom_workloads;
use crate::support::operator::{
    TIMEOUT, caretaker_as, create_namespace, start_operator, state_of, use_namespace, wait_for_state,
};
use caretaker_test_programs::helm;
use caretaker_testkit::make::{mk_cron_job, mk_daemon_set, mk_replica_set, mk_service, mk_stateful_set};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use rstest::rstest;
use serde_json::{Value, json};

const NAMESPACE: &str = "caretaker-system";
const ACCOUNT: &str = "caretaker";
const POLICY: &str = "caretaker-sleep-fields";
/// People whom the policy names, by a group.
const GROUP: &str = "team-shop";

/// Version, kind and plural of everything that a sleep writes.
const KINDS: [(&str, &str, &str); 10] = [
    ("v1", "Namespace", "namespaces"),
    ("v1", "Service", "services"),
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("batch/v1", "CronJob", "cronjobs"),
    ("keda.sh/v1alpha1", "ScaledObject", "scaledobjects"),
    ("argoproj.io/v1alpha1", "Rollout", "rollouts"),
    ("apps.kruise.io/v1alpha1", "CloneSet", "clonesets"),
];

struct Guarded {
    cluster: Cluster,
    client: Client,
}

impl Guarded {
    /// A cluster with the manifest that acts, the policy, and a namespace with a workload of each kind.
    async fn start() -> Self {
        let cluster = Cluster::builder().controllers().start().await.unwrap();
        let client = cluster.client().await.unwrap();
        cluster.kubectl(&["apply", "-f", "../../deploy/namespaces-live.yaml"]).unwrap();
        cluster.kubectl(&["apply", "-f", "../../deploy/people.yaml"]).unwrap();
        let guarded = Self { cluster, client };
        guarded.create_workloads().await;
        guarded.apply_policy().await;
        guarded
    }

    async fn create_workloads(&self) {
        let (client, post) = (&self.client, PostParams::default());
        create_namespace(client, "shop", 2).await;
        let of = |name| Api::namespaced(client.clone(), name);
        of("shop").create(&post, &losing_its_volumes()).await.unwrap();
        Api::namespaced(client.clone(), "shop").create(&post, &mk_replica_set("shop", "old")).await.unwrap();
        Api::namespaced(client.clone(), "shop").create(&post, &parked_by_kubefree()).await.unwrap();
        Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
        Api::namespaced(client.clone(), "shop").create(&post, &mk_service("shop", "web")).await.unwrap();
        add_custom_workloads(&self.cluster, "shop");
    }

    /// Returns when the policy decides.
    async fn apply_policy(&self) {
        let chart = helm::chart().display().to_string();
        let values = format!("admissionPolicy.enabled=true,admissionPolicy.groups={{{GROUP}}}");
        let args = ["template", "caretaker", &chart, "--namespace", NAMESPACE, "--set", &values];
        let policy = helm::run(&[args.as_slice(), &["--show-only", "templates/admission.yaml"]].concat()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, policy).unwrap();
        self.cluster.kubectl(&["apply", "-f", path.to_str().unwrap()]).unwrap();
        let account = self.account().await;
        until("the policy to decide", TIMEOUT, async || {
            let foreign = json!({ "metadata": { "labels": { "probe": "x" } } });
            // Admission decides about a dry run as well, and nothing is written that would make the next one no change.
            let answer =
                patch_with(&account, &PatchParams::default().dry_run(), "Deployment", "web", "", foreign).await;
            Ok(answer.err().map(drop).ok_or_else(|| "a foreign label was accepted".to_owned()))
        })
        .await
        .unwrap();
    }

    async fn account(&self) -> Client {
        Client::try_from(self.cluster.account_config(NAMESPACE, ACCOUNT).await.unwrap()).unwrap()
    }

    /// The specs of everything in the namespace, by kind, without what controllers and the API server count.
    async fn specs(&self) -> Vec<(String, Value)> {
        let mut specs = Vec::new();
        for (version, kind, plural) in KINDS.into_iter().skip(1) {
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), "shop", &resource(version, kind, plural));
            for object in api.list(&kube::api::ListParams::default()).await.unwrap() {
                // Those of the Deployment follow it.
                if object.metadata.owner_references.is_none() {
                    specs.push((
                        format!("{kind}/{}", object.metadata.name.unwrap_or_default()),
                        object.data["spec"].clone(),
                    ));
                }
            }
        }
        specs
    }
}

/// Its volumes are deleted when it is scaled down.
fn losing_its_volumes() -> StatefulSet {
    let mut database = serde_json::to_value(mk_stateful_set("shop", "db")).unwrap();
    database["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({ "whenScaled": "Delete" });
    serde_json::from_value(database).unwrap()
}

/// Runs on nodes with a label, and was put to sleep by kubefree's term beside one of its owner.
fn parked_by_kubefree() -> DaemonSet {
    let mut agent = serde_json::to_value(mk_daemon_set("shop", "agent")).unwrap();
    let term = |key: &str| json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] });
    let terms = json!({ "nodeSelectorTerms": [term("sleep.kubefree.com/not-existing-key"), term("zone")] });
    let pod = &mut agent["spec"]["template"]["spec"];
    pod["nodeSelector"] = json!({ "disk": "ssd" });
    pod["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } });
    serde_json::from_value(agent).unwrap()
}

fn resource(version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource { group: group.into(), version: version.into(), api_version, kind: kind.into(), plural: plural.into() }
}

/// Patches an object, or its status, as this client.
async fn patch(client: &Client, kind: &str, name: &str, subresource: &str, patch: Value) -> Result<(), String> {
    patch_with(client, &PatchParams::default(), kind, name, subresource, patch).await
}

async fn patch_with(
    client: &Client,
    params: &PatchParams,
    kind: &str,
    name: &str,
    subresource: &str,
    patch: Value,
) -> Result<(), String> {
    let (version, kind, plural) = *KINDS.iter().find(|known| known.1 == kind).unwrap();
    let resource = resource(version, kind, plural);
    let api: Api<DynamicObject> = match kind {
        "Namespace" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), "shop", &resource),
    };
    let answer = match subresource {
        "status" => api.patch_status(name, params, &Patch::Merge(patch)).await,
        _ => api.patch(name, params, &Patch::Merge(patch)).await,
    };
    answer.map(drop).map_err(|error| error.to_string())
}

/// What whoever has the account's token would like to write. Each is allowed by its roles alone.
fn forbidden() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    let pod = |field: &str, value: Value| json!({ "spec": { "template": { "spec": { field: value } } } });
    let container = || json!([{ "name": "web", "image": "evil", "securityContext": { "privileged": true } }]);
    let spec = |field: &str, value: Value| json!({ "spec": { field: value } });
    let label = |key: &str, value: &str| json!({ "metadata": { "labels": { key: value } } });
    let owner = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u" }]);
    vec![
        ("Deployment", "web", "", pod("hostPID", json!(true))),
        ("Deployment", "web", "", pod("serviceAccountName", json!("other"))),
        (
            "Deployment",
            "web",
            "",
            json!({ "spec": { "replicas": 0, "template": { "spec": { "containers": container() } } } }),
        ),
        ("Deployment", "web", "", spec("paused", json!(true))),
        ("Deployment", "web", "", label("team", "other")),
        ("Deployment", "web", "", json!({ "metadata": { "annotations": { "note": "x" } } })),
        ("Deployment", "web", "", json!({ "metadata": { "finalizers": ["example.com/never"] } })),
        ("Deployment", "web", "", json!({ "metadata": { "ownerReferences": owner } })),
        ("StatefulSet", "db", "", pod("hostPID", json!(true))),
        ("StatefulSet", "db", "", spec("persistentVolumeClaimRetentionPolicy", json!({ "whenDeleted": "Delete" }))),
        ("ReplicaSet", "old", "", pod("hostPID", json!(true))),
        ("DaemonSet", "agent", "", pod("hostPID", json!(true))),
        ("DaemonSet", "agent", "", pod("containers", container())),
        ("DaemonSet", "agent", "", pod("nodeSelector", json!({ "disk": null }))),
        ("DaemonSet", "agent", "", pod("nodeSelector", json!({ "disk": "any" }))),
        ("DaemonSet", "agent", "", pod("nodeSelector", json!({ "other": "x" }))),
        ("DaemonSet", "agent", "", pod("affinity", Value::Null)),
        ("DaemonSet", "agent", "", json!({ "spec": { "template": { "metadata": { "labels": { "more": "x" } } } } })),
        ("DaemonSet", "agent", "", spec("updateStrategy", json!({ "type": "OnDelete", "rollingUpdate": null }))),
        ("CronJob", "nightly", "", spec("schedule", json!("* * * * *"))),
        ("CronJob", "nightly", "", spec("jobTemplate", pod("hostPID", json!(true)))),
        ("CronJob", "nightly", "status", json!({ "status": { "lastSuccessfulTime": "2026-01-01T00:00:00Z" } })),
        ("ScaledObject", "custom", "", spec("scaleTargetRef", json!({ "name": "other" }))),
        ("Rollout", "custom", "", spec("template", json!({}))),
        ("CloneSet", "custom", "", spec("template", json!({}))),
        ("Service", "web", "", spec("externalIPs", json!(["192.0.2.1"]))),
        ("Service", "web", "", spec("selector", json!({ "app": "other" }))),
        ("Namespace", "shop", "", label("pod-security.kubernetes.io/enforce", "privileged")),
        ("Namespace", "shop", "", label("sleepmode.kubefree.com/delete-after", "1s")),
    ]
}

#[tokio::test]
async fn a_patch_of_what_no_sleep_writes_is_refused_and_others_are_not_limited() {
    let guarded = Guarded::start().await;
    let account = guarded.account().await;
    let before = guarded.specs().await;

    for (kind, name, subresource, change) in forbidden() {
        let refused = patch(&account, kind, name, subresource, change.clone()).await;
        let why = refused.expect_err(&format!("{kind} took {change}"));
        assert!(why.contains(POLICY), "{kind} {change} was refused for another reason: {why}");
    }
    assert_eq!(guarded.specs().await, before);

    // The administrator deploys as before.
    let deploy =
        json!({ "spec": { "template": { "spec": { "hostPID": true } } }, "metadata": { "labels": { "v": "2" } } });
    patch(&guarded.client, "Deployment", "web", "", deploy).await.unwrap();

    // The policy is right in its types for every kind that it names.
    until("the policy to be checked", TIMEOUT, async || {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(guarded.client.clone());
        let status = policies.get(POLICY).await.unwrap().status.unwrap_or_default();
        let Some(checked) = status.type_checking else { return Ok(Err("not yet".to_owned())) };
        assert_eq!(checked.expression_warnings.unwrap_or_default(), []);
        Ok(Ok(()))
    })
    .await
    .unwrap();
}

/// Volumes that go when a StatefulSet is scaled down are gone for good: the policy lets them be kept, and a `Delete` come
/// back only where it was before.
#[tokio::test]
async fn the_volumes_of_a_stateful_set_are_not_given_up_by_way_of_a_sleep() {
    let guarded = Guarded::start().await;
    let account = guarded.account().await;
    let claims = |when: &str| json!({ "spec": { "replicas": 0, "persistentVolumeClaimRetentionPolicy": { "whenScaled": when } } });
    let record = json!({ "metadata": { "labels": { "caretaker.dev/legacy-when-scaled": "Delete" } } });
    let admin = &guarded.client;
    patch(admin, "StatefulSet", "db", "", claims("Retain")).await.unwrap();

    for change in [claims("Delete"), record.clone()] {
        let why = patch(&account, "StatefulSet", "db", "", change).await.unwrap_err();
        assert!(why.contains(POLICY), "{why}");
    }

    patch(admin, "StatefulSet", "db", "", record).await.unwrap();
    patch(&account, "StatefulSet", "db", "", claims("Delete")).await.unwrap();
}

#[tokio::test]
async fn with_the_policy_every_kind_sleeps_and_wakes_and_a_cleanup_cleans_up() {
    let guarded = Guarded::start().await;
    let Guarded { cluster, client } = &guarded;
    let before = guarded.specs().await;
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, ACCOUNT).await.unwrap();

    let mut operator = start_operator(&kubeconfig, &[]).await;
    wait_for_state(client, "shop", "sleep", 0).await;
    let asleep = guarded.specs().await;
    let unchanged: Vec<&String> =
        before.iter().zip(&asleep).filter(|(before, after)| before == after).map(|((name, _), _)| name).collect();
    // KEDA's object is paused by an annotation.
    assert_eq!(unchanged, ["Service/web", "ScaledObject/custom"]);
    use_namespace(client, "shop").await;
    wait_for_state(client, "shop", "normal", 2).await;
    assert!(operator.stop().success());

    let mut woken = before;
    let agent = woken.iter_mut().find(|(name, _)| name == "DaemonSet/agent").unwrap();
    let terms = "/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    agent.1.pointer_mut(terms).unwrap().as_array_mut().unwrap().remove(0);
    assert_eq!(guarded.specs().await, woken, "as before, without kubefree's term");
    let user = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    let refused =
        cluster.audit().unwrap().of(&user).only(|call| matches!(call.code, Some(403 | 422)) && call.name != "web");
    assert!(refused.is_empty(), "{refused}");
}

/// Those who are named may do by hand what Caretaker does, and no more, whatever their roles say.
#[rstest]
#[case::in_the_group(Some(GROUP), true)]
#[case::of_no_group(None, false)]
#[tokio::test]
async fn people_who_are_named_put_to_sleep_and_wake_and_change_no_other_field(
    #[case] group: Option<&str>,
    #[case] is_limited: bool,
) {
    let guarded = Guarded::start().await;
    let Guarded { cluster, client } = &guarded;
    let bind = ["-n", "shop", "create", "rolebinding", "sleepers", "--clusterrole=caretaker-sleeper", "--user=sam"];
    cluster.kubectl(&bind).unwrap();
    let bind = ["create", "clusterrolebinding", "readers", "--clusterrole=caretaker-reader", "--user=sam"];
    cluster.kubectl(&bind).unwrap();
    let sam = cluster.user_kubeconfig("sam", group).unwrap();

    for (command, state) in [("sleep", ("sleep".to_owned(), 0)), ("wake", ("normal".to_owned(), 2))] {
        let (code, output, errors) = caretaker_as(&sam, &[command, "shop"]);
        assert_eq!(code, 0, "{command}: {output}{errors}");
        assert_eq!(state_of(client, "shop").await, state);
    }

    let sam = Client::try_from(cluster.user_config("sam", group).await.unwrap()).unwrap();
    let host = json!({ "spec": { "template": { "spec": { "hostPID": true } } } });
    let answer = patch(&sam, "Deployment", "web", "", host).await;
    assert_eq!(answer.as_ref().is_err_and(|why| why.contains(POLICY)), is_limited, "{answer:?}");
    assert_eq!(answer.is_ok(), !is_limited);
}
