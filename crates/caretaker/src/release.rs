//! `caretaker release`: everything awake, and nothing of ours left behind.

use anyhow::{Context, Result, bail};
use caretaker_addresses::Addresses;
use caretaker_core::{Timestamp, time};
use caretaker_engine::api::{Resource, is_conflict};
use caretaker_engine::keep::{Index as _, Keep as _, observe};
use caretaker_engine::{state, told};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::carry_out::{Hand, Judged, carry_out};
use caretaker_namespaces::act::{Action, steps};
use caretaker_namespaces::api;
use caretaker_namespaces::keep::observe_home;
use caretaker_namespaces::observe::{Manifest, Meta, Observation, resource};
use caretaker_namespaces::subject::{Kind, Subject, World};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use crate::breaker::MANAGER;
use crate::cli::Release;
use crate::live;
use crate::order::lies_down;
use crate::output::{Answer, cell};
use crate::scene::missing;

/// The Leases of all keepers.
const LEASES: [&str; 2] = [Namespaces::MANAGER, Addresses::MANAGER];

/// Somebody else may write the same object; this often it is read again.
const TRIES: usize = 5;

/// Releases what was named.
pub fn answer(args: &Release, now: Timestamp) -> Result<Answer> {
    live::block_on(async {
        let client = Client::try_from(live::settings(&args.cluster).await?)?;
        if !args.dry_run && !args.force {
            no_operator_runs(&client, args.all, now).await?;
        }
        let mut releasing = Releasing { client, dry_run: args.dry_run, now, told: Vec::new(), failed: Vec::new() };
        if args.all {
            let seen = observe::<Namespaces>(&releasing.client).await?;
            releasing.release(seen).await;
            releasing.own_objects().await;
        }
        for name in &args.namespaces {
            let seen = observe_home(&releasing.client, name).await?;
            if !seen.knows(name) {
                bail!(missing(name, std::iter::empty()));
            }
            releasing.release(seen).await;
        }
        Ok(releasing.answer())
    })
}

/// The operator would begin anew with what is released; and with everything goes the state of every
/// keeper.
async fn no_operator_runs(client: &Client, all: bool, now: Timestamp) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), state::NAMESPACE);
    for name in LEASES.into_iter().filter(|name| all || *name == Namespaces::MANAGER) {
        let lease = leases.get_opt(name).await.context("looking for a running operator")?;
        let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let lasts = caretaker_core::SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
        if !holder.is_empty() && spec.renew_time.is_some_and(|renewed| time::saturating_add(renewed.0, lasts) > now) {
            bail!(
                "the operator runs as {holder} (Lease {name}) and would go on meanwhile; stop it first (kubectl -n {} scale deployment --all --replicas=0), or use --force",
                state::NAMESPACE
            );
        }
    }
    Ok(())
}

struct Releasing {
    client: Client,
    dry_run: bool,
    now: Timestamp,
    told: Vec<String>,
    failed: Vec<String>,
}

impl Releasing {
    /// Singles first: what sleeps by labels of its own is not woken with its namespace.
    async fn release(&mut self, seen: Observation) {
        let (namespaces, singles): (Vec<_>, Vec<_>) =
            seen.subjects().into_iter().partition(|s| s.kind == Kind::Namespace);
        for subject in singles.into_iter().chain(namespaces).filter(|s| s.inactive.is_none()) {
            let name =
                subject.namespace.as_ref().map_or_else(|| subject.name.clone(), |ns| format!("{ns}/{}", subject.name));
            let name = format!("{} {name}", subject.kind);
            let mut done = Vec::new();
            let outcome = match self.wake(&subject, &mut done).await {
                Ok(()) => self.withdraw(&subject, &mut done).await,
                Err(e) => Err(e),
            };
            if !done.is_empty() {
                self.told.push(format!("{name}: {}", done.join("; ")));
            }
            for broken in subject.workloads.iter().filter_map(|w| Some((w, w.invalid()?))) {
                self.failed.push(format!("{name}: {}/{} is left as it is: {}", broken.0.kind, broken.0.name, broken.1));
            }
            if let Err(why) = outcome {
                self.failed.push(format!("{name}: {why}"));
            }
        }
    }

