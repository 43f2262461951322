//! From API objects to rows, and from rows to subjects: the same for a live cluster and for files.
//!
//! Each kind has a type of its own with the fields that the keeper reads ([`partial`]); the rest of an object is skipped
//! while it is parsed. [`sources`] lists the kinds, [`NamespaceCache`] holds the rows.

mod cache;
mod namespace_rows;
pub mod partial;
pub mod requests;
pub mod scalable;
pub mod sources;

use std::collections::BTreeSet;

use caretaker_activity::gap::Gaps;
use caretaker_core::{Parsed, Timestamp, duration, time};
use caretaker_engine::Meta;
use jiff::tz::TimeZone;

use crate::api::{self, Activity, Field, State};
use crate::lint;
use crate::pods::Pods;
use crate::subject::{Kind, ScalableKind, Subject};
use crate::system::SystemRole;
use crate::workload::{ClaimPolicy, KubefreeTerm, UnlabelledRecord, Workload, WorkloadKind, WorkloadState};

pub use cache::NamespaceCache;
use partial::{
    CronJobObject, CustomResourceDefinitionObject, DaemonSetObject, ManagedFields, ManagedMeta, MetadataObject,
    NamespaceObject, ScaleSpec, ScaledWorkloadObject, StatefulSetObject,
};
use requests::PodRequests;

/// What the sources deliver.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// A Namespace, without what is in it.
    Namespace(Box<Subject>),
    /// A workload.
    Workload {
        /// As a part of its namespace.
        workload: Box<Workload>,
        /// The subject that it is itself: a Deployment with labels of its own.
        standalone: Option<Box<Subject>>,
        /// What makes its namespace a system namespace.
        system: Option<SystemRole>,
    },
    /// A Service that is excluded, or has labels of its own.
    Service {
        /// It has the label `exclude`.
        excluded: bool,
        /// The subject that it is itself.
        standalone: Option<Box<Subject>>,
    },
    /// A PersistentVolumeClaim.
    PersistentVolumeClaim,
    /// An object that makes the API server call Services, and the namespaces of these Services.
    ServiceCaller(BTreeSet<String>),
    /// The definition of a kind that the settings name, and the namespaces of the Services that it makes the API server
    /// call.
    Definition(scalable::Definition, BTreeSet<String>),
    /// Activity in a namespace, from the activity stream.
    Activity(ReceivedActivity),
    /// When activity may have been missed, from the activity stream or from the state.
    Gaps(Gaps),
    /// The pods of a namespace, from a live read.
    Pods(Pods),
}

/// Activity that was received and is not on the namespace's annotation yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedActivity {
    /// The last activity; `None` if only a session ended.
    pub last: Option<Activity>,
    /// It is going to be written to the namespace: until then nothing is taken away, and a namespace that is asleep is
    /// judged by its annotation. False in a dry run, where it counts as if it were written.
    pub will_be_written: bool,
}

impl Row {
    /// The workload, with what makes its namespace a system namespace.
    fn with_system_role(mut self, role: Option<SystemRole>) -> Self {
        if let Self::Workload { system, .. } = &mut self {
            *system = role;
        }
        self
    }

    /// The subject that an object of this kind is itself.
    #[must_use]
    pub fn as_subject(&self, kind: Kind) -> Option<&Subject> {
        match (self, kind) {
            (Self::Namespace(subject), Kind::Namespace) => Some(subject),
            (Self::Workload { standalone, .. }, Kind::Deployment)
            | (Self::Service { standalone, .. }, Kind::Service) => standalone.as_deref(),
            _ => None,
        }
    }
}

/// A Deployment or Service with one of these labels is a subject of its own; so is one whose owner meant to set one.
fn is_standalone(meta: &Meta) -> bool {
    let labelled = [api::SLEEP_AFTER, api::DELETE_AFTER, api::STATE].iter().any(|key| meta.label(key).is_some());
    labelled || !lint::misspelled(meta).is_empty()
}

/// In a file that names no namespace it is `default`, as it is for kubectl.
fn namespace_of(meta: &Meta) -> String {
    if meta.namespace.is_empty() { sources::DEFAULT_NAMESPACE.to_owned() } else { meta.namespace.clone() }
}

