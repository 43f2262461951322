//! Containers as an agent makes them, on a real containerd: snapshot, record with all labels in one call, task, FIFOs.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::containerd::{Containerd as _, GrpcClient};
use caretaker_containers::host::Host;
use caretaker_containers::subject::Container;
use caretaker_core::Timestamp;
use caretaker_testkit::containerd::Containerd;
use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots::{CommitSnapshotRequest, ListSnapshotsRequest, PrepareSnapshotRequest};
use containerd_client::tonic::Request;
use containerd_client::tonic::transport::Channel;
use containerd_client::types::Mount;
use prost_types::Any;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde_json::json;

pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// How far the task of a container is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    NoTask,
    Created,
    Running,
    Paused,
    Stopped,
}

pub const STATES: [State; 5] = [State::NoTask, State::Created, State::Running, State::Paused, State::Stopped];

/// The names of the FIFOs of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FifoNames {
    /// `<id>-stdin` and so on, as agents name them.
    OfContainer,
    /// `in`, `out` and `err`: nothing but the task says whose they are.
    Plain,
}

/// A containerd with a client.
pub struct Lab {
    /// `None` for the containerd of a node.
    process: Option<Containerd>,
    cgroup: String,
    pub client: Arc<GrpcClient>,
    pub host: Host,
    /// For calls that the keeper's own client does not make.
    pub raw: Channel,
    parent: String,
    /// The first process of each task that was made.
    pids: Mutex<BTreeMap<String, u32>>,
    /// How FIFOs are named: by their container, or not.
    fifo_names: FifoNames,
    /// The group that containers say they are in: one shim serves all of it.
    group: Option<&'static str>,
    /// FIFOs stay open as an agent keeps them: a task without reader and writer does not start.
    open: Mutex<Vec<File>>,
}

macro_rules! ask {
    ($client:expr, $method:ident, $message:expr) => {{
        let mut request = Request::new($message);
        request.metadata_mut().insert("containerd-namespace", "k8s.io".parse()?);
        $client.$method(request).await?.into_inner()
    }};
}

type Failable<T> = Result<T, Box<dyn std::error::Error>>;

impl Lab {
    pub async fn start() -> Failable<Self> {
        let containerd = Containerd::start().await?;
        let host = Host { fifo_root: containerd.fifo_root(), state: containerd.state(), ..Host::default() };
        let lab = Self::attach(&containerd.socket(), host, Containerd::cgroup()).await?;
        Ok(Self { process: Some(containerd), ..lab })
    }

    /// FIFOs that have other names from here on.
    #[must_use]
    pub fn naming_fifos(self, fifo_names: FifoNames) -> Self {
        Self { fifo_names, ..self }
    }

    /// Containers from here on are in this group.
    #[must_use]
    pub fn in_group(self, group: &'static str) -> Self {
        Self { group: Some(group), ..self }
    }

    /// The containerd of this test program.
    pub fn containerd(&self) -> &Containerd {
        self.process.as_ref().expect("a containerd of the test's own")
    }

    /// On a containerd that runs already.
    pub async fn attach(socket: &Path, host: Host, cgroup: String) -> Failable<Self> {
        let client = Arc::new(GrpcClient::new(socket, "k8s.io")?);
        let raw = containerd_client::connect(socket).await?;
        std::fs::create_dir_all(&host.fifo_root)?;
        let mut snapshots = containerd_client::Client::from(raw.clone()).snapshots();
        let message = ListSnapshotsRequest { snapshotter: "overlayfs".into(), filters: Vec::new() };
        let mut pages = ask!(snapshots, list, message);
        let mut parent = String::new();
        while let Some(page) = pages.message().await? {
            let layer = page.info.iter().find(|info| info.name.starts_with("sha256:"));
            parent = layer.map_or(parent, |info| info.name.clone());
        }
        assert!(parent.starts_with("sha256:"), "the image has a layer: {parent:?}");
        let (pids, open, fifo_names) = (Mutex::default(), Mutex::default(), FifoNames::OfContainer);
        Ok(Self { process: None, cgroup, client, host, raw, parent, pids, fifo_names, group: None, open })
    }

