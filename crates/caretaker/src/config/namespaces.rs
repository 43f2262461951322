//! The section `keepers.namespaces`.

use std::collections::BTreeMap;

use caretaker_core::SignedDuration;
use caretaker_namespaces::observe::sources::is_built_in;
use caretaker_namespaces::subject::{Defaults, Deletion, HalfAwake, MissedRuns, Policy, ScalableKind};
use serde::Deserialize;
use wildmatch::WildMatch;

use super::common::{
    BreakerConfig, CommonConfig, DEFAULT_CONCURRENCY, DEFAULT_QPS, DEFAULT_RESYNC, OrNone, PaceConfig, Selection,
    duration, validate_fraction,
};
use super::{ActivityConfig, ActivitySource};

/// Settings of the namespaces keeper.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NamespacesConfig {
    /// Whether the keeper runs.
    pub enabled: bool,
    /// Namespaces that are never touched, with `*` and `?`.
    pub protected: Vec<String>,
    /// System namespaces, which the defaults leave alone, in addition to the built-in list, with `*` and `?`.
    pub system_namespaces: Vec<String>,
    /// What applies to namespaces without a label; off unless it is set.
    pub defaults: Option<DefaultsConfig>,
    /// Which labels lead to a deletion.
    pub deletion: DeletionConfig,
    /// Whether a deletion needs no proof that its subject is unused.
    pub delete_without_activity_source: bool,
    /// Whether namespaces with PersistentVolumeClaims are never deleted.
    #[serde(rename = "retainWithPVCs")]
    pub retain_with_pvcs: bool,
    /// How long before a deletion it is announced, as a fraction of the period; 0 is off.
    pub deletion_notice: f64,
    /// How long a namespace stays awake after a use inside of the window in which it sleeps.
    #[serde(deserialize_with = "duration")]
    pub awake_after_use: SignedDuration,
    /// What is done about a sleeping namespace in which something runs.
    pub half_awake: HalfAwakeConfig,
    /// What a CronJob does about the runs that it missed while it was asleep.
    pub missed_cron_job_runs: MissedRunsConfig,
    /// Further kinds of workloads that a sleep scales to zero.
    pub scalable_kinds: Vec<ScalableKindConfig>,
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
    without_activity_source: bool,
}

/// Which labels lead to a deletion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeletionConfig {
    /// `delete-after`, and `sleep-after` alone after a second period asleep.
    #[default]
    AsSpecified,
    /// `delete-after` alone.
    OnlyDeleteAfter,
    /// None.
    Never,
}

/// What is done about a sleeping namespace in which something runs.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HalfAwakeConfig {
    /// It is left as it is.
    #[default]
    Leave,
    /// The rest wakes.
    Wake,
    /// It is put back to sleep, once in a period at most.
    Sleep,
}

/// What a CronJob does about the runs that it missed while it was asleep.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MissedRunsConfig {
    /// It waits for its next time.
    #[default]
    Skip,
    /// Kubernetes makes up for the last of them.
    Run,
}

/// A kind of workloads with the replicas in `spec.replicas`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ScalableKindConfig {
    group: String,
    kind: String,
}

impl ScalableKindConfig {
    fn kind(&self) -> ScalableKind {
        ScalableKind { group: self.group.clone(), kind: self.kind.clone() }
    }

    fn validate(&self) -> Result<(), String> {
        let Self { group, kind } = self;
        if kind.is_empty() {
            return Err(
                "keepers.namespaces.scalableKinds has an empty kind: write the kind as in a manifest, such as \
                        StatefulSet"
                    .to_owned(),
            );
        }
        if group.contains('/') {
            return Err(format!(
                "keepers.namespaces.scalableKinds has the group {group:?}: write it without a version, such as \
                 apps.kruise.io"
            ));
        }
        if is_built_in(group, kind) {
            return Err(format!(
                "keepers.namespaces.scalableKinds has {kind} of the group {group:?}: Caretaker knows this kind \
                 already, so remove it"
            ));
        }
        Ok(())
    }
}

