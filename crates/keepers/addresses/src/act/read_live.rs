//! The live read before a write: what was judged from the cache is read again.
//!
//! The pool is read before the pods. A record proves that its pod existed when the record was made; if the
//! pod does not exist after the record was read, it is gone for good, because no uid is used twice. For the same
//! reason a pod whose deletion the watch has delivered is not read.

use std::collections::BTreeSet;
use std::sync::Arc;

use caretaker_core::RuleId;
use caretaker_engine::cache::Cache as _;
use caretaker_engine::confirm::{LiveView, Names, ReadError, Unreadable};
use caretaker_engine::{Batch, PlannedAction};
use kube::Client;

use crate::Addresses;
use crate::api::{Identity, Kind, ordinal};
use crate::observe::{AddressCache, Key};
use crate::subject::{Holder, Owner, Policy, Subject};

/// Reads everything that it takes to judge a batch again. After a conflict, pods whose evidence is lasting
/// are not read again: a record that is still the same has still leaked. Returns the subjects that cannot be
/// confirmed, because something about them could not be read.
pub(crate) async fn read_live(
    batch: &Batch<Addresses>,
    live: &mut LiveView<'_, Addresses>,
) -> Result<BTreeSet<Key>, ReadError> {
    if let Some(pool) = batch.actions.first().and_then(|planned| planned.subject.pool()) {
        live.get(Kind::Pool.source(), None, pool).await?;
        if !live.cache().has_pool(pool) {
            return Ok(BTreeSet::new());
        }
    }
    let (is_retry, policy) = (live.retries() > 0, live.world().policy);
    let is_read = |planned: &&PlannedAction<Addresses>| !(is_retry && is_lasting(planned, &policy));
    let planned: Vec<_> = batch.actions.iter().filter(is_read).collect();
    let mut reader = Reader { planned: &planned, live, unreadable: BTreeSet::new() };
    reader.read_holders().await;
    Ok(reader.unreadable)
}

/// True if the evidence cannot change while the record is the same. The state of a node can: one that was gone may
/// register again, and a person may take its taint off.
fn is_lasting(planned: &PlannedAction<Addresses>, policy: &Policy) -> bool {
    let is_by_node = planned.subject.holder().is_some_and(|holder| !deciding_nodes(holder, policy).is_empty());
    is_pod_lasting(planned) && !is_by_node
}

/// True if what is known of the pod cannot change while the record is the same: no uid is used twice, no terminating pod
/// comes back, no finished pod starts again. A StatefulSet can want its pod again, and a suspicion can be
/// refuted.
fn is_pod_lasting(planned: &PlannedAction<Addresses>) -> bool {
    let Subject::Address(address) = &planned.subject else { return true };
    let has_ordinal = address.holder.key.split_once('/').is_some_and(|(_, name)| ordinal(name).is_some());
    let is_suspicion = matches!(planned.verdict.rule, RuleId::Keeper(rule) if rule.is_suspicion());
    !has_ordinal && !address.holder.is_stateful() && !address.holder.was_mirror && !is_suspicion
}

/// The nodes whose state decides: by the settings, or because a node that is gone or out of service gets no time.
fn deciding_nodes(holder: &Holder, policy: &Policy) -> Vec<Arc<str>> {
    let is_ending = holder.pod.as_ref().is_some_and(|pod| pod.is_ending());
    let of_pod = Some(&holder.node)
        .filter(|node| is_ending && (policy.on_ready_node != policy.on_lost_node || node.state.has_certainly_ended()));
    let of_gone = holder.gone.as_ref().map(|gone| &gone.node).filter(|node| node.state.has_certainly_ended());
    of_pod.into_iter().chain(of_gone).filter_map(|node| node.name.clone()).collect()
}

/// True if the watch has delivered the deletion of the record's own pod: then there is nothing to read. That a list
/// did not have the pod is not enough.
fn is_certainly_gone(planned: &PlannedAction<Addresses>, cache: &AddressCache) -> bool {
    let Subject::Address(address) = &planned.subject else { return false };
    let Identity::Pod(uid) = &address.identity else { return false };
    is_pod_lasting(planned) && cache.saw_deletion(&address.holder.key, uid)
}

struct Reader<'a, 'v> {
    planned: &'a [&'a PlannedAction<Addresses>],
    live: &'a mut LiveView<'v, Addresses>,
    unreadable: BTreeSet<Key>,
}

