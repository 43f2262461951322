//! The settings: one YAML file, every key known, every value checked.

mod activity;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use caretaker_core::admit::{Bounds, Breaker, Pace};
use caretaker_core::{SignedDuration, duration};
use caretaker_namespaces::subject::{Fallback, Policy};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use wildmatch::WildMatch;

pub use activity::{ActivityConfig, ActivitySource, Sources};

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
}

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

/// So many, or such a share, in a time.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PaceConfig {
    at_least: usize,
    #[serde(default)]
    share: f64,
    #[serde(deserialize_with = "span")]
    per: SignedDuration,
}

/// So many, and such a share, within a time.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BreakerConfig {
    at_least: usize,
    share: f64,
    #[serde(deserialize_with = "span")]
    within: SignedDuration,
}

impl Default for Namespaces {
    fn default() -> Self {
        Self {
            enabled: true,
            protected: Vec::new(),
            fallback: None,
            announce: Policy::ANNOUNCE,
            activity: ActivityConfig::default(),
            pace: OrNone(Some(BTreeMap::new())),
            breaker: OrNone(Some(BreakerConfig::default())),
            concurrency: caretaker_namespaces::keep::CONCURRENCY,
            calls_per_second: OrNone(Some(CALLS)),
            scan: SignedDuration::from_mins(10),
        }
    }
}

/// Half of what an API server on two cores takes: the other half is everybody else's.
const CALLS: u32 = 200;

impl Default for FallbackConfig {
    fn default() -> Self {
        Self { sleep_after: Fallback::SLEEP_AFTER, delete_claims: false }
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        let Breaker { at_least, share, within } = Breaker::default();
        Self { at_least, share, within }
    }
}

/// Ten deletions an hour, or a tenth of all in a large cluster: enough to keep up with what people
/// abandon, and little enough to be stopped in time.
const DELETIONS: Pace = Pace { at_least: 10, share: 0.10, per: SignedDuration::from_hours(1) };
const PACED: [&str; 4] = ["delete", "sleep", "wake", "announce"];

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
        let keeper = &self.keepers.namespaces;
        let share = |name: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err(format!("keepers.namespaces.{name} is {value}: a share is between 0 and 1"))
            }
        };
        if self.lease < SHORTEST_LEASE {
            return Err(format!("lease is {}: at least 3s", duration::format(self.lease)));
        }
        if keeper.concurrency == 0 {
            return Err("keepers.namespaces.concurrency is 0: nothing could ever be done; at least 1".to_owned());
        }
        if keeper.calls_per_second.0 == Some(0) {
            return Err("keepers.namespaces.callsPerSecond is 0: write at least 1, or none for no limit".to_owned());
        }
        if keeper.scan < SignedDuration::from_secs(1) {
            return Err("keepers.namespaces.scan is shorter than 1s: write a time such as 10m".to_owned());
        }
        share("announce", keeper.announce)?;
        if keeper.announce > Policy::MOST_ANNOUNCE {
            return Err(format!("keepers.namespaces.announce is {}: at most half of a period", keeper.announce));
        }
        if keeper.fallback.as_ref().is_some_and(|f| f.sleep_after.is_zero()) {
            return Err(
                "keepers.namespaces.fallback.sleepAfter is zero: write a time such as 168h, or remove fallback"
                    .to_owned(),
            );
        }
        for (action, pace) in keeper.pace.0.iter().flatten() {
            if !PACED.contains(&action.as_str()) {
                return Err(format!("keepers.namespaces.pace.{action}: no such action{}", suggest(action, &PACED)));
            }
            if pace.at_least == 0 {
                return Err(format!("keepers.namespaces.pace.{action}.atLeast is 0: write at least 1"));
            }
            share(&format!("pace.{action}.share"), pace.share)?;
            if pace.per.is_zero() {
                return Err(format!(
                    "keepers.namespaces.pace.{action}.per is zero: write a time such as 1h, or pace: none"
                ));
            }
        }
        if let Some(breaker) = &keeper.breaker.0 {
            share("breaker.share", breaker.share)?;
        }
        keeper.activity.check()
    }

    /// What judging looks at.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let keeper = &self.keepers.namespaces;
        Policy {
            protected: keeper.protected.iter().map(|glob| WildMatch::new(glob)).collect(),
            fallback: keeper
                .fallback
                .as_ref()
                .map(|f| Fallback { sleep_after: f.sleep_after, delete_claims: f.delete_claims }),
            announce: keeper.announce,
            session: keeper.activity.session,
        }
    }

    /// What admitting looks at.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        let keeper = &self.keepers.namespaces;
        let pace = keeper.pace.0.as_ref().map(|configured| {
            let configured = configured
                .iter()
                .map(|(action, p)| (action.clone(), Pace { at_least: p.at_least, share: p.share, per: p.per }));
            std::iter::once(("delete".to_owned(), DELETIONS)).chain(configured).collect()
        });
        let breaker = keeper.breaker.0.map(|b| Breaker { at_least: b.at_least, share: b.share, within: b.within });
        Bounds { pace: pace.unwrap_or_default(), breaker }
    }
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SignedDuration, D::Error> {
    let text = String::deserialize(deserializer)?;
    duration::parse(&text)
        .map_err(|e| de::Error::custom(format!("{text:?} is not a duration, {e}; write one such as 1h or 7d")))
}

fn span_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SignedDuration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "none" {
        return Ok(None);
    }
    let wrong = |e| de::Error::custom(format!("{text:?} is not a duration, {e}; write one such as 1m, or none"));
    duration::parse(&text).map(Some).map_err(wrong)
}

/// A value, or the word `none`.
#[derive(Debug, Clone)]
pub struct OrNone<T>(pub Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OrNone<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or the word none")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text == "none" { Ok(OrNone(None)) } else { Err(E::invalid_value(de::Unexpected::Str(text), &self)) }
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                T::deserialize(number.into_deserializer()).map(|value| OrNone(Some(value)))
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(|value| OrNone(Some(value)))
            }
        }
        deserializer.deserialize_any(Either(PhantomData))
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
                    let _ = (config.policy().protects("shop"), config.bounds());
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
