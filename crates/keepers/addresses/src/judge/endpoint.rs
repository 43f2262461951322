//! Endpoints: an endpoint is deleted after the records of its pod. One that reserves addresses is deleted
//! before them, because Spiderpool gives its addresses to the next pod of that name, with or without a
//! record.

use caretaker_core::count::counted;
use caretaker_core::{RuleMatch, SignedDuration, Timestamp, duration, time};

use super::{Found, POD_WATCH_LAG, Rule, ending_deadline, gone_deadline, suspicion, why_gone_waits};
use crate::act::Action;
use crate::subject::{Endpoint, EndpointState, PodState, RetainedBy, Subject, World};

/// How long an endpoint may be ahead of its record, because each kind has its own watch.
const RECORD_WATCH_LAG: SignedDuration = SignedDuration::from_secs(30);

fn endpoint(subject: &Subject) -> Option<&Endpoint> {
    if let Subject::Endpoint(endpoint) = subject { Some(endpoint) } else { None }
}

/// True if the pod of that name is not the endpoint's pod.
fn is_stale(endpoint: &Endpoint) -> bool {
    endpoint.holder.pod.as_ref().is_some_and(|pod| !endpoint.holder.endpoint_is_of(pod))
}

/// The action that deletes it. What reserves addresses is guarded by the breaker, as their release is.
fn deletion(endpoint: &Endpoint) -> Action {
    if endpoint.reserves_ips() { Action::DeleteReservation } else { Action::DeleteEndpoint }
}

fn runs_without_record(endpoint: &Endpoint) -> bool {
    let runs = |pod: &PodState| !pod.ips.is_empty() && !pod.is_ending();
    endpoint.records == 0 && !is_stale(endpoint) && endpoint.holder.pod.as_deref().is_some_and(runs)
}

/// Nothing is left to do for an endpoint that is deleted already.
fn waits_for_others(endpoint: &Endpoint) -> Option<RuleMatch<Action>> {
    let waits = endpoint.holder.endpoint.as_ref().is_some_and(|state| state.waits_for_others);
    waits.then(|| RuleMatch::nothing("it is being deleted, and waits until others have removed their finalizers"))
}

/// Since when this rule has matched; now, if it matches for the first time or the clock was set back.
fn since(endpoint: &Endpoint, rule: Rule, now: Timestamp) -> Timestamp {
    endpoint.sighting.filter(|sighting| sighting.rule == rule).map_or(now, |sighting| sighting.since.min(now))
}

/// True if the pod certainly uses none of the endpoint's addresses.
fn has_other_ips(pod: &PodState, endpoint: &EndpointState) -> bool {
    let reported = || pod.ips.iter().chain(&pod.other_ips);
    let is_other =
        |ip: &std::net::IpAddr| reported().all(|own| own != ip) && reported().any(|own| own.is_ipv4() == ip.is_ipv4());
    !pod.ips.is_empty() && !pod.other_ips_unreadable && endpoint.ips.iter().all(is_other)
}

pub(super) fn outdated(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject).filter(|endpoint| is_stale(endpoint) && endpoint.reserves_ips())?;
    let (holder, state) = (&endpoint.holder, endpoint.holder.endpoint.as_deref()?);
    let pod = holder.pod.as_deref().filter(|pod| holder.takes_over(pod) && !pod.is_ending())?;
    if !has_other_ips(pod, state) {
        return None;
    }
    let because = format!("pod {} was recreated and runs with other addresses", holder.key);
    if let Some(waits) = waits_for_others(endpoint) {
        return Some(waits);
    }
    if !world.leads {
        return Some(RuleMatch::nothing(format!("{because}; the leader decides")));
    }
    let (apart, since) = (suspicion(Some(pod), &world.policy), since(endpoint, Rule::EndpointOutdated, now));
    let seen_twice = time::saturating_add(since, apart);
    let until = gone_deadline(holder, &world.policy, now).map_or(seen_twice, |gone| gone.max(seen_twice));
    let gone = why_gone_waits(holder, &world.policy);
    let because = format!("{because}{gone}; suspected since {}, for {}", time::format(since), duration::format(apart));
    Some(RuleMatch::act_after(until, deletion(endpoint), now, because))
}

