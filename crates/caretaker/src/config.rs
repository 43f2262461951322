//! The settings: one YAML file. Unknown keys are errors, and every value is checked.

mod activity;
mod addresses;
mod common;
mod namespaces;
mod runtimes;
mod windows;

use std::path::Path;

use caretaker_core::{SignedDuration, window};
use jiff::tz::TimeZone;
use serde::Deserialize;

use crate::keepers;

pub use activity::{ActivityConfig, ActivitySource, AuditSources};
pub use addresses::AddressesConfig;
pub use common::{
    BreakerConfig, CommonConfig, DEFAULT_CONCURRENCY, DEFAULT_QPS, DEFAULT_RESYNC, FileContents, OrNone, PaceConfig,
    Selection,
};
pub use namespaces::{DefaultsConfig, DeletionConfig, NamespacesConfig};
pub use runtimes::{DefaultAgentConfig, DurationText, RuntimesConfig};
pub use windows::{OnResumeConfig, RuleConfig, WindowsConfig};

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {reason}")]
pub struct ConfigError {
    origin: String,
    reason: String,
}

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// How long a leader that does not renew its Lease still counts as the leader.
    #[serde(deserialize_with = "common::duration")]
    pub lease_duration: SignedDuration,
    /// The zone of windows that name none, for every keeper: a name of the IANA database.
    pub time_zone: String,
    /// The sections of the keepers.
    pub keepers: KeepersConfig,
}

/// A shorter Lease is lost at every short interruption of the network.
const MIN_LEASE_DURATION: SignedDuration = SignedDuration::from_secs(3);

impl Default for Config {
    /// The duration of the Lease is client-go's default.
    fn default() -> Self {
        let (lease_duration, time_zone) = (SignedDuration::from_secs(15), "UTC".to_owned());
        Self { lease_duration, time_zone, keepers: KeepersConfig::default() }
    }
}

/// The section of each keeper.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct KeepersConfig {
    /// Idle namespaces.
    pub namespaces: NamespacesConfig,
    /// Leaked addresses.
    pub addresses: AddressesConfig,
    /// Flux objects that are suspended by a schedule.
    pub windows: WindowsConfig,
    /// The runtimes of kdoctor tasks.
    pub runtimes: RuntimesConfig,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let origin = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|e| ConfigError { origin: origin.clone(), reason: e.to_string() })?;
        Self::parse(&text, &origin)
    }

    /// Reads a text; `origin` names its source in errors.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let fail = |reason: String| ConfigError { origin: origin.to_owned(), reason };
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let config = read_yaml(text).map_err(fail)?;
        config.validate().map_err(fail)?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), String> {
        if self.lease_duration < MIN_LEASE_DURATION {
            let duration = caretaker_core::duration::format(self.lease_duration);
            return Err(format!("leaseDuration is {duration}: at least 3s"));
        }
        let zone = window::zone(&self.time_zone);
        let zone = zone.map_err(|remedy| format!("timeZone is {:?}, which is not known: {remedy}", self.time_zone))?;
        self.keepers.namespaces.validate()?;
        self.keepers.windows.validate(&zone)?;
        self.keepers.runtimes.validate()?;
        keepers::keepers(self).iter().try_for_each(|keeper| keeper.validate())
    }

    /// The zone of windows that name none.
    #[must_use]
    pub fn zone(&self) -> TimeZone {
        // One that is not known was refused when the settings were.
        window::zone(&self.time_zone).unwrap_or(TimeZone::UTC)
    }

    /// The settings of the namespaces keeper that its rules use.
    #[must_use]
    pub fn namespaces_policy(&self) -> caretaker_namespaces::subject::Policy {
        caretaker_namespaces::subject::Policy { zone: self.zone(), ..self.keepers.namespaces.policy() }
    }

    /// The same of the windows keeper.
    #[must_use]
    pub fn windows_policy(&self) -> caretaker_windows::subject::Policy {
        self.keepers.windows.policy(self.zone())
    }

    /// The same of the runtimes keeper.
    #[must_use]
    pub fn runtimes_policy(&self) -> caretaker_runtimes::subject::Policy {
        self.keepers.runtimes.policy(self.zone())
    }

    /// Applies the environment variables of the replaced tools (`SPIDERPOOL_GC_*`, `ENV_DEFAULT_AGENT_*`).
    pub fn with_environment(mut self) -> Result<Self, ConfigError> {
        let fail = |reason: String| ConfigError { origin: "environment".to_owned(), reason };
        self.keepers.addresses.apply_env(|name| std::env::var(name).ok()).map_err(fail)?;
        self.keepers.runtimes.apply_env(|name| std::env::var(name).ok());
        self.validate().map_err(fail)?;
        Ok(self)
    }
}

