//! People who look, and people who put to sleep and wake: with the roles that are shipped for them, and with `view`.

use std::collections::BTreeSet;

use crate::support::foreign_kinds::{add_custom_workloads, serve_flux};
use crate::support::operator::{TIMEOUT, caretaker_as as run, serve_kinds};
use crate::support::role_rights::rights;
use caretaker_testkit::audit::AuditLog;
use caretaker_testkit::make::{
    Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_pod, mk_replica_set, mk_stateful_set,
};
use caretaker_testkit::{Cluster, until};
use caretaker_windows::api::KINDS;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rstest::rstest;
use serde_json::json;

/// A cluster with a namespace, and with a ClusterRole bound to a user of this name.
async fn bound(user: &str, role: &str) -> (Cluster, Client) {
    // A controller gathers the rights of `view`.
    let builder = if role == "view" { Cluster::builder().controllers() } else { Cluster::builder() };
    let cluster = builder.start().await.unwrap();
    cluster.namespace("shop").await.unwrap();
    cluster.namespace("caretaker-system").await.unwrap();
    let client = cluster.client().await.unwrap();
    let web = mk_deployment("shop", "web").replicas(2);
    Api::namespaced(client.clone(), "shop").create(&PostParams::default(), &web).await.unwrap();
    let people = "../../deploy/people.yaml";
    cluster.kubectl(&["apply", "-f", people]).unwrap();
    let named = "--from-literal=config.yaml=keepers: {runtimes: {namespace: kdoctor}}";
    cluster.kubectl(&["-n", "caretaker-system", "create", "configmap", "caretaker-config", named]).unwrap();
    // The API server makes its own roles after it is ready.
    until("the role to exist", TIMEOUT, async || {
        let found = Api::<ClusterRole>::all(client.clone()).get_opt(role).await.unwrap();
        let rules = found.and_then(|role| role.rules).filter(|rules| !rules.is_empty());
        Ok(rules.map(drop).ok_or_else(|| format!("no rules in {role}")))
    })
    .await
    .unwrap();
    let (user, role) = (format!("--user={user}"), format!("--clusterrole={role}"));
    cluster.kubectl(&["create", "clusterrolebinding", "people", &user, &role]).unwrap();
    (cluster, client)
}

/// Commands that only read, each with something that it shows.
const READING: [(&[&str], &str); 8] = [
    (&["plan", "-o", "wide", "-n", "shop", "--all"], "shop"),
    (&["explain", "ns/shop"], "shop"),
    (&["simulate", "--for", "1d"], "subjects"),
    (&["activity"], ""),
    (&["breaker"], "the breaker of namespaces is closed"),
    (&["get", "all", "-A"], ""),
    (&["windows", "report"], ""),
    (&["runtimes"], ""),
];

#[tokio::test]
async fn a_user_bound_to_view_can_run_every_command_that_reads() {
    let (cluster, _client) = bound("ann", "view").await;
    serve_flux(&cluster);
    // Flux itself lets everybody with `view` see its objects.
    let kinds: Vec<String> = KINDS.iter().map(|kind| format!("{}.{}", kind.aliases[1], kind.group)).collect();
    let kinds = format!("--resource={}", kinds.join(","));
    cluster.kubectl(&["create", "clusterrole", "flux-view", "--verb=list", &kinds]).unwrap();
    cluster.kubectl(&["create", "clusterrolebinding", "flux-view", "--user=ann", "--clusterrole=flux-view"]).unwrap();
    let ann = cluster.user_kubeconfig("ann", None).unwrap();

    for (args, shown) in READING {
        let (code, output, errors) = run(&ann, args);
        assert!([0, 3].contains(&code), "{args:?} ended with {code}: {errors}");
        assert!(output.contains(shown), "{args:?}: {output}{errors}");
    }

    // KEDA is not installed: nobody needs a right to it. What protects namespaces exists, and ann may not see it.
    let (code, _, errors) = run(&ann, &["plan"]);
    assert_eq!(code, 3, "{errors}");
    assert!(!errors.contains("scaledobjects"), "{errors}");
    let missing = "this user may not list validatingwebhookconfigurations.admissionregistration.k8s.io, ";
    assert!(
        errors.contains(missing) && errors.contains("whether the control plane depends on a namespace"),
        "{errors}"
    );
}

/// What somebody called, as rights, and whether something was refused.
fn called(audit: &AuditLog) -> (BTreeSet<(String, String)>, AuditLog) {
    let is_resource = |resource: &str| !resource.starts_with('/') && !resource.starts_with("self");
    let calls = audit.calls().iter().filter(|call| is_resource(&call.resource));
    let calls = calls.map(|call| (call.verb.clone(), call.resource.clone())).collect();
    (calls, audit.only(|call| call.code == Some(403)))
}

