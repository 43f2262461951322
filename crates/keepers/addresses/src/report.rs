//! For people: everything that is known of a subject, and each pool in figures.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use caretaker_core::{Next, RuleId, RuleSet as _, Timestamp, VerdictOf};
use serde::Serialize;

use crate::Addresses;
use crate::judge::{Rule, is_suspected};
use crate::subject::{Address, GonePod, Holder, Node, Phase, PodState, RetainedBy, Subject};

/// A pool in figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolSummary {
    /// Its name.
    pub pool: String,
    /// The number of its addresses.
    pub size: u128,
    /// How many of them have a record.
    pub held: usize,
    /// How many of those are in use, or retained.
    pub in_use: usize,
    /// How many have leaked, and are released now or after their deadline.
    pub leaked: usize,
    /// How many are suspected to have leaked.
    pub suspected: usize,
    /// How many cannot be judged.
    pub refused: usize,
    /// By how much its count is wrong.
    pub drift: i64,
    /// What is wrong with the pool as a whole.
    pub error: Option<String>,
}

/// All pools in figures, by name.
#[must_use]
pub fn summarize(subjects: &[Subject], verdicts: &[VerdictOf<Addresses>]) -> Vec<PoolSummary> {
    let mut summaries: BTreeMap<Arc<str>, PoolSummary> = BTreeMap::new();
    for (subject, verdict) in subjects.iter().zip(verdicts) {
        match subject {
            Subject::Pool(pool) => {
                let summary = summaries.entry(pool.name.clone()).or_default();
                summary.size = pool.size;
                let records = i64::try_from(pool.records).unwrap_or(i64::MAX);
                summary.drift = pool.count.unwrap_or(0).saturating_sub(records);
                let refused = matches!(verdict.next, Next::Refuse { .. });
                summary.error = refused.then(|| verdict.because.clone());
            }
            Subject::Address(address) => {
                let summary = summaries.entry(address.pool.clone()).or_default();
                summary.held += 1;
                let figure = match &verdict.next {
                    Next::Wait { .. } if is_suspicion(address, verdict.rule) => &mut summary.suspected,
                    Next::Nothing => &mut summary.in_use,
                    Next::Act { .. } | Next::Wait { .. } => &mut summary.leaked,
                    Next::Refuse { .. } => &mut summary.refused,
                };
                *figure += 1;
            }
            Subject::Endpoint(_) => {}
        }
    }
    summaries.into_iter().map(|(pool, summary)| PoolSummary { pool: pool.to_string(), ..summary }).collect()
}

fn is_suspicion(address: &Address, rule: RuleId<Rule>) -> bool {
    matches!(rule, RuleId::Keeper(rule) if is_suspected(address, rule))
}

/// In which state a subject is: of an address and an endpoint, what has become of its pod.
pub(crate) fn state_word(subject: &Subject) -> &'static str {
    match subject {
        Subject::Pool(pool) if pool.deleting => "terminating",
        Subject::Pool(pool) if pool.invalid.is_some() || !pool.problems.is_empty() => UNREADABLE,
        Subject::Pool(pool) if pool.count != i64::try_from(pool.records).ok() => "miscounted",
        Subject::Pool(_) => "healthy",
        Subject::Address(address) if address.invalid.is_some() => UNREADABLE,
        Subject::Address(address) => {
            let is_replaced = |pod: &PodState| address.is_of(pod) == Some(false);
            holder_state(&address.holder, is_replaced, |pod| address.holder.uses(pod, address.ip))
        }
        Subject::Endpoint(endpoint) => {
            let holder = &endpoint.holder;
            holder_state(holder, |pod| !holder.endpoint_is_of(pod), |_| true)
        }
    }
}

const UNREADABLE: &str = "unreadable";

fn holder_state(
    holder: &Holder,
    is_replaced: impl Fn(&PodState) -> bool,
    is_used: impl Fn(&PodState) -> bool,
) -> &'static str {
    match &holder.pod {
        None if holder.retained_by.is_some() => "retained",
        None if holder.absent => "pod gone",
        None => "pod unseen",
        Some(pod) if is_replaced(pod) => "replaced",
        Some(pod) if pod.deletion.is_some() => "terminating",
        Some(pod) if matches!(pod.phase, Phase::Succeeded | Phase::Failed) => "finished",
        Some(pod) if is_used(pod) => "in use",
        Some(_) => "not on pod",
    }
}

