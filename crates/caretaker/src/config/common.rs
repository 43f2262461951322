//! What the settings of every keeper have: how much at a time, how fast, and when to stop and ask.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use caretaker_core::limits::{Limits, Breaker, Pace};
use caretaker_core::{SignedDuration, duration};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::suggest;

/// Half of what an API server on two cores takes: the other half is everybody else's.
pub const CALLS: u32 = 200;
/// How often everything is listed again, unless the settings say otherwise.
pub const SCAN: SignedDuration = SignedDuration::from_mins(10);

/// The settings that every keeper has, seen in its section.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// By action.
    pub pace: &'a OrNone<BTreeMap<String, PaceConfig>>,
    /// When to stop and ask.
    pub breaker: &'a OrNone<BreakerConfig>,
    /// How many acts at a time.
    pub concurrency: usize,
    /// How many calls in a second, at most.
    pub calls_per_second: &'a OrNone<u32>,
    /// How often everything is listed again.
    pub scan: SignedDuration,
}

impl Common<'_> {
    /// What is wrong with them; `paced` are the actions that can be paced.
    pub(crate) fn check(&self, keeper: &str, paced: &[&str]) -> Result<(), String> {
        let key = format!("keepers.{keeper}");
        if self.concurrency == 0 {
            return Err(format!("{key}.concurrency is 0: nothing could ever be done; at least 1"));
        }
        if self.calls_per_second.0 == Some(0) {
            return Err(format!("{key}.callsPerSecond is 0: write at least 1, or none for no limit"));
        }
        if self.scan < SignedDuration::from_secs(1) {
            return Err(format!("{key}.scan is shorter than 1s: write a time such as 10m"));
        }
        for (action, pace) in self.pace.0.iter().flatten() {
            if !paced.contains(&action.as_str()) {
                return Err(format!("{key}.pace.{action}: no such action{}", suggest(action, paced)));
            }
            if pace.limit == 0 {
                return Err(format!("{key}.pace.{action}.atLeast is 0: write at least 1"));
            }
            share(&format!("{key}.pace.{action}.share"), pace.fraction)?;
            if pace.window.is_zero() {
                return Err(format!("{key}.pace.{action}.per is zero: write a time such as 1h, or pace: none"));
            }
        }
        let breaker = self.breaker.0.as_ref().and_then(|breaker| breaker.min_fraction);
        breaker.map_or(Ok(()), |value| share(&format!("{key}.breaker.min_fraction"), value))
    }

    /// What admitting looks at; `built_in` holds for actions of which the settings say nothing, and
    /// `usual` for what they do not say of the breaker.
    #[must_use]
    pub fn limits(&self, built_in: &[(&str, Pace)], usual: Breaker) -> Limits {
        let pace = self.pace.0.as_ref().map(|configured| {
            let configured = configured
                .iter()
                .map(|(action, p)| (action.clone(), Pace { limit: p.limit, fraction: p.fraction, window: p.window }));
            built_in.iter().map(|(action, pace)| ((*action).to_owned(), *pace)).chain(configured).collect()
        });
        let breaker = self.breaker.0.map(|b| Breaker {
            min_count: b.min_count.unwrap_or(usual.min_count),
            min_fraction: b.min_fraction.unwrap_or(usual.min_fraction),
            window: b.window.unwrap_or(usual.window),
        });
        Limits { pace: pace.unwrap_or_default(), breaker }
    }
}

/// What is wrong with a share, if anything.
pub(super) fn share(key: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(format!("{key} is {value}: a share is between 0 and 1")) }
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

/// So many, and such a share, within a time; what is not said is the keeper's own.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BreakerConfig {
    at_least: Option<usize>,
    share: Option<f64>,
    #[serde(deserialize_with = "some_span")]
    within: Option<SignedDuration>,
}

fn some_span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SignedDuration>, D::Error> {
    span(deserializer).map(Some)
}

pub(super) fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SignedDuration, D::Error> {
    let text = String::deserialize(deserializer)?;
    duration::parse(&text)
        .map_err(|e| de::Error::custom(format!("{text:?} is not a duration, {e}; write one such as 1h or 7d")))
}

pub(super) fn span_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SignedDuration>, D::Error> {
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

impl<T: Default> Default for OrNone<T> {
    fn default() -> Self {
        Self(Some(T::default()))
    }
}

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
