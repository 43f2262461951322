//! Any keeper, for commands that work on several.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use caretaker_core::limits::Limits;
use caretaker_core::suspension::WindowAnnotation;
use caretaker_core::{Action as _, EngineRule, RuleSet as _, Timestamp};
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::health::Health;
use caretaker_engine::metrics::Registry;
use caretaker_engine::source::{Change, Delivered, SourceRef, StateSnapshot};
use caretaker_engine::sources::{ListError, Sources};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use jiff::tz::TimeZone;
use kube::Client;

use super::{KeeperCli, KindNames};
use crate::config::{CommonConfig, Selection};
use crate::lint::LintFinding;
use crate::manifests::ManifestSet;
use crate::run::{Operator, Shutdown};
use crate::snapshot::{DynSnapshot, KeeperSnapshot};

/// Any keeper with its settings.
pub trait DynKeeper: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The kinds of its subjects.
    fn kinds(&self) -> Vec<KindNames>;

    /// When it is used without being named on the command line.
    fn selection(&self) -> Selection;

    /// True if files with these kinds hold subjects of this keeper.
    fn has_subjects_in(&self, kinds: &BTreeSet<&str>) -> bool;

    /// True if it reads objects of this kind; the apiVersion may be empty.
    fn reads_kind(&self, api_version: &str, kind: &str) -> bool;

    /// Its rules as a table in Markdown.
    fn rules_markdown(&self) -> String;

    /// The names of its rules, and of those that every keeper has.
    fn rules(&self) -> Vec<&'static str>;

    /// The names of its actions.
    fn actions(&self) -> Vec<&'static str>;

    /// Checks the settings that every keeper has; the error names the key.
    fn validate(&self) -> Result<(), String>;

    /// Its pace and breaker.
    fn limits(&self) -> Limits;

    /// Everything it reads, from files, and what is missing in them.
    fn load_files(
        &self,
        files: &mut ManifestSet<'_>,
        state: &StateSnapshot,
    ) -> Result<(Box<dyn DynSnapshot>, Vec<String>)>;

    /// Everything it reads, from a live cluster.
    fn load_cluster<'a>(
        &'a self,
        client: &'a Client,
        state: &'a StateSnapshot,
    ) -> LocalBoxFuture<'a, Result<Box<dyn DynSnapshot>>>;

    /// True if it checks manifests.
    fn lints(&self) -> bool;

    /// What is wrong with manifests.
    fn lint(&self, files: &mut ManifestSet<'_>, now: Timestamp) -> Vec<LintFinding>;

    /// Registers its own metrics.
    fn register_metrics(&self, registry: &mut Registry);

    /// Runs it until shutdown.
    fn run<'a>(&'a self, operator: &'a Operator, health: Health, shutdown: Shutdown) -> LocalBoxFuture<'a, Result<()>>;
}

/// A keeper of a known type as a [`DynKeeper`].
pub struct Erased<K: KeeperCli> {
    keeper: Arc<K>,
    config: CommonConfig,
    sources: Arc<Sources<K::Cache>>,
}

impl<K: KeeperCli> Erased<K> {
    /// The keeper with the settings that every keeper has, and the zone of windows that name none.
    #[must_use]
    pub fn boxed(keeper: K, config: CommonConfig, zone: &TimeZone) -> Box<dyn DynKeeper> {
        let sources = Sources::in_zone(&keeper, zone);
        Box::new(Self { keeper: Arc::new(keeper), config, sources })
    }

    /// What was read, with the state of the operator.
    fn snapshot(&self, feed: CacheFeed<K::Cache>, state: &StateSnapshot) -> Result<KeeperSnapshot<K>> {
        let mut snapshot = KeeperSnapshot::new(self.keeper.clone(), self.sources.clone(), feed, self.limits());
        snapshot.set_state(state)?;
        Ok(snapshot)
    }

    /// What files deliver, in the order of a complete list of each source.
    fn feed(&self, objects: Vec<Delivered<K::Cache>>) -> CacheFeed<K::Cache> {
        let fixed = self.sources.iter().filter_map(|source| {
            let resource = Some(source.resource()?.clone());
            Some((SourceRef { id: source.id, resource }, Vec::new()))
        });
        let mut by_source: Vec<(SourceRef, Vec<Change<_>>)> = fixed.collect();
        for (source, change) in objects {
            match by_source.iter_mut().find(|(known, _)| *known == source) {
                Some((_, changes)) => changes.push(change),
                None => by_source.push((source, vec![change])),
            }
        }
        let mut feed = self.sources.empty_feed();
        for (source, changes) in by_source {
            feed.update(&source, Change::Init);
            for change in changes {
                feed.update(&source, change);
            }
            feed.update(&source, Change::InitDone);
        }
        feed
    }
}

