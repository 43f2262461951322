//! What is judged, put together from the rows.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::parsed::quoted;

use super::pools::{PoolRow, Record};
use super::{Home, Observation, Person};
use crate::api::{Identity, ordinal};
use crate::subject::{Address, Endpoint, Holder, Keeps, Owner, Pool, Row, Subject};

impl Observation {
    pub(super) fn subject(&self, home: &Home) -> Option<Subject> {
        match home {
            Home::Pool(name) => self.pools.get(name).map(|row| Subject::Pool(Box::new(pool(name, row)))),
            Home::Address(name, ip) => {
                let row = self.pools.get(name)?;
                Some(self.address(name, row, *ip, row.records.get(ip)?, home))
            }
            Home::Endpoint(key) => self.endpoint(key, home),
        }
    }

    fn address(&self, pool: &Arc<str>, row: &PoolRow, ip: IpAddr, record: &Record, home: &Home) -> Subject {
        let uid = record.identity.to_string();
        Subject::Address(Box::new(Address {
            pool: pool.clone(),
            pool_uid: row.shown.clone(),
            pool_leaves: row.leaves,
            ip,
            name: shown(ip),
            broken: broken(record),
            outside: !row.ranges.has(ip),
            holder: self.holder(&record.holder, Some(&record.identity)),
            identity: record.identity.clone(),
            uid,
            sighted: self.sightings.get(home).copied(),
        }))
    }

    fn endpoint(&self, key: &Arc<str>, home: &Home) -> Option<Subject> {
        let person = self.people.get(key)?;
        let row = person.endpoint.as_deref()?;
        let identity = row.pod.clone().map(Identity::Pod);
        let (namespace, name) = key.split_once('/')?;
        Some(Subject::Endpoint(Box::new(Endpoint {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: row.uid.to_string(),
            holder: self.holder(key, identity.as_ref()),
            records: person.records.iter().filter(|(pool, ip)| self.is_of(row, pool, *ip)).count(),
            unreadable: self.unreadable > 0,
            sighted: self.sightings.get(home).copied(),
        })))
    }

    /// Whether a record is of the pod that an endpoint speaks of, or may be.
    fn is_of(&self, row: &Row, pool: &Arc<str>, ip: IpAddr) -> bool {
        let record = self.pools.get(pool).and_then(|pool| pool.records.get(&ip));
        record.is_some_and(|record| row.is_of(&record.identity))
    }

    /// What is known of a name; `identity` says of which pod of that name.
    fn holder(&self, key: &Arc<str>, identity: Option<&Identity>) -> Holder {
        let person = self.people.get(key);
        let pod = person.and_then(|p| p.pod.clone());
        let endpoint = person.and_then(|p| p.endpoint.clone());
        let leaves = pod.as_ref().filter(|pod| pod.deletion.is_some());
        let node_ready = leaves.and_then(|pod| self.nodes.get(pod.node.as_deref()?)).map(|(ready, _)| *ready);
        Holder {
            key: key.clone(),
            absent: pod.is_none() && (!self.watched || person.is_some_and(|p| went(p, identity))),
            kept_by: self.kept_by(key, endpoint.as_deref(), identity),
            machines: !self.machines.is_empty() || !self.planned.is_empty() || self.machine_endpoints > 0,
            node_ready,
            pod,
            endpoint,
        }
    }

    /// What holds on to the addresses of a name: a virtual machine, or the StatefulSet that wants it.
    /// The endpoint says whose pod it is; without one, or with one of another pod, the name does.
    fn kept_by(&self, key: &str, endpoint: Option<&Row>, identity: Option<&Identity>) -> Option<Keeps> {
        if self.machines.contains_key(key) || self.planned.contains_key(key) {
            return Some(Keeps::Machine);
        }
        let (namespace, name) = key.split_once('/')?;
        let (by_name, number) = ordinal(name)?;
        let told = endpoint.filter(|row| match identity {
            Some(Identity::Pod(uid)) => row.pod.as_ref() == Some(uid),
            _ => true,
        });
        let set = match told.map(|row| &row.owner) {
            Some(Owner::Set(set)) => set,
            Some(Owner::Other | Owner::Machine) => return None,
            None => by_name,
        };
        let wanted = self.sets.get(&format!("{namespace}/{set}"))?;
        wanted.wants(number).then(|| Keeps::Set {
            name: set.to_owned(),
            first: wanted.first,
            replicas: wanted.replicas,
        })
    }
}

/// An address as text, in one allocation: there are hundreds of thousands.
fn shown(ip: IpAddr) -> String {
    let mut text = String::with_capacity(if ip.is_ipv4() { 15 } else { 39 });
    // A string takes whatever is written to it.
    let _ = write!(text, "{ip}");
    text
}

/// Whether this very pod was seen to go.
fn went(person: &Person, identity: Option<&Identity>) -> bool {
    match (identity, &person.gone) {
        (Some(Identity::Pod(uid)), Some(gone)) => uid == gone,
        (_, gone) => gone.is_some(),
    }
}

fn broken(record: &Record) -> Option<String> {
    (!record.fits).then(|| {
        let shown = quoted(&record.holder);
        format!(
            "its record is of {shown}, which is no namespace/name of a pod; take the record out by hand if it is nobody's"
        )
    })
}

fn pool(name: &Arc<str>, row: &PoolRow) -> Pool {
    let mut odd: Vec<String> = row
        .odd
        .iter()
        .map(|key| {
            format!(
                "status.allocatedIPs has {key:?}, which is no address or one that is there twice; take it out by hand"
            )
        })
        .collect();
    odd.extend(row.ranges.broken.clone());
    let size = row.total.and_then(|total| u128::try_from(total).ok()).unwrap_or_else(|| row.ranges.size());
    Pool {
        name: name.clone(),
        uid: row.uid.to_string(),
        leaves: row.leaves,
        broken: row.broken.clone(),
        odd,
        records: row.records.len() + row.odd.len(),
        count: row.count,
        size,
    }
}