    fn api(&self) -> containerd_client::Client {
        containerd_client::Client::from(self.raw.clone())
    }

    pub fn cleaner(&self) -> Cleaner {
        Cleaner::new(self.client.clone(), Arc::new(self.host.clone()))
    }

    /// A child of a container's snapshot.
    pub async fn snapshot(&self, key: &str, parent: &str) -> Failable<Vec<Mount>> {
        let mut snapshots = self.api().snapshots();
        let labels = HashMap::from([("containerd.io/gc.root".to_owned(), "2036-01-01T00:00:00Z".to_owned())]);
        let (snapshotter, key, parent) = ("overlayfs".to_owned(), key.to_owned(), parent.to_owned());
        Ok(ask!(snapshots, prepare, PrepareSnapshotRequest { snapshotter, key, parent, labels }).mounts)
    }

    /// Turns a snapshot into one that others can be made of.
    pub async fn commit_snapshot(&self, key: &str, name: &str) -> Outcome {
        let mut snapshots = self.api().snapshots();
        let labels = HashMap::from([("containerd.io/gc.root".to_owned(), "2036-01-01T00:00:00Z".to_owned())]);
        let (snapshotter, key, name) = ("overlayfs".to_owned(), key.to_owned(), name.to_owned());
        ask!(snapshots, commit, CommitSnapshotRequest { snapshotter, name, key, labels });
        Ok(())
    }

    /// A snapshot that nothing but a lease keeps, as clients make one before they make the record.
    pub async fn leased_snapshot(&self, lease: &str, key: &str, parent: &str) -> Failable<Vec<Mount>> {
        let mut leases = self.api().leases();
        ask!(leases, create, api::CreateRequest { id: lease.to_owned(), ..Default::default() });
        let (snapshotter, key, parent) = ("overlayfs".to_owned(), key.to_owned(), parent.to_owned());
        let message = PrepareSnapshotRequest { snapshotter, key, parent, ..Default::default() };
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", "k8s.io".parse()?);
        request.metadata_mut().insert("containerd-lease", lease.parse()?);
        Ok(self.api().snapshots().prepare(request).await?.into_inner().mounts)
    }

    pub async fn end_lease(&self, id: &str) -> Outcome {
        let mut leases = self.api().leases();
        ask!(leases, delete, api::DeleteRequest { id: id.to_owned(), sync: true });
        Ok(())
    }

    /// The record alone, with its labels.
    pub async fn record(&self, id: &str, labels: &BTreeMap<String, String>, args: &[&str]) -> Outcome {
        self.record_on(id, labels, args, &format!("{id}-snapshot")).await
    }

