//! Activity on a real node: controllers and pods keep nothing awake, and an open exec does.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::audit::{AuditedCluster, User};
use crate::support::operator;
use crate::support::operator::{Operator, TIMEOUT, state_of, wait_for_state};
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::make::{Said, mk_binding_to_account, mk_cluster_role, mk_pod};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The tests themselves read as `admin`, which does not count as use here.
const SETTINGS: &str = "
keepers:
  namespaces:
    activity:
      writeInterval: 1s
      canaryInterval: 10s
      ignore:
        users: [admin]
";

/// Everything falls asleep after so much idle time.
const PERIOD: Duration = Duration::from_secs(6);

fn period() -> String {
    format!("{}s", PERIOD.as_secs())
}

pub fn tests() -> Vec<Trial> {
    let controllers = "controllers_and_pods_keep_nothing_awake";
    vec![
        test(controllers, Need::Node, controllers_and_pods_keep_nothing_awake),
        test("an_open_exec_is_use_until_it_ends_and_pods_report_it", Need::Node, an_open_exec_is_use_until_it_ends),
    ]
}

/// A namespace with running pods, and an operator that receives all audit events.
async fn prepared() -> Result<(AuditedCluster, Operator), Box<dyn std::error::Error>> {
    let audited = AuditedCluster::receiving_all(Cluster::builder().node(), SETTINGS).await;
    audited.create_namespace("shop", &period()).await;
    let operator = audited.operator().await;
    Ok((audited, operator))
}

/// Waits until so many pods of the Deployment run, and no others of it exist.
async fn runs(client: &Client, count: usize) -> caretaker_testkit::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    until(&format!("{count} pods to run"), TIMEOUT, async || {
        let mut all = pods.list(&ListParams::default()).await.unwrap().items;
        all.retain(|pod| pod.metadata.name.as_deref() != Some(WORKER));
        let phases: Vec<String> = all.into_iter().filter_map(|pod| pod.status?.phase).collect();
        let fine = phases.len() == count && phases.iter().all(|phase| phase == "Running");
        Ok(if fine { Ok(()) } else { Err(format!("{phases:?}")) })
    })
    .await
}

/// The pod whose token the test uses. It stays while the Deployment is scaled to zero.
const WORKER: &str = "worker";

/// What a pod with its own service account does: it reads, writes, and takes part in an election.
async fn work(client: Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "shop");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "shop");
    let pods: Api<Pod> = Api::namespaced(client, "shop");
    let apply = PatchParams::apply("worker").force();
    for turn in 0_u64.. {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "own" }, "data": { "turn": turn.to_string() } });
        let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "own" }, "spec": { "leaseTransitions": turn } });
        let _ = maps.patch("own", &apply, &Patch::Apply(&map)).await;
        let _ = leases.patch("own", &apply, &Patch::Apply(&lease)).await;
        let _ = pods.list(&ListParams::default()).await;
        tokio::time::sleep(Duration::from_millis(100 + turn * 37 % 400)).await;
    }
}

/// What did not count for the namespace, by reason.
fn ignored(operator: &Operator) -> Value {
    let activity: Value = serde_json::from_str(&operator.ask("/activity").1).unwrap_or_default();
    let shop = activity.as_array().and_then(|all| all.iter().find(|one| one["namespace"] == "shop"));
    shop.map(|shop| shop["ignored"].clone()).unwrap_or_default()
}

