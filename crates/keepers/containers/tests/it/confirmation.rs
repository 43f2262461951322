//! The last word before a removal is what the API server says now, about the definition of Sandboxes and about itself too.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::support::memory::InMemory;
use crate::support::model::api::ModelApi;
use crate::support::model::{RealPod, RealSandbox, Truth, name};
use crate::support::once::{Remembered, once};
use caretaker_containers::containerd::{Task, TaskStatus};
use caretaker_containers::controller::scan;
use caretaker_containers::host::Host;
use caretaker_containers::subject::Container;
use caretaker_containers::{Containers, Settings};
use caretaker_core::{SignedDuration, Timestamp};
use rstest::rstest;
use rustix::fs::{CWD, FileType, Mode, mknodat};

const NODE: &str = "node-1";
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

fn now() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

/// An agent with a Sandbox, and three containers of both, past the window.
struct Node {
    memory: Arc<InMemory>,
    api: ModelApi,
    keeper: Arc<Containers>,
}

impl Node {
    fn new(folder: &Path) -> Self {
        let (memory, none) = (Arc::new(InMemory::default()), folder.join("none"));
        let (fifo_root, state, runc) = (none.clone(), none.clone(), none.clone());
        let host = Host { fifo_root, state, runc, proc: folder.join("proc"), cgroups: none, ..Host::default() };
        std::fs::create_dir_all(host.proc.join("self")).unwrap();
        std::fs::write(host.proc.join("self/mountinfo"), "").unwrap();
        let mut truth = Truth::new(NODE, now(), WINDOW);
        let pod = RealPod { uid: "agent-uid".to_owned(), phase: "Running", terminating: false, node: NODE };
        truth.pods.insert(name("shop", "agent"), pod);
        truth.sandboxes.insert(name("shop", "box"), RealSandbox { phase: "Running", ..RealSandbox::default() });
        for n in 0..3 {
            let id = format!("sb-{n}");
            let owner = [("managed", "true"), ("agent-uid", "agent-uid"), ("agent-name", "agent")];
            let owner = owner.into_iter().chain([("namespace", "shop"), ("sandbox-name", "box")]);
            let labels: BTreeMap<String, String> =
                owner.map(|(key, value)| (format!("fast-sandbox.io/{key}"), value.to_owned())).collect();
            let created = Some(now() - WINDOW - WINDOW);
            let container = Container { id: id.clone(), created, labels, ..Container::default() };
            memory.records().containers.insert(id, container);
        }
        let keeper = Containers::new(Settings::new(NODE, "none"), memory.clone(), host);
        Self { memory, api: ModelApi::new(truth), keeper: Arc::new(keeper) }
    }

    /// How each cleaning ended, and Events.
    async fn round(&self) -> Vec<(String, String)> {
        let scanned = scan(&*self.memory, &self.keeper.settings().labels, self.keeper.node_name()).await.unwrap();
        once(&self.keeper, &self.api, &scanned, &mut Remembered::new()).await
    }

    fn left(&self) -> usize {
        self.memory.records().containers.len()
    }
}

/// How many containers ended like this.
fn outcomes(ended: &[(String, String)], outcome: &str) -> usize {
    ended.iter().filter(|(id, text)| id != "Event" && text.contains(outcome)).count()
}

/// A FIFO that an agent has made elsewhere is not removed. That it stays is told where a person looks.
#[tokio::test]
async fn a_fifo_outside_of_the_root_stays_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path());
    let outside = folder.path().join("sb-1-stdout");
    mknodat(CWD, &outside, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let outside = outside.display().to_string();
    {
        let mut state = node.api.0.lock().unwrap();
        state.truth.pods.clear();
        state.delivered = state.truth.clone();
        let fifos = [folder.path().join("gone").display().to_string(), outside.clone(), String::new()];
        node.memory.records().tasks.insert("sb-1".to_owned(), Task { status: TaskStatus::Running, fifos });
    }

    let ended = node.round().await;

    assert!(Path::new(&outside).exists() && node.left() == 0);
    let told: Vec<&(String, String)> = ended.iter().filter(|(_, text)| text.contains("not removed")).collect();
    let [(id, journal), (event, text)] = told.as_slice() else { panic!("{ended:?}") };
    assert_eq!((id.as_str(), event.as_str()), ("sb-1", "Event"));
    assert!([journal, text].iter().all(|text| text.ends_with(&format!("--fifo-root: {outside}"))), "{told:?}");
}

/// The watch of Sandboxes has delivered their end, and that of definitions nothing yet.
#[rstest]
#[case::being_deleted(true, "NoDefinition")]
#[case::as_before(false, "done")]
#[tokio::test]
async fn a_definition_whose_deletion_no_watch_has_delivered_yet_keeps_everything(
    #[case] ending: bool,
    #[case] outcome: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path());
    {
        let mut state = node.api.0.lock().unwrap();
        state.truth.sandboxes.clear();
        state.delivered = state.truth.clone();
        state.truth.ending = ending;
    }

    let ended = node.round().await;

    assert_eq!(outcomes(&ended, outcome), 3, "{ended:?}");
    assert_eq!(node.left(), if ending { 3 } else { 0 });
}

/// The Sandbox is found missing while the definition is whole; a moment later the definition is being deleted.
#[tokio::test]
async fn a_definition_that_is_deleted_after_its_sandboxes_were_read_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path());
    {
        let mut state = node.api.0.lock().unwrap();
        state.truth.sandboxes.clear();
        state.delivered = state.truth.clone();
        state.after_read = Some(("sandboxes/shop/box", |truth| truth.ending = true));
    }

    let ended = node.round().await;

    assert_eq!(outcomes(&ended, "NoDefinition"), 3, "{ended:?}");
    assert_eq!(node.left(), 3);
}

/// The endpoint leads to another cluster before, or while, the agents are read; it serves Sandboxes and has none of ours.
#[rstest]
#[case::before_the_reads(None, "NotOurNode")]
#[case::while_it_reads(Some("pods/shop/agent"), "NotOurNode")]
#[case::never(Some("nothing"), "done")]
#[tokio::test]
async fn another_cluster_at_the_same_endpoint_keeps_everything(
    #[case] after: Option<&'static str>,
    #[case] outcome: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path());
    {
        let mut state = node.api.0.lock().unwrap();
        state.truth.pods.clear();
        state.delivered = state.truth.clone();
        match after {
            None => state.truth.doubted = true,
            Some(read) => state.after_read = Some((read, |truth| truth.doubted = true)),
        }
    }

    let ended = node.round().await;

    assert_eq!(outcomes(&ended, outcome), 3, "{ended:?}");
    assert_eq!(node.left(), if outcome == "done" { 0 } else { 3 });
}