    pub async fn record_on(
        &self,
        id: &str,
        labels: &BTreeMap<String, String>,
        args: &[&str],
        snapshot_key: &str,
    ) -> Outcome {
        let annotations: BTreeMap<&str, &str> =
            self.group.iter().map(|group| ("io.containerd.runc.v2.group", *group)).collect();
        let spec = json!({
            "annotations": annotations,
            "ociVersion": "1.0.2",
            "process": { "args": args, "cwd": "/", "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 } },
            "root": { "path": "rootfs" },
            "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
            "linux": {
                "cgroupsPath": format!("{}/{id}", self.cgroup),
                "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" }],
            },
        });
        let runtime = api::container::Runtime { name: "io.containerd.runc.v2".into(), options: None };
        let spec = Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/Spec".into(),
            value: serde_json::to_vec(&spec)?,
        };
        let container = api::Container {
            id: id.to_owned(),
            labels: labels.clone().into_iter().collect(),
            runtime: Some(runtime),
            spec: Some(spec),
            snapshotter: "overlayfs".into(),
            snapshot_key: snapshot_key.to_owned(),
            ..api::Container::default()
        };
        let mut containers = self.api().containers();
        ask!(containers, create, api::CreateContainerRequest { container: Some(container) });
        Ok(())
    }

    /// FIFOs in a folder of their own, held open.
    pub fn fifos(&self, id: &str) -> Failable<[String; 3]> {
        let folder = self.host.fifo_root.join(format!("r{:08x}", fastrand_u32()));
        std::fs::create_dir_all(&folder)?;
        let mut paths: [String; 3] = Default::default();
        let names = match self.fifo_names {
            FifoNames::OfContainer => ["stdin", "stdout", "stderr"].map(|name| format!("{id}-{name}")),
            FifoNames::Plain => ["in", "out", "err"].map(str::to_owned),
        };
        for (path, name) in paths.iter_mut().zip(names) {
            let fifo = folder.join(name);
            mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            let handle = open(&fifo, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
            self.open.lock().unwrap().push(File::from(handle));
            *path = fifo.display().to_string();
        }
        Ok(paths)
    }

    /// A container as an agent makes it, with its task in this state.
    pub async fn create(&self, id: &str, labels: &BTreeMap<String, String>, state: State) -> Outcome {
        self.create_running(id, labels, state, &["sleep", "3600"]).await
    }

    pub async fn create_running(
        &self,
        id: &str,
        labels: &BTreeMap<String, String>,
        state: State,
        args: &[&str],
    ) -> Outcome {
        let rootfs = self.snapshot(&format!("{id}-snapshot"), &self.parent).await?;
        self.record(id, labels, args).await?;
        self.make_task(id, rootfs, state).await
    }

    /// A running container on a snapshot of this key. As many clients make one: under a lease, after which nothing but the
    /// record keeps the snapshot.
    pub async fn create_under_a_lease(&self, id: &str, snapshot_key: &str) -> Outcome {
        let rootfs = self.leased_snapshot(id, snapshot_key, &self.parent).await?;
        self.record_on(id, &BTreeMap::new(), &["sleep", "3600"], snapshot_key).await?;
        self.make_task(id, rootfs, State::Running).await?;
        self.end_lease(id).await
    }

    async fn make_task(&self, id: &str, rootfs: Vec<Mount>, state: State) -> Outcome {
        let [stdin, stdout, stderr] = self.fifos(id)?;
        if state == State::NoTask {
            return Ok(());
        }
        let mut tasks = self.api().tasks();
        let container_id = || id.to_owned();
        let message = api::CreateTaskRequest {
            container_id: container_id(),
            rootfs,
            stdin,
            stdout,
            stderr,
            ..Default::default()
        };
        let made = ask!(tasks, create, message);
        self.pids.lock().unwrap().insert(id.to_owned(), made.pid);
        if state == State::Created {
            return Ok(());
        }
        ask!(tasks, start, api::StartRequest { container_id: container_id(), exec_id: String::new() });
        match state {
            State::Paused => ask!(tasks, pause, api::PauseTaskRequest { container_id: container_id() }),
            State::Stopped => {
                let exec_id = String::new;
                ask!(
                    tasks,
                    kill,
                    api::KillRequest { container_id: container_id(), exec_id: exec_id(), signal: 9, all: true }
                );
                ask!(tasks, wait, api::WaitRequest { container_id: container_id(), exec_id: exec_id() });
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends a signal to the first process of a task, as an agent does.
    pub async fn signal(&self, id: &str, signal: u32) -> Outcome {
        let (container_id, exec_id) = (id.to_owned(), String::new());
        let mut tasks = self.api().tasks();
        ask!(tasks, kill, api::KillRequest { container_id, exec_id, signal, all: false });
        Ok(())
    }

    /// Waits for the end of a task. Returns its exit status.
    pub async fn exit_status(&self, id: &str) -> Failable<u32> {
        let (container_id, exec_id) = (id.to_owned(), String::new());
        let mut tasks = self.api().tasks();
        Ok(ask!(tasks, wait, api::WaitRequest { container_id, exec_id }).exit_status)
    }

    /// The container as the keeper reads it.
    pub async fn get(&self, id: &str) -> Option<Container> {
        self.client.get(id).await.unwrap()
    }

    /// Everything that is left of a container: nothing after it was cleaned.
    pub async fn traces(&self, container: &Container) -> Vec<String> {
        let mut left = self.cleaner().traces(container).await.unwrap();
        if self.get(&container.id).await.is_some() {
            left.push("its record".to_owned());
        }
        // Whatever the keeper thinks of it: with this no container of its ID can be made.
        let runc = Path::new("/run/containerd/runc/k8s.io").join(&container.id);
        if exists(&runc) && !left.iter().any(|trace| trace.contains("runc")) {
            left.push(runc.display().to_string());
        }
        left
    }

    /// The first process of the task that was made last under this ID.
    pub fn pid(&self, id: &str) -> u32 {
        self.pids.lock().unwrap()[id]
    }

    /// Status and first process of its task, as containerd has them now.
    async fn task_now(&self, id: &str) -> Failable<Option<(State, u32)>> {
        let mut tasks = self.api().tasks();
        let message = api::GetRequest { container_id: id.to_owned(), exec_id: String::new() };
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", "k8s.io".parse()?);
        let Some(process) = tasks.get(request).await.ok().and_then(|answer| answer.into_inner().process) else {
            return Ok(None);
        };
        let status = match process.status {
            1 => State::Created,
            2 => State::Running,
            3 => State::Stopped,
            4 | 5 => State::Paused,
            other => return Err(format!("the task of {id} is {other}").into()),
        };
        Ok(Some((status, process.pid)))
    }

    /// Whether it is as it was made: its record without a label of the keeper, its task in this state with the same first
    /// process, its bundle, its FIFOs and its snapshot.
    pub async fn is_untouched(&self, id: &str, state: State) -> bool {
        let Some(container) = self.get(id).await else { return false };
        let own = container.labels.keys().any(|key| key.starts_with("caretaker.dev/"));
        let made = (state != State::NoTask).then(|| (state, self.pid(id)));
        let task = self.task_now(id).await.unwrap() == made;
        let bundle = exists(&self.bundle(id).join("config.json")) == made.is_some();
        let fifos = self.host.fifos(id).unwrap().len() == 3;
        let snapshot = self.client.snapshot_bytes("overlayfs", &container.snapshot_key).await.unwrap().is_some();
        let all = [("labels", !own), ("task", task), ("bundle", bundle), ("FIFOs", fifos), ("snapshot", snapshot)];
        let other: Vec<&str> = all.iter().filter(|(_, same)| !same).map(|(what, _)| *what).collect();
        if !other.is_empty() {
            eprintln!("{id} is not as it was made, {state:?}: {other:?}, {:?}", self.task_now(id).await);
        }
        other.is_empty()
    }

    pub fn bundle(&self, id: &str) -> PathBuf {
        self.host.bundle(id)
    }

    /// Lets go of all FIFOs, as the death of an agent does.
    pub fn close_fifos(&self) {
        self.open.lock().unwrap().clear();
    }
}

fn fastrand_u32() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    u32::try_from(RandomState::new().hash_one(0) & 0xffff_ffff).unwrap_or_default()
}

pub fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (format!("fast-sandbox.io/{key}"), (*value).to_owned())).collect()
}

/// The labels of a container that belongs to nobody.
pub fn orphan() -> BTreeMap<String, String> {
    labels(&[("managed", "true"), ("agent-uid", "gone"), ("sandbox-name", "box")])
}

/// A time that is later than the creation of every container.
pub fn now() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// True if the process runs.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
