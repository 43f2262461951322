//! The pools and their records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Home, Observation};
use crate::api::{Allocated, Entry, Identity, POOL, Ranges, Uid};
use crate::observe::Manifest;

/// What is known of a pool.
#[derive(Debug)]
pub(super) struct PoolRow {
    pub(super) uid: Uid,
    /// The same, as text.
    pub(super) shown: Arc<str>,
    pub(super) version: u64,
    pub(super) leaves: bool,
    pub(super) ranges: Ranges,
    pub(super) broken: Option<String>,
    pub(super) odd: BTreeSet<String>,
    pub(super) count: Option<i64>,
    pub(super) total: Option<i64>,
    pub(super) records: BTreeMap<IpAddr, Record>,
    /// In which list it was last seen.
    pub(super) list: u32,
}

/// Whose an address is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) holder: Arc<str>,
    pub(super) identity: Identity,
    /// Whether the holder is a name that could be asked for.
    pub(super) fits: bool,
}

impl Record {
    fn is(&self, entry: &Entry) -> bool {
        *self.holder == *entry.holder && self.identity == entry.identity
    }
}

impl Observation {
    pub(super) fn add_pool(&mut self, object: &Manifest) {
        let list = self.list(POOL);
        let Manifest { metadata: meta, spec, status, .. } = object;
        let name: Arc<str> =
            self.pools.get_key_value(meta.name.as_str()).map_or_else(|| meta.name.as_str().into(), |(n, _)| n.clone());
        let version = meta.resource_version.parse().unwrap_or(0);
        let mut before = BTreeMap::new();
        if let Some(known) = self.pools.get_mut(&name) {
            known.list = list;
            if known.uid == meta.uid && known.version > version {
                return;
            }
            before = std::mem::take(&mut known.records);
            let was_broken = known.broken.is_some();
            self.count_unreadable(was_broken, false);
        }
        let broken = match &status.allocated_ips {
            Allocated::Broken(why) => Some(format!("status.allocatedIPs is no JSON of records: {why}")),
            _ => None,
        };
        let none = crate::api::Entries::default();
        let entries = status.allocated_ips.entries().unwrap_or(&none);
        self.held -= before.len();
        self.held += entries.by_ip.len();
        let records = self.renew(&name, before, &entries.by_ip);
        self.count_unreadable(false, broken.is_some());
        let row = PoolRow {
            uid: meta.uid.clone(),
            shown: meta.uid.to_string().into(),
            version,
            leaves: meta.deletion_timestamp.is_some(),
            ranges: Ranges::read(&spec.subnet, &spec.ips, &spec.exclude_ips),
            broken,
            odd: entries.odd.clone(),
            count: status.allocated_ip_count,
            total: status.total_ip_count,
            records,
            list,
        };
        let known = self.pools.insert(name.clone(), row);
        let all = self.pools.get(&name).zip(known).is_some_and(|(now, known)| {
            (now.leaves, &now.ranges, now.uid == known.uid) != (known.leaves, &known.ranges, true)
        });
        if all {
            let addresses = self.pools[&name].records.keys().map(|ip| Home::Address(name.clone(), *ip));
            self.touched.extend(addresses);
        }
        self.touched.insert(Home::Pool(name));
    }

    /// As long as there is a pool that cannot be read, nobody knows which endpoints have no record.
    fn count_unreadable(&mut self, before: bool, now: bool) {
        let some = self.unreadable > 0;
        self.unreadable = self.unreadable + usize::from(now) - usize::from(before);
        if some != (self.unreadable > 0) {
            let endpoints = self.people.iter().filter(|(_, person)| person.endpoint.is_some());
            self.touched.extend(endpoints.map(|(key, _)| Home::Endpoint(key.clone())));
        }
    }

    /// Takes in the records of a pool; what is as it was costs no more than a comparison.
    fn renew(
        &mut self,
        pool: &Arc<str>,
        mut before: BTreeMap<IpAddr, Record>,
        entries: &BTreeMap<IpAddr, Entry>,
    ) -> BTreeMap<IpAddr, Record> {
        let mut records = BTreeMap::new();
        for (ip, entry) in entries {
            let known = before.remove(ip);
            if let Some(known) = known.as_ref().filter(|known| known.is(entry)) {
                records.insert(*ip, known.clone());
                continue;
            }
            if let Some(known) = known {
                self.unlink(&known.holder, pool, *ip);
            }
            // What was seen of another record says nothing about this one.
            self.sightings.remove(&Home::Address(pool.clone(), *ip));
            self.touched.insert(Home::Address(pool.clone(), *ip));
            let (holder, person) = self.person(&entry.holder);
            person.records.push((pool.clone(), *ip));
            if person.endpoint.is_some() {
                self.touched.insert(Home::Endpoint(holder.clone()));
            }
            let fits = names_a_pod(&holder);
            records.insert(*ip, Record { holder, identity: entry.identity.clone(), fits });
        }
        for (ip, gone) in before {
            self.sightings.remove(&Home::Address(pool.clone(), ip));
            self.touched.insert(Home::Address(pool.clone(), ip));
            self.unlink(&gone.holder, pool, ip);
        }
        records
    }

    fn unlink(&mut self, holder: &Arc<str>, pool: &Arc<str>, ip: IpAddr) {
        if let Some(person) = self.people.get_mut(holder) {
            person.records.retain(|(p, i)| !(*p == *pool && *i == ip));
            if person.endpoint.is_some() {
                self.touched.insert(Home::Endpoint(holder.clone()));
            }
        }
        self.tidy(holder);
    }

    pub(super) fn forget_pool(&mut self, name: &str) {
        let Some((name, pool)) = self.pools.remove_entry(name) else { return };
        self.held -= pool.records.len();
        self.count_unreadable(pool.broken.is_some(), false);
        self.renew(&name, pool.records, &BTreeMap::new());
        self.touched.insert(Home::Pool(name));
    }
}

/// Whether a holder is namespace and name of a pod. Anything else could not even be asked for.
fn names_a_pod(holder: &str) -> bool {
    let is_name = |name: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = name.as_bytes();
        let inside = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inside)
    };
    holder.split_once('/').is_some_and(|(namespace, name)| is_name(namespace) && is_name(name))
}
