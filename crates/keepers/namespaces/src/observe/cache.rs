//! What was observed, by namespace.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_activity::gap::Gaps;
use caretaker_core::{SourceId, Timestamp, time};
use caretaker_engine::cache::{Cache, InvalidObject, is_newer_version};
use caretaker_engine::source::group_of;
use caretaker_engine::{Change, ObjectId, Observed, SourceRef};

use super::namespace_rows::{Caller, NamespaceRows};
use super::requests::PodRequests;
use super::scalable::Definition;
use super::sources::{
    self, ACTIVITY, CUSTOM_RESOURCE_DEFINITIONS, DEFAULT_NAMESPACE, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS,
    SERVICES,
};
use super::{ReceivedActivity, Row};
use crate::api::State;
use crate::pods::Pods;
use crate::subject::{Kind, ScalableKind, Subject};
use crate::workload::{Workload, WorkloadKind};

/// What was observed of a cluster. Plain data: fed by a watch, by lists or from files, it has the same subjects.
#[derive(Debug, Clone, Default)]
pub struct NamespaceCache {
    namespaces: BTreeMap<String, NamespaceRows>,
    /// The namespaces of the Services that each caller makes the API server call.
    calls: BTreeMap<Caller, BTreeSet<String>>,
    /// The definitions of kinds that the settings name, by the name of the definition.
    definitions: BTreeMap<String, Definition>,
    /// When activity may have been missed.
    gaps: Gaps,
    /// Time of the newest activity that another program has ever reported on an object: it lived then, also where the
    /// object is gone by now.
    newest_report: Option<Timestamp>,
    /// Until when a simulation takes for granted that another program reports activity.
    assumed_reports_until: Option<Timestamp>,
    /// What a list in progress has not delivered yet, by source; of a source of several kinds, by kind.
    unlisted: BTreeMap<(SourceId, Option<WorkloadKind>), BTreeSet<Name>>,
    dirty: BTreeSet<String>,
}

/// A namespace, empty for a cluster-scoped kind, and a name.
type Name = (String, String);

/// The namespace of an object of a namespaced kind.
fn namespace_of(id: &ObjectId) -> &str {
    id.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
}

fn name_of(source: SourceId, id: &ObjectId) -> Name {
    let namespace = if sources::is_namespaced(source) { namespace_of(id).to_owned() } else { String::new() };
    (namespace, id.name.clone())
}

fn is_of_kind(workload: WorkloadKind, kind: &ScalableKind) -> bool {
    let WorkloadKind::Other(_) = workload else { return false };
    workload.name() == kind.kind && group_of(workload.api_version()) == kind.group
}

