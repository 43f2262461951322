//! Leadership: one Lease a keeper, held by one process at a time.
//!
//! As client-go does it. A holder renews by a replace with the resourceVersion it has seen. Whether
//! another holder is still there is judged by the renewals that are seen, on this machine's own
//! steady clock: clocks of different machines need not agree. A holder that cannot renew stops
//! being one well before anybody else may take over, so that there are never two.

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

/// How long leadership lasts.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// A Lease that nobody was seen to renew for so long may be taken.
    pub lease: Duration,
    /// Without a renewal for so long, a holder stops: shorter than `lease` by more than a request
    /// may last.
    pub renew: Duration,
    /// How often the Lease is looked at.
    pub retry: Duration,
}

impl Timing {
    /// In client-go's proportions: 15, 10 and 2 seconds. However long a Lease, one that was handed
    /// back is taken soon.
    #[must_use]
    pub fn of(lease: Duration) -> Self {
        Self { lease, renew: lease * 2 / 3, retry: (lease * 2 / 15).min(Duration::from_secs(2)) }
    }

    /// How long a call of a holder may last, so that it is over before anybody else holds the Lease.
    #[must_use]
    pub fn call(&self) -> Duration {
        (self.lease.saturating_sub(self.renew) * 4 / 5).min(Duration::from_secs(10))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::of(Duration::from_secs(15))
    }
}

/// However long a Lease lasts, its holder looks at it this often: somebody may have deleted it.
const LOOK: Duration = Duration::from_secs(5);

/// Somebody who wants to lead.
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

/// Annotation on the Lease: when somebody was last known to lead before its holder took it, for as
/// long as the holder has not dealt with that. Whoever takes over from one that never did inherits it.
pub const UNLED_SINCE: &str = "caretaker.dev/unled-since";

/// Whether this process leads.
#[derive(Debug, Clone)]
pub struct Lead(watch::Receiver<Standing>, Arc<AtomicBool>);

#[derive(Debug, Clone, Default)]
struct Standing {
    /// Until when it leads, unless it renews.
    until: Option<Instant>,
    /// Whether it ever found out.
    known: bool,
    /// Why it could not find out.
    trouble: Option<String>,
    /// When whoever led before was last heard of.
    before: Option<Timestamp>,
}

impl Lead {
    /// True while nobody else can be leading. Ask right before each write.
    #[must_use]
    pub fn held(&self) -> bool {
        self.0.borrow().until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the Lease was seen, whoever holds it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.0.borrow().known
    }

