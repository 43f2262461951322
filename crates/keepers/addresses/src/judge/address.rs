//! Addresses: which are used, retained, or leaked.

use caretaker_core::{RuleMatch, Timestamp, duration, time};

use super::{
    ENDPOINT_WATCH_LAG, Found, POD_WATCH_LAG, Rule, ending_deadline, gone_deadline, releases_on_node, suspicion,
    why_gone_waits,
};
use crate::act::Action;
use crate::api::Identity;
use crate::subject::{Address, Holder, Phase, PodState, RetainedBy, Subject, World};

fn address(subject: &Subject) -> Option<&Address> {
    if let Subject::Address(address) = subject { Some(address) } else { None }
}

/// The pod of that name, if it is the record's pod or may be it.
fn same_pod(address: &Address) -> Option<&PodState> {
    address.holder.pod.as_deref().filter(|pod| address.is_of(pod) != Some(false))
}

/// The pod of that name, if it is certainly not the record's pod.
fn another_pod(address: &Address) -> Option<&PodState> {
    address.holder.pod.as_deref().filter(|pod| address.is_of(pod) == Some(false))
}

/// True if what this rule found may still be refuted; otherwise it is certain, or waits for a deadline.
pub(crate) fn is_suspected(address: &Address, rule: Rule) -> bool {
    let holder = &address.holder;
    match rule {
        Rule::PodNotSeenYet | Rule::ReplacementStarting | Rule::IPNotOnPod => true,
        Rule::PodGone => holder.was_mirror,
        Rule::PodReplaced => {
            matches!(address.identity, Identity::Container(_)) || holder.pod.as_deref().is_some_and(is_starting_mirror)
        }
        Rule::ReplacementHasOtherIP => holder.pod.as_deref().is_some_and(|pod| has_stale_endpoint(holder, pod)),
        _ => false,
    }
}

/// True for a mirror pod that reports no address yet: the containers of the one before it may run on.
fn is_starting_mirror(pod: &PodState) -> bool {
    pod.is_mirror && pod.ips.is_empty()
}

/// True if the endpoint is still the previous pod's: it may be about to be written.
fn has_stale_endpoint(holder: &Holder, pod: &PodState) -> bool {
    holder.endpoint.is_some() && !holder.endpoint_is_of(pod)
}

/// Since when this rule has matched; now, if it matches for the first time or the clock was set back.
fn since(address: &Address, rule: Rule, now: Timestamp) -> Timestamp {
    address.sighting.filter(|sighting| sighting.rule == rule).map_or(now, |sighting| sighting.since.min(now))
}

pub(super) fn unreadable_record(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    address.invalid.as_ref().map(|why| RuleMatch::refuse(None, why.clone()))
}

pub(super) fn outside_pool(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject).filter(|address| address.outside_pool)?;
    // Nobody gets such an address, and its record blocks changes of the pool: it goes with its pod.
    let holder = &address.holder;
    let is_gone = match holder.pod.as_deref() {
        Some(pod) => address.is_of(pod) == Some(false) && !holder.is_stateful() && !holder.uses(pod, address.ip),
        None => holder.retained_by.is_none(),
    };
    (!is_gone).then(|| {
        let (pool, key) = (&address.pool, &holder.key);
        let because = format!("{pool} has no such address, and {key} may use it; correct spec.ips, or delete the pod");
        RuleMatch::refuse(None, because)
    })
}

pub(super) fn host_network(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pod = same_pod(address(subject)?)?;
    pod.host_network.then(|| RuleMatch::nothing("its pod uses the network of its node"))
}

pub(super) fn retained_by_vm(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let holder = &address(subject)?.holder;
    let exists = holder.retained_by == Some(RetainedBy::Vm);
    exists.then(|| RuleMatch::nothing(format!("the virtual machine {} exists", holder.key)))
}

pub(super) fn retained_by_stateful_set(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let Some(RetainedBy::StatefulSet { name, first, replicas }) = &address.holder.retained_by else { return None };
    let ends = match same_pod(address) {
        Some(pod) => pod.is_ending(),
        // The next pod of the name gets what the endpoint reserves, also after one that had another address.
        None => address.holder.pod.as_deref().is_none_or(|pod| pod.is_ending() && address.holder.reserves(address.ip)),
    };
    ends.then(|| {
        let last = first.saturating_add(*replicas) - 1;
        RuleMatch::nothing(format!(
            "StatefulSet {name} wants the ordinals {first} to {last}, which include {}",
            address.holder.key
        ))
    })
}

