//! Writes down what was heard. Every replica does, whoever leads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use caretaker_activity::ear::Ear;
use caretaker_activity::fold::Note;
use caretaker_core::deadlines::Deadlines;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::api::{is_absence, is_conflict};
use caretaker_engine::round::Rounds;
use caretaker_engine::{Engine, told};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::Client;

use crate::Namespaces;
use crate::act::carry_out::{MANAGER, Sight};
use crate::api::State;
use crate::observe::{Manifest, Observation, resource};
use crate::record::{Recording, activity, weigh};
use crate::subject::Policy;

/// Makes a client on a connection of its own, under a name of its own.
pub type Fresh = dyn Fn(&str) -> Result<Client, String> + Send + Sync;

/// Where uses are heard of.
#[derive(Clone)]
pub struct Source {
    /// What was heard.
    pub ear: Ear,
    /// A client that needs no lead.
    pub client: Client,
    /// For the requests that must come back as audit events.
    pub fresh: Arc<Fresh>,
    /// How often one of those is sent; `None`: never, and nobody knows whether anything is heard.
    pub canary: Option<SignedDuration>,
    /// How often a namespace that is awake may be written.
    pub every: SignedDuration,
    /// Whether what was said while nobody listened is heard later, as from a log.
    pub resumes: bool,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("canary", &self.canary).field("every", &self.every).finish_non_exhaustive()
    }
}

/// A write that has ended.
pub struct Written {
    home: String,
    note: Note,
    outcome: Result<Box<Manifest>, kube::Error>,
    /// If it came second: what came first.
    first: Option<Box<Manifest>>,
}

/// Writes at once, at most.
const AT_ONCE: usize = 8;
/// Until a write is tried again that failed.
const PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// Until one is that came second.
const MOMENT: SignedDuration = SignedDuration::from_millis(100);

/// What waits to be written, and what is being written.
pub(super) struct Records {
    pub(super) source: Source,
    notes: BTreeMap<String, Note>,
    /// When each was first heard of.
    heard: BTreeMap<String, Instant>,
    /// Where somebody waits.
    urgent: VecDeque<String>,
    /// The others, whoever came first goes first.
    due: VecDeque<String>,
    queued: BTreeSet<String>,
    later: Deadlines<String>,
    written: BTreeMap<String, Timestamp>,
    busy: BTreeSet<String>,
    writes: FuturesUnordered<BoxFuture<'static, Written>>,
}

