//! What carriers, pods, Services and Ingresses are made from: kdoctor's ConfigMap, a file, or the default of this crate.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{PodTemplateSpec, Service};
use k8s_openapi::api::networking::v1::Ingress;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{CarrierKind, INSTANCE_LABEL};

/// The default: kdoctor's agent with nothing that a cluster may lack.
const DEFAULT: &str = include_str!("templates.yaml");

/// The templates, checked: every one is what its kind says.
#[derive(Debug, Clone, PartialEq)]
pub struct Templates {
    /// Carriers without their pods.
    daemon_set: Value,
    deployment: Value,
    /// The pods of each kind of carrier: metadata and spec.
    daemon_set_pod: Value,
    deployment_pod: Value,
    service: Value,
    ingress: Value,
    /// The release that kdoctor was installed as.
    pub instance: String,
}

/// A template that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    /// Which: `daemonset.yml`.
    pub place: String,
    /// Why.
    pub reason: String,
}

impl std::fmt::Display for TemplateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} cannot be used: {}", self.place, self.reason)
    }
}

impl Default for Templates {
    fn default() -> Self {
        Self::from_text(DEFAULT).unwrap_or_else(|error| unreachable!("the default template: {error}"))
    }
}

/// The parts, each where it was found.
#[derive(Default)]
struct Parts {
    all: BTreeMap<&'static str, (String, Value)>,
    instance: Option<String>,
}

const KINDS: [(&str, &str); 5] = [
    ("DaemonSet", "daemonset.yml"),
    ("Deployment", "deployment.yml"),
    ("Pod", "pod.yml"),
    ("Service", "service.yml"),
    ("Ingress", "ingress.yml"),
];

impl Templates {
    /// From the ConfigMap of kdoctor's chart; `instance` is its label. What it lacks is taken from the default, but not
    /// the pod.
    pub fn from_config_map(data: &BTreeMap<String, String>, instance: Option<&str>) -> Result<Self, TemplateError> {
        let mut parts = Parts { instance: instance.map(str::to_owned), ..Parts::default() };
        for (kind, key) in KINDS {
            if let Some(text) = data.get(key).filter(|text| !text.trim().is_empty()) {
                let read = serde_saphyr::from_str_with_options(text, as_go_reads());
                let read = read.map_err(|error| unusable(key, &error.to_string()))?;
                parts.all.insert(kind, (key.to_owned(), read));
            }
        }
        parts.check()
    }

    /// From a text with an object of each kind: DaemonSet, Deployment, Pod, Service, Ingress.
    pub fn from_text(text: &str) -> Result<Self, TemplateError> {
        let documents = serde_saphyr::from_multiple_with_options(text, as_go_reads());
        let documents: Vec<Value> = documents.map_err(|error| unusable("the template", &error.to_string()))?;
        let mut parts = Parts::default();
        for document in documents {
            let kind = document["kind"].as_str().unwrap_or_default();
            let known = KINDS.iter().find(|(known, _)| *known == kind);
            let Some((known, _)) = known else {
                return Err(unusable("the template", &format!("it has a {kind:?}; {} are used", kinds())));
            };
            parts.all.insert(known, (format!("{known} of the template"), document));
        }
        parts.check()
    }

    /// The template of a carrier, without its pods.
    #[must_use]
    pub fn carrier(&self, kind: CarrierKind) -> &Value {
        match kind {
            CarrierKind::DaemonSet => &self.daemon_set,
            CarrierKind::Deployment => &self.deployment,
        }
    }

    /// The template of the pods of a carrier.
    #[must_use]
    pub fn pod(&self, kind: CarrierKind) -> &Value {
        match kind {
            CarrierKind::DaemonSet => &self.daemon_set_pod,
            CarrierKind::Deployment => &self.deployment_pod,
        }
    }

    /// The template of the Services.
    #[must_use]
    pub fn service(&self) -> &Value {
        &self.service
    }

    /// The template of the Ingress.
    #[must_use]
    pub fn ingress(&self) -> &Value {
        &self.ingress
    }
}

/// kdoctor reads its templates with Go's YAML, for which `0400` is octal; its chart writes file modes so.
fn as_go_reads() -> serde_saphyr::Options {
    let mut options = serde_saphyr::Options::default();
    options.legacy_octal_numbers = true;
    options
}

fn kinds() -> String {
    KINDS.map(|(kind, _)| kind).join(", ")
}

fn unusable(place: &str, reason: &str) -> TemplateError {
    let reason = reason.lines().next().unwrap_or_default().to_owned();
    TemplateError { place: place.to_owned(), reason }
}

impl Parts {
    fn take(&mut self, kind: &str) -> Option<(String, Value)> {
        self.all.remove(kind)
    }

    fn check(mut self) -> Result<Templates, TemplateError> {
        let pod = self.take("Pod");
        let (daemon_set, daemon_set_pod) = self.carrier::<DaemonSet>(CarrierKind::DaemonSet, pod.as_ref())?;
        let (deployment, deployment_pod) = self.carrier::<Deployment>(CarrierKind::Deployment, pod.as_ref())?;
        let service = self.part::<Service>("Service", default_service)?;
        let ingress = self.part::<Ingress>("Ingress", default_ingress)?;
        let label = daemon_set_pod["metadata"]["labels"][INSTANCE_LABEL].as_str().map(str::to_owned);
        let instance = label.or(self.instance).unwrap_or_else(|| "kdoctor".to_owned());
        Ok(Templates { daemon_set, deployment, daemon_set_pod, deployment_pod, service, ingress, instance })
    }

