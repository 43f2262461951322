//! The collector of the model: it judges, reads the pool, reads what surrounds it, and writes. It may be
//! interrupted in between. It confirms as the engine does: live reads are put on an extract of the cache,
//! and the same rule must ask for the same action again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caretaker_addresses::Addresses;
use caretaker_addresses::api::{Kind, ordinal};
use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::{AddressCache, Key};
use caretaker_addresses::subject::{Subject, World};
use caretaker_core::{Keeper as _, RuleId, RuleSet as _, Timestamp, time};
use caretaker_engine::PlannedAction;
use caretaker_engine::cache::Cache as _;

use super::Model;
use crate::support::objects;

type Planned = PlannedAction<Addresses>;

/// What the collector is working on: what was judged, and what was read since.
#[derive(Debug, Default)]
pub(super) struct Batch {
    planned: Vec<Planned>,
    extract: AddressCache,
    /// The version of the pool that was read.
    read: Option<u64>,
    has_looked: bool,
    /// Addresses that a recreated pod must find again, when the live read was made.
    expected: BTreeSet<IpAddr>,
}

/// True if the same rule asks for the same action again.
fn is_confirmed(extract: &AddressCache, planned: &Planned, now: Timestamp) -> bool {
    let keeper = Addresses::default();
    let Some(live) = extract.subjects_for(&planned.key).pop() else { return false };
    let again = Rule::judge(&live, &World::default(), now);
    keeper.subject_ref(&live).uid == keeper.subject_ref(&planned.subject).uid
        && again.rule == planned.verdict.rule
        && again.next.pending_action() == Some(&planned.action)
}

/// True if nothing but the record can change the verdict.
fn is_lasting(planned: &Planned) -> bool {
    let holder = Addresses::default().relation_key(&planned.subject).unwrap_or_default().to_owned();
    let is_suspicion = matches!(planned.verdict.rule, RuleId::Keeper(rule) if rule.is_suspicion());
    !holder.contains("db-") && !is_suspicion
}

/// The nodes that are read: those that count as ended, after everything else was read.
fn deciding_nodes(subject: &Subject) -> Vec<String> {
    let Some(holder) = subject.holder() else { return Vec::new() };
    let nodes = [Some(&holder.node), holder.gone.as_ref().map(|gone| &gone.node)];
    let ended = nodes.into_iter().flatten().filter(|node| node.state.has_certainly_ended());
    ended.filter_map(|node| Some(node.name.as_deref()?.to_owned())).collect()
}

impl Model {
    /// Judges every subject of the cache.
    pub fn judge(&mut self) {
        let now = time::saturating_add(self.now, self.ahead);
        let mut planned = Vec::new();
        for key in self.cache.keys() {
            let subject = objects::subject(&self.cache, &key);
            let verdict = objects::judge_and_record(&mut self.cache, &key, now);
            if let Some(action) = verdict.next.pending_action().copied() {
                planned.push(Planned { key, subject, verdict, action });
            }
        }
        let extract = self.cache.extract(&planned.iter().map(|planned| planned.key.clone()).collect());
        self.batch = Batch { planned, extract, ..Batch::default() };
    }

    /// Reads the pool.
    pub fn read(&mut self) {
        let pool = self.pool();
        objects::apply(&mut self.batch.extract, &[pool]);
        self.batch.read = Some(self.pool_version);
    }

    /// Reads pods, endpoints and sets.
    pub fn look(&mut self) {
        if self.batch.read.is_some() {
            let mut extract = std::mem::take(&mut self.batch.extract);
            self.look_at(self.batch.planned.iter(), &mut extract);
            self.batch.extract = extract;
            self.batch.has_looked = true;
            let comes_back = |ip: &IpAddr, key: &str| match self.pods.get(key) {
                Some(pod) => pod.in_set && pod.reported.is_empty() && self.reserves(key, ip),
                None => true,
            };
            let expected = self.records.iter().filter(|(ip, (key, _))| self.wants(key) && comes_back(ip, key));
            self.batch.expected = expected.map(|(ip, _)| *ip).collect();
        }
    }

    /// Live reads by name: an object that does not exist is deleted from the extract.
    fn look_at<'a>(&self, planned: impl Iterator<Item = &'a Planned> + Clone, extract: &mut AddressCache) {
        let holders: BTreeSet<&str> =
            planned.clone().filter_map(|planned| Some(&*planned.subject.holder()?.key)).collect();
        let live = self.objects();
        let is = |object: &serde_json::Value, kind: Kind, key: &str| {
            let meta = &object["metadata"];
            let name = format!("{}/{}", meta["namespace"].as_str().unwrap_or_default(), meta["name"].as_str().unwrap());
            object["kind"] == kind.name() && name == key
        };
        for holder in holders {
            let set = ordinal(holder).map(|(set, _)| (Kind::StatefulSet, set));
            let names = [(Kind::Endpoint, holder)].into_iter().chain(set).chain([(Kind::Pod, holder)]);
            for (kind, key) in names {
                match live.iter().find(|object| is(object, kind, key)) {
                    Some(object) => objects::apply(extract, std::slice::from_ref(object)),
                    None => objects::delete_named(extract, kind, key),
                }
            }
        }
        let nodes: BTreeSet<String> = planned
            .flat_map(|planned| extract.subjects_for(&planned.key))
            .flat_map(|subject| deciding_nodes(&subject))
            .collect();
        for name in nodes {
            let key = format!("/{name}");
            match live.iter().find(|object| is(object, Kind::Node, &key)) {
                Some(object) => objects::apply(extract, std::slice::from_ref(object)),
                None => objects::delete_named(extract, Kind::Node, &key),
            }
        }
    }

    /// Writes what is confirmed, on condition that the pool is what was read; reads it again otherwise.
    pub fn write(&mut self) {
        let Batch { planned, mut extract, read, has_looked, expected } = std::mem::take(&mut self.batch);
        let (Some(version), true) = (read, has_looked) else { return };
        let (endpoints, mut addresses): (Vec<_>, Vec<_>) =
            planned.into_iter().partition(|planned| matches!(planned.key, Key::Endpoint(_)));
        // By the earlier of the two clocks, because the API server sends its own.
        let now = self.now.min(time::saturating_add(self.now, self.ahead));
        addresses.retain(|planned| is_confirmed(&extract, planned, now));
        if version != self.pool_version {
            objects::apply(&mut extract, &[self.pool()]);
            self.look_at(addresses.iter().filter(|planned| !is_lasting(planned)), &mut extract);
            addresses.retain(|planned| is_confirmed(&extract, planned, now));
        }
        let released: BTreeSet<IpAddr> = addresses
            .iter()
            .filter_map(|planned| if let Key::Address(_, ip) = planned.key { Some(ip) } else { None })
            .collect();
        if !released.is_empty() {
            self.released += released.len();
            let is_promised = |ip: &&IpAddr| self.reserves(&self.records[*ip].0, ip);
            let lost = released.intersection(&expected).next().or_else(|| released.iter().find(is_promised));
            self.lost = lost.map(|ip| format!("{ip} of {:?}", self.records[ip]));
            self.records.retain(|ip, _| !released.contains(ip));
            self.write_pool();
        }
        for planned in endpoints {
            let mut extract = self.cache.extract(&[planned.key.clone()].into());
            self.look_at([&planned].into_iter(), &mut extract);
            if is_confirmed(&extract, &planned, now) {
                let Key::Endpoint(key) = &planned.key else { continue };
                self.delete_endpoint(key);
            }
        }
    }

    /// All of that at once.
    pub fn collect(&mut self) {
        self.judge();
        self.read();
        self.look();
        self.write();
    }
}
