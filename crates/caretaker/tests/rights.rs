//! The manifests in `deploy` grant exactly the rights that the operator needs.

#[path = "flux_kinds/mod.rs"]
mod flux_kinds;
#[path = "granted/mod.rs"]
mod granted;
#[path = "operator/mod.rs"]
mod operator;

use std::collections::BTreeSet;

use caretaker_addresses::Addresses;
use caretaker_addresses::subject::Policy as AddressesPolicy;
use caretaker_engine::permissions::{AccessRight, RequiredRight, denied, required};
use caretaker_engine::sources::Sources;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::subject::{Deletion, Policy as NamespacesPolicy};
use caretaker_runtimes::Runtimes;
use caretaker_testkit::audit::AuditLog;
use caretaker_testkit::make::{
    Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace, mk_replica_set, mk_service, mk_stateful_set,
};
use caretaker_testkit::{Cluster, until};
use caretaker_windows::Windows;
use caretaker_windows::api::KINDS;
use flux_kinds::serve_flux;
use granted::{Right, required_by, right, rights};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::PostParams;
use kube::{Api, Client};
use operator::{
    ACTIVITY, DELETE_AFTER, TIMEOUT, caretaker, create_namespace, settings, start_operator, state_of, use_namespace,
    used, wait_for_state,
};
use rstest::rstest;
use serde_json::{Value, json};

const NAMESPACE: &str = "caretaker-system";

/// A manifest that is shipped.
struct Shipped {
    file: &'static str,
    /// The name of both its roles.
    role: &'static str,
    account: &'static str,
    /// The rights that its keeper needs, for a dry run or not.
    required: fn(bool) -> Vec<RequiredRight>,
}

const NAMESPACES: Shipped = Shipped {
    file: "namespaces.yaml",
    role: "caretaker-namespaces",
    account: "caretaker",
    required: |dry_run| required_by(&Namespaces::new(NamespacesPolicy::default(), None), dry_run),
};

const ADDRESSES: Shipped = Shipped {
    file: "addresses.yaml",
    role: "caretaker-addresses",
    account: "caretaker-addresses",
    required: |dry_run| required_by(&Addresses::new(AddressesPolicy::default()), dry_run),
};

const WINDOWS: Shipped = Shipped {
    file: "windows.yaml",
    role: "caretaker-windows",
    account: "caretaker-windows",
    required: |dry_run| required_by(&Windows::default(), dry_run),
};

const RUNTIMES: Shipped = Shipped {
    file: "runtimes.yaml",
    role: "caretaker-runtimes",
    account: "caretaker-runtimes",
    required: |dry_run| required_by(&Runtimes::default(), dry_run),
};

impl Shipped {
    /// A control plane with the manifest applied.
    async fn installed(&self, builder: caretaker_testkit::ClusterBuilder) -> (Cluster, Client) {
        let cluster = builder.start().await.unwrap();
        let folder = "../../deploy/";
        cluster.kubectl(&["apply", "-f", &format!("{folder}{}", self.file)]).unwrap();
        let client = cluster.client().await.unwrap();
        (cluster, client)
    }

    /// The rights of its roles: in all namespaces, and in the operator's own.
    async fn allowed(&self, client: &Client) -> (BTreeSet<Right>, BTreeSet<Right>) {
        let everywhere = Api::<ClusterRole>::all(client.clone()).get(self.role).await.unwrap();
        let own = Api::<Role>::namespaced(client.clone(), NAMESPACE).get(self.role).await.unwrap();
        (rights(everywhere.rules.unwrap()), rights(own.rules.unwrap()))
    }

    async fn allow(&self, client: &Client, everywhere: &BTreeSet<Right>, own: &BTreeSet<Right>) {
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let mut role = roles.get(self.role).await.unwrap();
        role.rules = Some(rules(everywhere));
        roles.replace(self.role, &PostParams::default(), &role).await.unwrap();
        let roles: Api<Role> = Api::namespaced(client.clone(), NAMESPACE);
        let mut role = roles.get(self.role).await.unwrap();
        role.rules = Some(rules(own));
        roles.replace(self.role, &PostParams::default(), &role).await.unwrap();
    }

