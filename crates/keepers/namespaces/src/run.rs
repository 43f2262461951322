//! The keeper at work: hears what the watches tell, makes a round where something has changed or
//! fallen due, and carries out what may be done.
//!
//! Every replica hears; only the leader judges and acts. What a round admits is written to the state
//! before anything is begun, so that a successor counts it too. Nothing is begun while anything that
//! it takes to judge rightly is missing: [`Health`](caretaker_engine::health::Health) says what.

mod acts;
mod listen;
mod needs;
mod records;
mod tell;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_core::admit::{Bounds, Ledger};
use caretaker_engine::Engine;
use caretaker_engine::access;
use caretaker_engine::api::Resource;
use caretaker_engine::lease::{self, Lead};
use caretaker_engine::state::{self, Change, Kept};
use caretaker_engine::watch::{News, Versioned, watch};
use futures::stream::{BoxStream, FuturesUnordered, select_all};
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::act::carry_out::{MANAGER, Seen, Undone};
use crate::observe::{Manifest, SOURCES};
use crate::round::{Due, Rounds};
use crate::subject::World;

pub use listen::GAPS;
use listen::Wires;
pub use needs::needs;
use records::Records;
pub use records::{Fresh, Source};
pub(crate) use tell::{before, reports};

/// How it works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What subjects are judged in.
    pub world: World,
    /// What holds acts back.
    pub bounds: Bounds,
    /// How many acts at a time.
    pub concurrency: usize,
    /// Where uses are heard of; `None` where somebody else writes them down.
    pub source: Option<Source>,
}

