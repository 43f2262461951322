//! What each pool holds, and everything that is known of a subject; for people.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::{Next, Timestamp, Verdict};
use serde::Serialize;

use crate::act::Action;
use crate::judge::SUSPECTED;
use crate::subject::{Holder, Keeps, Pod, Subject};

/// A pool in figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Its name.
    pub pool: String,
    /// How many addresses it has.
    pub size: u128,
    /// How many of them are recorded as somebody's.
    pub held: usize,
    /// How many of those are used, or kept for somebody.
    pub in_use: usize,
    /// How many are nobody's, and are released now or after their deadline.
    pub leaked: usize,
    /// How many live pods do not seem to use.
    pub suspected: usize,
    /// How many cannot be judged.
    pub refused: usize,
    /// By how much its count is wrong.
    pub drift: i64,
    /// What is wrong with it as a whole.
    pub trouble: Option<String>,
}

/// All pools in figures, by name.
#[must_use]
pub fn lines(subjects: &[Subject], verdicts: &[Verdict<Action>]) -> Vec<Line> {
    let mut lines: BTreeMap<Arc<str>, Line> = BTreeMap::new();
    for (subject, verdict) in subjects.iter().zip(verdicts) {
        match subject {
            Subject::Pool(pool) => {
                let line = lines.entry(pool.name.clone()).or_default();
                line.size = pool.size;
                let records = i64::try_from(pool.records).unwrap_or(i64::MAX);
                line.drift = pool.count.unwrap_or(0).saturating_sub(records);
                let told = matches!(verdict.next, Next::Refuse { .. });
                line.trouble = told.then(|| verdict.because.clone());
            }
            Subject::Address(address) => {
                let line = lines.entry(address.pool.clone()).or_default();
                line.held += 1;
                let place = match &verdict.next {
                    Next::Wait { .. } if is_suspicion(verdict.rule) => &mut line.suspected,
                    Next::Nothing => &mut line.in_use,
                    Next::Act { .. } | Next::Wait { .. } => &mut line.leaked,
                    Next::Refuse { .. } => &mut line.refused,
                };
                *place += 1;
            }
            Subject::Endpoint(_) => {}
        }
    }
    lines.into_iter().map(|(pool, line)| Line { pool: pool.to_string(), ..line }).collect()
}

fn is_suspicion(rule: &str) -> bool {
    SUSPECTED.contains(&rule) || rule == "PodNotSeenYet"
}

/// Everything that is known of a subject.
pub(crate) fn facts(subject: &Subject, when: impl Fn(Timestamp) -> String) -> Vec<(&'static str, String)> {
    match subject {
        Subject::Address(address) => {
            let mut facts = vec![
                ("pool", address.pool.to_string()),
                ("record of", address.holder.key.to_string()),
                ("its identity", said(&address.uid)),
            ];
            facts.extend(holder(&address.holder, &when));
            if let Some(sighting) = address.sighted {
                facts.push(("seen like this", format!("since {}, {}", when(sighting.since), sighting.rule)));
            }
            facts
        }
        Subject::Endpoint(endpoint) => {
            let mut facts = vec![("records of its pod", endpoint.records.to_string())];
            facts.extend(holder(&endpoint.holder, &when));
            facts
        }
        Subject::Pool(pool) => vec![
            ("addresses", pool.size.to_string()),
            ("records", pool.records.to_string()),
            ("allocatedIPCount", pool.count.map_or_else(|| "not set".to_owned(), |count| count.to_string())),
            ("being deleted", if pool.leaves { "yes" } else { "no" }.to_owned()),
        ],
    }
}

fn said(text: &str) -> String {
    if text.is_empty() { "not said".to_owned() } else { text.to_owned() }
}

fn holder(holder: &Holder, when: &impl Fn(Timestamp) -> String) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    match holder.pod.as_deref() {
        None => facts.push(("pod", if holder.absent { "there is none" } else { "none was seen yet" }.to_owned())),
        Some(pod) => facts.extend(pod_facts(pod, when)),
    }
    if let Some(endpoint) = holder.endpoint.as_deref() {
        let of = endpoint.pod.as_ref().map(ToString::to_string).or(endpoint.container.as_deref().map(str::to_owned));
        let of = of.unwrap_or_else(|| "nobody it names".to_owned());
        facts.push(("endpoint", format!("of {of}, with {}", listed(&endpoint.ips))));
    }
    match &holder.kept_by {
        Some(Keeps::Machine) => facts.push(("kept by", "a virtual machine".to_owned())),
        Some(Keeps::Set { name, first, replicas }) => {
            facts.push(("kept by", format!("StatefulSet {name}, {replicas} from ordinal {first} on")));
        }
        None => {}
    }
    facts
}

fn pod_facts(pod: &Pod, when: &impl Fn(Timestamp) -> String) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("pod", format!("{}, {}", pod.phase.name(), pod.uid)),
        ("its addresses", listed(&pod.ips)),
        ("its grace period", format!("{}s", pod.grace)),
    ];
    if !pod.more.is_empty() {
        facts.push(("as Multus tells", listed(&pod.more)));
    }
    if let Some(deletion) = pod.deletion {
        facts.push(("deletion timestamp", when(deletion)));
    }
    if let Some(finished) = pod.finished {
        facts.push(("finished", when(finished)));
    }
    if let Some(node) = &pod.node {
        facts.push(("node", node.to_string()));
    }
    facts
}

fn listed(ips: &[IpAddr]) -> String {
    if ips.is_empty() {
        return "none".to_owned();
    }
    ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