/// The subject that an object is, by its metadata alone, without a window. `phase` is the phase of a Namespace.
#[must_use]
pub fn subject(kind: Kind, meta: &Meta, phase: &str) -> Subject {
    let duration = |key| api::read_duration(Field::Label(key), meta.label(key));
    let read_time = |key| api::read_time(Field::Annotation(key), meta.annotation(key));
    let of_namespace = |key| Some(kind).filter(|kind| *kind == Kind::Namespace).and(meta.annotation(key));
    let phase = Some(phase).filter(|phase| !phase.is_empty() && *phase != "Active");
    let inactive = if meta.deletion_timestamp.is_some() { Some("Terminating") } else { phase };
    // The values are compared and not the texts: somebody may have written 7d for 168h.
    let parsed = |text: Option<&str>| text.and_then(|text| duration::parse(text).ok());
    let default = parsed(meta.annotation(api::DEFAULT_POLICY));
    let last_activity = Some(kind).filter(|kind| *kind == Kind::Deployment).and(meta.label(api::LAST_ACTIVITY));
    let last_activity = api::read_label_time(api::LAST_ACTIVITY, last_activity);
    Subject {
        kind,
        namespace: (kind != Kind::Namespace).then(|| namespace_of(meta)),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        inactive: inactive.map(str::to_owned),
        created: meta.created(),
        labelled: [api::SLEEP_AFTER, api::DELETE_AFTER].iter().any(|key| meta.label(key).is_some()),
        excluded: api::read_exclude(meta.label(api::EXCLUDE)),
        misspelled: lint::misspelled(meta),
        sleep_after: duration(api::SLEEP_AFTER),
        delete_after: duration(api::DELETE_AFTER),
        state: api::read_state(meta.label(api::STATE)),
        activity: newest_activity(api::read_activity(meta.annotation(api::ACTIVITY)), last_activity.value()),
        last_activity,
        sessions: api::read_sessions(meta.annotation(api::SESSIONS)),
        sleep_started: api::read_label_time(api::SLEEP_STARTED, meta.label(api::SLEEP_STARTED)).value(),
        asleep_since: read_time(api::ASLEEP_SINCE),
        half_awake_since: read_time(api::HALF_AWAKE_SINCE),
        put_back_at: read_time(api::PUT_BACK_AT),
        announced_at: read_time(api::ANNOUNCED_AT),
        delete_at: read_time(api::DELETE_AT),
        sleep_until: read_time(api::SLEEP_UNTIL),
        awake_until: read_time(api::AWAKE_UNTIL),
        default_policy: default.is_some() && default == parsed(meta.label(api::SLEEP_AFTER)),
        manual_sleep: meta.annotation(api::MANUAL_SLEEP).is_some(),
        last_order: last_order(meta),
        sleep_during_strict: api::read_bool(
            Field::Annotation(api::SLEEP_DURING_STRICT),
            of_namespace(api::SLEEP_DURING_STRICT),
        ),
        scheduled_sleep: of_namespace(api::SCHEDULED_SLEEP).is_some(),
        ..Subject::default()
    }
}

/// The user who gave the last order, and the reason.
fn last_order(meta: &Meta) -> Option<String> {
    let (by, reason) = (meta.annotation(api::ORDERED_BY), meta.annotation(api::ORDER_REASON));
    let words: Vec<&str> = by.into_iter().chain(reason).collect();
    (!words.is_empty()).then(|| words.join(": "))
}

/// The activity of the annotation, or only its time if the label knows a newer one. The label is Caretaker's own, and no
/// report by another program.
fn newest_activity(annotation: Parsed<Activity>, label: Option<Timestamp>) -> Parsed<Activity> {
    let is_older = match &annotation {
        Parsed::Missing => true,
        Parsed::Valid(activity) => label > Some(activity.at),
        Parsed::Invalid(_) => false,
    };
    match label.filter(|_| is_older) {
        Some(at) => Parsed::Valid(Activity::reported(at).replacing(&annotation)),
        None => annotation,
    }
}

/// A Namespace. A window that names no zone is in this one.
pub(crate) fn project_namespace(object: &NamespaceObject, zone: &TimeZone) -> Row {
    let ManagedMeta { meta, managed_fields } = &object.metadata;
    let mut subject = subject(Kind::Namespace, meta, &object.status.phase);
    subject.sleep_during = api::read_window(api::SLEEP_DURING, meta.annotation(api::SLEEP_DURING), zone);
    // Before its records named their author, only the manager of the field told them from reports.
    if let Parsed::Valid(activity) = &mut subject.activity
        && activity.reported == Some(activity.at)
        && managed_fields.iter().any(ManagedFields::is_caretakers_activity)
    {
        activity.reported = None;
    }
    Row::Namespace(Box::new(subject))
}

