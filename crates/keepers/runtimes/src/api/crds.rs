//! CustomResourceDefinitions of tasks with the names and types of kdoctor's: for tests, and for clusters that have none.
//!
//! What a kind requests, expects and targets is kdoctor's own business and is accepted as it is.

use serde_json::{Value, json};

use super::{GROUP, TaskKind, VERSION};

/// The CustomResourceDefinitions of all kinds of tasks.
#[must_use]
pub fn crds() -> [Value; 3] {
    TaskKind::ALL.map(definition)
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn number() -> Value {
    json!({ "type": "integer", "format": "int64" })
}

fn moment() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn anything() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn words(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

fn agent_spec() -> Value {
    json!({ "type": "object", "properties": {
        "annotation": { "type": "object", "additionalProperties": text() },
        "kind": { "type": "string", "enum": ["Deployment", "DaemonSet"], "default": "DaemonSet" },
        "deploymentReplicas": { "type": "integer", "format": "int32" },
        "affinity": anything(),
        "env": { "type": "array", "items": {
            "type": "object", "required": ["name"], "x-kubernetes-preserve-unknown-fields": true,
            "properties": { "name": text(), "value": text() },
        } },
        "hostNetwork": { "type": "boolean", "default": false },
        "resources": anything(),
        "terminationGracePeriodMinutes": { "type": "integer", "format": "int64", "default": 60 },
    } })
}

fn spec(kind: TaskKind) -> Value {
    let target = if kind == TaskKind::NetReach {
        json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": { "ingress": { "type": "boolean", "default": false } },
        })
    } else {
        anything()
    };
    json!({ "type": "object", "properties": {
        "agentSpec": agent_spec(),
        "schedule": { "type": "object", "properties": {
            "schedule": text(),
            "roundTimeoutMinute": { "type": "integer", "format": "int64", "default": 60, "minimum": 1 },
            "roundNumber": { "type": "integer", "format": "int64", "default": 1, "minimum": -1 },
        } },
        "request": anything(),
        "expect": anything(),
        "target": target,
    } })
}

fn status() -> Value {
    let round = json!({ "type": "object", "required": ["status", "roundNumber"], "properties": {
        "status": words(&["succeed", "fail", "ongoing", "notstarted"]),
        "failureReason": text(),
        "roundNumber": number(),
        "startTimeStamp": moment(),
        "endTimeStamp": moment(),
        "duration": text(),
        "deadLineTimeStamp": moment(),
        "failedAgentNodeList": { "type": "array", "items": text() },
        "succeedAgentNodeList": { "type": "array", "items": text() },
        "notReportAgentNodeList": { "type": "array", "items": text() },
        "expectedActorNumber": number(),
    } });
    let resource = json!({
        "type": "object", "required": ["runtimeName", "runtimeType", "runtimeStatus"],
        "properties": {
            "runtimeName": text(),
            "runtimeType": text(),
            "serviceNameV4": text(),
            "serviceNameV6": text(),
            "runtimeStatus": words(&["creating", "created", "deleted"]),
        },
    });
    json!({ "type": "object", "required": ["finish"], "properties": {
        "expectedRound": { "type": "integer", "format": "int64", "minimum": -1 },
        "doneRound": number(),
        "finish": { "type": "boolean" },
        "finishTime": moment(),
        "lastRoundStatus": words(&["succeed", "fail", "unknown"]),
        "history": { "type": "array", "items": round },
        "resource": resource,
    } })
}

fn definition(kind: TaskKind) -> Value {
    let column = |name: &str, path: &str| json!({ "name": name, "type": "string", "jsonPath": path });
    let columns = [
        column("finish", ".status.finish"),
        column("lastRoundStatus", ".status.lastRoundStatus"),
        column("runtime", ".status.resource.runtimeName"),
        column("runtimeStatus", ".status.resource.runtimeStatus"),
    ];
    let schema = json!({ "type": "object", "properties": {
        "apiVersion": text(), "kind": text(), "metadata": { "type": "object" }, "spec": spec(kind), "status": status(),
    } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{GROUP}", kind.plural()) },
        "spec": {
            "group": GROUP, "scope": "Cluster",
            "names": {
                "kind": kind.name(), "listKind": format!("{kind}List"), "plural": kind.plural(),
                "singular": kind.aliases()[0], "shortNames": kind.aliases()[2..], "categories": ["kdoctor"],
            },
            "versions": [{
                "name": VERSION, "served": true, "storage": true, "subresources": { "status": {} },
                "additionalPrinterColumns": columns, "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}
