//! A keeper at work: hears what the watches tell, makes a round where something has changed or
//! fallen due, and carries out what may be done.
//!
//! Every replica hears; the leader judges and acts. What a round admits is written to the state
//! before anything is begun, so that a successor counts it too. Nothing is begun while anything that
//! it takes to judge rightly is missing: [`Health`](crate::health::Health) says what. Where the
//! keeper allows it, a replica that does not lead looks at everything once a scan, and does what is
//! certain even so.

mod acts;
mod decide;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_core::limits::{Limits, Ledger};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, select_all};
use tokio::time::Instant;

use crate::api::Resource;
use crate::beside::Beside;
use crate::keep::{Carried, Keep};
use crate::lease::{self, Lead};
use crate::round::{Batch, Rounds};
use crate::state::{self, Change, Kept};
use crate::watch::{News, Versioned, watch};
use crate::{Engine, access, tell};

/// How a keeper works.
#[derive(Debug, Clone)]
pub struct Settings<K: Keep> {
    /// What subjects are judged in.
    pub world: K::World,
    /// What holds acts back.
    pub limits: Limits,
    /// At how many sites at a time it acts.
    pub concurrency: usize,
}

/// What is told by a watch.
enum Told<K: Keep> {
    Of(&'static Resource, Box<News<K::Manifest>>),
    State(News<Change>),
}

/// What was done at a site.
struct Done<K: Keep> {
    site: K::Site,
    carried: Carried<K>,
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
pub async fn run<K: Keep, B: Beside<K>>(
    settings: Settings<K>,
    engine: Arc<Engine>,
    mut beside: B,
    stop: impl Future<Output = ()>,
) {
    let alongside = beside.alongside();
    let mut work = Work::new(settings, engine.clone(), beside);
    for source in K::SOURCES {
        engine.health.awaits(&watching(source.plural));
    }
    engine.health.awaits(&watching(state::NAME));
    if engine.lead.is_some() {
        engine.health.awaits(LEASE);
        engine.metrics.leader(K::NAME, false);
    }
    let asking = async move {
        // What a dry run needs, the watches find out; and a question would be a write.
        if !engine.dry_run {
            let (client, health) = (engine.reader.clone(), engine.health.clone());
            access::check(client, K::needs(false), health, "permissions").await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop => {}
        () = work.go() => {}
        () = asking => {}
        () = alongside => {}
    }
    work.end().await;
}

fn watching(what: &str) -> String {
    format!("watching {what}")
}

fn watches<K: Keep>(engine: &Engine) -> BoxStream<'static, Vec<Told<K>>> {
    let mut all: Vec<BoxStream<'static, Told<K>>> = Vec::new();
    for source in K::SOURCES {
        let news = watch(engine.reader.clone(), source, engine.scan);
        all.push(news.map(|news| Told::Of(source, Box::new(news))).boxed());
    }
    all.push(state::changes(engine.reader.clone(), engine.scan).map(Told::State).boxed());
    select_all(all).ready_chunks(AT_ONCE).boxed()
}

/// When the scan after this one is due: up to a tenth later, so that not all replicas scan at once.
fn soon(scan: Duration) -> Instant {
    Instant::now() + scan.mul_f64(1.0 + 0.1 * fastrand::f64())
}

/// Returns then; never, if there is no such time.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

struct Work<K: Keep, B> {
    settings: Settings<K>,
    engine: Arc<Engine>,
    beside: B,
    news: BoxStream<'static, Vec<Told<K>>>,
    rounds: Rounds<K>,
    queue: VecDeque<Batch<K>>,
    acts: FuturesUnordered<BoxFuture<'static, Done<K>>>,
    /// What was admitted lately; none if it must be read.
    ledger: Option<Kept<Ledger>>,
    /// The same, as it was known last.
    known: Option<Ledger>,
    /// What is held back must be looked at again.
    anew: bool,
    led: bool,
    /// Whether it must still be prepared to judge in this lead.
    unprepared: bool,
    /// When this replica is to look at everything although it does not lead; never, if it must not.
    scan_at: Option<Instant>,
    /// Whether a dry run has told that the breaker would open.
    told_open: bool,
    pause: Option<Instant>,
    /// When the journal was last tried again.
    caught_up: Instant,
}

impl<K: Keep, B: Beside<K>> Work<K, B> {
    fn new(settings: Settings<K>, engine: Arc<Engine>, beside: B) -> Self {
        let backs_up = engine.backup.is_some() && K::of_a_backup(&settings.world).is_some();
        Self {
            news: watches(&engine),
            rounds: Rounds::default(),
            queue: VecDeque::new(),
            acts: FuturesUnordered::new(),
            ledger: None,
            known: None,
            anew: true,
            led: false,
            unprepared: false,
            scan_at: backs_up.then(|| soon(engine.scan)),
            told_open: false,
            pause: None,
            caught_up: Instant::now(),
            beside,
            settings,
            engine,
        }
    }