/// Verb and resource of everything that a role allows, without watches.
async fn allowed(client: &Client, role: &str) -> BTreeSet<(String, String)> {
    let role = Api::<ClusterRole>::all(client.clone()).get(role).await.unwrap();
    let all = rights(role.rules.unwrap()).into_iter();
    all.filter(|(_, _, verb, _)| verb != "watch").map(|(_, resource, verb, _)| (verb, resource)).collect()
}

#[tokio::test]
async fn the_role_of_a_reader_allows_what_the_commands_that_read_call_and_nothing_else() {
    let (cluster, client) = bound("rita", "caretaker-reader").await;
    serve_flux(&cluster);
    serve_kinds(&cluster, "addresses");
    serve_kinds(&cluster, "runtimes");
    let rita = cluster.user_kubeconfig("rita", None).unwrap();
    // Where something sleeps, a plan looks for an operator that wakes it.
    mark_asleep(&cluster, "shop");
    suspend_as_caretaker(&cluster).await;

    for (args, shown) in READING {
        let (code, output, errors) = run(&rita, args);
        assert_eq!(code, 0, "{args:?}: {output}{errors}");
        assert!(!errors.contains("may not list") && !errors.contains("forbidden"), "{args:?}: {errors}");
        assert!(output.contains(shown), "{args:?}: {output}");
    }
    for args in [&["addresses", "report"][..], &["plan", "--keepers", "containers"]] {
        run(&rita, args);
    }
    // Without an address it asks for the Service, which does not exist here.
    run(&rita, &["audit-config"]);

    let (called, refused) = called(&cluster.audit().unwrap().of("rita"));
    // The reports of nodes are all the ConfigMaps of one namespace: a Role of its own comes with the keeper of containers.
    let refused = refused.only(|call| call.namespace != "caretaker-node");
    assert!(refused.is_empty(), "{refused}");
    let allowed = allowed(&client, "caretaker-reader").await;
    assert_eq!(allowed.difference(&called).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "rights nobody uses");
    assert_eq!(
        called.difference(&allowed).collect::<Vec<_>>(),
        Vec::<&(String, String)>::new(),
        "calls without a right"
    );
}

fn mark_asleep(cluster: &Cluster, namespace: &str) {
    cluster.kubectl(&["label", "namespace", namespace, "sleepmode.kubefree.com/state=sleep"]).unwrap();
}

/// Makes a Kustomization that the keeper of windows has suspended.
async fn suspend_as_caretaker(cluster: &Cluster) {
    let client = cluster.client().await.unwrap();
    let kind = KINDS.iter().find(|kind| kind.kind == "Kustomization").unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group, "v1", kind.kind));
    let objects: Api<DynamicObject> = Api::namespaced_with(client, "shop", &resource);
    let object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": "apps" },
        "spec": { "interval": "1h", "prune": true, "sourceRef": { "kind": "GitRepository", "name": "apps" } },
    });
    let object = serde_json::from_value(object).unwrap();
    objects.create(&PostParams::default(), &object).await.unwrap();
    let suspended = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": "apps" },
        "spec": { "suspend": true },
    });
    let params = PatchParams::apply(caretaker_windows::api::FIELD_MANAGER);
    objects.patch("apps", &params, &Patch::Apply(suspended)).await.unwrap();
}

/// What a dry run, or an operator that is gone, leaves asleep; and a Lease as a leader of a keeper holds it.
#[tokio::test]
async fn a_plan_counts_what_sleeps_and_is_suspended_while_no_operator_is_live() {
    let (cluster, client) = bound("rita", "caretaker-reader").await;
    serve_flux(&cluster);
    let rita = cluster.user_kubeconfig("rita", None).unwrap();
    let notes = || -> Vec<String> {
        let (code, _, errors) = run(&rita, &["plan", "--keepers", "namespaces,windows"]);
        assert_eq!(code, 0, "{errors}");
        let words = errors.split_whitespace().collect::<Vec<_>>().join(" ");
        let notes = [
            "1 subject sleeps, and no live operator wakes it",
            "1 object of Flux is suspended, and no live operator resumes it",
        ];
        notes.into_iter().filter(|note| words.contains(note)).map(str::to_owned).collect()
    };
    assert_eq!(notes(), [""; 0]);

    mark_asleep(&cluster, "shop");
    suspend_as_caretaker(&cluster).await;
    assert_eq!(notes().len(), 2);

    let leases: Api<Lease> = Api::namespaced(client, "caretaker-system");
    for keeper in ["namespaces", "windows"] {
        let lease = json!({
            "metadata": { "name": format!("caretaker-{keeper}") },
            "spec": { "holderIdentity": "one", "leaseDurationSeconds": 3600, "renewTime": MicroTime(Timestamp::now()) },
        });
        leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    }
    assert_eq!(notes(), [""; 0]);
}

