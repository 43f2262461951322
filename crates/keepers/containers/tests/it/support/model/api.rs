//! An API server of the model: lists show what watches have delivered so far, single reads show what is there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::{Name, RealPod, RealSandbox, Truth};

/// What is answered instead of the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// 401, 403, 429 or 5xx.
    Status(u16),
    /// The connection breaks.
    Broken,
    /// A 404 of something in the way.
    NotOurs,
    /// A 404 about another object.
    OtherName,
}

pub const WRONGS: [Wrong; 8] = [
    Wrong::Status(401),
    Wrong::Status(403),
    Wrong::Status(429),
    Wrong::Status(500),
    Wrong::Status(503),
    Wrong::Broken,
    Wrong::NotOurs,
    Wrong::OtherName,
];

/// What is read, and what happens then.
pub type AfterRead = (&'static str, fn(&mut Truth));

#[derive(Debug)]
pub struct State {
    pub truth: Truth,
    /// What watches have delivered.
    pub delivered: Truth,
    /// Answers to single reads, in turn; `None` and the end of the list are the truth.
    pub wrong: Vec<Option<Wrong>>,
    /// What happens after something was read.
    pub after_read: Option<AfterRead>,
    /// What single reads and searches were answered truly about: `pods/ns/name`, `pods`, `sandboxes/ns/name`, …
    pub answered: BTreeSet<String>,
}

/// The server; clones are the same one.
#[derive(Debug, Clone)]
pub struct ModelApi(pub Arc<Mutex<State>>);

/// The uid of the Node, and the boot that it reports.
pub const NODE_UID: &str = "uid-of-the-node";
pub const BOOT: &str = "boot";

const SANDBOXES: &str = "/apis/sandbox.fast.io/v1alpha1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

impl ModelApi {
    pub fn new(truth: Truth) -> Self {
        let state =
            State { delivered: truth.clone(), truth, wrong: Vec::new(), after_read: None, answered: BTreeSet::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = server.answer(request.uri().path(), request.uri().query().unwrap_or_default());
            async move { answer }
        });
        Client::new(service, "default")
    }

    fn answer(&self, path: &str, query: &str) -> Result<Response<Body>, std::io::Error> {
        let mut state = self.0.lock().unwrap();
        if let Some(list) = state.delivered.list(path, query) {
            return Ok(list);
        }
        let place = place_of(path);
        match state.wrong.pop().flatten() {
            Some(Wrong::Broken) => return Err(std::io::ErrorKind::ConnectionReset.into()),
            Some(Wrong::Status(code)) => return Ok(status(code, "Other", None)),
            Some(Wrong::NotOurs) => return Ok(plain_not_found()),
            Some(Wrong::OtherName) => return Ok(status(404, "NotFound", Some("another"))),
            None => {}
        }
        let read = state.truth.read(path, query);
        if let Some((_, happens)) = state.after_read.take_if(|(at, _)| *at == place) {
            happens(&mut state.truth);
        }
        state.answered.insert(place);
        Ok(read)
    }
}

/// `pods/ns/name` of one object, `pods` of a search.
fn place_of(path: &str) -> String {
    match path.split('/').collect::<Vec<_>>().as_slice() {
        [.., "namespaces", namespace, kind, name] => format!("{kind}/{namespace}/{name}"),
        [.., last] => (*last).to_owned(),
        [] => String::new(),
    }
}

fn ok(body: &Value) -> Response<Body> {
    Response::new(Body::from(body.to_string().into_bytes()))
}

fn with_status(code: u16, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into_bytes()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

fn status(code: u16, reason: &str, name: Option<&str>) -> Response<Body> {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": reason, "message": reason, "details": name.map(|name| json!({ "name": name })) });
    with_status(code, body.to_string())
}

/// What a server says about a path that it does not serve.
fn plain_not_found() -> Response<Body> {
    with_status(404, "404 page not found\n".to_owned())
}

fn metadata(name: &Name, uid: &str, terminating: bool) -> Value {
    let mut metadata = json!({ "namespace": name.0, "name": name.1, "uid": uid, "resourceVersion": "1" });
    if terminating {
        metadata["deletionTimestamp"] = json!("2036-01-10T00:00:00Z");
    }
    metadata
}

fn pod(name: &Name, pod: &RealPod) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata(name, &pod.uid, pod.terminating),
        "spec": { "nodeName": pod.node }, "status": { "phase": pod.phase } })
}

