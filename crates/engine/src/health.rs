//! What a process reports about itself: whether it lives, what it waits for, what it has counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// A control loop without a heartbeat for this long hangs: it has one at least once a minute.
const HANG: Duration = Duration::from_mins(5);

const PENDING: &str = "not yet";

/// The parts that a keeper needs, and what each of them waits for.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    known: Mutex<Known>,
    improved: Notify,
    recheck: Notify,
}

#[derive(Debug)]
struct Known {
    parts: BTreeMap<String, Option<String>>,
    /// Facts about a part that block nothing.
    notes: BTreeMap<String, String>,
    heartbeat: Instant,
}

impl Default for Health {
    fn default() -> Self {
        let known = Mutex::new(Known { parts: BTreeMap::new(), notes: BTreeMap::new(), heartbeat: Instant::now() });
        Self(Arc::new(Inner { known, improved: Notify::new(), recheck: Notify::new() }))
    }
}

impl Health {
    /// The part is not ready yet, as is normal at the start.
    pub fn set_pending(&self, part: &str) {
        self.known().parts.insert(part.to_owned(), Some(PENDING.to_owned()));
    }

    /// The part is blocked, for this reason.
    pub fn set_blocked(&self, part: &str, why: impl Into<String>) {
        let why = why.into();
        let before = self.known().parts.insert(part.to_owned(), Some(why.clone()));
        if before.flatten().as_deref() != Some(&why) {
            tracing::warn!("{part}: waiting: {why}");
        }
    }

    /// The part is ready.
    pub fn set_ready(&self, part: &str) {
        let before = self.known().parts.insert(part.to_owned(), None).flatten();
        if let Some(why) = before {
            if why != PENDING {
                tracing::info!("{part}: ready again");
            }
            self.0.improved.notify_one();
        }
    }

    /// The part is ready; it is not mentioned if it never was blocked.
    pub fn set_unblocked(&self, part: &str) {
        let was_blocked = self.known().parts.get(part).is_some_and(Option::is_some);
        if was_blocked {
            self.set_ready(part);
        }
    }

    /// Sets or removes a fact about a part that blocks nothing.
    pub fn set_note(&self, part: &str, note: Option<String>) {
        let mut known = self.known();
        match note {
            Some(note) => known.notes.insert(part.to_owned(), note),
            None => known.notes.remove(part),
        };
    }

    /// Forgets every part and every note: the keeper starts again.
    pub fn clear(&self) {
        let mut known = self.known();
        (known.parts, known.notes) = (BTreeMap::new(), BTreeMap::new());
        known.heartbeat = Instant::now();
    }

    /// True if every part is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let known = self.known();
        !known.parts.is_empty() && known.parts.values().all(Option::is_none)
    }

    /// What each part that is not ready waits for.
    #[must_use]
    pub fn blockers(&self) -> Vec<String> {
        let known = self.known();
        known.parts.iter().filter_map(|(part, why)| Some(format!("{part}: {}", why.as_ref()?))).collect()
    }

    /// The facts that block nothing, each with its part.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.known().notes.iter().map(|(part, note)| format!("{part}: {note}")).collect()
    }

    /// Returns when a part became ready that was not.
    pub async fn improved(&self) {
        self.0.improved.notified().await;
    }

    /// A call was not allowed: the rights are checked again.
    pub fn request_recheck(&self) {
        self.0.recheck.notify_one();
    }

    /// Returns when somebody requests a recheck.
    pub async fn recheck_requested(&self) {
        self.0.recheck.notified().await;
    }

    /// The control loop went round.
    pub fn heartbeat(&self) {
        self.known().heartbeat = Instant::now();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line for each part; `whose` comes before it.
    fn lines(&self, whose: &str) -> String {
        let known = self.known();
        let line = |(part, why): (&String, &Option<String>)| match why {
            Some(why) => format!("waiting  {whose}{part}: {why}\n"),
            None => format!("ok       {whose}{part}\n"),
        };
        let notes = known.notes.iter().map(|(part, note)| format!("note     {whose}{part}: {note}\n"));
        // A note about a part says more than that it is ready.
        let parts = known.parts.iter().filter(|(part, why)| why.is_some() || !known.notes.contains_key(*part));
        parts.map(line).chain(notes).collect()
    }
}

