//! When an address goes back to its pool.
//!
//! First match wins. Doubt is judged before anything else, and whoever may come back before whoever is
//! gone. Three grades of evidence: certain (the pod is absent, or another one bears its name), timed
//! (it is going, or has finished), suspected (it lives, but is not known to use the address). Whatever
//! is judged here is read again, live, before it is done.

mod endpoint;

use caretaker_core::{RuleMatch, SignedDuration, Timestamp, duration, rules, rules::RuleTable, time};

use crate::act::Action;
use crate::api::Identity;
use crate::subject::{Address, Keeps, Phase, Pod, Pool, Subject, World};

/// A record may be seen before the pod that it is of: the two come by different watches. A pod that
/// was never seen is taken for absent only after this long.
pub const SETTLE: SignedDuration = SignedDuration::from_secs(5);

/// However short the grace period of a pod, two sightings of something suspicious are this far apart.
pub const APART: SignedDuration = SignedDuration::from_secs(30);

/// Rules that count from when something was first seen.
pub const SIGHTED: [&str; 9] = [
    "PodNotSeenYet",
    "PodGone",
    "OtherPod",
    "NewPodStarts",
    "NewPodElsewhere",
    "NotAmongItsOwn",
    "EndpointNotSeenYet",
    "EndpointAbandoned",
    "EndpointWithoutRecord",
];

/// Rules under which something is only suspected at first.
pub const SUSPECTED: [&str; 4] = ["OtherPod", "NewPodStarts", "NewPodElsewhere", "NotAmongItsOwn"];

type Found = Option<RuleMatch<Action>>;

/// The rules, in order.
pub static RULES: RuleTable<Subject, World, Action> = rules![
    /// A pool of which `status.allocatedIPs`, a key in it, or the ranges cannot be read: reported, and that is left as it is.
    UnreadablePool => unreadable_pool,
    /// A pool that is being deleted: reported. What surely leaked is released, so that it can go.
    PoolLeaves => pool_leaves,
    /// A pool of which `status.allocatedIPCount` is not the number of records: it is set right.
    CountDrifts => count_drifts,
    /// A pool that is as it should be.
    PoolFine => pool_fine,
    /// An address of which the record cannot be read: reported, left as it is.
    UnreadableRecord => unreadable_record,
    /// An address that its pool does not have: reported, left as it is.
    OutsideItsPool => outside_its_pool,
    /// The pod uses the addresses of its node; nothing is known about this record.
    HostNetwork => host_network,
    /// A virtual machine of that name lives, and keeps its addresses over restarts.
    MachineLives => machine_lives,
    /// A StatefulSet still wants a pod of that name, which gets its address back.
    SetWantsIt => set_wants_it,
    /// Its endpoint would give it to the next pod of that name, record or not: that goes first.
    EndpointGoesFirst => endpoint_goes_first,
    /// No pod of that name was seen yet; its watch may be late.
    PodNotSeenYet => pod_not_seen_yet,
    /// There is no pod of that name: released at once.
    PodGone => pod_gone,
    /// Another pod bears the name: released at once. In the older form another sandbox: if that is seen again.
    OtherPod => other_pod,
    /// A pod of a StatefulSet was made anew and has no addresses yet: kept while its endpoint promises it this one.
    NewPodStarts => new_pod_starts,
    /// A pod of a StatefulSet was made anew and has other addresses: released at once, or if its endpoint is still of the one before, when that is seen again.
    NewPodElsewhere => new_pod_elsewhere,
    /// The pod has finished: released after its grace period and the delay.
    PodFinished => pod_finished,
    /// The pod is Terminating: released after its deletion timestamp and the delay.
    PodTerminating => pod_terminating,
    /// The pod uses the address.
    InUse => in_use,
    /// The pod has told no addresses yet, or none of this family, which proves nothing.
    NoAddressesYet => no_addresses_yet,
    /// The pod runs with other addresses: released if that is seen again after a grace period.
    NotAmongItsOwn => not_among_its_own,
    /// An endpoint whose pod lives, or may come back.
    EndpointInUse => endpoint::in_use,
    /// An endpoint, while the records of a pool cannot be read: there may be some of its pod.
    RecordsNotKnown => endpoint::records_not_known,
    /// An endpoint whose pod still has records; they go first, unless it is one that promises them.
    RecordsGoFirst => endpoint::records_go_first,
    /// An endpoint whose pod was not seen yet; its watch may be late.
    EndpointNotSeenYet => endpoint::not_seen_yet,
    /// An endpoint whose pod is gone, or another one bears its name: removed, so that it stands in nobody's way.
    EndpointAbandoned => endpoint::abandoned,
    /// An endpoint whose pod does not run any more and is over its time: removed, after its records or before them.
    EndpointOver => endpoint::over,
    /// An endpoint whose pod runs, but of which no pool has a record: reported if it is still so after 30 seconds.
    EndpointWithoutRecord => endpoint::without_record,
];

fn address(subject: &Subject) -> Option<&Address> {
    if let Subject::Address(address) = subject { Some(address) } else { None }
}