    /// Why the Lease could not be read or written, the last time it was tried.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.0.borrow().trouble.clone()
    }

    /// When somebody was last known to lead before this lead was won, by the time in the Lease;
    /// `None` if nobody ever did. A successor is told the same until it is [settled](Self::settle).
    #[must_use]
    pub fn before(&self) -> Option<Timestamp> {
        self.0.borrow().before
    }

    /// What the time before this lead means is written down: a successor need not know of it.
    pub fn settle(&self) {
        self.1.store(true, Ordering::Relaxed);
    }

    /// Returns when the lead was won, renewed or lost.
    pub async fn changed(&mut self) {
        // An error means that the candidate has stopped; nothing changes any more.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns when the lead was won, renewed or lost; never, where nobody needs to lead. Ask the same one
/// again: one that was only just cloned takes everything before for news.
pub async fn changed(lead: &mut Option<Lead>) {
    match lead {
        Some(lead) => lead.changed().await,
        None => std::future::pending().await,
    }
}

/// The holder that was seen last, and since when nothing has changed.
struct Seen {
    version: String,
    holder: String,
    lasts: Duration,
    at: Instant,
    /// When somebody was last known to lead, by what it says itself.
    before: Option<Timestamp>,
}

impl Seen {
    /// Whether nobody was heard of for as long as the Lease lasts.
    fn is_silent(&self) -> bool {
        self.holder.is_empty() || self.at.elapsed() > self.lasts
    }
}

impl Candidate {
    /// Starts to campaign until `stop` rings; then hands the Lease back and returns.
    pub fn campaign(
        self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> (Lead, impl Future<Output = ()> + Send + 'static) {
        let (standing, lead) = watch::channel(Standing::default());
        let settled = Arc::new(AtomicBool::new(false));
        let dealt_with = settled.clone();
        let campaign = async move {
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
            let mut seen: Option<Seen> = None;
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
                    self.timing.retry,
                    self.seek(&leases, &mut seen, settled.load(Ordering::Relaxed)),
                )
                .await;
                next = asked + self.timing.retry;
                let trouble = match answer {
                    Ok(Ok(true)) => {
                        // Once more before it runs out, should the next renewal fail.
                        next = asked + (self.timing.renew / 2).clamp(self.timing.retry, LOOK);
                        let until = Some(asked + self.timing.renew);
                        standing.send_modify(|standing| {
                            // What was seen last is how it was before this renewal.
                            if standing.until.is_none_or(|until| until < asked) {
                                standing.before = seen.as_ref().and_then(|seen| seen.before);
                                settled.store(false, Ordering::Relaxed);
                            }
                            (standing.until, standing.known, standing.trouble) = (until, true, None);
                        });
                        continue;
                    }
                    Ok(Ok(false)) => {
                        standing.send_replace(Standing { known: true, ..Standing::default() });
                        continue;
                    }
                    Ok(Err(e)) => crate::told(&e),
                    Err(_) => "the API server does not answer in time".to_owned(),
                };
                // Nobody knows; what was held runs out by itself.
                let trouble = format!("Lease {}/{}: {trouble}", self.namespace, self.name);
                standing.send_modify(|standing| standing.trouble = Some(trouble));
            }
            let held = standing.borrow().until.is_some();
            standing.send_replace(Standing::default());
            if held {
                // If it cannot be handed back it runs out.
                let _ =
                    tokio::time::timeout(self.timing.retry, self.hand_back(&leases, settled.load(Ordering::Relaxed)))
                        .await;
            }
        };
        (Lead(lead, dealt_with), campaign)
    }

    /// Looks at the Lease once; true if it is ours now.
    async fn seek(&self, leases: &Api<Lease>, seen: &mut Option<Seen>, settled: bool) -> Result<bool, kube::Error> {
        let Some(lease) = leases.get_opt(&self.name).await? else {
            // Somebody deleted it; whoever held it may not know yet.
            if seen.as_ref().is_some_and(|s| s.holder != self.identity && !s.is_silent()) {
                return Ok(false);
            }
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(LeaseSpec::default(), true)) };
            return won(leases.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if seen.as_ref().is_none_or(|s| s.version != version) {
            let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            let lasts = Duration::from_secs(lasts);
            let renewed = spec.renew_time.as_ref().map(|time| time.0);
            let before = unled_since(&lease).into_iter().chain(renewed).min();
            *seen = Some(Seen { version, holder: holder.clone(), lasts, at: Instant::now(), before });
        }
        let ours = holder == self.identity;
        if !ours && seen.as_ref().is_some_and(|s| !s.is_silent()) {
            return Ok(false);
        }
        let mut metadata = lease.metadata;
        let annotations = metadata.annotations.get_or_insert_default();
        if ours && settled {
            annotations.remove(UNLED_SINCE);
        } else if let Some(before) = seen.as_ref().and_then(|seen| seen.before).filter(|_| !ours) {
            annotations.insert(UNLED_SINCE.to_owned(), before.to_string());
        }
        let next = Lease { metadata, spec: Some(self.spec(spec, !ours)) };
        won(leases.replace(&self.name, &PostParams::default(), &next).await)
    }

    /// The spec with us as the holder; `anew` if we were not before.
    fn spec(&self, before: LeaseSpec, anew: bool) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            // Rounded up: nobody may think that it ends sooner than it does.
            lease_duration_seconds: i32::try_from(self.timing.lease.as_millis().div_ceil(1_000)).ok(),
            acquire_time: if anew { Some(now.clone()) } else { before.acquire_time.clone() },
            lease_transitions: Some(
                before.lease_transitions.unwrap_or(0) + i32::from(anew && before.holder_identity.is_some()),
            ),
            renew_time: Some(now),
            ..before
        }
    }

    async fn hand_back(&self, leases: &Api<Lease>, settled: bool) -> Result<(), kube::Error> {
        let mut lease = leases.get(&self.name).await?;
        if settled {
            lease.metadata.annotations.get_or_insert_default().remove(UNLED_SINCE);
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

fn unled_since(lease: &Lease) -> Option<Timestamp> {
    time::parse(lease.metadata.annotations.as_ref()?.get(UNLED_SINCE)?)
}

/// A write that came second was somebody else's win.
fn won<T>(written: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(e) if crate::api::is_conflict(&e) => Ok(false),
        Err(e) => Err(e),
    }
}
