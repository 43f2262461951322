//! One keeper's part of a snapshot: what was read, and what the same world, judge and limits as in `run`
//! make of it. [`DynSnapshot`] is what a command sees of any keeper.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use caretaker_core::keeper::{groups, population};
use caretaker_core::limits::{Ledger, Limits, OpenBreaker, enforce};
use caretaker_core::simulate::{ExternalChange, SimulatedEventOf, Simulation};
use caretaker_core::suspension::Suspension;
use caretaker_core::{Next, RuleSet as _, SignedDuration, Timestamp, VerdictOf, time};
use caretaker_engine::ReplicaRole;
use caretaker_engine::cache::Cache as _;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::source::StateSnapshot;
use caretaker_engine::sources::{Sources, UnreadKind};
use caretaker_engine::windows::WindowConflict;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use kube::Client;

use super::follow::Changes;
use crate::breaker;
use crate::keepers::{KeeperCli, KindNames};
use crate::output::explain::Explanation;
use crate::output::plan::PlanRow;
use crate::simulate::{BlockedUser, EventRow};
use crate::timeline;

/// What one keeper works on.
pub struct KeeperSnapshot<K: KeeperCli> {
    /// The keeper.
    pub keeper: Arc<K>,
    /// Where it reads from.
    pub sources: Arc<Sources<K::Cache>>,
    /// What was read: worlds are made from its cache, by the keeper alone; and the windows on objects.
    pub feed: CacheFeed<K::Cache>,
    /// What is judged.
    pub subjects: Vec<K::Subject>,
    /// Pace and breaker.
    pub limits: Limits,
    /// What was admitted recently.
    pub ledger: Ledger,
    /// What happens from outside in a simulation.
    pub external: Vec<ExternalChange<K::Subject>>,
    /// What has happened in a simulation, in order.
    pub events: Vec<SimulatedEventOf<K>>,
    /// The breaker, if it is open at the end of a simulation, and how many subjects it holds back.
    pub breaker_at_end: Option<(OpenBreaker, usize)>,
    /// The users who were blocked until an event, by its index.
    pub blocked_users: BTreeMap<usize, BlockedUser>,
    /// What could not be read of what is due.
    pub unread: Vec<String>,
    /// The kinds that were skipped, because the user may not list them.
    pub skipped: Vec<UnreadKind>,
    /// What changes, once it is followed.
    pub(super) changes: Option<Changes<K::Cache>>,
}

/// What a command asks of any keeper's snapshot.
pub trait DynSnapshot: Any {
    /// The name of the keeper.
    fn keeper(&self) -> &'static str;

    /// The number of subjects.
    fn subject_count(&self) -> usize;

    /// All namespaces of the cluster; `None` if the keeper does not know all of them.
    fn known_namespaces(&self) -> Option<BTreeSet<&str>>;

    /// True if part of the input could not be read.
    fn is_incomplete(&self) -> bool;

    /// What people should know in addition to the verdicts, at this time.
    fn notes(&self, at: Timestamp) -> Vec<String>;

    /// What would happen at a time, to subjects in one namespace or to all.
    fn plan(&self, namespace: Option<&str>, now: Timestamp) -> Vec<PlanRow>;

    /// Everything about one subject at a time; an error if it is not found.
    fn explain(
        &self,
        kind: &KindNames,
        name: &str,
        namespace: Option<&str>,
        now: Timestamp,
    ) -> Result<Explanation, String>;

    /// Runs the clock forward, and keeps the events of one namespace or of all. A breaker that opens is reset at once
    /// if that is asked for.
    fn simulate(&mut self, namespace: Option<&str>, start: Timestamp, end: Timestamp, reset_breaker: bool);

    /// What has happened in the simulation.
    fn events(&self) -> Vec<EventRow<'_>>;

    /// The same as a lane for each subject.
    fn lanes(&self, start: Timestamp, end: Timestamp) -> String;

    /// How many subjects were affected, and by what.
    fn summary(&self) -> String;

    /// Since when the breaker holds back how many subjects, or how often it was reset; `None` if it never opened.
    fn breaker_summary(&self) -> Option<String>;

    /// Takes in another state of the operator.
    fn set_state(&mut self, state: &StateSnapshot) -> Result<()>;

    /// Starts to watch the cluster.
    fn follow(&mut self, client: &Client);

    /// Returns after the watches have delivered something, with what cannot be watched.
    fn next_changes(&mut self) -> LocalBoxFuture<'_, Vec<String>>;

    /// Judges from what was delivered; what is due is read as the operator reads it.
    fn refresh<'a>(&'a mut self, client: &'a Client, now: Timestamp) -> LocalBoxFuture<'a, ()>;
}

