//! Leadership: one Lease a keeper, held by one process at a time.
//!
//! As client-go does it. A holder renews by a replace with the resourceVersion it has read. Whether
//! another holder is alive is judged by the renewals that are observed, on this machine's monotonic
//! clock: clocks of different machines need not agree. A holder that cannot renew stops leading well
//! before another process may take over, so that there are never two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caretaker_core::{Timestamp, time};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Clock;

/// How long leadership lasts, in client-go's words.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// A Lease without an observed renewal for this long may be taken.
    pub lease_duration: Duration,
    /// Without a renewal for this long, a holder stops: shorter than `lease_duration` by more than a
    /// request may last.
    pub renew_deadline: Duration,
    /// How often the Lease is read.
    pub retry_period: Duration,
}

impl Timing {
    /// In client-go's proportions: 15, 10 and 2 seconds. However long a Lease, one that was handed
    /// back is taken soon.
    #[must_use]
    pub fn of(lease: Duration) -> Self {
        Self {
            lease_duration: lease,
            renew_deadline: lease * 2 / 3,
            retry_period: (lease * 2 / 15).min(Duration::from_secs(2)),
        }
    }

    /// How long a call of a holder may last, so that it ends before another process can hold the Lease.
    #[must_use]
    pub fn call(&self) -> Duration {
        (self.lease_duration.saturating_sub(self.renew_deadline) * 4 / 5).min(Duration::from_secs(10))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::of(Duration::from_secs(15))
    }
}

/// However long a Lease lasts, its holder reads it this often: somebody may have deleted it.
const READ_INTERVAL: Duration = Duration::from_secs(5);

/// A process that wants to lead.
pub struct Candidate {
    /// A client without retries: a call that is repeated unseen could be made after the lead is
    /// lost.
    pub client: Client,
    /// Where the Lease is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Who this is; different for every process.
    pub identity: String,
    /// How long leadership lasts.
    pub timing: Timing,
    /// The time of day, which the Lease shows to people.
    pub clock: Clock,
}

/// Annotation on the Lease: when a leader was last seen before the present holder took it, until the
/// holder has acknowledged that gap. A successor of a holder that never did inherits it.
pub const LAST_LEADER_SEEN: &str = "caretaker.dev/last-leader-seen";

/// Whether this process leads.
#[derive(Debug, Clone)]
pub struct LeaderHandle {
    status: watch::Receiver<Status>,
    /// What the time without a leader means is persisted.
    acknowledged: Arc<AtomicBool>,
    /// Until when a keeper of this process led with the same Lease before.
    led_until: Option<Timestamp>,
}

#[derive(Debug, Clone, Default)]
struct Status {
    /// Until when it leads, if it does not renew.
    until: Option<Instant>,
    /// Whether the Lease was ever read.
    observed: bool,
    /// Why the Lease could not be read or written.
    error: Option<String>,
    /// When the leader before this one was last seen.
    previous: Option<Timestamp>,
}