    async fn go(&mut self) {
        let mut lead = self.engine.lead.clone();
        loop {
            self.begin_acts();
            let (clock, health) = (self.engine.clock.clone(), self.engine.health.clone());
            let due = if self.may_judge() { self.rounds.next() } else { None };
            let next = due.into_iter().chain(self.beside.next()).min();
            let scan = self.scan_at.filter(|_| !self.led && self.pause.is_none() && health.is_fine());
            let pause = self.pause;
            let behind = !self.engine.journal.is_complete();
            tokio::select! {
                stir = self.beside.stir() => self.beside.stirred(stir, &mut self.rounds, &self.engine),
                Some(told) = self.news.next() => told.into_iter().for_each(|told| self.hear(told)),
                Some(done) = self.acts.next() => self.finish(done),
                () = clock.over(next) => {}
                () = health.better() => {}
                () = lease::changed(&mut lead) => {}
                () = until(pause) => self.pause = None,
                () = until(scan) => {}
                () = tokio::time::sleep(JOURNAL_PAUSE), if behind => {}
                () = tokio::time::sleep(BEAT) => {}
            }
            self.engine.health.beat();
            if behind && self.caught_up.elapsed() >= JOURNAL_PAUSE {
                self.caught_up = Instant::now();
                tell::catch_up(&self.engine);
            }
            self.follow_lead();
            self.beside.turn(&self.rounds, &self.settings.world, self.engine.clock.now());
            if self.led {
                self.round().await;
            } else {
                self.back_up().await;
            }
        }
    }

    fn hear(&mut self, told: Told<K>) {
        let health = &self.engine.health;
        match told {
            Told::Of(source, news) => {
                match &*news {
                    News::Complete => {
                        health.fine(&watching(source.plural));
                        self.beside.complete(source.kind);
                        // The scan closes the loop: whatever was not told is judged all the same.
                        if K::SOURCES.first().is_some_and(|first| first.kind == source.kind) {
                            self.rounds.hear(source.kind, &news);
                            return self.rounds.doubt();
                        }
                    }
                    News::Failed(why) => health.waits(&watching(source.plural), why),
                    News::Begins | News::Is(_) | News::Gone(_) => {}
                }
                self.rounds.hear(source.kind, &news);
            }
            Told::State(news) => match news {
                News::Is(change) => {
                    self.beside.state_written();
                    if self.ledger.as_ref().is_some_and(|kept| kept.is_older_than(change.version())) {
                        self.ledger = None;
                    }
                }
                News::Gone(_) => self.ledger = None,
                News::Complete => health.fine(&watching(state::NAME)),
                News::Failed(why) => health.waits(&watching(state::NAME), why),
                News::Begins => {}
            },
        }
    }

    /// Whether all is there that it takes to judge rightly as the leader, and to act on it.
    fn may_judge(&self) -> bool {
        self.led && self.beside.is_ready() && self.pause.is_none() && self.engine.health.is_fine()
    }

    /// The world as it is now, for a leader or for whoever backs it up.
    fn world(&self, now: Timestamp) -> Option<K::World> {
        let world = self.beside.world(&self.settings.world, now);
        if self.led { Some(world) } else { K::of_a_backup(&world) }
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
        metrics.leader(K::NAME, leads && lead.is_some());
        // What was judged in another place is judged anew.
        let now = self.engine.clock.now();
        for batch in std::mem::take(&mut self.queue) {
            self.rounds.put_back(&batch, now);
        }
        self.rounds.stand_down();
        (self.ledger, self.known) = (None, None);
        if leads {
            if lead.is_some() {
                tracing::info!("{}: this replica leads", K::NAME);
            }
            self.unprepared = true;
            self.beside.leads(&self.engine);
            self.rounds.doubt();
        } else {
            tracing::info!("{}: this replica does not lead any more", K::NAME);
            self.tell_totals();
            metrics.breaker(K::NAME, false);
        }
    }

    fn tell_totals(&self) {
        for (next, count) in self.rounds.totals() {
            self.engine.metrics.subjects(K::NAME, next, count);
        }
    }

    /// Nothing new is begun; what is under way may end.
    async fn end(mut self) {
        let limit = Instant::now() + LAST_ACTS;
        self.beside.close(&mut self.rounds, &self.engine);
        loop {
            self.beside.turn(&self.rounds, &self.settings.world, self.engine.clock.now());
            if self.acts.is_empty() && self.beside.left().is_none() {
                return;
            }
            tokio::select! {
                Some(done) = self.acts.next() => self.finish(done),
                stir = self.beside.stir() => self.beside.stirred(stir, &mut self.rounds, &self.engine),
                () = tokio::time::sleep_until(limit) => break,
            }
        }
        if !self.acts.is_empty() {
            tracing::warn!("{} acts are cut short; the next leader completes them", self.acts.len());
        }
        if let Some(left) = self.beside.left() {
            tracing::warn!("{left}");
        }
    }
}