impl<K: KeeperCli> KeeperSnapshot<K> {
    /// What was read, before anything happens and before there are subjects.
    #[must_use]
    pub fn new(keeper: Arc<K>, sources: Arc<Sources<K::Cache>>, feed: CacheFeed<K::Cache>, limits: Limits) -> Self {
        Self {
            subjects: Vec::new(),
            keeper,
            feed,
            sources,
            limits,
            ledger: Ledger::default(),
            external: Vec::new(),
            events: Vec::new(),
            breaker_at_end: None,
            blocked_users: BTreeMap::new(),
            unread: Vec::new(),
            skipped: Vec::new(),
            changes: None,
        }
    }

    /// The world that subjects are judged in.
    #[must_use]
    pub fn world(&self, now: Timestamp) -> K::World {
        self.keeper.world(&self.feed.cache, ReplicaRole::Leader, now)
    }

    /// The window on the object of a subject.
    fn window_on(&self, subject: &K::Subject) -> Option<&Arc<Suspension>> {
        if self.feed.windows.is_empty() { None } else { self.feed.windows.on(self.keeper.subject_ref(subject).object) }
    }

    /// The verdict on a subject with a window on its object. What falls due inside of the window waits for its end, and
    /// people want to know that before.
    fn hold_back(
        &self,
        subject: &K::Subject,
        verdict: VerdictOf<K>,
        window: &Suspension,
        now: Timestamp,
    ) -> VerdictOf<K> {
        let mut held = verdict;
        if window.hold_back(&mut held, now) {
            return held;
        }
        if let Next::Wait { until, .. } = held.next {
            let then = time::saturating_add(until.max(now), SignedDuration::from_nanos(1));
            let mut later = K::Rule::judge(subject, &self.world(then), then);
            if window.hold_back(&mut later, then) {
                return later;
            }
        }
        held
    }

    /// The verdict on each subject, before windows on objects, pace and breaker.
    #[must_use]
    pub fn raw_verdicts(&self, now: Timestamp) -> Vec<VerdictOf<K>> {
        let world = self.world(now);
        self.subjects.iter().map(|subject| K::Rule::judge(subject, &world, now)).collect()
    }

    /// The verdict on each subject, after windows on objects, pace and breaker.
    #[must_use]
    pub fn limited_verdicts(&self, now: Timestamp) -> Vec<VerdictOf<K>> {
        let verdicts = self.subjects.iter().zip(self.raw_verdicts(now));
        let mut verdicts: Vec<VerdictOf<K>> = verdicts
            .map(|(subject, verdict)| match self.window_on(subject) {
                Some(window) => self.hold_back(subject, verdict, window, now),
                None => verdict,
            })
            .collect();
        let groups = groups(&*self.keeper, &self.subjects);
        let population = population(&*self.keeper, &self.subjects);
        enforce(&mut verdicts, &groups, population, &self.limits, &self.ledger, now);
        verdicts
    }

    fn find(&self, kind: &KindNames, name: &str, namespace: Option<&str>) -> Result<usize, String> {
        let keeper = &*self.keeper;
        let matches = |subject: &K::Subject| {
            let found = keeper.subject_ref(subject);
            let here = found.namespace.is_none() || namespace.is_none_or(|ns| keeper.in_namespace(subject, ns));
            found.kind == kind.name && here && keeper.matches_name(subject, name)
        };
        let found: Vec<usize> = (0..self.subjects.len()).filter(|i| matches(&self.subjects[*i])).collect();
        match found.as_slice() {
            [only] => Ok(*only),
            [] => Err(keeper.not_found_message(kind, name, &self.subjects)),
            many => {
                let namespaces = many.iter().filter_map(|i| keeper.subject_ref(&self.subjects[*i]).namespace);
                let (namespaces, given, kind): (Vec<&str>, _, _) = (namespaces.collect(), kind, &kind.name);
                let pools: Vec<&str> = many.iter().filter_map(|i| keeper.pool(&self.subjects[*i])).collect();
                if pools.len() == many.len() {
                    let forms: Vec<String> =
                        pools.iter().map(|pool| format!("{}/{pool}/{name}", given.aliases[0])).collect();
                    return Err(format!(
                        "{kind} {name:?} is in the pools {}; choose one: {}",
                        pools.join(", "),
                        forms.join(", ")
                    ));
                }
                if namespaces.len() < many.len() {
                    return Err(format!("there are {} of {kind} {name:?}", many.len()));
                }
                Err(format!("{kind} {name:?} is in the namespaces {}; choose one with -n", namespaces.join(", ")))
            }
        }
    }
}

