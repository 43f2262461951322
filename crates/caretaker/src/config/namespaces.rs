//! The section `keepers.namespaces`.

use std::collections::BTreeMap;

use caretaker_core::SignedDuration;
use caretaker_namespaces::subject::{Defaults, Policy};
use serde::Deserialize;
use wildmatch::WildMatch;

use super::ActivityConfig;
use super::common::{
    BreakerConfig, CommonConfig, DEFAULT_CONCURRENCY, DEFAULT_QPS, DEFAULT_RESYNC, OrNone, PaceConfig, Selection,
    duration, validate_fraction,
};

/// Settings of the namespaces keeper.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NamespacesConfig {
    /// Whether the keeper runs.
    pub enabled: bool,
    /// Namespaces that are never touched, with `*` and `?`.
    pub protected: Vec<String>,
    /// What applies to namespaces without a label; off unless it is set.
    pub defaults: Option<DefaultsConfig>,
    /// How long before a deletion it is announced, as a fraction of the period; 0 is off.
    pub deletion_notice: f64,
    /// Where activity comes from.
    pub activity: ActivityConfig,
    /// Pace by action.
    pub pace: OrNone<BTreeMap<String, PaceConfig>>,
    /// The breaker.
    pub breaker: OrNone<BreakerConfig>,
    /// How many namespaces are written at a time.
    pub concurrency: usize,
    /// Maximum number of API calls per second.
    pub calls_per_second: OrNone<u32>,
    /// How often everything is judged again, and sources find out whether a watch has lost something.
    #[serde(deserialize_with = "duration")]
    pub resync_interval: SignedDuration,
}

/// Settings for namespaces without a label.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DefaultsConfig {
    #[serde(deserialize_with = "duration")]
    sleep_after: SignedDuration,
    #[serde(rename = "deleteWithPVCs")]
    delete_with_pvcs: bool,
}

impl Default for NamespacesConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            protected: Vec::new(),
            defaults: None,
            deletion_notice: Policy::DELETION_NOTICE,
            activity: ActivityConfig::default(),
            pace: OrNone::default(),
            breaker: OrNone::default(),
            concurrency: DEFAULT_CONCURRENCY,
            calls_per_second: OrNone(Some(DEFAULT_QPS)),
            resync_interval: DEFAULT_RESYNC,
        }
    }
}

impl Default for DefaultsConfig {
    fn default() -> Self {
        Self { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs: false }
    }
}

impl NamespacesConfig {
    /// The settings that every keeper has.
    #[must_use]
    pub fn common(&self) -> CommonConfig {
        CommonConfig {
            // A dump of pools has StatefulSets as well; nobody expects Namespaces in it.
            selection: if self.enabled { Selection::UnlessFilesAreForOthers } else { Selection::Never },
            pace: self.pace.clone(),
            breaker: self.breaker.clone(),
            concurrency: self.concurrency,
            calls_per_second: self.calls_per_second.clone(),
            resync_interval: self.resync_interval,
        }
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        validate_fraction("keepers.namespaces.deletionNotice", self.deletion_notice)?;
        if self.deletion_notice > Policy::MAX_DELETION_NOTICE {
            let value = self.deletion_notice;
            return Err(format!("keepers.namespaces.deletionNotice is {value}: at most half of a period"));
        }
        if self.defaults.as_ref().is_some_and(|defaults| defaults.sleep_after.is_zero()) {
            return Err("keepers.namespaces.defaults.sleepAfter is zero: write a duration such as 168h, or remove \
                        defaults"
                .to_owned());
        }
        self.activity.validate()
    }

    /// The settings that the rules use.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let defaults = self.defaults.as_ref().map(|defaults| Defaults {
            sleep_after: defaults.sleep_after,
            delete_with_pvcs: defaults.delete_with_pvcs,
        });
        Policy {
            protected: self.protected.iter().map(|pattern| WildMatch::new(pattern)).collect(),
            defaults,
            deletion_notice: self.deletion_notice,
            max_session: self.activity.max_session,
        }
    }
}
