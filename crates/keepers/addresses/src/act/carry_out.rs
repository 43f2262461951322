//! Doing it: the last look, then one conditional write.
//!
//! No decision is left here. However many records of a pool go, the pool is read once and written
//! once, on condition that it is still what was read. If somebody else wrote it meanwhile it is read
//! again, and whatever has changed in it is left for the next round: a record that is still the same
//! is still nobody's.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use caretaker_core::{Keeper as _, SignedDuration, Timestamp, time};
use caretaker_engine::api::{is_absence, is_conflict};
use caretaker_engine::journal::Outcome;
use caretaker_engine::keep::{Carried, Due, Ended, Index as _, Keep as _};
use kube::Client;
use serde_json::{Value, json};

use super::look::{Look, Unread, look};
use crate::api::{ENDPOINT, FINALIZER, POOL, Uid, ordinal, resource, without};
use crate::judge::SUSPECTED;
use crate::observe::{Home, Manifest, Observation};
use crate::subject::{Holder, Subject, World};
use crate::{Addresses, home};

/// A pool that somebody else keeps writing is left for the next round after so many tries.
const TRIES: i32 = 6;
/// How long to leave it alone in between, at most; twice as long each time.
const PAUSE: Duration = Duration::from_millis(20);

/// What is seen while acting.
#[derive(Debug, Clone)]
pub enum Sight {
    /// An object, as it is now.
    Is(&'static str, Box<Manifest>),
    /// An endpoint is gone.
    EndpointGone {
        /// Its namespace and name.
        key: String,
        /// Its identity.
        uid: Uid,
    },
}

/// Why something was not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Undone {
    /// The last look saw something else than the judgement was made on.
    #[error("not done: {0}")]
    Changed(String),
    /// It was written, and somebody on the way made something else of it.
    #[error("it was written, but is not what was written; does an admission webhook or policy change it?")]
    Altered,
    /// The API server could not be asked, or refused.
    #[error("{what}: {why}")]
    Api {
        /// What was attempted.
        what: String,
        /// Its answer.
        why: String,
        /// Whether that was: not allowed.
        forbidden: bool,
    },
}

impl caretaker_engine::keep::Undone for Undone {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Changed(_) => Outcome::Overtaken,
            Self::Altered | Self::Api { .. } => Outcome::Failed,
        }
    }

    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Api { forbidden: true, .. })
    }
}

impl From<&Unread> for Undone {
    fn from(unread: &Unread) -> Self {
        Self::Api { what: "the last look".to_owned(), why: unread.why.clone(), forbidden: unread.forbidden }
    }
}

pub(super) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn failed(what: String, error: &kube::Error) -> Undone {
    Undone::Api { what, why: caretaker_engine::told(error), forbidden: is_forbidden(error) }
}

fn changed(why: impl Into<String>) -> Undone {
    Undone::Changed(why.into())
}

/// Confirms what was judged at one site, live, and carries it out.
pub async fn carry_out(client: Client, due: Vec<Due<Addresses>>, world: World, now: Timestamp) -> Carried<Addresses> {
    let mut seen = Vec::new();
    let outcomes = match due.first().map(|due| &due.subject) {
        Some(Subject::Endpoint(_)) => {
            let mut outcomes = Vec::new();
            for due in &due {
                outcomes.push(remove(&client, due, &world, now, &mut seen).await);
            }
            outcomes
        }
        Some(Subject::Address(_) | Subject::Pool(_)) => {
            release(&client, &due, &world, now, &mut seen).await.unwrap_or_else(|undone| vec![Err(undone); due.len()])
        }
        None => Vec::new(),
    };
    let ended = due.into_iter().zip(outcomes).map(|(due, outcome)| Ended { due, outcome }).collect();
    Carried { ended, seen }
}

/// A pool as it was read: what matters of it, and what stands in it.
struct Read {
    pool: Manifest,
    allocated: Value,
    /// What time it is where deadlines are set.
    date: Option<Timestamp>,
}

impl Read {
    /// The time to judge by. A deletion timestamp is by the clock of the API server; one of ours that is
    /// ahead of it must not take an address from a pod that still has its time. Dates are to the second.
    fn now(&self, ours: Timestamp) -> Timestamp {
        self.date.map_or(ours, |date| ours.min(time::saturating_add(date, SignedDuration::from_secs(1))))
    }
}

