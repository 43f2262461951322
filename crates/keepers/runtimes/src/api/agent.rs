//! `spec.agentSpec` of a task: what its own runtime looks like.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::SignedDuration;
use caretaker_core::parsed::InvalidValue;
use k8s_openapi::api::core::v1::{Affinity, EnvVar, ResourceRequirements};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::CarrierKind;

/// How long a runtime stays after its task ended, as the task says it; `None`: as the settings say. The error if it says
/// what cannot be read.
pub type Grace = Result<Option<SignedDuration>, Box<InvalidValue>>;

/// What a task says about its runtime, checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentSpec {
    /// Annotations of carrier, pods and Services.
    pub annotations: BTreeMap<String, String>,
    /// What runs the pods.
    pub kind: CarrierKind,
    /// How many pods a Deployment has.
    pub replicas: i32,
    /// Replaces the affinity of the template.
    pub affinity: Option<Value>,
    /// Merged into the environment of every container, by name.
    pub env: Vec<Value>,
    /// The pods use the network of their node.
    pub host_network: bool,
    /// Replaces the resources of every container.
    pub resources: Option<Value>,
    /// How long the runtime stays after the task ended; `None`: as the settings say.
    pub grace: Option<SignedDuration>,
}

impl AgentSpec {
    /// Reads and checks it. What is wrong names the field and what to write.
    pub fn read(spec: &Value) -> Result<Self, Box<InvalidValue>> {
        let fields = fields(spec)?;
        let field = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let kind = carrier_kind(field("kind"))?;
        Ok(Self {
            annotations: annotations(field("annotation"))?,
            kind,
            replicas: replicas(kind, field("deploymentReplicas"))?,
            affinity: typed::<Affinity>("affinity", field("affinity"))?,
            env: env(field("env"))?,
            host_network: host_network(field("hostNetwork"))?,
            resources: typed::<ResourceRequirements>("resources", field("resources"))?,
            grace: Self::read_grace(spec)?,
        })
    }

    /// Reads the grace alone, which counts whatever else is wrong.
    pub fn read_grace(spec: &Value) -> Grace {
        grace(fields(spec)?.get(GRACE).filter(|value| !value.is_null()))
    }
}

const GRACE: &str = "terminationGracePeriodMinutes";

fn fields(spec: &Value) -> Result<&Map<String, Value>, Box<InvalidValue>> {
    let remedy = "write its fields below it, or remove it";
    spec.as_object().ok_or_else(|| invalid("", spec, "it is not an object", remedy))
}

#[expect(clippy::unnecessary_box_returns, reason = "an error that is passed on as it is")]
fn invalid(field: &str, value: &Value, reason: &str, remedy: &str) -> Box<InvalidValue> {
    let dot = if field.is_empty() { "" } else { "." };
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Box::new(InvalidValue {
        field: format!("field spec.agentSpec{dot}{field}"),
        value,
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    })
}

fn annotations(value: Option<&Value>) -> Result<BTreeMap<String, String>, Box<InvalidValue>> {
    let Some(value) = value else { return Ok(BTreeMap::new()) };
    let text = |fields: &Map<String, Value>| {
        fields.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    };
    value
        .as_object()
        .and_then(text)
        .ok_or_else(|| invalid("annotation", value, "not texts by their keys", "write key: \"text\""))
}

fn carrier_kind(value: Option<&Value>) -> Result<CarrierKind, Box<InvalidValue>> {
    let Some(value) = value else { return Ok(CarrierKind::default()) };
    value
        .as_str()
        .and_then(CarrierKind::parse)
        .ok_or_else(|| invalid("kind", value, "not a kind of runtime", "write DaemonSet or Deployment"))
}

/// A DaemonSet has none: whatever is written there is not looked at.
fn replicas(kind: CarrierKind, value: Option<&Value>) -> Result<i32, Box<InvalidValue>> {
    let Some(value) = value.filter(|_| kind == CarrierKind::Deployment) else { return Ok(1) };
    let count = value.as_i64().and_then(|count| i32::try_from(count).ok()).filter(|count| *count > 0);
    count.ok_or_else(|| invalid("deploymentReplicas", value, "no pod would run", "write 1 or more, or remove it"))
}

fn env(value: Option<&Value>) -> Result<Vec<Value>, Box<InvalidValue>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let bad = |reason: &str| invalid("env", value, reason, "write a list of name and value, each name once");
    let all = value.as_array().ok_or_else(|| bad("not a list"))?;
    let mut names = BTreeSet::new();
    for one in all {
        let read: EnvVar = serde_json::from_value(one.clone()).map_err(|error| bad(&error.to_string()))?;
        if read.name.is_empty() {
            return Err(bad("a variable has no name"));
        }
        if !names.insert(read.name.clone()) {
            return Err(bad(&format!("{} is there twice", read.name)));
        }
    }
    Ok(all.clone())
}

