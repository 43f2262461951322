//! The order of a cleaning, call by call, and what it does with the calls of a process that was killed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::faulty::Mortal;
use crate::support::memory;
use crate::support::memory::{InMemory, Records};
use caretaker_containers::act::clean::{Cleaned, Cleaner};
use caretaker_containers::api::{BYTES_LABEL, FIFO_LABELS};
use caretaker_containers::containerd::{Snapshot, SnapshotKind, Task, TaskStatus};
use caretaker_containers::host::Host;
use caretaker_containers::subject::Container;
use caretaker_core::Timestamp;
use caretaker_engine::ApplyError;
use rstest::rstest;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

const ID: &str = "sb-1";

/// A containerd with one container that has everything, on a node of files.
struct Node {
    folder: TempDir,
    memory: Arc<InMemory>,
    host: Arc<Host>,
    container: Container,
    /// Every call, and between them what the node has lost.
    seen: Arc<Mutex<Vec<&'static str>>>,
}

impl Node {
    fn new(status: Option<TaskStatus>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let host = Host {
            fifo_root: path("fifo"),
            state: path("state"),
            runc: path("runc"),
            proc: path("proc"),
            cgroups: path("cgroup"),
            ..Host::default()
        };
        std::fs::create_dir_all(path("proc/self")).unwrap();
        std::fs::write(path("proc/self/mountinfo"), "").unwrap();
        std::fs::create_dir_all(host.bundle(ID)).unwrap();
        std::fs::create_dir_all(path("fifo/r")).unwrap();
        let fifos = ["stdin", "stdout", "stderr"].map(|name| path("fifo/r").join(format!("{ID}-{name}")));
        for fifo in &fifos {
            mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        }
        let container = Container {
            id: ID.to_owned(),
            created: "2036-01-10T00:00:00Z".parse().ok(),
            snapshotter: "memory".to_owned(),
            snapshot_key: format!("{ID}-snapshot"),
            ..Container::default()
        };
        let memory = Arc::new(InMemory::default());
        {
            let mut records = memory.records();
            records.containers.insert(ID.to_owned(), container.clone());
            records.snapshots.insert(container.snapshot_key.clone());
            if let Some(status) = status {
                let fifos = fifos.map(|fifo| fifo.display().to_string());
                records.tasks.insert(ID.to_owned(), Task { status, fifos });
            }
        }
        let (seen, host): (Arc<Mutex<Vec<&'static str>>>, _) = (Arc::default(), Arc::new(host));
        let (noted, places) = (seen.clone(), [(path("fifo/r"), "(FIFOs gone)"), (host.bundle(ID), "(bundle gone)")]);
        *memory.on_call.lock().unwrap() = Some(Box::new(move |call| note(&mut noted.lock().unwrap(), &places, call)));
        Self { folder, memory, host, container, seen }
    }

    fn cleaner(&self) -> Cleaner {
        Cleaner::new(self.memory.clone(), self.host.clone())
    }

    fn seen(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().clone()
    }
}

fn note(seen: &mut Vec<&'static str>, places: &[(PathBuf, &'static str)], call: &'static str) {
    for (place, gone) in places {
        if !place.exists() && !seen.contains(gone) {
            seen.push(gone);
        }
    }
    seen.push(call);
}

fn now() -> Timestamp {
    "2036-01-10T01:00:00Z".parse().unwrap()
}

/// What it needs later is written down before anything ends.
const BEGIN: &[&str] = &["get", "task", "snapshot_bytes", "set_labels"];
const KILL: &[&str] = &["get", "wait", "kill"];
const DELETE_TASK: &[&str] = &["get", "delete_task"];
/// The record goes last, when it is verified that nothing else is left.
const REMOVE_ALL: &[&str] = &[
    "snapshot",
    "list_all",
    "get",
    "remove_snapshot",
    "get",
    "(FIFOs gone)",
    "task",
    "get",
    "(bundle gone)",
    "task",
    "snapshot",
    "get",
    "delete_container",
];