pub(super) fn waiting_for_endpoint(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let holder = &address.holder;
    if !holder.reserves(address.ip) {
        return None;
    }
    let due = match holder.pod.as_deref() {
        None => gone_deadline(holder, &world.policy, now).unwrap_or(now),
        Some(pod) if address.is_of(pod) == Some(false) => {
            // A pod that has no addresses yet gets this one.
            let may_use = pod.ips.is_empty() || holder.uses(pod, address.ip);
            (!may_use).then_some(now)?
        }
        Some(pod) if pod.is_ending() => ending_deadline(holder, pod, &world.policy)?,
        Some(pod) => {
            let may_use = holder.uses(pod, address.ip) || may_not_have_reported(address, pod);
            (!may_use).then_some(now)?
        }
    };
    let because =
        format!("SpiderEndpoint {} reserves it for the next pod of that name; it is deleted first", holder.key);
    if !world.leads {
        return Some(RuleMatch::nothing(because));
    }
    let until = if due > now { due } else { time::saturating_add(now, ENDPOINT_WATCH_LAG) };
    Some(RuleMatch::wait(until, Action::Release, because))
}

pub(super) fn pod_not_seen_yet(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let holder = &address.holder;
    // A pod that counted as absent once is not waited for again.
    let settled = address.sighting.is_some_and(|sighting| sighting.rule == Rule::PodGone);
    if holder.pod.is_some() || holder.absent || settled || !world.leads {
        return None;
    }
    let until = time::saturating_add(since(address, Rule::PodNotSeenYet, now), POD_WATCH_LAG);
    (now <= until).then(|| {
        RuleMatch::wait(until, Action::Release, format!("the pod {} of its record was not seen yet", holder.key))
    })
}

pub(super) fn pod_gone(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject).filter(|address| address.holder.pod.is_none())?;
    let because = format!("there is no pod {}", address.holder.key);
    if address.holder.was_mirror {
        let because = format!("{because}; it was a mirror pod, whose containers may run on");
        return suspect(address, Rule::PodGone, world, now, &because);
    }
    Some(release_gone(address, Rule::PodGone, world, now, because))
}

pub(super) fn on_another_pod(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = another_pod(address)?;
    let holder = &address.holder;
    (!holder.is_stateful() && holder.uses(pod, address.ip)).then(|| {
        let because = format!(
            "pod {} has the uid {} now and reports this address, the record has the uid {}; unless it is a mirror \
             pod, restart it, so that it gets an address of its own",
            holder.key, pod.uid, address.uid
        );
        RuleMatch::refuse(None, because)
    })
}

pub(super) fn pod_replaced(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = another_pod(address)?;
    if address.holder.is_stateful() {
        return None;
    }
    let key = &address.holder.key;
    if let Identity::Container(_) = address.identity {
        // A pod keeps its uid when its sandbox is recreated, and the endpoint is written later.
        let because = format!("pod {key} has another sandbox now, and other addresses");
        return suspect(address, Rule::PodReplaced, world, now, &because);
    }
    let because = format!("pod {key} has the uid {} now, the record has {}", pod.uid, address.uid);
    if is_starting_mirror(pod) {
        let because = format!("{because}; it is a mirror pod, whose containers may run on, and reports no address yet");
        return suspect(address, Rule::PodReplaced, world, now, &because);
    }
    Some(release_gone(address, Rule::PodReplaced, world, now, because))
}

pub(super) fn replacement_starting(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = another_pod(address)?;
    if pod.ips.is_empty() {
        let because = format!("pod {} was recreated and has no addresses yet", address.holder.key);
        if address.holder.reserves(address.ip) {
            return Some(RuleMatch::nothing(because));
        }
        // Spiderpool gives back only what an endpoint reserves: without an endpoint the pod would wait for a
        // free address while this one is retained for it.
        let because = format!("{because}; no endpoint reserves this one for it");
        return suspect(address, Rule::ReplacementStarting, world, now, &because);
    }
    let uses = address.holder.uses(pod, address.ip);
    uses.then(|| RuleMatch::nothing(format!("pod {} was recreated and has it again", address.holder.key)))
}

pub(super) fn replacement_has_other_ip(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = another_pod(address)?;
    let because = format!("pod {} was recreated and has other addresses", address.holder.key);
    if has_stale_endpoint(&address.holder, pod) {
        return suspect(address, Rule::ReplacementHasOtherIP, world, now, &because);
    }
    Some(release_gone(address, Rule::ReplacementHasOtherIP, world, now, because))
}

