//! A real Kubernetes cluster for tests and for the command line.
//!
//! [`Cluster`] starts etcd and kube-apiserver on a free port in about four seconds; several clusters
//! can run at the same time. The builder adds the controller-manager, the scheduler and a real node
//! that runs pods. A cluster ends when its value is dropped, and also when the test process is
//! killed: a supervisor process reads from a pipe that closes with the test process.
//!
//! The other modules help to test an operator: [`faults`] is a client that fails or dies at the n-th
//! call; [`flux`] runs Flux's own controllers; [`helm`] installs charts; [`audit`] lists the calls that reached the
//! server; [`make`] builds small valid objects; [`harness`] counts tests as skipped on machines that cannot run them;
//! [`prometheus`] reads metrics; [`release`] builds the images.
//!
//! No shipped crate depends on this one.

pub mod assets;
pub mod audit;
pub mod audited;
mod cluster;
pub mod containerd;
mod error;
pub mod faults;
pub mod flux;
mod go_build;
pub mod harness;
pub mod helm;
pub mod image;
pub mod kdoctor;
mod kubeconfig;
pub mod make;
mod node;
pub mod operator;
mod pki;
pub mod prometheus;
mod range;
pub mod release;
mod supervise;
mod wait;

use std::sync::OnceLock;

pub use cluster::{Cluster, ClusterBuilder};
pub use error::{Error, Result};
pub use node::Node;
pub use pki::Identity;
pub use wait::until;

/// Returns the one control plane of this test binary: etcd, API server and controllers.
///
/// The first call starts it. Each test uses its own namespaces and users on it. The cluster is never
/// dropped; the supervisor ends it when the process ends.
///
/// # Panics
/// If the cluster does not start, with the reason. Later calls panic with the same reason and do not
/// start it again.
pub fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    // On its own thread: the caller may be inside a runtime, which must not block on a second one.
    unwrap_cluster(CLUSTER.get_or_init(|| on_own_thread(|| Cluster::builder().controllers().start())))
}

/// Like [`shared`], without controllers: nothing but the test creates, changes or deletes objects.
///
/// # Panics
/// If the cluster does not start, with the reason.
pub fn shared_without_controllers() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    unwrap_cluster(CLUSTER.get_or_init(|| on_own_thread(|| Cluster::builder().start())))
}

/// Like [`shared`], with a real node.
///
/// # Panics
/// If the cluster does not start, with the reason. Check [`Node::possible`] first.
pub fn shared_with_node() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    unwrap_cluster(CLUSTER.get_or_init(|| on_own_thread(|| Cluster::builder().node().start())))
}

fn unwrap_cluster(started: &Result<Cluster, String>) -> &Cluster {
    match started {
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
