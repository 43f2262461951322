//! The settings that every keeper has: pace, breaker, concurrency, call rate and resync interval.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use caretaker_core::limits::{Breaker, Limits, Pace};
use caretaker_core::{ActionKind, SignedDuration, duration};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::suggest;

/// Default limit of API calls per second: half of what an API server on two cores can take.
pub const DEFAULT_QPS: u32 = 200;
/// Default interval at which everything is judged again.
pub const DEFAULT_RESYNC: SignedDuration = SignedDuration::from_mins(10);
/// Default number of concurrent writes. An API server on two cores takes eight; more of them would
/// only wait there.
pub const DEFAULT_CONCURRENCY: usize = 8;

/// The settings that every keeper has.
#[derive(Debug, Clone)]
pub struct CommonConfig {
    /// When the keeper is used without being named on the command line.
    pub selection: Selection,
    /// Pace by action; `None` for no pace at all.
    pub pace: OrNone<BTreeMap<String, PaceConfig>>,
    /// The breaker; `None` for no breaker.
    pub breaker: OrNone<BreakerConfig>,
    /// How many batches are written at a time.
    pub concurrency: usize,
    /// Maximum number of API calls per second.
    pub calls_per_second: OrNone<u32>,
    /// How often everything is judged again, and sources find out whether a watch has lost something.
    pub resync_interval: SignedDuration,
}

/// When a keeper is used, unless `--keepers` says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// Never.
    Never,
    /// Always.
    Always,
    /// Always, except on files that hold subjects of other keepers and none of its own.
    UnlessFilesAreForOthers,
    /// Only on files that hold subjects of this keeper.
    FilesWithSubjects,
}

/// What the files of a command hold, as far as a selection depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileContents {
    /// Subjects of the keeper itself.
    pub own: bool,
    /// Subjects of another keeper.
    pub others: bool,
}

impl Selection {
    /// For a keeper that is off on a live cluster until the settings enable it.
    #[must_use]
    pub fn off_until_enabled(enabled: Option<bool>) -> Self {
        match enabled {
            Some(true) => Self::Always,
            Some(false) => Self::Never,
            None => Self::FilesWithSubjects,
        }
    }

    /// Whether the keeper is used; `files` is `None` on a live cluster.
    #[must_use]
    pub fn applies(self, files: Option<FileContents>) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::UnlessFilesAreForOthers => files.is_none_or(|files| files.own || !files.others),
            Self::FilesWithSubjects => files.is_some_and(|files| files.own),
        }
    }
}

impl CommonConfig {
    /// Checks every value; the error names the key. `actions` are those that the keeper has.
    pub(crate) fn validate(&self, keeper: &str, actions: &[ActionKind]) -> Result<(), String> {
        let key = format!("keepers.{keeper}");
        if self.concurrency == 0 {
            return Err(format!("{key}.concurrency is 0: nothing could ever be done; at least 1"));
        }
        if self.calls_per_second.0 == Some(0) {
            return Err(format!("{key}.callsPerSecond is 0: write at least 1, or none for no limit"));
        }
        if self.resync_interval < SignedDuration::from_secs(1) {
            return Err(format!("{key}.resyncInterval is shorter than 1s: write a duration such as 10m"));
        }
        let known: BTreeSet<&str> = actions.iter().map(|kind| kind.name).collect();
        for (action, pace) in self.pace.0.iter().flatten() {
            if !known.contains(action.as_str()) {
                let known: Vec<&str> = known.into_iter().collect();
                return Err(format!("{key}.pace.{action}: no such action{}", suggest(action, &known)));
            }
            if pace.limit == 0 {
                return Err(format!("{key}.pace.{action}.limit is 0: write at least 1"));
            }
            validate_fraction(&format!("{key}.pace.{action}.fraction"), pace.fraction)?;
            if pace.window.is_zero() {
                return Err(format!("{key}.pace.{action}.window is zero: write a duration such as 1h, or pace: none"));
            }
        }
        let fraction = self.breaker.0.as_ref().and_then(|breaker| breaker.min_fraction);
        fraction.map_or(Ok(()), |value| validate_fraction(&format!("{key}.breaker.minFraction"), value))
    }

    /// The limits that apply: these settings, and `defaults` where they say nothing.
    #[must_use]
    pub fn limits(&self, defaults: Limits) -> Limits {
        let pace = self.pace.0.as_ref().map(|configured| {
            let mut pace = defaults.pace;
            pace.extend(configured.iter().map(|(action, PaceConfig { limit, fraction, window })| {
                (action.clone(), Pace { limit: *limit, fraction: *fraction, window: *window })
            }));
            pace
        });
        let default = defaults.breaker.unwrap_or_default();
        let breaker = self.breaker.0.map(|BreakerConfig { min_count, min_fraction, window }| Breaker {
            min_count: min_count.unwrap_or(default.min_count),
            min_fraction: min_fraction.unwrap_or(default.min_fraction),
            window: window.unwrap_or(default.window),
        });
        Limits { pace: pace.unwrap_or_default(), breaker }
    }
}

/// An error unless the fraction is between 0 and 1.
pub(super) fn validate_fraction(key: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(format!("{key} is {value}: a fraction is between 0 and 1")) }
}

/// At most `limit`, or `fraction` of all, in a `window`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PaceConfig {
    limit: usize,
    #[serde(default)]
    fraction: f64,
    #[serde(deserialize_with = "duration")]
    window: SignedDuration,
}

/// Opens at `minCount` and `minFraction` of all within a `window`; the keeper's own default applies to
/// what is not set.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BreakerConfig {
    min_count: Option<usize>,
    min_fraction: Option<f64>,
    #[serde(deserialize_with = "some_duration")]
    window: Option<SignedDuration>,
}

fn some_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SignedDuration>, D::Error> {
    duration(deserializer).map(Some)
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SignedDuration, D::Error> {
    let text = String::deserialize(deserializer)?;
    duration::parse(&text)
        .map_err(|e| de::Error::custom(format!("{text:?} is not a duration, {e}; write one such as 1h or 7d")))
}

pub(super) fn duration_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SignedDuration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "none" {
        return Ok(None);
    }
    let invalid = |e| de::Error::custom(format!("{text:?} is not a duration, {e}; write one such as 1m, or none"));
    duration::parse(&text).map(Some).map_err(invalid)
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const OWN: Option<FileContents> = Some(FileContents { own: true, others: false });
    const OTHERS: Option<FileContents> = Some(FileContents { own: false, others: true });
    const NEITHER: Option<FileContents> = Some(FileContents { own: false, others: false });

    #[rstest]
    #[case::never(Selection::Never, [false, false, false, false])]
    #[case::always(Selection::Always, [true, true, true, true])]
    #[case::unless_others(Selection::UnlessFilesAreForOthers, [true, true, false, true])]
    #[case::files_only(Selection::FilesWithSubjects, [false, true, false, false])]
    fn a_selection_depends_on_what_the_files_hold(#[case] selection: Selection, #[case] expected: [bool; 4]) {
        assert_eq!([None, OWN, OTHERS, NEITHER].map(|files| selection.applies(files)), expected);
    }
}