impl Default for NamespacesConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            protected: Vec::new(),
            system_namespaces: Vec::new(),
            defaults: None,
            deletion: DeletionConfig::default(),
            delete_without_activity_source: false,
            retain_with_pvcs: false,
            deletion_notice: Policy::DELETION_NOTICE,
            awake_after_use: Policy::AWAKE_AFTER_USE,
            half_awake: HalfAwakeConfig::default(),
            missed_cron_job_runs: MissedRunsConfig::default(),
            scalable_kinds: Vec::new(),
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
        Self { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs: false, without_activity_source: false }
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
        self.scalable_kinds.iter().try_for_each(ScalableKindConfig::validate)?;
        if let Some(defaults) = &self.defaults {
            self.validate_defaults(defaults)?;
        }
        for (key, patterns) in [("protected", &self.protected), ("systemNamespaces", &self.system_namespaces)] {
            if patterns.iter().any(|pattern| pattern.trim().is_empty()) {
                return Err(format!("keepers.namespaces.{key} has an empty entry: write a name or a pattern"));
            }
        }
        self.activity.validate()
    }

    /// The defaults take hold of namespaces whose owners never asked for it: they need proof of who uses what.
    fn validate_defaults(&self, defaults: &DefaultsConfig) -> Result<(), String> {
        if defaults.delete_with_pvcs && self.retain_with_pvcs {
            return Err("keepers.namespaces.retainWithPVCs keeps what defaults.deleteWithPVCs allows to be deleted: \
                        remove one of them"
                .to_owned());
        }
        if defaults.without_activity_source {
            return Ok(());
        }
        let missing = match (self.activity.source, self.activity.canary_interval) {
            (ActivitySource::Annotation, _) => "activity.source is annotation",
            (ActivitySource::Audit, None) => "activity.canaryInterval is none",
            (ActivitySource::Audit, Some(_)) => return Ok(()),
        };
        Err(format!(
            "keepers.namespaces.defaults is set, but {missing}, so nothing proves that a namespace without a label is \
             unused: write activity.source: audit with canaries (docs/activity.md), or \
             defaults.withoutActivitySource: true if another program writes activity-status for every namespace"
        ))
    }

    /// The settings that the rules use, but for what is the same for all keepers.
    #[must_use]
    pub(super) fn policy(&self) -> Policy {
        let defaults = self.defaults.as_ref().map(|defaults| Defaults {
            sleep_after: defaults.sleep_after,
            delete_with_pvcs: defaults.delete_with_pvcs,
        });
        let globs = |patterns: &[String]| patterns.iter().map(|pattern| WildMatch::new(pattern)).collect();
        Policy {
            protected: globs(&self.protected),
            defaults,
            deletion_notice: self.deletion_notice,
            max_session: self.activity.max_session,
            awake_after_use: self.awake_after_use,
            half_awake: match self.half_awake {
                HalfAwakeConfig::Leave => HalfAwake::Leave,
                HalfAwakeConfig::Wake => HalfAwake::Wake,
                HalfAwakeConfig::Sleep => HalfAwake::Sleep,
            },
            missed_cron_job_runs: match self.missed_cron_job_runs {
                MissedRunsConfig::Skip => MissedRuns::Skip,
                MissedRunsConfig::Run => MissedRuns::Run,
            },
            scalable_kinds: self.scalable_kinds.iter().map(ScalableKindConfig::kind).collect(),
            deletion: match self.deletion {
                DeletionConfig::AsSpecified => Deletion::AsSpecified,
                DeletionConfig::OnlyDeleteAfter => Deletion::OnlyDeleteAfter,
                DeletionConfig::Never => Deletion::Never,
            },
            retain_with_pvcs: self.retain_with_pvcs,
            system: globs(&self.system_namespaces),
            records_activity: self.activity.source == ActivitySource::Audit,
            proves_activity: self.activity.proves_use(),
            delete_without_activity_source: self.delete_without_activity_source,
            ..Policy::default()
        }
    }
}
