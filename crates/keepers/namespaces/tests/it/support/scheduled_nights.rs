//! Namespaces that are asleep by night, in a cluster with real controllers.

use std::time::Duration;

use caretaker_core::{SignedDuration, Timestamp};
use caretaker_namespaces::api;
use caretaker_testkit::make::{Said, Scaled, mk_deployment};
use caretaker_testkit::until;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};

use crate::support::sample::{hours, start, used_at};

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(2);
/// Asleep from 20:00 to 6:00.
pub const NIGHT: &str = "* 20-23,0-5 * * *";

/// Day and time of day in the cluster's story, which begins on a Thursday at midnight.
pub fn at(day: i64, hour: i64, minute: i64) -> Timestamp {
    hours(24 * day + hour) + SignedDuration::from_mins(minute)
}

pub async fn create(client: &Client, namespace: Namespace) {
    let name = namespace.name_any();
    let namespace = namespace.annotation(api::ACTIVITY, &used_at(start()));
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let deployment = mk_deployment(&name, "web").replicas(2);
    Api::namespaced(client.clone(), &name).create(&PostParams::default(), &deployment).await.unwrap();
}

/// Waits until the namespace is in a state, and as many pods are there as its workloads want.
pub async fn becomes(client: &Client, name: &str, state: &str, pods: usize) {
    let (namespaces, all): (Api<Namespace>, Api<Pod>) =
        (Api::all(client.clone()), Api::namespaced(client.clone(), name));
    until(&format!("{name} to be {state} with {pods} pods"), LIMIT, async || {
        let namespace = namespaces.get(name).await.unwrap();
        let is = namespace.labels().get(api::STATE).map_or("normal", String::as_str).to_owned();
        let count = all.list(&ListParams::default()).await.unwrap().items.len();
        Ok(if (is.as_str(), count) == (state, pods) { Ok(()) } else { Err(format!("{is} with {count} pods")) })
    })
    .await
    .unwrap();
}