    /// The calls that its account was refused, and the number of its writes.
    fn refused(&self, cluster: &Cluster) -> (AuditLog, usize) {
        let audit = cluster.audit().unwrap().of(&format!("system:serviceaccount:{NAMESPACE}:{}", self.account));
        (audit.only(|call| call.code == Some(403)), audit.writes())
    }
}

fn rules(rights: &BTreeSet<Right>) -> Vec<PolicyRule> {
    let rule = |(group, resource, verb, name): &Right| PolicyRule {
        api_groups: Some(vec![group.clone()]),
        resources: Some(vec![resource.clone()]),
        verbs: vec![verb.clone()],
        resource_names: name.clone().map(|name| vec![name]),
        ..PolicyRule::default()
    };
    rights.iter().map(rule).collect()
}

#[rstest]
#[case::of_namespaces(NAMESPACES)]
#[case::of_addresses(ADDRESSES)]
#[case::of_runtimes(RUNTIMES)]
#[tokio::test]
async fn the_roles_grant_what_is_required_and_nothing_else(#[case] shipped: Shipped) {
    let (_cluster, client) = shipped.installed(Cluster::builder()).await;

    let (everywhere, own) = shipped.allowed(&client).await;

    let required = (shipped.required)(false).into_iter().map(|required| required.right);
    let (local, global): (Vec<_>, Vec<_>) = required.partition(|right| right.namespace == Some(NAMESPACE));
    assert_eq!(everywhere, global.iter().map(right).collect());
    assert_eq!(own, local.iter().map(right).collect());
    let in_dry_run: BTreeSet<&str> = (shipped.required)(true).iter().map(|required| required.right.verb).collect();
    assert_eq!(in_dry_run, ["get", "list", "watch"].into());
}

/// The rights on kinds that are found at run time depend on what is served: here it is everything.
#[tokio::test]
async fn the_roles_of_windows_grant_what_flux_needs_and_with_exactly_these_rights_objects_are_suspended() {
    let (cluster, client) = WINDOWS.installed(Cluster::builder()).await;
    serve_flux(&cluster);
    let keeper = Windows::default();
    let sources = Sources::of(&keeper);
    sources.list_all(&client, 4).await.unwrap();

    let (everywhere, own) = WINDOWS.allowed(&client).await;
    let all = required(&keeper, &sources, false).into_iter().map(|required| required.right);
    let (local, global): (Vec<_>, Vec<_>) = all.partition(|right| right.namespace == Some(NAMESPACE));
    assert_eq!(everywhere, global.iter().map(right).collect());
    assert_eq!(own, local.iter().map(right).collect());

    let object = |kind: &str| {
        let group = KINDS.iter().find(|known| known.kind == kind).unwrap().group;
        let annotations = json!({ "reconcile.fluxcd.io/suspendedDuring": "@always" });
        let metadata = json!({ "name": "apps", "namespace": "default", "annotations": annotations });
        json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "metadata": metadata, "spec": {} })
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects.json");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [object("HelmRelease"), object("ResourceSet")] });
    std::fs::write(&path, list.to_string()).unwrap();
    cluster.kubectl(&["create", "-f", path.to_str().unwrap()]).unwrap();
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, WINDOWS.account).await.unwrap();
    let operator = start_operator(&kubeconfig, &["--keepers", "windows"]).await;
    operator.ready().await;
    operator.tells("apps", "InsideWindow suspend done").await;
    operator.tells("apps", "StateNotShown show done").await;

    let (refused, writes) = WINDOWS.refused(&cluster);
    assert!(writes > 3, "{writes}");
    assert!(refused.is_empty(), "{refused}");
}

