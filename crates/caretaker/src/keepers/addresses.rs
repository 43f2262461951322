//! The addresses keeper in the commands.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caretaker_addresses::Addresses;
use caretaker_addresses::act::Action;
use caretaker_addresses::api::{ENDPOINT, IP, POOL};
use caretaker_addresses::observe::AddressCache;
use caretaker_addresses::subject::Subject;
use caretaker_core::Keeper as _;

use super::{KeeperCli, KindNames, TimelineMark, no_subject};

const HELD: char = '█';
const RELEASED: char = '×';
const FREE: char = ' ';

impl KeeperCli for Addresses {
    fn kinds(&self) -> Vec<KindNames> {
        vec![
            KindNames::new(IP, &["ip", "ips", "address"]),
            KindNames::new(POOL, &["spiderippool", "spiderippools", "sp"]),
            KindNames::new(ENDPOINT, &["spiderendpoint", "spiderendpoints", "se"]),
        ]
    }

    /// Addresses are in pools; endpoints alone are not enough.
    fn has_subjects_in(&self, kinds: &BTreeSet<&str>) -> bool {
        kinds.contains(POOL)
    }

    fn missing_inputs(&self, kinds: &BTreeSet<&str>, cache: &AddressCache) -> Vec<String> {
        let mut missing = Vec::new();
        if !kinds.contains(POOL) {
            missing.push("there is no SpiderIPPool: no address is judged".to_owned());
        } else if !kinds.contains("Pod") {
            missing.push(
                "there are pools but no Pod: every address looks leaked; docs/commands.md has the full dump".to_owned(),
            );
        }
        // A node that is not among the nodes counts as deleted, which shortens deadlines.
        let nodes = cache.missing_nodes();
        if let Some(first) = nodes.first() {
            let more = if nodes.len() > 1 { format!(" and {} more", nodes.len() - 1) } else { String::new() };
            missing.push(format!(
                "there are Nodes, but not {first}{more}: pods there count as those of a deleted Node, whose addresses are \
                 released earlier; give all Nodes or none"
            ));
        }
        missing
    }

    /// The namespace of the pod that holds the address or the endpoint.
    fn in_namespace(&self, subject: &Subject, namespace: &str) -> bool {
        let holder = match subject {
            Subject::Address(address) => &address.holder,
            Subject::Endpoint(endpoint) => &endpoint.holder,
            Subject::Pool(_) => return false,
        };
        holder.key.split_once('/').is_some_and(|(ns, _)| ns == namespace)
    }

    /// Compares addresses and not their text; where two pools have an address, `POOL/ADDRESS` is one of them.
    fn matches_name(&self, subject: &Subject, name: &str) -> bool {
        let Subject::Address(address) = subject else { return self.subject_ref(subject).name == name };
        let (pool, ip) = name.rsplit_once('/').map_or((None, name), |(pool, ip)| (Some(pool), ip));
        ip.parse::<IpAddr>() == Ok(address.ip) && pool.is_none_or(|pool| *address.pool == *pool)
    }

    fn not_found_message(&self, kind: &KindNames, name: &str, subjects: &[Subject]) -> String {
        if kind.name == IP {
            let ip = name.rsplit('/').next().unwrap_or(name);
            return match ip.parse::<IpAddr>() {
                Ok(ip) => format!("no pool has a record of {ip}: it is not held"),
                Err(_) => format!("{ip:?} is not an address; write for instance ip/10.6.0.12"),
            };
        }
        no_subject(self, kind, name, subjects)
    }

    fn initial_fill(&self, _: &Subject) -> char {
        HELD
    }

    fn mark_for(&self, action: &Action) -> TimelineMark {
        match action {
            Action::Release | Action::DeleteEndpoint | Action::DeleteReservation => {
                TimelineMark { fill: Some(FREE), mark: Some(RELEASED) }
            }
            Action::Recount | Action::Warn => TimelineMark::default(),
        }
    }

    fn legend(&self) -> &'static str {
        "█ held  × released"
    }

    fn summary(&self) -> Vec<(&'static str, &'static str)> {
        vec![
            ("release", "released"),
            ("delete-endpoint", "deleted"),
            ("delete-reservation", "reservations deleted"),
            ("recount", "recounted"),
        ]
    }
}
