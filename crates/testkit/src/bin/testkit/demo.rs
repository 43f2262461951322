//! `make demo`: what the keepers do, on a cluster that is gone afterwards.

mod addresses;
mod containers;
mod runtimes;
mod windows;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use caretaker_testkit::audited::Audited;
use caretaker_testkit::make::{Scaled, mk_binding_to_user, mk_cluster_role, mk_deployment};
use caretaker_testkit::operator::Operator;
use caretaker_testkit::{Cluster, Error, Node, until};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::{ListParams, PostParams};

const LIMIT: Duration = Duration::from_mins(2);

pub(crate) async fn run() -> Result<()> {
    let began = Instant::now();
    let say = |text: &str| println!("{:>6.1} s  {text}", began.elapsed().as_secs_f64());

    let node = Node::possible();
    let parts =
        if node.is_ok() { "etcd, API server, controllers, scheduler, node" } else { "etcd, API server, controllers" };
    say(&format!("starting a throwaway Kubernetes: {parts}"));
    if let Err(reason) = &node {
        say(&format!("no pod can run on this machine: a node {reason}"));
    }
    let program = std::env::current_exe()?.with_file_name("caretaker");
    ensure!(program.is_file(), "{} is missing: run make demo", program.display());
    let builder = Cluster::builder().controllers();
    let builder = if node.is_ok() { builder.node() } else { builder };
    let audited = Audited::start(&program, builder).await?;
    say(&format!(
        "ready at {}; its audit events go to Caretaker, by what caretaker audit-config printed",
        audited.cluster.url()
    ));

    a_namespace_sleeps_and_wakes(&audited, &program, node.is_ok(), &say).await?;
    addresses::leaked_addresses_return(&audited.cluster, &program, &say).await?;
    runtimes::a_task_gets_a_runtime(&audited.cluster, &program, node.is_ok(), &say).await?;
    windows::a_flux_object_freezes_and_thaws(&audited.cluster, &program, &say).await?;
    containers::orphans_vanish(&audited.cluster, &program, node.is_ok(), &say).await?;

    let folder = audited.cluster.folder().to_owned();
    audited.cluster.end()?;
    if std::env::var_os("CARETAKER_KEEP").is_some() {
        say(&format!("the cluster is gone; CARETAKER_KEEP is set, so its files are kept in {}", folder.display()));
        return Ok(());
    }
    ensure!(!folder.exists(), "{} is still there", folder.display());
    say("the cluster is gone: no process, no mount, no file is left");
    Ok(())
}

/// The demo itself reads as the administrator, which must not count as use.
const SETTINGS: &str = "keepers: {namespaces: {activity: {ignore: {users: [admin]}}}}\n";

/// A namespace that is idle for eight seconds sleeps; as soon as a user reads it, it wakes with what it
/// had. Without a node only the replica counts show it.
async fn a_namespace_sleeps_and_wakes(
    audited: &Audited,
    program: &Path,
    pods: bool,
    say: &impl Fn(&str),
) -> Result<()> {
    let cluster = &audited.cluster;
    cluster.namespace("caretaker-system").await?;
    cluster.namespace("demo").await?;
    let deployments = Api::namespaced(cluster.client().await?, "demo");
    deployments.create(&PostParams::default(), &mk_deployment("demo", "web").replicas(2)).await?;
    running(cluster, if pods { 2 } else { 0 }).await?;
    say("namespace demo has a Deployment with two replicas");
    show(cluster, &["get", "deployments,pods", "-n", "demo"])?;

    let ann = reader(cluster, "ann").await?;
    let settings = cluster.folder().join("demo.yaml");
    std::fs::write(&settings, SETTINGS)?;
    let mut args = audited.args();
    args.extend(["--config".to_owned(), settings.display().to_string()]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let operator = Operator::start(program, &cluster.kubeconfig(), &args).await?;
    operator.ready().await;
    say("caretaker run is started; the owner labels the namespace sleep-after=8s and delete-after=24h");
    let labels = ["sleepmode.kubefree.com/sleep-after=8s", "sleepmode.kubefree.com/delete-after=24h"];
    cluster.kubectl(&[["label", "namespace", "demo"].as_slice(), &labels].concat())?;
    journaled(&operator, "sleep", say).await?;
    running(cluster, 0).await?;
    show(cluster, &["get", "namespace", "demo", "-L", "sleepmode.kubefree.com/state"])?;
    show(cluster, &["get", "deployments,pods", "-n", "demo"])?;

    say("ann looks");
    show(cluster, &["get", "deployments", "-n", "demo", "--kubeconfig", &ann])?;
    journaled(&operator, "wake", say).await?;
    running(cluster, if pods { 2 } else { 0 }).await?;
    show(cluster, &["get", "deployments,pods", "-n", "demo"])?;
    say("the activity that was received, and what of it did not count:");
    activity(program, &operator)?;
    Ok(())
}

/// The kubeconfig of a user who may read everything.
async fn reader(cluster: &Cluster, name: &str) -> Result<String> {
    let client = cluster.client().await?;
    let post = PostParams::default();
    Api::<ClusterRole>::all(client.clone())
        .create(&post, &mk_cluster_role(name, &[("*", "*", "get,list,watch")]))
        .await?;
    Api::<ClusterRoleBinding>::all(client).create(&post, &mk_binding_to_user(name, name)).await?;
    Ok(cluster.user_kubeconfig(name, None)?.display().to_string())
}

fn activity(program: &Path, operator: &Operator) -> Result<()> {
    let url = format!("http://{}", operator.address());
    println!("          $ caretaker activity -n demo --operator {url}");
    let output = Command::new(program).args(["activity", "-n", "demo", "--operator", &url]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    print(&String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Waits until the journal has an action, and prints it.
async fn journaled(operator: &Operator, action: &str, say: &impl Fn(&str)) -> Result<()> {
    let line = until(&format!("the journal to have a {action}"), LIMIT, async || {
        let lines = operator.journal();
        let line = lines.into_iter().find(|l| l["action"] == action && l["outcome"] == "done");
        Ok(line.ok_or_else(|| operator.log()))
    })
    .await?;
    let word = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
    say(&format!("{}: {} {}", word("action"), word("rule"), word("because")));
    Ok(())
}

/// Waits until there are so many pods, all of them running.
async fn running(cluster: &Cluster, count: usize) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, "demo");
    until(&format!("{count} pods to run"), LIMIT, async || {
        let all = pods.list(&ListParams::default()).await.map_err(Error::api("listing pods"))?;
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        let runs = all.iter().filter(|pod| phase(pod) == "Running").count();
        let bound = all.iter().filter(|pod| pod.spec.as_ref().is_some_and(|s| s.node_name.is_some())).count();
        Ok(if runs == count && bound == count { Ok(()) } else { Err(format!("{runs} run, {bound} are there")) })
    })
    .await?;
    Ok(())
}

fn show(cluster: &Cluster, args: &[&str]) -> Result<()> {
    let words: Vec<&str> = args.iter().copied().take_while(|word| *word != "--kubeconfig").collect();
    println!("          $ kubectl {}", words.join(" "));
    print(&cluster.kubectl(args)?);
    Ok(())
}

fn print(text: &str) {
    for line in text.lines() {
        println!("          {line}");
    }
}
