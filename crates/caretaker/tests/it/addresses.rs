//! The addresses keeper as a process, on a real API server.

use crate::support::addresses::{Pools, leaked, record};
use crate::support::operator::{TIMEOUT, caretaker, create_namespace, settings, start_operator, wait_for_state};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_test_programs::operator::{Operator, signal};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::until;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

const ONLY: [&str; 2] = ["--keepers", "addresses"];

/// The Event of a rule on an object of this kind.
async fn event(pools: &Pools, namespace: &str, kind: &str, reason: &str) -> Event {
    let events: Api<Event> = Api::namespaced(pools.client.clone(), namespace);
    until(&format!("an Event {reason} on a {kind}"), TIMEOUT, async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let matches = |e: &&Event| {
            e.reason.as_deref() == Some(reason) && e.regarding.as_ref().is_some_and(|r| r.kind.as_deref() == Some(kind))
        };
        Ok(all.iter().find(matches).cloned().ok_or_else(|| format!("{} others", all.len())))
    })
    .await
    .unwrap()
}

/// A node that answers. A pod whose node does not exist has certainly ended.
async fn ready_node(pools: &Pools, name: &str) {
    let nodes: Api<Node> = Api::all(pools.client.clone());
    let node =
        Node { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..Node::default() };
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
}

async fn as_user(pools: &Pools, user: &str, args: &[&str]) -> Operator {
    let kubeconfig = pools.cluster.user_kubeconfig(user, Some("system:masters")).unwrap();
    start_operator(&kubeconfig, args).await
}