async fn read(client: &Client, name: &str) -> Result<Read, Undone> {
    let answer = resource(POOL).get_dated::<Value>(client, None, name).await;
    let (object, date) = answer.map_err(|e| failed(format!("reading {POOL} {name}"), &e))?;
    let Some(object) = object else { return Err(changed(format!("pool {name} is gone"))) };
    let allocated = object["status"]["allocatedIPs"].clone();
    let pool = serde_json::from_value(object);
    let pool = pool.map_err(|e| changed(format!("pool {name} cannot be read any more: {e}")))?;
    Ok(Read { pool, allocated, date })
}

/// Takes records out of a pool: all of them in one write.
async fn release(
    client: &Client,
    due: &[Due<Addresses>],
    world: &World,
    now: Timestamp,
    seen: &mut Vec<Sight>,
) -> Result<Vec<Result<(), Undone>>, Undone> {
    let name = match &due[0].subject {
        Subject::Address(address) => address.pool.clone(),
        Subject::Pool(pool) => pool.name.clone(),
        Subject::Endpoint(_) => return Err(changed("an endpoint is in no pool")),
    };
    let mut live = read(client, &name).await?;
    let now = live.now(now);
    let mut known = look(client, &holders(due.iter()), world).await;
    let mut outcomes: Vec<Result<(), Undone>> = vec![Ok(()); due.len()];
    let (mut tried, mut renewed) = (0, Look::default());
    loop {
        if tried > 0 {
            // Whoever may come back is looked at again, as the pool was read again.
            let again = due.iter().zip(&outcomes).filter(|(due, outcome)| outcome.is_ok() && !lasts(due));
            let holders = holders(again.map(|(due, _)| due));
            if !holders.is_empty() {
                renewed = look(client, &holders, world).await;
            }
        }
        known.seen.add(POOL, &live.pool);
        renewed.seen.add(POOL, &live.pool);
        for (due, outcome) in due.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            let look = if tried > 0 && !lasts(due) { &renewed } else { &known };
            *outcome = confirm_by(look, due, world, now);
        }
        let sure = due.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        let gone: BTreeSet<IpAddr> = sure.filter_map(|(due, _)| address(due)).collect();
        if outcomes.iter().all(Result::is_err) {
            seen.push(Sight::Is(POOL, Box::new(live.pool)));
            return Ok(outcomes);
        }
        let unwritten = match write(client, &name, &live, &gone).await {
            Ok(pool) => {
                known.seen.add(POOL, &pool);
                let altered = gone.iter().any(|ip| known.seen.knows(&Home::Address(name.clone(), *ip)));
                seen.push(Sight::Is(POOL, Box::new(pool)));
                if !altered {
                    return Ok(outcomes);
                }
                Undone::Altered
            }
            Err(e) if is_conflict(&e) && tried < TRIES => {
                tokio::time::sleep(PAUSE.mul_f64(fastrand::f64() * f64::from(1 << tried))).await;
                live = read(client, &name).await?;
                tried += 1;
                continue;
            }
            Err(e) if is_conflict(&e) => changed("its pool is written all the time"),
            Err(e) => failed(format!("writing {POOL} {name}"), &e),
        };
        outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(unwritten.clone()));
        return Ok(outcomes);
    }
}

fn address(due: &Due<Addresses>) -> Option<IpAddr> {
    if let Subject::Address(address) = &due.subject { Some(address.ip) } else { None }
}

fn holders<'a>(due: impl Iterator<Item = &'a Due<Addresses>>) -> Vec<&'a Holder> {
    due.filter_map(|due| if let Subject::Address(address) = &due.subject { Some(&address.holder) } else { None })
        .collect()
}

/// Whether what it stands on cannot change any more while the record is the same: no uid comes twice,
/// no pod that goes comes back, and none that has finished begins anew. A set can want its pod again, and
/// what is only suspected can be cleared up.
fn lasts(due: &Due<Addresses>) -> bool {
    let Subject::Address(address) = &due.subject else { return true };
    let named_like_a_sets = address.holder.key.split_once('/').is_some_and(|(_, name)| ordinal(name).is_some());
    !named_like_a_sets && !address.holder.is_stateful() && !SUSPECTED.contains(&due.verdict.rule)
}

/// The same, if all was read that it takes.
fn confirm_by(look: &Look, due: &Due<Addresses>, world: &World, now: Timestamp) -> Result<(), Undone> {
    let key = match &due.subject {
        Subject::Address(address) => &address.holder.key,
        Subject::Endpoint(endpoint) => &endpoint.holder.key,
        Subject::Pool(_) => return confirm(&look.seen, due, world, now),
    };
    match look.unread(key) {
        Some(unread) => Err(unread.into()),
        None => confirm(&look.seen, due, world, now),
    }
}

