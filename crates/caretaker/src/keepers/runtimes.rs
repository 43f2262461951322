//! The runtimes keeper in the commands.

use std::collections::BTreeSet;

use caretaker_core::Timestamp;
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::act::{Action, Record};
use caretaker_runtimes::api::{self, TaskKind};
use caretaker_runtimes::observe::{Elsewhere, RuntimeCache};
use caretaker_runtimes::subject::Subject;

use super::{KeeperCli, KindNames, TimelineMark};

const NONE: char = '·';
const CREATING: char = '░';
const RUNNING: char = '█';
/// How many objects a note names.
const NAMED: usize = 3;

impl KeeperCli for Runtimes {
    /// Of a carrier without a task there is no name that another keeper does not use.
    fn kinds(&self) -> Vec<KindNames> {
        TaskKind::ALL.iter().map(|kind| KindNames::new(kind.name(), kind.aliases())).collect()
    }

    fn missing_inputs(&self, kinds: &BTreeSet<&str>, _: &Self::Cache) -> Vec<String> {
        let found = TaskKind::ALL.iter().any(|kind| kinds.contains(kind.name()));
        if found { Vec::new() } else { vec!["there is no task of kdoctor: no runtime is judged".to_owned()] }
    }

    fn notes(&self, cache: &RuntimeCache, _: Timestamp) -> Vec<String> {
        let home = self.policy.namespace.as_deref().unwrap_or_default();
        let mut notes = Vec::new();
        if self.policy.max_runtimes.is_some() && cache.kdoctor_runs() {
            notes.push("kdoctor-controller runs and creates runtimes by itself: maxRuntimes cannot hold".to_owned());
        }
        if self.policy.templates.is_none() && !cache.has_templates() {
            notes.push(format!(
                "there is no ConfigMap {home}/{}, so that a built-in template is used: if kdoctor is in another \
                 namespace, name that in keepers.runtimes.namespace",
                api::TEMPLATES
            ));
        }
        let (maps, carriers): (Vec<_>, Vec<_>) = cache.elsewhere().partition(|found| found.kind == "ConfigMap");
        for (found, why) in [(maps, "not used"), (carriers, "left alone, and removed with their tasks")] {
            let place = |found: &&Elsewhere| format!("{} {}/{}", found.kind, found.namespace, found.name);
            let names: Vec<String> = found.iter().take(NAMED).map(place).collect();
            let more = match found.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            if !names.is_empty() {
                let names = names.join(", ");
                notes.push(format!("not in the namespace {home}, and so {why}: {names}{more}"));
            }
        }
        notes
    }

    fn initial_fill(&self, subject: &Subject) -> char {
        match subject {
            Subject::Task(runtime) if runtime.carrier().is_none() => NONE,
            Subject::Task(runtime) if runtime.task.runtime_status() != Some(api::RuntimeStatus::Created) => CREATING,
            _ => RUNNING,
        }
    }

    fn mark_for(&self, action: &Action) -> TimelineMark {
        let fill = |fill: char| TimelineMark { fill: Some(fill), mark: None };
        match action {
            Action::Create => fill(CREATING),
            Action::Record(Record::Created | Record::DefaultAgent) => fill(RUNNING),
            Action::Retire | Action::Clean => TimelineMark { fill: Some(NONE), mark: Some('×') },
            Action::Record(Record::Deleted) => fill(NONE),
            Action::Record(Record::FinishedSeen | Record::FinishWithdrawn) | Action::Warn => {
                TimelineMark { fill: None, mark: Some('•') }
            }
        }
    }

    fn legend(&self) -> &'static str {
        "· no runtime  ░ creating  █ created  × retired"
    }

    fn summary(&self) -> Vec<(&'static str, &'static str)> {
        vec![("create", "created"), ("retire", "retired"), ("clean", "swept")]
    }
}
