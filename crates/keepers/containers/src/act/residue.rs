//! What is left of containers that containerd has no record of: shims, mounts, bundles, FIFOs, snapshots.
//!
//! It is found by cross-checking, and reported. It is removed only if that is asked for, and only what was seen twice:
//! what is being created has no record yet, and what is being deleted has none any more. What still runs, or may, keeps
//! everything of its container. What the kubelet has made is left to it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::api::{self, GC_ROOT_LABEL, SNAPSHOT_SUFFIX};
use crate::containerd::{Answer, Containerd, ContainerdError, Snapshot, SnapshotKind};
use crate::host::{FifoError, Host, Shim, ShimUse};
use crate::subject::Container;

/// A trace of a container without a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Residue {
    /// A shim process. One without a bundle that says what it runs is reported, and never ended: containerd 2 has no record
    /// of a sandbox of the kubelet that it runs by `sandboxer = "shim"`, and its bundle may have no spec. A shim that
    /// containerd has lost for good stays as well, and costs some memory; the other would cost a pod.
    Shim(Shim),
    /// A mount or files in a bundle.
    Bundle(String),
    /// FIFOs of this ID.
    Fifos(String),
    /// A folder for FIFOs in which nothing is.
    Folder(String),
    /// A snapshot with a key of our form that nothing keeps: no record names it, no lease holds it, no client labelled it
    /// to be kept, and nothing can be made of it. Its snapshotter and its key. containerd collects most of them by itself,
    /// a moment after the record is gone.
    Snapshot(String, String),
}

impl Residue {
    /// The container it was of; an empty folder does not say.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Shim(shim) => Some(&shim.id),
            Self::Bundle(id) | Self::Fifos(id) => Some(id),
            Self::Snapshot(_, key) => Some(key.strip_suffix(SNAPSHOT_SUFFIX).unwrap_or(key)),
            Self::Folder(_) => None,
        }
    }
}

impl std::fmt::Display for Residue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shim(shim) => write!(f, "shim {} of {}", shim.pid, shim.id),
            Self::Bundle(id) => write!(f, "bundle of {id}"),
            Self::Fifos(id) => write!(f, "FIFOs of {id}"),
            Self::Folder(name) => write!(f, "empty FIFO folder {name}"),
            Self::Snapshot(snapshotter, key) => write!(f, "snapshot {key} of {snapshotter}"),
        }
    }
}

/// Leases, records and processes that keep snapshots, next to the container whose ID is in their key. A client that makes a container takes a lease, makes
/// the snapshot, makes the record, and ends the lease; so that whoever reads the leases first misses neither.
#[derive(Debug)]
struct SnapshotHolders {
    leased: BTreeSet<String>,
    records: Vec<Container>,
    /// A shim or a bundle without a record: what runs there may have any snapshot as its root file system.
    unrecorded: Option<String>,
}

impl SnapshotHolders {
    async fn read(containerd: &dyn Containerd, host: &Host, snapshotter: &str) -> Answer<Self> {
        let leased = containerd.leased_snapshots(snapshotter).await?;
        let records = containerd.list_all().await?;
        // After the records: one that is deleted meanwhile leaves its shim and its bundle, and keeps every snapshot.
        let unrecorded = without_record(host, &records);
        Ok(Self { leased, records, unrecorded })
    }

    /// Why a snapshot is no residue; `None` if nothing keeps it. Two snapshotters may have snapshots of one key; either is
    /// kept by a record that names it.
    fn keep(&self, snapshot: &Snapshot) -> Option<String> {
        let key = &snapshot.key;
        match snapshot.kind {
            SnapshotKind::Active | SnapshotKind::View => {}
            SnapshotKind::Committed => return Some("it is committed: others may be made of it".to_owned()),
            SnapshotKind::Unknown => return Some("containerd does not say what it is for".to_owned()),
        }
        if snapshot.is_gc_root {
            return Some(format!("a client keeps it by the label {GC_ROOT_LABEL}"));
        }
        if self.leased.contains(key) {
            return Some("a lease holds it".to_owned());
        }
        let of = self.records.iter().find(|record| record.snapshot_key == *key);
        of.map(|record| format!("it is the root file system of container {}", record.id))
            .or_else(|| self.unrecorded.as_ref().map(|what| format!("{what} has no record that names its snapshot")))
    }
}

