//! Everything a command looks at: the stage of each keeper that is asked, and what was not readable.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use kube::Client;

use crate::cli::Source;
use crate::config::{Config, nearest};
use crate::keepers::{self, ALL, Console, Listed};
use crate::live::{self, Cluster};
use crate::manifests::{Manifests, Texts};
use crate::output::Answer;
use crate::stage::{Stage, Staged};

/// What a command looks at.
#[derive(Default)]
pub struct Scene {
    /// Of each keeper that is asked.
    pub stages: Vec<Box<dyn Staged>>,
    /// What to tell on standard error.
    pub notes: Vec<String>,
    /// Whether part of the input could not be read.
    pub incomplete: bool,
}

impl Scene {
    /// Reads it from where the command line says, for the keepers that it names or the settings enable.
    pub fn read(source: &Source) -> Result<Self> {
        Self::read_of(keepers::asked(source.keepers.as_deref())?, source)
    }

    /// Reads it for one keeper, enabled or not.
    pub fn read_for(keeper: &'static dyn Listed, source: &Source) -> Result<Self> {
        keepers::asked(source.keepers.as_deref())?;
        Self::read_of(Some(vec![keeper]), source)
    }

    fn read_of(asked: Option<Vec<&'static dyn Listed>>, source: &Source) -> Result<Self> {
        let mut scene = Self::default();
        if let Some(path) = &source.from {
            let texts = Texts::read(path)?;
            let mut manifests = Manifests::of(&texts);
            let config = config(source.config.as_deref(), &manifests.settings)?;
            let kinds = manifests.kinds();
            let on = asked.unwrap_or_else(|| enabled(&config, Some(&kinds)));
            scene.look_into(&path.display().to_string(), &mut manifests, &on, &config)?;
        } else {
            scene.look_at_cluster(source, asked)?;
        }
        if scene.stages.is_empty() {
            let name = |keeper: &&dyn Listed| keeper.name();
            scene.notes.extend(
                ALL.iter()
                    .map(name)
                    .map(|keeper| format!("the keeper {keeper} is not enabled; ask for it with --keepers {keeper}")),
            );
        }
        scene.notes.extend(scene.stages.iter().flat_map(|stage| stage.notes()));
        Ok(scene)
    }

    /// Sets the stages from files.
    pub(crate) fn look_into(
        &mut self,
        origin: &str,
        manifests: &mut Manifests<'_>,
        on: &[&dyn Listed],
        config: &Config,
    ) -> Result<()> {
        let mut lacks = Vec::new();
        for keeper in on {
            let (stage, lacking) = keeper.of_files(manifests, config)?;
            self.stages.push(stage);
            lacks.extend(lacking);
        }
        self.incomplete = !manifests.problems.is_empty();
        self.notes.extend(manifests.problems.iter().map(ToString::to_string));
        if on.is_empty() {
            return Ok(());
        }
        let skipped = manifests.skipped(|kind| on.iter().any(|keeper| keeper.wants(kind)));
        if manifests.taken() == 0 {
            let files = manifests.files;
            self.notes
                .push(format!("{origin}: nothing of interest in {files} files, {skipped} objects of other kinds"));
        } else if skipped > 0 {
            self.notes.push(format!("{skipped} objects of other kinds were skipped"));
        }
        self.notes.extend(lacks);
        Ok(())
    }

    /// Sets the stages from a live cluster, with lists and gets alone.
    fn look_at_cluster(&mut self, source: &Source, asked: Option<Vec<&'static dyn Listed>>) -> Result<()> {
        live::block_on(async {
            let client = Client::try_from(live::settings(&source.cluster).await?)?;
            let mut cluster = Cluster::default();
            cluster.read_own(&client).await;
            let config = config(source.config.as_deref(), &cluster.settings)?;
            for keeper in asked.unwrap_or_else(|| enabled(&config, None)) {
                self.stages.push(keeper.of_cluster(&client, &config, &cluster.settings).await?);
            }
            self.notes.extend(cluster.notes);
            Ok(())
        })
    }

    /// The stage of a keeper, if it is asked.
    #[must_use]
    pub fn stage<K: Console>(&self) -> Option<&Stage<K>> {
        self.stages.iter().find_map(|stage| (&**stage as &dyn Any).downcast_ref())
    }

    /// The same, to set it.
    pub fn stage_mut<K: Console>(&mut self) -> Option<&mut Stage<K>> {
        self.stages.iter_mut().find_map(|stage| (&mut **stage as &mut dyn Any).downcast_mut())
    }