impl<K: KeeperCli> DynKeeper for Erased<K> {
    fn name(&self) -> &'static str {
        self.keeper.name()
    }

    fn kinds(&self) -> Vec<KindNames> {
        self.keeper.kinds()
    }

    fn selection(&self) -> Selection {
        self.config.selection
    }

    fn has_subjects_in(&self, kinds: &BTreeSet<&str>) -> bool {
        self.keeper.has_subjects_in(kinds)
    }

    fn reads_kind(&self, api_version: &str, kind: &str) -> bool {
        self.sources.reads_kind(api_version, kind)
    }

    fn rules_markdown(&self) -> String {
        K::Rule::markdown()
    }

    fn rules(&self) -> Vec<&'static str> {
        let own = K::Rule::ALL.iter().map(|rule| rule.name());
        own.chain(EngineRule::ALL.iter().map(|rule| rule.name())).collect()
    }

    fn actions(&self) -> Vec<&'static str> {
        K::Action::KINDS.iter().map(|kind| kind.name).collect()
    }

    fn validate(&self) -> Result<(), String> {
        self.config.validate(self.keeper.name(), K::Action::KINDS)
    }

    fn limits(&self) -> Limits {
        self.config.limits(self.keeper.default_limits())
    }

    fn load_files(
        &self,
        files: &mut ManifestSet<'_>,
        state: &StateSnapshot,
    ) -> Result<(Box<dyn DynSnapshot>, Vec<String>)> {
        let (mut kinds, mut objects) = (BTreeSet::new(), Vec::new());
        for found in files.decode(&self.sources) {
            kinds.insert(found.kind);
            objects.push(found.object);
        }
        let kinds: BTreeSet<&str> = kinds.iter().map(String::as_str).collect();
        let feed = self.feed(objects);
        let missing = if kinds.is_empty() { Vec::new() } else { self.keeper.missing_inputs(&kinds, &feed.cache) };
        let mut snapshot = self.snapshot(feed, state)?;
        snapshot.make_subjects();
        Ok((Box::new(snapshot), missing))
    }

    fn load_cluster<'a>(
        &'a self,
        client: &'a Client,
        state: &'a StateSnapshot,
    ) -> LocalBoxFuture<'a, Result<Box<dyn DynSnapshot>>> {
        async move {
            let listed = self.sources.list_readable(client, self.keeper.list_concurrency()).await;
            let (feed, skipped) = listed.map_err(|e| cannot_list(self.keeper.name(), e))?;
            let mut snapshot = self.snapshot(feed, state)?;
            snapshot.skipped = skipped;
            snapshot.read_due(client, crate::now()).await;
            Ok(Box::new(snapshot) as Box<dyn DynSnapshot>)
        }
        .boxed_local()
    }

    fn lints(&self) -> bool {
        self.keeper.linter().is_some()
    }

    fn lint(&self, files: &mut ManifestSet<'_>, now: Timestamp) -> Vec<LintFinding> {
        let Some(lint) = self.keeper.linter() else { return Vec::new() };
        let found = files.values(&self.sources);
        let findings = |found| {
            let crate::manifests::Found { file, line, kind, object } = found;
            let invalid = lint(&kind, &object, now).into_iter().map(|invalid| (invalid, false));
            let notes = self.keeper.lint_notes().map(|notes| notes(&kind, &object)).unwrap_or_default();
            let annotation = |key: &str| object["metadata"]["annotations"][key].as_str();
            let conflict = WindowAnnotation::find(annotation).and_then(|window| window.conflict());
            let notes = notes.into_iter().chain(conflict).map(|note| (note, true));
            let all: Vec<_> = invalid.chain(notes).collect();
            all.into_iter()
                .map(move |(invalid, is_note)| LintFinding::new(invalid, file, line, &kind, &object).note(is_note))
        };
        found.into_iter().flat_map(findings).collect()
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.keeper.register_metrics(registry);
    }

    fn run<'a>(&'a self, operator: &'a Operator, health: Health, shutdown: Shutdown) -> LocalBoxFuture<'a, Result<()>> {
        operator.run_keeper(self.keeper.clone(), &self.config, health, shutdown).boxed_local()
    }
}

/// Why a live cluster cannot be read, and what to do about it.
fn cannot_list(keeper: &str, error: ListError) -> anyhow::Error {
    if error.not_served {
        return anyhow!(
            "this cluster does not serve {}: what the keeper {keeper} works on is not installed",
            error.path
        );
    }
    error.into()
}
