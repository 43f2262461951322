//! Events about actions that ended together: one for each rule and outcome on the pool or the endpoint, and
//! one on each pod that still exists.

use std::collections::BTreeMap;

use caretaker_core::{Action as _, ObjectRef};
use caretaker_engine::events::{EventRecord, event_target};
use caretaker_engine::journal::Outcome;
use caretaker_engine::{ActionResult, PlannedAction};

use crate::subject::Subject;
use crate::{Addresses, object_of};

/// Maximum number of Events on pods for one write of a pool.
const MAX_POD_EVENTS: usize = 20;
/// Maximum number of addresses that one Event lists; more are only counted.
const MAX_LISTED: usize = 10;

pub(super) fn events(results: &[ActionResult<Addresses>]) -> Vec<EventRecord> {
    type Group<'a> = (Option<&'a str>, &'static str, Option<String>);
    let mut groups: BTreeMap<Group<'_>, Vec<&PlannedAction<Addresses>>> = BTreeMap::new();
    for ActionResult { planned, result } in results {
        let failure = match result {
            // A stale action is judged again at once; nobody needs to do anything.
            Err(error) if error.outcome() == Outcome::Stale => continue,
            Err(error) => Some(error.to_string()),
            Ok(()) => None,
        };
        // Each endpoint is an object of its own.
        let endpoint = if let Subject::Endpoint(endpoint) = &planned.subject { Some(&*endpoint.name) } else { None };
        groups.entry((endpoint, planned.verdict.rule.name(), failure)).or_default().push(planned);
    }
    let mut events = Vec::new();
    for ((_, reason, failure), group) in groups {
        let first = group[0];
        let record = |object: ObjectRef<'_>, note| EventRecord {
            regarding: event_target(object),
            warning: failure.is_some(),
            reason,
            action: first.action.name(),
            note,
        };
        events.push(record(object_of(&first.subject), note(&group, failure.as_deref())));
        if failure.is_some() {
            continue;
        }
        let with_pods = group.iter().filter_map(|planned| Some((PodRef::of(&planned.subject)?, planned)));
        events.extend(with_pods.take(MAX_POD_EVENTS).map(|(pod, planned)| {
            let (name, because) = (name(&planned.subject), &planned.verdict.because);
            record(pod.object(), format!("its address {name} was released: {because}"))
        }));
    }
    events
}

/// What happened to a pool or an endpoint. The actions of a group have the same rule and the same outcome.
fn note(group: &[&PlannedAction<Addresses>], failure: Option<&str>) -> String {
    let first = group[0];
    let because = &first.verdict.because;
    let listed: Vec<&str> = group.iter().take(MAX_LISTED).map(|planned| name(&planned.subject)).collect();
    let listed = listed.join(", ");
    let more = if group.len() > MAX_LISTED { format!(" and {} more", group.len() - MAX_LISTED) } else { String::new() };
    match (failure, group.len(), &first.subject) {
        (Some(why), _, Subject::Address(_)) => format!("releasing {listed}{more} failed: {why}"),
        (Some(why), _, Subject::Endpoint(_)) => format!("deleting it failed: {why}"),
        (Some(why), _, Subject::Pool(_)) => format!("correcting status.allocatedIPCount failed: {why}"),
        (None, 1, Subject::Address(_)) => format!("released {listed}: {because}"),
        (None, count, Subject::Address(_)) => {
            format!("released {count} addresses: {listed}{more}; the first because {because}")
        }
        (None, _, Subject::Endpoint(_)) => format!("deleted: {because}"),
        (None, _, Subject::Pool(_)) => format!("corrected: {because}"),
    }
}

fn name(subject: &Subject) -> &str {
    match subject {
        Subject::Address(address) => &address.name,
        Subject::Endpoint(endpoint) => &endpoint.name,
        Subject::Pool(pool) => &pool.name,
    }
}

/// The pod of an address, if it exists and may be the record's pod.
struct PodRef<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: String,
}

impl<'a> PodRef<'a> {
    fn of(subject: &'a Subject) -> Option<Self> {
        let Subject::Address(address) = subject else { return None };
        let pod = address.holder.pod.as_deref().filter(|pod| address.is_of(pod) != Some(false))?;
        let (namespace, name) = address.holder.key.split_once('/')?;
        Some(Self { namespace, name, uid: pod.uid.to_string() })
    }

    fn object(&self) -> ObjectRef<'_> {
        let Self { namespace, name, uid } = self;
        ObjectRef { api_version: "v1", kind: "Pod", namespace: Some(namespace), name, uid }
    }
}
