//! Pools, endpoints and pods as an API server sends them.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// A pod runs, is terminating, or has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Terminating,
    Finished,
}

/// A uid with this number.
pub(super) fn uid(kind: u32, number: usize) -> String {
    format!("{kind:08x}-3d8a-4f0b-8b1d-{number:012x}")
}

/// An address of the pool of that number: at most 5,000 each.
pub(super) fn ip(pool: usize, number: usize) -> String {
    format!("10.{pool}.{}.{}", number / 250, number % 250 + 1)
}

/// The random suffix of a pod's name, in the letters that Kubernetes uses.
pub(super) fn ending(mut number: usize) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut text = String::new();
    for _ in 0..5 {
        text.push(char::from(LETTERS[number % 27]));
        number /= 27;
    }
    text
}

/// A pool `10.<number>.0.0/16` with these records: address, holder, uid.
pub(super) fn pool(name: &str, number: usize, records: &[(String, String, String)]) -> Value {
    let one = |(ip, pod, uid): &(String, String, String)| (ip.clone(), json!({ "pod": pod, "podUid": uid }));
    let map: Map<String, Value> = records.iter().map(one).collect();
    let allocated = if records.is_empty() { Value::Null } else { Value::String(Value::Object(map).to_string()) };
    json!({
        "apiVersion": "spiderpool.spidernet.io/v2beta1", "kind": "SpiderIPPool",
        "metadata": { "name": name, "uid": uid(1, number), "resourceVersion": "1" },
        "spec": {
            "subnet": format!("10.{number}.0.0/16"), "ipVersion": 4,
            "ips": [format!("10.{number}.0.1-10.{number}.19.250")],
        },
        "status": { "allocatedIPs": allocated, "allocatedIPCount": records.len(), "totalIPCount": 5_000 },
    })
}

/// A StatefulSet with so many replicas.
pub(super) fn set(namespace: &str, name: &str, replicas: usize) -> Value {
    json!({
        "metadata": { "namespace": namespace, "name": name, "uid": uid(2, 0), "resourceVersion": "1" },
        "spec": { "replicas": replicas, "serviceName": name },
    })
}

pub(super) fn node(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "uid": uid(3, 0), "resourceVersion": "1" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// The JSON of an endpoint, as in a list.
pub(super) fn endpoint(key: &str, pod: &str, ip: &str) -> String {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "@NAME", "uid": "@POD", "blockOwnerDeletion": true, "controller": true }]);
        let mut endpoint = json!({
            "apiVersion": "spiderpool.spidernet.io/v2beta1", "kind": "SpiderEndpoint",
            "metadata": {
                "name": "@NAME", "namespace": "@SPACE", "uid": "e@POD", "resourceVersion": "12345678",
                "creationTimestamp": "2026-03-02T08:00:00Z", "generation": 1,
                "finalizers": ["spiderpool.spidernet.io"], "ownerReferences": owner,
            },
            "status": {
                "current": {
                    "uid": "@POD", "node": "node-0001",
                    "ips": [{
                        "interface": "eth0", "ipv4": "@IP/16", "ipv4Pool": "pool-00", "ipv4Gateway": "10.0.0.1",
                        "vlan": 0, "cleanGateway": false, "routes": [],
                    }],
                },
                "ownerControllerType": "Deployment", "ownerControllerName": "web",
            },
        });
        endpoint["metadata"]["managedFields"] = managed(&endpoint, "spiderpool-agent", "status");
        endpoint.to_string()
    });
    let (namespace, name) = key.split_once('/').unwrap_or(("default", key));
    let text = TEXT.replace("e@POD", &format!("{:0>8}{}", "e", &pod[8..]));
    text.replace("@NAME", name).replace("@SPACE", namespace).replace("@POD", pod).replace("@IP", ip)
}