/// Judges again, on what was just read: only the same rule with the same action goes on.
pub fn confirm(index: &Observation, due: &Due<Addresses>, world: &World, now: Timestamp) -> Result<(), Undone> {
    let Some(mut live) = index.at_home(&home(&due.subject)).pop() else { return Err(changed("it is gone")) };
    match (&mut live, &due.subject) {
        (Subject::Address(live), Subject::Address(judged)) => {
            if live.identity != judged.identity || live.holder.key != judged.holder.key {
                return Err(changed(format!("it is {}'s now", live.holder.key)));
            }
            // What was seen before cannot be read from the objects.
            live.sighted = judged.sighted;
        }
        (Subject::Endpoint(live), Subject::Endpoint(judged)) => {
            if live.uid != judged.uid {
                return Err(changed("another one bears its name"));
            }
            (live.sighted, live.records, live.unreadable) = (judged.sighted, judged.records, judged.unreadable);
        }
        _ => {}
    }
    let verdict = Addresses::judge(&live, world, now);
    if verdict.rule == due.verdict.rule && verdict.next.pending_action() == Some(&due.action) {
        Ok(())
    } else {
        Err(changed(format!("now it is {}: {}", verdict.rule, verdict.because)))
    }
}

async fn write(client: &Client, name: &str, live: &Read, gone: &BTreeSet<IpAddr>) -> Result<Manifest, kube::Error> {
    let meta = &live.pool.metadata;
    // What cannot be read was not confirmed; and nothing must be written for it.
    let status = without(&live.allocated, gone).ok_or_else(unreadable)?;
    let patch = json!({
        "metadata": { "uid": meta.uid.to_string(), "resourceVersion": meta.resource_version },
        "status": status,
    });
    resource(POOL).patch_status(client, name, Addresses::MANAGER, &patch).await
}

fn unreadable() -> kube::Error {
    kube::Error::SerdeError(serde::de::Error::custom("status.allocatedIPs cannot be read any more"))
}

/// Removes an endpoint: it is deleted, and then its finalizer is taken away.
async fn remove(
    client: &Client,
    due: &Due<Addresses>,
    world: &World,
    now: Timestamp,
    seen: &mut Vec<Sight>,
) -> Result<(), Undone> {
    let Subject::Endpoint(endpoint) = &due.subject else { return Err(changed("it is no endpoint")) };
    let look = look(client, &[&endpoint.holder], world).await;
    let index = &look.seen;
    let gone = Sight::EndpointGone { key: endpoint.holder.key.to_string(), uid: Uid::read(&endpoint.uid) };
    if let Some(unread) = look.unread(&endpoint.holder.key) {
        return Err(unread.into());
    }
    if !index.knows(&home(&due.subject)) {
        seen.push(gone);
        return Ok(());
    }
    confirm(index, due, world, now)?;
    let (namespace, name) = (Some(endpoint.namespace.as_str()), endpoint.name.as_str());
    let endpoints = resource(ENDPOINT);
    let what = |verb: &str| format!("{verb} {ENDPOINT} {}", endpoint.holder.key);
    let version = index.endpoint_version(&endpoint.holder.key).to_string();
    let left: Option<Manifest> = match endpoints.delete(client, namespace, name, &endpoint.uid, &version).await {
        Ok(left) => left,
        Err(kube::Error::Api(status)) if is_absence(&status, name) => None,
        Err(e) if is_conflict(&e) => return Err(changed("it was written meanwhile")),
        Err(e) => return Err(failed(what("deleting"), &e)),
    };
    if let Some(left) = left {
        let others: Vec<&String> = left.metadata.finalizers.iter().filter(|f| *f != FINALIZER).collect();
        let version = &left.metadata.resource_version;
        let metadata = json!({ "uid": endpoint.uid, "resourceVersion": version, "finalizers": others });
        let patch = json!({ "metadata": metadata });
        match endpoints.patch::<Manifest>(client, namespace, name, Addresses::MANAGER, &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if is_absence(&status, name) => {}
            Err(e) if is_conflict(&e) => return Err(changed("it was written meanwhile")),
            Err(e) => return Err(failed(what("taking the finalizer away from"), &e)),
        }
    }
    seen.push(gone);
    Ok(())
}
