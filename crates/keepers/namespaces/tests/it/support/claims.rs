//! A StatefulSet that loses data if it is scaled down.

use caretaker_testkit::make::{Scaled, mk_stateful_set};
use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::json;

/// Two replicas with a claim each; a scale-down deletes the claims.
pub fn stateful_set_that_deletes_claims(namespace: &str) -> StatefulSet {
    let mut set = mk_stateful_set(namespace, "db").replicas(2);
    let spec = set.spec.as_mut().unwrap();
    spec.pod_management_policy = Some("Parallel".to_owned());
    let policy = json!({ "whenScaled": "Delete", "whenDeleted": "Retain" });
    spec.persistent_volume_claim_retention_policy = serde_json::from_value(policy).unwrap();
    spec.volume_claim_templates = serde_json::from_value(json!([{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } },
    }]))
    .unwrap();
    set
}
