//! Pods of a real kubelet whose addresses are in a pool, a CNI plugin whose DEL fails, is lost or comes late, and the
//! keeper under a clock of the test.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use caretaker_addresses::Addresses;
use caretaker_addresses::api::Kind;
use caretaker_core::Timestamp;
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_keeper_testkit::RunningKeeper;
use caretaker_testkit::make::mk_pod;
use caretaker_testkit::{shared_with_node, until};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use crate::support::objects::{PodExt as _, endpoint, pool, uid};
use crate::support::real::{Corner, definitions_of_today, seconds};

/// A corner on the cluster with a real node.
async fn on_node(name: &str) -> Corner {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    Corner::on(shared_with_node(), &INSTALLED, definitions_of_today, name).await
}

/// A kubelet tries a CNI DEL that has failed again after up to a minute.
const LIMIT: Duration = Duration::from_mins(3);

/// The last number of an address that no pod gets: the node allocates from 2 on.
const CANARY: u8 = 250;

/// Stands for the plugin `bridge`, and calls it. For a DEL, the file that is named after the pod's uid says what happens;
/// where there is none, the DEL does what it should.
const PLUGIN: &str = r#"#!/bin/sh
uid=${CNI_ARGS##*K8S_POD_UID=}
uid=${uid%%;*}
mode() { cat "MODES/$uid" 2>/dev/null; }
if [ "$CNI_COMMAND" = DEL ]; then
    : > "MODES/$uid.called"
    while [ "$(mode)" = late ]; do sleep 0.1; done
    case "$(mode)" in
    fail) echo '{ "cniVersion": "0.4.0", "code": 11, "msg": "the agent does not answer" }'; exit 1 ;;
    lose) exit 0 ;;
    esac
fi
exec REAL
"#;

/// Outcome of the CNI DEL of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Del {
    /// It returns an error, so that the kubelet calls it again and again.
    Fails,
    /// It returns success and has done nothing.
    IsLost,
    /// It does nothing until [`Lab::del_succeeds`].
    IsLate,
}

/// A pod that runs, and its address.
#[derive(Debug, Clone)]
pub struct Running {
    pub name: String,
    pub uid: String,
    pub ip: String,
}

/// A namespace, its pool, and a keeper that has judged nothing yet.
pub struct Lab {
    pub corner: Arc<Corner>,
    pub keeper: RunningKeeper,
    clock: ClockHandle,
    /// The time that the clock of the keeper shows.
    now: Cell<Timestamp>,
    modes: PathBuf,
}

/// Puts the plugin in the place of `bridge`, once; returns the folder with the modes.
fn install_plugin(plugins: &Path) -> PathBuf {
    let modes = plugins.join("modes");
    if !modes.exists() {
        let bridge = plugins.join("bridge");
        let real = std::fs::canonicalize(&bridge).unwrap();
        let text = PLUGIN.replace("MODES", modes.to_str().unwrap()).replace("REAL", real.to_str().unwrap());
        let script = plugins.join("bridge.new");
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(&script, &bridge).unwrap();
        std::fs::create_dir(&modes).unwrap();
    }
    modes
}

/// The network of the pods, without the last number.
fn network() -> String {
    let [a, b, c, _] = shared_with_node().node().unwrap().gateway().octets();
    format!("{a}.{b}.{c}")
}

/// True if something answers at this address.
pub async fn answers(ip: &str) -> bool {
    let ip = ip.to_owned();
    let ping = move || {
        let mut ping = Command::new("busybox");
        ping.args(["ping", "-c", "1", "-W", "1", &ip]).stdout(Stdio::null()).stderr(Stdio::null());
        ping.status().unwrap().success()
    };
    tokio::task::spawn_blocking(ping).await.unwrap()
}

impl Lab {
    /// On the node that all tests of this program share. The keeper sees what an earlier test has left, so that is removed.
    pub async fn new(name: &str) -> Self {
        let corner = Arc::new(on_node(name).await);
        remove_leftovers(&corner).await;
        let modes = install_plugin(shared_with_node().node().unwrap().cni_plugins());
        let now = Timestamp::now();
        let (time, clock) = Clock::manual(now);
        let keeper = RunningKeeper::start(Addresses::default(), &corner.client, time, |_| ());
        keeper.ready().await;
        Self { corner, keeper, clock, now: Cell::new(now), modes }
    }

    /// Creates a pod with this grace period, and waits until it runs.
    pub async fn run(&self, name: &str, grace: i64, change: impl FnOnce(&mut Pod)) -> Running {
        let mut pod = mk_pod(&self.corner.name, name);
        let spec = pod.spec.as_mut().unwrap();
        spec.termination_grace_period_seconds = Some(grace);
        spec.node_name = Some(shared_with_node().node().unwrap().name().to_owned());
        change(&mut pod);
        let uid = self.pods().create(&PostParams::default(), &pod).await.unwrap().uid().unwrap();
        let ip = until("the pod to run", LIMIT, async || {
            let status = self.pods().get(name).await.unwrap().status.unwrap_or_default();
            Ok(if status.phase.as_deref() == Some("Running") {
                Ok(status.pod_ip.unwrap())
            } else {
                Err(format!("{status:?}"))
            })
        });
        Running { name: name.to_owned(), uid, ip: ip.await.unwrap() }
    }

