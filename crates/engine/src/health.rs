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

    /// What there is to say about each part; `whose` comes before it.
    fn lines(&self, whose: &str) -> String {
        let known = self.known();
        let line = |(part, why): (&String, &Option<String>)| match why {
            Some(why) => format!("waiting  {whose}{part}: {why}\n"),
            None => format!("ok       {whose}{part}\n"),
        };
        let notes = known.notes.iter().map(|(part, note)| format!("note     {whose}{part}: {note}\n"));
        // What is noted about a part says more than that nobody waits for it.
        let parts = known.parts.iter().filter(|(part, why)| why.is_some() || !known.notes.contains_key(*part));
        parts.map(line).chain(notes).collect()
    }
}

/// The keepers of a process, by name.
pub type Keepers = Vec<(&'static str, Health)>;

/// Whether every loop goes round.
fn lives(keepers: &Keepers) -> (StatusCode, String) {
    let still = keepers.iter().map(|(_, health)| health.known().beat.elapsed()).max().unwrap_or_default();
    if still < STILL {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("its loop hangs for {} s\n", still.as_secs()))
    }
}

/// Whether nobody waits for anything.
fn ready(keepers: &Keepers) -> (StatusCode, String) {
    let fine = keepers.iter().all(|(_, health)| health.is_fine());
    let code = if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // One alone need not say whose it is.
    let whose = |name: &str| if keepers.len() > 1 { format!("{name}: ") } else { String::new() };
    (code, keepers.iter().map(|(name, health)| health.lines(&whose(name))).collect())
}

/// Answers `/healthz`, `/readyz` and `/metrics`, and what there is `more`, until the end.
pub async fn serve(
    listener: TcpListener,
    keepers: Keepers,
    metrics: Arc<Metrics>,
    more: Router,
) -> std::io::Result<()> {
    const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let alive = keepers.clone();
    let app = more
        .route("/healthz", get(move || async move { lives(&alive) }))
        .route("/readyz", get(move || async move { ready(&keepers) }))
        .route("/metrics", get(move || async move { ([(CONTENT_TYPE, METRICS)], metrics.text()) }));
    axum::serve(listener, app).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepers() -> (Health, Health) {
        let (one, other) = (Health::default(), Health::default());
        one.fine("lease");
        other.waits("lease", "nobody answers");
        (one, other)
    }

    #[test]
    fn a_process_is_ready_when_all_of_its_keepers_are() {
        let (one, other) = keepers();
        let both = vec![("toys", one), ("books", other.clone())];

        let (code, text) = ready(&both);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "ok       toys: lease\nwaiting  books: lease: nobody answers\n");

        other.fine("lease");
        assert_eq!(ready(&both), (StatusCode::OK, "ok       toys: lease\nok       books: lease\n".to_owned()));
    }

    #[test]
    fn one_keeper_alone_does_not_say_whose_its_parts_are() {
        let (one, _) = keepers();

        assert_eq!(ready(&vec![("toys", one)]), (StatusCode::OK, "ok       lease\n".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_lives_as_long_as_its_slowest_loop_goes_round() {
        let (one, other) = keepers();
        let both = vec![("toys", one.clone()), ("books", other)];
        tokio::time::advance(STILL).await;
        one.beat();

        assert_eq!(lives(&both).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(lives(&vec![("toys", one)]).0, StatusCode::OK);
    }
}
