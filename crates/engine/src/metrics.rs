//! Metrics for Prometheus. Every label has a bounded set of values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};

use caretaker_core::{SignedDuration, time};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
pub use prometheus_client::registry::Registry;

use crate::clock::Clock;
use crate::journal::Outcome;
use crate::lease::LeaderHandle;
use crate::schedule::Outlook;

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

fn lag_histogram() -> Histogram {
    Histogram::new(LAG_BUCKETS)
}

/// How far ahead deadlines are counted: what comes next, what comes today, and what a plan for the week must know.
const HORIZONS: [(&str, SignedDuration); 4] = [
    ("10m", SignedDuration::from_mins(10)),
    ("1h", SignedDuration::from_hours(1)),
    ("1d", SignedDuration::from_hours(24)),
    ("7d", SignedDuration::from_hours(7 * 24)),
];

/// The deadlines of a keeper, and what tells how they are shown.
#[derive(Debug)]
pub struct ShownSchedule {
    /// The name of the keeper.
    pub keeper: &'static str,
    /// Its deadlines.
    pub outlook: Arc<dyn Outlook>,
    /// The clock that they are on.
    pub clock: Clock,
    /// Only a leader shows anything; `None` where there is no other replica.
    pub leadership: Option<LeaderHandle>,
    /// True if what is due is about to be done.
    pub shows_overdue: bool,
}