fn host_network(value: Option<&Value>) -> Result<bool, Box<InvalidValue>> {
    let Some(value) = value else { return Ok(false) };
    value.as_bool().ok_or_else(|| invalid("hostNetwork", value, "neither true nor false", "write true or false"))
}

fn grace(value: Option<&Value>) -> Grace {
    let Some(value) = value else { return Ok(None) };
    let minutes = value.as_i64().filter(|minutes| (0..=i64::from(i32::MAX)).contains(minutes));
    minutes.map(SignedDuration::from_mins).map(Some).ok_or_else(|| {
        let remedy = "write 0 or more, or remove it for the default";
        invalid(GRACE, value, "not a number of minutes", remedy)
    })
}

/// A field of a type of Kubernetes, kept as it was written.
fn typed<T: DeserializeOwned>(field: &str, value: Option<&Value>) -> Result<Option<Value>, Box<InvalidValue>> {
    let Some(value) = value else { return Ok(None) };
    match serde_json::from_value::<T>(value.clone()) {
        Ok(_) => Ok(Some(value.clone())),
        Err(error) => Err(invalid(field, value, &error.to_string(), "write it as in the spec of a pod")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn an_empty_one_has_the_defaults() {
        let read = AgentSpec::read(&json!({ "kind": null })).unwrap();

        assert_eq!(read, AgentSpec { replicas: 1, ..AgentSpec::default() });
        assert_eq!((read.kind, read.grace), (CarrierKind::DaemonSet, None));
    }

    #[rstest]
    #[case(json!({ "kind": "StatefulSet" }), "field spec.agentSpec.kind is \"StatefulSet\": not a kind of runtime; write DaemonSet or Deployment")]
    #[case(json!({ "kind": "Deployment", "deploymentReplicas": -1 }), "field spec.agentSpec.deploymentReplicas is \"-1\": no pod would run; write 1 or more, or remove it")]
    #[case(json!({ "kind": "Deployment", "deploymentReplicas": 0 }), "field spec.agentSpec.deploymentReplicas is \"0\": no pod would run; write 1 or more, or remove it")]
    #[case(json!({ "terminationGracePeriodMinutes": -5 }), "field spec.agentSpec.terminationGracePeriodMinutes is \"-5\": not a number of minutes; write 0 or more, or remove it for the default")]
    #[case(json!([]), "field spec.agentSpec is \"[]\": it is not an object; write its fields below it, or remove it")]
    #[case(json!({ "hostNetwork": "yes" }), "field spec.agentSpec.hostNetwork is \"yes\": neither true nor false; write true or false")]
    fn bad_input_names_the_field_and_the_fix(#[case] spec: Value, #[case] expected: &str) {
        assert_eq!(AgentSpec::read(&spec).unwrap_err().to_string(), expected);
    }

    #[rstest]
    #[case::the_default_kind(json!({ "deploymentReplicas": 0 }))]
    #[case::a_daemon_set(json!({ "kind": "DaemonSet", "deploymentReplicas": -1 }))]
    fn a_daemon_set_has_no_replicas_whatever_is_written_there(#[case] spec: Value) {
        assert_eq!(AgentSpec::read(&spec).unwrap(), AgentSpec { replicas: 1, ..AgentSpec::default() });
    }

    #[rstest]
    #[case::beside_a_variable_twice(json!({ "terminationGracePeriodMinutes": 1440, "env": [{ "name": "A" }, { "name": "A" }] }), Some(1440))]
    #[case::beside_a_kind_that_is_none(json!({ "terminationGracePeriodMinutes": 0, "kind": "Job" }), Some(0))]
    #[case::absent(json!({ "kind": "Job" }), None)]
    fn a_grace_counts_whatever_else_is_wrong(#[case] spec: Value, #[case] minutes: Option<i64>) {
        assert!(AgentSpec::read(&spec).is_err());
        assert_eq!(AgentSpec::read_grace(&spec), Ok(minutes.map(SignedDuration::from_mins)));
    }

    #[rstest]
    #[case(json!({ "terminationGracePeriodMinutes": -1 }))]
    #[case(json!({ "terminationGracePeriodMinutes": "soon" }))]
    #[case(json!([]))]
    fn a_grace_that_cannot_be_read_is_no_absent_one(#[case] spec: Value) {
        assert!(AgentSpec::read_grace(&spec).is_err());
    }

    #[test]
    fn a_variable_that_is_there_twice_is_refused() {
        let env = json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }]);

        let error = AgentSpec::read(&json!({ "env": env })).unwrap_err().to_string();

        assert!(error.contains("spec.agentSpec.env") && error.contains("A is there twice"), "{error}");
    }
}
