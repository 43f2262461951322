//! Builds audit events as the API server writes them.

use std::sync::atomic::{AtomicUsize, Ordering};

use caretaker_activity::event::{AuditEvent, decode_line};
use serde_json::{Value, json};

/// An audit event, as JSON that can be changed.
#[derive(Debug, Clone)]
pub struct TestEvent {
    value: Value,
    text: String,
}

static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

/// A request that succeeded, in the namespace `shop`, with an audit ID of its own.
pub fn mk_event(user: &str, verb: &str, resource: &str) -> TestEvent {
    let id = format!("id-{}", NEXT_ID.fetch_add(1, Ordering::Relaxed));
    let time = "2026-03-02T08:59:00.123456Z";
    let value = json!({
        "level": "Metadata", "auditID": id, "stage": "ResponseComplete",
        "requestURI": "/api/v1/namespaces/shop/pods", "verb": verb,
        "user": { "username": user, "uid": "u1", "groups": ["system:authenticated"] },
        "sourceIPs": ["10.0.0.1"], "userAgent": "kubectl/v1.36.3 (linux/amd64)",
        "objectRef": { "resource": resource, "namespace": "shop", "apiVersion": "v1" },
        "responseStatus": { "metadata": {}, "code": 200 },
        "requestReceivedTimestamp": time, "stageTimestamp": time,
        "annotations": { "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "" },
    });
    TestEvent { text: value.to_string(), value }
}

#[allow(dead_code, reason = "each test binary uses some of them")]
impl TestEvent {
    fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.value);
        self.text = self.value.to_string();
        self
    }

    pub fn stage(self, stage: &str) -> Self {
        self.with(|v| v["stage"] = json!(stage))
    }

    pub fn status_code(self, code: u16) -> Self {
        self.with(|v| v["responseStatus"]["code"] = json!(code))
    }

    pub fn api_group(self, group: &str) -> Self {
        self.with(|v| v["objectRef"]["apiGroup"] = json!(group))
    }

    pub fn subresource(self, subresource: &str) -> Self {
        self.with(|v| v["objectRef"]["subresource"] = json!(subresource))
    }

    pub fn user_group(self, group: &str) -> Self {
        self.with(|v| v["user"]["groups"] = json!([group, "system:authenticated"]))
    }

    /// The token of the user is bound to this pod.
    pub fn bound_to_pod(self, pod: &str) -> Self {
        let extra = json!({
            "authentication.kubernetes.io/credential-id": ["JTI=7"],
            "authentication.kubernetes.io/pod-name": [pod],
            "authentication.kubernetes.io/pod-uid": ["u2"],
        });
        self.with(|v| v["user"]["extra"] = extra)
    }

    pub fn impersonating(self, user: &str) -> Self {
        self.with(|v| v["impersonatedUser"] = json!({ "username": user, "groups": ["system:authenticated"] }))
    }

    pub fn agent(self, agent: &str) -> Self {
        self.with(|v| v["userAgent"] = json!(agent))
    }

    /// Sets both timestamps.
    pub fn at(self, time: &str) -> Self {
        self.with(|v| (v["requestReceivedTimestamp"], v["stageTimestamp"]) = (json!(time), json!(time)))
    }

    pub fn stage_reached_at(self, time: &str) -> Self {
        self.with(|v| v["stageTimestamp"] = json!(time))
    }

    pub fn uri(self, uri: &str) -> Self {
        self.with(|v| v["requestURI"] = json!(uri))
    }

    pub fn id(self, id: &str) -> Self {
        self.with(|v| v["auditID"] = json!(id))
    }

    pub fn namespace(self, namespace: &str) -> Self {
        self.with(|v| v["objectRef"]["namespace"] = json!(namespace))
    }

    pub fn without_namespace(self) -> Self {
        self.with(|v| _ = v["objectRef"].as_object_mut().unwrap().remove("namespace"))
    }

    pub fn without_object(self) -> Self {
        self.with(|v| _ = v.as_object_mut().unwrap().remove("objectRef"))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn decode(&self) -> AuditEvent<'_> {
        decode_line(self.text.as_bytes()).unwrap()
    }
}
