//! Levels of the log lines: one for all modules, and others for some of them.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Levels by module, such as `info`, `debug,kube_client=info` or `caretaker_engine::run=trace`.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels {
    text: String,
    targets: Targets,
}

impl Levels {
    /// Modules whose lines only repeat what `/readyz` reports: they are off unless they are named.
    const QUIET: [&str; 2] = ["kube_runtime", "kube_client"];

    /// Returns the filter of the log lines. The spans of `traces` are no log lines.
    pub(crate) fn filter(&self, traces: &'static str) -> Targets {
        let mut filter = self.targets.clone();
        if filter.default_level().is_none() {
            filter = filter.with_default(LevelFilter::INFO);
        }
        for module in Self::QUIET {
            if !self.targets.iter().any(|(target, _)| target.split("::").next() == Some(module)) {
                filter = filter.with_target(module, LevelFilter::OFF);
            }
        }
        filter.with_target(traces, LevelFilter::OFF)
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self { text: "info".to_owned(), targets: Targets::new().with_default(LevelFilter::INFO) }
    }
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = |why: &str| {
            Err(format!(
                "{text:?} {why}: write off, error, warn, info, debug or trace, or a list such as \
                 info,caretaker_engine=debug"
            ))
        };
        let (levels, named): (Vec<&str>, Vec<&str>) = text.split(',').partition(|part| !part.contains('='));
        // A word that is no level would be taken for a module of which everything is logged.
        if let Some(word) = levels.iter().find(|word| word.trim().parse::<LevelFilter>().is_err() || word.is_empty()) {
            return wrong(&format!("has {word:?}, which is no level"));
        }
        if levels.len() > 1 {
            return wrong("has more than one level for all modules");
        }
        match [levels, named].concat().join(",").parse::<Targets>() {
            Ok(targets) => Ok(Self { text: text.to_owned(), targets }),
            Err(error) => wrong(&format!("cannot be read ({error})")),
        }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

type Change = dyn Fn(&Levels) -> Result<(), String> + Send + Sync;

/// Changes the levels of a program that runs.
#[derive(Clone)]
pub struct LogControl {
    levels: Arc<Mutex<Levels>>,
    change: Arc<Change>,
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogControl").field("levels", &self.levels()).finish_non_exhaustive()
    }
}

impl LogControl {
    pub(crate) fn new(levels: Levels, change: impl Fn(&Levels) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { levels: Arc::new(Mutex::new(levels)), change: Arc::new(change) }
    }

    /// Returns the present levels.
    #[must_use]
    pub fn levels(&self) -> Levels {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses these levels from now on. An error says what is wrong, and nothing is changed.
    pub fn set(&self, text: &str) -> Result<Levels, String> {
        let levels: Levels = text.parse()?;
        (self.change)(&levels)?;
        self.levels.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&levels);
        Ok(levels)
    }

    /// Returns the levels, after a change if there is one.
    pub fn show(&self, change: Option<&str>) -> Result<String, String> {
        change.map_or_else(|| Ok(self.levels()), |text| self.set(text)).map(|levels| levels.to_string())
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn logs(levels: &str, target: &str, level: Level) -> bool {
        levels.parse::<Levels>().unwrap().filter("traces").would_enable(target, &level)
    }

    #[test]
    fn a_module_has_its_own_level() {
        assert!(logs("info", "caretaker_engine::run", Level::INFO));
        assert!(!logs("info", "caretaker_engine::run", Level::DEBUG));
        assert!(logs("caretaker_engine::run=debug", "caretaker_engine::run", Level::DEBUG));
        assert!(!logs("caretaker_engine::run=debug", "caretaker_engine::watch", Level::DEBUG));
        assert!(logs("caretaker_engine::run=debug", "caretaker", Level::INFO), "the others keep the default");
        assert!(!logs("warn,caretaker_engine=trace", "caretaker", Level::INFO));
    }

    #[test]
    fn kube_is_silent_unless_it_is_named() {
        assert!(!logs("trace", "kube_client::client", Level::ERROR));
        assert!(logs("info,kube_client=debug", "kube_client::client", Level::DEBUG));
        assert!(logs("kube_client::client=debug", "kube_client::client", Level::DEBUG));
    }

    #[test]
    fn traces_are_no_lines() {
        assert!(!logs("trace", "traces", Level::ERROR));
        assert!(!logs("traces=trace", "traces", Level::ERROR));
    }

    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let control = LogControl::new(Levels::default(), |_| Ok(()));

        for text in ["", "verbose", "debug,info", "a=b", "info,", "caretaker_engine"] {
            let error = control.set(text).unwrap_err();
            assert!(error.contains("info,caretaker_engine=debug"), "{text}: {error}");
        }

        assert_eq!(control.levels(), Levels::default());
        assert_eq!(control.set(" debug \n").unwrap().to_string(), "debug");
        assert_eq!(control.levels().to_string(), "debug");
    }
}
