//! Pools and their records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use caretaker_engine::source::ObjectId;

use super::{AddressCache, Key};
use crate::api::{Identity, Kind, Ranges, Record, Records, Uid};
use crate::observe::PoolRow;
use crate::observe::objects::version;
use crate::subject::LivePool;

/// What is known of a pool.
#[derive(Debug, Clone)]
pub(super) struct PoolEntry {
    pub(super) uid: Uid,
    pub(super) uid_text: Arc<str>,
    version: u64,
    pub(super) deleting: bool,
    pub(super) ranges: Ranges,
    /// Why its records cannot be read.
    pub(super) invalid: Option<String>,
    pub(super) invalid_keys: BTreeSet<String>,
    pub(super) count: Option<i64>,
    pub(super) total: Option<i64>,
    /// Its records; while they cannot be read, those that it had before.
    pub(super) records: BTreeMap<IpAddr, KnownRecord>,
    /// The list that delivered it.
    list: u32,
    /// What it takes to write it, if this is an extract and it was read live.
    pub(super) live: Option<Arc<LivePool>>,
}

impl PoolEntry {
    /// True if its records can be read. Otherwise none of them is judged.
    pub(super) fn is_readable(&self) -> bool {
        self.invalid.is_none()
    }

    /// The pool with no records.
    pub(super) fn without_records(&self) -> Self {
        let Self { uid, uid_text, ranges, invalid, invalid_keys, .. } = self;
        Self {
            uid: uid.clone(),
            uid_text: uid_text.clone(),
            ranges: ranges.clone(),
            invalid: invalid.clone(),
            invalid_keys: invalid_keys.clone(),
            records: BTreeMap::new(),
            live: None,
            ..*self
        }
    }
}

/// Which pod has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownRecord {
    pub(super) holder: Arc<str>,
    pub(super) identity: Identity,
    /// True if the holder is namespace and name of a pod.
    pub(super) is_valid: bool,
}

impl KnownRecord {
    fn is(&self, record: &Record) -> bool {
        *self.holder == *record.holder && self.identity == record.identity
    }
}

impl AddressCache {
    pub(super) fn apply_pool(&mut self, id: ObjectId, row: PoolRow) {
        let list = self.list(Kind::Pool);
        let known_name = self.pools.get_key_value(id.name.as_str()).map(|(name, _)| name.clone());
        let name: Arc<str> = known_name.unwrap_or_else(|| id.name.as_str().into());
        let (uid, version) = (Uid::parse(&id.uid), version(&id.resource_version));
        // The answer to a write may arrive after the watch has delivered the deletion.
        if self.deleted_pools.get(&uid).is_some_and(|deleted| version <= *deleted) {
            return;
        }
        let (mut before, mut was_invalid) = (BTreeMap::new(), false);
        if let Some(known) = self.pools.get_mut(&name) {
            let is_listed = std::mem::replace(&mut known.list, list) != list;
            if !is_listed && known.uid == uid && known.version > version {
                return;
            }
            before = std::mem::take(&mut known.records);
            was_invalid = known.invalid.is_some();
        }
        let PoolRow { deleting, ranges, records, allocated, count, total } = row;
        let (records, invalid) = match records {
            Ok(records) => (records, None),
            Err(why) => (Records::default(), Some(format!("status.allocatedIPs is not JSON of records: {why}"))),
        };
        self.count_unreadable(was_invalid, invalid.is_some());
        let is_extract = self.is_extract;
        // What is remembered of pods that have vanished is kept until the records can be read again.
        let known_records = if invalid.is_some() { before } else { self.update_records(&name, before, &records.by_ip) };
        let entry = PoolEntry {
            uid_text: id.uid.as_str().into(),
            uid,
            version,
            deleting,
            ranges,
            invalid,
            invalid_keys: records.invalid_keys,
            count,
            total,
            records: known_records,
            list,
            live: is_extract.then(|| Arc::new(LivePool { resource_version: id.resource_version, allocated })),
        };
        let known = self.pools.insert(name.clone(), entry);
        let now = &self.pools[&name];
        let was_readable = !was_invalid;
        let affects_all = known.is_some_and(|known| {
            (now.deleting, &now.ranges, &now.uid, now.is_readable())
                != (known.deleting, &known.ranges, &known.uid, was_readable)
        });
        if affects_all {
            let addresses = now.records.keys().map(|ip| Key::Address(name.clone(), *ip));
            let holders: BTreeSet<Arc<str>> = if now.is_readable() == was_readable {
                BTreeSet::new()
            } else {
                now.records.values().map(|record| record.holder.clone()).collect()
            };
            self.dirty.extend(addresses);
            for holder in &holders {
                self.mark_dirty(holder);
            }
        }
        self.dirty.insert(Key::Pool(name));
    }

