//! The addresses keeper in the commands.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use caretaker_addresses::Addresses;
use caretaker_addresses::act::Action;
use caretaker_addresses::api::{ENDPOINT, IP, POOL};
use caretaker_addresses::subject::{Subject, World};
use caretaker_core::limits::{Breaker, Pace};
use caretaker_core::{Keeper as _, Timestamp};

use super::{Console, Kind, Needless, Stroke};
use crate::config::{Common, Config, nearest};
use crate::scene::Settings;

const HELD: char = '█';
const RELEASED: char = '×';
const FREE: char = ' ';

impl Console for Addresses {
    type Ground = World;

    const KINDS: &'static [Kind] = &[
        Kind { name: IP, words: &["ip", "ips", "address"], namespaced: false },
        Kind { name: POOL, words: &["spiderippool", "spiderippools", "sp"], namespaced: false },
        Kind { name: ENDPOINT, words: &["spiderendpoint", "spiderendpoints", "se"], namespaced: true },
    ];
    const PACED: &'static [&'static str] = &["release"];
    const PACES: &'static [(&'static str, Pace)] = &[];
    // A namespace with a few dozen pods may go at any time; a hundred addresses at once are looked at.
    const BREAKER: Breaker = Breaker { min_count: 100, ..Breaker::DEFAULT };
    const LEGEND: &'static str = "█ held  × released";
    const SUMMARY: &'static [(&'static str, &'static str)] = &[("release", "released")];

    fn common(config: &Config) -> Common<'_> {
        config.keepers.addresses.common()
    }

    fn is_on(config: &Config, files: Option<&BTreeSet<&str>>) -> bool {
        config.keepers.addresses.enabled.unwrap_or_else(|| files.is_some_and(|kinds| kinds.contains(POOL)))
    }

    fn ground(config: &Config, _: &Settings) -> Result<World> {
        Ok(World { policy: config.keepers.addresses.policy(), leads: true })
    }

    fn world(ground: &World, _: Timestamp) -> World {
        *ground
    }

    fn lacks(kinds: &BTreeSet<&str>) -> Vec<String> {
        let mut lacks = Vec::new();
        if !kinds.contains(POOL) {
            lacks.push("there is no SpiderIPPool: no address is judged".to_owned());
        } else if !kinds.contains("Pod") {
            lacks.push(
                "there are pools but no Pod: every address looks leaked; docs/commands.md has the full dump".to_owned(),
            );
        }
        lacks
    }

    /// Those of the pods in it.
    fn is_in(subject: &Subject, namespace: &str) -> bool {
        let holder = match subject {
            Subject::Address(address) => &address.holder,
            Subject::Endpoint(endpoint) => &endpoint.holder,
            Subject::Pool(_) => return false,
        };
        holder.key.split_once('/').is_some_and(|(ns, _)| ns == namespace)
    }

    /// An address however it is written, with its pool before it where two pools have it.
    fn is_called(subject: &Subject, name: &str) -> bool {
        let Subject::Address(address) = subject else { return Self::name(subject).name == name };
        let (pool, ip) = name.rsplit_once('/').map_or((None, name), |(pool, ip)| (Some(pool), ip));
        ip.parse::<IpAddr>() == Ok(address.ip) && pool.is_none_or(|pool| *address.pool == *pool)
    }

    fn absent(kind: &Kind, name: &str, subjects: &[Subject]) -> String {
        if kind.name == IP {
            let ip = name.rsplit('/').next().unwrap_or(name);
            return match ip.parse::<IpAddr>() {
                Ok(ip) => format!("no pool has a record of {ip}: it is not held"),
                Err(_) => format!("{ip:?} is no address; write for instance ip/10.6.0.12"),
            };
        }
        let names = subjects.iter().map(Self::name).filter(|n| n.kind == kind.name).map(|n| n.name);
        let meant = nearest(name, names).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        format!("there is no {} {name:?}{meant}", kind.name)
    }

    fn needless(kind: &str) -> &'static [Needless] {
        match kind {
            "Pod" => &[(2, "containers:"), (2, "initContainers:"), (2, "volumes:"), (2, "tolerations:")],
            "StatefulSet" => &[(0, "status:"), (2, "template:")],
            _ => &[],
        }
    }

    fn lane(_: &Subject) -> char {
        HELD
    }

    fn stroke(action: &Action) -> Stroke {
        match action {
            Action::Release | Action::Remove => Stroke { fill: Some(FREE), mark: Some(RELEASED) },
            Action::Recount | Action::Tell => Stroke::default(),
        }
    }
}