/// The keepers of a process, by name.
pub type Keepers = Vec<(&'static str, Health)>;

/// What a process serves about itself. Its keepers may change while it runs.
#[derive(Debug, Clone, Default)]
pub struct Served {
    keepers: Arc<Mutex<Keepers>>,
    /// What concerns all keepers. Its notes are shown; it is never waited for.
    pub process: Health,
}

impl From<Keepers> for Served {
    fn from(keepers: Keepers) -> Self {
        Self { keepers: Arc::new(Mutex::new(keepers)), process: Health::default() }
    }
}

impl Served {
    /// Serves these keepers from now on.
    pub fn set_keepers(&self, keepers: Keepers) {
        *self.keepers.lock().unwrap_or_else(PoisonError::into_inner) = keepers;
    }

    fn keepers(&self) -> Keepers {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn readiness(&self) -> (StatusCode, String) {
        let (code, text) = readiness(&self.keepers());
        (code, text + &self.process.lines(""))
    }
}

/// Whether every control loop has a heartbeat.
fn liveness(keepers: &Keepers) -> (StatusCode, String) {
    let still = keepers.iter().map(|(_, health)| health.known().heartbeat.elapsed()).max().unwrap_or_default();
    if still < HANG {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("the control loop hangs for {} s\n", still.as_secs()))
    }
}

/// Whether every keeper is ready.
fn readiness(keepers: &Keepers) -> (StatusCode, String) {
    let fine = keepers.iter().all(|(_, health)| health.is_ready());
    let code = if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // A single keeper need not be named.
    let whose = |name: &str| if keepers.len() > 1 { format!("{name}: ") } else { String::new() };
    (code, keepers.iter().map(|(name, health)| health.lines(&whose(name))).collect())
}

/// What `GET /` says: what there is to ask for.
const PATHS: &str = "\
Caretaker
  /healthz    whether every keeper is alive
  /readyz     what each keeper waits for
  /metrics    what was done and refused, for Prometheus
  /log-level  what is logged; PUT changes it, only through a port-forward
  /activity   who used which namespace; only through a port-forward, and with activity from audit events
";

/// `GET` and `PUT /log-level`: the levels of the log lines, and how to change them until the process ends. A change is
/// served to connections from inside the pod alone: those of `kubectl port-forward`, for which the API server has
/// authenticated the user and checked that the user may forward ports.
///
/// `levels` returns the levels, after it has changed them if it is given others.
pub fn log_level_route(
    levels: impl Fn(Option<&str>) -> Result<String, String> + Clone + Send + Sync + 'static,
) -> Router {
    let show = levels.clone();
    let change = async move |ConnectInfo(client): ConnectInfo<SocketAddr>, text: String| {
        if !client.ip().to_canonical().is_loopback() {
            let advice = "the level is changed by connections from inside the pod alone: use kubectl port-forward\n";
            return (StatusCode::FORBIDDEN, advice.to_owned());
        }
        match levels(Some(&text)) {
            Ok(levels) => {
                tracing::info!("the log level is {levels} until the process ends");
                (StatusCode::OK, levels + "\n")
            }
            Err(why) => (StatusCode::BAD_REQUEST, why + "\n"),
        }
    };
    let show = async move || show(None).unwrap_or_default() + "\n";
    Router::new().route("/log-level", get(show).put(change))
}

/// Serves `/`, `/healthz`, `/readyz` and `/metrics`, and the routes of `more`, until the process ends. The routes
/// may extract the address of the client, as `ConnectInfo<SocketAddr>`.
pub async fn serve(
    listener: TcpListener,
    served: impl Into<Served>,
    metrics: Arc<Metrics>,
    more: Router,
) -> std::io::Result<()> {
    const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let served = served.into();
    let alive = served.clone();
    let app = more
        .route("/", get(async || PATHS))
        .route("/healthz", get(move || async move { liveness(&alive.keepers()) }))
        .route("/readyz", get(move || async move { served.readiness() }))
        .route("/metrics", get(move || async move { ([(CONTENT_TYPE, METRICS)], metrics.encode()) }));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}

#[cfg(test)]
mod tests {
    use axum::extract::connect_info::MockConnectInfo;

    use super::*;

    fn keepers() -> (Health, Health) {
        let (one, other) = (Health::default(), Health::default());
        one.set_ready("lease");
        other.set_blocked("lease", "nobody answers");
        (one, other)
    }

    /// The answer to a request for another log level from this address.
    async fn change_level(client: [u8; 4]) -> (StatusCode, String) {
        let levels = |change: Option<&str>| match change {
            Some("wrong") => Err("no level".to_owned()),
            change => Ok(change.unwrap_or("info").to_owned()),
        };
        let route = log_level_route(levels).layer(MockConnectInfo(SocketAddr::from((client, 7))));
        let request = http::Request::put("/log-level").body("debug".into()).unwrap();
        let answer = tower::ServiceExt::<http::Request<axum::body::Body>>::oneshot(route, request).await.unwrap();
        let (status, body) = (answer.status(), axum::body::to_bytes(answer.into_body(), 1_000).await.unwrap());
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_log_level_is_changed_from_inside_the_pod_alone() {
        assert_eq!(change_level([127, 0, 0, 1]).await, (StatusCode::OK, "debug\n".to_owned()));
        let (status, text) = change_level([10, 0, 0, 1]).await;
        assert!(status == StatusCode::FORBIDDEN && text.contains("port-forward"), "{status} {text}");
    }

    #[test]
    fn a_process_is_ready_when_all_of_its_keepers_are() {
        let (one, other) = keepers();
        let both = vec![("toys", one), ("books", other.clone())];

        let (code, text) = readiness(&both);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "ok       toys: lease\nwaiting  books: lease: nobody answers\n");

        other.set_ready("lease");
        assert_eq!(readiness(&both), (StatusCode::OK, "ok       toys: lease\nok       books: lease\n".to_owned()));
    }

    #[test]
    fn one_keeper_alone_does_not_say_whose_its_parts_are() {
        let (one, _) = keepers();

        assert_eq!(readiness(&vec![("toys", one)]), (StatusCode::OK, "ok       lease\n".to_owned()));
    }

    #[test]
    fn what_concerns_the_process_is_a_note_and_keeps_nobody_from_being_ready() {
        let (one, other) = keepers();
        let served = Served::from(vec![("toys", one)]);
        served.process.set_note("settings", Some("unknown key".to_owned()));
        assert_eq!(served.readiness(), (StatusCode::OK, "ok       lease\nnote     settings: unknown key\n".to_owned()));

        served.set_keepers(vec![("books", other)]);
        assert_eq!(served.readiness().0, StatusCode::SERVICE_UNAVAILABLE, "it has other keepers now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_lives_as_long_as_its_slowest_loop_goes_round() {
        let (one, other) = keepers();
        let both = vec![("toys", one.clone()), ("books", other)];
        tokio::time::advance(HANG).await;
        one.heartbeat();

        assert_eq!(liveness(&both).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(liveness(&vec![("toys", one)]).0, StatusCode::OK);
    }
}