impl Reader<'_, '_> {
    /// Reads what exists under the names of the subjects, and what retains their addresses.
    async fn read_holders(&mut self) {
        let (mut existing, mut gone, mut endpoints) = (Names::new(), Names::new(), Names::new());
        let (mut sets, mut vms) = (Names::new(), Names::new());
        let mut holders = Vec::with_capacity(self.planned.len());
        for planned in self.planned {
            let Some(holder) = planned.subject.holder() else { continue };
            holders.push(holder);
            let Some((namespace, name)) = holder.key.split_once('/') else { continue };
            if !is_certainly_gone(planned, self.live.cache()) {
                let pods = if holder.pod.is_some() { &mut existing } else { &mut gone };
                pods.entry(namespace).or_default().insert(name);
            }
            // An endpoint that is deleted is not read: its deletion is on condition of the version that was judged.
            if let Subject::Address(_) = planned.subject {
                endpoints.entry(namespace).or_default().insert(name);
            }
            if let Some((by_name, _)) = ordinal(name) {
                let owner = holder.endpoint.as_deref().map(|endpoint| &endpoint.owner);
                let by_endpoint = if let Some(Owner::StatefulSet(set)) = owner { Some(&**set) } else { None };
                sets.entry(namespace).or_default().extend([Some(by_name), by_endpoint].into_iter().flatten());
            }
        }
        // One list is for all names of a namespace.
        for (namespace, names) in &mut existing {
            names.extend(gone.remove(namespace).unwrap_or_default());
        }
        self.read(Kind::Endpoint, &endpoints, false).await;
        let any_vm = self.live.cache().has_vms();
        for holder in holders.iter().filter(|holder| any_vm || self.live.cache().is_vm_endpoint(&holder.key)) {
            if let Some((namespace, name)) = holder.key.split_once('/') {
                vms.entry(namespace).or_default().insert(name);
            }
        }
        if !vms.is_empty() {
            // There are virtual machines: an answer that their API is not served proves nothing, unless that
            // is so.
            let strict = serves_vms(self.live.client()).await;
            self.read(Kind::VmInstance, &vms, strict).await;
            self.read(Kind::Vm, &vms, strict).await;
        }
        self.read(Kind::StatefulSet, &sets, false).await;
        self.read(Kind::Pod, &existing, false).await;
        let unreadable = self.live.check_absent(Kind::Pod.source(), &gone).await;
        self.exclude(Kind::Pod, unreadable);
        self.read_nodes().await;
    }

    /// Reads nodes last: a pod or an endpoint that was just read may name a node that the extract does not have, and that
    /// would count as gone.
    async fn read_nodes(&mut self) {
        let policy = self.live.world().policy;
        let live = self.planned.iter().flat_map(|planned| self.live.cache().subjects_for(&planned.key));
        let nodes: BTreeSet<Arc<str>> = live
            .flat_map(|subject| subject.holder().map(|holder| deciding_nodes(holder, &policy)).unwrap_or_default())
            .collect();
        if !nodes.is_empty() {
            let names = nodes.iter().map(|name| &**name).collect();
            self.read(Kind::Node, &[("", names)].into(), false).await;
        }
    }

    /// Reads objects of a kind by name.
    async fn read(&mut self, kind: Kind, names: &Names<'_>, strict: bool) {
        let unreadable = self.live.get_many(kind.source(), names, strict).await;
        self.exclude(kind, unreadable);
    }

    /// A subject that depends on something that could not be read is not confirmed.
    fn exclude(&mut self, kind: Kind, unreadable: Vec<Unreadable>) {
        for Unreadable { namespace, name, error } in unreadable {
            // Sets and nodes have names of their own: any pod of the namespace may depend on them.
            let name = name.filter(|_| kind.has_pod_name());
            for planned in self.planned {
                let key = planned.subject.holder().and_then(|holder| holder.key.split_once('/'));
                let depends = key.is_some_and(|(of, pod)| {
                    (namespace.is_empty() || namespace == of) && name.as_ref().is_none_or(|name| name == pod)
                });
                if depends {
                    self.live.cannot_read(&planned.key, error.clone());
                    self.unreadable.insert(planned.key.clone());
                }
            }
        }
    }
}

/// True if the API server serves the group of virtual machines, or does not answer.
async fn serves_vms(client: &Client) -> bool {
    let served = client.list_api_groups().await;
    served.map_or(true, |all| all.groups.iter().any(|group| group.name == Kind::Vm.group()))
}
