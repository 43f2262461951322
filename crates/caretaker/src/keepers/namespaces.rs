//! The namespaces keeper in the commands.

use std::collections::BTreeSet;

use caretaker_core::count::{counted, is_or_are};
use caretaker_core::{Timestamp, duration, time};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::{Controller as _, ReplicaRole};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::Action;
use caretaker_namespaces::activity::unreported::{self, unreported};
use caretaker_namespaces::judge::is_about_to_get_defaults;
use caretaker_namespaces::lint::{lint, notes as lint_notes};
use caretaker_namespaces::live::read_due_pods;
use caretaker_namespaces::observe::{NamespaceCache, scalable};
use caretaker_namespaces::subject::{Kind as SubjectKind, Subject};
use kube::Client;

use super::{KeeperCli, KindNames, LintNotes, Linter, TimelineMark};
use crate::config::did_you_mean;
use crate::snapshot::no_namespace;

const AWAKE: char = '█';
const ASLEEP: char = '░';
const ANNOUNCED: char = '!';
const DELETED: char = '×';
const GONE: char = ' ';

/// How many namespaces a note names.
const NAMED: usize = 10;

/// Which namespaces the defaults are about to label, before they act for the first time.
fn first_of_the_defaults(keeper: &Namespaces, cache: &NamespaceCache) -> Option<String> {
    let defaults = keeper.policy().defaults.as_ref()?;
    let subjects = cache.subjects();
    let about_to = subjects.iter().filter(|subject| is_about_to_get_defaults(subject, keeper.policy()));
    let names: Vec<&str> = about_to.map(|subject| subject.name.as_str()).collect();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = names[..names.len().min(NAMED)].join(", ");
    let after = duration::format(defaults.sleep_after);
    (!names.is_empty()).then(|| {
        format!(
            "the defaults are about to label {}, which {} put to sleep after {after} without a use: \
             {shown}{more}; leave one out with the label exclude, or by protected or systemNamespaces in the settings",
            counted(names.len(), "namespace", "namespaces"),
            is_or_are(names.len())
        )
    })
}

impl KeeperCli for Namespaces {
    fn kinds(&self) -> Vec<KindNames> {
        vec![
            KindNames::new("Namespace", &["namespace", "namespaces", "ns"]),
            KindNames::new("Deployment", &["deployment", "deployments", "deploy"]),
            KindNames::new("Service", &["service", "services", "svc"]),
        ]
    }

    fn missing_inputs(&self, kinds: &BTreeSet<&str>, _: &Self::Cache) -> Vec<String> {
        if !kinds.contains("Namespace") {
            return vec!["there are objects but no Namespace among them: no namespace is judged".to_owned()];
        }
        let mut missing = Vec::new();
        // Every real cluster has some.
        if !kinds.contains("APIService") {
            missing.push(
                "there is no APIService, so this is not all of a cluster: whether webhooks or APIServices depend on a \
                 namespace could not be checked; docs/commands.md has the full dump"
                    .to_owned(),
            );
        }
        missing
    }

    /// The pods of what is due to be put to sleep or deleted.
    async fn read_due(&self, client: &Client, cache: &mut NamespaceCache, now: Timestamp) -> Vec<String> {
        let world = self.world(cache, ReplicaRole::Leader, now);
        read_due_pods(client, cache, &world, now).await
    }

    fn notes(&self, cache: &NamespaceCache, now: Timestamp) -> Vec<String> {
        let open = cache.gaps().open_gap().map(|gap| {
            let from = time::format(gap.from);
            format!("activity may be missed since {from}, so that no idle time counts: {}", gap.because)
        });
        let unreported = unreported(cache, self.policy(), now);
        let unreported = unreported.map(|unseen| unreported::warning(unseen, self.policy()));
        let unusable = scalable::unusable(cache, &self.policy().scalable_kinds);
        unreported.into_iter().chain(open).chain(unusable).chain(first_of_the_defaults(self, cache)).collect()
    }

    fn known_namespaces<'a>(&self, subjects: &'a [Subject]) -> Option<BTreeSet<&'a str>> {
        Some(subjects.iter().map(Subject::namespace_name).collect())
    }

    fn in_namespace(&self, subject: &Subject, namespace: &str) -> bool {
        subject.namespace_name() == namespace
    }

    fn not_found_message(&self, kind: &KindNames, name: &str, subjects: &[Subject]) -> String {
        if kind.name == SubjectKind::Namespace.name() {
            let namespaces = subjects.iter().filter(|subject| subject.kind == SubjectKind::Namespace);
            return no_namespace(name, namespaces.map(|subject| subject.name.as_str()));
        }
        let kind = &kind.name;
        if kind == SubjectKind::Deployment.name() {
            let wanted = format!("{kind}/{name}");
            let has_it = |subject: &&Subject| subject.workloads.iter().any(|w| w.display_name() == wanted);
            let namespaces = subjects.iter().filter(|subject| subject.kind == SubjectKind::Namespace);
            if let Some(owner) = namespaces.clone().find(has_it) {
                return format!(
                    "{kind} {name:?} has no labels of its own, so that it is judged with its namespace: caretaker explain \
                     namespace/{}",
                    owner.name
                );
            }
            let names = namespaces.flat_map(|subject| &subject.workloads).map(|w| w.name.as_str());
            return format!("there is no {kind} {name:?}{}", did_you_mean(name, names));
        }
        format!("there is no {kind} {name:?} with labels of its own; without them it is judged with its namespace")
    }

    fn linter(&self) -> Option<Linter> {
        Some(lint)
    }

    fn lint_notes(&self) -> Option<LintNotes> {
        Some(lint_notes)
    }

    fn initial_fill(&self, subject: &Subject) -> char {
        if subject.is_asleep() { ASLEEP } else { AWAKE }
    }

    fn mark_for(&self, action: &Action) -> TimelineMark {
        match action {
            Action::Sleep(_) => TimelineMark { fill: Some(ASLEEP), mark: None },
            Action::Wake(_) => TimelineMark { fill: Some(AWAKE), mark: None },
            Action::Announce => TimelineMark { fill: None, mark: Some(ANNOUNCED) },
            Action::Delete => TimelineMark { fill: Some(GONE), mark: Some(DELETED) },
            Action::Record(_) => TimelineMark::default(),
        }
    }

    fn legend(&self) -> &'static str {
        "█ awake  ░ asleep  ! announced  × deleted"
    }

    fn summary(&self) -> Vec<(&'static str, &'static str)> {
        vec![
            ("sleep", "put to sleep"),
            ("wake", "woken"),
            ("announce", "announced for deletion"),
            ("delete", "deleted"),
        ]
    }
}