    async fn wake(&self, subject: &Subject, done: &mut Vec<String>) -> Result<(), String> {
        if !subject.can_sleep() || !lies_down(subject) {
            return Ok(());
        }
        let (action, world) = (Action::Wake { restart: None }, World::default());
        let steps = steps(&action, subject, &world, self.now);
        if !self.dry_run {
            let hand = Hand { client: &self.client, manager: MANAGER };
            let judged = Judged { subject, rule: None, action: &action };
            carry_out(hand, judged, &world, self.now).await.0.map_err(|e| e.to_string())?;
        }
        done.extend(steps.iter().map(ToString::to_string));
        Ok(())
    }

    /// Takes off every label and annotation that is ours; those of its owner stay.
    async fn withdraw(&self, subject: &Subject, done: &mut Vec<String>) -> Result<(), String> {
        let objects = resource(subject.kind.name());
        for _ in 0..TRIES {
            let found: Option<Manifest> =
                objects.get(&self.client, subject.namespace.as_deref(), &subject.name).await.map_err(|e| told(&e))?;
            let Some(meta) = found.map(|found| found.metadata).filter(|meta| meta.uid == subject.uid) else {
                return Ok(());
            };
            let (labels, annotations) = ours(&meta, subject);
            let keys: Vec<&str> = labels.keys().chain(annotations.keys()).map(String::as_str).collect();
            if keys.is_empty() {
                return Ok(());
            }
            let words = format!("take off {}", keys.join(", "));
            let patch = json!({ "metadata": {
                "uid": meta.uid, "resourceVersion": meta.resource_version, "labels": labels, "annotations": annotations,
            } });
            if !self.dry_run {
                let namespace = subject.namespace.as_deref();
                match objects.patch::<Value>(&self.client, namespace, &subject.name, MANAGER, &patch).await {
                    Ok(_) => {}
                    Err(e) if is_conflict(&e) => continue,
                    Err(e) => return Err(told(&e)),
                }
            }
            done.push(words);
            return Ok(());
        }
        Err("it changes faster than it can be written".to_owned())
    }

    /// Caretaker's own objects.
    async fn own_objects(&mut self) {
        let leases = Resource::new("/apis/coordination.k8s.io/v1", "leases", "Lease");
        let state = (Resource::new("/api/v1", "configmaps", "ConfigMap"), state::NAME);
        for (objects, name) in LEASES.map(|name| (leases, name)).into_iter().chain([state]) {
            let what = format!("{} {}/{name}", objects.kind, state::NAMESPACE);
            let found: Result<Option<Manifest>, _> = objects.get(&self.client, Some(state::NAMESPACE), name).await;
            let outcome = match found {
                Ok(None) => continue,
                Ok(Some(_)) if self.dry_run => Ok(()),
                Ok(Some(found)) => {
                    let Meta { uid, resource_version, .. } = &found.metadata;
                    let deleted =
                        objects.delete::<Value>(&self.client, Some(state::NAMESPACE), name, uid, resource_version);
                    deleted.await.map(drop)
                }
                Err(e) => Err(e),
            };
            match outcome {
                Ok(()) => self.told.push(format!("{what}: delete it")),
                Err(e) => self.failed.push(format!("{what}: {}", told(&e))),
            }
        }
    }

    fn answer(self) -> Answer {
        let mut text = String::new();
        for line in &self.told {
            text.push_str(&format!("{}\n", cell(line)));
        }
        let would = if self.dry_run { " would be" } else { "" };
        text.push_str(&match self.told.len() {
            0 => "nothing is Caretaker's\n".to_owned(),
            1 => format!("1 object{would} released\n"),
            count => format!("{count} objects{would} released\n"),
        });
        let code = u8::from(!self.failed.is_empty());
        Answer { text, notes: self.failed, code }
    }
}

/// Our labels and annotations on an object, each to be taken off.
fn ours(meta: &Meta, subject: &Subject) -> (Map<String, Value>, Map<String, Value>) {
    let (mut labels, mut annotations) = (Map::new(), Map::new());
    for (key, is_label) in meta.keys() {
        let by_us = match (key, is_label) {
            (api::STATE, true) => true,
            (api::SLEEP_AFTER, true) => subject.by_fallback,
            (api::ACTIVITY, false) => subject.activity.get().is_some_and(|a| a.user == api::Activity::US),
            (_, false) => key.starts_with(api::CARETAKER),
            _ => false,
        };
        if by_us {
            let keys = if is_label { &mut labels } else { &mut annotations };
            keys.insert(key.to_owned(), Value::Null);
        }
    }
    (labels, annotations)
}