/// All manifests can be applied to one cluster.
#[test]
fn the_manifests_share_nothing_but_the_namespace() {
    let things = |shipped: &Shipped| -> BTreeSet<String> {
        let path = format!("../../deploy/{}", shipped.file);
        let text = std::fs::read_to_string(path).unwrap();
        let objects: Vec<Value> = text.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect();
        objects.iter().map(|o| format!("{} {}", o["kind"], o["metadata"]["name"])).collect()
    };

    for [one, other] in [[NAMESPACES, ADDRESSES], [NAMESPACES, WINDOWS], [ADDRESSES, WINDOWS]] {
        let both: Vec<String> = things(&one).intersection(&things(&other)).cloned().collect();
        assert_eq!(both, [r#""Namespace" "caretaker-system""#]);
    }
}

#[tokio::test]
async fn with_exactly_these_rights_namespaces_sleep_wake_and_are_deleted() {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder().controllers()).await;
    let post = PostParams::default();
    create_namespace(&client, "shop", 2).await;
    let of = |name| Api::namespaced(client.clone(), name);
    of("shop").create(&post, &mk_stateful_set("shop", "db")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_replica_set("shop", "old")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_daemon_set("shop", "agent")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
    Api::all(client.clone()).create(&post, &mk_namespace("previews")).await.unwrap();
    let service = mk_service("previews", "pr-1").label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "previews").create(&post, &service).await.unwrap();
    let single = mk_deployment("previews", "pr-1").replicas(1).label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "previews").create(&post, &single).await.unwrap();
    let gone = mk_namespace("gone").label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::all(client.clone()).create(&post, &gone).await.unwrap();
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();

    let operator = start_operator(&kubeconfig, &[]).await;
    operator.ready().await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    use_namespace(&client, "shop").await;
    wait_for_state(&client, "shop", "normal", 2).await;
    until("the abandoned objects to be deleted", TIMEOUT, async || {
        let namespace = Api::<Namespace>::all(client.clone()).get_opt("gone").await.unwrap();
        let service = Api::<Service>::namespaced(client.clone(), "previews").get_opt("pr-1").await.unwrap();
        let left = (namespace.map(|ns| ns.status), service.map(|s| s.metadata), operator.story("pr-1"));
        Ok(if left.0.is_none() && left.1.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
    .unwrap();
    operator.tells("pr-1", "DeleteAfterElapsed delete done").await;

    let (refused, writes) = NAMESPACES.refused(&cluster);
    assert!(writes > 20, "{writes}");
    assert!(refused.is_empty(), "{refused}");
}

#[tokio::test]
async fn with_exactly_these_rights_addresses_and_endpoints_are_released() {
    let (cluster, client) = ADDRESSES.installed(Cluster::builder()).await;
    let (_, definitions, _) = caretaker(&cluster, &["addresses", "crds"]);
    let folder = tempfile::tempdir().unwrap();
    let apply = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        cluster.kubectl(&["apply", "-f", path.to_str().unwrap()]).unwrap();
    };
    apply("crds.yaml", &definitions);
    let established = ["crd/spiderippools.spiderpool.spidernet.io", "crd/spiderendpoints.spiderpool.spidernet.io"];
    cluster.kubectl(&[["wait", "--for=condition=Established"].as_slice(), &established].concat()).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("shop")).await.unwrap();
    apply("leaked.yaml", LEAKED);
    let status = json!({ "status": { "allocatedIPs": RECORD, "allocatedIPCount": 1 } }).to_string();
    cluster.kubectl(&["patch", "sp", "office", "--subresource=status", "--type=merge", "-p", &status]).unwrap();
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, ADDRESSES.account).await.unwrap();

    let operator = start_operator(&kubeconfig, &["--keepers", "addresses"]).await;
    operator.ready().await;
    operator.tells("10.6.0.10", "PodGone release done").await;
    operator.tells("old", "EndpointAbandoned delete-endpoint done").await;

    let (refused, writes) = ADDRESSES.refused(&cluster);
    assert!(writes > 3, "{writes}");
    assert!(refused.is_empty(), "{refused}");
}