impl NamespaceCache {
    /// A Namespace by its own labels and annotations, without what is in it.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&Subject> {
        self.namespaces.get(name)?.namespace.as_deref()
    }

    /// Every Namespace by its own labels and annotations, without what is in it.
    pub fn bare_namespaces(&self) -> impl Iterator<Item = &Subject> {
        self.namespaces.values().filter_map(|rows| rows.namespace.as_deref())
    }

    /// How many namespaces are in this state, and what all that Caretaker scaled down would request.
    #[must_use]
    pub fn fleet(&self) -> (BTreeMap<&'static str, usize>, PodRequests) {
        let mut states: BTreeMap<_, _> = State::ALL.iter().map(|state| (state.name(), 0)).collect();
        for namespace in self.bare_namespaces() {
            *states.entry(namespace.state().name()).or_default() += 1;
        }
        let workloads = self.namespaces.values().flat_map(|rows| &rows.workloads);
        let saved = workloads.map(Workload::saved_requests).fold(PodRequests::default(), PodRequests::plus);
        (states, saved)
    }

    /// When activity may have been missed.
    #[must_use]
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// Time of the newest activity that another program has reported on an object. A time in the future is a mistake, and
    /// proves nothing about the program. In a simulation it is the time until which reports are assumed.
    #[must_use]
    pub fn last_report(&self, now: Timestamp) -> Option<Timestamp> {
        let is_plausible = |at: &Timestamp| *at <= time::saturating_add(now, time::SKEW);
        let reported = self.newest_report.filter(is_plausible).or_else(|| {
            self.newest_report?;
            self.present_reports().filter(is_plausible).max()
        });
        reported.max(self.assumed_reports_until)
    }

    /// Counts the program that reports activity as alive until this time: in a simulation a file stands for it.
    pub fn assume_reports_until(&mut self, end: Timestamp) {
        self.assumed_reports_until = Some(end);
    }

    /// Times of the reports on objects that exist.
    fn present_reports(&self) -> impl Iterator<Item = Timestamp> {
        let standalone = self.namespaces.values().flat_map(|rows| rows.standalone.values());
        self.bare_namespaces().chain(standalone).filter_map(Subject::last_report)
    }

    /// Takes in the time of the report on an object that was stored just now, in place of the time before. Where the
    /// newest time of all moves back, it was a mistake that was corrected, such as one of next year; it must not count
    /// once that year has come.
    fn note_report(&mut self, before: Option<Timestamp>, report: Option<Timestamp>) {
        if before.is_some() && before == self.newest_report && report < before {
            self.newest_report = self.present_reports().max();
        }
        self.newest_report = self.newest_report.max(report);
    }

    /// Time of the report on a single Deployment or Service, as it is known.
    fn report_on(&self, kind: Kind, id: &ObjectId) -> Option<Timestamp> {
        self.namespaces.get(namespace_of(id))?.standalone.get(&(kind, id.name.clone()))?.last_report()
    }

    /// The definition of a kind that the settings name.
    pub(super) fn definition(&self, kind: &ScalableKind) -> Option<&Definition> {
        self.definitions.values().find(|definition| definition.kind == *kind)
    }

    /// True if there are workloads of a kind that the settings name.
    pub(super) fn has_workloads_of(&self, kind: &ScalableKind) -> bool {
        let is_of = |workload: &Workload| is_of_kind(workload.kind, kind);
        self.namespaces.values().any(|rows| rows.workloads.iter().any(is_of))
    }

    /// The subjects of these rows, without workloads that cannot be scaled.
    fn subjects_of(&self, rows: &NamespaceRows) -> Vec<Subject> {
        let mut subjects = rows.subjects();
        for Definition { kind, .. } in self.definitions.values().filter(|definition| definition.replicas.is_err()) {
            for subject in &mut subjects {
                subject.workloads.retain(|workload| !is_of_kind(workload.kind, kind));
            }
        }
        subjects
    }

    fn set_definition(&mut self, name: &str, definition: Option<Definition>) {
        let before = self.definitions.get(name);
        if before == definition.as_ref() {
            return;
        }
        match definition {
            Some(definition) => _ = self.definitions.insert(name.to_owned(), definition),
            None => _ = self.definitions.remove(name),
        }
        // It decides in every namespace whether such a workload counts.
        self.dirty.extend(self.namespaces.keys().cloned());
    }

    fn rows_mut(&mut self, namespace: &str) -> &mut NamespaceRows {
        if !self.dirty.contains(namespace) {
            self.dirty.insert(namespace.to_owned());
        }
        self.namespaces.entry(namespace.to_owned()).or_default()
    }

    /// Changes the rows of a namespace, if there are any, and drops them if none are left.
    fn remove_from(&mut self, namespace: &str, remove: impl FnOnce(&mut NamespaceRows)) {
        let Some(rows) = self.namespaces.get_mut(namespace) else { return };
        remove(rows);
        if rows.is_empty() {
            self.namespaces.remove(namespace);
        }
        self.dirty.insert(namespace.to_owned());
    }

    /// The uid and the resourceVersion of what is known of an object.
    fn known_version(&self, id: &ObjectId, row: &Row) -> Option<(&str, &str)> {
        let rows = |namespace: &str| self.namespaces.get(namespace);
        match row {
            Row::Namespace(_) => self.namespace(&id.name).map(|ns| (ns.uid.as_str(), ns.resource_version.as_str())),
            Row::Workload { workload, .. } => {
                let known = rows(namespace_of(id))?.workload(workload.kind, &id.name)?;
                Some((&known.uid, &known.resource_version))
            }
            Row::Service { .. } => {
                let known = rows(namespace_of(id))?.standalone.get(&(Kind::Service, id.name.clone()))?;
                Some((&known.uid, &known.resource_version))
            }
            Row::PersistentVolumeClaim
            | Row::ServiceCaller(_)
            | Row::Definition(..)
            | Row::Activity(_)
            | Row::Gaps(_)
            | Row::Pods(_) => None,
        }
    }

    /// True if a newer version of the same object is known: the answer to a write comes before the watch delivers what
    /// was before it.
    fn is_outdated(&self, id: &ObjectId, row: &Row) -> bool {
        self.known_version(id, row)
            .is_some_and(|(uid, version)| uid == id.uid && is_newer_version(version, &id.resource_version))
    }

    fn apply(&mut self, source: SourceId, Observed { id, row, .. }: Observed<Row>) {
        let listed_by = match &row {
            Row::Namespace(_) => (NAMESPACES, None),
            Row::Workload { workload, .. } => (source, Some(workload.kind)),
            _ => (source, None),
        };
        let unlisted = self.unlisted.get_mut(&listed_by);
        // A list is newer than what was known before it: after a restore of etcd all versions are lower.
        let is_listed = unlisted.is_some_and(|unlisted| unlisted.remove(&name_of(listed_by.0, &id)));
        if !is_listed && self.is_outdated(&id, &row) {
            return;
        }
        match row {
            Row::Namespace(subject) => self.apply_namespace(source, &id.name, subject),
            Row::Workload { workload, standalone, system } => {
                self.rows_mut(namespace_of(&id)).set_system_role(workload.kind, &id.name, system);
                self.apply_workload(&id, *workload, standalone);
            }
            Row::Service { excluded, standalone } => self.apply_service(&id, excluded, standalone),
            Row::PersistentVolumeClaim => {
                self.rows_mut(namespace_of(&id)).pvcs.insert(id.name);
            }
            Row::ServiceCaller(called) => self.apply_caller((source, id.name), called),
            Row::Definition(definition, called) => {
                self.set_definition(&id.name, Some(definition));
                self.apply_caller((source, id.name), called);
            }
            Row::Activity(received) => self.rows_mut(&id.name).activity = Some(Box::new(received)),
            Row::Pods(pods) => self.rows_mut(&id.name).pods = pods,
            Row::Gaps(gaps) => {
                // Every deadline moves with a gap.
                if gaps != self.gaps {
                    self.gaps = gaps;
                    self.dirty.extend(self.namespaces.keys().cloned());
                }
            }
        }
    }

    fn apply_namespace(&mut self, source: SourceId, name: &str, subject: Box<Subject>) {
        // The answer to a write of the activity stream does not bring back a namespace that is gone.
        if source == ACTIVITY && self.namespace(name).is_none() {
            return;
        }
        let before = self.namespace(name).and_then(Subject::last_report);
        let report = subject.last_report();
        let rows = self.rows_mut(name);
        let known = subject.activity.get().map(|activity| activity.at);
        let is_on_annotation = |received: &ReceivedActivity| {
            !received.will_be_written && received.last.as_ref().map(|activity| activity.at) <= known
        };
        rows.activity = rows.activity.take().filter(|received| !is_on_annotation(received));
        // Pods are known for one version of the namespace: after that they are listed again.
        if rows.namespace.as_ref().is_some_and(|known| known.resource_version != subject.resource_version) {
            rows.pods = Pods::NotRead;
        }
        rows.namespace = Some(subject);
        self.note_report(before, report);
    }

    fn apply_workload(&mut self, id: &ObjectId, workload: Workload, standalone: Option<Box<Subject>>) {
        // A workload of another kind may have the same name, and is no subject of its own.
        let is_deployment = workload.kind == WorkloadKind::Deployment;
        let before = self.report_on(Kind::Deployment, id).filter(|_| is_deployment);
        let report = standalone.as_deref().and_then(Subject::last_report);
        let rows = self.rows_mut(namespace_of(id));
        if let Some(standalone) = standalone {
            rows.standalone.insert((Kind::Deployment, id.name.clone()), *standalone);
        } else if is_deployment {
            rows.standalone.remove(&(Kind::Deployment, id.name.clone()));
        }
        rows.insert_workload(workload);
        self.note_report(before, report);
    }

    fn apply_service(&mut self, id: &ObjectId, excluded: bool, standalone: Option<Box<Subject>>) {
        let before = self.report_on(Kind::Service, id);
        let report = standalone.as_deref().and_then(Subject::last_report);
        let rows = self.rows_mut(namespace_of(id));
        rows.remove_service(&id.name);
        if excluded {
            rows.excluded_services.insert(id.name.clone());
        }
        if let Some(standalone) = standalone {
            rows.standalone.insert((Kind::Service, id.name.clone()), *standalone);
        }
        self.note_report(before, report);
    }

    fn apply_caller(&mut self, caller: Caller, namespaces: BTreeSet<String>) {
        self.remove_caller(&caller);
        for namespace in &namespaces {
            self.rows_mut(namespace).callers.insert(caller.clone());
        }
        self.calls.insert(caller, namespaces);
    }

    fn remove_caller(&mut self, caller: &Caller) {
        for namespace in self.calls.remove(caller).unwrap_or_default() {
            self.remove_from(&namespace, |rows| _ = rows.callers.remove(caller));
        }
    }

    fn remove(&mut self, source: &SourceRef, namespace: &str, name: &str) {
        match (source.id, sources::workload_kind(source)) {
            (_, Some(kind)) => self.remove_from(namespace, |rows| rows.remove_workload(kind, name)),
            (NAMESPACES, _) => {
                self.remove_from(name, |rows| (rows.namespace, rows.activity, rows.pods) = (None, None, Pods::NotRead));
                self.dirty.insert(name.to_owned());
            }
            (ACTIVITY, _) => self.remove_from(name, |rows| rows.activity = None),
            (PODS, _) => self.remove_from(name, |rows| rows.pods = Pods::NotRead),
            (PERSISTENT_VOLUME_CLAIMS, _) => self.remove_from(namespace, |rows| _ = rows.pvcs.remove(name)),
            (SERVICES, _) => self.remove_from(namespace, |rows| rows.remove_service(name)),
            (caller, _) => {
                if caller == CUSTOM_RESOURCE_DEFINITIONS {
                    self.set_definition(name, None);
                }
                self.remove_caller(&(caller, name.to_owned()));
            }
        }
    }

    /// The names of everything that a source has delivered.
    fn names(&self, source: &SourceRef) -> BTreeSet<Name> {
        let everywhere = || self.namespaces.iter();
        let key = |namespace: &String, name: &String| (namespace.clone(), name.clone());
        match (source.id, sources::workload_kind(source)) {
            (_, Some(kind)) => {
                let of_kind = |(namespace, rows): (_, &'_ NamespaceRows)| {
                    let names = rows.workloads.iter().filter(|w| w.kind == kind).map(|w| key(namespace, &w.name));
                    names.collect::<Vec<_>>()
                };
                everywhere().flat_map(of_kind).collect()
            }
            (NAMESPACES, _) => {
                let known = everywhere().filter(|(_, rows)| rows.namespace.is_some());
                known.map(|(name, _)| (String::new(), name.clone())).collect()
            }
            // Activity that was received stays until it is written; pods come from live reads alone.
            (ACTIVITY | PODS, _) => BTreeSet::new(),
            (PERSISTENT_VOLUME_CLAIMS, _) => everywhere()
                .flat_map(|(namespace, rows)| rows.pvcs.iter().map(move |name| key(namespace, name)))
                .collect(),
            (SERVICES, _) => {
                let services = |(namespace, rows): (_, &'_ NamespaceRows)| {
                    let standalone = rows.standalone.keys().filter(|(kind, _)| *kind == Kind::Service);
                    let names = standalone.map(|(_, name)| name).chain(&rows.excluded_services);
                    names.map(|name| key(namespace, name)).collect::<Vec<_>>()
                };
                everywhere().flat_map(services).collect()
            }
            (caller, _) => {
                let callers = self.calls.keys().filter(|(of, _)| *of == caller);
                callers.map(|(_, name)| (String::new(), name.clone())).collect()
            }
        }
    }
}