fn sandbox(name: &Name, sandbox: &RealSandbox) -> Value {
    let status = json!({ "phase": sandbox.phase, "assignedPod": sandbox.assigned_pod,
        "sandboxID": sandbox.sandbox_id });
    json!({ "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox",
        "metadata": metadata(name, &sandbox.uid, sandbox.terminating), "status": status })
}

fn definition(ending: bool) -> Value {
    let metadata = metadata(&super::name("", "sandboxes.sandbox.fast.io"), "definition", ending);
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata,
        "status": { "conditions": [{ "type": "Established", "status": "True" }] } })
}

/// The Node of this machine, or that of another cluster which has the same name.
fn node(name: &str, other: bool) -> Value {
    let uid = if other { "another" } else { NODE_UID };
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata(&super::name("", name), uid, false),
        "status": { "nodeInfo": { "bootID": BOOT, "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
            "systemUUID": "" } } })
}

fn list(kind: &str, items: &[Value]) -> Response<Body> {
    ok(&json!({ "apiVersion": "v1", "kind": kind, "metadata": { "resourceVersion": "1" }, "items": items }))
}

impl Truth {
    /// The lists that watches begin with.
    fn list(&self, path: &str, query: &str) -> Option<Response<Body>> {
        let searches = query.contains("fieldSelector=metadata.name");
        match path {
            "/api/v1/pods" if query.contains("spec.nodeName") => {
                let here = self.pods.iter().filter(|(_, pod)| pod.node == self.node);
                Some(list("PodList", &here.map(|(name, one)| pod(name, one)).collect::<Vec<_>>()))
            }
            DEFINITIONS => {
                let found: Vec<Value> = self.served.then(|| definition(self.ending)).into_iter().collect();
                Some(list("CustomResourceDefinitionList", &found))
            }
            _ if path == format!("{SANDBOXES}/sandboxes") && !searches => {
                let all: Vec<Value> = self.sandboxes.iter().map(|(name, one)| sandbox(name, one)).collect();
                Some(if self.served { list("SandboxList", &all) } else { plain_not_found() })
            }
            _ => None,
        }
    }

    /// Reads of one object, and searches for a name or a uid.
    fn read(&self, path: &str, query: &str) -> Response<Body> {
        let missing = |name: &str| status(404, "NotFound", Some(name));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let wanted = query.split('&').find_map(|part| {
            let value = part.strip_prefix("fieldSelector=metadata.name")?;
            Some(value.trim_start_matches("%3D").trim_start_matches('=').to_owned())
        });
        let is_wanted = |name: &Name| wanted.as_ref().is_none_or(|wanted| *wanted == name.1);
        match parts.as_slice() {
            ["api", "v1", "namespaces", space, "pods", one] => {
                let key = super::name(space, one);
                self.pods.get(&key).map_or_else(|| missing(one), |found| ok(&pod(&key, found)))
            }
            ["api", "v1", "nodes", one] => ok(&node(one, self.doubted)),
            ["api", "v1", "pods"] => {
                let all = self.pods.iter().filter(|(name, _)| is_wanted(name));
                let all: Vec<Value> = all.map(|(name, one)| pod(name, one)).collect();
                list("PartialObjectMetadataList", &all)
            }
            ["apis", "apiextensions.k8s.io", ..] if self.served => ok(&definition(self.ending)),
            ["apis", "apiextensions.k8s.io", .., one] => missing(one),
            ["apis", "sandbox.fast.io", ..] if !self.served => plain_not_found(),
            ["apis", "sandbox.fast.io", _, "namespaces", space, _, one] => {
                let key = super::name(space, one);
                self.sandboxes.get(&key).map_or_else(|| missing(one), |found| ok(&sandbox(&key, found)))
            }
            ["apis", "sandbox.fast.io", _, _] => {
                let all = self.sandboxes.iter().filter(|(name, _)| is_wanted(name));
                list("SandboxList", &all.map(|(name, one)| sandbox(name, one)).collect::<Vec<_>>())
            }
            _ => plain_not_found(),
        }
    }
}
