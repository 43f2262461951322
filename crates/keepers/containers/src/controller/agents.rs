//! The agents of containers that the watch of this node's pods does not deliver, for those who only look.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_engine::Partial;
use caretaker_engine::confirm::ReadError;
use caretaker_engine::projection::{is_forbidden, is_not_found};
use kube::Client;

use super::confirm::find_pod;
use crate::observe::{PodSpec, PodStatus, pod};
use crate::subject::{Agent, AgentPod, Subject};

/// Looks for agents on other nodes. A uid never comes back, so that one that is gone is looked for once.
#[derive(Debug, Default)]
pub struct AgentSearch {
    gone: BTreeSet<String>,
    found: BTreeMap<String, AgentPod>,
}

impl AgentSearch {
    /// Reads the agents that these subjects miss, each once: by name if the container says it, else by uid.
    pub async fn look(&mut self, client: &Client, subjects: &[Subject]) -> Result<(), ReadError> {
        self.found.clear();
        let missed = |subject: &&Subject| subject.agent == Agent::Gone && !subject.container.is_of_kubelet();
        for subject in subjects.iter().filter(missed) {
            let owner = &subject.owner;
            let Some(uid) = owner.agent_uid.as_deref() else { continue };
            if self.gone.contains(uid) || self.found.contains_key(uid) {
                continue;
            }
            let name = match (&owner.namespace, &owner.agent_name) {
                (Some(namespace), Some(name)) => Some((namespace.clone(), name.clone())),
                _ => find_pod(uid, client.clone()).await?,
            };
            let read = match name {
                Some((namespace, name)) => read_pod(client, &namespace, &name).await?,
                None => None,
            };
            match read.filter(|pod| pod.uid == uid) {
                Some(pod) => _ = self.found.insert(uid.to_owned(), pod),
                None => _ = self.gone.insert(uid.to_owned()),
            }
        }
        Ok(())
    }

    /// Puts in what was found.
    pub fn complete(&self, subject: &mut Subject) {
        if let (Agent::Gone, Some(uid)) = (&subject.agent, &subject.owner.agent_uid)
            && let Some(pod) = self.found.get(uid)
        {
            subject.agent = Agent::Found(pod.clone());
        }
    }
}

async fn read_pod(client: &Client, namespace: &str, name: &str) -> Result<Option<AgentPod>, ReadError> {
    let failed = |why: String, forbidden| ReadError { what: format!("pod {namespace}/{name}"), why, forbidden };
    let request = http::Request::get(format!("/api/v1/namespaces/{namespace}/pods/{name}")).body(Vec::new());
    let request = request.map_err(|error| failed(error.to_string(), false))?;
    match client.request::<Partial<PodSpec, PodStatus>>(request).await {
        Ok(found) => Ok(Some(pod(found))),
        Err(kube::Error::Api(status)) if is_not_found(&status, name) => Ok(None),
        Err(error) => Err(failed(caretaker_engine::format_error(&error), is_forbidden(&error))),
    }
}
