//! A real Kubernetes for tests, and for people who want to try something.
//!
//! No test of Caretaker talks to a mock of the API server. [`Cluster`] starts the real one, with
//! etcd, on a free port, in about four seconds, as many at once as memory allows; if asked, with
//! the controllers, the scheduler and a real node on which pods run. It ends with the value that
//! holds it, and also when the process that holds it is killed: a supervisor holds the other end of a pipe.
//!
//! Around it stands what makes a test of an operator honest: [`faults`], a client that fails or
//! dies at the n-th call; [`audit`], what really reached the server; [`make`], small valid objects;
//! [`harness`], tests that are counted as skipped where the machine cannot run them.
//!
//! No shipped crate depends on this one.

pub mod assets;
pub mod audit;
pub mod audited;
mod cluster;
mod error;
pub mod faults;
pub mod harness;
pub mod image;
mod kubeconfig;
pub mod make;
mod node;
pub mod operator;
mod pki;
mod range;
mod supervise;
mod wait;

use std::sync::OnceLock;

pub use cluster::{Cluster, ClusterBuilder};
pub use error::{Error, Result};
pub use node::Node;
pub use pki::Identity;
pub use wait::until;

/// One control plane for all tests of this test binary: etcd, API server and controllers.
///
/// Tests share it by using namespaces and users of their own. It is never dropped; the supervisor
/// ends it with the process.
///
/// # Panics
/// If it does not start, with the reason: without it no test can run. It is not tried again for the
/// next test.
pub fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    // A thread of its own: the caller may be inside a runtime, which must not be blocked by another.
    started(CLUSTER.get_or_init(|| on_own_thread(|| Cluster::builder().controllers().start())))
}

/// Like [`shared`], without controllers: objects are what the test makes of them, nothing follows
/// from them, and nothing else takes time.
///
/// # Panics
/// If it does not start, with the reason.
pub fn shared_without_controllers() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    started(CLUSTER.get_or_init(|| on_own_thread(|| Cluster::builder().start())))
}

/// Like [`shared`], with a real node.
///
/// # Panics
/// If it does not start, with the reason. Ask [`Node::possible`] first.
pub fn shared_with_node() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    started(CLUSTER.get_or_init(|| on_own_thread(|| Cluster::builder().node().start())))
}

fn started(outcome: &Result<Cluster, String>) -> &Cluster {
    match outcome {
        Ok(cluster) => cluster,
        Err(why) => panic!("no cluster: {why}"),
    }
}

fn on_own_thread<Fut: Future<Output = Result<Cluster>>>(start: impl FnOnce() -> Fut + Send) -> Result<Cluster, String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(start()).map_err(|e| e.to_string())
        });
        thread.join().unwrap_or_else(|_| Err("its start panicked".to_owned()))
    })
}

/// Whether this process may do everything on this machine.
#[must_use]
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