/// Port-forward reaches every port of a pod: that is more than reading.
#[tokio::test]
async fn a_reader_without_port_forward_sees_what_namespaces_carry_and_is_told_that_part_is_unread() {
    let (cluster, client) = bound("rita", "caretaker-reader").await;
    let rita = cluster.user_kubeconfig("rita", None).unwrap();
    let (code, _, errors) = run(&rita, &["activity"]);
    assert_eq!(code, 0, "without an operator nothing is unread: {errors}");
    let pod = mk_pod("caretaker-system", "caretaker-1").label("app.kubernetes.io/name", "caretaker");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "caretaker-system");
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    pods.patch_status("caretaker-1", &PatchParams::default(), &running).await.unwrap();

    let (code, _, errors) = run(&rita, &["activity"]);

    assert_eq!(code, 3, "{errors}");
    let said = "create pods/portforward in caretaker-system, which is more than reading and not in the ClusterRole";
    assert!(errors.contains(said), "{errors}");
}

/// Where no node reports nothing is missing; where they report, a plan without their containers is not everything.
#[tokio::test]
async fn without_the_right_to_the_reports_of_nodes_part_of_a_plan_is_unread_where_there_are_reports() {
    let (cluster, _client) = bound("rita", "caretaker-reader").await;
    let rita = cluster.user_kubeconfig("rita", None).unwrap();

    let (code, _, errors) = run(&rita, &["plan"]);
    assert_eq!((code, errors.contains("reports of nodes")), (0, false), "{errors}");
    cluster.namespace("caretaker-node").await.unwrap();
    let (code, _, errors) = run(&rita, &["plan"]);
    assert_eq!((code, errors.contains("reports of nodes")), (3, true), "{errors}");

    // The Role that comes with the keeper of containers allows it.
    let manifest = std::fs::read_to_string("../../deploy/containers.yaml").unwrap();
    let is_role = |text: &&str| text.contains("kind: Role\n") && text.contains("name: caretaker-reader\n");
    let role = manifest.split("\n---\n").find(is_role).expect("a Role for readers");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("role.yaml");
    std::fs::write(&path, role).unwrap();
    cluster.kubectl(&["apply", "-f", path.to_str().unwrap()]).unwrap();
    let namespace = ["-n", "caretaker-node"];
    let bind = ["create", "rolebinding", "readers", "--role=caretaker-reader", "--user=rita"];
    cluster.kubectl(&[namespace.as_slice(), &bind].concat()).unwrap();
    let (code, _, errors) = run(&rita, &["plan"]);
    assert_eq!((code, errors.contains("reports of nodes")), (0, false), "{errors}");
    let calls = cluster.audit().unwrap().of("rita").only(|call| call.namespace == "caretaker-node");
    assert_eq!(
        (calls.count("list", "configmaps"), calls.len()),
        (3, 3),
        "the right that the Role grants, and no other"
    );
}

#[tokio::test]
async fn with_exactly_the_role_of_a_sleeper_a_namespace_is_put_to_sleep_and_woken() {
    let (cluster, client) = bound("sam", "caretaker-sleeper").await;
    let post = PostParams::default();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_stateful_set("shop", "db")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_replica_set("shop", "old")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_daemon_set("shop", "agent")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
    add_custom_workloads(&cluster, "shop");
    let sam = cluster.user_kubeconfig("sam", None).unwrap();

    for command in ["sleep", "wake"] {
        let (code, _, errors) = run(&sam, &[command, "shop"]);
        assert_eq!((code, errors.as_str()), (0, ""), "{command}");
    }
    assert_eq!(run(&sam, &["wake", "shopp"]).0, 1, "which lists namespaces for a suggestion");

    let (called, refused) = called(&cluster.audit().unwrap().of("sam"));
    assert!(refused.is_empty(), "{refused}");
    let allowed = allowed(&client, "caretaker-sleeper").await;
    // A workload is read again where somebody else writes it at that moment, and where kubefree parked it.
    let reads_again = |(verb, resource): &&(String, String)| {
        verb == "get" && !["namespaces", "configmaps"].contains(&resource.as_str())
    };
    let unused: Vec<_> = allowed.difference(&called).filter(|right| !reads_again(right)).collect();
    assert_eq!(unused, Vec::<&(String, String)>::new(), "rights nobody uses");
}

#[rstest]
#[case::a_reader("caretaker-reader", &["sleep", "shop"])]
#[case::a_sleeper("caretaker-sleeper", &["breaker", "reset", "namespaces"])]
#[tokio::test]
async fn a_role_does_not_allow_more_than_it_says(#[case] role: &str, #[case] args: &[&str]) {
    let (cluster, _client) = bound("otto", role).await;
    let state = r#"{"open":{"since":"2026-03-01T00:00:00Z","because":"30 of 40"}}"#;
    let literal = format!("--from-literal=namespaces={state}");
    cluster.kubectl(&["-n", "caretaker-system", "create", "configmap", "caretaker-state", &literal]).unwrap();

    let (code, _, errors) = run(&cluster.user_kubeconfig("otto", None).unwrap(), args);

    assert_eq!(code, 1);
    assert!(errors.contains("forbidden"), "{errors}");
}
