//! Programs beside a test cluster.
//!
//! [`operator`] runs `caretaker run` as a process, and [`audited`] a cluster whose API server sends its audit events there.
//! [`flux`] runs Flux's own controllers, [`helm`] installs charts, [`prometheus`] reads metrics, and [`kdoctor`] has the
//! definitions that kdoctor ships. Each is found or built once and kept in the cache of the test kit.

pub mod audited;
pub mod flux;
pub mod helm;
pub mod kdoctor;
pub mod operator;
pub mod prometheus;

use std::path::PathBuf;

/// Returns the folder of the workspace in which this was started. The folder that the compiler saw may be another clone,
/// because clones can share a folder of compiled programs.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    here.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).unwrap_or(&here).to_owned()
}
