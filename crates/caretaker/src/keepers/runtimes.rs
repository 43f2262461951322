//! The runtimes keeper in the commands.

use std::collections::BTreeSet;

use caretaker_core::Timestamp;
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::act::{Action, Record};
use caretaker_runtimes::api::{self, TaskKind};
use caretaker_runtimes::observe::RuntimeCache;
use caretaker_runtimes::subject::Subject;

use super::{KeeperCli, KindNames, TimelineMark};

const NONE: char = '·';
const CREATING: char = '░';
const RUNNING: char = '█';

impl KeeperCli for Runtimes {
    /// Of a carrier without a task there is no name that another keeper does not use.
    fn kinds(&self) -> Vec<KindNames> {
        TaskKind::ALL.iter().map(|kind| KindNames::new(kind.name(), kind.aliases())).collect()
    }

    fn missing_inputs(&self, kinds: &BTreeSet<&str>) -> Vec<String> {
        let found = TaskKind::ALL.iter().any(|kind| kinds.contains(kind.name()));
        if !found {
            return vec!["there is no task of kdoctor: no runtime is judged".to_owned()];
        }
        let has_config = kinds.contains("ConfigMap") || self.policy.namespace.is_some();
        let note = format!("there is no ConfigMap: where {} is, runtimes are created", api::TEMPLATES);
        if has_config { Vec::new() } else { vec![note] }
    }

    fn notes(&self, cache: &RuntimeCache, _: Timestamp) -> Vec<String> {
        let capped = self.policy.max_runtimes.is_some() && cache.kdoctor_runs();
        let note = "kdoctor-controller runs and creates runtimes by itself: maxRuntimes cannot hold";
        if capped { vec![note.to_owned()] } else { Vec::new() }
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
