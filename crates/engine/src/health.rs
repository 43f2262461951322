//! What a process says about itself: whether it lives, what it waits for, what it has counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// A loop that was not round for so long hangs: it goes round at least once a minute.
const STILL: Duration = Duration::from_mins(5);

const NOT_YET: &str = "not yet";

/// What is waited for, by what it is needed for.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    known: Mutex<Known>,
    better: Notify,
    doubt: Notify,
}

#[derive(Debug)]
struct Known {
    parts: BTreeMap<String, Option<String>>,
    /// What is worth knowing and keeps nobody waiting.
    notes: BTreeMap<String, String>,
    beat: Instant,
}

impl Default for Health {
    fn default() -> Self {
        let known = Mutex::new(Known { parts: BTreeMap::new(), notes: BTreeMap::new(), beat: Instant::now() });
        Self(Arc::new(Inner { known, better: Notify::new(), doubt: Notify::new() }))
    }
}

impl Health {
    /// This part is not there yet, as is normal at the start.
    pub fn awaits(&self, part: &str) {
        self.known().parts.insert(part.to_owned(), Some(NOT_YET.to_owned()));
    }

    /// This part waits for something.
    pub fn waits(&self, part: &str, why: impl Into<String>) {
        let why = why.into();
        let before = self.known().parts.insert(part.to_owned(), Some(why.clone()));
        if before.flatten().as_deref() != Some(&why) {
            tracing::warn!("{part}: waiting: {why}");
        }
    }

    /// This part is as it should be.
    pub fn fine(&self, part: &str) {
        let before = self.known().parts.insert(part.to_owned(), None).flatten();
        if let Some(why) = before {
            if why != NOT_YET {
                tracing::info!("{part}: fine again");
            }
            self.0.better.notify_one();
        }
    }

    /// This is worth knowing of a part, and keeps nobody waiting; nothing takes it back.
    pub fn note(&self, part: &str, note: Option<String>) {
        let mut known = self.known();
        match note {
            Some(note) => known.notes.insert(part.to_owned(), note),
            None => known.notes.remove(part),
        };
    }

    /// Whether nothing is waited for.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        let known = self.known();
        !known.parts.is_empty() && known.parts.values().all(Option::is_none)
    }

    /// What is waited for, part by part.
    #[must_use]
    pub fn waiting(&self) -> Vec<String> {
        let known = self.known();
        known.parts.iter().filter_map(|(part, why)| Some(format!("{part}: {}", why.as_ref()?))).collect()
    }

    /// Returns when something is fine that was not.
    pub async fn better(&self) {
        self.0.better.notified().await;
    }

    /// Something was not allowed: somebody should ask again what is.
    pub fn doubt(&self) {
        self.0.doubt.notify_one();
    }

    /// Returns when somebody doubts.
    pub async fn doubted(&self) {
        self.0.doubt.notified().await;
    }

    /// The loop went round.
    pub fn beat(&self) {
        self.known().beat = Instant::now();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lives(&self) -> (StatusCode, String) {
        let still = self.known().beat.elapsed();
        if still < STILL {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, format!("its loop hangs for {} s\n", still.as_secs()))
        }
    }

    fn ready(&self) -> (StatusCode, String) {
        let known = self.known();
        let line = |(part, why): (&String, &Option<String>)| match why {
            Some(why) => format!("waiting  {part}: {why}\n"),
            None => format!("ok       {part}\n"),
        };
        let fine = !known.parts.is_empty() && known.parts.values().all(Option::is_none);
        let code = if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let notes = known.notes.iter().map(|(part, note)| format!("note     {part}: {note}\n"));
        // What is noted about a part says more than that nobody waits for it.
        let parts = known.parts.iter().filter(|(part, why)| why.is_some() || !known.notes.contains_key(*part));
        (code, parts.map(line).chain(notes).collect())
    }
}

/// Answers `/healthz`, `/readyz` and `/metrics`, and what there is `more`, until the end.
pub async fn serve(listener: TcpListener, health: Health, metrics: Arc<Metrics>, more: Router) -> std::io::Result<()> {
    const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let alive = health.clone();
    let app = more
        .route("/healthz", get(move || async move { alive.lives() }))
        .route("/readyz", get(move || async move { health.ready() }))
        .route("/metrics", get(move || async move { ([(CONTENT_TYPE, METRICS)], metrics.text()) }));
    axum::serve(listener, app).await
}