impl Records {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            notes: BTreeMap::new(),
            heard: BTreeMap::new(),
            urgent: VecDeque::new(),
            due: VecDeque::new(),
            queued: BTreeSet::new(),
            later: Deadlines::default(),
            written: BTreeMap::new(),
            busy: BTreeSet::new(),
            writes: FuturesUnordered::new(),
        }
    }

    /// When something may be written that may not be written yet.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.later.earliest()
    }

    /// Returns when a write has ended; never, if none is under way.
    pub(super) async fn ended(&mut self) -> Written {
        match self.writes.next().await {
            Some(written) => written,
            None => std::future::pending().await,
        }
    }

    /// Takes in what was heard, and has it judged at once where nobody sleeps: what is asleep is
    /// judged by what its object says, as the last look before a wake sees no more than that.
    pub(super) fn hear(&mut self, rounds: &mut Rounds<Namespaces>, dry_run: bool) {
        for (home, note) in self.source.ear.take() {
            let awake = rounds.seen().namespace(&home).is_some_and(|ns| ns.state() == State::Normal);
            if let Some(activity) = activity(&note).filter(|_| awake || dry_run) {
                rounds.seen_mut().used(&home, activity);
            }
            if dry_run {
                continue;
            }
            self.notes.entry(home.clone()).or_default().and(note);
            self.heard.entry(home.clone()).or_insert_with(Instant::now);
            self.later.set(&home, None);
            self.queue(home, awake);
        }
        self.tell();
    }

    fn queue(&mut self, home: String, awake: bool) {
        if !awake && !self.urgent.contains(&home) {
            self.urgent.push_back(home);
        } else if awake && self.queued.insert(home.clone()) {
            self.due.push_back(home);
        }
    }

    /// How many namespaces have something to be written.
    pub(super) fn left(&self) -> usize {
        self.notes.len() + self.writes.len()
    }

    /// Whether something was heard of a namespace that is not written yet.
    pub(super) fn waits_to_write(&self, home: &str) -> bool {
        self.notes.contains_key(home) || self.busy.contains(home)
    }

    /// Whoever follows a log keeps no place beyond what is written.
    fn tell(&self) {
        self.source.ear.note_unwritten(self.heard.values().min().copied());
    }

    /// Begins what may be written. `complete`: a namespace that is not known does not exist.
    pub(super) fn begin(&mut self, seen: &Observation, policy: &Policy, complete: bool, now: Timestamp) {
        for home in self.later.pop_expired(now) {
            let awake = seen.namespace(&home).is_none_or(|ns| ns.state() == State::Normal);
            self.queue(home, awake);
        }
        while self.writes.len() < AT_ONCE
            && complete
            && let Some(home) = self.urgent.pop_front().or_else(|| self.due.pop_front())
        {
            self.queued.remove(&home);
            if !self.busy.contains(&home) {
                self.write(home, seen, policy, now);
            }
        }
    }

    fn write(&mut self, home: String, seen: &Observation, policy: &Policy, now: Timestamp) {
        let Some((note, ns)) = self.notes.get(&home).zip(seen.namespace(&home)) else {
            self.forget(&home);
            return;
        };
        let written = self.written.get(&home).copied();
        match weigh(ns, policy, note, written, self.source.every, now) {
            Recording::Nothing => self.done(&home),
            Recording::At(at) => self.later.set(&home, Some(at)),
            Recording::Now(patch) => {
                let note = self.notes.remove(&home).unwrap_or_default();
                let client = self.source.client.clone();
                self.busy.insert(home.clone());
                self.writes.push(
                    async move {
                        let namespaces = resource("Namespace");
                        let outcome = namespaces.patch(&client, None, &home, MANAGER, &patch).await;
                        // The watch may be late, or stand still.
                        let first = match &outcome {
                            Err(e) if is_conflict(e) => namespaces.get(&client, None, &home).await.ok().flatten(),
                            _ => None,
                        };
                        Written { home, note, outcome, first }
                    }
                    .boxed(),
                );
            }
        }
    }

    fn forget(&mut self, home: &str) {
        self.done(home);
        self.written.remove(home);
    }

    /// Nothing is left to be written of it.
    fn done(&mut self, home: &str) {
        self.notes.remove(home);
        self.heard.remove(home);
        self.tell();
    }

    /// Takes in how a write went.
    pub(super) fn finish(&mut self, written: Written, rounds: &mut Rounds<Namespaces>, engine: &Engine) {
        let Written { home, note, outcome, first } = written;
        let now = engine.clock.now();
        self.busy.remove(&home);
        let pause = match outcome {
            Ok(namespace) => {
                engine.metrics.recorded("written");
                self.written.insert(home.clone(), now);
                rounds.see(&[Sight::Is("Namespace", namespace)]);
                // Whatever was heard meanwhile.
                if self.notes.contains_key(&home) {
                    self.heard.insert(home.clone(), Instant::now());
                    self.queue(home, true);
                } else {
                    self.heard.remove(&home);
                }
                self.written.retain(|home, _| rounds.seen().namespace(home).is_some());
                return self.tell();
            }
            Err(kube::Error::Api(status)) if is_absence(&status, &home) => return self.forget(&home),
            Err(e) if is_conflict(&e) => {
                if let Some(first) = first {
                    rounds.see(&[Sight::Is("Namespace", first)]);
                }
                MOMENT
            }
            Err(e) => {
                if matches!(&e, kube::Error::Api(status) if status.code == 403) {
                    engine.health.doubt();
                }
                engine.metrics.recorded("failed");
                tracing::warn!("the use of namespace {home} could not be written: {}", told(&e));
                PAUSE
            }
        };
        let mut earlier = note;
        earlier.and(self.notes.remove(&home).unwrap_or_default());
        self.notes.insert(home.clone(), earlier);
        self.later.set(&home, Some(time::saturating_add(now, pause)));
    }

    /// Hears nothing more, and has everything written that was heard, however lately it was written.
    pub(super) fn close(&mut self, rounds: &mut Rounds<Namespaces>, engine: &Engine) {
        self.source.ear.close();
        self.source.every = SignedDuration::ZERO;
        self.hear(rounds, engine.dry_run);
        let homes: Vec<String> = self.notes.keys().cloned().collect();
        for home in homes {
            self.queue(home, true);
        }
    }
}