    /// A pod that does not end at SIGTERM.
    pub async fn run_stubborn(&self, name: &str, grace: i64) -> Running {
        let stubborn = |pod: &mut Pod| {
            let command = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
            pod.spec.as_mut().unwrap().containers[0].command = Some(command.map(str::to_owned).to_vec());
        };
        self.run(name, grace, stubborn).await
    }

    fn pods(&self) -> kube::Api<Pod> {
        self.corner.pods_in(&self.corner.name)
    }

    /// Writes the pool: a record of each pod, and one of a pod that never was. The keeper releases that one five seconds
    /// after it has seen it by its clock: when it is gone, the keeper has judged the pool at the time that the clock shows.
    pub async fn allocate(&self, pods: &[&Running]) {
        let key = |pod: &Running| self.corner.key(&pod.name);
        let network = network();
        let (canary, canary_key) = (format!("{network}.{CANARY}"), self.corner.key("never-was"));
        let keys: Vec<String> = pods.iter().map(|pod| key(pod)).collect();
        let mut records: Vec<_> =
            pods.iter().zip(&keys).map(|(pod, key)| (pod.ip.as_str(), key.as_str(), pod.uid.as_str())).collect();
        let never = uid(1);
        records.push((&canary, &canary_key, &never));
        let object = pool(&self.corner.name, &records)
            .with("/spec/subnet", json!(format!("{network}.0/24")))
            .with("/spec/ips", json!([format!("{network}.2-{network}.254")]));
        self.corner.create_pool(object).await;
        self.keeper.judged("wait", 1).await;
    }

    /// Writes the endpoint of a pod.
    pub async fn endpoint(&self, pod: &Running) {
        let node = shared_with_node().node().unwrap().name();
        let object = endpoint(&self.corner.key(&pod.name), &pod.uid, &[pod.ip.as_str()]);
        self.corner.endpoint(object.with("/status/current/node", json!(node))).await;
    }

    /// Says what becomes of the CNI DEL of a pod.
    pub fn del(&self, pod: &Running, del: Del) {
        let word = match del {
            Del::Fails => "fail",
            Del::IsLost => "lose",
            Del::IsLate => "late",
        };
        std::fs::write(self.modes.join(&pod.uid), word).unwrap();
    }

    /// From now on its CNI DEL does what it should.
    pub fn del_succeeds(&self, pod: &Running) {
        std::fs::remove_file(self.modes.join(&pod.uid)).unwrap();
    }

    /// Waits until the kubelet has called the CNI DEL of a pod: its containers have ended then.
    pub async fn del_called(&self, pod: &Running) {
        let file = self.modes.join(format!("{}.called", pod.uid));
        until("the CNI DEL to be called", LIMIT, async || Ok(if file.exists() { Ok(()) } else { Err(String::new()) }))
            .await
            .unwrap();
    }

    /// Deletes a pod with its grace period; returns its deletionTimestamp.
    pub async fn delete(&self, pod: &Running) -> Timestamp {
        self.corner.terminate(&self.corner.key(&pod.name)).await
    }

    /// Deletes a pod without a grace period, so that its object is gone at once; returns its deletionTimestamp, which the
    /// watch delivers just before the deletion.
    pub async fn force_delete(&self, pod: &Running) -> Timestamp {
        let at_once = DeleteParams::default().grace_period(0);
        let deleted = self.pods().delete(&pod.name, &at_once).await.unwrap().left().unwrap();
        assert!(!self.exists(pod).await, "the object is gone, whatever the node does");
        deleted.metadata.deletion_timestamp.unwrap().0
    }

    pub async fn exists(&self, pod: &Running) -> bool {
        let found = self.pods().get_opt(&pod.name).await.unwrap();
        found.is_some_and(|found| found.uid().as_deref() == Some(&pod.uid))
    }

