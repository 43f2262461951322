//! Measures how fast the containers of a dead agent are gone with everything, beside cleaning without any check, what a
//! scan of a node costs, and the memory of `caretaker-node`.
//!
//! `CARETAKER_BENCH_CONTAINERS` sets how many containers an agent has, `CARETAKER_BENCH_RUNS` how often it dies. It needs
//! root and a node.

#[allow(dead_code, reason = "the tests of the keeper use the rest")]
#[path = "../../keepers/containers/tests/containerd/lab.rs"]
mod lab;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use caretaker_containers::api::{LabelKeys, sandbox_resource};
use caretaker_containers::containerd::Containerd as _;
use caretaker_containers::controller::scan;
use caretaker_containers::host::Host;
use caretaker_containers::judge::Rule;
use caretaker_containers::observe::{CONTAINERS, ContainerCache};
use caretaker_containers::subject::{NodeRef, World};
use caretaker_core::{RuleSet as _, SignedDuration, Timestamp};
use caretaker_engine::{Cache as _, SourceRef};
use caretaker_testkit::make::mk_pod;
use caretaker_testkit::{Cluster, Node, definitions};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use lab::{Lab, State, labels};
use serde_json::json;
use tokio::time::Instant;

use crate::Row;
use crate::operator::program;

const NAMESPACE: &str = "bench";
const LIMIT: Duration = Duration::from_mins(5);
/// How many are created or cleaned at once.
const CONCURRENT: usize = 8;
/// How often sequential cleaning is measured: it takes long, and differs little.
const SEQUENTIAL_RUNS: usize = 3;
/// Containers of the scan, and of the figure of memory.
const SCANNED: usize = 200;
const REMEMBERED: usize = 500;
const SCANS: usize = 21;
/// How often it is looked whether everything is gone. Looking costs containerd nothing until all FIFOs are gone.
const LOOK: Duration = Duration::from_millis(5);

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub(crate) async fn rows() -> Result<Vec<Row>> {
    if let Err(reason) = Node::possible() {
        let beside = format!("left out: a node {reason}");
        return Ok(vec![Row { what: "containers of a dead agent", measured: "-".to_owned(), beside }]);
    }
    let (count, runs) = (number("CARETAKER_BENCH_CONTAINERS", 100), number("CARETAKER_BENCH_RUNS", 10).max(1));
    let bench = Bench::start(count).await?;
    let (mut by_keeper, mut parallel, mut sequential) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        by_keeper.push(bench.agent_dies(run).await?);
        parallel.push(bench.cleaned_without_checks(run, CONCURRENT).await?);
        if run < SEQUENTIAL_RUNS {
            sequential.push(bench.cleaned_without_checks(runs + run, 1).await?);
        }
    }
    let scans = bench.scans().await?;
    let memory = bench.memory().await?;
    let ratio = seconds(median(&by_keeper)) / seconds(median(&parallel));
    #[expect(clippy::cast_precision_loss, reason = "a count of containers")]
    let rate = count as f64 / seconds(median(&by_keeper));
    Ok(vec![
        Row {
            what: "an agent pod deleted: its last container gone, FIFOs and all",
            measured: format!("{:.2} s", seconds(median(&by_keeper))),
            beside: format!("{count} containers, {rate:.0} a second; {}", distribution(&by_keeper)),
        },
        Row {
            what: "the same without checks and verification, 8 at once",
            measured: format!("{:.2} s", seconds(median(&parallel))),
            beside: format!("{}; ours takes {ratio:.2} times as long, wanted: 1.3", distribution(&parallel)),
        },
        Row {
            what: "the same without checks, one after the other",
            measured: format!("{:.2} s", seconds(median(&sequential))),
            beside: distribution(&sequential),
        },
        Row {
            what: "a scan with judging",
            measured: format!("{:.0} ms", seconds(median(&scans)) * 1e3),
            beside: format!("{SCANNED} containers; {}; wanted: 200 ms", distribution(&scans)),
        },
        Row {
            what: "memory of caretaker-node",
            measured: format!("{memory:.1} MB"),
            beside: format!("{REMEMBERED} containers known; wanted: 25 MB"),
        },
    ])
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The fastest and the slowest, and up to ten of the times between.
fn distribution(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let shown: Vec<String> = sorted.iter().map(|time| format!("{:.3}", seconds(*time))).collect();
    match shown.as_slice() {
        few if few.len() <= 10 => format!("{} s", few.join(" ")),
        [first, .., last] => format!("{} runs, {first} to {last} s", shown.len()),
        _ => String::new(),
    }
}

