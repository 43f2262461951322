//! What must never happen in the model, and what must happen in bounded time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caretaker_core::SignedDuration;

use super::Model;

impl Model {
    /// What must never happen: an address in use without a record of its pod.
    pub fn wrong(&self) -> Option<String> {
        if let Some(lost) = &self.lost {
            return Some(format!("a recreated pod must find it again: {lost}"));
        }
        let mut users: BTreeMap<IpAddr, &str> = BTreeMap::new();
        for (uid, (key, ips)) in &self.live {
            for ip in ips {
                if let Some(other) = users.insert(*ip, key) {
                    return Some(format!("{ip} is used by {key} and by {other}"));
                }
                if self.records.get(ip) != Some(&(key.clone(), uid.clone())) {
                    return Some(format!("{ip} of {key} ({uid}) was released: {:?}", self.records.get(ip)));
                }
            }
        }
        None
    }

    /// Records that no pod needs.
    pub fn leaked(&self) -> Vec<String> {
        let is_needed = |ip: &IpAddr, key: &str, uid: &str| match self.pods.get(key) {
            Some(pod) if pod.uid == uid && pod.deletion.is_none() && pod.finished.is_none() => {
                // A pod that has reported no addresses proves nothing.
                pod.reported.is_empty() || pod.reported.contains(ip)
            }
            // A recreated pod that has no addresses yet may get this one back, and so does the one after it.
            Some(pod) if pod.uid != uid => {
                let is_ending = pod.deletion.is_some() || pod.finished.is_some();
                pod.in_set && self.reserves(key, ip) && (pod.reported.is_empty() || is_ending && self.wants(key))
            }
            _ => self.wants(key),
        };
        let leaked = self.records.iter().filter(|(ip, (key, uid))| !is_needed(ip, key, uid));
        leaked.map(|(ip, (key, uid))| format!("{ip} of {key} ({uid})")).collect()
    }

    /// Nothing else happens; the collector runs for a few minutes. Returns the first thing that goes wrong.
    pub fn settle(&mut self) -> Option<String> {
        self.set_clock(SignedDuration::ZERO);
        for _ in 0..100 {
            self.deliver_all();
            self.collect();
            if let Some(wrong) = self.wrong() {
                return Some(wrong);
            }
            self.advance(3);
        }
        None
    }
}
