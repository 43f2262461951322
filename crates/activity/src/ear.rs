//! Where everything that is heard comes together, from however many sources.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use caretaker_core::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;

use crate::event::{self, Event, Malformed};
use crate::fold::{Fold, Heard, Note, Told};

/// Hears events, and tells what they come to.
#[derive(Clone)]
pub struct Ear(Arc<Inner>);

struct Inner {
    fold: Mutex<Fold>,
    news: Notify,
    now: fn() -> Timestamp,
    counted: Counted,
    lost: Mutex<Option<String>>,
    loss: Notify,
    closed: AtomicBool,
    complained: Mutex<Option<Instant>>,
    /// What keeps a source from being heard.
    trouble: Mutex<Option<String>>,
    /// When the oldest use was heard that is not written down yet.
    unwritten: Mutex<Option<Instant>>,
}

/// How many events came to what.
#[derive(Debug, Default)]
struct Outcomes(Vec<(&'static str, u64)>);

impl Outcomes {
    fn count(&mut self, outcome: &'static str) {
        match self.0.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, count)) => *count += 1,
            None => self.0.push((outcome, 1)),
        }
    }
}

const BROKEN: &str = "broken";

/// Why a batch was not taken in.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is none.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The process is about to end: whoever sends it should try again elsewhere.
    #[error("about to end; try again")]
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// What was counted, for Prometheus.
#[derive(Debug, Default)]
struct Counted {
    events: Family<Outcome, Counter>,
    batches: Family<Outcome, Counter>,
}

/// What became of a request to the receiver, or of a look at a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// All of it was read.
    Read,
    /// Part of it could not be read.
    Partly,
    /// It was no batch of events.
    Malformed,
    /// It was too large.
    TooLarge,
    /// It broke off, or took too long.
    CutShort,
    /// Whoever sent it may not.
    Unauthorized,
    /// Lines of a log may have been lost.
    Lost,
}

impl Taken {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Partly => "partly",
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
            Self::CutShort => "cut-short",
            Self::Unauthorized => "unauthorized",
            Self::Lost => "lost",
        }
    }
}

impl std::fmt::Debug for Ear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ear").finish_non_exhaustive()
    }
}

impl Ear {
    /// Hears nothing yet.
    #[must_use]
    pub fn new(fold: Fold, now: fn() -> Timestamp) -> Self {
        Self(Arc::new(Inner {
            fold: Mutex::new(fold),
            news: Notify::new(),
            now,
            counted: Counted::default(),
            lost: Mutex::new(None),
            loss: Notify::new(),
            closed: AtomicBool::new(false),
            complained: Mutex::new(None),
            trouble: Mutex::new(None),
            unwritten: Mutex::new(None),
        }))
    }

    /// Has what it counts shown among the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let Counted { events, batches } = &self.0.counted;
        registry.register("audit_events", "Audit events by what became of them", events.clone());
        registry.register("audit_batches", "Batches of audit events by what became of them", batches.clone());
    }

    /// Takes in the body of one request of the API server.
    pub fn batch(&self, body: &[u8]) -> Result<(), Refused> {
        let mut outcomes = Outcomes::default();
        let read = self.hear(&mut outcomes, |each| event::batch(body, each))?;
        let broken = outcomes.0.iter().any(|(outcome, _)| *outcome == BROKEN);
        self.count(match &read {
            Ok(()) if broken => Taken::Partly,
            Ok(()) => Taken::Read,
            Err(_) => Taken::Malformed,
        });
        Ok(read?)
    }

    /// Takes in lines of a log; says how many of them are no events. What is said after the end goes
    /// unheard: a log can be read again.
    pub fn lines<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> u64 {
        let mut outcomes = Outcomes::default();
        let heard = self.hear(&mut outcomes, |each| {
            for line in lines {
                // Anything can be read as an event of which nothing is known.
                each(event::line(line).ok().filter(|event| !event.id.is_empty()).as_ref());
            }
        });
        let broken = outcomes.0.iter().find(|(outcome, _)| *outcome == BROKEN).map_or(0, |(_, count)| *count);
        heard.map_or(0, |()| broken)
    }

    /// Hears whatever `tell` tells, and then says that there is news.
    fn hear<T>(
        &self,
        outcomes: &mut Outcomes,
        tell: impl FnOnce(&mut dyn FnMut(Option<&Event<'_>>)) -> T,
    ) -> Result<T, Refused> {
        let now = (self.0.now)();
        let (told, news, overflown) = {
            let mut fold = self.fold();
            if self.0.closed.load(Ordering::Acquire) {
                return Err(Refused::Closed);
            }
            let told = tell(&mut |event| {
                outcomes.count(match event.map(|event| fold.hear(event, now)) {
                    Some(Heard::Counts) => "counts",
                    Some(Heard::Ignored(reason)) => reason.name(),
                    Some(Heard::Canary) => "canary",
                    None => BROKEN,
                });
            });
            (told, fold.has_news(), fold.take_overflown())
        };
        for (outcome, by) in &outcomes.0 {
            self.0.counted.events.get_or_create(&Outcome { outcome }).inc_by(*by);
        }
        if overflown {
            self.lose("more namespaces were used at once than can be remembered".to_owned());
        }
        if news {
            self.0.news.notify_one();
        }
        Ok(told)
    }

    /// Hears nothing more: what is under way is taken in, whatever comes later is refused.
    pub fn close(&self) {
        let _fold = self.fold();
        self.0.closed.store(true, Ordering::Release);
    }

    /// Tells people what is wrong with what comes, not more often than they can read.
    pub fn complain(&self, why: &str) {
        const OFTEN: Duration = Duration::from_secs(30);
        let mut last = self.0.complained.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= OFTEN) {
            *last = Some(Instant::now());
            tracing::warn!("audit receiver: {why}");
        }
    }

    /// Notes what keeps a source from being heard, if anything does.
    pub fn note_trouble(&self, why: Option<String>) {
        *self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// What keeps a source from being heard.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts what became of a request or a look.
    pub fn count(&self, taken: Taken) {
        self.0.counted.batches.get_or_create(&Outcome { outcome: taken.name() }).inc();
    }

    /// Returns when there is something to write down, or a canary has come back.
    pub async fn news(&self) {
        self.0.news.notified().await;
    }

    /// Events were lost, and nobody knows which.
    pub fn lose(&self, why: String) {
        *self.0.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.0.loss.notify_one();
    }

    /// Notes when the oldest use was heard that is not written down yet.
    pub fn note_unwritten(&self, since: Option<Instant>) {
        *self.0.unwritten.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Whether all that was heard until then is written down.
    #[must_use]
    pub fn is_written(&self, until: Instant) -> bool {
        let unwritten = *self.0.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        unwritten.is_none_or(|since| since > until)
    }

    /// Returns when events were lost, with the reason.
    pub async fn lost(&self) -> String {
        loop {
            if let Some(why) = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return why;
            }
            self.0.loss.notified().await;
        }
    }

    /// What is to be written down since this was asked last, by namespace.
    #[must_use]
    pub fn take(&self) -> Vec<(String, Note)> {
        self.fold().take()
    }

    /// The canaries that came back since this was asked last.
    #[must_use]
    pub fn take_canaries(&self) -> Vec<String> {
        self.fold().take_canaries()
    }

    /// All that is known, by namespace, for people.
    #[must_use]
    pub fn told(&self) -> Vec<Told> {
        self.fold().told()
    }

    fn fold(&self) -> MutexGuard<'_, Fold> {
        self.0.fold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
