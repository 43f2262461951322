//! What is left of containers that containerd has no record of: shims, mounts, bundles, FIFOs, snapshots.
//!
//! It is found by cross-checking, and reported. It is removed only if that is asked for, and only what was seen twice:
//! what is being created has no record yet, and what is being deleted has none any more.

use std::collections::BTreeSet;

use crate::api::{self, SNAPSHOT_SUFFIX};
use crate::containerd::{Containerd, ContainerdError, Snapshot};
use crate::host::{Host, Shim};

/// A trace of a container without a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Residue {
    /// A shim process.
    Shim(Shim),
    /// A mount or files in a bundle.
    Bundle(String),
    /// FIFOs of this ID.
    Fifos(String),
    /// A snapshot with a key of our form: its snapshotter and its key.
    Snapshot(String, String),
}

impl Residue {
    /// The container it was of.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Shim(shim) => &shim.id,
            Self::Bundle(id) | Self::Fifos(id) => id,
            Self::Snapshot(_, key) => key.strip_suffix(SNAPSHOT_SUFFIX).unwrap_or(key),
        }
    }
}

impl std::fmt::Display for Residue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shim(shim) => write!(f, "shim {} of {}", shim.pid, shim.id),
            Self::Bundle(id) => write!(f, "bundle of {id}"),
            Self::Fifos(id) => write!(f, "FIFOs of {id}"),
            Self::Snapshot(snapshotter, key) => write!(f, "snapshot {key} of {snapshotter}"),
        }
    }
}

/// Finds residue. The traces are read before the records: what gets a record meanwhile is not residue.
pub async fn find(
    containerd: &dyn Containerd,
    host: &Host,
    snapshotter: &str,
) -> Result<BTreeSet<Residue>, ContainerdError> {
    let snapshots = containerd.snapshots(snapshotter).await?;
    let fifos =
        host.all_fifos().map_err(|error| ContainerdError::Failed("reading FIFOs".to_owned(), error.to_string()))?;
    let (shims, bundles) = (host.shims(), host.bundle_ids());
    let known: BTreeSet<String> = containerd.all_ids().await?.into_iter().collect();
    // A snapshot of our key form whose container exists belongs to it; so does one of a container that is cleaned.
    let of_ours = |snapshot: &Snapshot| snapshot.key.strip_suffix(SNAPSHOT_SUFFIX).is_some_and(api::is_plain_id);
    let snapshots = snapshots.into_iter().filter(of_ours).map(|s| Residue::Snapshot(s.snapshotter, s.key));
    let all = shims.into_iter().map(Residue::Shim);
    let all = all.chain(bundles.into_iter().map(Residue::Bundle)).chain(fifos.into_keys().map(Residue::Fifos));
    Ok(all.chain(snapshots).filter(|found| api::is_plain_id(found.id()) && !known.contains(found.id())).collect())
}

/// What was seen before and is still there.
#[derive(Debug, Default)]
pub struct Sightings(BTreeSet<Residue>);

impl Sightings {
    /// Takes in what is there now. Returns what was there before as well.
    pub fn twice(&mut self, now: BTreeSet<Residue>) -> BTreeSet<Residue> {
        let twice = now.intersection(&self.0).cloned().collect();
        self.0 = now;
        twice
    }
}

/// Removes residue that was seen twice; a container of that ID that exists by now keeps it, and so does a shim that still
/// has a task.
pub async fn remove(containerd: &dyn Containerd, host: &Host, residue: &Residue) -> Result<bool, String> {
    let id = residue.id();
    if containerd.get(id).await.map_err(|error| error.to_string())?.is_some() {
        return Ok(false);
    }
    if containerd.task(id).await.map_err(|error| error.to_string())?.is_some() {
        return Ok(false);
    }
    let has_shim = host.shims().iter().any(|shim| shim.id == id);
    match residue {
        // What runs in its control group would lose the one who looks after it.
        Residue::Shim(_) if !host.container_cgroups(id, "").is_empty() => Ok(false),
        Residue::Shim(shim) => host.end_shim(shim).map_err(|error| error.to_string()),
        Residue::Bundle(_) | Residue::Fifos(_) | Residue::Snapshot(..) if has_shim => Ok(false),
        Residue::Bundle(id) => host.remove_bundle(id).map(|()| true),
        Residue::Fifos(id) => host.remove_fifos(id, &[]).map(|()| true).map_err(|error| error.to_string()),
        Residue::Snapshot(snapshotter, key) => match containerd.remove_snapshot(snapshotter, key).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.to_string()),
        },
    }
}