/// The JSON of a pod, as in a list: 12 KB, nearly half of which are managedFields.
pub(super) fn pod(key: &str, uid: &str, ip: &str, node: &str, life: Life, in_set: bool) -> String {
    static TEXT: LazyLock<String> = LazyLock::new(|| whole().to_string());
    let (namespace, name) = key.split_once('/').unwrap_or(("default", key));
    let text = TEXT.replace("@NAME", name).replace("@SPACE", namespace);
    let mut text = text.replace("@UID", uid).replace("@IP", ip).replace("@NODE", node);
    match life {
        Life::Running => {}
        Life::Terminating => {
            let created = r#""creationTimestamp":"2026-03-02T08:00:00Z","#;
            text = text.replacen(created, &format!(r#"{created}"deletionTimestamp":"2026-03-02T11:59:00Z","#), 1);
        }
        Life::Finished => text = text.replace(r#""phase":"Running""#, r#""phase":"Succeeded""#),
    }
    if in_set {
        text = text.replacen(r#""kind":"ReplicaSet""#, r#""kind":"StatefulSet""#, 1);
    }
    text
}

/// The same pod as it is created on an API server, and its status.
pub(super) fn created(key: &str, ip: &str, node: &str) -> (Value, Value) {
    let text = pod(key, "", ip, node, Life::Running, false);
    let mut pod: Value = serde_json::from_str(&text).unwrap_or_else(|e| unreachable!("it was written as JSON: {e}"));
    let status = json!({ "status": pod["status"].take() });
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences"] {
            metadata.remove(field);
        }
    }
    if let Some(pod) = pod.as_object_mut() {
        pod.remove("status");
    }
    (pod, status)
}

fn whole() -> Value {
    let mut pod = json!({
        "metadata": {
            "name": "@NAME", "generateName": "web-7d9c5bd8f4-", "namespace": "@SPACE", "uid": "@UID",
            "resourceVersion": "12345678", "creationTimestamp": "2026-03-02T08:00:00Z",
            "labels": {
                "app.kubernetes.io/name": "web", "app.kubernetes.io/part-of": "shop", "app.kubernetes.io/version": "3.14.1",
                "pod-template-hash": "7d9c5bd8f4", "tier": "front",
            },
            "annotations": {
                "ipam.spidernet.io/ippool": r#"{"ipv4":["pool-00"]}"#,
                "k8s.v1.cni.cncf.io/network-status": r#"[{"name":"kube-system/macvlan","interface":"eth0","ips":["@IP"],"mac":"ae:12:9f:00:11:22","default":true,"dns":{}}]"#,
                "prometheus.io/scrape": "true", "prometheus.io/port": "9090", "prometheus.io/path": "/metrics",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9c5bd8f4",
                "uid": "00000009-3d8a-4f0b-8b1d-000000000001", "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "containers": [container("web", 20), container("proxy", 12)],
            "volumes": [
                { "name": "config", "configMap": { "name": "web", "defaultMode": 420 } },
                { "name": "scratch", "emptyDir": {} },
            ],
            "nodeName": "@NODE", "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
            "terminationGracePeriodSeconds": 30, "serviceAccountName": "default", "schedulerName": "default-scheduler",
            "securityContext": { "fsGroup": 1000, "runAsNonRoot": true, "runAsUser": 1000 }, "priority": 0,
            "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
        },
    });
    let spec = managed(&pod, "kube-controller-manager", "");
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
        json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-03-02T08:00:09Z" })
    });
    let containers = ["web", "proxy"].map(|name| json!({
        "name": name, "ready": true, "restartCount": 0, "started": true, "lastState": {},
        "image": format!("registry.example.com/shop/{name}:3.14.1"),
        "imageID": format!("registry.example.com/shop/{name}@sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"),
        "containerID": "containerd://6c1b2d0a9f8e7d6c5b4a39281706f5e4d3c2b1a0998877665544332211000fff",
        "state": { "running": { "startedAt": "2026-03-02T08:00:08Z" } },
    }));
    let status = json!({
        "phase": "Running", "podIP": "@IP", "podIPs": [{ "ip": "@IP" }], "hostIP": "172.18.0.4",
        "hostIPs": [{ "ip": "172.18.0.4" }], "startTime": "2026-03-02T08:00:00Z", "qosClass": "Burstable",
        "conditions": conditions, "containerStatuses": containers,
    });
    let kubelet = managed(&json!({ "status": status }), "kubelet", "status");
    pod["status"] = status;
    let fields: Vec<&Value> = spec.as_array().into_iter().chain(kubelet.as_array()).flatten().collect();
    pod["metadata"]["managedFields"] = json!(fields);
    pod
}

fn container(name: &str, variables: usize) -> Value {
    let env: Vec<Value> = (0..variables)
        .map(|i| json!({ "name": format!("SETTING_{i:02}"), "value": format!("some value of medium length, {i}") }))
        .collect();
    let probe = json!({
        "httpGet": { "path": "/healthz", "port": 8080, "scheme": "HTTP" },
        "initialDelaySeconds": 5, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
    });
    json!({
        "name": name, "image": format!("registry.example.com/shop/{name}:3.14.1"), "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/serve"], "args": ["--config=/etc/web/config.yaml", "--listen=:8080"],
        "ports": [{ "name": format!("{name}-http"), "containerPort": 8080, "protocol": "TCP" }],
        "env": env, "livenessProbe": probe, "readinessProbe": probe,
        "resources": { "limits": { "memory": "512Mi" }, "requests": { "cpu": "100m", "memory": "256Mi" } },
        "volumeMounts": [
            { "name": "config", "mountPath": "/etc/web", "readOnly": true },
            { "name": "scratch", "mountPath": "/scratch" },
        ],
        "securityContext": { "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true },
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    })
}

/// The managedFields that the API server keeps.
fn managed(object: &Value, manager: &str, subresource: &str) -> Value {
    let mut entry = json!({
        "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields(object), "manager": manager,
        "operation": "Update", "time": "2026-03-02T08:00:09Z",
    });
    if !subresource.is_empty() {
        entry["subresource"] = json!(subresource);
    }
    json!([entry])
}

fn fields(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| (format!("f:{key}"), fields(value))).collect(),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let keyed = |item: &Value| {
                let key = ["name", "type", "uid", "ip", "key", "mountPath"].iter().find(|key| item[**key].is_string());
                let name = key.map_or_else(String::new, |key| json!({ *key: item[*key] }).to_string());
                let mut all = fields(item);
                all["."] = json!({});
                (format!("k:{name}"), all)
            };
            items.iter().map(keyed).collect()
        }
        _ => json!({}),
    }
}