fn workload(kind: WorkloadKind, meta: &Meta, state: WorkloadState) -> Workload {
    Workload {
        kind,
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        excluded: api::read_exclude(meta.label(api::EXCLUDE)),
        own_sleep: false,
        state,
        unlabelled: None,
        requests: PodRequests::default(),
    }
}

fn plain_workload(kind: WorkloadKind, meta: &Meta, state: WorkloadState) -> Row {
    as_row(workload(kind, meta, state))
}

fn as_row(workload: Workload) -> Row {
    Row::Workload { workload: Box::new(workload), standalone: None, system: None }
}

fn scaled_state(meta: &Meta, spec: &ScaleSpec) -> WorkloadState {
    let ours = api::read_count(Field::Label(api::SCALED_DOWN), meta.label(api::SCALED_DOWN));
    let by_caretaker = ours.is_set();
    // The API server fills in one where a manifest says nothing.
    let replicas = spec.replicas.unwrap_or(1);
    let kubefrees = api::read_count(Field::Annotation(api::LEGACY_REPLICAS), meta.annotation(api::LEGACY_REPLICAS));
    // A copy of a label that is gone counts only in the sleep that it names.
    let is_copy = meta.annotation(api::LEGACY_REPLICAS_COPY).is_some();
    let kubefrees = if is_copy { Parsed::Missing } else { kubefrees };
    let deletes = spec.persistent_volume_claim_retention_policy.when_scaled == partial::DELETE;
    let recorded_delete = meta.label(api::LEGACY_WHEN_SCALED) == Some(partial::DELETE);
    WorkloadState::Scaled {
        replicas,
        recorded: if by_caretaker { ours } else { kubefrees },
        by_caretaker,
        claims: match (deletes, recorded_delete) {
            (true, _) => ClaimPolicy::Delete,
            (false, true) => ClaimPolicy::RetainWhileAsleep,
            (false, false) => ClaimPolicy::Retain,
        },
    }
}

/// The copy of a record whose label is gone, on a workload at zero.
fn unlabelled_record(meta: &Meta, spec: &ScaleSpec) -> Option<UnlabelledRecord> {
    let copy = meta.annotation(api::LEGACY_REPLICAS_COPY).filter(|_| meta.label(api::SCALED_DOWN).is_none())?;
    let replicas = api::read_count(Field::Annotation(api::LEGACY_REPLICAS), meta.annotation(api::LEGACY_REPLICAS));
    let replicas = replicas.value().filter(|count| *count > 0 && spec.replicas == Some(0))?;
    Some(UnlabelledRecord { replicas, sleep: time::parse(copy) })
}

fn scaled_workload(kind: WorkloadKind, meta: &Meta, spec: &ScaleSpec) -> Workload {
    let unlabelled = unlabelled_record(meta, spec);
    let requests = PodRequests::of(&spec.template.spec);
    Workload { unlabelled, requests, ..workload(kind, meta, scaled_state(meta, spec)) }
}

fn project_deployment(object: &ScaledWorkloadObject) -> Row {
    let (kind, meta) = (WorkloadKind::Deployment, &object.metadata);
    let mut workload = scaled_workload(kind, meta, &object.spec);
    let standalone = is_standalone(meta).then(|| {
        let mut subject = subject(Kind::Deployment, meta, "");
        subject.workloads = vec![workload.clone()];
        Box::new(subject)
    });
    let states = [State::Sleep, State::Sleeping, State::Deleting];
    let asleep = meta.label(api::STATE).is_some_and(|label| states.iter().any(|state| state.name() == label));
    workload.own_sleep = standalone.is_some() && asleep && !workload.excluded;
    Row::Workload { workload: Box::new(workload), standalone, system: None }
}

/// Where somebody else sets `whenScaled: Delete` back, a scale-down deletes the claims as soon as that happens.
fn project_stateful_set(object: &StatefulSetObject) -> Row {
    let ManagedMeta { meta, managed_fields } = &object.metadata;
    let mut workload = scaled_workload(WorkloadKind::StatefulSet, meta, &object.spec);
    let is_set_back = meta.controller().is_some() || managed_fields.iter().any(ManagedFields::sets_when_scaled_again);
    if let WorkloadState::Scaled { claims, .. } = &mut workload.state
        && *claims == ClaimPolicy::Delete
        && is_set_back
    {
        *claims = ClaimPolicy::DeleteSetByOthers;
    }
    as_row(workload)
}

