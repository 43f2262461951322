//! The kinds of workloads: those that are always read, and those that the settings name.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A kind of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkloadKind {
    /// apps/v1
    Deployment,
    /// apps/v1
    StatefulSet,
    /// apps/v1, without a controlling owner
    ReplicaSet,
    /// apps/v1
    DaemonSet,
    /// batch/v1
    CronJob,
    /// keda.sh/v1alpha1
    ScaledObject,
    /// argoproj.io/v1alpha1
    Rollout,
    /// apps.kruise.io/v1alpha1
    CloneSet,
    /// One that the settings name.
    Other(&'static OtherKind),
}

/// A kind of workload that the settings name, scaled by `spec.replicas`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherKind {
    api_version: String,
    kind: String,
}

impl WorkloadKind {
    /// A kind that the settings name. It is kept as long as the process lives; settings name a few.
    #[must_use]
    pub fn other(api_version: &str, kind: &str) -> Self {
        static KNOWN: Mutex<Vec<&'static OtherKind>> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.iter().find(|other| other.api_version == api_version && other.kind == kind) {
            return Self::Other(found);
        }
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        let other = &*Box::leak(Box::new(OtherKind { api_version, kind }));
        known.push(other);
        Self::Other(other)
    }

    /// The kind in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::ReplicaSet => "ReplicaSet",
            Self::DaemonSet => "DaemonSet",
            Self::CronJob => "CronJob",
            Self::ScaledObject => "ScaledObject",
            Self::Rollout => "Rollout",
            Self::CloneSet => "CloneSet",
            Self::Other(other) => &other.kind,
        }
    }

    /// The group and version in the API.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::ReplicaSet | Self::DaemonSet => "apps/v1",
            Self::CronJob => "batch/v1",
            Self::ScaledObject => "keda.sh/v1alpha1",
            Self::Rollout => "argoproj.io/v1alpha1",
            Self::CloneSet => "apps.kruise.io/v1alpha1",
            Self::Other(other) => &other.api_version,
        }
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
