//! The keepers, as the commands see them.
//!
//! Judging, limiting, simulating and most of printing is the same for all keepers and is in
//! [`crate::snapshot`]. [`KeeperCli`] has what differs, with a default for everything. A new keeper
//! implements it, gets a section in the settings, and is added to [`keepers`].

mod addresses;
mod erased;
mod namespaces;
mod off;
mod registry;
mod runtimes;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod toy;
mod windows;

use std::collections::BTreeSet;

use caretaker_core::parsed::InvalidValue;
use caretaker_core::{Action as _, Timestamp};
use caretaker_engine::Controller;
use kube::Client;
use serde_json::Value;

use crate::config::did_you_mean;

pub use erased::{DynKeeper, Erased};
pub use registry::{by_name, keepers, names, select};
pub(crate) use registry::{check_usable, keepers_to_run, make_keepers, off_although_served};

/// The names of a kind of subject, as people type them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindNames {
    /// The kind as the API writes it.
    pub name: String,
    /// Its names in lower case: singular, plural, short. Messages use the first.
    pub aliases: Vec<String>,
}

impl KindNames {
    /// A kind with its aliases.
    #[must_use]
    pub fn new(name: &str, aliases: &[&str]) -> Self {
        Self { name: name.to_owned(), aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect() }
    }
}

/// What an action does to the lane of its subject in a timeline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimelineMark {
    /// The character of the lane from then on; `None` if it does not change.
    pub fill: Option<char>,
    /// The character at that moment.
    pub mark: Option<char>,
}

/// Checks the labels and annotations of an object in a file, of this kind.
pub type Linter = fn(&str, &Value, Timestamp) -> Vec<InvalidValue>;

/// What the owner of an object in a file, of this kind, should know although nothing is wrong with it.
pub type LintNotes = fn(&str, &Value) -> Vec<InvalidValue>;

/// What commands ask of a keeper, beyond what it is. Everything has a default.
pub trait KeeperCli: Controller {
    /// The kinds of its subjects. Default: those of its sources.
    fn kinds(&self) -> Vec<KindNames> {
        let sources = self.sources();
        let kinds = sources.iter().filter_map(|source| source.resource());
        kinds
            .map(|resource| KindNames::new(&resource.kind, &[&resource.kind.to_lowercase(), &resource.plural]))
            .collect()
    }

    /// True if files with these kinds hold subjects of this keeper.
    fn has_subjects_in(&self, kinds: &BTreeSet<&str>) -> bool {
        self.kinds().iter().any(|kind| kinds.contains(kind.name.as_str()))
    }

    /// What is missing in files with these kinds, so that less is judged, or with less certainty. Only the
    /// owner of the files knows whether the cluster has it.
    fn missing_inputs(&self, _kinds: &BTreeSet<&str>, _cache: &Self::Cache) -> Vec<String> {
        Vec::new()
    }

    /// Reads more about what is due now than the sources deliver, as the operator does before it acts. Returns notes
    /// about what could not be read. Default: nothing is read.
    fn read_due(
        &self,
        _client: &Client,
        _cache: &mut Self::Cache,
        _now: Timestamp,
    ) -> impl Future<Output = Vec<String>> {
        async { Vec::new() }
    }

    /// What people should know in addition to the verdicts, at this time.
    fn notes(&self, _cache: &Self::Cache, _now: Timestamp) -> Vec<String> {
        Vec::new()
    }

    /// All namespaces of the cluster; `None` if this keeper does not know all of them.
    fn known_namespaces<'a>(&self, _subjects: &'a [Self::Subject]) -> Option<BTreeSet<&'a str>> {
        None
    }

    /// True if a subject is shown when this namespace is asked for.
    fn in_namespace(&self, subject: &Self::Subject, namespace: &str) -> bool {
        self.subject_ref(subject).namespace == Some(namespace)
    }

    /// True if `KIND/name` on the command line means this subject, which is of that kind.
    fn matches_name(&self, subject: &Self::Subject, name: &str) -> bool {
        self.subject_ref(subject).name == name
    }

    /// The error if no subject of a kind has this name.
    fn not_found_message(&self, kind: &KindNames, name: &str, subjects: &[Self::Subject]) -> String {
        no_subject(self, kind, name, subjects)
    }

    /// The function that checks manifests before they are applied; `None` if there is nothing to check.
    fn linter(&self) -> Option<Linter> {
        None
    }

    /// The function that says what owners should know about manifests that are right; `None` if there is nothing.
    fn lint_notes(&self) -> Option<LintNotes> {
        None
    }

    /// The character of a subject's lane at the start of a timeline.
    fn initial_fill(&self, _subject: &Self::Subject) -> char {
        '█'
    }

    /// What an action does to the lane. Default: a subject that is removed has an empty lane.
    fn mark_for(&self, action: &Self::Action) -> TimelineMark {
        if action.kind().removes_subject {
            TimelineMark { fill: Some(' '), mark: Some('×') }
        } else {
            TimelineMark { fill: None, mark: Some('•') }
        }
    }

    /// What the characters of a lane mean.
    fn legend(&self) -> &'static str {
        "█ present  • changed  × removed"
    }

    /// The actions of the last line of a timeline, each with the words behind its count: `3 put to sleep`.
    /// Default: the names of all actions.
    fn summary(&self) -> Vec<(&'static str, &'static str)> {
        Self::Action::KINDS.iter().map(|kind| (kind.name, kind.name)).collect()
    }
}

/// The error if no subject has this name, with the closest name of its kind.
fn no_subject<K: KeeperCli>(keeper: &K, kind: &KindNames, name: &str, subjects: &[K::Subject]) -> String {
    let refs = subjects.iter().map(|subject| keeper.subject_ref(subject));
    let names = refs.filter(|subject| subject.kind == kind.name).map(|subject| subject.name);
    format!("there is no {} {name:?}{}", kind.name, did_you_mean(name, names))
}
