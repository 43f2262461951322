//! The addresses keeper's section, and the variables by which Spiderpool's own collector is set.

use std::collections::BTreeMap;

use caretaker_addresses::subject::Policy;
use caretaker_core::{SignedDuration, duration};
use serde::Deserialize;

use super::common::{BreakerConfig, CALLS, Common, OrNone, PaceConfig, SCAN, span};

/// The addresses keeper.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Addresses {
    /// Whether it works at all; where nothing is said, only on files that have pools in them.
    pub enabled: Option<bool>,
    /// How long to wait beyond a deadline.
    #[serde(deserialize_with = "span")]
    pub delay: SignedDuration,
    /// Whether addresses of Terminating pods are released.
    pub terminating: bool,
    /// Whether they are, of pods without state on a node that is ready.
    pub terminating_on_ready_node: bool,
    /// Whether they are, of pods without state on a node that is not.
    pub terminating_on_not_ready_node: bool,
    /// By action.
    pub pace: OrNone<BTreeMap<String, PaceConfig>>,
    /// When to stop and ask.
    pub breaker: OrNone<BreakerConfig>,
    /// How many pools and endpoints at a time.
    pub concurrency: usize,
    /// How many calls in a second, at most.
    pub calls_per_second: OrNone<u32>,
    /// How often everything is listed again.
    #[serde(deserialize_with = "span")]
    pub scan: SignedDuration,
}

/// Eight writes at a time are what an API server on two cores takes; more only wait there.
const CONCURRENCY: usize = 8;

impl Default for Addresses {
    fn default() -> Self {
        let Policy { delay, terminating, on_ready_node, on_lost_node } = Policy::default();
        Self {
            enabled: None,
            delay,
            terminating,
            terminating_on_ready_node: on_ready_node,
            terminating_on_not_ready_node: on_lost_node,
            pace: OrNone::default(),
            breaker: OrNone::default(),
            concurrency: CONCURRENCY,
            calls_per_second: OrNone(Some(CALLS)),
            scan: SCAN,
        }
    }
}

impl Addresses {
    /// What it has in common with every other keeper.
    #[must_use]
    pub fn common(&self) -> Common<'_> {
        Common {
            pace: &self.pace,
            breaker: &self.breaker,
            concurrency: self.concurrency,
            calls_per_second: &self.calls_per_second,
            scan: self.scan,
        }
    }

    /// What judging looks at.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            delay: self.delay,
            terminating: self.terminating,
            on_ready_node: self.terminating_on_ready_node,
            on_lost_node: self.terminating_on_not_ready_node,
        }
    }

    /// Takes over what variables say, which come before the file.
    pub(super) fn take_over(&mut self, variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
        let switch = |name: &str| variable(name).map(|text| switch(name, &text)).transpose();
        let seconds = |name: &str| variable(name).map(|text| seconds(name, &text)).transpose();
        self.enabled = switch("SPIDERPOOL_GC_IP_ENABLED")?.or(self.enabled);
        let terminating = switch("SPIDERPOOL_GC_TERMINATING_POD_IP_ENABLED")?;
        self.terminating = terminating.unwrap_or(self.terminating);
        let ready = switch("SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_READY_NODE_ENABLED")?;
        self.terminating_on_ready_node = ready.unwrap_or(self.terminating_on_ready_node);
        let not_ready = switch("SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_NOT_READY_NODE_ENABLED")?;
        self.terminating_on_not_ready_node = not_ready.unwrap_or(self.terminating_on_not_ready_node);
        self.scan = seconds("SPIDERPOOL_GC_DEFAULT_INTERVAL_DURATION")?.unwrap_or(self.scan);
        self.delay = seconds("SPIDERPOOL_GC_ADDITIONAL_GRACE_DELAY")?.unwrap_or(self.delay);
        Ok(())
    }
}

/// As Go reads them.
fn switch(name: &str, text: &str) -> Result<bool, String> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{name} is {text:?}: write true or false")),
    }
}

/// Seconds, or a duration as everywhere here.
fn seconds(name: &str, text: &str) -> Result<SignedDuration, String> {
    let text = text.trim();
    let seconds = text.parse::<u32>().ok().map(|seconds| SignedDuration::from_secs(seconds.into()));
    seconds
        .or_else(|| duration::parse(text).ok())
        .ok_or_else(|| format!("{name} is {text:?}: write seconds such as 600, or a duration such as 10m"))
}
