//! Metrics for Prometheus. Every label has a bounded set of values.

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
struct ActionLabels {
    keeper: &'static str,
    action: &'static str,
    rule: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SubjectLabels {
    keeper: &'static str,
    next: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeeperLabels {
    keeper: &'static str,
}

/// Buckets of the lag: well under a second is what is promised, minutes are an outage.
const LAG_BUCKETS: [f64; 9] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// The prefix of every name, except of metrics that have a name of the replaced tool.
const PREFIX: &str = "caretaker";

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    actions: Family<ActionLabels, Counter>,
    subjects: Family<SubjectLabels, Gauge<i64, AtomicI64>>,
    lag: Histogram,
    breaker: Family<KeeperLabels, Gauge<i64, AtomicI64>>,
    leader: Family<KeeperLabels, Gauge<i64, AtomicI64>>,
    events_dropped: Counter,
}

impl Metrics {
    /// All at zero.
    #[must_use]
    pub fn new(version: &'static str) -> Self {
        let mut all = Registry::default();
        let registry = all.sub_registry_with_prefix(PREFIX);
        let actions = Family::default();
        registry.register("actions", "Actions by outcome", actions.clone());
        let subjects = Family::default();
        registry.register("subjects", "Subjects by what comes next for them, on the leader", subjects.clone());
        let lag = Histogram::new(LAG_BUCKETS);
        registry.register("deadline_lag_seconds", "Time from the deadline of an action to its start", lag.clone());
        let breaker = Family::default();
        registry.register("breaker_open", "1 while the breaker is open", breaker.clone());
        let leader = Family::default();
        registry.register("leader", "1 on the replica that leads", leader.clone());
        let events_dropped = Counter::default();
        registry.register("events_dropped", "Kubernetes Events that could not be written", events_dropped.clone());
        registry.register("build", "This program", Info::new([("version", version)]));
        Self { registry: all, actions, subjects, lag, breaker, leader, events_dropped }
    }

    /// Counts an action.
    pub fn record_action(&self, keeper: &'static str, action: &'static str, rule: &'static str, outcome: Outcome) {
        self.actions.get_or_create(&ActionLabels { keeper, action, rule, outcome: outcome.name() }).inc();
    }

    /// Sets how many subjects have this kind of verdict.
    pub fn subjects(&self, keeper: &'static str, next: &'static str, count: i64) {
        self.subjects.get_or_create(&SubjectLabels { keeper, next }).set(count);
    }

    /// An action started this many seconds after its deadline.
    pub fn observe_lag(&self, seconds: f64) {
        self.lag.observe(seconds);
    }

    /// Whether the breaker is open.
    pub fn breaker(&self, keeper: &'static str, open: bool) {
        self.breaker.get_or_create(&KeeperLabels { keeper }).set(open.into());
    }

    /// Whether this replica leads.
    pub fn leader(&self, keeper: &'static str, leads: bool) {
        self.leader.get_or_create(&KeeperLabels { keeper }).set(leads.into());
    }

    /// An Event could not be written.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// Registers further metrics under our prefix.
    pub fn register(&mut self, register: impl FnOnce(&mut Registry)) {
        register(self.registry.sub_registry_with_prefix(PREFIX));
    }

    /// Registers further metrics under their full names.
    pub fn register_full_names(&mut self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry);
    }

    /// All metrics in the format that Prometheus reads.
    #[must_use]
    pub fn encode(&self) -> String {
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
        metrics.record_action("toys", "tidy", "Broken", Outcome::Done);
        let heard: Counter = Counter::default();
        metrics.register(|registry| registry.register("heard", "Heard", heard.clone()));
        let released: Counter = Counter::default();
        metrics.register_full_names(|registry| {
            registry.register("spiderpool_ip_gc_counts", "Released", released.clone());
        });
        heard.inc();
        released.inc_by(7);

        let text = metrics.encode();

        for line in [
            r#"caretaker_actions_total{keeper="toys",action="tidy",rule="Broken",outcome="done"} 1"#,
            r#"caretaker_build_info{version="1.2.3"} 1"#,
            "caretaker_heard_total 1",
            "# TYPE spiderpool_ip_gc_counts counter",
            "spiderpool_ip_gc_counts_total 7",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is missing in:\n{text}");
        }
    }
}