/// A node with `caretaker-node` on it. Its kubelet is stopped, so that nothing else works on containerd meanwhile.
struct Bench {
    cluster: Cluster,
    lab: Lab,
    pods: Api<Pod>,
    state_file: PathBuf,
    count: usize,
}

impl Bench {
    async fn start(count: usize) -> Result<Self> {
        let cluster = Cluster::builder().controllers().node().start().await?;
        let node = cluster.node().context("a node")?;
        cluster.stop("kubelet")?;
        cluster.namespace(NAMESPACE).await?;
        let client = cluster.client().await?;
        define_sandboxes(&client).await?;
        let folder = cluster.folder();
        let host = Host { fifo_root: folder.join("fifo"), state: folder.join("containerd-state"), ..Host::default() };
        let (socket, cgroup) = (node.containerd_socket(), "/k8s.io".to_owned());
        let lab = Lab::attach(socket, host.clone(), cgroup).await.map_err(|error| anyhow!("{error}"))?;
        let state_file = folder.join("node-state.json");
        let kubeconfig = cluster.user_kubeconfig("caretaker", Some("system:masters"))?;
        let path = |path: &Path| path.display().to_string();
        let args = [
            "run".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            format!("--node={}", node.name()),
            format!("--containerd={}", path(socket)),
            format!("--containerd-state={}", path(&host.state)),
            format!("--fifo-root={}", path(&host.fifo_root)),
            format!("--state-file={}", path(&state_file)),
            format!("--kubeconfig={}", path(&kubeconfig)),
        ];
        cluster.spawn_on_node("caretaker-node", &program("caretaker-node")?, &args)?;
        let pods = Api::namespaced(client, NAMESPACE);
        Ok(Self { cluster, lab, pods, state_file, count })
    }

    /// An agent pod on this node, as far as the API server knows; its uid.
    async fn agent(&self, name: &str) -> Result<String> {
        let mut pod = mk_pod(NAMESPACE, name);
        let node = self.cluster.node().context("a node")?.name().to_owned();
        pod.spec.get_or_insert_default().node_name = Some(node);
        let created = self.pods.create(&PostParams::default(), &pod).await?;
        created.metadata.uid.context("a uid")
    }

    async fn containers(
        &self,
        prefix: &str,
        agent: &str,
        uid: &str,
        count: usize,
        state: State,
    ) -> Result<Vec<String>> {
        let owner = labels(&[
            ("managed", "true"),
            ("agent-uid", uid),
            ("agent-name", agent),
            ("namespace", NAMESPACE),
            ("sandbox-name", "box"),
        ]);
        let ids: Vec<String> = (0..count).map(|i| format!("{prefix}-{i}")).collect();
        let create =
            async |id: String| self.lab.create(&id, &owner, state).await.map_err(|error| anyhow!("{id}: {error}"));
        futures::stream::iter(ids.clone()).map(create).buffer_unordered(CONCURRENT).try_collect::<()>().await?;
        Ok(ids)
    }

    /// From the answer to the deletion of an agent pod until nothing of its containers is left.
    async fn agent_dies(&self, run: usize) -> Result<Duration> {
        let agent = format!("agent-{run}");
        let uid = self.agent(&agent).await?;
        self.containers(&format!("keeper{run}"), &agent, &uid, self.count, State::Running).await?;
        self.settled().await;
        let began = Instant::now();
        self.pods.delete(&agent, &DeleteParams::default().grace_period(0)).await?;
        self.until_gone(began).await
    }

