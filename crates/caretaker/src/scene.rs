//! Everything a command looks at: the subjects, their world, the bounds, and what was not readable.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use caretaker_core::admit::{Bounds, Ledger, admit};
use caretaker_core::{Timestamp, Verdict};
use caretaker_namespaces::act::Action;
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::observe::Observation;
use caretaker_namespaces::subject::{Subject, World};

use crate::cli::Source;
use crate::config::{Config, suggest};
use crate::live;
use crate::manifests::Manifests;

/// The name of each keeper there is.
const KEEPERS: [&str; 1] = [caretaker_namespaces::NAME];

/// What a command looks at.
#[derive(Debug, Default)]
pub struct Scene {
    /// What is judged.
    pub subjects: Vec<Subject>,
    /// What it is judged in.
    pub world: World,
    /// What holds it back.
    pub bounds: Bounds,
    /// What was done lately.
    pub ledger: Ledger,
    /// What to tell on standard error.
    pub notes: Vec<String>,
    /// Whether part of the input could not be read.
    pub incomplete: bool,
}

impl Scene {
    /// Reads it from where the command line says.
    pub fn read(source: &Source) -> Result<Self> {
        let mut scene = Self::default();
        let asked = keepers(source)?;
        let (observation, settings) = scene.observe(source)?;
        let config = config(source, &settings)?;
        scene.world.policy = config.policy();
        scene.bounds = config.bounds();
        scene.ledger = ledger(&settings)?;
        let enabled = config.keepers.namespaces.enabled;
        if asked.unwrap_or(enabled) {
            scene.subjects = observation.subjects();
        } else {
            scene.notes.push("the keeper namespaces is not enabled; ask for it with --keepers namespaces".to_owned());
        }
        scene.note_broken_records();
        Ok(scene)
    }

    fn observe(&mut self, source: &Source) -> Result<(Observation, Settings)> {
        let Some(path) = &source.from else {
            let cluster = live::read(source)?;
            self.notes.extend(cluster.notes);
            return Ok((cluster.observation, cluster.settings));
        };
        let manifests = Manifests::read(path)?;
        self.incomplete = !manifests.problems.is_empty();
        self.notes.extend(manifests.problems.iter().map(ToString::to_string));
        if manifests.found.is_empty() {
            let (files, others) = (manifests.files, manifests.skipped);
            self.notes.push(format!(
                "{}: nothing of interest in {files} files, {others} objects of other kinds",
                path.display()
            ));
        } else if manifests.skipped > 0 {
            self.notes.push(format!("{} objects of other kinds were skipped", manifests.skipped));
        }
        let mut observation = Observation::default();
        for found in &manifests.found {
            observation.add(&found.kind, &found.object);
        }
        Ok((observation, manifests.settings))
    }

    /// A record that cannot be read hinders one workload and not its namespace; it is told all the
    /// same.
    fn note_broken_records(&mut self) {
        for subject in &self.subjects {
            for row in &subject.workloads {
                if let Some(broken) = row.broken() {
                    self.notes.push(format!("{} {}/{}: {broken}", row.kind, subject.home(), row.name));
                }
            }
        }
    }

    /// The verdict on each subject, after pace and breaker.
    #[must_use]
    pub fn verdicts(&self, now: Timestamp) -> Vec<Verdict<Action>> {
        let mut verdicts: Vec<_> = self.subjects.iter().map(|s| RULES.judge(s, &self.world, now)).collect();
        admit(&mut verdicts, self.subjects.len(), &self.bounds, &self.ledger, now);
        verdicts
    }

    /// The exit code that goes with it.
    #[must_use]
    pub fn code(&self) -> u8 {
        if self.incomplete { 3 } else { 0 }
    }
}

/// Whether the namespaces keeper was asked for by name; `None` if nobody said.
fn keepers(source: &Source) -> Result<Option<bool>> {
    let Some(list) = &source.keepers else { return Ok(None) };
    for name in list {
        if !KEEPERS.contains(&name.as_str()) {
            bail!("--keepers: there is no keeper {name:?}{}", suggest(name, &KEEPERS));
        }
    }
    Ok(Some(list.iter().any(|k| k == caretaker_namespaces::NAME)))
}

type Settings = BTreeMap<String, BTreeMap<String, String>>;

/// The flag and its variable come before what the running operator uses.
fn config(source: &Source, settings: &Settings) -> Result<Config> {
    if let Some(path) = &source.config {
        return Ok(Config::read(path)?);
    }
    let running = settings.get("caretaker-config").and_then(|data| data.get("config.yaml"));
    Ok(running.map_or_else(
        || Ok(Config::default()),
        |text| Config::parse(text, "ConfigMap caretaker-system/caretaker-config"),
    )?)
}

fn ledger(settings: &Settings) -> Result<Ledger> {
    let text = settings.get("caretaker-state").and_then(|data| data.get(caretaker_namespaces::NAME));
    text.map_or_else(
        || Ok(Ledger::default()),
        |text| serde_json::from_str(text).context("ConfigMap caretaker-system/caretaker-state, key namespaces"),
    )
}