fn pool(subject: &Subject) -> Option<&Pool> {
    if let Subject::Pool(pool) = subject { Some(pool) } else { None }
}

fn unreadable_pool(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pool = pool(subject)?;
    if let Some(why) = &pool.broken {
        return Some(RuleMatch::refuse(None, format!("nothing in it is released: {why}")));
    }
    let odd = pool.odd.first()?;
    let more = if pool.odd.len() > 1 { format!(", and {} more", pool.odd.len() - 1) } else { String::new() };
    Some(RuleMatch::refuse(None, format!("{odd}{more}")))
}

fn pool_leaves(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pool = pool(subject)?;
    let left = pool.records;
    pool.leaves.then(|| RuleMatch::refuse(None, format!("it is being deleted, and {left} addresses of it are held")))
}

fn count_drifts(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let pool = pool(subject)?;
    // What was never counted is nothing.
    let count = pool.count.unwrap_or(0);
    (usize::try_from(count) != Ok(pool.records)).then(|| {
        let because = format!("status.allocatedIPCount is {count}, and there are {} records", pool.records);
        RuleMatch::act(Action::Recount, now, because)
    })
}

fn pool_fine(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pool = pool(subject)?;
    Some(RuleMatch::nothing(format!("{} of {} addresses are held", pool.records, pool.size)))
}

fn unreadable_record(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    address.broken.as_ref().map(|why| RuleMatch::refuse(None, why.clone()))
}

fn outside_its_pool(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    address.outside.then(|| {
        let because = format!(
            "it is not among the addresses of {}; set spec.ips right, or take the record out by hand",
            address.pool
        );
        RuleMatch::refuse(None, because)
    })
}

/// The pod that bears the name, if it is not known to be another one.
fn same_pod(address: &Address) -> Option<&Pod> {
    address.holder.pod.as_deref().filter(|pod| address.is_of(pod) != Some(false))
}

/// The pod that bears the name, if it is another one.
fn another_pod(address: &Address) -> Option<&Pod> {
    address.holder.pod.as_deref().filter(|pod| address.is_of(pod) == Some(false))
}

fn host_network(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let pod = same_pod(address(subject)?)?;
    pod.host_network.then(|| RuleMatch::nothing("its pod uses the network of its node"))
}

fn machine_lives(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let holder = &address(subject)?.holder;
    let lives = holder.kept_by == Some(Keeps::Machine);
    lives.then(|| RuleMatch::nothing(format!("the virtual machine {} lives", holder.key)))
}

fn set_wants_it(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let Some(Keeps::Set { name, first, replicas }) = &address.holder.kept_by else { return None };
    let gone = match same_pod(address) {
        Some(pod) => pod.deletion.is_some() || pod.phase.is_over(),
        None => address.holder.pod.is_none(),
    };
    gone.then(|| {
        let last = first.saturating_add(*replicas) - 1;
        RuleMatch::nothing(format!(
            "StatefulSet {name} wants the ordinals {first} to {last}, {} among them",
            address.holder.key
        ))
    })
}

fn endpoint_goes_first(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let going = match &address.holder.pod {
        Some(_) => same_pod(address).is_some_and(|pod| pod.deletion.is_some() || pod.phase.is_over()),
        None => true,
    };
    (going && address.holder.is_promised(address.ip)).then(|| {
        RuleMatch::nothing(format!("SpiderEndpoint {} still promises it to a pod of that name", address.holder.key))
    })
}

fn pod_not_seen_yet(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let holder = &address.holder;
    // Who was taken for absent once is not waited for again.
    let settled = address.sighted.is_some_and(|sighting| sighting.rule == "PodGone");
    if holder.pod.is_some() || holder.absent || settled || !world.leads {
        return None;
    }
    let until = time::saturating_add(since(address, "PodNotSeenYet", now), SETTLE);
    (now <= until).then(|| {
        RuleMatch::wait(until, Action::Release, format!("there is a record of {}, but no pod was seen", holder.key))
    })
}

fn pod_gone(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    address.holder.pod.is_none().then(|| {
        let because = format!("there is no pod {}", address.holder.key);
        RuleMatch::act(Action::Release, since(address, "PodGone", now), because)
    })
}

fn other_pod(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = another_pod(address)?;
    if let Identity::Container(_) = address.identity
        && !address.holder.is_stateful()
    {
        // A pod keeps its uid while its sandbox is made anew, and the endpoint follows later.
        let because = format!("pod {} has another sandbox now, and other addresses", address.holder.key);
        return suspect(address, "OtherPod", world, now, &because);
    }
    (!address.holder.is_stateful()).then(|| {
        let because =
            format!("pod {} is another one now: {}, the record is of {}", address.holder.key, pod.uid, address.uid);
        RuleMatch::act(Action::Release, since(address, "OtherPod", now), because)
    })
}