/// What is told by a watch.
enum Told {
    Of(&'static Resource, Box<News<Manifest>>),
    State(News<Change>),
}

struct Done {
    due: Due,
    outcome: Result<(), Undone>,
    seen: Seen,
}

/// News taken in before the next round.
const AT_ONCE: usize = 512;
/// A loop with nothing to do goes round this often, to show that it does.
const BEAT: Duration = Duration::from_mins(1);
/// How long acts that are under way may take to end when we are told to stop.
const LAST_ACTS: Duration = Duration::from_secs(3);
/// Until the state is tried again that could not be read or written.
const STATE_PAUSE: Duration = Duration::from_secs(1);

/// Until lines are tried again that the journal did not take.
const JOURNAL_PAUSE: Duration = Duration::from_secs(1);

const LEASE: &str = "lease";
const STATE: &str = "state";

/// Works until `stop` rings; then ends what is under way and returns.
pub async fn run(settings: Settings, engine: Engine, stop: impl Future<Output = ()>) {
    let engine = Arc::new(engine);
    let (wires, listening) = match settings.source.clone() {
        Some(source) => {
            let (wires, listening) = listen::listen(source, engine.clone(), MANAGER);
            (Some(wires), listening.boxed())
        }
        None => (None, std::future::pending().boxed()),
    };
    let mut work = Work {
        news: watches(&engine),
        records: settings.source.clone().map(Records::new),
        wires,
        complete: false,
        tidy: false,
        rounds: Rounds::default(),
        queue: VecDeque::new(),
        acts: FuturesUnordered::new(),
        ledger: None,
        anew: true,
        led: false,
        told_open: false,
        pause: None,
        caught_up: Instant::now(),
        settings: Arc::new(settings),
        engine: engine.clone(),
    };
    for source in &SOURCES {
        work.engine.health.awaits(&watching(source.plural));
    }
    work.engine.health.awaits(&watching(state::NAME));
    if work.engine.lead.is_some() {
        work.engine.health.awaits(LEASE);
        work.engine.metrics.leader(crate::NAME, false);
    }
    let asking = async move {
        // What a dry run needs, the watches find out; and a question would be a write.
        if !engine.dry_run {
            let (client, health) = (engine.reader.clone(), engine.health.clone());
            access::check(client, needs(false), health, "permissions").await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop => {}
        () = work.go() => {}
        () = asking => {}
        () = listening => {}
    }
    work.end().await;
}

fn watching(what: &str) -> String {
    format!("watching {what}")
}

fn watches(engine: &Engine) -> BoxStream<'static, Vec<Told>> {
    let mut all: Vec<BoxStream<'static, Told>> = Vec::new();
    for source in &SOURCES {
        all.push(
            watch(engine.reader.clone(), source, engine.scan).map(|news| Told::Of(source, Box::new(news))).boxed(),
        );
    }
    all.push(state::changes(engine.reader.clone(), engine.scan).map(Told::State).boxed());
    select_all(all).ready_chunks(AT_ONCE).boxed()
}

type Acts = FuturesUnordered<futures::future::BoxFuture<'static, Done>>;

struct Work {
    settings: Arc<Settings>,
    engine: Arc<Engine>,
    news: BoxStream<'static, Vec<Told>>,
    rounds: Rounds,
    queue: VecDeque<Due>,
    acts: Acts,
    /// What was admitted lately; none if it must be read.
    ledger: Option<Kept<Ledger>>,
    /// What is held back must be looked at again.
    anew: bool,
    led: bool,
    /// Whether a dry run has told that the breaker would open.
    told_open: bool,
    pause: Option<Instant>,
    /// When the journal was last tried again.
    caught_up: Instant,
    records: Option<Records>,
    wires: Option<Wires>,
    /// Whether all namespaces were seen.
    complete: bool,
    /// Whether gaps are to be forgotten that were noted while uses were heard of here.
    tidy: bool,
}

impl Work {
    async fn go(&mut self) {
        let mut lead = self.engine.lead.clone();
        loop {
            self.begin_acts();
            let (clock, health) = (self.engine.clock.clone(), self.engine.health.clone());
            let next = if self.may_judge() { self.rounds.next() } else { None };
            let pause = self.pause;
            let behind = !self.engine.journal.is_complete();
            let later = self.records.as_ref().and_then(Records::next);
            tokio::select! {
                stir = records::stir(&mut self.records, &mut self.wires) => self.stirred(stir),
                () = clock.over(later) => {}
                Some(told) = self.news.next() => told.into_iter().for_each(|told| self.hear(told)),
                Some(done) = self.acts.next() => self.finish(done),
                () = clock.over(next) => {}
                () = health.better() => {}
                () = lease::changed(&mut lead) => {}
                () = async {
                    match pause {
                        Some(until) => tokio::time::sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                } => self.pause = None,
                () = tokio::time::sleep(JOURNAL_PAUSE), if behind => {}
                () = tokio::time::sleep(BEAT) => {}
            }
            self.engine.health.beat();
            if behind && self.caught_up.elapsed() >= JOURNAL_PAUSE {
                self.caught_up = Instant::now();
                tell::catch_up(&self.engine);
            }
            self.follow_lead();
            self.record();
            self.round().await;
        }
    }

    fn hear(&mut self, told: Told) {
        let health = &self.engine.health;
        match told {
            Told::Of(source, news) => {
                match &*news {
                    News::Complete => {
                        health.fine(&watching(source.plural));
                        self.complete |= source.kind == "Namespace";
                    }
                    News::Failed(why) => health.waits(&watching(source.plural), why),
                    News::Begins | News::Is(_) | News::Gone(_) => {}
                }
                self.rounds.hear(source.kind, &news);
            }
            Told::State(news) => match news {
                News::Is(_) if self.wires.as_ref().is_some_and(Wires::ring) => {}
                News::Is(change) if self.ledger.as_ref().is_some_and(|kept| !kept.is_older_than(change.version())) => {}
                News::Is(_) | News::Gone(_) => self.ledger = None,
                News::Complete => health.fine(&watching(state::NAME)),
                News::Failed(why) => health.waits(&watching(state::NAME), why),
                News::Begins => {}
            },
        }
    }

    /// Whether all is there that it takes to judge rightly, and to act on it.
    fn may_judge(&self) -> bool {
        let listens = self.wires.as_ref().is_none_or(|wires| wires.hearing.borrow().is_some());
        self.led && listens && self.pause.is_none() && self.engine.health.is_fine()
    }

    /// The world as it is now: while activity may be missed, no silence counts.
    fn world(&self, now: Timestamp) -> World {
        let gaps = self.wires.as_ref().and_then(|wires| wires.hearing.borrow().as_ref()?.gaps.last(now));
        World { last_gap: gaps.or(self.settings.world.last_gap), ..self.settings.world.clone() }
    }

    fn follow_lead(&mut self) {
        let Engine { lead, health, metrics, .. } = &*self.engine;
        match lead.as_ref().and_then(Lead::trouble) {
            Some(why) => health.waits(LEASE, why),
            None if lead.as_ref().is_some_and(Lead::is_known) => health.fine(LEASE),
            None => {}
        }
        let leads = self.engine.leads();
        if !leads {
            self.rounds.stand_by();
        }
        if leads == self.led {
            return;
        }
        self.led = leads;
        metrics.leader(crate::NAME, leads && lead.is_some());
        if leads {
            if lead.is_some() {
                tracing::info!("this replica leads");
            }
            self.ledger = None;
            self.tidy = self.wires.is_none() && !self.engine.dry_run;
            if let Some(lead) = lead.as_ref().filter(|_| self.wires.is_none()) {
                lead.settle();
            }
            self.rounds.doubt();
        } else {
            tracing::info!("this replica does not lead any more");
            for due in std::mem::take(&mut self.queue) {
                self.rounds.put_back(&due);
            }
            self.rounds.stand_down();
            self.tell_totals();
            metrics.breaker(crate::NAME, false);
        }
    }

    async fn round(&mut self) {
        if !self.led || self.pause.is_some() {
            return;
        }
        if self.ledger.is_none() {
            match self.engine.state.read::<Ledger>().await {
                Ok(kept) => {
                    self.engine.metrics.breaker(crate::NAME, kept.value.open.is_some());
                    self.ledger = Some(kept);
                    self.engine.health.fine(STATE);
                    self.anew = true;
                }
                Err(e) => return self.state_failed(&e.to_string()),
            }
        }
        if std::mem::take(&mut self.tidy)
            && let Err(e) = listen::forget(&self.engine).await
        {
            return self.state_failed(&e.to_string());
        }
        if !self.may_judge() {
            return;
        }
        let Some(mut kept) = self.ledger.take() else { return };
        let before = kept.value.clone();
        let now = self.engine.clock.now();
        let (world, bounds) = (self.world(now), &self.settings.bounds);
        let mut round = self.rounds.round(&world, bounds, &mut kept.value, std::mem::take(&mut self.anew), now);
        for refusal in std::mem::take(&mut round.refused) {
            tell::refused(&self.engine, &refusal);
        }
        if kept.value != before
            && !self.engine.dry_run
            && let Err(e) = self.engine.state.write(&mut kept).await
        {
            // Nothing was begun; what is known of the state may be old.
            for due in &round.due {
                self.rounds.put_back(due);
            }
            self.anew = true;
            return self.state_failed(&e.to_string());
        }
        self.ledger = Some(kept);
        self.take_up(round);
        self.tell_totals();
    }

    fn state_failed(&mut self, why: &str) {
        self.ledger = None;
        self.engine.health.waits(STATE, why);
        self.pause = Some(Instant::now() + STATE_PAUSE);
    }

    fn tell_totals(&self) {
        for (next, count) in self.rounds.totals() {
            self.engine.metrics.subjects(crate::NAME, next, count);
        }
    }

    /// Nothing new is begun; what is under way may end, and what was heard is written down.
    async fn end(mut self) {
        let limit = Instant::now() + LAST_ACTS;
        if let Some(records) = &mut self.records {
            records.close(&mut self.rounds, &self.engine);
        }
        loop {
            let policy = &self.settings.world.policy;
            if let Some(records) = &mut self.records {
                records.begin(&self.rounds, policy, self.complete, self.engine.clock.now());
            }
            if self.acts.is_empty() && self.records.as_ref().is_none_or(Records::is_idle) {
                return;
            }
            tokio::select! {
                Some(done) = self.acts.next() => self.finish(done),
                stir = records::stir(&mut self.records, &mut self.wires) => self.stirred(stir),
                () = tokio::time::sleep_until(limit) => break,
            }
        }
        if !self.acts.is_empty() {
            tracing::warn!("{} acts are cut short; the next leader completes them", self.acts.len());
        }
        if let Some(left) = self.records.as_ref().map(Records::left).filter(|left| *left > 0) {
            tracing::warn!("the uses of {left} namespaces were not written down");
        }
    }
}
