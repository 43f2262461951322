//! When an address is released, an endpoint deleted, a count corrected.
//!
//! The first matching rule decides. Rules about unreadable data come first, then rules that retain, then
//! rules that release. There are three grades of evidence: certain (the pod is gone or replaced), timed (it
//! is terminating or has finished), suspected (it runs, but is not known to use the address). Before
//! anything is written, the same rules judge again what was read live.

mod address;
mod endpoint;
mod pool;
mod settings;

pub(crate) use address::is_suspected;

use caretaker_core::{RuleMatch, SignedDuration, Timestamp, duration, rules, time};

use crate::Addresses;
use crate::act::Action;
use crate::subject::{Holder, NodeState, PodState, Policy};

/// A record may arrive before its pod, because each kind has its own watch. A pod that was never seen
/// counts as absent only after this long.
pub const POD_WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

/// The minimum time between the first and the second sighting of something suspicious, however short the
/// grace period of the pod is.
pub const MIN_SUSPICION: SignedDuration = SignedDuration::from_secs(30);

/// A record that waits for the deletion of its endpoint is looked at again after this long, if no watch has
/// delivered the deletion before.
pub const ENDPOINT_WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

type Found = Option<RuleMatch<Action>>;

rules! {
    /// Why something is done, or not done.
    pub enum Rule for Addresses {
        /// Spiderpool's ConfigMap `spiderpool-conf` cannot be read: reported, nothing is released.
        UnreadableConfig => settings::unreadable,
        /// Spiderpool binds addresses at an IaaS provider (`iaasNetworkProvider.serverUrl` in `spiderpool-conf`), which must be told of each release: reported, nothing is released.
        ProviderAddresses => settings::provider,
        /// The pool's `status.allocatedIPs`, a key in it, or its ranges cannot be read: reported; what cannot be read is left as it is.
        UnreadablePool => pool::unreadable,
        /// The pool is being deleted: reported. Addresses that certainly leaked are released, so that its deletion can finish.
        PoolTerminating => pool::terminating,
        /// The pool's `status.allocatedIPCount` is not the number of its records: corrected.
        AllocatedCountWrong => pool::count_wrong,
        /// The pool is healthy.
        PoolHealthy => pool::healthy,
        /// The record of the address cannot be read: reported, left as it is.
        UnreadableRecord => address::unreadable_record,
        /// The address is not one of its pool's, and its pod is not gone: reported, left as it is.
        IPOutsidePool => address::outside_pool,
        /// The pod uses the network of its node, which says nothing about this record: left as it is.
        HostNetwork => address::host_network,
        /// A virtual machine of that name exists and keeps its addresses over restarts: retained.
        RetainedByVM => address::retained_by_vm,
        /// A StatefulSet still wants a pod of that name, which gets its address back: retained.
        RetainedByStatefulSet => address::retained_by_stateful_set,
        /// Its endpoint would give it to the next pod of that name, with or without a record: the endpoint is deleted first, and until then the record stays.
        WaitingForEndpoint => address::waiting_for_endpoint,
        /// No pod of that name was seen yet; its watch may be late.
        PodNotSeenYet => address::pod_not_seen_yet,
        /// There is no pod of that name. If the pod was seen, or its endpoint names a node, that node may still run it: the pod counts as Terminating until its grace period (30 seconds if it was never seen) and the delay are over. Released at once if neither is known, or if the node is gone or out of service. If it was a mirror pod, also only at a second sighting.
        PodGone => address::pod_gone,
        /// Another pod of that name has the address, such as a mirror pod that was recreated: left as it is, and reported.
        IPOnAnotherPod => address::on_another_pod,
        /// Another pod has that name: released like the address of a pod that is gone. If it is a mirror pod without an address, also only at a second sighting; in the older form, if another sandbox is still there then.
        PodReplaced => address::pod_replaced,
        /// A recreated pod of a StatefulSet has no addresses yet: retained while its endpoint reserves this one.
        ReplacementStarting => address::replacement_starting,
        /// A recreated pod of a StatefulSet has other addresses, and no endpoint reserves this one: released like the address of a pod that is gone; if its endpoint is still the previous pod's, also only at a second sighting.
        ReplacementHasOtherIP => address::replacement_has_other_ip,
        /// The pod has finished: released after its grace period and the delay (the extra grace period and 5 seconds), and never before the deadline of a Terminating pod, if the settings release on such nodes.
        PodFinished => address::pod_finished,
        /// The pod is Terminating: released after its deletion timestamp, its grace period once more, and the delay (the extra grace period and 5 seconds); without the second grace period only if its node is gone or out of service. That its containers have ended changes nothing.
        PodTerminating => address::pod_terminating,
        /// The pod uses the address.
        InUse => address::in_use,
        /// The pod has reported no addresses yet, or none of this family, which proves nothing: left as it is.
        NoAddressesYet => address::no_addresses_yet,
        /// The pod runs with other addresses: released if that is still so after a grace period.
        IPNotOnPod => address::ip_not_on_pod,
        /// A recreated pod of a StatefulSet runs with other addresses than its endpoint reserves: deleted if that is still so after a grace period, and not before the node of the previous pod has had the time to end it; before the records.
        EndpointOutdated => endpoint::outdated,
        /// The endpoint's pod runs, or is recreated under the same name.
        EndpointInUse => endpoint::in_use,
        /// The records of a pool cannot be read, so the endpoint's pod may still have some: left as it is.
        RecordsUnreadable => endpoint::records_unreadable,
        /// The endpoint's pod still has records: they are released first, unless the endpoint reserves their addresses.
        WaitingForRecords => endpoint::waiting_for_records,
        /// The endpoint's pod was not seen yet; its watch may be late.
        EndpointNotSeenYet => endpoint::pod_not_seen_yet,
        /// The endpoint's pod is gone or replaced: deleted, so that it blocks no new pod of that name. If it reserves addresses, not before they could be released.
        EndpointAbandoned => endpoint::abandoned,
        /// The endpoint's pod has finished or is terminating, and its deadline has passed: deleted, after its records or before them.
        EndpointPodFinished => endpoint::pod_finished,
        /// The endpoint's pod runs, but no pool has a record of it: reported if that is still so after 30 seconds.
        EndpointWithoutRecord => endpoint::without_record,
    }
}