/// Everything that is known of a subject.
pub(crate) fn facts(subject: &Subject, when: impl Fn(Timestamp) -> String) -> Vec<(&'static str, String)> {
    match subject {
        Subject::Address(address) => {
            let mut facts = vec![
                ("pool", address.pool.to_string()),
                ("recorded pod", address.holder.key.to_string()),
                ("recorded uid", if address.uid.is_empty() { "none".to_owned() } else { address.uid.clone() }),
            ];
            facts.extend(holder_facts(&address.holder, &when));
            if let Some(sighting) = address.sighting {
                facts.push(("first seen", format!("{}, {}", when(sighting.since), sighting.rule.name())));
            }
            facts
        }
        Subject::Endpoint(endpoint) => {
            let mut facts = vec![("records of its pod", endpoint.records.to_string())];
            facts.extend(holder_facts(&endpoint.holder, &when));
            facts
        }
        Subject::Pool(pool) => vec![
            ("addresses", pool.size.to_string()),
            ("records", pool.records.to_string()),
            ("allocatedIPCount", pool.count.map_or_else(|| "not set".to_owned(), |count| count.to_string())),
            ("being deleted", if pool.deleting { "yes" } else { "no" }.to_owned()),
        ],
    }
}

fn holder_facts(holder: &Holder, when: &impl Fn(Timestamp) -> String) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    match holder.pod.as_deref() {
        None => facts.push(("pod", if holder.absent { "does not exist" } else { "not seen yet" }.to_owned())),
        Some(pod) => facts.extend(pod_facts(pod, &holder.node, when)),
    }
    facts.extend(holder.awaited().into_iter().flat_map(|gone| gone_facts(gone, when)));
    if let Some(endpoint) = holder.endpoint.as_deref() {
        let of = endpoint.pod.as_ref().map(ToString::to_string).or(endpoint.container.as_deref().map(str::to_owned));
        let of = of.unwrap_or_else(|| "no named pod".to_owned());
        facts.push(("endpoint", format!("of {of}, with {}", listed(&endpoint.ips))));
    }
    match &holder.retained_by {
        Some(RetainedBy::Vm) => facts.push(("retained by", "a virtual machine".to_owned())),
        Some(RetainedBy::StatefulSet { name, first, replicas }) => {
            facts.push(("retained by", format!("StatefulSet {name}, {replicas} replicas from ordinal {first} on")));
        }
        None => {}
    }
    facts
}

/// The last facts about a pod that is gone. Another pod may have its name, and facts of its own.
fn gone_facts(gone: &GonePod, when: &impl Fn(Timestamp) -> String) -> Vec<(&'static str, String)> {
    let mut facts = vec![("was on node", gone.node.describe())];
    facts.extend(gone.deletion.map(|deletion| ("was Terminating", format!("deletion timestamp {}", when(deletion)))));
    facts.extend(gone.endpoint_deletion.map(|deletion| ("endpoint deleted", when(deletion))));
    facts.push((
        "had grace period",
        format!("{}s{}", gone.grace, if gone.was_seen { "" } else { ", as none is known" }),
    ));
    facts.extend(gone.since.map(|since| ("gone since", when(since))));
    facts
}

fn pod_facts(pod: &PodState, node: &Node, when: &impl Fn(Timestamp) -> String) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("pod", format!("{}, {}", pod.phase.name(), pod.uid)),
        ("pod IPs", listed(&pod.ips)),
        ("grace period", format!("{}s", pod.grace)),
    ];
    if !pod.other_ips.is_empty() {
        facts.push(("IPs by Multus", listed(&pod.other_ips)));
    }
    if let Some(deletion) = pod.deletion {
        facts.push(("deletion timestamp", when(deletion)));
    }
    if let Some(finished) = pod.finished {
        facts.push(("finished", when(finished)));
    }
    match &pod.node {
        Some(_) if pod.is_ending() => facts.push(("node", node.describe())),
        Some(name) => facts.push(("node", name.to_string())),
        None => {}
    }
    facts
}

fn listed(ips: &[IpAddr]) -> String {
    if ips.is_empty() {
        return "none".to_owned();
    }
    ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
