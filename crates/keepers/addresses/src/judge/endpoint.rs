//! When an endpoint goes: after the records of its pod. That of a StatefulSet's pod or of a virtual
//! machine goes before them, because Spiderpool gives the next pod of that name what its endpoint says,
//! whether there is a record or not.

use caretaker_core::{RuleMatch, SignedDuration, Timestamp, time};

use super::{Found, SETTLE};
use crate::act::Action;
use crate::subject::{Endpoint, Keeps, Owner, Pod, Subject, World};

fn endpoint(subject: &Subject) -> Option<&Endpoint> {
    if let Subject::Endpoint(endpoint) = subject { Some(endpoint) } else { None }
}

/// Whether the pod of that name is another one than the endpoint speaks of.
fn is_stale(endpoint: &Endpoint) -> bool {
    endpoint.holder.pod.as_ref().is_some_and(|pod| !endpoint.holder.endpoint_is_of(pod))
}

/// Whether it gives the next pod of its name what it says, so that it goes before the records.
fn promises(endpoint: &Endpoint) -> bool {
    endpoint.holder.endpoint.as_ref().is_some_and(|row| row.owner != Owner::Other)
}

fn runs_without_record(endpoint: &Endpoint) -> bool {
    let runs = |pod: &Pod| !pod.ips.is_empty() && pod.deletion.is_none() && !pod.phase.is_over();
    endpoint.records == 0 && !is_stale(endpoint) && endpoint.holder.pod.as_deref().is_some_and(runs)
}

pub(super) fn in_use(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let holder = &endpoint.holder;
    // Somebody uses addresses of which no pool knows: that is told, whoever wants the pod.
    if runs_without_record(endpoint) {
        return None;
    }
    match &holder.kept_by {
        Some(Keeps::Machine) => return Some(RuleMatch::nothing("its virtual machine lives")),
        Some(Keeps::Set { name, .. }) => return Some(RuleMatch::nothing(format!("StatefulSet {name} wants its pod"))),
        None => {}
    }
    let pod = holder.pod.as_ref()?;
    // A new pod of a StatefulSet takes its endpoint over.
    if is_stale(endpoint) && !pod.of_a_set {
        return None;
    }
    let over = pod.deletion.is_some() || pod.phase.is_over();
    let told = pod.ips.is_empty() || endpoint.records > 0;
    (!over && told).then(|| RuleMatch::nothing(format!("pod {} is {}", holder.key, pod.phase.name())))
}

pub(super) fn records_not_known(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    (endpoint.unreadable && !promises(endpoint))
        .then(|| RuleMatch::nothing("the records of a pool cannot be read; there may be some of its pod"))
}

pub(super) fn records_go_first(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    (endpoint.records > 0 && !promises(endpoint))
        .then(|| RuleMatch::nothing(format!("there are {} records of its pod", endpoint.records)))
}

pub(super) fn not_seen_yet(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let settled = endpoint.sighted.is_some_and(|sighting| sighting.rule == "EndpointAbandoned");
    if endpoint.holder.pod.is_some() || endpoint.holder.absent || settled || !world.leads {
        return None;
    }
    let until = time::saturating_add(since(endpoint, "EndpointNotSeenYet", now), SETTLE);
    (now <= until).then(|| RuleMatch::wait(until, Action::Remove, "no pod of its name was seen"))
}

pub(super) fn abandoned(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let because = match &endpoint.holder.pod {
        None if endpoint.records > 0 => format!("there is no pod {}; its records follow", endpoint.holder.key),
        None => format!("there is no pod {}, and no record of it", endpoint.holder.key),
        Some(_) if is_stale(endpoint) => format!("pod {} is another one now", endpoint.holder.key),
        Some(_) => return None,
    };
    Some(RuleMatch::act(Action::Remove, since(endpoint, "EndpointAbandoned", now), because))
}

pub(super) fn over(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let pod = endpoint.holder.pod.as_ref()?;
    let going = pod.deletion.filter(|_| world.policy.terminating).map(|at| time::saturating_add(at, world.policy.delay));
    let Some(until) = pod.over_at(&world.policy).into_iter().chain(going).min() else {
        let terminating = pod.deletion.is_some();
        return terminating.then(|| RuleMatch::nothing("its pod is Terminating; the settings leave such pods alone"));
    };
    let because = if endpoint.records > 0 {
        format!("pod {} is over; its records follow", endpoint.holder.key)
    } else {
        format!("pod {} is {} and has no record any more", endpoint.holder.key, pod.phase.name())
    };
    if !world.leads {
        return Some(RuleMatch::nothing(format!("{because}; the leader sees to it")));
    }
    Some(if now > until {
        RuleMatch::act(Action::Remove, until, because)
    } else {
        RuleMatch::wait(until, Action::Remove, because)
    })
}

/// How long an endpoint may be ahead of the record, as the two come by different watches.
const APART: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn without_record(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let because = format!("pod {} runs, but no pool has a record of it", endpoint.holder.key);
    let until = time::saturating_add(since(endpoint, "EndpointWithoutRecord", now), APART);
    if !world.leads {
        return Some(RuleMatch::nothing(because));
    }
    if now <= until {
        return Some(RuleMatch::wait(until, Action::Tell, because));
    }
    Some(RuleMatch::refuse(None, format!("{because}: its addresses can be given to somebody else; restart the pod")))
}

fn since(endpoint: &Endpoint, rule: &'static str, now: Timestamp) -> Timestamp {
    endpoint.sighted.filter(|sighting| sighting.rule == rule).map_or(now, |sighting| sighting.since)
}