/// A shim or a bundle of a container that containerd has no record of. A shim that serves a group outlives the container
/// whose ID it has; the bundles of the others say whether they have records.
fn without_record(host: &Host, records: &[Container]) -> Option<String> {
    let known: BTreeSet<&str> = records.iter().map(|record| record.id.as_str()).collect();
    let is_unknown = |id: &str| !known.contains(id);
    let bundle = host.bundle_ids().into_iter().find(|id| is_unknown(id)).map(Residue::Bundle);
    let shims = || host.shims().into_iter().filter(|shim| is_unknown(&shim.id) && !serves_another(host, shim));
    bundle.or_else(|| shims().next().map(Residue::Shim)).map(|found| found.to_string())
}

/// Finds residue. The traces are read before the records: what gets a record meanwhile is not residue.
pub async fn find(
    containerd: &dyn Containerd,
    host: &Host,
    snapshotter: &str,
) -> Result<BTreeSet<Residue>, ContainerdError> {
    let snapshots = containerd.snapshots(snapshotter).await?;
    let unread = |error: FifoError| ContainerdError::Failed("reading FIFOs".to_owned(), error.to_string());
    let (fifos, folders) = (host.all_fifos().map_err(unread)?, host.empty_fifo_folders().map_err(unread)?);
    let (shims, bundles) = (host.shims(), host.bundle_ids());
    let holders = SnapshotHolders::read(containerd, host, snapshotter).await?;
    let known: BTreeSet<&str> = holders.records.iter().map(|record| record.id.as_str()).collect();
    let is_unknown = |id: &str| api::is_plain_id(id) && !known.contains(id) && !host.is_bundle_of_kubelet(id);
    // A snapshot of our key form whose container exists belongs to it; so does one of a container that is cleaned.
    let of_ours = |snapshot: &Snapshot| {
        snapshot.key.strip_suffix(SNAPSHOT_SUFFIX).is_some_and(api::is_plain_id) && holders.keep(snapshot).is_none()
    };
    let snapshots = snapshots.into_iter().filter(of_ours).map(|s| Residue::Snapshot(s.snapshotter, s.key));
    let all = shims.into_iter().map(Residue::Shim).chain(bundles.into_iter().map(Residue::Bundle)).chain(snapshots);
    let all = all.filter(|found| found.id().is_some_and(is_unknown));
    // A shim that serves a group has the ID of its first container, and outlives it.
    let is_shared = |found: &Residue| matches!(found, Residue::Shim(shim) if serves_another(host, shim));
    let mut all: BTreeSet<Residue> = all.filter(|found| !is_shared(found)).collect();
    let ids: BTreeSet<String> = all.iter().filter_map(Residue::id).map(str::to_owned).collect();
    let fifos = fifos.into_iter().filter(|(id, _)| is_unknown(id) && !host.is_used_elsewhere(id));
    let (of_container, alone): (Vec<_>, Vec<_>) = fifos.partition(|(id, _)| ids.contains(id));
    // FIFOs of which there is nothing else may be those of an exec: while it runs, somebody has them open.
    let paths: Vec<PathBuf> = alone.iter().flat_map(|(_, paths)| paths.clone()).collect();
    let held = held(host, paths).await;
    let alone = alone.into_iter().filter(|(_, paths)| !paths.iter().any(|path| held.contains(path)));
    all.extend(of_container.into_iter().chain(alone).map(|(id, _)| Residue::Fifos(id)));
    all.extend(folders.into_iter().map(Residue::Folder));
    Ok(all)
}

/// Those of the files that a process has open. Every process is looked at, which takes a while on a large node.
async fn held(host: &Host, paths: Vec<PathBuf>) -> BTreeSet<PathBuf> {
    let (host, all) = (host.clone(), paths.clone());
    let look = move || host.held(&paths).into_iter().map(Path::to_owned).collect();
    // If nobody knows, all of them.
    tokio::task::spawn_blocking(look).await.unwrap_or_else(|_| all.into_iter().collect())
}