    /// Why nothing can be said about a namespace that was asked for, if there is none of that name.
    #[must_use]
    pub fn is_missing(&self, namespace: Option<&str>) -> Option<String> {
        let name = namespace?;
        // Who does not know all namespaces cannot say that there is none of that name.
        let known: Vec<BTreeSet<&str>> = self.stages.iter().filter_map(|stage| stage.homes()).collect();
        let absent = !known.is_empty() && !known.iter().any(|homes| homes.contains(name));
        absent.then(|| missing(name, known.iter().flatten().copied()))
    }

    /// The answer to what cannot be answered; what was noted before may say why.
    #[must_use]
    pub fn refused(mut self, why: String) -> Answer {
        self.notes.push(why);
        Answer { text: String::new(), notes: self.notes, code: 1 }
    }

    /// The exit code that goes with it.
    #[must_use]
    pub fn code(&self) -> u8 {
        if self.incomplete { 3 } else { 0 }
    }
}

pub(crate) fn missing<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let meant = nearest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    format!("there is no namespace {name:?}{meant}")
}

/// The keepers to ask where nobody names one.
fn enabled(config: &Config, files: Option<&BTreeSet<&str>>) -> Vec<&'static dyn Listed> {
    ALL.iter().copied().filter(|keeper| keeper.is_on(config, files)).collect()
}

/// Caretaker's own ConfigMaps, by name.
pub type Settings = BTreeMap<String, BTreeMap<String, String>>;

/// The flag and its variable come before what the running operator uses.
pub(crate) fn config(path: Option<&Path>, settings: &Settings) -> Result<Config> {
    let running = settings.get("caretaker-config").and_then(|data| data.get("config.yaml"));
    let config = match (path, running) {
        (Some(path), _) => Config::read(path)?,
        (None, Some(text)) => Config::parse(text, "ConfigMap caretaker-system/caretaker-config")?,
        (None, None) => Config::default(),
    };
    Ok(config.with_environment()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use caretaker_core::limits::{BREAKER_OPEN, Limits, Breaker, Ledger, PACED, Pace};
    use caretaker_core::{SignedDuration, Timestamp};
    use caretaker_namespaces::Namespaces;
    use caretaker_namespaces::subject::Subject;
    use proptest::prelude::*;

    use crate::keepers::Ground;

    fn recorded(text: &str) -> Result<Ledger> {
        let data = [(caretaker_namespaces::NAME.to_owned(), text.to_owned())].into();
        keepers::kept(&[("caretaker-state".to_owned(), data)].into(), caretaker_namespaces::NAME)
    }

    /// Namespaces that have been silent for longer than they may be.
    fn due(count: usize) -> Vec<Subject> {
        let mut texts = Texts::default();
        for i in 0..count {
            let text = format!(
                "kind: Namespace\nmetadata:\n  name: ns-{i}\n  labels:\n    sleepmode.kubefree.com/sleep-after: 2h\n  annotations:\n    sleepmode.kubefree.com/activity-status: '{{\"LastActivityTime\":\"1969-12-01T00:00:00Z\"}}'\n"
            );
            texts.add("a.yaml".into(), text.into_bytes());
        }
        let mut scene = Scene::default();
        scene.look_into("", &mut Manifests::of(&texts), ALL, &Config::default()).expect("stages");
        scene.stage_mut::<Namespaces>().map(|stage| std::mem::take(&mut stage.subjects)).unwrap_or_default()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_record_of_what_was_done_makes_it_panic(
            text in "(\\{|\\}|\\[|\\]|,|:|\"open\"|\"since\"|\"because\"|\"admitted\"|\"guarded\"|\"[0-9]{4}-[0-9]{2}-[0-9]{2}T00:00:00Z\"|null| ){0,20}",
            other in any::<String>(),
        ) {
            let _ = (recorded(&text), recorded(&other));
        }

        #[test]
        fn nor_does_a_record_of_any_times(
            done in proptest::collection::vec((0..9999_i32, 1..13_u8), 0..20),
            at_least in 0..5_usize,
            share in 0.0..1.0_f64,
            now in 0..i32::MAX,
        ) {
            let times: Vec<String> = done.iter().map(|(year, month)| format!("\"{year:04}-{month:02}-01T00:00:00Z\"")).collect();
            let times = times.join(",");
            let text = format!("{{\"admitted\":{{\"sleep\":[{times}]}},\"guarded\":[{times}]}}");
            let ledger = recorded(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
            let span = SignedDuration::from_hours(1);
            let limits = Limits {
                pace: [("sleep".to_owned(), Pace { limit, fraction, window: span })].into(),
                breaker: Some(Breaker { min_count, min_fraction, window: span }),
            };
            let stage = Stage::<Namespaces>::new(due(10), Ground::default(), limits, ledger);

            let verdicts = stage.verdicts(Timestamp::from_second(now.into())?);
            prop_assert!(verdicts.iter().all(|v| ["SleepAfterElapsed", PACED, BREAKER_OPEN].contains(&v.rule)), "{verdicts:?}");
        }
    }
}
