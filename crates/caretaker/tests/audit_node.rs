//! Activity on a real node: what the machinery does keeps nothing awake, and an open exec does.

#[path = "operator/mod.rs"]
mod operator;
#[path = "audit/mod.rs"]
mod scene;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use caretaker_testkit::harness::{Need, main as run, test};
use caretaker_testkit::make::{Said, mk_binding_to_account, mk_cluster_role, mk_pod};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use operator::{LIMIT, Operator, becomes, look};
use scene::Scene;
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The tests look around as `admin`, which is nobody's use here.
const SETTINGS: &str = "
keepers:
  namespaces:
    activity:
      record: 1s
      canary: 10s
      ignore:
        users: [admin]
";

/// Everything falls asleep after so much silence.
const PERIOD: Duration = Duration::from_secs(6);

fn period() -> String {
    format!("{}s", PERIOD.as_secs())
}

fn main() -> ExitCode {
    let machinery = "what_the_machinery_and_the_pods_do_keeps_nothing_awake";
    run(vec![
        test(machinery, Need::Node, what_the_machinery_and_the_pods_do_keeps_nothing_awake),
        test("an_open_exec_is_use_until_it_ends_and_pods_tell_of_it", Need::Node, an_open_exec_is_use_until_it_ends),
    ])
}

/// A namespace with pods that run, and an operator that hears everything.
async fn furnished() -> Result<(Scene, Operator), Box<dyn std::error::Error>> {
    let scene = Scene::hearing_all(Cluster::builder().node(), SETTINGS).await;
    scene.furnish("shop", &period()).await;
    let operator = scene.operator().await;
    Ok((scene, operator))
}

async fn runs(client: &Client, count: usize) -> caretaker_testkit::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    until(&format!("{count} pods to run"), LIMIT, async || {
        let all = pods.list(&ListParams::default()).await.unwrap();
        let phases: Vec<String> = all.into_iter().filter_map(|pod| pod.status?.phase).collect();
        let fine = phases.len() == count && phases.iter().all(|phase| phase == "Running");
        Ok(if fine { Ok(()) } else { Err(format!("{phases:?}")) })
    })
    .await
}

/// What a pod with an account of its own does all day: reads, writes, and leads an election.
async fn bustle(client: Client) {
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

/// What was heard of the namespace and did not count, by reason.
fn ignored(operator: &Operator) -> Value {
    let told: Value = serde_json::from_str(&operator.ask("/activity").1).unwrap_or_default();
    let shop = told.as_array().and_then(|all| all.iter().find(|told| told["namespace"] == "shop"));
    shop.map(|shop| shop["ignored"].clone()).unwrap_or_default()
}

async fn what_the_machinery_and_the_pods_do_keeps_nothing_awake() -> Outcome {
    let (scene, operator) = furnished().await?;
    let post = PostParams::default();
    let role = mk_cluster_role("worker", &[("*", "*", "*")]);
    Api::<ClusterRole>::all(scene.client.clone()).create(&post, &role).await?;
    let binding = mk_binding_to_account("worker", "shop", "default");
    Api::<ClusterRoleBinding>::all(scene.client.clone()).create(&post, &binding).await?;
    let account = Client::try_from(scene.cluster().account_config("shop", "default").await?)?;
    let busy = tokio::spawn(bustle(account));
    let ann = scene.person("ann").await;

    // Twice it falls asleep while its controllers, its kubelet and its own account are at
    // work, and only ann wakes it.
    for _ in 0..2 {
        becomes(&scene.client, "shop", "sleep", 0).await;
        runs(&scene.client, 0).await?;
        scene.sleeps_after("shop", "1h").await;
        ann.kubectl(&["get", "pods", "-n", "shop"]);
        becomes(&scene.client, "shop", "normal", 2).await;
        runs(&scene.client, 2).await?;
        scene.sleeps_after("shop", &period()).await;
    }
    becomes(&scene.client, "shop", "sleep", 0).await;
    let began = Instant::now();
    while began.elapsed() < 2 * PERIOD {
        assert_eq!(look(&scene.client, "shop").await.0, "sleep", "{:?}", operator.story("shop"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    busy.abort();

    let heard = ignored(&operator);
    for reason in ["actor", "resident"] {
        assert!(heard[reason]["count"].as_u64() > Some(20), "{heard}");
    }
    let audit = scene.cluster().audit()?;
    let own = "system:serviceaccount:caretaker-system:caretaker";
    for user in ["system:node:", "system:serviceaccount:kube-system:", "system:serviceaccount:shop:default", own] {
        let calls = audit.only(|call| call.user.starts_with(user) && call.namespace == "shop");
        assert!(!calls.is_empty(), "{user} has done nothing, so nothing is shown");
    }
    let wakes = operator.story("shop").iter().filter(|line| line.contains("wake")).count();
    assert_eq!(wakes, 2);
    Ok(())
}

async fn an_open_exec_is_use_until_it_ends() -> Outcome {
    let (scene, operator) = furnished().await?;
    let ann = scene.person("ann").await;
    scene.sleeps_after("shop", "1h").await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    runs(&scene.client, 2).await?;

    let exec = ann.begin(&["exec", "-n", "shop", "-i", "deployment/web", "--", "cat"]);
    until("the session to be heard of", LIMIT, async || {
        let told = operator.ask("/activity").1;
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        let open =
            told.as_array().is_some_and(|all| all.iter().any(|t| t["open"].as_array().is_some_and(|o| !o.is_empty())));
        Ok(if open { Ok(()) } else { Err(told.to_string()) })
    })
    .await?;
    scene.sleeps_after("shop", &period()).await;
    let began = Instant::now();
    while began.elapsed() < 3 * PERIOD {
        assert_eq!(look(&scene.client, "shop").await.1, 2, "{:?}", operator.story("shop"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (_, explained, _) = operator::caretaker(scene.cluster(), &["explain", "ns/shop"]);
    assert!(explained.contains("in use: a session is open since"), "{explained}");
    drop(exec);

    becomes(&scene.client, "shop", "sleep", 0).await;
    pods_are_asked_through_the_api_server(&scene, &operator).await
}

/// The program does not fit into the image of this node, so its pod is one that gives the answer which
/// the operator has given a moment before.
async fn pods_are_asked_through_the_api_server(scene: &Scene, operator: &Operator) -> Outcome {
    let answer = until("the look to be heard of", LIMIT, async || {
        let (_, told) = operator.ask("/activity");
        Ok(if told.contains("\"user\":\"ann\"") { Ok(told) } else { Err(told) })
    })
    .await?;
    let mut pod = mk_pod("caretaker-system", "caretaker-1").label("app.kubernetes.io/name", "caretaker");
    let serve = format!("echo '{answer}' > /activity && httpd -f -p 8080 -h /");
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.command = Some(vec!["sh".to_owned(), "-c".to_owned(), serve]);
    Api::<Pod>::namespaced(scene.client.clone(), "caretaker-system").create(&PostParams::default(), &pod).await?;

    until("the pod to be asked", LIMIT, async || {
        let (code, text, notes) = operator::caretaker(scene.cluster(), &["activity", "-n", "shop"]);
        let asked = text.contains(" by ann with kubectl/") && notes.is_empty();
        Ok(if code == 0 && asked { Ok(()) } else { Err(format!("{text}{notes}")) })
    })
    .await?;
    Ok(())
}
