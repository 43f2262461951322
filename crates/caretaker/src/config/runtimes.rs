//! The section `keepers.runtimes`, and the environment variables of kdoctor's controller.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use caretaker_core::SignedDuration;
use caretaker_runtimes::api::{CarrierKind, Templates};
use caretaker_runtimes::subject::{DefaultAgent, Policy};
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::common::{
    self, BreakerConfig, CommonConfig, DEFAULT_CONCURRENCY, DEFAULT_QPS, DEFAULT_RESYNC, OrNone, PaceConfig, Selection,
};

/// The setting that names kdoctor's namespace.
const NAMESPACE_KEY: &str = "keepers.runtimes.namespace";
/// The variable that names it, for a manifest without a file of settings.
const NAMESPACE_VARIABLE: &str = "CARETAKER_RUNTIMES_NAMESPACE";

/// True for what the API server accepts as the name of a namespace.
fn is_namespace_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len()) && name.chars().all(is_inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Settings of the runtimes keeper.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RuntimesConfig {
    /// Whether the keeper runs. If it is not set: only on files with tasks.
    pub enabled: Option<bool>,
    /// kdoctor's namespace, which has no default: no object says where runtimes are created.
    pub namespace: Option<String>,
    /// A file with templates instead of kdoctor's.
    pub template: Option<PathBuf>,
    /// How long a runtime stays if its task does not say; default: as kdoctor's settings say, else an hour.
    pub default_grace: Option<DurationText>,
    /// At least so long the runtime of a failed task stays.
    pub grace_after_failure: Option<DurationText>,
    /// After how long a runtime that is not ready is looked into.
    #[serde(deserialize_with = "common::duration")]
    pub creation_timeout: SignedDuration,
    /// How long the cluster's garbage collector has to remove a carrier without a task.
    #[serde(deserialize_with = "common::duration")]
    pub sweep_after: SignedDuration,
    /// Maximum number of runtimes at a time.
    pub max_runtimes: OrNone<u32>,
    /// The agent of tasks that ask for no runtime of their own.
    pub default_agent: Option<DefaultAgentConfig>,
    /// Pace by action.
    pub pace: OrNone<BTreeMap<String, PaceConfig>>,
    /// The breaker.
    pub breaker: OrNone<BreakerConfig>,
    /// How many tasks are written at a time.
    pub concurrency: usize,
    /// Maximum number of API calls per second.
    pub calls_per_second: OrNone<u32>,
    /// How often everything is judged again, and sources find out whether a watch has lost something.
    #[serde(deserialize_with = "common::duration")]
    pub resync_interval: SignedDuration,
}

/// A duration that may be missing.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct DurationText(#[serde(deserialize_with = "common::duration")] SignedDuration);

/// The agent of tasks that ask for no runtime of their own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DefaultAgentConfig {
    name: String,
    kind: String,
    service_v4: Option<String>,
    service_v6: Option<String>,
}

impl Default for RuntimesConfig {
    fn default() -> Self {
        let Policy { creation_timeout, sweep_after, .. } = Policy::default();
        Self {
            enabled: None,
            namespace: None,
            template: None,
            default_grace: None,
            grace_after_failure: None,
            creation_timeout,
            sweep_after,
            max_runtimes: OrNone(None),
            default_agent: None,
            pace: OrNone::default(),
            breaker: OrNone::default(),
            concurrency: DEFAULT_CONCURRENCY,
            calls_per_second: OrNone(Some(DEFAULT_QPS)),
            resync_interval: DEFAULT_RESYNC,
        }
    }
}

impl RuntimesConfig {
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

    /// A template file is not read here: the settings of the operator are also read where its files are not.
    pub(super) fn validate(&self) -> Result<(), String> {
        if let Some(name) = self.namespace.as_deref().filter(|name| !is_namespace_name(name)) {
            return Err(format!(
                "{NAMESPACE_KEY} is {name:?}, which is no name of a namespace: write the one that kdoctor-controller runs in"
            ));
        }
        let Some(agent) = &self.default_agent else { return Ok(()) };
        let key = "keepers.runtimes.defaultAgent";
        if agent.name.is_empty() {
            return Err(format!("{key}.name is not set: write the name of the DaemonSet or Deployment"));
        }
        if !agent.kind.is_empty() && CarrierKind::parse(&agent.kind).is_none() {
            return Err(format!("{key}.kind is {:?}: write DaemonSet or Deployment", agent.kind));
        }
        Ok(())
    }

