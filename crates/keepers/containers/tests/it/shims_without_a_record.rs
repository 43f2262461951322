//! Which shims without a record are ended. The process is real, and everything that says what it is, is in files.

use std::path::Path;
use std::process::{Child, Command};

use crate::support::memory::InMemory;
use caretaker_containers::act::residue::{self, Removal, Residue};
use caretaker_containers::host::{Host, Shim};
use rstest::rstest;
use tempfile::TempDir;

const ID: &str = "lost";
const SPEC: &str = r#"{"linux":{"cgroupsPath":"/nowhere/lost"}}"#;
const OF_A_POD: &str =
    r#"{"annotations":{"io.kubernetes.cri.container-type":"sandbox"},"linux":{"cgroupsPath":"/nowhere/lost"}}"#;

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A node on which a process looks like the shim of a container that containerd does not know.
struct Node {
    _folder: TempDir,
    host: Host,
    process: Child,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let host = Host {
            fifo_root: path("fifo"),
            state: path("state"),
            proc: path("proc"),
            cgroups: path("cgroup"),
            ..Host::default()
        };
        let process = Command::new("sleep").arg("3600").spawn().unwrap();
        let line = format!("containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0{ID}\0");
        write(&host.proc.join(process.id().to_string()).join("cmdline"), &line);
        Self { _folder: folder, host, process }
    }

    fn with_bundle(self, spec: Option<&str>) -> Self {
        std::fs::create_dir_all(self.host.bundle(ID)).unwrap();
        if let Some(spec) = spec {
            write(&self.host.bundle(ID).join("config.json"), spec);
        }
        self
    }

    fn shim(&self) -> Residue {
        Residue::Shim(Shim { id: ID.to_owned(), pid: self.process.id() })
    }

    async fn found(&self) -> Vec<String> {
        let found = residue::find(&InMemory::default(), &self.host, "overlayfs").await.unwrap();
        found.iter().map(ToString::to_string).collect()
    }

    async fn remove(&self, residue: &Residue) -> Result<Removal, String> {
        residue::remove(&InMemory::default(), &self.host, residue).await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn one_whose_bundle_says_that_nothing_of_it_runs_is_ended() {
    let mut node = Node::new().with_bundle(Some(SPEC));
    assert_eq!(node.found().await, [node.shim().to_string(), "bundle of lost".to_owned()]);

    assert_eq!(node.remove(&node.shim()).await, Ok(Removal::Removed));

    assert!(!node.process.wait().unwrap().success(), "it was killed");
}

/// containerd 2 has no record of a sandbox that it runs by `sandboxer = "shim"`.
#[rstest]
#[case::without_a_bundle(Node::new(), "it has no bundle")]
#[case::with_a_bundle_without_a_spec(Node::new().with_bundle(None), "config.json")]
#[case::with_a_spec_that_says_nothing(Node::new().with_bundle(Some("{}")), "config.json")]
#[tokio::test]
async fn one_of_which_nobody_knows_what_it_runs_is_reported_and_stays(#[case] mut node: Node, #[case] why: &str) {
    assert!(node.found().await.contains(&node.shim().to_string()), "{:?}", node.found().await);

    let removed = node.remove(&node.shim()).await;

    assert!(matches!(&removed, Ok(Removal::Kept(said)) if said.contains(why)), "{removed:?}");
    assert!(node.process.try_wait().unwrap().is_none(), "it runs");
}

#[tokio::test]
async fn what_the_kubelet_has_made_is_no_residue_and_stays() {
    let mut node = Node::new().with_bundle(Some(OF_A_POD));
    assert_eq!(node.found().await, [""; 0]);

    for residue in [node.shim(), Residue::Bundle(ID.to_owned()), Residue::Fifos(ID.to_owned())] {
        let removed = node.remove(&residue).await;
        assert!(matches!(&removed, Ok(Removal::Kept(said)) if said.contains("kubelet")), "{residue}: {removed:?}");
    }

    assert!(node.process.try_wait().unwrap().is_none() && node.host.bundle(ID).exists());
}
