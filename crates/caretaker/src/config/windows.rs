//! The section `keepers.windows`.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_core::SignedDuration;
use caretaker_core::window::Window;
use caretaker_windows::api::KINDS;
use caretaker_windows::subject::{OnResume, Policy, WindowRule};
use jiff::tz::TimeZone;
use serde::Deserialize;
use wildmatch::WildMatch;

use super::common::{CommonConfig, DEFAULT_CONCURRENCY, DEFAULT_RESYNC, OrNone, Selection, duration};
use super::suggest;

/// Settings of the windows keeper.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WindowsConfig {
    /// Whether the keeper runs. If it is not set: only on files with Flux objects.
    pub enabled: Option<bool>,
    /// What happens when somebody resumes an object inside its window.
    pub on_resume: OnResumeConfig,
    /// Whether a condition shows that an object is suspended.
    pub condition: bool,
    /// Kinds whose controllers honour the annotation themselves.
    pub native_kinds: Vec<String>,
    /// Windows for many objects.
    pub rules: Vec<RuleConfig>,
    /// Over how long the resumes at one end of a window are spread.
    #[serde(deserialize_with = "duration")]
    pub resume_jitter: SignedDuration,
    /// How many objects are written at a time.
    pub concurrency: usize,
    /// Maximum number of API calls per second.
    pub calls_per_second: OrNone<u32>,
    /// How often everything is listed again.
    #[serde(deserialize_with = "duration")]
    pub resync_interval: SignedDuration,
}

/// What happens when somebody resumes an object inside its window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnResumeConfig {
    /// It stays resumed until the next window.
    #[default]
    Yield,
    /// It is suspended again.
    Enforce,
}

/// A window for many objects.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RuleConfig {
    kinds: Vec<String>,
    namespaces: Vec<String>,
    selector: BTreeMap<String, String>,
    during: String,
    reason: Option<String>,
}

impl Default for WindowsConfig {
    fn default() -> Self {
        Self {
            enabled: None,
            on_resume: OnResumeConfig::default(),
            condition: true,
            native_kinds: Vec::new(),
            rules: Vec::new(),
            resume_jitter: SignedDuration::ZERO,
            concurrency: DEFAULT_CONCURRENCY,
            // One write for each object at each edge, which is an order: the API server's own limits are enough.
            calls_per_second: OrNone(None),
            resync_interval: DEFAULT_RESYNC,
        }
    }
}

impl WindowsConfig {
    /// The settings that every keeper has. A schedule is an order: it has neither pace nor breaker.
    #[must_use]
    pub fn common(&self) -> CommonConfig {
        CommonConfig {
            selection: Selection::off_until_enabled(self.enabled),
            pace: OrNone(None),
            breaker: OrNone(None),
            concurrency: self.concurrency,
            calls_per_second: self.calls_per_second.clone(),
            resync_interval: self.resync_interval,
        }
    }

    pub(super) fn validate(&self, zone: &TimeZone) -> Result<(), String> {
        check_kinds("keepers.windows.nativeKinds", &self.native_kinds)?;
        for (i, rule) in self.rules.iter().enumerate() {
            let key = format!("keepers.windows.rules[{i}]");
            check_kinds(&format!("{key}.kinds"), &rule.kinds)?;
            Window::parse(&rule.during, zone).map_err(|error| format!("{key}.during is {:?}: {error}", rule.during))?;
        }
        Ok(())
    }

    /// The settings that the rules use. Windows that name no zone are in this one.
    #[must_use]
    pub(super) fn policy(&self, zone: TimeZone) -> Policy {
        // Windows that cannot be read were refused when the settings were.
        let rule = |rule: &RuleConfig| {
            Some(WindowRule {
                kinds: rule.kinds.clone(),
                namespaces: rule.namespaces.iter().map(|pattern| WildMatch::new(pattern)).collect(),
                labels: rule.selector.clone(),
                during: Arc::new(Window::parse(&rule.during, &zone).ok()?),
                reason: rule.reason.clone(),
            })
        };
        Policy {
            on_resume: match self.on_resume {
                OnResumeConfig::Yield => OnResume::Yield,
                OnResumeConfig::Enforce => OnResume::Enforce,
            },
            show_condition: self.condition,
            native_kinds: self.native_kinds.clone(),
            rules: self.rules.iter().filter_map(rule).collect(),
            resume_jitter: self.resume_jitter,
            zone,
        }
    }
}

fn check_kinds(key: &str, kinds: &[String]) -> Result<(), String> {
    let known: Vec<&str> = KINDS.iter().map(|kind| kind.kind).collect();
    match kinds.iter().find(|kind| !known.contains(&kind.as_str())) {
        Some(unknown) => {
            Err(format!("{key} has {unknown:?}: not a kind that can be suspended{}", suggest(unknown, &known)))
        }
        None => Ok(()),
    }
}
