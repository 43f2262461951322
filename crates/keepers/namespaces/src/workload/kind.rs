//! The kinds of workloads.

use std::fmt;

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
}

impl WorkloadKind {
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
        }
    }

    /// The group and version in the API.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::ReplicaSet | Self::DaemonSet => "apps/v1",
            Self::CronJob => "batch/v1",
            Self::ScaledObject => "keda.sh/v1alpha1",
        }
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