impl Cache for NamespaceCache {
    type Row = Row;
    type Key = String;
    type Subject = Subject;

    fn update(&mut self, source: &SourceRef, change: Change<Row>) {
        let list = (source.id, sources::workload_kind(source));
        match change {
            Change::Init => {
                let names = self.names(source);
                self.unlisted.insert(list, names);
            }
            Change::Apply(observed) => self.apply(source.id, observed),
            Change::Delete(id) => {
                let (namespace, name) = name_of(source.id, &id);
                self.remove(source, &namespace, &name);
            }
            Change::InitDone => {
                for (namespace, name) in self.unlisted.remove(&list).unwrap_or_default() {
                    self.remove(source, &namespace, &name);
                }
            }
            Change::CurrentUntil(_) | Change::Error(_) => {}
        }
    }

    fn take_dirty(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<String> {
        let known = self.namespaces.iter().filter(|(_, rows)| rows.has_subjects());
        known.map(|(name, _)| name.clone()).collect()
    }

    fn subjects_for(&self, key: &String) -> Vec<Subject> {
        self.namespaces.get(key).map(|rows| self.subjects_of(rows)).unwrap_or_default()
    }

    fn extract(&self, keys: &BTreeSet<String>) -> Self {
        let rows = keys.iter().filter_map(|key| Some((key.clone(), self.namespaces.get(key)?.clone())));
        let calls = self.calls.iter().filter(|(_, called)| !called.is_disjoint(keys));
        Self {
            namespaces: rows.collect(),
            calls: calls.map(|(caller, called)| (caller.clone(), called.clone())).collect(),
            definitions: self.definitions.clone(),
            gaps: self.gaps.clone(),
            newest_report: self.newest_report,
            assumed_reports_until: self.assumed_reports_until,
            ..Self::default()
        }
    }

    /// All namespaces by name, then the standalone subjects by kind, namespace and name.
    fn subjects(&self) -> Vec<Subject> {
        let all = self.namespaces.values().flat_map(|rows| self.subjects_of(rows));
        let (mut subjects, mut standalone): (Vec<_>, Vec<_>) = all.partition(|s| s.kind == Kind::Namespace);
        standalone.sort_by(|a, b| (a.kind, &a.namespace, &a.name).cmp(&(b.kind, &b.namespace, &b.name)));
        subjects.append(&mut standalone);
        subjects
    }

    /// Workloads whose record cannot be read.
    fn invalid_objects(&self, key: &String) -> Vec<InvalidObject> {
        let Some(rows) = self.namespaces.get(key) else { return Vec::new() };
        let is_active = rows.namespace.as_ref().is_some_and(|namespace| namespace.inactive.is_none());
        let workloads = rows.settled_workloads().filter(|_| is_active);
        let invalid = workloads.filter_map(|workload| {
            Some(InvalidObject {
                api_version: workload.kind.api_version().to_owned(),
                kind: workload.kind.name(),
                namespace: Some(key.clone()),
                name: workload.name.clone(),
                uid: workload.uid.clone(),
                because: workload.invalid_record()?.to_string(),
            })
        });
        invalid.collect()
    }
}