impl LeaderHandle {
    /// True while no other process can be leading. Ask right before each write.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.status.borrow().until.is_some_and(|until| Instant::now() < until)
    }

    /// True once the Lease was read, whichever process holds it.
    #[must_use]
    pub fn observed(&self) -> bool {
        self.status.borrow().observed
    }

    /// Why the Lease could not be read or written, the last time it was tried.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.status.borrow().error.clone()
    }

    /// When a leader was last seen before this process became the leader, by the time in the Lease, which
    /// is from the clock of another machine, or by the renewals that this process has observed;
    /// `None` if there never was one. A successor gets the same answer until the gap is
    /// [acknowledged](Self::acknowledge_gap).
    #[must_use]
    pub fn previous_leader_seen(&self) -> Option<Timestamp> {
        let before = self.led_until.filter(|_| self.acknowledged.load(Ordering::Relaxed));
        before.or_else(|| self.status.borrow().previous)
    }

    /// The handle for a keeper that starts again in this process, with a Lease that was kept: until `now` the same
    /// process led, if it does, and there was no gap but one that is not acknowledged yet.
    #[must_use]
    pub fn kept(&self, now: Timestamp) -> Self {
        Self { led_until: self.is_leader().then_some(now), ..self.clone() }
    }

    /// The leaderless gap is persisted; the annotation is cleared at the next renewal.
    pub fn acknowledge_gap(&self) {
        self.acknowledged.store(true, Ordering::Relaxed);
    }

    /// Returns when leadership was won, renewed or lost.
    pub async fn changed(&mut self) {
        // An error means that the candidate has stopped; nothing changes any more.
        if self.status.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns when leadership was won, renewed or lost; never, where there is no Lease. Ask the same handle
/// again: a new clone takes everything before it for a change.
pub async fn changed(leadership: &mut Option<LeaderHandle>) {
    match leadership {
        Some(leadership) => leadership.changed().await,
        None => std::future::pending().await,
    }
}

/// The holder that was observed last, and since when nothing has changed.
struct ObservedLease {
    version: String,
    holder: String,
    lasts: Duration,
    at: Instant,
    /// When a leader was last seen: by the time in the Lease, or by the clock of this machine if that is
    /// earlier and this process has observed the renewal.
    last_seen: Option<Timestamp>,
    /// When the Lease was last read, by the clock of this machine.
    read_at: Timestamp,
}

impl ObservedLease {
    /// True if nobody renewed for as long as the Lease lasts.
    fn is_expired(&self) -> bool {
        self.holder.is_empty() || self.at.elapsed() > self.lasts
    }
}

impl Candidate {
    /// Campaigns until `stop` resolves; then releases the Lease and returns.
    pub fn campaign(
        self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> (LeaderHandle, impl Future<Output = ()> + Send + 'static) {
        let (status, handle) = watch::channel(Status::default());
        let acknowledged = Arc::new(AtomicBool::new(false));
        let acknowledge = acknowledged.clone();
        let campaign = async move {
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
            let mut seen: Option<ObservedLease> = None;
            let mut next = Instant::now();
            let mut stop = std::pin::pin!(stop);
            loop {
                tokio::select! {
                    biased;
                    () = &mut stop => break,
                    () = tokio::time::sleep_until(next) => {}
                }
                let asked = Instant::now();
                let answer = tokio::time::timeout(
                    self.timing.retry_period,
                    self.try_acquire(&leases, &mut seen, acknowledged.load(Ordering::Relaxed)),
                )
                .await;
                next = asked + self.timing.retry_period;
                let error = match answer {
                    Ok(Ok(true)) => {
                        // Once more before it runs out, should the next renewal fail.
                        next = asked + (self.timing.renew_deadline / 2).clamp(self.timing.retry_period, READ_INTERVAL);
                        let until = Some(asked + self.timing.renew_deadline);
                        status.send_modify(|status| {
                            // The last observation is from before this renewal.
                            if status.until.is_none_or(|until| until < asked) {
                                status.previous = seen.as_ref().and_then(|seen| seen.last_seen);
                                acknowledged.store(false, Ordering::Relaxed);
                            }
                            (status.until, status.observed, status.error) = (until, true, None);
                        });
                        continue;
                    }
                    Ok(Ok(false)) => {
                        status.send_replace(Status { observed: true, ..Status::default() });
                        continue;
                    }
                    Ok(Err(e)) => format!("{}{}", crate::format_error(&e), remedy(&e)),
                    Err(_) => "the API server does not answer in time".to_owned(),
                };
                // It is not known who leads; leadership that was held expires by itself.
                let error = format!("Lease {}/{}: {error}", self.namespace, self.name);
                status.send_modify(|status| status.error = Some(error));
            }
            let held = status.borrow().until.is_some();
            status.send_replace(Status::default());
            if held {
                // A Lease that cannot be released expires.
                let _ = tokio::time::timeout(
                    self.timing.retry_period,
                    self.release(&leases, acknowledged.load(Ordering::Relaxed)),
                )
                .await;
            }
        };
        (LeaderHandle { status: handle, acknowledged: acknowledge, led_until: None }, campaign)
    }

    /// Reads the Lease once and takes or renews it if possible; true if it is ours now.
    async fn try_acquire(
        &self,
        leases: &Api<Lease>,
        seen: &mut Option<ObservedLease>,
        acknowledged: bool,
    ) -> Result<bool, kube::Error> {
        let Some(lease) = leases.get_opt(&self.name).await? else {
            // Somebody deleted it; its holder may not know yet.
            if seen.as_ref().is_some_and(|s| s.holder != self.identity && !s.is_expired()) {
                return Ok(false);
            }
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(LeaseSpec::default(), true)) };
            return won(leases.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let read_at = self.clock.now();
        match &mut *seen {
            Some(before) if before.version == version => before.read_at = read_at,
            before => {
                let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
                let lasts = Duration::from_secs(lasts);
                let renewed = spec.renew_time.as_ref().map(|time| time.0);
                // The clock of the holder may be ahead. It has renewed at some time after the read before.
                let observed = before.as_ref().map(|before| before.read_at).filter(|_| renewed.is_some());
                let last_seen = last_leader_seen(&lease).into_iter().chain(renewed).chain(observed).min();
                let (holder, at) = (holder.clone(), Instant::now());
                *before = Some(ObservedLease { version, holder, lasts, at, last_seen, read_at });
            }
        }
        let ours = holder == self.identity;
        if !ours && seen.as_ref().is_some_and(|s| !s.is_expired()) {
            return Ok(false);
        }
        let mut metadata = lease.metadata;
        let annotations = metadata.annotations.get_or_insert_default();
        if ours && acknowledged {
            annotations.remove(LAST_LEADER_SEEN);
        } else if let Some(last_seen) = seen.as_ref().and_then(|seen| seen.last_seen).filter(|_| !ours) {
            annotations.insert(LAST_LEADER_SEEN.to_owned(), last_seen.to_string());
        }
        let next = Lease { metadata, spec: Some(self.spec(spec, !ours)) };
        won(leases.replace(&self.name, &PostParams::default(), &next).await)
    }

    /// The spec with us as the holder; `acquired` if we were not before.
    fn spec(&self, before: LeaseSpec, acquired: bool) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            // Rounded up: no process may take it for shorter than it is.
            lease_duration_seconds: i32::try_from(self.timing.lease_duration.as_millis().div_ceil(1_000)).ok(),
            acquire_time: if acquired { Some(now.clone()) } else { before.acquire_time.clone() },
            lease_transitions: Some(
                before.lease_transitions.unwrap_or(0) + i32::from(acquired && before.holder_identity.is_some()),
            ),
            renew_time: Some(now),
            ..before
        }
    }

    async fn release(&self, leases: &Api<Lease>, acknowledged: bool) -> Result<(), kube::Error> {
        let mut lease = leases.get(&self.name).await?;
        if acknowledged {
            lease.metadata.annotations.get_or_insert_default().remove(LAST_LEADER_SEEN);
        }
        let spec = lease.spec.unwrap_or_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            let spec = LeaseSpec { holder_identity: Some(String::new()), lease_duration_seconds: Some(1), ..spec };
            let free = Lease { metadata: lease.metadata, spec: Some(spec) };
            leases.replace(&self.name, &PostParams::default(), &free).await?;
        }
        Ok(())
    }
}

/// What a person can do about an error.
fn remedy(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else { return String::new() };
    match status.details.as_ref().filter(|details| status.code == 404 && details.kind == "namespaces") {
        Some(missing) => format!("; run kubectl create namespace {}, or start with --create-namespace", missing.name),
        None => String::new(),
    }
}

fn last_leader_seen(lease: &Lease) -> Option<Timestamp> {
    time::parse(lease.metadata.annotations.as_ref()?.get(LAST_LEADER_SEEN)?)
}

/// A write that came second means that another process leads.
fn won<T>(written: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(e) if crate::projection::is_conflict(&e) => Ok(false),
        Err(e) => Err(e),
    }
}
