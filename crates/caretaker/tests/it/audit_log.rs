//! Activity from the audit log of a real API server, which rotates it while it is followed.

use std::fs;
use std::path::Path;

use crate::support::audit::SETTINGS;
use crate::support::operator::{
    Operator, SLEEP_AFTER, TIMEOUT, create_namespace, merge, settings, start_operator, wait_for_state,
};
use caretaker_testkit::make::{mk_binding_to_user, mk_cluster_role};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// The log and its rotated files.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| {
        path.file_name().unwrap().to_string_lossy().starts_with("audit") && path.extension().is_some_and(|e| e == "log")
    })
    .collect()
}

fn lines(folder: &Path) -> usize {
    files(folder).iter().map(|path| fs::read(path).unwrap().iter().filter(|byte| **byte == b'\n').count()).sum()
}

/// The number of all events that were received, counted or not.
fn received(operator: &Operator) -> usize {
    let (_, metrics) = operator.ask("/metrics");
    let events = metrics.lines().filter_map(|line| line.strip_prefix("caretaker_audit_events_total{"));
    events.filter_map(|line| line.split(' ').nth(1)?.parse::<usize>().ok()).sum()
}

async fn ann(cluster: &Cluster, admin: &Client) -> Client {
    let post = PostParams::default();
    let role = mk_cluster_role("ann", &[("*", "*", "*")]);
    Api::<ClusterRole>::all(admin.clone()).create(&post, &role).await.unwrap();
    Api::<ClusterRoleBinding>::all(admin.clone()).create(&post, &mk_binding_to_user("ann", "ann")).await.unwrap();
    Client::try_from(cluster.user_config("ann", None).await.unwrap()).unwrap()
}

/// Makes requests until the log was rotated so many more times.
async fn work(client: &Client, folder: &Path, rotations: usize) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "busy");
    let before = files(folder).len();
    for turn in 0.. {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "x" }, "data": { "turn": format!("{turn}") } });
        maps.patch("x", &PatchParams::apply("ann"), &Patch::Apply(map)).await.unwrap();
        if turn % 50 == 0 && files(folder).len() >= before + rotations {
            return;
        }
        assert!(turn < 20_000, "it does not rotate");
    }
}

#[tokio::test]
async fn a_log_that_rotates_is_followed_line_by_line_also_over_a_restart() {
    // A megabyte is the smallest size at which it rotates.
    let cluster = Cluster::builder().api_server_flag("--audit-log-maxsize=1").start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let post = PostParams::default();
    for name in ["caretaker-system", "busy"] {
        let namespace = caretaker_testkit::make::mk_namespace(name);
        Api::all(client.clone()).create(&post, &namespace).await.unwrap();
    }
    let ann = ann(&cluster, &client).await;
    let (folder, config) = settings(SETTINGS);
    let (log, position) = (cluster.folder().join("audit.log"), folder.path().join("position"));
    let args = ["--config", "--audit-log", "--audit-position"];
    let paths = [&config, &log, &position].map(|path| path.display().to_string());
    let args: Vec<&str> = args.iter().zip(&paths).flat_map(|(flag, path)| [*flag, path.as_str()]).collect();

    let mut first = start_operator(&cluster.kubeconfig(), &args).await;
    first.ready().await;
    create_namespace(&client, "shop", 2).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    work(&ann, cluster.folder(), 3).await;
    until("every line to be received", TIMEOUT, async || {
        let (lines, received) = (lines(cluster.folder()), received(&first));
        Ok(if lines == received { Ok(()) } else { Err(format!("{received} of {lines}")) })
    })
    .await
    .unwrap();
    assert!(files(cluster.folder()).len() >= 4);

    // While the log is not read, ann uses the sleeping namespace, and the log is rotated away.
    first.kill();
    // Once awake it stays awake: a namespace that is awake for seconds only may be missed on a busy machine.
    merge(&client, "shop", json!({ "metadata": { "labels": { SLEEP_AFTER: "1h" } } })).await;
    Api::<ConfigMap>::namespaced(ann.clone(), "shop").list(&ListParams::default()).await.unwrap();
    work(&ann, cluster.folder(), 2).await;
    let second = start_operator(&cluster.kubeconfig(), &args).await;

    wait_for_state(&client, "shop", "normal", 2).await;
    second.tells("shop", "WokenByActivity wake done").await;
    let woken = second.journal().into_iter().find(|line| line["action"] == "wake").unwrap();
    assert!(woken["because"].as_str().unwrap().contains("(ListConfigmaps by ann)"), "{woken}");
}