    /// Kill, delete and remove, in the order in which containerd wants it, and nothing else.
    async fn cleaned_without_checks(&self, run: usize, at_once: usize) -> Result<Duration> {
        let agent = format!("kept-{run}");
        let uid = self.agent(&agent).await?;
        let ids = self.containers(&format!("bare{run}"), &agent, &uid, self.count, State::Running).await?;
        self.settled().await;
        let began = Instant::now();
        let clean = async |id: String| -> Result<()> {
            let client = &self.lab.client;
            let task = client.task(&id).await?.context("a task")?;
            let (ended, killed) = tokio::join!(client.wait(&id), client.kill(&id));
            ended.and(killed)?;
            client.delete_task(&id).await?;
            client.remove_snapshot("overlayfs", &format!("{id}-snapshot")).await?;
            let folder = Path::new(&task.fifos[0]).parent().context("a folder of FIFOs")?;
            std::fs::remove_dir_all(folder)?;
            Ok(client.delete_container(&id).await?)
        };
        futures::stream::iter(ids).map(clean).buffer_unordered(at_once).try_collect::<()>().await?;
        let took = self.until_gone(began).await?;
        self.pods.delete(&agent, &DeleteParams::default().grace_period(0)).await?;
        Ok(took)
    }

    /// Lets what was just created come to rest.
    async fn settled(&self) {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }

    /// Every FIFO, bundle and record. That no shim, mount or control group is left is verified by the keeper before it
    /// deletes the record.
    async fn until_gone(&self, began: Instant) -> Result<Duration> {
        let is_empty = |folder: &Path| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
        loop {
            ensure!(began.elapsed() < LIMIT, "something is left; see the log of caretaker-node");
            if is_empty(&self.lab.host.fifo_root)
                && !self.lab.host.bundle_ids().iter().any(|id| id.starts_with("keeper") || id.starts_with("bare"))
                && self.lab.client.list(&LabelKeys::default().managed).await?.is_empty()
            {
                return Ok(began.elapsed());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Lists all containers, and judges them.
    async fn scans(&self) -> Result<Vec<Duration>> {
        let uid = self.agent("scanned").await?;
        self.containers("scan", "scanned", &uid, SCANNED, State::NoTask).await?;
        let name = self.cluster.node().context("a node")?.name();
        let node = Arc::new(NodeRef {
            name: name.to_owned(),
            sandbox_api_version: sandbox_resource().api_version,
            sandbox_kind: sandbox_resource().kind,
        });
        let (window, shutdown_grace) = (SignedDuration::from_mins(1), SignedDuration::from_mins(1));
        let world = World { node: name.to_owned(), window, shutdown_grace, sandboxes_served: true, doubt: None };
        let mut times = Vec::new();
        for _ in 0..SCANS {
            let began = Instant::now();
            let mut cache = ContainerCache::default();
            for change in scan(&*self.lab.client, &LabelKeys::default(), &node).await? {
                cache.update(&SourceRef { id: CONTAINERS, resource: None }, change);
            }
            let now = Timestamp::now();
            let verdicts: Vec<_> = cache.subjects().iter().map(|subject| Rule::judge(subject, &world, now)).collect();
            times.push(began.elapsed());
            ensure!(verdicts.len() == SCANNED, "{} containers are judged", verdicts.len());
        }
        Ok(times)
    }

    /// The resident memory of `caretaker-node` with many containers that are in use.
    async fn memory(&self) -> Result<f64> {
        let uid = self.agent("remembered").await?;
        self.containers("rss", "remembered", &uid, REMEMBERED - SCANNED, State::NoTask).await?;
        self.settled().await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kilobytes: f64 = line.split_whitespace().next().context("a number")?.parse()?;
        Ok(kilobytes * 1024.0 / 1e6)
    }

    /// The process of `caretaker-node`: the one with this state file.
    fn process(&self) -> Result<u32> {
        let wanted = format!("--state-file={}", self.state_file.display());
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let mut words = words.split('\0');
            let is_program = words.next().is_some_and(|word| word.ends_with("/caretaker-node"));
            if is_program && words.any(|word| word == wanted) {
                return Ok(pid);
            }
        }
        Err(anyhow!("caretaker-node does not run"))
    }
}

async fn define_sandboxes(client: &kube::Client) -> Result<()> {
    definitions::serve(client, &definitions::fast_sandbox()).await?;
    // Every container names this one.
    let sandboxes: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &sandbox_resource());
    let sandbox = json!({ "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox", "metadata": { "name": "box" } });
    sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox)?).await?;
    Ok(())
}