    /// While a pool cannot be read, nobody knows which endpoints have no record.
    fn count_unreadable(&mut self, before: bool, now: bool) {
        let some = self.unreadable_pools > 0;
        self.unreadable_pools = self.unreadable_pools + usize::from(now) - usize::from(before);
        if some != (self.unreadable_pools > 0) {
            let endpoints = self.by_pod.iter().filter(|(_, entry)| entry.endpoint.is_some());
            self.dirty.extend(endpoints.map(|(key, _)| Key::Endpoint(key.clone())));
        }
    }

    /// Replaces the records of a pool. A record that is unchanged costs only a comparison.
    fn update_records(
        &mut self,
        pool: &Arc<str>,
        mut before: BTreeMap<IpAddr, KnownRecord>,
        records: &BTreeMap<IpAddr, Record>,
    ) -> BTreeMap<IpAddr, KnownRecord> {
        let mut updated = BTreeMap::new();
        for (ip, record) in records {
            let known = match before.remove(ip) {
                Some(known) if known.is(record) => known,
                known => {
                    if let Some(known) = known {
                        self.unlink(&known.holder, pool, *ip);
                    }
                    self.link(pool, *ip, record)
                }
            };
            updated.insert(*ip, known);
        }
        for (ip, gone) in before {
            let key = Key::Address(pool.clone(), ip);
            self.memory.remove(&key);
            self.dirty.insert(key);
            self.unlink(&gone.holder, pool, ip);
        }
        updated
    }

    fn link(&mut self, pool: &Arc<str>, ip: IpAddr, record: &Record) -> KnownRecord {
        // A sighting of another record says nothing about this one.
        let key = Key::Address(pool.clone(), ip);
        self.memory.remove(&key);
        self.dirty.insert(key);
        let (identity, is_valid) = (record.identity.clone(), is_pod_name(&record.holder));
        // An extract has the names that are judged, and no others.
        if self.is_extract && !self.by_pod.contains_key(record.holder.as_str()) {
            return KnownRecord { holder: record.holder.as_str().into(), identity, is_valid };
        }
        let pod_list = self.list(Kind::Pod);
        let (holder, entry) = self.entry(&record.holder);
        entry.records.push((pool.clone(), ip));
        entry.expect_pod(pod_list);
        if entry.endpoint.is_some() {
            self.dirty.insert(Key::Endpoint(holder.clone()));
        }
        self.update_ending(&holder);
        KnownRecord { holder, identity, is_valid }
    }

    fn unlink(&mut self, holder: &Arc<str>, pool: &Arc<str>, ip: IpAddr) {
        if let Some(entry) = self.by_pod.get_mut(holder) {
            entry.records.retain(|(p, i)| !(*p == *pool && *i == ip));
            if entry.endpoint.is_some() {
                self.dirty.insert(Key::Endpoint(holder.clone()));
            }
        }
        self.remove_if_empty(holder);
    }

    pub(super) fn delete_pool(&mut self, id: &ObjectId) {
        if let Some(pool) = self.pools.get(id.name.as_str()) {
            let deleted = pool.version.max(version(&id.resource_version));
            self.deleted_pools.insert(pool.uid.clone(), deleted);
        }
        self.remove_pool(&id.name);
    }

    fn remove_pool(&mut self, name: &str) {
        let Some((name, pool)) = self.pools.remove_entry(name) else { return };
        self.count_unreadable(pool.invalid.is_some(), false);
        self.update_records(&name, pool.records, &BTreeMap::new());
        self.dirty.insert(Key::Pool(name));
    }

    /// A list of pools starts: it is newer than every deletion before it.
    pub(super) fn start_pools(&mut self) {
        self.deleted_pools.clear();
    }

    pub(super) fn finish_pools(&mut self, list: u32) {
        let missing = self.pools.iter().filter(|(_, pool)| pool.list != list);
        let missing: Vec<Arc<str>> = missing.map(|(name, _)| name.clone()).collect();
        for name in &missing {
            self.remove_pool(name);
        }
    }
}

/// True for namespace and name of a pod. Anything else could not even be read from the API server.
fn is_pod_name(holder: &str) -> bool {
    let is_name = |name: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = name.as_bytes();
        let inside = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inside)
    };
    holder.split_once('/').is_some_and(|(namespace, name)| is_name(namespace) && is_name(name))
}
