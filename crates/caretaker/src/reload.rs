//! Settings that change while the operator runs: the file is read again every few seconds, so that it does not matter how
//! it is replaced; a ConfigMap's volume swaps a symlink.
//!
//! What can be used is used: the keepers start again with it, and keep their Leases. What cannot be used changes nothing,
//! and is said in the log, by a metric and in `/readyz`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use caretaker_core::duration;
use caretaker_engine::health::Health;
use caretaker_engine::metrics::Metrics;

use crate::cli::RunArgs;
use crate::config::Config;
use crate::keepers;

/// How often the file is read.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// What `/readyz` calls it.
const PART: &str = "settings";

/// The settings of a running operator.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    /// The keepers that run with them.
    pub(crate) selected: Vec<&'static str>,
}

impl Settings {
    /// Reads them, as the operator does at its start.
    pub(crate) fn read(args: &RunArgs) -> Result<Self> {
        let config = args.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        Self::new(config, args)
    }

    fn new(config: Config, args: &RunArgs) -> Result<Self> {
        let mut config = config.with_environment()?;
        config.keepers.namespaces.activity.take_flags(&args.audit);
        let selected = keepers::keepers_to_run(args, &config)?;
        Ok(Self { config, selected })
    }

    /// From the text of a file that has changed. An empty one is refused: it may be half written, and the built-in
    /// settings protect less than those of a file.
    fn parse(text: &str, path: &Path, args: &RunArgs) -> Result<Self> {
        let origin = path.display().to_string();
        if text.trim().is_empty() {
            bail!("{origin}: it is empty; for the built-in settings write {{}}");
        }
        Self::new(Config::parse(text, &origin)?, args)
    }

    /// Takes over what cannot change while the process runs, and returns what that is, for people.
    fn keep_fixed(&mut self, running: &Self, activity_started: bool) -> Vec<String> {
        let mut fixed = Vec::new();
        let (wanted, kept) = (self.config.lease_duration, running.config.lease_duration);
        if wanted != kept {
            let [wanted, kept] = [wanted, kept].map(duration::format);
            fixed.push(format!("leaseDuration is {kept} and not {wanted} until a restart"));
            self.config.lease_duration = running.config.lease_duration;
        }
        let (new, old) = (&mut self.config.keepers.namespaces.activity, &running.config.keepers.namespaces.activity);
        if activity_started && new != old {
            fixed.push("keepers.namespaces.activity is as before until a restart".to_owned());
            new.clone_from(old);
        }
        fixed
    }

    /// True if both mean the same.
    fn is_same(&self, other: &Self) -> bool {
        format!("{:?}", self.config) == format!("{:?}", other.config)
    }
}

/// The file, and what was made of it last.
pub(crate) struct SettingsFile {
    path: Option<PathBuf>,
    /// What was read last, and what was used or refused; an error has its words.
    read: Text,
    judged: Text,
}

type Text = Result<String, String>;

impl SettingsFile {
    /// The file of the command line, which the operator has just read.
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        let mut file = Self { path, read: Ok(String::new()), judged: Ok(String::new()) };
        file.read = file.look();
        file.judged = file.read.clone();
        file
    }

    fn look(&self) -> Text {
        let Some(path) = &self.path else { return Ok(String::new()) };
        std::fs::read_to_string(path).map_err(|error| error.to_string())
    }

    /// Returns when there are other settings that can be used.
    pub(crate) async fn changed(
        &mut self,
        args: &RunArgs,
        running: &Settings,
        activity_started: bool,
        (metrics, health): (&Metrics, &Health),
    ) -> Settings {
        let Some(path) = self.path.clone() else { return std::future::pending().await };
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let text = self.look();
            // What somebody is writing is not complete: the same must be there twice.
            let is_settled = std::mem::replace(&mut self.read, text.clone()) == text;
            if !is_settled || text == self.judged {
                continue;
            }
            self.judged.clone_from(&text);
            let parsed = match &text {
                Ok(text) => Settings::parse(text, &path, args),
                Err(error) => Err(anyhow::anyhow!("{error}")).with_context(|| path.display().to_string()),
            };
            let mut settings = match parsed {
                Ok(settings) => settings,
                Err(error) => {
                    let note = format!("{error:#}; the settings before it stay in use");
                    tracing::warn!("{PART}: {note}");
                    health.set_note(PART, Some(note));
                    metrics.settings_current(false);
                    continue;
                }
            };
            let fixed = settings.keep_fixed(running, activity_started);
            let note = (!fixed.is_empty()).then(|| format!("{}: {}", path.display(), fixed.join("; ")));
            if let Some(note) = &note {
                tracing::warn!("{PART}: {note}");
            }
            metrics.settings_current(note.is_none());
            health.set_note(PART, note);
            if !settings.is_same(running) {
                tracing::info!("{PART}: {} has changed: the keepers start again with it", path.display());
                return settings;
            }
            tracing::info!("{PART}: {} has changed, and says what is in use", path.display());
        }
    }
}
