//! All rows of one namespace, and the subjects that they make.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::{Parsed, SourceId};

use super::ReceivedActivity;
use super::sources::kind_of;
use crate::api::State;
use crate::judge::Rule;
use crate::pods::Pods;
use crate::subject::{Kind, Subject};
use crate::system::SystemRole;
use crate::workload::{PresentSleep, Workload, WorkloadKind};

/// An object that makes the API server call a Service: its source, and its name.
pub(super) type Caller = (SourceId, String);

/// All rows of one namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NamespaceRows {
    /// The Namespace itself; `None` if only objects in it are known.
    pub(super) namespace: Option<Box<Subject>>,
    /// Deployments and Services with labels of their own.
    pub(super) standalone: BTreeMap<(Kind, String), Subject>,
    /// In the order of kind and name.
    pub(super) workloads: Vec<Workload>,
    pub(super) pvcs: BTreeSet<String>,
    pub(super) excluded_services: BTreeSet<String>,
    pub(super) callers: BTreeSet<Caller>,
    pub(super) activity: Option<Box<ReceivedActivity>>,
    pub(super) pods: Pods,
    /// Workloads that make it a system namespace.
    pub(super) system: BTreeMap<(WorkloadKind, String), SystemRole>,
}

impl NamespaceRows {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True if there is something to judge.
    pub(super) fn has_subjects(&self) -> bool {
        self.namespace.is_some() || !self.standalone.is_empty()
    }

    pub(super) fn workload(&self, kind: WorkloadKind, name: &str) -> Option<&Workload> {
        self.workloads.iter().find(|workload| workload.kind == kind && workload.name == name)
    }

    pub(super) fn insert_workload(&mut self, workload: Workload) {
        let order = |known: &Workload| (known.kind, known.name.as_str()).cmp(&(workload.kind, workload.name.as_str()));
        match self.workloads.binary_search_by(order) {
            Ok(place) => self.workloads[place] = workload,
            Err(place) => self.workloads.insert(place, workload),
        }
    }

    pub(super) fn remove_workload(&mut self, kind: WorkloadKind, name: &str) {
        self.workloads.retain(|workload| workload.kind != kind || workload.name != name);
        self.set_system_role(kind, name, None);
        if kind == WorkloadKind::Deployment {
            self.standalone.remove(&(Kind::Deployment, name.to_owned()));
        }
    }

    pub(super) fn set_system_role(&mut self, kind: WorkloadKind, name: &str, role: Option<SystemRole>) {
        let workload = (kind, name.to_owned());
        match role {
            Some(role) => _ = self.system.insert(workload, role),
            None => _ = self.system.remove(&workload),
        }
    }

    pub(super) fn remove_service(&mut self, name: &str) {
        self.excluded_services.remove(name);
        self.standalone.remove(&(Kind::Service, name.to_owned()));
    }

    fn present_sleep(&self) -> PresentSleep {
        self.namespace.as_ref().map_or(PresentSleep::None, |namespace| namespace.present_sleep())
    }

    /// The workloads, each with its record.
    pub(super) fn settled_workloads(&self) -> impl Iterator<Item = Workload> {
        let of_namespace = self.present_sleep();
        self.workloads.iter().map(move |workload| {
            let own = self.standalone.get(&(Kind::Deployment, workload.name.clone()));
            let own = own.filter(|_| workload.kind == WorkloadKind::Deployment);
            let own = own.map_or(PresentSleep::None, Subject::present_sleep);
            workload.clone().with_record_of(&[own, of_namespace])
        })
    }

    /// The subjects: the namespace first, then the standalone ones by kind and name. Each knows what other objects of
    /// the namespace say about it.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let caller = self.callers.first().map(|(source, name)| format!("{}/{name}", kind_of(*source).kind));
        let mut subjects = Vec::with_capacity(1 + self.standalone.len());
        let present = self.present_sleep();
        let (mut asleep, mut sleep_until, mut woken_at, mut sleep_during) = (false, None, None, None);
        if let Some(mut namespace) = self.namespace.as_deref().cloned() {
            let woken = namespace.activity.get().filter(|a| a.recorded_under() == Some(Rule::ManualSleepExpired));
            (asleep, sleep_until) = (namespace.is_asleep_in_part(), namespace.sleep_until.value());
            woken_at = woken.map(|activity| activity.at);
            sleep_during = namespace.sleep_during.get().cloned();
            if let Some(received) = &self.activity {
                add_activity(&mut namespace, received);
            }
            namespace.workloads = self.settled_workloads().collect();
            namespace.pvc_count = self.pvcs.len();
            namespace.pods.clone_from(&self.pods);
            let system = self.system.first_key_value();
            namespace.system_workload = system.map(|((kind, name), role)| format!("{kind}/{name} {role}"));
            namespace.excluded_services = self.excluded_services.iter().map(|name| format!("Service/{name}")).collect();
            namespace.used_by_control_plane.clone_from(&caller);
            subjects.push(namespace);
        }
        for mut standalone in self.standalone.values().cloned() {
            standalone.namespace_asleep = asleep;
            (standalone.namespace_sleep_until, standalone.namespace_woken_at) = (sleep_until, woken_at);
            standalone.namespace_sleep_during.clone_from(&sleep_during);
            standalone.used_by_control_plane.clone_from(&caller);
            let present = [standalone.present_sleep(), present];
            let workloads = std::mem::take(&mut standalone.workloads).into_iter();
            standalone.workloads = workloads.map(|workload| workload.with_record_of(&present)).collect();
            subjects.push(standalone);
        }
        subjects
    }
}

/// Adds activity that is not on the annotation yet. A namespace that is asleep is woken only once it is written there,
/// so that a crash after the wake does not lose it.
fn add_activity(namespace: &mut Subject, received: &ReceivedActivity) {
    let ReceivedActivity { last, will_be_written } = received;
    namespace.activity_pending = *will_be_written;
    let counts = !will_be_written || namespace.state() == State::Normal;
    if let Some(last) = last
        && counts
        && namespace.activity.invalid().is_none()
        && namespace.activity.get().is_none_or(|known| known.at < last.at)
    {
        namespace.activity = Parsed::Valid(last.clone().replacing(&namespace.activity));
    }
}