/// The settings, or what is wrong with which key.
fn read_yaml(text: &str) -> Result<Config, String> {
    let mut key = None;
    let read = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            // What is wrong with the text as a whole has no key.
            key = Some(error.path().to_string()).filter(|key| key != ".");
            error.into_inner()
        })
    });
    read.map_err(|error| {
        let message = with_suggestion(&error.to_string());
        match key {
            Some(key) if !message.contains("unknown key") => format!("{key}: {message}"),
            _ => message,
        }
    })
}

/// The first line of the parser's message, which says where and what. For an unknown key the parser
/// lists the known ones; the closest of them is suggested.
fn with_suggestion(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let unknown = line.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`'));
    let Some((unknown, rest)) = unknown else { return line.to_owned() };
    let known: Vec<&str> = rest
        .trim_start_matches(", expected ")
        .trim_start_matches("one of ")
        .split(", ")
        .map(|word| word.trim_matches('`'))
        .collect();
    format!(
        "{}unknown key {unknown}{}",
        line.split("unknown field").next().unwrap_or_default(),
        suggest(unknown, &known)
    )
}

/// Two words that are at least this similar are the same word with a typo.
const MIN_SIMILARITY: f64 = 0.5;

/// The closest known word as a question, or all of them.
pub(crate) fn suggest(word: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied())
        .map_or_else(|| format!(" (known: {})", known.join(", ")), |k| format!("; did you mean {k}?"))
}

/// The same, but nothing if no known word is close.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|k| (strsim::normalized_levenshtein(word, k), k))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// The keys that a section of the settings has, as serde names them where one is unknown.
    fn keys<T: serde::de::DeserializeOwned>() -> BTreeSet<String> {
        let error = serde_json::from_str::<T>(r#"{"no-such-key": 1}"#).err().expect("an unknown key is an error");
        error.to_string().split('`').skip(3).step_by(2).map(str::to_owned).collect()
    }

    /// The words in backticks in the first column of the table that begins with this heading.
    fn documented(page: &str, section: &str) -> BTreeSet<String> {
        let text = page.split_once(&format!("\n## {section}\n")).expect("the section").1;
        let table = text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        let cells = table.skip(2).filter_map(|row| row.split('|').nth(1));
        let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        words.map(|word| word.split(['.', '{']).next().unwrap_or_default().to_owned()).collect()
    }

    #[rstest]
    #[case::namespaces(keys::<NamespacesConfig>(), include_str!("../../../docs/namespaces.md"))]
    #[case::addresses(keys::<AddressesConfig>(), include_str!("../../../docs/addresses.md"))]
    #[case::windows(keys::<WindowsConfig>(), include_str!("../../../docs/windows.md"))]
    #[case::runtimes(keys::<RuntimesConfig>(), include_str!("../../../docs/runtimes.md"))]
    fn the_table_of_settings_has_exactly_the_keys_that_are_read(#[case] read: BTreeSet<String>, #[case] page: &str) {
        assert_eq!(documented(page, "Settings"), read);
    }

    /// `enabled` is a value of the chart beside them.
    #[rstest]
    #[case::namespaces("namespaces", keys::<NamespacesConfig>())]
    #[case::addresses("addresses", keys::<AddressesConfig>())]
    #[case::windows("windows", keys::<WindowsConfig>())]
    #[case::runtimes("runtimes", keys::<RuntimesConfig>())]
    fn the_schema_of_the_chart_has_exactly_the_keys_that_are_read(
        #[case] keeper: &str,
        #[case] mut read: BTreeSet<String>,
    ) {
        let schema = include_str!("../../../charts/caretaker/values.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).expect("a schema");
        let settings = &schema["properties"]["keepers"]["properties"][keeper]["properties"]["settings"];

        assert!(read.remove("enabled"));
        let known = settings["properties"].as_object().expect("keys").keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(known, read);
        assert_eq!(settings["additionalProperties"], false);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_text_of_settings_causes_a_panic(
            text in "(keepers|namespaces|pace|delete|breaker|none|fraction|window|deletionNotice|defaults|sleepAfter|protected|[-:{}\\[\\],&*#|\"' \n.0-9a-z\u{e9}]|: |\n  |1e999|-1|\\.nan){0,30}",
            other in any::<String>(),
        ) {
            for text in [text, other] {
                if let Ok(config) = Config::parse(&text, "x") {
                    let limits: Vec<_> = keepers::keepers(&config).iter().map(|keeper| keeper.limits()).collect();
                    let _ = (config.namespaces_policy().protects("shop"), limits);
                }
            }
        }

        #[test]
        fn no_number_in_settings_causes_a_panic(fraction in any::<f64>(), count in any::<usize>(), window in any::<String>()) {
            let window = serde_json::to_string(&window).unwrap_or_default();
            let pace = format!("{{limit: {count}, fraction: {fraction}, window: {window}}}");
            let _ = Config::parse(&format!("keepers: {{namespaces: {{deletionNotice: {fraction}, pace: {{delete: {pace}}}}}}}"), "x");
        }
    }
}
