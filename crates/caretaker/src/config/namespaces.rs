//! The namespaces keeper's section.

use std::collections::BTreeMap;

use caretaker_core::SignedDuration;
use caretaker_namespaces::subject::{Fallback, Policy};
use serde::Deserialize;
use wildmatch::WildMatch;

use super::ActivityConfig;
use super::common::{BreakerConfig, CALLS, Common, OrNone, PaceConfig, SCAN, share, span};

/// The namespaces keeper.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Namespaces {
    /// Whether it works at all.
    pub enabled: bool,
    /// Namespaces that are never touched, with `*` and `?`.
    pub protected: Vec<String>,
    /// What namespaces without a label get; nothing, unless it is set.
    pub fallback: Option<FallbackConfig>,
    /// Which share of its period a deletion is announced ahead; 0 is off.
    pub announce: f64,
    /// Who tells of activity.
    pub activity: ActivityConfig,
    /// By action.
    pub pace: OrNone<BTreeMap<String, PaceConfig>>,
    /// When to stop and ask.
    pub breaker: OrNone<BreakerConfig>,
    /// How many acts at a time.
    pub concurrency: usize,
    /// How many calls in a second, at most.
    pub calls_per_second: OrNone<u32>,
    /// How often everything is listed again.
    #[serde(deserialize_with = "span")]
    pub scan: SignedDuration,
}

/// The fallback.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct FallbackConfig {
    #[serde(deserialize_with = "span")]
    sleep_after: SignedDuration,
    delete_claims: bool,
}

impl Default for Namespaces {
    fn default() -> Self {
        Self {
            enabled: true,
            protected: Vec::new(),
            fallback: None,
            announce: Policy::ANNOUNCE,
            activity: ActivityConfig::default(),
            pace: OrNone::default(),
            breaker: OrNone::default(),
            concurrency: caretaker_namespaces::keep::CONCURRENCY,
            calls_per_second: OrNone(Some(CALLS)),
            scan: SCAN,
        }
    }
}

impl Default for FallbackConfig {
    fn default() -> Self {
        Self { sleep_after: Fallback::SLEEP_AFTER, delete_claims: false }
    }
}

impl Namespaces {
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

    pub(crate) fn check(&self) -> Result<(), String> {
        share("keepers.namespaces.announce", self.announce)?;
        if self.announce > Policy::MOST_ANNOUNCE {
            return Err(format!("keepers.namespaces.announce is {}: at most half of a period", self.announce));
        }
        if self.fallback.as_ref().is_some_and(|f| f.sleep_after.is_zero()) {
            return Err(
                "keepers.namespaces.fallback.sleepAfter is zero: write a time such as 168h, or remove fallback"
                    .to_owned(),
            );
        }
        self.activity.check()
    }

    /// What judging looks at.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let fallback = |f: &FallbackConfig| Fallback { sleep_after: f.sleep_after, delete_claims: f.delete_claims };
        Policy {
            protected: self.protected.iter().map(|glob| WildMatch::new(glob)).collect(),
            fallback: self.fallback.as_ref().map(fallback),
            announce: self.announce,
            session: self.activity.session,
        }
    }
}
