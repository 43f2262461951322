//! The keeper on a live cluster, in the engine's terms.

use std::collections::BTreeMap;
use std::time::Duration;

use caretaker_core::Timestamp;
use caretaker_engine::access::Need;
use caretaker_engine::api::Resource;
use caretaker_engine::events::Report;
use caretaker_engine::keep::{Carried, Due, Ended, Keep};
use caretaker_engine::state;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use serde_json::{Value, json};

use crate::act::{self, Action, Sight, Undone};
use crate::api::{ENDPOINT, GROUP, POOL, SOURCES, VERSION};
use crate::observe::{Home, Manifest, Observation, Site};
use crate::subject::{Subject, World};
use crate::{Addresses, home};

/// More Events on pods than this for one write of a pool say no more.
const PODS_TOLD: usize = 20;
/// More addresses than this in one Event are only counted.
const NAMED: usize = 10;

impl Keep for Addresses {
    type Home = Home;
    type Site = Site;
    type Manifest = Manifest;
    type Sight = Sight;
    type Undone = Undone;
    type Index = Observation;

    const SOURCES: &'static [Resource] = &SOURCES;
    const MANAGER: &'static str = "caretaker-addresses";
    const LISTS: usize = 1;
    const TOGETHER: usize = usize::MAX;
    // A pool is large, and every write of it is seen by every agent.
    const REST: Duration = Duration::from_secs(1);

    fn home(subject: &Subject) -> Home {
        home(subject)
    }

    fn site(subject: &Subject) -> Site {
        match subject {
            Subject::Address(address) => Site::Pool(address.pool.clone()),
            Subject::Pool(pool) => Site::Pool(pool.name.clone()),
            Subject::Endpoint(endpoint) => Site::Endpoint(endpoint.holder.key.clone()),
        }
    }

    /// An address is what a pod may wait for. Endpoints are many, each takes four calls, and a pool
    /// would come after all of them.
    fn is_urgent(action: &Action) -> bool {
        *action == Action::Release
    }

    fn needs(dry_run: bool) -> Vec<Need> {
        needs(dry_run)
    }

    fn before(subject: &Subject) -> Value {
        match subject {
            Subject::Address(address) => {
                json!({ "pool": *address.pool, "pod": *address.holder.key, "podUid": address.uid })
            }
            Subject::Endpoint(endpoint) => {
                let row = endpoint.holder.endpoint.as_deref();
                let ips: Vec<String> = row.iter().flat_map(|row| &row.ips).map(ToString::to_string).collect();
                json!({ "podUid": row.and_then(|row| row.pod.as_ref()).map(ToString::to_string), "ips": ips })
            }
            Subject::Pool(pool) => json!({ "allocatedIPCount": pool.count, "records": pool.records }),
        }
    }

    fn reports(ended: &[Ended<Self>]) -> Vec<Report> {
        reports(ended)
    }

    /// An address stands in a pool.
    fn stands_on(subject: &Subject) -> Option<ObjectReference> {
        Some(site_reference(subject))
    }

    fn of_a_backup(world: &World) -> Option<World> {
        Some(World { leads: false, ..*world })
    }

    async fn carry_out(client: Client, due: Vec<Due<Self>>, world: World, now: Timestamp) -> Carried<Self> {
        act::carry_out(client, due, world, now).await
    }
}

fn needs(dry_run: bool) -> Vec<Need> {
    let mut needs = Vec::new();
    for source in &SOURCES {
        let (group, _) = source.group_and_version();
        needs.extend(["list", "watch", "get"].map(|verb| Need::to(verb, group, source.plural)));
    }
    needs.push(Need::to("patch", GROUP, "spiderippools/status"));
    needs.extend(["patch", "delete"].map(|verb| Need::to(verb, GROUP, "spiderendpoints")));
    needs.extend(state::needs(Addresses::MANAGER));
    if dry_run {
        needs.retain(|need| ["list", "watch", "get"].contains(&need.verb) && need.resource != "leases");
    }
    needs
}

/// One Event a rule and outcome on the pool, however many addresses; and one on each pod that is there.
fn reports(ended: &[Ended<Addresses>]) -> Vec<Report> {
    let mut reports = Vec::new();
    let mut together: BTreeMap<(&str, Option<String>), Vec<&Ended<Addresses>>> = BTreeMap::new();
    for one in ended {
        let failure = match &one.outcome {
            // It is judged again at once; nobody needs to do anything.
            Err(Undone::Changed(_)) => continue,
            Err(undone) => Some(undone.to_string()),
            Ok(()) => None,
        };
        together.entry((one.due.verdict.rule, failure)).or_default().push(one);
    }
    for ((rule, failure), all) in together {
        let first = &all[0].due;
        let names: Vec<&str> = all.iter().take(NAMED).map(|one| subject_name(&one.due.subject)).collect();
        let more = if all.len() > NAMED { format!(" and {} more", all.len() - NAMED) } else { String::new() };
        let note = match (&failure, all.len(), &first.subject) {
            (Some(why), ..) => format!("release of {}{more} failed: {why}", names.join(", ")),
            (None, 1, Subject::Address(_)) => format!("released {}: {}", names[0], first.verdict.because),
            (None, count, Subject::Address(_)) => {
                format!(
                    "released {count} addresses: {}{more}; the first because {}",
                    names.join(", "),
                    first.verdict.because
                )
            }
            (None, _, Subject::Endpoint(_)) => format!("removed: {}", first.verdict.because),
            (None, _, Subject::Pool(_)) => format!("counted anew: {}", first.verdict.because),
        };
        let report = |regarding, note| Report {
            regarding,
            warning: failure.is_some(),
            reason: rule.to_owned(),
            action: "release".to_owned(),
            note,
        };
        reports.push(report(site_reference(&first.subject), note));
        let pods =
            all.iter().filter(|_| failure.is_none()).filter_map(|one| pod_reference(&one.due.subject).zip(Some(one)));
        reports.extend(pods.take(PODS_TOLD).map(|(pod, one)| {
            let note =
                format!("its address {} was released: {}", subject_name(&one.due.subject), one.due.verdict.because);
            report(pod, note)
        }));
    }
    reports
}

fn subject_name(subject: &Subject) -> &str {
    match subject {
        Subject::Address(address) => &address.name,
        Subject::Endpoint(endpoint) => &endpoint.name,
        Subject::Pool(pool) => &pool.name,
    }
}

/// The pool of an address; everything else is an object itself.
fn site_reference(subject: &Subject) -> ObjectReference {
    let (kind, namespace, name, uid) = match subject {
        Subject::Address(address) => (POOL, None, &*address.pool, &*address.pool_uid),
        Subject::Pool(pool) => (POOL, None, &*pool.name, &*pool.uid),
        Subject::Endpoint(e) => (ENDPOINT, Some(e.namespace.clone()), &*e.name, &*e.uid),
    };
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some(kind.to_owned()),
        namespace,
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// The pod of an address, if it is there and is the one.
fn pod_reference(subject: &Subject) -> Option<ObjectReference> {
    let Subject::Address(address) = subject else { return None };
    let pod = address.holder.pod.as_deref().filter(|pod| address.is_of(pod) != Some(false))?;
    let (namespace, name) = address.holder.key.split_once('/')?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(pod.uid.to_string()),
        ..ObjectReference::default()
    })
}
