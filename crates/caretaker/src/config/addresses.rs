//! The section `keepers.addresses`, and the environment variables of Spiderpool's own collector.

use std::collections::BTreeMap;

use caretaker_addresses::subject::Policy;
use caretaker_core::{SignedDuration, duration};
use serde::Deserialize;

use super::common::{
    self, BreakerConfig, CommonConfig, DEFAULT_CONCURRENCY, DEFAULT_QPS, DEFAULT_RESYNC, OrNone, PaceConfig, Selection,
};

/// Settings of the addresses keeper.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AddressesConfig {
    /// Whether the keeper runs. If it is not set: only on files with pools.
    pub enabled: Option<bool>,
    /// Time that is added to every deadline.
    #[serde(deserialize_with = "common::duration")]
    pub extra_grace_period: SignedDuration,
    /// Whether addresses of Terminating pods are released.
    pub release_terminating: bool,
    /// Whether addresses of Terminating and finished pods on a Ready node are released.
    pub terminating_on_ready_node: bool,
    /// Whether addresses of Terminating and finished pods on a node that is not Ready are released.
    pub terminating_on_not_ready_node: bool,
    /// Pace by action.
    pub pace: OrNone<BTreeMap<String, PaceConfig>>,
    /// The breaker.
    pub breaker: OrNone<BreakerConfig>,
    /// How many pools and endpoints are written at a time.
    pub concurrency: usize,
    /// Maximum number of API calls per second.
    pub calls_per_second: OrNone<u32>,
    /// How often everything is judged again, and sources find out whether a watch has lost something.
    #[serde(deserialize_with = "common::duration")]
    pub resync_interval: SignedDuration,
}

impl Default for AddressesConfig {
    fn default() -> Self {
        let Policy { extra_grace_period, release_terminating, on_ready_node, on_lost_node } = Policy::default();
        Self {
            enabled: None,
            extra_grace_period,
            release_terminating,
            terminating_on_ready_node: on_ready_node,
            terminating_on_not_ready_node: on_lost_node,
            pace: OrNone::default(),
            breaker: OrNone::default(),
            concurrency: DEFAULT_CONCURRENCY,
            calls_per_second: OrNone(Some(DEFAULT_QPS)),
            resync_interval: DEFAULT_RESYNC,
        }
    }
}

impl AddressesConfig {
    /// The settings that every keeper has.
    #[must_use]
    pub fn common(&self) -> CommonConfig {
        CommonConfig {
            selection: Selection::off_until_enabled(self.enabled),
            pace: self.pace.clone(),
            breaker: self.breaker.clone(),
            concurrency: self.concurrency,
            calls_per_second: self.calls_per_second.clone(),
            resync_interval: self.resync_interval,
        }
    }

    /// The settings that the rules use.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            extra_grace_period: self.extra_grace_period,
            release_terminating: self.release_terminating,
            on_ready_node: self.terminating_on_ready_node,
            on_lost_node: self.terminating_on_not_ready_node,
        }
    }

    /// Applies the environment variables of Spiderpool's collector; they override the file.
    pub(super) fn apply_env(&mut self, variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
        let boolean = |name: &str| variable(name).map(|text| parse_bool(name, &text)).transpose();
        let seconds = |name: &str| variable(name).map(|text| parse_seconds(name, &text)).transpose();
        self.enabled = boolean("SPIDERPOOL_GC_IP_ENABLED")?.or(self.enabled);
        let terminating = boolean("SPIDERPOOL_GC_TERMINATING_POD_IP_ENABLED")?;
        self.release_terminating = terminating.unwrap_or(self.release_terminating);
        let ready = boolean("SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_READY_NODE_ENABLED")?;
        self.terminating_on_ready_node = ready.unwrap_or(self.terminating_on_ready_node);
        let not_ready = boolean("SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_NOT_READY_NODE_ENABLED")?;
        self.terminating_on_not_ready_node = not_ready.unwrap_or(self.terminating_on_not_ready_node);
        let interval = seconds("SPIDERPOOL_GC_DEFAULT_INTERVAL_DURATION")?;
        self.resync_interval = interval.unwrap_or(self.resync_interval);
        let grace = seconds("SPIDERPOOL_GC_ADDITIONAL_GRACE_DELAY")?;
        self.extra_grace_period = grace.unwrap_or(self.extra_grace_period);
        Ok(())
    }
}

/// Accepts the same words as Go's `strconv.ParseBool`.
fn parse_bool(name: &str, text: &str) -> Result<bool, String> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{name} is {text:?}: write true or false")),
    }
}

/// Accepts seconds without a unit, and durations as in the settings.
fn parse_seconds(name: &str, text: &str) -> Result<SignedDuration, String> {
    let text = text.trim();
    let seconds = text.parse::<u32>().ok().map(|seconds| SignedDuration::from_secs(seconds.into()));
    seconds
        .or_else(|| duration::parse(text).ok())
        .ok_or_else(|| format!("{name} is {text:?}: write seconds such as 600, or a duration such as 10m"))
}