/// The deadlines of all keepers of a process, counted when metrics are read.
#[derive(Debug, Clone, Default)]
struct Schedules(Arc<Mutex<BTreeMap<&'static str, ShownSchedule>>>);

impl Collector for Schedules {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let leads = |shown: &&ShownSchedule| shown.leadership.as_ref().is_none_or(LeaderHandle::is_leader);
        let help = "Deadlines that pass within this time, on the leader";
        let mut ahead = encoder.encode_descriptor("deadlines_ahead", help, None, MetricType::Gauge)?;
        for shown in all.values().filter(leads) {
            let now = shown.clock.now();
            for (within, horizon) in HORIZONS {
                let count = shown.outlook.deadlines_until(time::saturating_add(now, horizon));
                let labels = [("keeper", shown.keeper), ("within", within)];
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                ConstGauge::new(count).encode(ahead.encode_family(&labels)?)?;
            }
        }
        let help = "How long the oldest action is due that has not ended, on the leader; 0 if there is none";
        let mut oldest = encoder.encode_descriptor("oldest_due_age_seconds", help, None, MetricType::Gauge)?;
        for shown in all.values().filter(leads) {
            let due = shown.outlook.oldest_due().filter(|_| shown.shows_overdue);
            let age = due.map(|due| time::duration_between(due, shown.clock.now()).as_secs_f64().max(0.0));
            let labels = [("keeper", shown.keeper)];
            ConstGauge::new(age.unwrap_or_default()).encode(oldest.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// The prefix of every name, except of metrics that have a name of the replaced tool.
const PREFIX: &str = "caretaker";

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    actions: Family<ActionLabels, Counter>,
    subjects: Family<SubjectLabels, Gauge<i64, AtomicI64>>,
    lag: Family<KeeperLabels, Histogram, fn() -> Histogram>,
    schedules: Schedules,
    breaker: Family<KeeperLabels, Gauge<i64, AtomicI64>>,
    leader: Family<KeeperLabels, Gauge<i64, AtomicI64>>,
    running: Family<KeeperLabels, Gauge<i64, AtomicI64>>,
    events_dropped: Counter,
    settings: Gauge<i64, AtomicI64>,
    /// Those of keepers that may be replaced while the process runs.
    replaceable: Mutex<Registry>,
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
        let lag = Family::new_with_constructor(lag_histogram as fn() -> Histogram);
        registry.register("deadline_lag_seconds", "Time from the deadline of an action to its start", lag.clone());
        let breaker = Family::default();
        registry.register("breaker_open", "1 while the breaker is open", breaker.clone());
        let leader = Family::default();
        registry.register("leader", "1 on the replica that leads", leader.clone());
        let running = Family::default();
        registry.register("keeper_running", "1 while this process runs the keeper", running.clone());
        let events_dropped = Counter::default();
        registry.register("events_dropped", "Kubernetes Events that could not be written", events_dropped.clone());
        let settings = Gauge::default();
        settings.set(1);
        let help = "1 while the settings in use are those of the file, 0 while that is not so";
        registry.register("settings_current", help, settings.clone());
        let schedules = Schedules::default();
        registry.register_collector(Box::new(schedules.clone()));
        registry.register("build", "This program", Info::new([("version", version)]));
        let replaceable = Mutex::default();
        Self {
            registry: all,
            actions,
            subjects,
            lag,
            schedules,
            breaker,
            leader,
            running,
            events_dropped,
            settings,
            replaceable,
        }
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
    pub fn observe_lag(&self, keeper: &'static str, seconds: f64) {
        self.lag.get_or_create(&KeeperLabels { keeper }).observe(seconds);
    }

    /// Shows the deadlines of a keeper from now on, in place of those that were shown before.
    pub fn show_schedule(&self, shown: ShownSchedule) {
        let mut all = self.schedules.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(shown.keeper, shown);
    }

    /// Whether the breaker is open.
    pub fn breaker(&self, keeper: &'static str, open: bool) {
        self.breaker.get_or_create(&KeeperLabels { keeper }).set(open.into());
    }

    /// Whether this process runs the keeper, as leader or as standby. One that does not run has no series: an alert
    /// asks whether there is any.
    pub fn running(&self, keeper: &'static str, runs: bool) {
        if runs {
            self.running.get_or_create(&KeeperLabels { keeper }).set(1);
        } else {
            self.running.remove(&KeeperLabels { keeper });
        }
    }

    /// Whether this replica leads. Not for a keeper without leaders.
    pub fn leader(&self, keeper: &'static str, leads: bool) {
        self.leader.get_or_create(&KeeperLabels { keeper }).set(leads.into());
    }

    /// An Event could not be written.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// Whether the settings in use are those of the file.
    pub fn settings_current(&self, current: bool) {
        self.settings.set(current.into());
    }

    /// Registers the metrics of keepers under their full names, in place of those that were registered so before.
    pub fn replace(&self, register: impl FnOnce(&mut Registry)) {
        let mut registry = Registry::default();
        register(&mut registry);
        *self.replaceable.lock().unwrap_or_else(PoisonError::into_inner) = registry;
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
        let _ = text::encode_registry(&mut text, &self.registry);
        let _ = text::encode_registry(&mut text, &self.replaceable.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = text::encode_eof(&mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use caretaker_core::Timestamp;

    use super::*;
    use crate::schedule::Schedule;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn lines(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = metrics.encode();
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }

    #[test]
    fn deadlines_and_what_is_overdue_are_counted_when_metrics_are_read() {
        let (clock, hand) = Clock::manual(at(0));
        let schedule = Schedule::default();
        let metrics = Metrics::new("1.2.3");
        let shown = |shows_overdue| ShownSchedule {
            keeper: "toys",
            outlook: Arc::new(schedule.clone()),
            clock: clock.clone(),
            leadership: None,
            shows_overdue,
        };
        metrics.show_schedule(shown(true));
        schedule.set(&"soon", Some(at(300)), None);
        schedule.set(&"today", Some(at(7_200)), None);
        schedule.set(&"late", None, Some(at(10)));
        schedule.set(&"later", None, Some(at(20)));

        let ahead = |counts: [i64; 4]| {
            let within = ["10m", "1h", "1d", "7d"].iter().zip(counts);
            let line =
                |(within, count)| format!(r#"caretaker_deadlines_ahead{{keeper="toys",within="{within}"}} {count}"#);
            within.map(line).collect::<Vec<_>>()
        };
        assert_eq!(lines(&metrics, "caretaker_deadlines_ahead"), ahead([1, 1, 2, 2]));

        // Nothing is judged meanwhile.
        hand.set(at(6_900));
        assert_eq!(lines(&metrics, "caretaker_deadlines_ahead"), ahead([2, 2, 2, 2]));
        let oldest = "caretaker_oldest_due_age_seconds";
        assert_eq!(lines(&metrics, oldest), [format!(r#"{oldest}{{keeper="toys"}} 6890.0"#)]);

        schedule.set(&"late", None, None);
        assert_eq!(lines(&metrics, oldest), [format!(r#"{oldest}{{keeper="toys"}} 6880.0"#)]);
        metrics.show_schedule(shown(false));
        assert_eq!(lines(&metrics, oldest), [format!(r#"{oldest}{{keeper="toys"}} 0.0"#)], "in a dry run");
    }

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
        for name in ["first", "second"] {
            metrics.replace(|registry| registry.register(name, "Replaced", Counter::<u64>::default()));
        }

        let text = metrics.encode();

        for line in [
            r#"caretaker_actions_total{keeper="toys",action="tidy",rule="Broken",outcome="done"} 1"#,
            r#"caretaker_build_info{version="1.2.3"} 1"#,
            "caretaker_heard_total 1",
            "# TYPE spiderpool_ip_gc_counts counter",
            "spiderpool_ip_gc_counts_total 7",
            "second_total 0",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is missing in:\n{text}");
        }
        assert!(!text.contains("first_total"), "it was replaced: {text}");
        assert_eq!(text.matches("# EOF").count(), 1, "{text}");
    }
}