    /// An error without a namespace: the keeper cannot be used then. It is asked for only where the keeper is used.
    pub(crate) fn require_namespace(&self) -> Result<(), String> {
        if self.namespace.is_some() {
            return Ok(());
        }
        Err(format!(
            "{NAMESPACE_KEY} is not set: write the namespace that kdoctor-controller runs in, as keepers: {{runtimes: \
             {{namespace: kdoctor}}}} in the settings (--config), or into {NAMESPACE_VARIABLE}; no object says it, \
             because a tenant may write objects. --keepers with other names leaves the keeper of runtimes out"
        ))
    }

    /// The settings that the rules use.
    #[must_use]
    pub fn policy(&self, zone: TimeZone) -> Policy {
        let agent = |agent: &DefaultAgentConfig| DefaultAgent {
            name: agent.name.clone(),
            kind: CarrierKind::parse(&agent.kind).unwrap_or_default(),
            service_v4: agent.service_v4.clone(),
            service_v6: agent.service_v6.clone(),
        };
        Policy {
            namespace: self.namespace.clone(),
            templates: self.template.as_deref().map(|path| {
                let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Templates::from_text(&text).map(Arc::new).map_err(|error| format!("{}: {error}", path.display()))
            }),
            default_grace: self.default_grace.map(|DurationText(grace)| grace),
            grace_after_failure: self.grace_after_failure.map(|DurationText(grace)| grace),
            creation_timeout: self.creation_timeout,
            sweep_after: self.sweep_after,
            max_runtimes: self.max_runtimes.0.and_then(|most| usize::try_from(most).ok()),
            default_agent: self.default_agent.as_ref().map(agent),
            zone,
        }
    }

    /// Applies the environment variables: that of the namespace, and those of kdoctor's controller. They override the
    /// file.
    pub(super) fn apply_env(&mut self, variable: impl Fn(&str) -> Option<String>) {
        let set = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        self.namespace = set(NAMESPACE_VARIABLE).or(self.namespace.take());
        let Some(name) = set("ENV_DEFAULT_AGENT_NAME") else { return };
        let agent = self.default_agent.get_or_insert_default();
        agent.name = name;
        agent.kind = set("ENV_DEFAULT_AGENT_TYPE").unwrap_or_else(|| std::mem::take(&mut agent.kind));
        agent.service_v4 = set("ENV_DEFAULT_AGENT_SERVICE_V4_NAME").or(agent.service_v4.take());
        agent.service_v6 = set("ENV_DEFAULT_AGENT_SERVICE_V6_NAME").or(agent.service_v6.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use rstest::rstest;

    #[rstest]
    #[case::as_kdoctors_chart("kdoctor", true)]
    #[case::with_dashes_and_digits("kdoctor-2", true)]
    #[case::empty("", false)]
    #[case::upper_case("Kdoctor", false)]
    #[case::all_of_them("*", false)]
    #[case::a_path("kdoctor/../default", false)]
    #[case::a_dash_at_the_end("kdoctor-", false)]
    #[case::too_long(&"x".repeat(64), false)]
    fn a_namespace_that_cannot_exist_is_an_error_with_its_key(#[case] name: &str, #[case] accepted: bool) {
        let read = Config::parse(&format!("keepers: {{runtimes: {{namespace: {name:?}}}}}"), "x");

        assert_eq!(read.is_ok(), accepted, "{read:?}");
        if let Err(error) = read {
            assert!(error.to_string().contains("keepers.runtimes.namespace"), "{error}");
        }
    }

    #[test]
    fn the_variable_names_the_namespace_where_there_is_no_file() {
        let mut config = RuntimesConfig::default();
        assert!(config.require_namespace().unwrap_err().contains("keepers.runtimes.namespace is not set"));

        config.apply_env(|name| (name == "CARETAKER_RUNTIMES_NAMESPACE").then(|| "kdoctor".to_owned()));

        assert_eq!((config.require_namespace(), config.namespace.as_deref()), (Ok(()), Some("kdoctor")));
    }

    #[test]
    fn the_variables_of_kdoctors_controller_name_the_default_agent() {
        let mut config = RuntimesConfig::default();
        let variables = BTreeMap::from([
            ("ENV_DEFAULT_AGENT_NAME", "kdoctor-agent"),
            ("ENV_DEFAULT_AGENT_TYPE", "Deployment"),
            ("ENV_DEFAULT_AGENT_SERVICE_V4_NAME", "kdoctor-agent-ipv4"),
            ("ENV_DEFAULT_AGENT_SERVICE_V6_NAME", ""),
        ]);

        config.apply_env(|name| variables.get(name).map(|text| (*text).to_owned()));

        let expected = DefaultAgent {
            name: "kdoctor-agent".to_owned(),
            kind: CarrierKind::Deployment,
            service_v4: Some("kdoctor-agent-ipv4".to_owned()),
            service_v6: None,
        };
        assert_eq!(config.policy(TimeZone::UTC).default_agent, Some(expected));
    }
}
