//! The objects of a runtime, from templates and what the task says: pure.

use serde_json::{Map, Value, json};

use crate::api::{API_VERSION, AgentSpec, COMPONENT, COMPONENT_LABEL, CarrierKind, Family, INSTANCE_LABEL, NAME_LABEL};
use crate::subject::{Carrier, Place, TaskRuntime, World};

/// The carrier of a task. Its controller is the task.
#[must_use]
pub fn build_carrier(runtime: &TaskRuntime, agent: &AgentSpec, place: &Place, world: &World) -> Value {
    let labels = labels(&runtime.carrier_name(), place, world);
    let mut carrier = place.templates.carrier(agent.kind).clone();
    let task = &runtime.task;
    let owner = json!({
        "apiVersion": API_VERSION, "kind": task.kind.name(), "name": &*task.name, "uid": task.uid, "controller": true,
    });
    set_identity(&mut carrier, "apps/v1", agent.kind.name(), &runtime.carrier_name(), &place.namespace, &owner);
    let mut pod = place.templates.pod(agent.kind).clone();
    for metadata in [&mut carrier["metadata"], &mut pod["metadata"]] {
        merge(&mut metadata["labels"], labels.clone());
        annotate(metadata, agent);
    }
    build_pod(&mut pod["spec"], agent, &arguments(runtime, world));
    let spec = object(&mut carrier["spec"]);
    match agent.kind {
        CarrierKind::DaemonSet => _ = spec.remove("replicas"),
        CarrierKind::Deployment => _ = spec.insert("replicas".to_owned(), json!(agent.replicas)),
    }
    spec.insert("selector".to_owned(), json!({ "matchLabels": labels }));
    spec.insert("template".to_owned(), pod);
    carrier
}

/// A Service of a carrier for one family. Its controller is the carrier.
#[must_use]
pub fn build_service(
    runtime: &TaskRuntime,
    agent: &AgentSpec,
    carrier: &Carrier,
    family: Family,
    place: &Place,
    world: &World,
) -> Value {
    let mut service = place.templates.service().clone();
    let name = runtime.service_name(family);
    set_identity(&mut service, "v1", "Service", &name, &carrier.namespace, &owned_by(carrier));
    let labels = labels(&carrier.name, place, world);
    merge(&mut service["metadata"]["labels"], labels.clone());
    annotate(&mut service["metadata"], agent);
    let spec = object(&mut service["spec"]);
    spec.insert("selector".to_owned(), Value::Object(labels));
    spec.insert("ipFamilyPolicy".to_owned(), json!("SingleStack"));
    spec.insert("ipFamilies".to_owned(), json!([family.name()]));
    for given_by_the_cluster in ["clusterIP", "clusterIPs"] {
        spec.remove(given_by_the_cluster);
    }
    service
}

/// The Ingress of a carrier, which leads to its Service for IPv4.
#[must_use]
pub fn build_ingress(
    runtime: &TaskRuntime,
    agent: &AgentSpec,
    carrier: &Carrier,
    place: &Place,
    world: &World,
) -> Value {
    let mut ingress = place.templates.ingress().clone();
    let name = runtime.service_name(Family::V4);
    let version = "networking.k8s.io/v1";
    set_identity(&mut ingress, version, "Ingress", &name, &carrier.namespace, &owned_by(carrier));
    merge(&mut ingress["metadata"]["labels"], labels(&carrier.name, place, world));
    annotate(&mut ingress["metadata"], agent);
    let backends = |rule: &mut Value| {
        for path in rule["http"]["paths"].as_array_mut().into_iter().flatten() {
            path["backend"]["service"]["name"] = json!(name);
        }
    };
    ingress["spec"]["rules"].as_array_mut().into_iter().flatten().for_each(backends);
    if ingress["spec"].get("defaultBackend").is_some() {
        ingress["spec"]["defaultBackend"]["service"]["name"] = json!(name);
    }
    ingress
}

/// The labels by which Services and kdoctor find the pods of a carrier.
fn labels(carrier: &str, place: &Place, world: &World) -> Map<String, Value> {
    let name = world.kdoctor.name_label.as_deref().unwrap_or(NAME_LABEL);
    let labels = [(name, carrier), (COMPONENT_LABEL, COMPONENT), (INSTANCE_LABEL, &place.templates.instance)];
    labels.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
}

/// What the agent is told about its task.
fn arguments(runtime: &TaskRuntime, world: &World) -> Vec<String> {
    let task = &runtime.task;
    let mut arguments = vec![format!("--task-kind={}", task.kind), format!("--task-name={}", task.name)];
    let service = |family: Family| format!("--service-{}-name={}", family.lower(), runtime.service_name(family));
    arguments.extend(world.families().into_iter().map(service));
    arguments
}

fn build_pod(pod: &mut Value, agent: &AgentSpec, arguments: &[String]) {
    let spec = object(pod);
    if let Some(affinity) = &agent.affinity {
        spec.insert("affinity".to_owned(), affinity.clone());
    }
    if agent.host_network {
        spec.insert("hostNetwork".to_owned(), json!(true));
        spec.insert("dnsPolicy".to_owned(), json!("ClusterFirstWithHostNet"));
    }
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        let container = object(container);
        if let Some(resources) = &agent.resources {
            container.insert("resources".to_owned(), resources.clone());
        }
        if !agent.env.is_empty() {
            let env = array(container.entry("env").or_insert(Value::Null));
            for variable in &agent.env {
                env.retain(|known| known["name"] != variable["name"]);
                env.push(variable.clone());
            }
        }
        array(container.entry("args").or_insert(Value::Null)).extend(arguments.iter().map(|a| json!(a)));
    }
}

fn owned_by(carrier: &Carrier) -> Value {
    let Carrier { kind, name, uid, .. } = carrier;
    json!({ "apiVersion": "apps/v1", "kind": kind.name(), "name": name, "uid": uid, "controller": true })
}

/// Names the object, and takes away what a template must not say about it.
fn set_identity(object: &mut Value, version: &str, kind: &str, name: &str, namespace: &str, owner: &Value) {
    self::object(object).remove("status");
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    let metadata = self::object(&mut object["metadata"]);
    metadata.retain(|field, _| ["labels", "annotations"].contains(&field.as_str()));
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("namespace".to_owned(), json!(namespace));
    metadata.insert("ownerReferences".to_owned(), json!([owner]));
}

fn annotate(metadata: &mut Value, agent: &AgentSpec) {
    if !agent.annotations.is_empty() {
        let own = agent.annotations.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        merge(&mut metadata["annotations"], own);
    }
}

fn merge(into: &mut Value, more: Map<String, Value>) {
    object(into).extend(more);
}

/// The object; what is none becomes an empty one.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().unwrap_or_else(|| unreachable!("it was made one"))
}

/// The list; what is none becomes an empty one.
fn array(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().unwrap_or_else(|| unreachable!("it was made one"))
}