#[tokio::test]
async fn with_exactly_these_rights_runtimes_are_created_and_retired() {
    let (cluster, client) = RUNTIMES.installed(Cluster::builder()).await;
    let (_, definitions, _) = caretaker(&cluster, &["runtimes", "crds"]);
    let folder = tempfile::tempdir().unwrap();
    let apply = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        cluster.kubectl(&["apply", "-f", path.to_str().unwrap()]).unwrap();
    };
    apply("crds.yaml", &definitions);
    let plurals = ["netreaches", "netdnses", "apphttphealthies"].map(|plural| format!("crd/{plural}.kdoctor.io"));
    let established: Vec<&str> = plurals.iter().map(String::as_str).collect();
    cluster.kubectl(&[["wait", "--for=condition=Established"].as_slice(), &established].concat()).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("kdoctor")).await.unwrap();
    apply("task.yaml", TASK);
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, RUNTIMES.account).await.unwrap();

    let operator = start_operator(&kubeconfig, &["--keepers", "runtimes"]).await;
    operator.ready().await;
    operator.tells("mesh", "NoRuntime create done").await;
    let patch = |object: &str, namespace: &[&str], status: Value| {
        let status = json!({ "status": status }).to_string();
        let args = ["patch", object, "--subresource=status", "--type=merge", "-p", &status];
        cluster.kubectl(&[args.as_slice(), namespace].concat()).unwrap();
    };
    let ready = json!({
        "observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0,
        "numberReady": 1,
    });
    patch("ds/kdoctor-netreach-mesh", &["-n", "kdoctor"], ready);
    operator.tells("mesh", "RuntimeReady record done").await;
    patch("netreach/mesh", &[], json!({ "finish": true }));
    operator.tells("mesh", "FinishedSeen record done").await;
    operator.tells("mesh", "Finished retire done").await;

    let (refused, writes) = RUNTIMES.refused(&cluster);
    assert!(writes > 6, "{writes}");
    assert!(refused.is_empty(), "{refused}");
}

const TASK: &str = "
apiVersion: v1
kind: ConfigMap
metadata: { name: kdoctor-app-config-template, namespace: kdoctor }
data:
  pod.yml: 'spec: {containers: [{name: agent, image: registry.example/agent}]}'
---
apiVersion: kdoctor.io/v1beta1
kind: NetReach
metadata: { name: mesh }
spec: { agentSpec: { terminationGracePeriodMinutes: 0 }, target: { ingress: true } }
";

const RECORD: &str = r#"{"10.6.0.10":{"pod":"shop/old","podUid":"0b7e2a52-6c43-4a87-9d58-30c5a7a10001"}}"#;

const LEAKED: &str = "
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderIPPool
metadata: { name: office }
spec: { subnet: 10.6.0.0/24, ipVersion: 4, ips: [10.6.0.10-10.6.0.19] }
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderEndpoint
metadata:
  namespace: shop
  name: old
  finalizers: [spiderpool.spidernet.io]
  ownerReferences: [{ apiVersion: v1, kind: Pod, name: old, uid: 0b7e2a52-6c43-4a87-9d58-30c5a7a10001 }]
status:
  current:
    uid: 0b7e2a52-6c43-4a87-9d58-30c5a7a10001
    node: node-a
    ips: [{ interface: eth0, ipv4: 10.6.0.10/24, ipv4Pool: office }]
  ownerControllerType: Pod
  ownerControllerName: old
";

/// What only deletions need: the verb, the claims that hold one back, and the pods.
fn only_for_deletions((_, resource, verb, _): &Right) -> bool {
    verb == "delete" || resource == "persistentvolumeclaims" || resource == "pods"
}

