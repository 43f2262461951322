//! The collector of the model: it judges, reads, looks and writes, and may be interrupted in between.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caretaker_addresses::Addresses;
use caretaker_addresses::act::confirm;
use caretaker_addresses::judge::SUSPECTED;
use caretaker_addresses::observe::{Home, Observation};
use caretaker_addresses::subject::World;
use caretaker_core::{Keeper as _, time};
use caretaker_engine::keep::{Due, Index as _};
use serde_json::Value;

use super::Model;
use crate::objects;

/// What the collector is about: what was judged, and what was read of the pool since.
#[derive(Debug, Default)]
pub(super) struct Batch {
    due: Vec<Due<Addresses>>,
    read: Option<(u64, Value)>,
    looked: Option<Observation>,
    /// Addresses that somebody who comes back under the same name must find again, when it was looked.
    expected: BTreeSet<IpAddr>,
}

impl Model {
    /// Judges everything, as far as it is known.
    pub fn judge(&mut self) {
        self.batch = Batch::default();
        for home in self.index.homes() {
            let subject = objects::subject(&self.index, &home);
            let now = time::saturating_add(self.now, self.ahead);
            let verdict = Addresses::judge(&subject, &World::default(), now);
            self.index.judged(&subject, &verdict, now);
            if let Some(action) = verdict.next.pending_action().copied() {
                self.batch.due.push(Due { subject, verdict, action });
            }
        }
    }

    pub fn read(&mut self) {
        self.batch.read = Some((self.pool_version, self.pool()));
    }

    pub fn look(&mut self) {
        if self.batch.read.is_some() {
            self.batch.looked = Some(objects::seen(&self.objects()));
            let comes_back = |ip: &IpAddr, key: &str| match self.pods.get(key) {
                Some(pod) => pod.of_a_set && pod.told.is_empty() && self.promises(key, ip),
                None => true,
            };
            let expected = self.records.iter().filter(|(ip, (key, _))| self.wants(key) && comes_back(ip, key));
            self.batch.expected = expected.map(|(ip, _)| *ip).collect();
        }
    }

    /// Writes what is confirmed, on condition that the pool is what was read; reads it again otherwise.
    pub fn write(&mut self) {
        let Batch { due, read, looked, expected } = std::mem::take(&mut self.batch);
        let (Some((version, pool)), Some(mut index)) = (read, looked) else { return };
        objects::add(&mut index, &[pool]);
        let (addresses, endpoints): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|due| !matches!(caretaker_addresses::home(&due.subject), Home::Endpoint(_)));
        // By the earlier of the two clocks, as the API server tells its own.
        let now = self.now.min(time::saturating_add(self.now, self.ahead));
        let sure = |index: &Observation, due: &Due<Addresses>| confirm(index, due, &World::default(), now).is_ok();
        let mut addresses: Vec<_> = addresses.into_iter().filter(|due| sure(&index, due)).collect();
        if version != self.pool_version {
            objects::add(&mut index, &[self.pool()]);
            let mut again = objects::seen(&self.objects());
            objects::add(&mut again, &[self.pool()]);
            // Whoever may come back, or is only suspected, is looked at again.
            let key = |due: &Due<Addresses>| Addresses::bond(&due.subject).unwrap_or_default().to_owned();
            let lasts = |due: &Due<Addresses>| !key(due).contains("db-") && !SUSPECTED.contains(&due.verdict.rule);
            addresses.retain(|due| sure(if lasts(due) { &index } else { &again }, due));
        }
        let gone: BTreeSet<IpAddr> = addresses
            .iter()
            .filter_map(|due| match caretaker_addresses::home(&due.subject) {
                Home::Address(_, ip) => Some(ip),
                _ => None,
            })
            .collect();
        if !gone.is_empty() {
            self.released += gone.len();
            self.lost = gone.intersection(&expected).next().map(|ip| format!("{ip} of {:?}", self.records[ip]));
            self.records.retain(|ip, _| !gone.contains(ip));
            self.write_pool();
        }
        for due in endpoints {
            let live = objects::seen(&self.objects());
            if confirm(&live, &due, &World::default(), time::saturating_add(self.now, self.ahead)).is_ok() {
                let Home::Endpoint(key) = caretaker_addresses::home(&due.subject) else { continue };
                self.remove_endpoint(&key);
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