    /// Follows a pod from now on. What is returned waits until its object is gone, and returns its last deletionTimestamp:
    /// when a kubelet has ended a pod it deletes it once more, without a grace period, and the API server sets that time to
    /// the moment.
    pub async fn follow(&self, pod: &Running) -> impl Future<Output = Timestamp> + use<> {
        let of_pod = WatchParams::default().fields(&format!("metadata.name={}", pod.name));
        let events = self.pods().watch(&of_pod, "0").await.unwrap();
        let end = tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                if let WatchEvent::Deleted(pod) = event.unwrap() {
                    return pod.metadata.deletion_timestamp.unwrap().0;
                }
            }
            panic!("the watch has ended before the pod");
        });
        async { tokio::time::timeout(LIMIT, end).await.expect("the pod to be gone").unwrap() }
    }

    /// Waits until the kubelet has reported the end of every container of a pod.
    pub async fn containers_ended(&self, pod: &Running) {
        until("the containers to end", LIMIT, async || {
            let status = self.pods().get(&pod.name).await.unwrap().status.unwrap_or_default();
            let all = status.container_statuses.unwrap_or_default();
            let ended = all.iter().all(|one| one.state.as_ref().is_some_and(|state| state.terminated.is_some()));
            Ok(if ended && !all.is_empty() { Ok(()) } else { Err(format!("{all:?}")) })
        })
        .await
        .unwrap();
    }

    /// Waits until nothing answers at the address of a pod.
    pub async fn silent(&self, pod: &Running) {
        until("the address to be silent", LIMIT, async || {
            Ok(if answers(&pod.ip).await { Err("it answers".to_owned()) } else { Ok(()) })
        })
        .await
        .unwrap();
    }

    /// At the last moment before a deadline the keeper judges, and these addresses are held.
    pub async fn held_until(&self, deadline: Timestamp, pods: &[&Running]) {
        assert!(deadline > self.now.get() + seconds(5), "the keeper waits longer than for the other record");
        self.set_clock(deadline);
        self.holds(pods).await;
    }

    /// After a deadline the keeper releases all but these addresses: two seconds later, because it writes a pool no more
    /// often than once a second and has just written this one.
    pub async fn released_after(&self, deadline: Timestamp, left: &[&Running]) {
        self.set_clock(deadline.max(self.now.get()) + seconds(2));
        self.holds(left).await;
    }

    fn set_clock(&self, to: Timestamp) {
        self.now.set(to);
        self.clock.set(to);
    }

    /// Waits until the pool has the records of these pods, and no others.
    async fn holds(&self, pods: &[&Running]) {
        let mut expected: Vec<&str> = pods.iter().map(|pod| pod.ip.as_str()).collect();
        expected.sort_unstable();
        until(&format!("{expected:?} to be held"), LIMIT, async || {
            let held: Vec<String> = self.corner.records().await.keys().cloned().collect();
            let missing: Vec<_> = expected.iter().filter(|ip| !held.iter().any(|held| held == *ip)).collect();
            assert!(missing.is_empty(), "{missing:?} released too early: {:?}", self.keeper.journal.entries());
            Ok(if held == expected { Ok(()) } else { Err(format!("{held:?}, {:?}", self.keeper.journal.outcomes())) })
        })
        .await
        .unwrap();
    }

    /// Waits until no endpoint is left in the namespace.
    pub async fn no_endpoint_left(&self) {
        until("every endpoint to be gone", LIMIT, async || {
            let left = self.corner.endpoints().await;
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}, {:?}", self.keeper.journal.outcomes())) })
        })
        .await
        .unwrap();
    }

    /// Rules and outcomes for an address, in the journal.
    pub fn story(&self, pod: &Running) -> Vec<String> {
        let all = self.keeper.journal.outcomes();
        all.iter().filter_map(|line| line.strip_prefix(&format!("{} ", pod.ip)).map(str::to_owned)).collect()
    }

    /// Watches from now on that these addresses are not free while they answer.
    pub fn guard(&self, pods: &[&Running]) -> Guard {
        let ips: Vec<String> = pods.iter().map(|pod| pod.ip.clone()).collect();
        for ip in &ips {
            let [.., last] = ip.parse::<Ipv4Addr>().unwrap().octets();
            assert!(last < CANARY, "{ip} is not the address of the canary");
        }
        let corner = self.corner.clone();
        let watch = async move {
            loop {
                let records = corner.records().await;
                for ip in ips.iter().filter(|ip| !records.contains_key(*ip)) {
                    assert!(!answers(ip).await, "{ip} is free, and something answers there");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        Guard(tokio::spawn(watch))
    }
}

/// Watches addresses until it is asked, or dropped.
pub struct Guard(JoinHandle<()>);

impl Guard {
    /// No address was free while it answered.
    pub async fn end(self) {
        self.0.abort();
        if let Err(ended) = (self.0).await {
            assert!(ended.is_cancelled(), "an address was free while it answered");
        }
    }
}

async fn remove_leftovers(corner: &Corner) {
    let no_finalizer = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    for kind in [Kind::Pool, Kind::Endpoint] {
        let all = kube::Api::<kube::api::DynamicObject>::all_with(corner.client.clone(), &kind.resource());
        for object in all.list(&ListParams::default()).await.unwrap() {
            let name = object.name_any();
            let api =
                if let Some(namespace) = object.namespace() { corner.endpoints_in(&namespace) } else { corner.pools() };
            // What is being deleted goes with its finalizer.
            if api.delete(&name, &DeleteParams::default()).await.is_ok() {
                let _ = api.patch(&name, &PatchParams::default(), &no_finalizer).await;
            }
        }
        until("what an earlier test has left to be gone", LIMIT, async || {
            let left = all.list(&ListParams::default()).await.unwrap().items.len();
            Ok(if left == 0 { Ok(()) } else { Err(format!("{left} objects")) })
        })
        .await
        .unwrap();
    }
}
