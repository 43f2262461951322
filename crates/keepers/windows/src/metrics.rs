//! The metric of Flux's dashboards, and how many objects the keeper suspends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use caretaker_engine::cache::{RowKey, SourceKey};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::subject::FluxObject;

/// Whether each object is suspended, and whether by the keeper.
#[derive(Debug, Default)]
pub struct States(Mutex<BTreeMap<RowKey, State>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    suspended: bool,
    held: bool,
}

impl States {
    /// The object is like this, or is gone.
    pub(crate) fn set(&self, key: &RowKey, object: Option<&FluxObject>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = object.map(|object| State { suspended: object.is_suspended(), held: object.is_held() });
        match state {
            // Most changes of an object are not about this.
            Some(state) => match all.get_mut(key) {
                Some(known) => *known = state,
                None => _ = all.insert(key.clone(), state),
            },
            None => _ = all.remove(key),
        }
    }

    /// The keys of what a source reads.
    pub(crate) fn keys(&self, source: &SourceKey) -> Vec<RowKey> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.keys().filter(|key| key.source() == source).cloned().collect()
    }
}

/// The metrics of the keeper: of the objects in the cache of the control loop that made a world last.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Mutex<Arc<States>>>);

impl Metrics {
    /// Shows these from now on.
    pub(crate) fn follow(&self, states: Arc<States>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// Registers them under their full names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let states = states.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Whether a Flux object is suspended";
        let mut suspended = encoder.encode_descriptor("gotk_suspend_status", help, None, MetricType::Gauge)?;
        let mut by_kind: BTreeMap<&str, i64> = BTreeMap::new();
        for (key, state) in states.iter() {
            let (kind, namespace) = (key.source().kind(), key.namespace().unwrap_or_default());
            let labels = [("kind", kind), ("name", key.name()), ("namespace", namespace)];
            ConstGauge::new(i64::from(state.suspended)).encode(suspended.encode_family(&labels)?)?;
            *by_kind.entry(kind).or_default() += i64::from(state.held);
        }
        let help = "Flux objects that a window suspends now";
        let mut objects = encoder.encode_descriptor("caretaker_windows_held", help, None, MetricType::Gauge)?;
        for (kind, count) in by_kind {
            ConstGauge::new(count).encode(objects.encode_family(&[("kind", kind)])?)?;
        }
        Ok(())
    }
}
