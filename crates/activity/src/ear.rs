//! Where everything that is heard comes together, from however many sources.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
        }))
    }

    /// Has what it counts shown among the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let Counted { events, batches } = &self.0.counted;
        registry.register("audit_events", "Audit events by what became of them", events.clone());
        registry.register("audit_batches", "Batches of audit events by what became of them", batches.clone());
    }

    /// Takes in the body of one request of the API server.
    pub fn batch(&self, body: &[u8]) -> Result<(), Malformed> {
        let batch = match event::batch(body) {
            Ok(batch) => batch,
            Err(e) => {
                self.count(Taken::Malformed);
                return Err(e);
            }
        };
        self.hear(&batch.events, batch.broken);
        self.count(if batch.broken == 0 { Taken::Read } else { Taken::Partly });
        Ok(())
    }

    /// Takes in lines of a log; says how many of them are no events.
    pub fn lines<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut events = Vec::new();
        let mut broken = 0;
        for line in lines {
            match event::line(line) {
                Ok(event) => events.push(event),
                Err(_) => broken += 1,
            }
        }
        self.hear(&events, broken);
        broken
    }

    fn hear(&self, events: &[Event<'_>], broken: usize) {
        let now = (self.0.now)();
        let mut outcomes: Vec<(&'static str, u64)> = Vec::new();
        let mut count = |outcome: &'static str, by: u64| match outcomes.iter_mut().find(|(known, _)| *known == outcome)
        {
            Some((_, count)) => *count += by,
            None => outcomes.push((outcome, by)),
        };
        if broken > 0 {
            count("broken", broken as u64);
        }
        let news = {
            let mut fold = self.fold();
            for event in events {
                count(
                    match fold.hear(event, now) {
                        Heard::Counts => "counts",
                        Heard::Ignored(reason) => reason.name(),
                        Heard::Canary => "canary",
                    },
                    1,
                );
            }
            fold.has_news()
        };
        for (outcome, by) in outcomes {
            self.0.counted.events.get_or_create(&Outcome { outcome }).inc_by(by);
        }
        if news {
            self.0.news.notify_one();
        }
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