pub(super) fn in_use(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let holder = &endpoint.holder;
    // A pod uses addresses that no pool knows: that is reported, whatever wants the pod.
    if runs_without_record(endpoint) {
        return None;
    }
    match &holder.retained_by {
        Some(RetainedBy::Vm) => return Some(RuleMatch::nothing("its virtual machine exists")),
        Some(RetainedBy::StatefulSet { name, .. }) => {
            return Some(RuleMatch::nothing(format!("StatefulSet {name} wants its pod")));
        }
        None => {}
    }
    let pod = holder.pod.as_ref()?;
    // A recreated pod of a StatefulSet takes over the endpoint.
    if is_stale(endpoint) && !holder.takes_over(pod) {
        return None;
    }
    let reported = pod.ips.is_empty() || endpoint.records > 0;
    (!pod.is_ending() && reported).then(|| RuleMatch::nothing(format!("pod {} is {}", holder.key, pod.phase.name())))
}

pub(super) fn records_unreadable(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    (endpoint.unreadable_pools && !endpoint.reserves_ips())
        .then(|| RuleMatch::nothing("the records of a pool cannot be read; its pod may have some there"))
}

pub(super) fn waiting_for_records(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    (endpoint.records > 0 && !endpoint.reserves_ips())
        .then(|| RuleMatch::nothing(format!("its pod has {}", counted(endpoint.records, "record", "records"))))
}

pub(super) fn pod_not_seen_yet(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let settled = endpoint.sighting.is_some_and(|sighting| sighting.rule == Rule::EndpointAbandoned);
    if endpoint.holder.pod.is_some() || endpoint.holder.absent || settled || !world.leads {
        return None;
    }
    let until = time::saturating_add(since(endpoint, Rule::EndpointNotSeenYet, now), POD_WATCH_LAG);
    (now <= until).then(|| RuleMatch::wait(until, deletion(endpoint), "no pod of its name was seen yet"))
}

pub(super) fn abandoned(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let key = &endpoint.holder.key;
    let because = match &endpoint.holder.pod {
        None if endpoint.records > 0 => format!("there is no pod {key}; its records are released next"),
        None => format!("there is no pod {key}, and no record of it"),
        Some(_) if is_stale(endpoint) => format!("pod {key} is another one now"),
        Some(_) => return None,
    };
    if let Some(waits) = waits_for_others(endpoint) {
        return Some(waits);
    }
    // One that reserves nothing goes after its records, which have waited.
    let until = gone_deadline(&endpoint.holder, &world.policy, now).filter(|_| endpoint.reserves_ips());
    let Some(until) = until else {
        return Some(RuleMatch::act(deletion(endpoint), since(endpoint, Rule::EndpointAbandoned, now), because));
    };
    let because = because + &why_gone_waits(&endpoint.holder, &world.policy);
    Some(if world.leads || now > until {
        RuleMatch::act_after(until, deletion(endpoint), now, because)
    } else {
        RuleMatch::nothing(format!("{because}; the leader waits for that"))
    })
}

pub(super) fn pod_finished(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let pod = endpoint.holder.pod.as_ref()?;
    let Some(until) = ending_deadline(&endpoint.holder, pod, &world.policy) else {
        let because = "its pod is finished or terminating; the settings leave such pods alone";
        return pod.is_ending().then(|| RuleMatch::nothing(because));
    };
    if let Some(waits) = waits_for_others(endpoint) {
        return Some(waits);
    }
    let key = &endpoint.holder.key;
    let because = if endpoint.records > 0 {
        format!("pod {key} is finished or terminating; its records are released next")
    } else {
        format!("pod {key} is {} and has no record any more", pod.phase.name())
    };
    if !world.leads {
        return Some(RuleMatch::nothing(format!("{because}; the leader deletes it")));
    }
    Some(RuleMatch::act_after(until, deletion(endpoint), now, because))
}

pub(super) fn without_record(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let endpoint = endpoint(subject)?;
    let because = format!("pod {} runs, but no pool has a record of it", endpoint.holder.key);
    if !world.leads {
        return Some(RuleMatch::nothing(because));
    }
    let until = time::saturating_add(since(endpoint, Rule::EndpointWithoutRecord, now), RECORD_WATCH_LAG);
    if now <= until {
        return Some(RuleMatch::wait(until, Action::Warn, because));
    }
    let because = format!("{because}: its addresses can be allocated to another pod; restart the pod");
    Some(RuleMatch::refuse(None, because))
}