async fn controllers_and_pods_keep_nothing_awake() -> Outcome {
    let (audited, operator) = prepared().await?;
    let post = PostParams::default();
    let role = mk_cluster_role("worker", &[("*", "*", "*")]);
    Api::<ClusterRole>::all(audited.client.clone()).create(&post, &role).await?;
    let binding = mk_binding_to_account("worker", "shop", "default");
    Api::<ClusterRoleBinding>::all(audited.client.clone()).create(&post, &binding).await?;
    let worker = mk_pod("shop", WORKER);
    let worker = Api::<Pod>::namespaced(audited.client.clone(), "shop").create(&post, &worker).await?;
    let account = Client::try_from(audited.cluster().pod_config(&worker).await?)?;
    let busy = tokio::spawn(work(account));
    let ann = audited.user("ann").await;

    // Twice it falls asleep while its controllers, its kubelet and one of its pods make requests, and only ann
    // wakes it.
    for _ in 0..2 {
        wait_for_state(&audited.client, "shop", "sleep", 0).await;
        runs(&audited.client, 0).await?;
        audited.set_sleep_after("shop", "1h").await;
        ann.kubectl(&["get", "pods", "-n", "shop"]);
        wait_for_state(&audited.client, "shop", "normal", 2).await;
        runs(&audited.client, 2).await?;
        audited.set_sleep_after("shop", &period()).await;
    }
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    let began = Instant::now();
    while began.elapsed() < 2 * PERIOD {
        assert_eq!(state_of(&audited.client, "shop").await.0, "sleep", "{:?}", operator.story("shop"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    busy.abort();

    let ignored = ignored(&operator);
    for reason in ["ignored-user", "own-serviceaccount"] {
        assert!(ignored[reason]["count"].as_u64() > Some(20), "{ignored}");
    }
    let audit = audited.cluster().audit()?;
    let own = "system:serviceaccount:caretaker-system:caretaker";
    for user in ["system:node:", "system:serviceaccount:kube-system:", "system:serviceaccount:shop:default", own] {
        let calls = audit.only(|call| call.user.starts_with(user) && call.namespace == "shop");
        assert!(!calls.is_empty(), "{user} made no request, so the test shows nothing");
    }
    let wakes = operator.story("shop").iter().filter(|line| line.contains("wake")).count();
    assert_eq!(wakes, 2);
    Ok(())
}

async fn an_open_exec_is_use_until_it_ends() -> Outcome {
    let (audited, operator) = prepared().await?;
    let ann = audited.user("ann").await;
    audited.set_sleep_after("shop", "1h").await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    runs(&audited.client, 2).await?;

    let exec = start(&ann, &["exec", "-n", "shop", "-i", "deployment/web", "--", "cat"]);
    until("the session to be received", TIMEOUT, async || {
        let activity: Value = serde_json::from_str(&operator.ask("/activity").1).unwrap_or_default();
        let is_open = |one: &Value| one["open"].as_array().is_some_and(|open| !open.is_empty());
        let open = activity.as_array().is_some_and(|all| all.iter().any(is_open));
        Ok(if open { Ok(()) } else { Err(activity.to_string()) })
    })
    .await?;
    audited.set_sleep_after("shop", &period()).await;
    let began = Instant::now();
    while began.elapsed() < 3 * PERIOD {
        assert_eq!(state_of(&audited.client, "shop").await.1, 2, "{:?}", operator.story("shop"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (_, explained, _) = operator::caretaker(audited.cluster(), &["explain", "ns/shop"]);
    assert!(explained.contains("in use: a session is open since"), "{explained}");
    drop(exec);

    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    pods_are_asked_through_the_api_server(&audited, &operator).await
}

/// The program does not fit into the image of this node. So the pod serves the response that the operator
/// gave a moment before.
async fn pods_are_asked_through_the_api_server(audited: &AuditedCluster, operator: &Operator) -> Outcome {
    let response = until("the request to be received", TIMEOUT, async || {
        let (_, response) = operator.ask("/activity");
        Ok(if response.contains("\"user\":\"ann\"") { Ok(response) } else { Err(response) })
    })
    .await?;
    let mut pod = mk_pod("caretaker-system", "caretaker-1").label("app.kubernetes.io/name", "caretaker");
    let serve = format!("echo '{response}' > /data/activity && httpd -f -p 8080 -h /data");
    let spec = pod.spec.as_mut().unwrap();
    // The namespace admits nothing that asks for more.
    let profile = json!({ "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } });
    spec.security_context = Some(serde_json::from_value(profile)?);
    spec.volumes = Some(vec![serde_json::from_value(json!({ "name": "data", "emptyDir": {} }))?]);
    let container = &mut spec.containers[0];
    container.command = Some(vec!["sh".to_owned(), "-c".to_owned(), serve]);
    let rights = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    container.security_context = Some(serde_json::from_value(rights)?);
    container.volume_mounts = Some(vec![serde_json::from_value(json!({ "name": "data", "mountPath": "/data" }))?]);
    Api::<Pod>::namespaced(audited.client.clone(), "caretaker-system").create(&PostParams::default(), &pod).await?;

    until("the pod to be asked", TIMEOUT, async || {
        let (code, text, notes) = operator::caretaker(audited.cluster(), &["activity", "-n", "shop"]);
        let asked = text.contains(" by ann with kubectl/") && notes.is_empty();
        Ok(if code == 0 && asked { Ok(()) } else { Err(format!("{text}{notes}")) })
    })
    .await?;
    Ok(())
}

/// Starts a kubectl of a user that runs until it is dropped.
fn start(user: &User, args: &[&str]) -> RunningProcess {
    let mut command = Command::new(&user.kubectl);
    command.arg("--kubeconfig").arg(&user.kubeconfig).args(args);
    RunningProcess(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
}

/// A process that ends when this is dropped.
struct RunningProcess(Child);

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