impl Rule {
    /// True if the rule counts from the first time it matched.
    #[must_use]
    pub const fn counts_from_first_match(self) -> bool {
        self.is_suspicion()
            || matches!(
                self,
                Self::PodNotSeenYet
                    | Self::PodGone
                    | Self::EndpointNotSeenYet
                    | Self::EndpointAbandoned
                    | Self::EndpointOutdated
                    | Self::EndpointWithoutRecord
            )
    }

    /// True if the first match is only a suspicion. Such evidence can be refuted later, so a conflict is
    /// answered by reading the pod again as well.
    #[must_use]
    pub const fn is_suspicion(self) -> bool {
        matches!(self, Self::PodReplaced | Self::ReplacementStarting | Self::ReplacementHasOtherIP | Self::IPNotOnPod)
    }
}

/// True if the settings release addresses of Terminating and finished pods on this node. Of an unknown node both switches
/// must say so.
fn releases_on_node(holder: &Holder, policy: &Policy) -> bool {
    match holder.node.state {
        NodeState::Ready => policy.on_ready_node,
        NodeState::NotReady { .. } | NodeState::OutOfService | NodeState::Gone => policy.on_lost_node,
        NodeState::Unknown => policy.on_ready_node && policy.on_lost_node,
    }
}

/// When the addresses of a pod that is Terminating or has finished may be released; `None` if it is neither,
/// or if the settings retain them. Of one that is both the later deadline counts, also if the settings retain what is
/// only Terminating.
fn ending_deadline(holder: &Holder, pod: &PodState, policy: &Policy) -> Option<Timestamp> {
    if !releases_on_node(holder, policy) {
        return None;
    }
    let finished = pod.finished_deadline(policy);
    let terminating = pod.terminating_deadline(holder.node.state, policy);
    let terminating = terminating.filter(|_| policy.release_terminating || finished.is_some());
    finished.into_iter().chain(terminating).max()
}

/// When the addresses of a pod that is gone may be released; `None` if at once: it was never seen and no endpoint names
/// its node, or its node has certainly ended.
fn gone_deadline(holder: &Holder, policy: &Policy, now: Timestamp) -> Option<Timestamp> {
    holder.gone.as_ref()?.deadline(policy, now)
}

/// Why the addresses of a pod that is gone wait, or do not, to be added to what is known of it; empty if nothing is
/// known of it.
fn why_gone_waits(holder: &Holder, policy: &Policy) -> String {
    let Some(gone) = &holder.gone else { return String::new() };
    let node = gone.node.describe();
    if gone.node.state.has_certainly_ended() {
        return format!("; {node}");
    }
    let from = match (gone.deletion, gone.endpoint_deletion) {
        (Some(deletion), _) => format!("its deletion timestamp {}", time::format(deletion)),
        (None, Some(deletion)) if !gone.was_seen => {
            format!("the deletion of its endpoint at {}", time::format(deletion))
        }
        (None, _) => "the moment when it was first missed".to_owned(),
    };
    let delay = duration::format(policy.delay());
    format!("; {node} and may still run it, so a grace period of {}s and {delay} count from {from}", gone.grace)
}

/// The time between the first and the second sighting of something suspicious about a pod.
fn suspicion(pod: Option<&PodState>, policy: &Policy) -> SignedDuration {
    let grace = SignedDuration::from_secs(pod.map_or(0, |pod| pod.grace).into());
    (grace + policy.extra_grace_period).max(MIN_SUSPICION)
}