#[tokio::test]
async fn where_nothing_is_deleted_no_right_of_a_deletion_is_needed_and_namespaces_sleep_and_wake() {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder()).await;
    let (mut everywhere, own) = NAMESPACES.allowed(&client).await;
    everywhere.retain(|right| !only_for_deletions(right));
    NAMESPACES.allow(&client, &everywhere, &own).await;
    create_namespace(&client, "shop", 2).await;
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();
    let (_folder, config) = settings("keepers: {namespaces: {deletion: never}}");

    let operator = start_operator(&kubeconfig, &["--config", config.to_str().unwrap()]).await;

    operator.ready().await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    use_namespace(&client, "shop").await;
    wait_for_state(&client, "shop", "normal", 2).await;
    let policy = NamespacesPolicy { deletion: Deletion::Never, ..NamespacesPolicy::default() };
    let required = required_by(&Namespaces::new(policy, None), false);
    assert!(!required.iter().any(|required| only_for_deletions(&right(&required.right))), "{required:?}");
}

#[tokio::test]
async fn a_missing_verb_is_noticed_and_nothing_starts() {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder()).await;
    let (mut everywhere, own) = NAMESPACES.allowed(&client).await;
    let removed = ("apps".to_owned(), "statefulsets".to_owned(), "patch".to_owned(), None);
    assert!(everywhere.remove(&removed));
    NAMESPACES.allow(&client, &everywhere, &own).await;
    create_namespace(&client, "shop", 2).await;
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();

    let operator = start_operator(&kubeconfig, &[]).await;
    operator.waits_for("permissions: not allowed: patch statefulsets.apps").await;
    assert_eq!(state_of(&client, "shop").await, (String::new(), 2), "half a sleep is worse than none");

    everywhere.insert(removed);
    NAMESPACES.allow(&client, &everywhere, &own).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    operator.ready().await;
}

#[rstest]
#[case::claims("", "persistentvolumeclaims", "list")]
#[case::events("events.k8s.io", "events", "create")]
#[case::services("", "services", "watch")]
#[tokio::test]
async fn a_wake_waits_for_no_right_that_it_does_not_need(
    #[case] group: &str,
    #[case] resource: &str,
    #[case] verb: &'static str,
) {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder()).await;
    create_namespace(&client, "shop", 2).await;
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();
    let operator = start_operator(&kubeconfig, &[]).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    drop(operator);
    let (mut everywhere, own) = NAMESPACES.allowed(&client).await;
    assert!(everywhere.remove(&(group.to_owned(), resource.to_owned(), verb.to_owned(), None)));
    NAMESPACES.allow(&client, &everywhere, &own).await;

    let operator = start_operator(&kubeconfig, &[]).await;
    let missing = AccessRight::new(verb, group, resource);
    operator.waits_for(&format!("permissions: not allowed: {missing}")).await;
    use_namespace(&client, "shop").await;

    wait_for_state(&client, "shop", "normal", 2).await;
}

#[rstest]
#[case::of_namespaces(NAMESPACES)]
#[case::of_addresses(ADDRESSES)]
#[tokio::test]
async fn each_missing_verb_is_reported(#[case] shipped: Shipped) {
    let (cluster, client) = shipped.installed(Cluster::builder()).await;
    let (everywhere, own) = shipped.allowed(&client).await;
    let account = Client::try_from(cluster.account_config(NAMESPACE, shipped.account).await.unwrap()).unwrap();
    let required = (shipped.required)(false);

    for RequiredRight { right: missing, .. } in &required {
        let (mut less, mut less_own) = (everywhere.clone(), own.clone());
        let role = if missing.namespace.is_some() { &mut less_own } else { &mut less };
        assert!(role.remove(&right(missing)), "{missing}");
        shipped.allow(&client, &less, &less_own).await;

        until(&format!("{missing} to be reported"), TIMEOUT, async || {
            let found = denied(&account, required.clone()).await.unwrap();
            let only = matches!(found.as_slice(), [only] if only.right == *missing);
            Ok(if only { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
        .unwrap();
    }
}
