//! What can be counted, for Prometheus. Every label has a bounded set of values.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::journal::Outcome;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Acted {
    keeper: &'static str,
    action: &'static str,
    rule: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Standing {
    keeper: &'static str,
    next: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    keeper: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    outcome: &'static str,
}

/// How late an act may be: well under a second is what is promised, minutes are an outage.
const LAGS: [f64; 9] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// What every name begins with, but for what is called as in the system that a keeper stands in for.
const PREFIX: &str = "caretaker";

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    actions: Family<Acted, Counter>,
    subjects: Family<Standing, Gauge<i64, AtomicI64>>,
    lag: Histogram,
    breaker: Family<Of, Gauge<i64, AtomicI64>>,
    leader: Family<Of, Gauge<i64, AtomicI64>>,
    unsaid: Counter,
    gap: Gauge<i64, AtomicI64>,
    records: Family<Ended, Counter>,
}

impl Metrics {
    /// None counted yet.
    #[must_use]
    pub fn new(version: &'static str) -> Self {
        let mut all = Registry::default();
        let registry = all.sub_registry_with_prefix(PREFIX);
        let actions = Family::default();
        registry.register("actions", "Actions by what became of them", actions.clone());
        let subjects = Family::default();
        registry.register("subjects", "Subjects by what comes next for them, on the leader", subjects.clone());
        let lag = Histogram::new(LAGS);
        registry.register("deadline_lag_seconds", "How long after its deadline an act began", lag.clone());
        let breaker = Family::default();
        registry.register("breaker_open", "1 while the breaker is open", breaker.clone());
        let leader = Family::default();
        registry.register("leader", "1 on the replica that leads", leader.clone());
        let unsaid = Counter::default();
        registry.register("events_lost", "Kubernetes Events that could not be written", unsaid.clone());
        let gap = Gauge::default();
        registry.register("activity_gap", "1 while activity may be missed", gap.clone());
        let records = Family::default();
        registry.register("activity_records", "Uses written to namespaces by how it went", records.clone());
        registry.register("build", "This program", Info::new([("version", version)]));
        Self { registry: all, actions, subjects, lag, breaker, leader, unsaid, gap, records }
    }

    /// Something was done, or was to be done.
    pub fn acted(&self, keeper: &'static str, action: &'static str, rule: &'static str, outcome: Outcome) {
        self.actions.get_or_create(&Acted { keeper, action, rule, outcome: outcome.name() }).inc();
    }

    /// So many subjects have this to come.
    pub fn subjects(&self, keeper: &'static str, next: &'static str, count: i64) {
        self.subjects.get_or_create(&Standing { keeper, next }).set(count);
    }

    /// An act began so long after its deadline.
    pub fn lag(&self, seconds: f64) {
        self.lag.observe(seconds);
    }

    /// Whether the breaker is open.
    pub fn breaker(&self, keeper: &'static str, open: bool) {
        self.breaker.get_or_create(&Of { keeper }).set(open.into());
    }

    /// Whether this replica leads.
    pub fn leader(&self, keeper: &'static str, leads: bool) {
        self.leader.get_or_create(&Of { keeper }).set(leads.into());
    }

    /// An Event was lost.
    pub fn event_lost(&self) {
        self.unsaid.inc();
    }

    /// Whether activity may be missed.
    pub fn gap(&self, open: bool) {
        self.gap.set(open.into());
    }

    /// A use was written to its namespace, or was not.
    pub fn recorded(&self, outcome: &'static str) {
        self.records.get_or_create(&Ended { outcome }).inc();
    }

    /// Has somebody add what they count themselves, under our prefix.
    pub fn add(&mut self, register: impl FnOnce(&mut Registry)) {
        register(self.registry.sub_registry_with_prefix(PREFIX));
    }

    /// Has somebody add what they count themselves, under names that others have given it.
    pub fn add_by_full_name(&mut self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry);
    }

    /// In the format that Prometheus reads.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_has_our_prefix_unless_it_has_a_full_name() {
        let mut metrics = Metrics::new("1.2.3");
        metrics.acted("toys", "tidy", "Broken", Outcome::Done);
        let heard: Counter = Counter::default();
        metrics.add(|registry| registry.register("heard", "Heard", heard.clone()));
        let gauge: Gauge = Gauge::default();
        metrics.add_by_full_name(|registry| registry.register("spiderpool_ip_gc_counts", "Released", gauge.clone()));
        heard.inc();
        gauge.set(7);

        let text = metrics.text();

        for line in [
            r#"caretaker_actions_total{keeper="toys",action="tidy",rule="Broken",outcome="done"} 1"#,
            r#"caretaker_build_info{version="1.2.3"} 1"#,
            "caretaker_heard_total 1",
            "# TYPE spiderpool_ip_gc_counts gauge",
            "spiderpool_ip_gc_counts 7",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is missing in:\n{text}");
        }
    }
}
