//! The windows keeper in the commands.

use std::collections::BTreeSet;

use caretaker_core::Timestamp;
use caretaker_windows::act::Action;
use caretaker_windows::api::KINDS;
use caretaker_windows::observe::FluxCache;
use caretaker_windows::subject::FluxObject;
use caretaker_windows::{Windows, warnings};

use super::{KeeperCli, KindNames, LintNotes, Linter, TimelineMark};

const SUSPENDED: char = '█';
const RECONCILED: char = '·';

impl KeeperCli for Windows {
    fn kinds(&self) -> Vec<KindNames> {
        KINDS.iter().map(|kind| KindNames::new(kind.kind, kind.aliases)).collect()
    }

    fn missing_inputs(&self, kinds: &BTreeSet<&str>, _: &Self::Cache) -> Vec<String> {
        let found = KINDS.iter().any(|kind| kinds.contains(kind.kind));
        if found { Vec::new() } else { vec!["there is no Flux object: no window is judged".to_owned()] }
    }

    fn notes(&self, cache: &FluxCache, _: Timestamp) -> Vec<String> {
        warnings::all(cache, &self.policy)
    }

    fn linter(&self) -> Option<Linter> {
        Some(|_, object, _| warnings::lint(object))
    }

    fn lint_notes(&self) -> Option<LintNotes> {
        Some(|_, object| warnings::lint_notes(object))
    }

    fn initial_fill(&self, object: &FluxObject) -> char {
        if object.is_suspended() { SUSPENDED } else { RECONCILED }
    }

    fn mark_for(&self, action: &Action) -> TimelineMark {
        match action {
            Action::Suspend(_) => TimelineMark { fill: Some(SUSPENDED), mark: None },
            Action::Resume | Action::Yield(_) | Action::EndOrder => TimelineMark { fill: Some(RECONCILED), mark: None },
            Action::Show(_) => TimelineMark::default(),
        }
    }

    fn legend(&self) -> &'static str {
        "· reconciled  █ suspended"
    }

    fn summary(&self) -> Vec<(&'static str, &'static str)> {
        vec![("suspend", "suspended"), ("resume", "resumed")]
    }
}
