//! The fields that are read of each kind of object.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_core::parsed::InvalidValue;
use caretaker_core::suspension::WindowAnnotation;
use caretaker_core::{Timestamp, time};
use caretaker_engine::object::{Owner, Scalar, null_as_default};
use caretaker_engine::{Meta, Partial, PartialObject};
use serde::Deserialize;
use serde_json::Value;

use super::{Elsewhere, Row};
use crate::api::{
    self, AgentSpec, CarrierKind, FINISHED_SEEN_AT, Family, GROUP, INSTANCE_LABEL, KdoctorSettings, PREFIX,
    RuntimeStatus, TaskKind, Templates,
};
use crate::subject::{Agent, Carrier, Controller, Named, Round, RoundStatus, Task, TaskResource};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TaskSpec {
    agent_spec: Option<Value>,
    #[serde(deserialize_with = "null_as_default")]
    schedule: Schedule,
    #[serde(deserialize_with = "null_as_default")]
    target: Target,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Schedule {
    round_number: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Target {
    ingress: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TaskStatus {
    finish: Option<bool>,
    finish_time: Option<Scalar>,
    last_round_status: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    history: Vec<History>,
    resource: Option<Resource>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct History {
    #[serde(deserialize_with = "null_as_default")]
    status: String,
    #[serde(rename = "deadLineTimeStamp")]
    deadline: Option<Scalar>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resource {
    #[serde(deserialize_with = "null_as_default")]
    runtime_name: String,
    #[serde(deserialize_with = "null_as_default")]
    runtime_type: String,
    service_name_v4: Option<String>,
    service_name_v6: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    runtime_status: String,
}

fn moment(text: Option<&Scalar>) -> Option<Timestamp> {
    text.and_then(|text| time::parse(&text.0))
}

pub(super) fn task(kind: TaskKind, object: Partial<TaskSpec, TaskStatus>) -> Option<Row> {
    let Partial { metadata: meta, spec, status } = object;
    let written = spec.agent_spec.filter(|spec| !spec.is_null());
    let read = written.as_ref().map(AgentSpec::read);
    let agent = match (&written, &read) {
        (Some(written), Some(Ok(read))) => Some(Agent { kind: read.kind, json: written.to_string().into() }),
        _ => None,
    };
    let round = status.history.first().map(|round| Round {
        status: if round.status == "notstarted" { RoundStatus::NotStarted } else { RoundStatus::Other },
        deadline: moment(round.deadline.as_ref()),
    });
    let resource = status.resource.map(|resource| TaskResource {
        name: resource.runtime_name,
        kind: resource.runtime_type,
        service_v4: resource.service_name_v4,
        service_v6: resource.service_name_v6,
        status: RuntimeStatus::parse(&resource.runtime_status),
    });
    Some(Row::Task(Box::new(Task {
        kind,
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        created: meta.created(),
        is_deleting: meta.deletion_timestamp.is_some(),
        has_agent_spec: written.is_some(),
        agent,
        grace: written.as_ref().map_or(Ok(None), AgentSpec::read_grace),
        invalid: read.and_then(Result::err).or_else(|| invalid_name(kind, &meta.name)),
        window: WindowAnnotation::find(|key| meta.annotation(key)).map(Box::new),
        wants_ingress: kind == TaskKind::NetReach && spec.target.ingress == Some(true),
        round_number: spec.schedule.round_number,
        has_finish: status.finish.is_some(),
        is_finished: status.finish == Some(true),
        finish_time: moment(status.finish_time.as_ref()),
        has_failed: status.last_round_status.as_deref() == Some("fail"),
        round,
        resource,
        name: meta.name.into(),
    })))
}

/// The API server accepts no such name; a file may have it.
fn invalid_name(kind: TaskKind, name: &str) -> Option<Box<InvalidValue>> {
    let carrier = api::carrier_name(kind, name);
    // A label value may have an underscore, and the name of an object may not.
    let is_name = api::is_label_value(&carrier) && carrier == carrier.to_lowercase() && !carrier.contains('_');
    (name.is_empty() || !is_name).then(|| {
        Box::new(InvalidValue {
            field: "metadata.name".to_owned(),
            value: name.to_owned(),
            reason: "it cannot become the label of a pod".to_owned(),
            remedy: "use lower case letters, digits, - and ., and begin and end with a letter or digit".to_owned(),
        })
    })
}

/// Fields of a DaemonSet or a Deployment.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CarrierObject {
    metadata: CarrierMeta,
    #[serde(deserialize_with = "null_as_default")]
    spec: CarrierSpec,
    #[serde(deserialize_with = "null_as_default")]
    status: CarrierStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct CarrierMeta {
    #[serde(flatten)]
    meta: Meta,
    generation: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct CarrierSpec {
    replicas: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CarrierStatus {
    observed_generation: i64,
    desired_number_scheduled: i64,
    number_ready: i64,
    ready_replicas: i64,
}

impl PartialObject for CarrierObject {
    fn metadata(&self) -> &Meta {
        &self.metadata.meta
    }
}

fn elsewhere(kind: &'static str, meta: &Meta) -> Row {
    Row::Elsewhere(Elsewhere { kind, namespace: meta.namespace.clone(), name: meta.name.clone() })
}

/// By owner alone, never by name or label; what has a name of a runtime and another owner is in the way. What is outside
/// of kdoctor's namespace is nobody's carrier.
pub(super) fn carrier(kind: CarrierKind, home: &str, object: CarrierObject) -> Option<Row> {
    let CarrierObject { metadata: CarrierMeta { meta, generation }, spec, status } = object;
    if meta.namespace != home {
        return meta.controller().and_then(task_owner).map(|_| elsewhere(kind.name(), &meta));
    }
    let (desired, ready) = match kind {
        CarrierKind::DaemonSet => (status.desired_number_scheduled, status.number_ready),
        // The API server's own default.
        CarrierKind::Deployment => (spec.replicas.unwrap_or(1), status.ready_replicas),
    };
    let task = meta.controller().and_then(task_owner);
    let Some((task_kind, owner)) = task else { return named_as(kind.name(), meta, ready) };
    Some(Row::Carrier(Carrier {
        kind,
        namespace: meta.namespace.as_str().into(),
        task: (task_kind, owner.name.as_str().into()),
        task_uid: owner.uid.clone(),
        created: meta.created(),
        is_deleting: meta.deletion_timestamp.is_some(),
        is_observed: status.observed_generation >= generation,
        desired,
        ready,
        finished_seen_at: meta.annotation(FINISHED_SEEN_AT).and_then(time::parse),
        name: meta.name,
        uid: meta.uid,
        resource_version: meta.resource_version,
    }))
}

fn task_owner(owner: &Owner) -> Option<(TaskKind, &Owner)> {
    let is_group = owner.api_version.split('/').next() == Some(GROUP);
    TaskKind::parse(&owner.kind).filter(|_| is_group).map(|kind| (kind, owner))
}

fn named_as(kind: &'static str, meta: Meta, ready: i64) -> Option<Row> {
    if !meta.name.starts_with(PREFIX) {
        return None;
    }
    let controller = meta.controller().map(|owner| Controller {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    });
    let is_deleting = meta.deletion_timestamp.is_some();
    let namespace = meta.namespace.as_str().into();
    Some(Row::Named(Named { kind, namespace, name: meta.name, uid: meta.uid, controller, is_deleting, ready }))
}

/// A Service or an Ingress in kdoctor's namespace.
pub(super) fn part(kind: &'static str, home: &str, object: Partial) -> Option<Row> {
    if object.metadata.namespace == home { named_as(kind, object.metadata, 0) } else { None }
}

/// A ConfigMap.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConfigMapObject {
    metadata: Meta,
    #[serde(deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
}

impl PartialObject for ConfigMapObject {
    fn metadata(&self) -> &Meta {
        &self.metadata
    }
}

/// Either of kdoctor's ConfigMaps, whichever source delivers it. Whoever may write ConfigMaps in another namespace has
/// no part in what runs.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a projection")]
pub(super) fn config_map(home: &str, object: ConfigMapObject) -> Option<Row> {
    let meta = &object.metadata;
    match meta.name.as_str() {
        api::SETTINGS | api::TEMPLATES if meta.namespace != home => Some(elsewhere("ConfigMap", meta)),
        api::SETTINGS => settings(&object),
        _ => templates(&object),
    }
}

fn templates(object: &ConfigMapObject) -> Option<Row> {
    let meta = &object.metadata;
    (meta.name == api::TEMPLATES).then(|| {
        let read = Templates::from_config_map(&object.data, meta.label(INSTANCE_LABEL));
        let place = format!("ConfigMap {}/{}", meta.namespace, meta.name);
        let remedy = "repair it, or name a file in keepers.runtimes.template";
        Row::Templates(read.map(Arc::new).map_err(|error| format!("{place}: {error}; {remedy}").into()))
    })
}

fn settings(object: &ConfigMapObject) -> Option<Row> {
    let text = object.data.get("conf.yml")?;
    Some(Row::Settings(Arc::new(KdoctorSettings::read(text))))
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CidrSpec {
    #[serde(deserialize_with = "null_as_default")]
    cidrs: Vec<String>,
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a projection")]
pub(super) fn families(object: Partial<CidrSpec>) -> Option<Row> {
    let family = |cidr: &String| if cidr.contains(':') { Family::V6 } else { Family::V4 };
    Some(Row::Families(object.spec.cidrs.iter().map(family).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    /// What the sources of a keeper make of an object in a file.
    fn read(object: &Value) -> Option<Row> {
        use crate::subject::Policy;
        use caretaker_engine::Change;
        use caretaker_engine::decode::Document;
        let policy = Policy { namespace: Some("kdoctor".to_owned()), ..Policy::default() };
        let sources = caretaker_engine::sources::Sources::of(&crate::Runtimes::new(policy));
        let [api_version, kind] = ["apiVersion", "kind"].map(|key| object[key].as_str().unwrap().to_owned());
        let (_, change) = sources.decode(&api_version, &kind, Document::Value(object)).unwrap().unwrap();
        if let Change::Apply(observed) = change { Some(observed.row) } else { None }
    }

    #[rstest]
    #[case::a_carrier("apps/v1", "DaemonSet", "kdoctor-netreach-mesh")]
    #[case::a_carrier_with_replicas("apps/v1", "Deployment", "kdoctor-netreach-mesh")]
    #[case::the_templates("v1", "ConfigMap", "kdoctor-app-config-template")]
    #[case::the_settings("v1", "ConfigMap", "kdoctor")]
    fn what_is_outside_of_kdoctors_namespace_is_known_and_not_used(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] name: &str,
    ) {
        let owner = json!({
            "apiVersion": "kdoctor.io/v1beta1", "kind": "NetReach", "name": "mesh", "uid": "u", "controller": true,
        });
        let object = |namespace: &str| {
            json!({
                "apiVersion": api_version, "kind": kind,
                "metadata": { "namespace": namespace, "name": name, "ownerReferences": [owner] },
                "data": { "conf.yml": "enableIPv6: true", "pod.yml": "spec: {containers: [{name: a, image: x}]}" },
            })
        };

        let used = read(&object("kdoctor"));
        assert!(matches!(used, Some(Row::Carrier(_) | Row::Templates(Ok(_)) | Row::Settings(_))), "{used:?}");
        let Some(Row::Elsewhere(found)) = read(&object("a-tenant")) else { panic!("it is known") };
        assert_eq!((found.kind, &*found.namespace, &*found.name), (kind, "a-tenant", name));
    }

    #[rstest]
    #[case::a_service("v1", "Service")]
    #[case::an_ingress("networking.k8s.io/v1", "Ingress")]
    #[case::a_carrier_of_nobody("apps/v1", "DaemonSet")]
    fn what_has_a_name_of_a_runtime_counts_in_kdoctors_namespace_alone(#[case] api_version: &str, #[case] kind: &str) {
        let object = |namespace: &str| {
            let metadata = json!({ "namespace": namespace, "name": "kdoctor-netreach-mesh" });
            json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata })
        };

        assert!(matches!(read(&object("kdoctor")), Some(Row::Named(_))));
        assert_eq!(read(&object("a-tenant")), None);
    }

    #[test]
    fn a_grace_beside_what_cannot_be_read_is_kept() {
        let agent = json!({ "terminationGracePeriodMinutes": 1440, "env": [{ "name": "A" }, { "name": "A" }] });
        let object = json!({ "metadata": { "name": "mesh" }, "spec": { "agentSpec": agent } });

        let Some(Row::Task(task)) = task(TaskKind::NetReach, serde_json::from_value(object).unwrap()) else {
            panic!("a task")
        };

        assert!(task.agent.is_none() && task.invalid.is_some());
        assert_eq!(task.grace, Ok(Some(caretaker_core::SignedDuration::from_mins(1440))));
    }

    #[rstest]
    #[case::short("mesh", true)]
    #[case::dotted("a.b", true)]
    #[case::too_long_and_so_cut(&"x".repeat(80), true)]
    #[case::empty("", false)]
    #[case::upper_case("Mesh", false)]
    #[case::a_dash_at_the_end("mesh-", false)]
    #[case::a_blank("a b", false)]
    #[case::an_underscore("a_b", false)]
    #[case::letters_of_another_alphabet("größe", false)]
    fn a_name_that_cannot_become_a_label_is_told_with_field_and_fix(#[case] name: &str, #[case] fits: bool) {
        let object = json!({ "metadata": { "name": name }, "spec": { "agentSpec": {} } });

        let Some(Row::Task(task)) = task(TaskKind::NetReach, serde_json::from_value(object).unwrap()) else {
            panic!("a task")
        };

        let invalid = task.invalid.map(|invalid| invalid.to_string());
        assert_eq!(invalid.is_none(), fits, "{invalid:?}");
        assert_eq!(task.grace, Ok(None));
        if let Some(invalid) = invalid {
            assert!(invalid.starts_with("metadata.name") && invalid.contains("use lower case letters"), "{invalid}");
        }
    }
}
