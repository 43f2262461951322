//! The settings: one YAML file, every key known, every value checked.

mod activity;
mod addresses;
mod common;
mod namespaces;

use std::path::Path;

use caretaker_core::{SignedDuration, duration};
use serde::Deserialize;

use crate::keepers;

pub use activity::{ActivityConfig, ActivitySource, Sources};
pub use addresses::Addresses;
use common::span;
pub use common::{BreakerConfig, CALLS, Common, OrNone, PaceConfig, SCAN};
pub use namespaces::{FallbackConfig, Namespaces};

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {why}")]
pub struct ConfigError {
    origin: String,
    why: String,
}

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// How long a replica that is not heard of is taken to lead.
    #[serde(deserialize_with = "span")]
    pub lease: SignedDuration,
    /// By keeper.
    pub keepers: Keepers,
}

/// A Lease shorter than this is lost to every hiccup of the network.
const SHORTEST_LEASE: SignedDuration = SignedDuration::from_secs(3);

impl Default for Config {
    /// The Lease is client-go's.
    fn default() -> Self {
        Self { lease: SignedDuration::from_secs(15), keepers: Keepers::default() }
    }
}

/// The keepers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Keepers {
    /// Idle namespaces.
    pub namespaces: Namespaces,
    /// Leaked addresses.
    pub addresses: Addresses,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let origin = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|e| ConfigError { origin: origin.clone(), why: e.to_string() })?;
        Self::parse(&text, &origin)
    }

    /// Reads a text; `origin` says where it is from.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let fail = |why: String| ConfigError { origin: origin.to_owned(), why };
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let config: Self = serde_saphyr::from_str(text).map_err(|e| fail(with_suggestion(&e.to_string())))?;
        config.check().map_err(fail)?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        if self.lease < SHORTEST_LEASE {
            return Err(format!("lease is {}: at least 3s", duration::format(self.lease)));
        }
        keepers::ALL.iter().try_for_each(|keeper| keeper.check(self))
    }

    /// With what the variables say by which the systems are set that a keeper stands in for.
    pub fn with_environment(mut self) -> Result<Self, ConfigError> {
        let fail = |why: String| ConfigError { origin: "environment".to_owned(), why };
        self.keepers.addresses.take_over(|name| std::env::var(name).ok()).map_err(fail)?;
        self.check().map_err(fail)?;
        Ok(self)
    }
}

/// The parser's first line says where and what; of an unknown key it names the known ones, and the
/// nearest of them is what was meant.
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

/// A slip of the pen is closer than this.
const CLOSE: f64 = 0.5;

pub(crate) fn suggest(word: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied())
        .map_or_else(|| format!(" (known: {})", known.join(", ")), |k| format!("; did you mean {k}?"))
}

/// What was meant, if anything is close to it.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|k| (strsim::normalized_levenshtein(word, k), k))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(closeness, _)| *closeness >= CLOSE)
        .map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_text_of_settings_makes_it_panic(
            text in "(keepers|namespaces|pace|delete|breaker|none|share|per|announce|fallback|sleepAfter|protected|[-:{}\\[\\],&*#|\"' \n.0-9a-z\u{e9}]|: |\n  |1e999|-1|\\.nan){0,30}",
            other in any::<String>(),
        ) {
            for text in [text, other] {
                if let Ok(config) = Config::parse(&text, "x") {
                    let limits = keepers::limits::<caretaker_namespaces::Namespaces>(&config);
                    let _ = (config.keepers.namespaces.policy().protects("shop"), limits);
                }
            }
        }

        #[test]
        fn nor_does_any_figure(share in any::<f64>(), count in any::<usize>(), per in any::<String>()) {
            let per = serde_json::to_string(&per).unwrap_or_default();
            let pace = format!("{{atLeast: {count}, share: {share}, per: {per}}}");
            let _ = Config::parse(&format!("keepers: {{namespaces: {{announce: {share}, pace: {{delete: {pace}}}}}}}"), "x");
        }
    }
}
