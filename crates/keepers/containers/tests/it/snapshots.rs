//! Which snapshots without a container are residue. The real containerd collects such a snapshot by itself within seconds,
//! so that this one is in memory.

use std::path::Path;
use std::sync::Arc;

use crate::support::memory::{InMemory, Records, active};
use caretaker_containers::act::residue::{self, Removal, Residue};
use caretaker_containers::containerd::{Snapshot, SnapshotKind};
use caretaker_containers::host::Host;
use caretaker_containers::subject::Container;
use rstest::rstest;
use tempfile::TempDir;

const KEY: &str = "web-snapshot";

/// A node on which nothing of a container is.
fn node() -> (TempDir, Host) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let host = Host { fifo_root: path("fifo"), state: path("state"), proc: path("proc"), ..Host::default() };
    (folder, host)
}

fn with_snapshots(keys: &[&str]) -> Arc<InMemory> {
    let containerd = Arc::new(InMemory::default());
    containerd.records().snapshots.extend(keys.iter().map(|key| (*key).to_owned()));
    containerd
}

async fn found(containerd: &InMemory, host: &Host) -> Vec<String> {
    residue::find(containerd, host, "overlayfs").await.unwrap().iter().map(ToString::to_string).collect()
}

fn snapshot(key: &str) -> Residue {
    Residue::Snapshot("overlayfs".to_owned(), key.to_owned())
}

async fn remove(containerd: &InMemory, host: &Host, key: &str) -> Result<Removal, String> {
    residue::remove(containerd, host, &snapshot(key)).await
}

/// It is kept for a reason that says this.
#[track_caller]
fn assert_kept(containerd: &InMemory, key: &str, removed: &Result<Removal, String>, why: &str) {
    assert!(matches!(removed, Ok(Removal::Kept(said)) if said.contains(why)), "{removed:?}");
    assert!(containerd.records().snapshots.contains(key));
}

fn record(id: &str, snapshot_key: &str) -> Container {
    Container { id: id.to_owned(), snapshot_key: snapshot_key.to_owned(), ..Container::default() }
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn what_nothing_keeps_is_found_and_removed() {
    let ((_folder, host), containerd) = (node(), with_snapshots(&[KEY, "another-key", "-snapshot"]));
    assert_eq!(found(&containerd, &host).await, ["snapshot web-snapshot of overlayfs"]);

    for _ in 0..2 {
        assert_eq!(remove(&containerd, &host, KEY).await, Ok(Removal::Removed));
    }

    assert!(!containerd.records().snapshots.contains(KEY));
}

fn put(records: &mut Records, snapshot: Snapshot) {
    records.special.insert(snapshot.key.clone(), snapshot);
}

fn named_by_a_record(records: &mut Records, _: &Host) {
    records.containers.insert("web-7f3a".to_owned(), record("web-7f3a", KEY));
}

fn leased(records: &mut Records, _: &Host) {
    records.leased.insert(KEY.to_owned());
}

fn committed(records: &mut Records, _: &Host) {
    put(records, Snapshot { kind: SnapshotKind::Committed, ..active("overlayfs", KEY) });
}

fn of_unknown_kind(records: &mut Records, _: &Host) {
    put(records, Snapshot { kind: SnapshotKind::Unknown, ..active("overlayfs", KEY) });
}

fn kept_by_label(records: &mut Records, _: &Host) {
    put(records, Snapshot { is_gc_root: true, ..active("overlayfs", KEY) });
}

fn a_bundle(_: &mut Records, host: &Host) {
    write(&host.bundle("web-7f3a").join("config.json"), "{}");
}

fn a_shim(_: &mut Records, host: &Host) {
    write(&host.proc.join("7/cmdline"), "containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0web-7f3a");
}

/// A container may have any key as its snapshot: without its record nobody knows which.
#[rstest]
#[case::named_by_a_record(named_by_a_record, "the root file system of container web-7f3a")]
#[case::leased(leased, "a lease")]
#[case::committed(committed, "committed")]
#[case::of_unknown_kind(of_unknown_kind, "does not say")]
#[case::kept_by_label(kept_by_label, "containerd.io/gc.root")]
#[case::a_bundle_without_a_record(a_bundle, "bundle of web-7f3a has no record")]
#[case::a_shim_without_a_record(a_shim, "shim 7 of web-7f3a has no record")]
#[tokio::test]
async fn what_something_keeps_is_no_residue_and_is_not_removed(
    #[case] keep: fn(&mut Records, &Host),
    #[case] why: &str,
) {
    let ((_folder, host), containerd) = (node(), with_snapshots(&[KEY]));
    keep(&mut containerd.records(), &host);

    let found = found(&containerd, &host).await;
    assert!(found.iter().all(|one| !one.starts_with("snapshot")), "{found:?}");
    // It was residue when it was seen.
    let removed = remove(&containerd, &host, KEY).await;

    assert_kept(&containerd, KEY, &removed, why);
}

#[tokio::test]
async fn records_bundles_and_snapshots_of_others_keep_nothing() {
    let ((_folder, host), containerd) = (node(), with_snapshots(&[KEY, "other-key"]));
    containerd.records().containers.insert("other".to_owned(), record("other", "other-key"));
    write(&host.bundle("other").join("config.json"), "{}");

    assert_eq!(remove(&containerd, &host, KEY).await, Ok(Removal::Removed));

    assert!(containerd.records().snapshots.contains("other-key"));
}

/// A client that makes a container takes a lease and prepares a snapshot of any key, at any time.
#[tokio::test]
async fn a_snapshot_that_is_leased_between_two_removals_stays() {
    let ((_folder, host), containerd) = (node(), with_snapshots(&["lost-snapshot", KEY]));
    assert_eq!(remove(&containerd, &host, "lost-snapshot").await, Ok(Removal::Removed));
    leased(&mut containerd.records(), &host);

    let removed = remove(&containerd, &host, KEY).await;

    assert_kept(&containerd, KEY, &removed, "a lease");
}

fn made_again(records: &mut Records, _: &Host) {
    put(records, Snapshot { created: "2036-01-10T00:30:00Z".parse().ok(), ..active("overlayfs", KEY) });
}

fn made_again_with_a_lease(records: &mut Records, host: &Host) {
    made_again(records, host);
    leased(records, host);
}

/// What keeps a snapshot is read after the snapshot, and takes a while.
#[rstest]
#[case::leased_before_leases_are_read("leased_snapshots", leased, "a lease")]
#[case::leased_when_it_is_read("snapshot", leased, "a lease")]
#[case::named_by_a_record_before_records_are_read("list_all", named_by_a_record, "container web-7f3a")]
#[case::made_again_while_leases_are_read("leased_snapshots", made_again, "another snapshot")]
#[case::made_again_after_leases_were_read("list_all", made_again_with_a_lease, "another snapshot")]
#[case::kept_by_label_after_it_was_read("list_all", kept_by_label, "it was changed")]
#[tokio::test]
async fn what_a_client_does_during_a_removal_keeps_the_snapshot(
    #[case] at: &'static str,
    #[case] does: fn(&mut Records, &Host),
    #[case] why: &str,
) {
    let ((_folder, host), containerd) = (node(), with_snapshots(&[KEY]));
    let (client, node) = (Arc::downgrade(&containerd), host.clone());
    *containerd.on_call.lock().unwrap() = Some(Box::new(move |call| {
        if call == at {
            does(&mut client.upgrade().unwrap().records(), &node);
        }
    }));

    let removed = remove(&containerd, &host, KEY).await;

    assert_kept(&containerd, KEY, &removed, why);
}