#[rstest]
#[case::without_a_task(None, &[BEGIN, REMOVE_ALL])]
#[case::created(Some(TaskStatus::Created), &[BEGIN, KILL, DELETE_TASK, REMOVE_ALL])]
#[case::running(Some(TaskStatus::Running), &[BEGIN, KILL, DELETE_TASK, REMOVE_ALL])]
#[case::paused(Some(TaskStatus::Paused), &[BEGIN, KILL, DELETE_TASK, REMOVE_ALL])]
#[case::stopped(Some(TaskStatus::Stopped), &[BEGIN, DELETE_TASK, REMOVE_ALL])]
#[tokio::test]
async fn every_state_is_cleaned_in_this_order(#[case] status: Option<TaskStatus>, #[case] expected: &[&[&str]]) {
    let node = Node::new(status);

    node.cleaner().clean(&node.container, now()).await.unwrap();

    assert_eq!(node.seen(), expected.concat());
    assert!(node.memory.records().containers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_paused_task_that_does_not_end_is_resumed_and_killed_again() {
    let node = Node::new(Some(TaskStatus::Paused));
    node.memory.records().frozen.insert(ID.to_owned());

    node.cleaner().clean(&node.container, now()).await.unwrap();

    let again: &[&str] = &["task", "get", "resume", "wait", "kill"];
    assert_eq!(node.seen(), [BEGIN, KILL, again, DELETE_TASK, REMOVE_ALL].concat());
}

#[tokio::test]
async fn a_task_of_an_unknown_state_ends_nothing_and_removes_nothing() {
    let node = Node::new(Some(TaskStatus::Unknown));

    let refused = node.cleaner().clean(&node.container, now()).await.unwrap_err().to_string();

    assert!(refused.contains("its shim does not say"), "{refused}");
    assert_eq!(node.seen(), BEGIN);
}

/// Without a task nothing but their names tells of the FIFOs, and nothing at all of their folder once they are gone.
#[tokio::test]
async fn killed_between_the_last_fifo_and_its_folder_the_next_run_removes_the_folder() {
    let node = Node::new(None);
    let mortal = Arc::new(Mortal::new(node.memory.clone(), BEGIN.len(), true));
    let dying = Cleaner::new(mortal.clone(), node.host.clone());
    tokio::select! {
        _ = dying.clean(&node.container, now()) => panic!("it dies"),
        () = mortal.death() => {}
    }
    for fifo in node.host.fifos(ID).unwrap() {
        std::fs::remove_file(fifo).unwrap();
    }
    let labels = node.memory.records().containers[ID].labels.clone();
    assert!(FIFO_LABELS.iter().all(|key| labels.contains_key(*key)), "{labels:?}");

    node.cleaner().clean(&node.container, now()).await.unwrap();

    assert!(!node.folder.path().join("fifo/r").exists());
}

impl Node {
    /// Shows a process of containerd that deletes the container, as containerd runs one when a shim is gone.
    fn begin_delete(&self) -> PathBuf {
        let process = self.host.proc.join("7");
        let bundle = self.host.bundle(ID);
        let flags = format!("-namespace k8s.io -id {ID} -bundle {}", bundle.display());
        let line = format!("containerd-shim-runc-v2 {flags} delete ").replace(' ', "\0");
        std::fs::create_dir_all(&process).unwrap();
        std::fs::write(process.join("cmdline"), line).unwrap();
        std::fs::write(bundle.join("config.json"), r#"{"linux":{"cgroupsPath":"/none/sb-1"}}"#).unwrap();
        process
    }
}

#[tokio::test(start_paused = true)]
async fn what_containerd_deletes_is_left_to_it_until_that_has_ended() {
    let node = Node::new(None);
    let (process, seen) = (node.begin_delete(), node.seen.clone());
    let containerd = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        std::fs::remove_dir_all(process).unwrap();
        seen.lock().unwrap().push("(deleted)");
    };

    let cleaner = node.cleaner();
    let (done, ()) = tokio::join!(cleaner.clean(&node.container, now()), containerd);

    done.unwrap();
    let seen = node.seen();
    let place = |what: &str| seen.iter().position(|one| *one == what);
    assert!(place("(deleted)").unwrap() < place("(bundle gone)").unwrap(), "{seen:?}");
}

/// Any process of the node may look like one.
#[tokio::test(start_paused = true)]
async fn a_deletion_by_containerd_that_never_ends_does_not_keep_the_container() {
    let node = Node::new(Some(TaskStatus::Running));
    node.begin_delete();

    node.cleaner().clean(&node.container, now()).await.unwrap();

    assert!(node.memory.records().containers.is_empty() && !node.host.bundle(ID).exists());
}

/// The same where somebody else has deleted the record.
#[tokio::test(start_paused = true)]
async fn a_deletion_by_containerd_that_never_ends_does_not_keep_what_has_no_record() {
    let node = Node::new(None);
    node.begin_delete();
    *node.memory.records() = Records::default();
    std::fs::remove_dir_all(node.host.fifo_root.join("r")).unwrap();

    node.cleaner().clean(&node.container, now()).await.unwrap();

    assert!(!node.host.bundle(ID).exists());
}

/// Labels of the keeper that came with an image name a FIFO of another container, and a size.
#[tokio::test]
async fn labels_that_a_container_has_inherited_remove_and_report_nothing() {
    let mut node = Node::new(None);
    let (other, inherited) =
        (node.host.fifo_root.join("x"), Container { created: Some(now()), ..Container::default() });
    std::fs::create_dir_all(&other).unwrap();
    let (first, second) = (other.join("sb-2-stdin"), other.join("sb-2-stdout"));
    for fifo in [&first, &second] {
        mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    // As somebody would write them by hand, and as the keeper wrote them on another container.
    let labels = [
        (FIFO_LABELS[0], first.display().to_string()),
        (FIFO_LABELS[1], inherited.seal(&second.display().to_string()).unwrap()),
        (BYTES_LABEL, "1000000000000".to_owned()),
    ];
    node.container.labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    node.memory.records().containers.insert(ID.to_owned(), node.container.clone());
    // Without FIFOs of its own nothing overwrites the labels.
    std::fs::remove_dir_all(node.host.fifo_root.join("r")).unwrap();

    let cleaned = node.cleaner().clean(&node.container, now()).await.unwrap();

    assert!(first.exists() && second.exists(), "they are of another container");
    assert_eq!((cleaned.bytes, cleaned.foreign_fifos), (7, Vec::new()));
}

fn named_by_another(records: &mut Records) {
    let other = Container { id: "sb-2".to_owned(), ..records.containers[ID].clone() };
    records.containers.insert(other.id.clone(), other);
}

fn committed(records: &mut Records) {
    let key = records.containers[ID].snapshot_key.clone();
    let snapshot = Snapshot { kind: SnapshotKind::Committed, ..memory::active("memory", &key) };
    records.special.insert(key, snapshot);
}

/// A record may name any snapshot as its own.
#[rstest]
#[case::that_is_the_root_of_another_container(named_by_another)]
#[case::that_others_are_made_of(committed)]
#[tokio::test]
async fn a_snapshot_stays_when_its_container_goes(#[case] share: fn(&mut Records)) {
    let node = Node::new(Some(TaskStatus::Running));
    share(&mut node.memory.records());

    let cleaned = node.cleaner().clean(&node.container, now()).await.unwrap();

    let records = node.memory.records();
    assert!(records.snapshots.contains(&node.container.snapshot_key) && !records.containers.contains_key(ID));
    assert_eq!(cleaned.bytes, 0, "nothing was freed");
}

/// Snapshotters have keys of their own.
#[tokio::test]
async fn a_snapshot_goes_when_a_record_of_another_snapshotter_names_its_key() {
    let node = Node::new(None);
    named_by_another(&mut node.memory.records());
    node.memory.records().containers.get_mut("sb-2").unwrap().snapshotter = "other".to_owned();

    let cleaned = node.cleaner().clean(&node.container, now()).await.unwrap();

    assert!(node.memory.records().snapshots.is_empty());
    assert_eq!(cleaned.bytes, 7);
}

/// Whatever was judged: the kubelet takes care of what it has made.
#[tokio::test]
async fn a_container_of_the_kubelet_is_refused_before_anything_is_changed() {
    let mut node = Node::new(Some(TaskStatus::Running));
    node.container.labels.insert("io.cri-containerd.kind".to_owned(), "sandbox".to_owned());
    node.memory.records().containers.insert(ID.to_owned(), node.container.clone());

    let refused = node.cleaner().clean(&node.container, now()).await.unwrap_err().to_string();

    assert!(refused.contains("the kubelet has made it"), "{refused}");
    assert_eq!(node.seen(), [""; 0]);
}

/// What somebody else does to the record before the n-th read; `false` if there is no n-th.
async fn disturbed(node: &Node, n: usize, disturb: fn(&mut Records)) -> Option<Result<Cleaned, ApplyError>> {
    let memory = Arc::downgrade(&node.memory);
    let act = move || disturb(&mut memory.upgrade().unwrap().records());
    *node.memory.at_read.lock().unwrap() = Some((n, Box::new(act)));
    let ended = node.cleaner().clean(&node.container, now()).await;
    node.memory.at_read.lock().unwrap().is_none().then_some(ended)
}

/// Without its record containerd knows of no task. What is on the node is removed all the same, and what cannot be is told.
#[tokio::test(start_paused = true)]
async fn a_record_that_somebody_else_deletes_meanwhile_does_not_count_as_cleaned() {
    for n in 1.. {
        let node = Node::new(Some(TaskStatus::Running));
        std::fs::write(node.host.bundle(ID).join("config.json"), r#"{"linux":{"cgroupsPath":"/none/sb-1"}}"#).unwrap();
        let Some(ended) = disturbed(&node, n, |records| _ = records.containers.remove(ID)).await else {
            assert!(n > 6, "only {n} reads");
            return;
        };
        let has_snapshot = !node.memory.records().snapshots.is_empty();
        // Before its FIFOs are written down nothing but their names says whose they are; another container may have them.
        let has_fifos = !node.host.fifos(ID).unwrap().is_empty();
        assert_eq!(has_fifos, n == 1, "before read {n}");
        assert!(!node.host.bundle(ID).exists(), "before read {n}");
        match ended {
            Ok(_) => assert!(!has_snapshot && !has_fifos, "before read {n}: it is not clean"),
            Err(error) => {
                let text = error.to_string();
                assert!(has_snapshot && text.contains("left: the snapshot sb-1-snapshot"), "before read {n}: {text}");
            }
        }
    }
}

/// Another container of its ID keeps everything, whenever it appears.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_made_again_meanwhile_stops_it() {
    for n in 1.. {
        let node = Node::new(Some(TaskStatus::Running));
        let again = |records: &mut Records| {
            let container = records.containers.get_mut(ID).unwrap();
            container.created = "2036-01-10T00:30:00Z".parse().ok();
            container.labels.clear();
        };
        let Some(ended) = disturbed(&node, n, again).await else {
            assert!(n > 6, "only {n} reads");
            return;
        };
        assert!(matches!(ended, Err(ApplyError::Stale(_))), "before read {n}: {ended:?}");
        assert!(node.memory.records().containers[ID].labels.is_empty(), "before read {n}");
        let calls = node.seen();
        assert_eq!(calls.last(), Some(&"get"), "nothing follows: {calls:?}");
    }
}

/// Nobody but the task knows of it; after a crash nobody but the labels does.
#[tokio::test]
async fn a_fifo_outside_of_the_root_is_told_also_by_the_run_after_a_crash() {
    let node = Node::new(Some(TaskStatus::Running));
    let outside = node.folder.path().join("outside");
    mknodat(CWD, &outside, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let outside = outside.display().to_string();
    node.memory.records().tasks.get_mut(ID).unwrap().fifos[1].clone_from(&outside);
    let calls = [BEGIN, KILL, DELETE_TASK].concat().len();
    let mortal = Arc::new(Mortal::new(node.memory.clone(), calls, true));
    let dying = Cleaner::new(mortal.clone(), node.host.clone());
    tokio::select! {
        _ = dying.clean(&node.container, now()) => panic!("it dies"),
        () = mortal.death() => {}
    }
    assert!(node.memory.records().tasks.is_empty());

    let cleaned = node.cleaner().clean(&node.container, now()).await.unwrap();

    assert_eq!(cleaned.foreign_fifos, [outside]);
}