fn new_pod_starts(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = another_pod(address)?;
    if pod.ips.is_empty() {
        let because = format!("pod {} was made anew and has no addresses yet", address.holder.key);
        if address.holder.is_promised(address.ip) {
            return Some(RuleMatch::nothing(because));
        }
        // Spiderpool gives back what an endpoint says, and nothing else: without one the pod would wait for
        // a free address while this one is held for it.
        return suspect(address, "NewPodStarts", world, now, &format!("{because}; no endpoint promises it this one"));
    }
    let uses = address.holder.uses(pod, address.ip);
    uses.then(|| RuleMatch::nothing(format!("pod {} was made anew and has it again", address.holder.key)))
}

fn new_pod_elsewhere(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    another_pod(address)?;
    // An endpoint that still speaks of the pod before may be about to be written.
    let settled = address.holder.endpoint.is_none()
        || address.holder.pod.as_deref().is_some_and(|pod| address.holder.endpoint_is_of(pod));
    let because = format!("pod {} was made anew and has other addresses", address.holder.key);
    if settled {
        return Some(RuleMatch::act(Action::Release, since(address, "NewPodElsewhere", now), because));
    }
    suspect(address, "NewPodElsewhere", world, now, &because)
}

fn pod_finished(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    let over = pod.over_at(&world.policy)?;
    let going = pod.deletion.filter(|_| traces(address, world)).map(|at| time::saturating_add(at, world.policy.delay));
    let until = going.map_or(over, |going| going.min(over));
    let finished = pod.finished.map(time::format).unwrap_or_default();
    let phase = pod.phase.name();
    let because = format!("pod {} is {phase} since {finished}, its grace period is {}s", address.holder.key, pod.grace);
    Some(at(until, world, now, because))
}

fn pod_terminating(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    let deletion = pod.deletion?;
    let because = format!("pod {} is Terminating, it was to end at {}", address.holder.key, time::format(deletion));
    if !traces(address, world) {
        let node = if address.holder.node_ready == Some(true) { "ready" } else { "not ready" };
        return Some(RuleMatch::nothing(format!("{because}; the settings leave such pods alone (its node is {node})")));
    }
    Some(at(time::saturating_add(deletion, world.policy.delay), world, now, because))
}

/// Whether the settings have an address of a Terminating pod released.
fn traces(address: &Address, world: &World) -> bool {
    let policy = &world.policy;
    let by_node = match address.holder.node_ready {
        Some(true) => policy.on_ready_node,
        // A node that is gone cannot be ready.
        Some(false) | None => policy.on_lost_node,
    };
    // The two later switches are about pods that nobody brings back under the same name.
    policy.terminating && (by_node || address.holder.is_stateful())
}

/// At a deadline, which the leader sees to.
fn at(until: Timestamp, world: &World, now: Timestamp, because: String) -> RuleMatch<Action> {
    if !world.leads {
        return RuleMatch::nothing(format!("{because}; the leader sees to it"));
    }
    if now > until {
        RuleMatch::act(Action::Release, until, because)
    } else {
        RuleMatch::wait(until, Action::Release, because)
    }
}

fn in_use(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    address.holder.uses(pod, address.ip).then(|| RuleMatch::nothing(uses(&address.holder.key, pod.phase)))
}

fn uses(holder: &str, phase: Phase) -> String {
    let mut text = String::with_capacity(holder.len() + 28);
    for part in ["pod ", holder, " has it and is ", phase.name()] {
        text.push_str(part);
    }
    text
}

fn no_addresses_yet(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    let none = pod.ips.is_empty() || pod.phase == Phase::Pending || address.holder.tells_of_none_like(pod, address.ip);
    none.then(|| {
        RuleMatch::nothing(format!(
            "pod {} is {} and may not have told its addresses yet",
            address.holder.key,
            pod.phase.name()
        ))
    })
}

fn not_among_its_own(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let address = address(subject)?;
    let pod = same_pod(address)?;
    let own: Vec<String> = pod.ips.iter().map(ToString::to_string).collect();
    let because = format!("pod {} is {} with {}", address.holder.key, pod.phase.name(), own.join(", "));
    suspect(address, "NotAmongItsOwn", world, now, &because)
}

/// Two sightings, a grace period apart, and then the live read that comes before every act.
fn suspect(address: &Address, rule: &'static str, world: &World, now: Timestamp, because: &str) -> Found {
    if !world.leads {
        return Some(RuleMatch::nothing(format!("{because}; the leader sees to it")));
    }
    if address.pool_leaves {
        return Some(RuleMatch::refuse(None, format!("{because}; but its pool is being deleted, so it is left alone")));
    }
    let grace = address.holder.pod.as_ref().map_or(0, |pod| pod.grace);
    let apart = (SignedDuration::from_secs(grace.into()) + world.policy.delay).max(APART);
    let since = since(address, rule, now);
    let until = time::saturating_add(since, apart);
    let because = format!("{because}; suspected since {}, for {}", time::format(since), duration::format(apart));
    Some(if now > until {
        RuleMatch::act(Action::Release, until, because)
    } else {
        RuleMatch::wait(until, Action::Release, because)
    })
}

/// Since when it has been seen like this; from now on, if never before.
fn since(address: &Address, rule: &'static str, now: Timestamp) -> Timestamp {
    address.sighted.filter(|sighting| sighting.rule == rule).map_or(now, |sighting| sighting.since)
}