#[tokio::test]
async fn a_leaked_address_is_released_and_a_used_one_stays() {
    let pools = Pools::new().await;
    let live = pools.pod("web", "10.0.0.1", 30).await;
    let gone = leaked(0).2;
    pools.endpoint("web", &live, "10.0.0.1").await;
    pools.endpoint("worker", &gone, "10.0.0.2").await;
    pools.pool("pool", &[record("10.0.0.1", "web", &live), record("10.0.0.2", "worker", &gone)]).await;

    let operator = start_operator(&pools.cluster.kubeconfig(), &ONLY).await;
    operator.ready().await;
    pools.holds("pool", &["10.0.0.1"]).await;
    pools.has_endpoints(&["web"]).await;

    operator.tells("worker", "EndpointAbandoned delete-endpoint done").await;
    assert_eq!(operator.story("10.0.0.2"), ["PodGone release done"]);
    let entry = operator.journal().into_iter().find(|line| line["name"] == "10.0.0.2").unwrap();
    assert_eq!(
        (&entry["keeper"], &entry["kind"], &entry["namespace"], &entry["uid"]),
        (&json!("addresses"), &json!("IP"), &json!(null), &json!(gone))
    );
    assert_eq!(entry["before"], json!({ "pool": "pool", "pod": "shop/worker", "podUid": gone }));
    let published = event(&pools, "default", "SpiderIPPool", "PodGone").await;
    assert_eq!(
        published.note.as_deref(),
        Some("released 10.0.0.2: there is no pod shop/worker; node-1 does not exist")
    );
    // The name that Spiderpool's dashboard asks for.
    assert_eq!(operator.metric("spiderpool_ip_gc_counts_total "), Some(1.0), "{}", operator.ask("/metrics").1);
    assert_eq!(operator.metric("spiderpool_ip_gc_failure_counts_total "), Some(0.0));
    let counted = r#"caretaker_actions_total{keeper="addresses",action="release",rule="PodGone",outcome="done"}"#;
    assert_eq!(operator.metric(counted), Some(1.0));
    assert_eq!(operator.metric(r#"caretaker_leader{keeper="addresses"}"#), Some(1.0));

    pools.force_delete("web").await;
    pools.holds("pool", &[]).await;
    pools.has_endpoints(&[]).await;
    assert_eq!(operator.metric("spiderpool_ip_gc_counts_total "), Some(2.0));
}

#[tokio::test]
async fn a_terminating_pod_keeps_its_address_until_its_time_is_over() {
    let pools = Pools::new().await;
    ready_node(&pools, "node-1").await;
    let (web, api) = (pools.pod("web", "10.0.0.1", 2).await, pools.pod("api", "10.0.0.2", 600).await);
    pools.pool("pool", &[record("10.0.0.1", "web", &web), record("10.0.0.2", "api", &api)]).await;
    let (_folder, config) = settings("keepers: {addresses: {extraGracePeriod: 1s}}");
    let operator =
        start_operator(&pools.cluster.kubeconfig(), &[&ONLY[..], &["--config", config.to_str().unwrap()]].concat())
            .await;
    operator.ready().await;

    pools.cluster.kubectl(&["-n", "shop", "delete", "pod", "web", "api", "--wait=false"]).unwrap();
    pools.holds("pool", &["10.0.0.2"]).await;

    operator.tells("10.0.0.1", "PodTerminating release done").await;
    let published = event(&pools, "shop", "Pod", "PodTerminating").await;
    assert_eq!(published.regarding.unwrap().name.as_deref(), Some("web"));
    let deletion = pools.api("Pod").get("web").await.unwrap().metadata.deletion_timestamp.unwrap().0;
    let line = operator.journal().into_iter().find(|line| line["name"] == "10.0.0.1").unwrap();
    let at: Timestamp = line["at"].as_str().unwrap().parse().unwrap();
    // Its grace period once more, the extra grace period, and the interval of Spiderpool's collector.
    let deadline = deletion + SignedDuration::from_secs(2 + 1 + 5);
    assert!(at > deadline, "{at} is not after {deadline}");
}

#[tokio::test]
async fn a_pod_that_is_removed_by_force_keeps_its_address_while_its_node_may_run_it() {
    let pools = Pools::new().await;
    ready_node(&pools, "node-1").await;
    let web = pools.pod("web", "10.0.0.1", 1).await;
    pools.endpoint("web", &web, "10.0.0.1").await;
    pools.pool("pool", &[record("10.0.0.1", "web", &web)]).await;
    let (_folder, config) = settings("keepers: {addresses: {extraGracePeriod: 1s}}");
    let args = [&ONLY[..], &["--config", config.to_str().unwrap()]].concat();
    let operator = start_operator(&pools.cluster.kubeconfig(), &args).await;
    operator.ready().await;

    let deleted = pools.api("Pod").delete("web", &DeleteParams::default().grace_period(0)).await.unwrap();
    let deletion = deleted.left().unwrap().metadata.deletion_timestamp.unwrap().0;
    // A leaked address of the same pool is released meanwhile.
    pools.add_record("pool", ("10.0.0.2", "worker", &leaked(0).2)).await;
    operator.tells("10.0.0.2", "PodGone release done").await;
    pools.holds("pool", &[]).await;
    pools.has_endpoints(&[]).await;

    operator.tells("10.0.0.1", "PodGone release done").await;
    let line = operator.journal().into_iter().find(|line| line["name"] == "10.0.0.1").unwrap();
    let at: Timestamp = line["at"].as_str().unwrap().parse().unwrap();
    let deadline = deletion + SignedDuration::from_secs(1 + 1 + 5);
    assert!(at > deadline, "{at} is not after {deadline}");
    assert!(line["because"].as_str().unwrap().contains("node-1 is Ready and may still run it"), "{line}");
}

#[tokio::test]
async fn a_dry_run_writes_nothing_at_all() {
    let pools = Pools::new().await;
    pools.pool("pool", &[leaked(0)]).await;
    pools.endpoint("worker", &leaked(7).2, "10.0.0.9").await;

    let mut operator = as_user(&pools, "dry", &[&ONLY[..], &["--dry-run"]].concat()).await;
    operator.tells("10.0.0.1", "PodGone release dry-run").await;
    operator.tells("worker", "EndpointAbandoned delete-endpoint dry-run").await;
    assert!(operator.stop().success());

    assert!(operator.journal().iter().all(|line| line["dryRun"] == true));
    let audit = pools.cluster.audit().unwrap().of("dry");
    assert!(audit.len() > 6, "it has read: {audit}");
    assert_eq!(audit.writes(), 0, "{audit}");
    assert_eq!(pools.records("pool").await.len(), 1);
}

#[tokio::test]
async fn a_flood_opens_the_breaker_until_a_person_resets_it() {
    let pools = Pools::new().await;
    let all: Vec<_> = (0..150).map(leaked).collect();
    pools.pool("pool", &all).await;
    pools.pool("other", &[record("10.0.9.1", "gone", &leaked(500).2)]).await;
    let operator = start_operator(&pools.cluster.kubeconfig(), &ONLY).await;
    operator.ready().await;

    operator.tells("caretaker-state", "BreakerOpen - refused").await;
    assert_eq!(operator.metric(r#"caretaker_breaker_open{keeper="addresses"}"#), Some(1.0));
    let (code, output, _) = caretaker(&pools.cluster, &["breaker", "show", "addresses"]);
    assert_eq!(code, 4);
    assert!(output.contains("151 of 151 subjects are due for release within 10m, the limit is 100"), "{output}");
    assert_eq!(pools.records("pool").await.len(), 150);
    let (_, plan, _) = caretaker(&pools.cluster, &["plan", "--keepers", "addresses"]);
    assert!(plan.contains("151 refused") && plan.contains("BreakerOpen"), "{plan}");

    let (code, output, _) = caretaker(&pools.cluster, &["breaker", "reset", "addresses"]);
    assert_eq!((code, output.contains("is closed")), (0, true), "{output}");
    pools.holds("pool", &[]).await;
    pools.holds("other", &[]).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_reported_once_and_left_alone() {
    let pools = Pools::new().await;
    let outside = pools.pod("outside", "10.7.0.1", 30).await;
    pools.pool("pool", &[record("10.7.0.1", "outside", &outside)]).await;
    pools.pool("broken", &[]).await;
    let text = json!({ "status": { "allocatedIPs": "{\"10.0.0.1\":", "allocatedIPCount": 3 } });
    let patch = Patch::Merge(&text);
    pools.api("SpiderIPPool").patch_status("broken", &PatchParams::default(), &patch).await.unwrap();
    pools.endpoint("worker", &leaked(1).2, "10.0.0.9").await;

    let operator = start_operator(&pools.cluster.kubeconfig(), &ONLY).await;
    operator.ready().await;
    operator.tells("broken", "UnreadablePool - refused").await;
    operator.tells("10.7.0.1", "IPOutsidePool - refused").await;
    let published = event(&pools, "default", "SpiderIPPool", "IPOutsidePool").await;
    assert_eq!(published.regarding.unwrap().name.as_deref(), Some("pool"));
    event(&pools, "default", "SpiderIPPool", "UnreadablePool").await;

    // Both objects change in another way; nothing is reported again.
    pools.cluster.kubectl(&["annotate", "spiderippool", "--all", "example.com/edited=yes"]).unwrap();
    pools.pool("third", &[leaked(2)]).await;
    pools.holds("third", &[]).await;
    assert_eq!(operator.story("broken"), ["UnreadablePool - refused"]);
    assert_eq!(operator.story("10.7.0.1"), ["IPOutsidePool - refused"]);
    let status = pools.api("SpiderIPPool").get("broken").await.unwrap().data["status"].clone();
    assert_eq!(status, text["status"], "it is untouched");
    assert_eq!(pools.endpoints().await, ["worker"], "a record of it may be in the pool that cannot be read");
}

#[tokio::test]
async fn a_standby_releases_what_is_certain_and_leaves_the_rest_to_the_leader() {
    let pools = Pools::new().await;
    let web = pools.pod("web", "10.0.0.1", 1).await;
    pools.pool("pool", &[record("10.0.0.1", "web", &web)]).await;
    // A Lease so long that no other replica leads within this test.
    let (_folder, config) =
        settings("{leaseDuration: 10m, keepers: {addresses: {extraGracePeriod: 1s, resyncInterval: 2s}}}");
    let args = [&ONLY[..], &["--config", config.to_str().unwrap()]].concat();
    let leader = as_user(&pools, "leader", &args).await;
    leader.ready().await;
    let standby = as_user(&pools, "standby", &args).await;
    standby.ready().await;
    signal("STOP", leader.id());

    pools.cluster.kubectl(&["-n", "shop", "delete", "pod", "web", "--wait=false"]).unwrap();
    pools.add_record("pool", ("10.0.0.2", "worker", &leaked(0).2)).await;
    pools.holds("pool", &["10.0.0.1"]).await;
    // The journal follows the write.
    standby.tells("10.0.0.2", "PodGone release done").await;
    assert_eq!(standby.story("10.0.0.2").len(), 1);
    // Another resync, long after the grace period of the Terminating pod has ended.
    let deletion = pools.api("Pod").get("web").await.unwrap().metadata.deletion_timestamp.unwrap().0;
    until("the time to be over", TIMEOUT, async || {
        let left = deletion + SignedDuration::from_secs(7) - Timestamp::now();
        Ok(if left.get_milliseconds() < 0 && left.get_seconds() <= 0 { Ok(()) } else { Err(left.to_string()) })
    })
    .await
    .unwrap();
    pools.add_record("pool", ("10.0.0.3", "worker", &leaked(1).2)).await;
    pools.holds("pool", &["10.0.0.1"]).await;

    signal("CONT", leader.id());
    pools.holds("pool", &[]).await;
    leader.tells("10.0.0.1", "PodTerminating release done").await;
    assert_eq!(leader.story("10.0.0.1").len(), 1);
    assert_eq!(standby.story("10.0.0.1"), Vec::<String>::new());
}

#[tokio::test]
async fn nothing_is_listed_again_on_a_timer() {
    let pools = Pools::new().await;
    let web = pools.pod("web", "10.0.0.1", 1).await;
    pools.pool("pool", &[record("10.0.0.1", "web", &web)]).await;
    let (_folder, config) = settings("{keepers: {addresses: {resyncInterval: 1s}}}");
    let args = [&ONLY[..], &["--config", config.to_str().unwrap()]].concat();
    let leader = as_user(&pools, "leader", &args).await;
    leader.ready().await;
    let standby = as_user(&pools, "standby", &args).await;
    standby.ready().await;

    let kinds = ["spiderippools", "spiderendpoints", "pods", "statefulsets", "nodes"];
    for user in ["leader", "standby"] {
        let calls = || pools.cluster.audit().unwrap().of(user);
        // A list that a busy API server refuses at the start is tried again.
        let at_the_start = kinds.map(|resource| calls().lists(resource, 500));
        assert!(at_the_start.iter().all(|lists| *lists > 0), "{user} {at_the_start:?}");
        let resyncs = || [calls().lists("spiderippools", 1_000), calls().lists("pods", 1)];
        let before = resyncs();
        until("several resyncs", TIMEOUT, async || {
            let after = resyncs();
            let several = before.iter().zip(after).all(|(before, after)| after >= before + 4);
            Ok(if several { Ok(()) } else { Err(format!("{before:?} {after:?}")) })
        })
        .await
        .unwrap();
        assert_eq!(kinds.map(|resource| calls().lists(resource, 500)), at_the_start, "{user} {kinds:?}");
    }
}

#[tokio::test]
async fn a_new_leader_rebuilds_every_deadline_from_the_objects() {
    let pools = Pools::new().await;
    let web = pools.pod("web", "10.0.0.1", 6).await;
    pools.pool("pool", &[record("10.0.0.1", "web", &web)]).await;
    let (_folder, config) = settings("{leaseDuration: 3s, keepers: {addresses: {extraGracePeriod: 1s}}}");
    let args = [&ONLY[..], &["--config", config.to_str().unwrap()]].concat();
    let mut first = as_user(&pools, "first", &args).await;
    first.ready().await;
    pools.cluster.kubectl(&["-n", "shop", "delete", "pod", "web", "--wait=false"]).unwrap();
    until("the first to wait for it", TIMEOUT, async || {
        let waiting = first.metric(r#"caretaker_subjects{keeper="addresses",next="wait"}"#);
        Ok(if waiting == Some(1.0) { Ok(()) } else { Err(format!("{waiting:?}")) })
    })
    .await
    .unwrap();

    first.kill();
    let second = as_user(&pools, "second", &args).await;
    pools.holds("pool", &[]).await;

    second.tells("10.0.0.1", "PodTerminating release done").await;
}

#[tokio::test]
async fn a_leader_that_is_killed_in_the_middle_is_followed_by_one_that_completes_it() {
    let pools = Pools::new().await;
    let live = pools.pod("web", "10.0.8.1", 30).await;
    pools.endpoint("web", &live, "10.0.8.1").await;
    let mut records: Vec<_> = (0..12).map(leaked).collect();
    for (ip, pod, uid) in &records {
        pools.endpoint(pod, uid, ip).await;
    }
    records.push(record("10.0.8.1", "web", &live));
    pools.pool("pool", &records).await;
    // Slow enough to be interrupted half way.
    let (_folder, config) = settings("{leaseDuration: 3s, keepers: {addresses: {callsPerSecond: 8}}}");
    let args = [&ONLY[..], &["--config", config.to_str().unwrap()]].concat();
    let mut first = as_user(&pools, "first", &args).await;
    until("some endpoints to be gone", TIMEOUT, async || {
        let left = pools.endpoints().await.len();
        Ok(if left < 12 { Ok(()) } else { Err(format!("{left} are there")) })
    })
    .await
    .unwrap();

    first.kill();
    assert!(pools.endpoints().await.len() > 1, "it was interrupted in the middle");
    let _second = as_user(&pools, "second", &args).await;

    pools.has_endpoints(&["web"]).await;
    pools.holds("pool", &["10.0.8.1"]).await;
}

#[tokio::test]
async fn two_keepers_work_side_by_side() {
    let pools = Pools::new().await;
    pools.pool("pool", &[leaked(0)]).await;
    Api::all(pools.client.clone()).create(&PostParams::default(), &mk_namespace("bank")).await.unwrap();
    create_namespace(&pools.client, "office", 2).await;

    let mut operator = start_operator(&pools.cluster.kubeconfig(), &["--keepers", "namespaces,addresses"]).await;
    operator.ready().await;
    pools.holds("pool", &[]).await;
    wait_for_state(&pools.client, "office", "sleep", 0).await;

    let (_, ready) = operator.ask("/readyz");
    assert!(
        ready.contains("ok       namespaces: lease\n") && ready.contains("ok       addresses: watching pods\n"),
        "{ready}"
    );
    for keeper in ["namespaces", "addresses"] {
        assert_eq!(operator.metric(&format!("caretaker_leader{{keeper=\"{keeper}\"}}")), Some(1.0));
    }
    assert!(operator.stop().success());
    let leases = pools.cluster.kubectl(&["-n", "caretaker-system", "get", "leases", "-o", "name"]).unwrap();
    assert_eq!(leases.lines().count(), 2, "{leases}");
}

/// Writes Spiderpool's settings.
fn configure(pools: &Pools, conf: &str) {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "kube-system", "name": "spiderpool-conf" },
        "data": { "conf.yml": conf },
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("conf.json");
    std::fs::write(&file, object.to_string()).unwrap();
    pools.cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
}

#[tokio::test]
async fn where_spiderpool_binds_addresses_at_a_provider_nothing_is_released_and_the_pool_says_why() {
    let pools = Pools::new().await;
    configure(&pools, "enableStatefulSet: true\niaasNetworkProvider:\n  serverUrl: https://iaas.example.com\n");
    pools.pool("pool", &[leaked(0)]).await;
    pools.endpoint("worker", &leaked(7).2, "10.0.0.9").await;

    let operator = as_user(&pools, "provided", &ONLY).await;
    operator.ready().await;
    operator.tells("pool", "ProviderAddresses - refused").await;
    let published = event(&pools, "default", "SpiderIPPool", "ProviderAddresses").await;
    let note = published.note.unwrap();
    assert!(note.contains("kube-system/spiderpool-conf sets iaasNetworkProvider.serverUrl"), "{note}");
    let (_, plan, _) = caretaker(&pools.cluster, &["plan", "--keepers", "addresses"]);
    assert!(plan.contains("ProviderAddresses") && plan.contains("0 to act on now"), "{plan}");
    let written = pools.cluster.audit().unwrap().of("provided");
    let written = written
        .only(|call| call.resource.starts_with("spider") && !["get", "list", "watch"].contains(&call.verb.as_str()));
    assert!(written.is_empty(), "{written}");

    // As soon as there is no provider, what leaked is released.
    configure(&pools, "iaasNetworkProvider:\n  serverUrl: \"\"\n");
    pools.holds("pool", &[]).await;
    pools.has_endpoints(&[]).await;
}

#[tokio::test]
async fn addresses_of_a_stateful_set_are_retained_only_if_spiderpool_is_told_to() {
    let pools = Pools::new().await;
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "replicas": 2, "serviceName": "db", "selector": { "matchLabels": { "app": "db" } },
            "template": {
                "metadata": { "labels": { "app": "db" } },
                "spec": { "containers": [{ "name": "c", "image": "example.com/none" }] },
            },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    pools.api("StatefulSet").create(&PostParams::default(), &set).await.unwrap();
    configure(&pools, "enableStatefulSet: true\n");
    pools.pool("pool", &[record("10.0.0.1", "db-0", &leaked(0).2), record("10.0.0.2", "gone", &leaked(1).2)]).await;
    let operator = start_operator(&pools.cluster.kubeconfig(), &ONLY).await;
    operator.ready().await;
    pools.holds("pool", &["10.0.0.1"]).await;

    configure(&pools, "enableStatefulSet: false\n");
    pools.holds("pool", &[]).await;

    operator.tells("10.0.0.1", "PodGone release done").await;
}
