//! A real Kubernetes cluster for tests and for the command line.
//!
//! [`Cluster`] starts etcd and kube-apiserver on a free port in about four seconds; several clusters
//! can run at the same time. The builder adds the controller-manager, the scheduler and a real node
//! that runs pods. A cluster ends when its value is dropped, and also when the test process is
//! killed: a supervisor process reads from a pipe that closes with the test process.
//!
//! The other modules help to test an operator: [`faults`] is a client that fails or dies at the n-th call; [`audit`] lists
//! the calls that reached the server; [`make`] builds small valid objects; [`definitions`] has kinds of other projects;
//! [`containerd`] runs containers without a kubelet; [`harness`] counts tests as skipped on machines that cannot run them.
//! `README.md` says what the machine needs and has a first test.
//!
//! No shipped crate depends on this one.

pub mod assets;
pub mod audit;
mod cluster;
pub mod containerd;
pub mod definitions;
mod error;
pub mod faults;
pub mod go_build;
pub mod harness;
pub mod image;
mod kubeconfig;
pub mod make;
mod node;
mod pki;
mod range;
mod supervise;
mod wait;

use std::sync::OnceLock;

pub use cluster::{Cluster, ClusterBuilder};
pub use error::{Error, Result};
pub use node::{Node, find_program};
pub use pki::Identity;
pub use wait::until;

type Shared = OnceLock<Result<Cluster, String>>;

/// Returns the one control plane of this test binary: etcd, API server and controllers.
///
/// The first call starts it. Each test uses its own namespaces and users on it. The cluster is never
/// dropped; the supervisor ends it when the process ends.
///
/// # Panics
/// If the cluster does not start, with the reason. Later calls panic with the same reason and do not
/// start it again.
#[must_use]
pub fn shared() -> &'static Cluster {
    static CLUSTER: Shared = OnceLock::new();
    start_once(&CLUSTER, Cluster::builder().controllers())
}

/// Like [`shared`], without controllers: nothing but the test creates, changes or deletes objects.
///
/// # Panics
/// If the cluster does not start, with the reason.
#[must_use]
pub fn shared_without_controllers() -> &'static Cluster {
    static CLUSTER: Shared = OnceLock::new();
    start_once(&CLUSTER, Cluster::builder())
}

/// Like [`shared`], with a real node.
///
/// # Panics
/// If the cluster does not start, with the reason. Check [`Node::possible`] first.
#[must_use]
pub fn shared_with_node() -> &'static Cluster {
    static CLUSTER: Shared = OnceLock::new();
    start_once(&CLUSTER, Cluster::builder().node())
}

fn start_once(cluster: &'static Shared, builder: ClusterBuilder) -> &'static Cluster {
    // On its own thread: the caller may be inside a runtime, which must not block on a second one.
    match cluster.get_or_init(|| on_own_thread(|| builder.start())) {
        Ok(cluster) => cluster,
        Err(reason) => panic!("the test cluster did not start: {reason}"),
    }
}

fn on_own_thread<Fut: Future<Output = Result<Cluster>>>(start: impl FnOnce() -> Fut + Send) -> Result<Cluster, String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the Tokio runtime starts");
            runtime.block_on(start()).map_err(|e| e.to_string())
        });
        thread.join().unwrap_or_else(|_| Err("the thread that starts it panicked".to_owned()))
    })
}

/// True if this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
