//! The namespaces keeper in the commands.

use std::collections::BTreeSet;

use anyhow::Result;
use caretaker_activity::canary::Gaps;
use caretaker_addresses::api::POOL;
use caretaker_core::limits::Pace;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::Action;
use caretaker_namespaces::lint::lint;
use caretaker_namespaces::observe::Manifest;
use caretaker_namespaces::run::GAPS;
use caretaker_namespaces::subject::{Kind as Sort, Policy, Subject, World};

use super::{Console, Fault, Kind, Needless, Stroke, kept};
use crate::config::{ActivityConfig, Common, Config};
use crate::scene::{Settings, missing};

/// Ten deletions an hour, or a tenth of all in a large cluster: enough to keep up with what people
/// abandon, and little enough to be stopped in time.
const DELETIONS: Pace = Pace { limit: 10, fraction: 0.10, window: SignedDuration::from_hours(1) };

const AWAKE: char = '█';
const ASLEEP: char = '░';
const ANNOUNCED: char = '!';
const DELETED: char = '×';
const GONE: char = ' ';

/// What is known beside the namespaces themselves.
#[derive(Debug, Default)]
pub struct Ground {
    /// What judging looks at.
    pub policy: Policy,
    /// What counts as use.
    pub activity: ActivityConfig,
    /// When uses may have been missed.
    pub gaps: Gaps,
}

impl Console for Namespaces {
    type Ground = Ground;

    const KINDS: &'static [Kind] = &[
        Kind { name: "Namespace", words: &["namespace", "namespaces", "ns"], namespaced: false },
        Kind { name: "Deployment", words: &["deployment", "deployments", "deploy"], namespaced: true },
        Kind { name: "Service", words: &["service", "services", "svc"], namespaced: true },
    ];
    const PACED: &'static [&'static str] = &["delete", "sleep", "wake", "announce"];
    const PACES: &'static [(&'static str, Pace)] = &[("delete", DELETIONS)];
    const LEGEND: &'static str = "█ awake  ░ asleep  ! announced  × deleted";
    const SUMMARY: &'static [(&'static str, &'static str)] =
        &[("sleep", "put to sleep"), ("wake", "woken"), ("announce", "announced for deletion"), ("delete", "deleted")];
    const LINTS: bool = true;

    fn common(config: &Config) -> Common<'_> {
        config.keepers.namespaces.common()
    }

    fn check(config: &Config) -> Result<(), String> {
        config.keepers.namespaces.check()
    }

    /// Files of pools have StatefulSets as well; that is no reason to miss Namespaces in them.
    fn is_on(config: &Config, files: Option<&BTreeSet<&str>>) -> bool {
        let ours = |kinds: &BTreeSet<&str>| Self::KINDS.iter().any(|kind| kinds.contains(kind.name));
        config.keepers.namespaces.enabled && files.is_none_or(|kinds| ours(kinds) || !kinds.contains(POOL))
    }

    fn ground(config: &Config, settings: &Settings) -> Result<Ground> {
        let activity = config.keepers.namespaces.activity.clone();
        Ok(Ground { policy: config.keepers.namespaces.policy(), activity, gaps: kept(settings, GAPS)? })
    }

    /// While uses may be missed, no silence counts.
    fn world(ground: &Ground, now: Timestamp) -> World {
        World { policy: ground.policy.clone(), last_gap: ground.gaps.last(now) }
    }

    fn notes(ground: &Ground, subjects: &[Subject]) -> Vec<String> {
        let mut notes = Vec::new();
        // A record that cannot be read hinders one workload and not its namespace; it is told all the
        // same.
        for subject in subjects {
            for row in &subject.workloads {
                if let Some(broken) = row.invalid() {
                    notes.push(format!("{} {}/{}: {broken}", row.kind, subject.home(), row.name));
                }
            }
        }
        notes.extend(ground.gaps.open().map(|gap| {
            format!("activity may be missed since {}, so that no silence counts: {}", time::format(gap.from), gap.because)
        }));
        notes
    }

    fn lacks(kinds: &BTreeSet<&str>) -> Vec<String> {
        if !kinds.contains("Namespace") {
            return vec!["there are objects but no Namespace among them: no namespace is judged".to_owned()];
        }
        let mut lacks = Vec::new();
        // Every real cluster has some.
        if !kinds.contains("APIService") {
            lacks.push(
                "there is no APIService, so this is not all of a cluster: whether a namespace stands behind webhooks or \
                 APIServices could not be checked; docs/commands.md has the full dump"
                    .to_owned(),
            );
        }
        lacks
    }

    fn homes(subjects: &[Subject]) -> Option<BTreeSet<&str>> {
        Some(subjects.iter().map(Subject::home).collect())
    }

    fn is_in(subject: &Subject, namespace: &str) -> bool {
        subject.home() == namespace
    }

    fn absent(kind: &Kind, name: &str, subjects: &[Subject]) -> String {
        if kind.name == Sort::Namespace.name() {
            let namespaces = subjects.iter().filter(|s| s.kind == Sort::Namespace);
            return missing(name, namespaces.map(|s| s.name.as_str()));
        }
        let kind = kind.name;
        format!("there is no {kind} {name:?} with labels of its own; without them it is judged with its namespace")
    }

    /// What a workload has most of. Of the others each may be asked for its status.
    fn needless(kind: &str) -> &'static [Needless] {
        match kind {
            "Namespace" | "CustomResourceDefinition" => &[],
            _ => &[(0, "status:"), (6, "containers:"), (6, "initContainers:"), (6, "volumes:")],
        }
    }

    fn lint(kind: &str, object: &Manifest, now: Timestamp) -> Vec<Fault> {
        let meta = &object.metadata;
        let namespace = Some(meta.namespace.clone()).filter(|ns| !ns.is_empty());
        let fault = |broken| Fault { namespace: namespace.clone(), name: meta.name.clone(), broken };
        lint(kind, object, now).into_iter().map(fault).collect()
    }

    fn lane(subject: &Subject) -> char {
        if subject.is_asleep() { ASLEEP } else { AWAKE }
    }

    fn stroke(action: &Action) -> Stroke {
        match action {
            Action::Sleep(_) => Stroke { fill: Some(ASLEEP), mark: None },
            Action::Wake { .. } => Stroke { fill: Some(AWAKE), mark: None },
            Action::Announce => Stroke { fill: None, mark: Some(ANNOUNCED) },
            Action::Delete => Stroke { fill: Some(GONE), mark: Some(DELETED) },
            Action::Label(_) => Stroke::default(),
        }
    }
}