fn serves_another(host: &Host, shim: &Shim) -> bool {
    matches!(host.shim_use(shim), ShimUse::Shared(_))
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

/// What became of residue that was to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// It stays, and why.
    Kept(String),
}

fn kept(why: &str) -> Result<Removal, String> {
    Ok(Removal::Kept(why.to_owned()))
}

/// Removes residue that was seen twice. A container of that ID that exists by now keeps it, and so does whatever still
/// runs, or may: the one who looks after it, its files and its snapshot stay with it.
pub async fn remove(containerd: &dyn Containerd, host: &Host, residue: &Residue) -> Result<Removal, String> {
    if let Some(id) = residue.id() {
        if containerd.get(id).await.map_err(|error| error.to_string())?.is_some() {
            return kept("there is a container of its ID");
        }
        if containerd.task(id).await.map_err(|error| error.to_string())?.is_some() {
            return kept("there is a task of its ID");
        }
        if host.is_bundle_of_kubelet(id) {
            return kept("the kubelet has made it, by an annotation in the spec of its bundle");
        }
        if let Some(why) = host.may_run(id) {
            return Ok(Removal::Kept(why));
        }
        if !matches!(residue, Residue::Shim(_)) && host.shim_ids().contains(id) {
            return kept("there is a shim of its ID");
        }
    }
    match residue {
        Residue::Shim(shim) if serves_another(host, shim) => kept("it serves another container"),
        // A bundle without a readable spec keeps everything of its container: it may run.
        Residue::Shim(shim) if host.bundle_cgroup(&shim.id)?.is_none() => {
            kept("it has no bundle, so that nobody knows what it runs")
        }
        Residue::Shim(shim) => {
            let has_ended = host.end_shim(shim).map_err(|error| error.to_string())?;
            if has_ended { Ok(Removal::Removed) } else { kept("the process is another one by now") }
        }
        Residue::Bundle(id) => {
            let cgroup = host.bundle_cgroup(id)?.unwrap_or_default();
            host.remove_cgroups(id, &cgroup)?;
            host.remove_bundle(id).map(|()| Removal::Removed)
        }
        Residue::Fifos(id) if host.is_used_elsewhere(id) => {
            kept("another containerd namespace has a container of its ID")
        }
        Residue::Fifos(id) => {
            let paths = host.fifos(id).map_err(|error| error.to_string())?;
            if !held(host, paths).await.is_empty() {
                return kept("a process has one of them open");
            }
            host.remove_fifos(id, &[]).map(|()| Removal::Removed).map_err(|error| error.to_string())
        }
        Residue::Folder(name) => {
            let is_gone = host.remove_empty_fifo_folder(name).map_err(|error| error.to_string())?;
            if is_gone { Ok(Removal::Removed) } else { kept("it is not empty any more") }
        }
        Residue::Snapshot(snapshotter, key) => {
            remove_snapshot(containerd, host, snapshotter, key).await.map_err(|error| error.to_string())
        }
    }
}

/// Removes a snapshot that nothing keeps at this moment. What may keep it is read after the snapshot itself, for each one
/// anew: a client may lease and prepare a snapshot of any key while another is removed. Reading takes a while on a large
/// node, so that the snapshot must be the same one afterwards.
async fn remove_snapshot(containerd: &dyn Containerd, host: &Host, snapshotter: &str, key: &str) -> Answer<Removal> {
    let Some(found) = containerd.snapshot(snapshotter, key).await? else { return Ok(Removal::Removed) };
    if let Some(why) = SnapshotHolders::read(containerd, host, snapshotter).await?.keep(&found) {
        return Ok(Removal::Kept(why));
    }
    if containerd.snapshot(snapshotter, key).await?.is_some_and(|now| now != found) {
        return Ok(Removal::Kept("there is another snapshot of its key by now, or it was changed".to_owned()));
    }
    match containerd.remove_snapshot(snapshotter, key).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(Removal::Removed),
    }
}