/// Releases the address of a pod that is gone: at once, or when its node has had the time to end it. Then it is as certain
/// as what goes at once, so that a standby may do it as well.
fn release_gone(address: &Address, rule: Rule, world: &World, now: Timestamp, because: String) -> RuleMatch<Action> {
    let because = because + &why_gone_waits(&address.holder, &world.policy);
    match gone_deadline(&address.holder, &world.policy, now) {
        None => RuleMatch::act(Action::Release, since(address, rule, now), because),
        Some(until) if world.leads || now > until => RuleMatch::act_after(until, Action::Release, now, because),
        Some(_) => RuleMatch::nothing(format!("{because}; the leader waits for that")),
    }
}

pub(super) fn pod_finished(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    let mut because = format!(
        "pod {} is {} since {}, its grace period is {}s",
        address.holder.key,
        pod.phase.name(),
        time::format(pod.finished?),
        pod.grace
    );
    if let Some(deletion) = pod.deletion {
        because.push_str(&format!("; it is Terminating, its deletion timestamp is {}", time::format(deletion)));
    }
    because.push_str(&format!("; {}", address.holder.node.describe()));
    Some(release_after_pod(address, pod, world, now, because))
}

pub(super) fn pod_terminating(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    let (key, node) = (&address.holder.key, &address.holder.node);
    let deletion = time::format(pod.deletion?);
    let mut because = format!("pod {key} is Terminating, its deletion timestamp is {deletion}; {}", node.describe());
    if !node.state.has_certainly_ended() {
        let grace = pod.teardown_grace();
        because.push_str(&format!(" and may still run it, so its grace period of {grace}s counts once more"));
    }
    Some(release_after_pod(address, pod, world, now, because))
}

/// Releases after the deadline of a pod that is Terminating or has finished, unless the settings retain its
/// address. Only the leader acts on deadlines.
fn release_after_pod(
    address: &Address,
    pod: &PodState,
    world: &World,
    now: Timestamp,
    because: String,
) -> RuleMatch<Action> {
    let Some(until) = ending_deadline(&address.holder, pod, &world.policy) else {
        let switch = if releases_on_node(&address.holder, &world.policy) { "" } else { " on such nodes" };
        return RuleMatch::nothing(format!("{because}; the settings retain addresses of such pods{switch}"));
    };
    if world.leads {
        RuleMatch::act_after(until, Action::Release, now, because)
    } else {
        RuleMatch::nothing(format!("{because}; the leader releases it"))
    }
}

pub(super) fn in_use(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    address.holder.uses(pod, address.ip).then(|| RuleMatch::nothing(uses(&address.holder.key, pod.phase)))
}

/// In one allocation: nearly every address is in use.
fn uses(holder: &str, phase: Phase) -> String {
    let mut text = String::with_capacity(holder.len() + 28);
    for part in ["pod ", holder, " has it and is ", phase.name()] {
        text.push_str(part);
    }
    text
}

pub(super) fn no_addresses_yet(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    may_not_have_reported(address, pod).then(|| {
        RuleMatch::nothing(format!(
            "pod {} is {} and may not have reported its addresses yet",
            address.holder.key,
            pod.phase.name()
        ))
    })
}

/// True if what the pod reports proves nothing about this address.
fn may_not_have_reported(address: &Address, pod: &PodState) -> bool {
    pod.ips.is_empty() || pod.phase == Phase::Pending || address.holder.reports_no_family_of(pod, address.ip)
}

pub(super) fn ip_not_on_pod(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    let own: Vec<String> = pod.ips.iter().map(ToString::to_string).collect();
    let because = format!("pod {} is {} with {}", address.holder.key, pod.phase.name(), own.join(", "));
    suspect(address, Rule::IPNotOnPod, world, now, &because)
}

/// Released if the same rule still matches a grace period after its first match. Only the leader counts.
fn suspect(address: &Address, rule: Rule, world: &World, now: Timestamp, because: &str) -> Found {
    if !world.leads {
        return Some(RuleMatch::nothing(format!("{because}; the leader decides")));
    }
    if address.pool_deleting {
        let because = format!("{because}; but its pool is being deleted, so it is left as it is");
        return Some(RuleMatch::refuse(None, because));
    }
    let apart = suspicion(address.holder.pod.as_deref(), &world.policy);
    let since = since(address, rule, now);
    let seen_twice = time::saturating_add(since, apart);
    let until = gone_deadline(&address.holder, &world.policy, now).map_or(seen_twice, |gone| gone.max(seen_twice));
    let gone = why_gone_waits(&address.holder, &world.policy);
    let because = format!("{because}{gone}; suspected since {}, for {}", time::format(since), duration::format(apart));
    Some(RuleMatch::act_after(until, Action::Release, now, because))
}