    /// A carrier, and its pods: those of the template Pod, else its own.
    fn carrier<T: DeserializeOwned>(
        &mut self,
        kind: CarrierKind,
        pod: Option<&(String, Value)>,
    ) -> Result<(Value, Value), TemplateError> {
        let (place, mut carrier) = self.take(kind.name()).unwrap_or_else(|| (format!("the {kind}"), json!({})));
        let own = carrier["spec"].as_object_mut().and_then(|spec| spec.remove("template"));
        let (pod_place, pod) = match (pod, own) {
            (Some((place, pod)), _) => (place.clone(), pod.clone()),
            (None, Some(own)) => (place.clone(), own),
            (None, None) => return Err(unusable(&place, "neither it nor a Pod says what runs")),
        };
        let mut template = Map::new();
        for part in ["metadata", "spec"] {
            template.insert(part.to_owned(), pod.get(part).cloned().unwrap_or_else(|| json!({})));
        }
        let template = Value::Object(template);
        let read: PodTemplateSpec = typed(&pod_place, &template)?;
        if read.spec.is_none_or(|spec| spec.containers.is_empty()) {
            return Err(unusable(&pod_place, "it is no valid pod: it has no container"));
        }
        let mut whole = carrier.clone();
        whole["spec"]["template"] = template.clone();
        whole["spec"]["selector"] = json!({});
        typed::<T>(&place, &whole)?;
        Ok((carrier, template))
    }

    fn part<T: DeserializeOwned>(&mut self, kind: &str, default: fn() -> Value) -> Result<Value, TemplateError> {
        let Some((place, value)) = self.take(kind) else { return Ok(default()) };
        typed::<T>(&place, &value)?;
        Ok(value)
    }
}

fn typed<T: DeserializeOwned>(place: &str, value: &Value) -> Result<T, TemplateError> {
    serde_json::from_value(value.clone()).map_err(|error| unusable(place, &error.to_string()))
}

fn default_service() -> Value {
    json!({ "spec": { "ports": [
        { "name": "http", "port": 80, "targetPort": 80, "protocol": "TCP" },
        { "name": "https", "port": 443, "targetPort": 443, "protocol": "TCP" },
    ] } })
}

fn default_ingress() -> Value {
    json!({ "spec": { "rules": [{ "http": { "paths": [
        { "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "", "port": { "number": 80 } } } },
    ] } }] } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_default_runs_an_agent_in_both_kinds_of_carriers() {
        let templates = Templates::default();

        for kind in CarrierKind::ALL {
            let containers = templates.pod(kind)["spec"]["containers"].as_array().unwrap();
            assert!(containers[0]["image"].as_str().unwrap().contains("kdoctor-agent"), "{containers:?}");
        }
        assert_eq!(templates.instance, "kdoctor");
    }

    #[test]
    fn the_pod_of_the_config_map_is_the_pod_of_both_carriers() {
        let data = BTreeMap::from([
            ("daemonset.yml".to_owned(), "kind: DaemonSet\nspec: {updateStrategy: {type: OnDelete}}".to_owned()),
            ("pod.yml".to_owned(), "kind: Pod\nspec: {containers: [{name: a, image: x}]}".to_owned()),
        ]);

        let templates = Templates::from_config_map(&data, Some("doctor")).unwrap();

        assert_eq!(templates.carrier(CarrierKind::DaemonSet)["spec"]["updateStrategy"]["type"], "OnDelete");
        assert_eq!(templates.pod(CarrierKind::DaemonSet), templates.pod(CarrierKind::Deployment));
        assert_eq!(templates.instance, "doctor");
    }

    #[test]
    fn a_file_mode_that_begins_with_zero_is_octal() {
        let pod = "kind: Pod\nspec: {containers: [{name: a, image: x}], volumes: [{name: v, configMap: {name: c, defaultMode: 0400}}]}";
        let data = BTreeMap::from([("pod.yml".to_owned(), pod.to_owned())]);

        for templates in [Templates::from_config_map(&data, None), Templates::from_text(pod)] {
            let pod = templates.unwrap().pod(CarrierKind::DaemonSet).clone();
            assert_eq!(pod["spec"]["volumes"][0]["configMap"]["defaultMode"], 0o400);
        }
    }

    #[rstest]
    #[case::no_yaml("pod.yml", "{", "pod.yml cannot be used")]
    #[case::no_container("pod.yml", "kind: Pod\nspec: {containers: []}", "it has no container")]
    #[case::no_pod("pod.yml", "kind: Pod\nspec: {containers: 3}", "pod.yml cannot be used")]
    #[case::no_service("service.yml", "kind: Service\nspec: {ports: web}", "service.yml cannot be used")]
    #[case::nothing_that_runs("daemonset.yml", "kind: DaemonSet\nspec: {}", "says what runs")]
    fn a_template_that_cannot_be_used_says_where_and_why(
        #[case] key: &str,
        #[case] text: &str,
        #[case] expected: &str,
    ) {
        let mut data = BTreeMap::from([(key.to_owned(), text.to_owned())]);
        if key == "service.yml" {
            data.insert("pod.yml".to_owned(), "kind: Pod\nspec: {containers: [{name: a, image: x}]}".to_owned());
        }

        let error = Templates::from_config_map(&data, None).unwrap_err().to_string();

        assert!(error.contains(expected), "{error}");
    }
}
