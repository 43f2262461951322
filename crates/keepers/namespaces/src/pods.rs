//! The pods of a namespace: listed live where one is put to sleep or deleted, and never watched.
//!
//! A sleep scales workloads down. Pods of Jobs, bare pods and pods of controllers that Caretaker does not know go on
//! running. A sleep says which, and a namespace in which any runs is not deleted.

use std::fmt;

use caretaker_core::SignedDuration;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};

use crate::workload::{Workload, WorkloadKind};

/// What is known of the pods of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Pods {
    /// They were not listed.
    #[default]
    NotRead,
    /// Those that have neither succeeded nor failed.
    Running(Vec<Pod>),
    /// They could not be listed, and why.
    Unreadable(String),
}

/// A pod that has neither succeeded nor failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The name.
    pub name: String,
    /// Kind and name of its controller; `None` for a bare pod.
    pub controller: Option<(String, String)>,
    /// It is being deleted.
    pub terminating: bool,
}

/// Pods that have ended; the API server leaves them out.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Pods in a page: only their metadata is read.
const PAGE: u32 = 500;
/// How long a controller takes at most to delete the pods of what was scaled to zero. Pods that are still there are not
/// deleted by it: it is gone, or does nothing.
const CONTROLLERS_TAKE: SignedDuration = SignedDuration::from_mins(10);
/// How many pods a message names.
const NAMED: usize = 5;

impl Pods {
    /// Lists the pods of a namespace that have not ended: their metadata alone.
    pub async fn list(client: &Client, namespace: &str) -> Result<Self, kube::Error> {
        let pods: Api<ApiPod> = Api::namespaced(client.clone(), namespace);
        let mut params = ListParams::default().fields(NOT_ENDED).limit(PAGE);
        let mut running = Vec::new();
        loop {
            let page = pods.list_metadata(&params).await?;
            running.extend(page.items.iter().map(Pod::from));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(Self::Running(running));
            }
        }
    }

    /// The pods that run; none if they were not read.
    #[must_use]
    pub fn running(&self) -> &[Pod] {
        match self {
            Self::Running(pods) => pods,
            Self::NotRead | Self::Unreadable(_) => &[],
        }
    }

    /// The pods that a sleep of these workloads leaves running.
    pub fn left_running<'a>(&'a self, workloads: &'a [Workload]) -> impl Iterator<Item = &'a Pod> {
        let goes = |pod: &Pod| pod.terminating || workloads.iter().any(|workload| pod.is_scaled_down_with(workload));
        self.running().iter().filter(move |pod| !goes(pod))
    }

    /// The pods that hold back the deletion of a namespace in which these workloads are asleep since so long: all but
    /// those that their controller is about to delete. Those that are being deleted count until they are gone.
    pub fn holding_back<'a>(
        &'a self,
        workloads: &'a [Workload],
        asleep_for: SignedDuration,
    ) -> impl Iterator<Item = &'a Pod> {
        let goes = move |pod: &Pod| {
            asleep_for < CONTROLLERS_TAKE && workloads.iter().any(|workload| pod.is_scaled_down_with(workload))
        };
        self.running().iter().filter(move |pod| pod.terminating || !goes(pod))
    }

    /// The same for the announcement of a deletion: what is being deleted is gone before the date.
    pub fn holding_back_notice<'a>(
        &'a self,
        workloads: &'a [Workload],
        asleep_for: SignedDuration,
    ) -> impl Iterator<Item = &'a Pod> {
        self.holding_back(workloads, asleep_for).filter(|pod| !pod.terminating)
    }

    /// The pods after a sleep of these workloads.
    #[must_use]
    pub fn after_sleep(&self, workloads: &[Workload]) -> Self {
        match self {
            Self::Running(_) => Self::Running(self.left_running(workloads).cloned().collect()),
            Self::NotRead | Self::Unreadable(_) => self.clone(),
        }
    }

    /// What a sleep of these workloads leaves running, as the end of a sentence; empty if nothing, or if nobody looked.
    #[must_use]
    pub fn after_sleep_message(&self, workloads: &[Workload]) -> String {
        if let Self::Unreadable(why) = self {
            return format!("; whether pods keep running is not known: {why}");
        }
        let left: Vec<&Pod> = self.left_running(workloads).collect();
        if left.is_empty() { String::new() } else { format!("; these pods keep running: {}", named(&left)) }
    }
}

/// The first of these pods, and how many more there are.
pub(crate) fn named(pods: &[&Pod]) -> String {
    let names: Vec<String> = pods.iter().take(NAMED).map(ToString::to_string).collect();
    let more = pods.len().saturating_sub(NAMED);
    if more == 0 { names.join(", ") } else { format!("{} and {more} more", names.join(", ")) }
}

impl Pod {
    /// True if a sleep of the workload ends the pod.
    fn is_scaled_down_with(&self, workload: &Workload) -> bool {
        let Some((kind, name)) = &self.controller else { return false };
        let itself = kind == workload.kind.name() && *name == workload.name;
        // A Deployment's ReplicaSet has the name of the Deployment and a hash.
        let owner = name.rsplit_once('-').map(|(owner, _)| owner).filter(|_| kind == WorkloadKind::ReplicaSet.name());
        let through_replica_set = has_replica_sets(workload.kind) && owner == Some(&workload.name);
        !workload.excluded && !workload.deletes_claims() && (itself || through_replica_set)
    }
}

/// True if the pods of this kind are controlled by ReplicaSets of it.
fn has_replica_sets(kind: WorkloadKind) -> bool {
    matches!(kind, WorkloadKind::Deployment | WorkloadKind::Rollout)
}

impl From<&PartialObjectMeta<ApiPod>> for Pod {
    fn from(pod: &PartialObjectMeta<ApiPod>) -> Self {
        let controller = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
        Self {
            name: pod.name_any(),
            controller: controller.map(|owner| (owner.kind.clone(), owner.name.clone())),
            terminating: pod.metadata.deletion_timestamp.is_some(),
        }
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pod/{}", self.name)?;
        match &self.controller {
            Some((kind, name)) => write!(f, " of {kind}/{name}"),
            None => Ok(()),
        }
    }
}