impl<K: KeeperCli> DynSnapshot for KeeperSnapshot<K> {
    fn keeper(&self) -> &'static str {
        self.keeper.name()
    }

    fn subject_count(&self) -> usize {
        self.subjects.len()
    }

    fn known_namespaces(&self) -> Option<BTreeSet<&str>> {
        self.keeper.known_namespaces(&self.subjects)
    }

    fn is_incomplete(&self) -> bool {
        !self.skipped.is_empty()
    }

    fn notes(&self, at: Timestamp) -> Vec<String> {
        let mut notes: Vec<String> =
            self.ledger.open.iter().map(|open| breaker::describe(self.keeper.name(), open)).collect();
        for key in self.feed.cache.keys() {
            notes.extend(self.feed.cache.invalid_objects(&key).iter().map(|invalid| {
                let namespace = invalid.namespace.as_ref().map_or_else(String::new, |ns| format!("{ns}/"));
                format!("{} {namespace}{}: {}", invalid.kind, invalid.name, invalid.because)
            }));
        }
        notes.extend(self.feed.windows.conflicts().map(|WindowConflict { regarding, note }| {
            let [kind, name] = [regarding.kind, regarding.name].map(Option::unwrap_or_default);
            let namespace = regarding.namespace.filter(|_| kind != "Namespace");
            let namespace = namespace.map_or_else(String::new, |ns| format!("{ns}/"));
            format!("{kind} {namespace}{name}: {note}")
        }));
        notes.extend(self.keeper.notes(&self.feed.cache, at));
        notes.extend(self.unread.iter().cloned());
        notes
    }

    fn plan(&self, namespace: Option<&str>, now: Timestamp) -> Vec<PlanRow> {
        let world = self.world(now);
        self.subjects
            .iter()
            .zip(self.limited_verdicts(now))
            .filter(|(subject, _)| namespace.is_none_or(|ns| self.keeper.in_namespace(subject, ns)))
            .map(|(subject, verdict)| PlanRow::new(&*self.keeper, subject, verdict, &world, now))
            .collect()
    }

    fn explain(
        &self,
        kind: &KindNames,
        name: &str,
        namespace: Option<&str>,
        now: Timestamp,
    ) -> Result<Explanation, String> {
        let found = self.find(kind, name, namespace)?;
        let verdict = self.limited_verdicts(now).swap_remove(found);
        let subject = &self.subjects[found];
        let window = self.window_on(subject).map(|window| window.describe(now));
        Ok(Explanation::new(&*self.keeper, subject, verdict, &self.world(now), now).with_window(window))
    }

    fn simulate(&mut self, namespace: Option<&str>, start: Timestamp, end: Timestamp, reset_breaker: bool) {
        let (world, subjects) = (self.world(start), self.subjects.clone());
        let (limits, ledger) = (self.limits.clone(), self.ledger.clone());
        let window = |(place, subject)| Some((place, self.window_on(subject)?.clone()));
        let windows = self.subjects.iter().enumerate().filter_map(window).collect();
        let mut simulation =
            Simulation::new(&*self.keeper, world, subjects, limits, ledger, start).with_windows(windows);
        if reset_breaker {
            simulation = simulation.with_breaker_resets();
        }
        self.events = simulation.run(end, &self.external);
        self.breaker_at_end = simulation.ledger.open.map(|open| (open, simulation.held.len()));
        if let Some(namespace) = namespace {
            let shown = |i| self.keeper.in_namespace(&self.subjects[i], namespace);
            self.events.retain(|event| event.subject.is_none_or(shown));
        }
    }

    fn events(&self) -> Vec<EventRow<'_>> {
        let row = |(i, event)| EventRow::new(&*self.keeper, event, &self.subjects, self.blocked_users.get(&i));
        self.events.iter().enumerate().map(row).collect()
    }

    fn lanes(&self, start: Timestamp, end: Timestamp) -> String {
        timeline::lanes(self, start, end)
    }

    fn summary(&self) -> String {
        timeline::summary(self)
    }

    fn breaker_summary(&self) -> Option<String> {
        timeline::breaker_summary(self)
    }

    fn set_state(&mut self, state: &StateSnapshot) -> Result<()> {
        self.take_state(state)
    }

    fn follow(&mut self, client: &Client) {
        self.open(client);
    }

    fn next_changes(&mut self) -> LocalBoxFuture<'_, Vec<String>> {
        self.take_changes().boxed_local()
    }

    fn refresh<'a>(&'a mut self, client: &'a Client, now: Timestamp) -> LocalBoxFuture<'a, ()> {
        self.judge_again(client, now).boxed_local()
    }
}