/// A ReplicaSet with a controller is scaled by that.
fn project_replica_set(object: &ScaledWorkloadObject) -> Option<Row> {
    let owned = object.metadata.controller().is_some();
    (!owned).then(|| as_row(scaled_workload(WorkloadKind::ReplicaSet, &object.metadata, &object.spec)))
}

/// A workload of a custom kind; one with a controller is scaled by that. If it makes claims, and no policy says what
/// becomes of them, a scale-down may delete them: CloneSets do.
fn project_custom(kind: WorkloadKind, object: &ScaledWorkloadObject) -> Option<Row> {
    if object.metadata.controller().is_some() {
        return None;
    }
    let has_claims = !object.spec.volume_claim_templates.is_empty();
    let has_policy = !object.spec.persistent_volume_claim_retention_policy.when_scaled.is_empty();
    let mut workload = scaled_workload(kind, &object.metadata, &object.spec);
    if let WorkloadState::Scaled { claims, .. } = &mut workload.state
        && has_claims
        && !has_policy
    {
        *claims = ClaimPolicy::AlwaysDelete;
    }
    Some(as_row(workload))
}

fn project_daemon_set(object: &DaemonSetObject) -> Row {
    let pod = &object.spec.template.spec;
    let terms = &pod.affinity.node_affinity.required.node_selector_terms;
    let is_kubefrees = |term: &&partial::NodeSelectorTerm| {
        term.match_expressions.iter().any(|expression| expression.key == api::KUBEFREE_PARKED)
    };
    let kubefree = match terms.iter().filter(is_kubefrees).count() {
        0 => KubefreeTerm::Absent,
        count if count == terms.len() => KubefreeTerm::Alone,
        _ => KubefreeTerm::WithOthers,
    };
    let state = WorkloadState::Placed { parked: pod.node_selector.contains_key(api::PARKED), kubefree };
    plain_workload(WorkloadKind::DaemonSet, &object.metadata, state)
}

fn project_cron_job(object: &CronJobObject) -> Row {
    let recorded = object.metadata.annotation(api::LEGACY_SUSPEND);
    let state = WorkloadState::Scheduled {
        suspended: object.spec.suspend.unwrap_or(false),
        recorded: api::read_bool(Field::Annotation(api::LEGACY_SUSPEND), recorded),
    };
    plain_workload(WorkloadKind::CronJob, &object.metadata, state)
}

fn project_scaled_object(object: &MetadataObject) -> Row {
    let meta = &object.metadata;
    let state = WorkloadState::Paused {
        paused_at: meta.annotation(api::PAUSED_REPLICAS).map(str::to_owned),
        by_caretaker: meta.annotation(api::LEGACY_PAUSED_REPLICAS).is_some(),
    };
    plain_workload(WorkloadKind::ScaledObject, meta, state)
}

fn project_service(object: &MetadataObject) -> Option<Row> {
    let meta = &object.metadata;
    let excluded = api::read_exclude(meta.label(api::EXCLUDE));
    let standalone = is_standalone(meta).then(|| Box::new(subject(Kind::Service, meta, "")));
    (excluded || standalone.is_some()).then_some(Row::Service { excluded, standalone })
}

fn project_caller<'a>(services: impl Iterator<Item = &'a partial::ServiceReference>) -> Option<Row> {
    let called = called_namespaces(services);
    (!called.is_empty()).then_some(Row::ServiceCaller(called))
}

fn called_namespaces<'a>(services: impl Iterator<Item = &'a partial::ServiceReference>) -> BTreeSet<String> {
    services.map(|service| service.namespace.clone()).filter(|namespace| !namespace.is_empty()).collect()
}

fn project_definition(object: &CustomResourceDefinitionObject, named: &[ScalableKind]) -> Option<Row> {
    let services = || object.spec.conversion.webhook.client_config.service.iter();
    match scalable::Definition::of(&object.spec, named) {
        Some(definition) => Some(Row::Definition(definition, called_namespaces(services()))),
        None => project_caller(services()),
    }
}
