//! Whose the snapshot of a container is: a record may name any key, and others may name it as well.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::clean::Cleaner;
use crate::containerd::{Answer, SnapshotKind};
use crate::subject::Container;

/// Which containers name which snapshots: snapshotter, key, and the ID of the container.
pub(super) type SnapshotUsers = BTreeSet<(String, String, String)>;

/// The snapshot of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ownership {
    /// No snapshot, or the container names none.
    Missing,
    /// It goes with the container.
    Own,
    /// It stays: another record names it, so that it is the root file system of that container as well; or it is
    /// committed, for others to be made of, as a template is.
    Shared,
}

impl Cleaner {
    /// Whose the snapshot of a container is at this moment. Two containers that name one snapshot and are cleaned at the
    /// same time both leave it; containerd collects what no record names.
    pub(super) async fn snapshot_of(&self, container: &Container) -> Answer<Ownership> {
        let (snapshotter, key) = (&container.snapshotter, &container.snapshot_key);
        if key.is_empty() {
            return Ok(Ownership::Missing);
        }
        let Some(found) = self.containerd.snapshot(snapshotter, key).await? else { return Ok(Ownership::Missing) };
        if !matches!(found.kind, SnapshotKind::Active | SnapshotKind::View) {
            return Ok(Ownership::Shared);
        }
        let users = self.snapshot_users.get(self.read_snapshot_users()).await?;
        let is_other =
            |(of, named, id): &(String, String, String)| of == snapshotter && named == key && *id != container.id;
        Ok(if users.iter().any(is_other) { Ownership::Shared } else { Ownership::Own })
    }

    /// Lists every record, whatever its labels: containerd cannot filter by snapshot. It is read at most once for all who
    /// ask at the same time.
    async fn read_snapshot_users(&self) -> Answer<Arc<SnapshotUsers>> {
        let records = self.containerd.list_all().await?.into_iter();
        Ok(Arc::new(records.map(|one| (one.snapshotter, one.snapshot_key, one.id)).collect()))
    }
}
