//! The settings, and the world that tasks are judged in.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_core::SignedDuration;
use caretaker_core::parsed::InvalidValue;
use jiff::tz::TimeZone;

use super::{Task, TaskKey, TaskResource};
use crate::api::{CarrierKind, Family, KdoctorSettings, RuntimeStatus, Templates};

/// The settings that rules look at.
#[derive(Debug, Clone)]
pub struct Policy {
    /// kdoctor's namespace, as the settings name it: everything of runtimes is read and written there and nowhere else.
    /// `None`: nothing is read in any namespace, and nothing is created.
    pub namespace: Option<String>,
    /// Templates of a file instead of kdoctor's; the error if that cannot be used.
    pub templates: Option<Result<Arc<Templates>, String>>,
    /// How long a runtime stays if its task does not say; `None`: as kdoctor's settings say.
    pub default_grace: Option<SignedDuration>,
    /// At least so long the runtime of a failed task stays.
    pub grace_after_failure: Option<SignedDuration>,
    /// After how long a runtime that is not ready is looked into.
    pub creation_timeout: SignedDuration,
    /// How long the cluster's garbage collector has to remove a carrier without a task.
    pub sweep_after: SignedDuration,
    /// Maximum number of runtimes at a time.
    pub max_runtimes: Option<usize>,
    /// The agent of tasks that ask for no runtime of their own.
    pub default_agent: Option<DefaultAgent>,
    /// The zone of windows on tasks that name none.
    pub zone: TimeZone,
}

/// kdoctor's own default: an hour.
const DEFAULT_GRACE: SignedDuration = SignedDuration::from_mins(60);

impl Default for Policy {
    fn default() -> Self {
        Self {
            namespace: None,
            templates: None,
            default_grace: None,
            grace_after_failure: None,
            creation_timeout: SignedDuration::from_mins(5),
            sweep_after: SignedDuration::from_mins(5),
            max_runtimes: None,
            default_agent: None,
            zone: TimeZone::UTC,
        }
    }
}

/// The agent of tasks that ask for no runtime of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultAgent {
    /// The name of its carrier.
    pub name: String,
    /// The kind of its carrier.
    pub kind: CarrierKind,
    /// Its Service for IPv4.
    pub service_v4: Option<String>,
    /// Its Service for IPv6.
    pub service_v6: Option<String>,
}

impl DefaultAgent {
    /// What the status of a task says that runs on it.
    #[must_use]
    pub fn resource(&self) -> TaskResource {
        TaskResource {
            name: self.name.clone(),
            kind: self.kind.name().to_owned(),
            service_v4: self.service_v4.clone(),
            service_v6: self.service_v6.clone(),
            status: Some(RuntimeStatus::Created),
        }
    }
}

/// Where runtimes are created, and from what.
#[derive(Debug, Clone)]
pub struct Place {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The templates.
    pub templates: Arc<Templates>,
}

/// What is not the task's own.
#[derive(Debug, Clone)]
pub struct World {
    /// The settings.
    pub policy: Arc<Policy>,
    /// kdoctor's own settings.
    pub kdoctor: Arc<KdoctorSettings>,
    /// Where runtimes are created; the reason if nothing can be created.
    pub place: Result<Place, Arc<str>>,
    /// The IP families of the cluster's Services; empty if nobody knows.
    pub cluster_families: Vec<Family>,
    /// Families that the API server refused.
    pub refused_families: Vec<Family>,
    /// How many runtimes there are.
    pub alive: usize,
    /// The tasks that wait for a runtime and their places in the queue, from zero; only if there is a maximum. One that
    /// cannot start now, because of its window or of an attempt that failed, has no place: it keeps nobody waiting.
    pub queue: Arc<BTreeMap<TaskKey, usize>>,
}

impl World {
    /// The families for which a runtime gets a Service.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let enabled = |family: &Family| self.is_asked_for(*family) && !self.is_absent(*family);
        Family::ALL.into_iter().filter(enabled).collect()
    }

    /// The families that kdoctor's settings ask for and the cluster does not have.
    #[must_use]
    pub fn absent_families(&self) -> Vec<Family> {
        Family::ALL.into_iter().filter(|family| self.is_asked_for(*family) && self.is_absent(*family)).collect()
    }

    fn is_asked_for(&self, family: Family) -> bool {
        let (setting, default) = match family {
            // A cluster of which nothing is known has IPv4.
            Family::V4 => (self.kdoctor.enable_ipv4, true),
            Family::V6 => (self.kdoctor.enable_ipv6, false),
        };
        let in_cluster =
            if self.cluster_families.is_empty() { default } else { self.cluster_families.contains(&family) };
        setting.unwrap_or(in_cluster)
    }

    fn is_absent(&self, family: Family) -> bool {
        let not_in_cluster = !self.cluster_families.is_empty() && !self.cluster_families.contains(&family);
        not_in_cluster || self.refused_families.contains(&family)
    }

    /// How long the runtime of a task stays after the task ended. The error if the task says what cannot be read: nobody
    /// knows how long then, so that it stays.
    pub fn grace<'a>(&self, task: &'a Task) -> Result<SignedDuration, &'a InvalidValue> {
        let own = task.grace.as_ref().map_err(|invalid| &**invalid)?;
        let default = self.policy.default_grace.or(self.kdoctor.default_grace).unwrap_or(DEFAULT_GRACE);
        let grace = own.unwrap_or(default);
        let after_failure = self.policy.grace_after_failure.filter(|_| task.has_failed);
        Ok(after_failure.map_or(grace, |least| grace.max(least)))
    }

    /// The place of a task in the queue, from one, if there is no room for its runtime.
    #[must_use]
    pub fn queued(&self, task: &Task) -> Option<usize> {
        let most = self.policy.max_runtimes?;
        // One that the queue does not have comes last.
        let place = self.queue.get(&task.key()).copied().unwrap_or(self.queue.len());
        let free = most.saturating_sub(self.alive);
        (place >= free).then(|| place - free + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn world(cluster: &[Family], v4: Option<bool>, v6: Option<bool>, refused: &[Family]) -> World {
        World {
            policy: Arc::default(),
            kdoctor: Arc::new(KdoctorSettings { enable_ipv4: v4, enable_ipv6: v6, ..KdoctorSettings::default() }),
            place: Err("".into()),
            cluster_families: cluster.to_vec(),
            refused_families: refused.to_vec(),
            alive: 0,
            queue: Arc::default(),
        }
    }

    #[rstest]
    #[case::nothing_known(&[], None, None, &[], &[Family::V4], &[])]
    #[case::dual_stack(&[Family::V4, Family::V6], None, None, &[], &[Family::V4, Family::V6], &[])]
    #[case::only_ipv6(&[Family::V6], None, None, &[], &[Family::V6], &[])]
    #[case::switched_off(&[Family::V4, Family::V6], Some(true), Some(false), &[], &[Family::V4], &[])]
    #[case::ipv6_on_ipv4_only(&[Family::V4], Some(true), Some(true), &[], &[Family::V4], &[Family::V6])]
    #[case::refused_by_an_older_api_server(&[], Some(true), Some(true), &[Family::V6], &[Family::V4], &[Family::V6])]
    fn families_are_those_of_the_cluster_that_kdoctor_does_not_switch_off(
        #[case] cluster: &[Family],
        #[case] v4: Option<bool>,
        #[case] v6: Option<bool>,
        #[case] refused: &[Family],
        #[case] expected: &[Family],
        #[case] absent: &[Family],
    ) {
        let world = world(cluster, v4, v6, refused);

        assert_eq!((world.families().as_slice(), world.absent_families().as_slice()), (expected, absent));
    }
}
