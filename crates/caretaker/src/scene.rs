//! Everything a command looks at: the subjects, their world, the bounds, and what was not readable.

use caretaker_engine::keep::Index as _;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use caretaker_activity::canary::Gaps;
use caretaker_core::admit::{Bounds, Groups, Ledger, admit};
use caretaker_core::keeper::crowd;
use caretaker_core::{Timestamp, Verdict, time};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::Action;
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::observe::Observation;
use caretaker_namespaces::subject::{Subject, World};

use crate::cli::Source;
use crate::config::{ActivityConfig, Config, nearest, suggest};
use crate::manifests::Manifests;
use crate::output::Answer;
use crate::{breaker, live};

/// The name of each keeper there is.
const KEEPERS: [&str; 1] = [caretaker_namespaces::NAME];

/// What a command looks at.
#[derive(Debug, Default)]
pub struct Scene {
    /// What is judged.
    pub subjects: Vec<Subject>,
    /// The namespaces there are, judged or not.
    pub homes: BTreeSet<String>,
    /// What it is judged in.
    pub world: World,
    /// What holds it back.
    pub bounds: Bounds,
    /// What was done lately.
    pub ledger: Ledger,
    /// What counts as use.
    pub activity: ActivityConfig,
    /// When uses may have been missed.
    pub gaps: Gaps,
    /// What to tell on standard error.
    pub notes: Vec<String>,
    /// Whether part of the input could not be read.
    pub incomplete: bool,
}

impl Scene {
    /// Reads it from where the command line says.
    pub fn read(source: &Source) -> Result<Self> {
        let mut scene = Self::default();
        let asked = keepers(source.keepers.as_deref())?;
        let (observation, settings) = scene.observe(source)?;
        let config = config(source.config.as_deref(), &settings)?;
        scene.world.policy = config.policy();
        scene.bounds = config.bounds();
        scene.ledger = ledger(&settings)?;
        scene.gaps = gaps(&settings)?;
        scene.activity = config.keepers.namespaces.activity.clone();
        let enabled = config.keepers.namespaces.enabled;
        let subjects = observation.subjects();
        scene.homes = subjects.iter().map(|s| s.home().to_owned()).collect();
        if asked.unwrap_or(enabled) {
            scene.subjects = subjects;
        } else {
            scene.notes.push("the keeper namespaces is not enabled; ask for it with --keepers namespaces".to_owned());
        }
        scene.note_broken_records();
        scene.notes.extend(scene.ledger.open.as_ref().map(breaker::sentence));
        scene.notes.extend(scene.gaps.open().map(|gap| {
            format!("activity may be missed since {}, so that no silence counts: {}", time::show(gap.from), gap.because)
        }));
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
        self.note_what_a_dump_lacks(&manifests);
        let mut observation = Observation::default();
        for found in &manifests.found {
            observation.add(&found.kind, &found.object);
        }
        Ok((observation, manifests.settings))
    }

    /// What is not in a dump is not judged, or judged with less care; only its owner can say whether
    /// it is not in the cluster either.
    fn note_what_a_dump_lacks(&mut self, manifests: &Manifests) {
        let has = |kind: &str| manifests.found.iter().any(|f| f.kind == kind);
        if manifests.found.is_empty() {
            return;
        }
        if !has("Namespace") {
            self.notes.push("there are objects but no Namespace among them: no namespace is judged".to_owned());
        }
        // Every real cluster has some.
        if !has("APIService") {
            self.notes.push(
                "there is no APIService, so this is not all of a cluster: whether a namespace stands behind webhooks or \
                 APIServices could not be checked; docs/commands.md has the full dump"
                    .to_owned(),
            );
        }
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
        let world = self.world_at(now);
        let mut verdicts: Vec<_> = self.subjects.iter().map(|s| RULES.judge(s, &world, now)).collect();
        admit(&mut verdicts, &Groups::default(), crowd::<Namespaces>(&self.subjects), &self.bounds, &self.ledger, now);
        verdicts
    }

    /// The world at a time: while uses may be missed, no silence counts.
    #[must_use]
    pub fn world_at(&self, now: Timestamp) -> World {
        World { last_gap: self.gaps.last(now), ..self.world.clone() }
    }

    /// Why nothing can be said about a namespace that was asked for, if there is none of that name.
    #[must_use]
    pub fn is_missing(&self, namespace: Option<&str>) -> Option<String> {
        let name = namespace.filter(|name| !self.homes.contains(*name))?;
        Some(missing(name, self.homes.iter().map(String::as_str)))
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

/// Whether the namespaces keeper was asked for by name; `None` if nobody said.
pub(crate) fn keepers(asked: Option<&[String]>) -> Result<Option<bool>> {
    let Some(list) = asked else { return Ok(None) };
    for name in list {
        if !KEEPERS.contains(&name.as_str()) {
            bail!("--keepers: there is no keeper {name:?}{}", suggest(name, &KEEPERS));
        }
    }
    Ok(Some(list.iter().any(|k| k == caretaker_namespaces::NAME)))
}

pub(crate) type Settings = BTreeMap<String, BTreeMap<String, String>>;

/// The flag and its variable come before what the running operator uses.
pub(crate) fn config(path: Option<&Path>, settings: &Settings) -> Result<Config> {
    if let Some(path) = path {
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

fn gaps(settings: &Settings) -> Result<Gaps> {
    let text = settings.get("caretaker-state").and_then(|data| data.get(caretaker_namespaces::run::GAPS));
    text.map_or_else(
        || Ok(Gaps::default()),
        |text| serde_json::from_str(text).context("ConfigMap caretaker-system/caretaker-state, key activity"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use caretaker_core::SignedDuration;
    use caretaker_core::admit::{BREAKER_OPEN, Breaker, PACED, Pace};
    use proptest::prelude::*;

    fn recorded(text: &str) -> Result<Ledger> {
        let data = [(caretaker_namespaces::NAME.to_owned(), text.to_owned())].into();
        ledger(&[("caretaker-state".to_owned(), data)].into())
    }

    /// Namespaces that have been silent for longer than they may be.
    fn due(count: usize) -> Vec<Subject> {
        let mut manifests = Manifests::default();
        for i in 0..count {
            let text = format!(
                "kind: Namespace\nmetadata:\n  name: ns-{i}\n  labels:\n    sleepmode.kubefree.com/sleep-after: 2h\n  annotations:\n    sleepmode.kubefree.com/activity-status: '{{\"LastActivityTime\":\"1969-12-01T00:00:00Z\"}}'\n"
            );
            manifests.take("a.yaml".as_ref(), text.as_bytes());
        }
        let mut observation = Observation::default();
        manifests.found.iter().for_each(|f| observation.add(&f.kind, &f.object));
        observation.subjects()
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
            let scene = Scene {
                subjects: due(10),
                bounds: Bounds {
                    pace: [("sleep".to_owned(), Pace { at_least, share, per: span })].into(),
                    breaker: Some(Breaker { at_least, share, within: span }),
                },
                ledger,
                ..Scene::default()
            };

            let verdicts = scene.verdicts(Timestamp::from_second(now.into())?);
            prop_assert!(verdicts.iter().all(|v| ["SleepAfterElapsed", PACED, BREAKER_OPEN].contains(&v.rule)), "{verdicts:?}");
        }
    }
}
