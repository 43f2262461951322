//! Sends canaries: a request of our own to every API server.

use std::sync::Arc;
use std::time::Duration;

use caretaker_activity::canary::{SentCanary, USER_AGENT_PREFIX};
use caretaker_core::Timestamp;
use caretaker_engine::clock::Clock;
use caretaker_engine::{format_error, state};
use futures::future::join_all;
use kube::Client;
use kube::api::{GetParams, Request};

use super::CanaryClient;
use super::api_servers::{ApiServers, CanaryTarget};

/// A canary that is not answered within this time was not sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct CanarySender {
    canary_client: Arc<CanaryClient>,
    /// Reads which API servers there are.
    reader: Client,
    clock: Clock,
    api_servers: ApiServers,
}

impl CanarySender {
    /// `interval` is how often it is looked up at most which API servers there are.
    pub(super) fn new(canary_client: Arc<CanaryClient>, reader: Client, clock: Clock, interval: Duration) -> Self {
        Self { canary_client, reader, clock, api_servers: ApiServers::new(interval) }
    }

    /// Returns what the canaries do not prove, for people.
    pub(super) fn note(&self) -> Option<String> {
        self.api_servers.note()
    }

    /// Sends a canary to every API server that can be reached, and if some cannot, one to the configured address as well.
    /// Returns those that were answered; an error if none was.
    pub(super) async fn send(&mut self) -> Result<Vec<SentCanary>, String> {
        self.api_servers.refresh(&self.reader).await;
        let targets = self.api_servers.targets();
        let (mut sent, mut errors) = self.send_to(&targets).await;
        if !errors.is_empty() && !targets.contains(&CanaryTarget::Configured) {
            let (more, more_errors) = self.send_to(&[CanaryTarget::Configured]).await;
            sent.extend(more);
            errors.extend(more_errors);
        }
        match errors.pop() {
            Some(error) if sent.is_empty() => Err(error),
            _ => Ok(sent),
        }
    }

    /// Sends a canary to each of these at the same time. Returns those that were answered, and why others were not.
    async fn send_to(&mut self, targets: &[CanaryTarget]) -> (Vec<SentCanary>, Vec<String>) {
        let (mut sent, mut errors) = (Vec::new(), Vec::new());
        let answers = join_all(targets.iter().map(|target| self.send_one(*target))).await;
        for (target, answer) in targets.iter().zip(answers) {
            match answer {
                Ok(canary) => sent.push(canary),
                Err(error) => {
                    if let CanaryTarget::ApiServer(address) = target {
                        self.api_servers.record_unreachable(*address, error.clone());
                    }
                    errors.push(error);
                }
            }
        }
        (sent, errors)
    }

    async fn send_one(&self, target: CanaryTarget) -> Result<SentCanary, String> {
        let id = format!("{:016x}", fastrand::u64(..));
        let request = async {
            let client = (self.canary_client)(&format!("{USER_AGENT_PREFIX}{id}"), target)?;
            let path = format!("/api/v1/namespaces/{}/configmaps", state::NAMESPACE);
            let request = Request::new(path).get(state::NAME, &GetParams::default());
            let request = request.map_err(|error| error.to_string())?;
            match client.request_text(request).await {
                Ok(_) => Ok(()),
                // At the first start the ConfigMap does not exist.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                Err(error) => Err(format_error(&error)),
            }
        };
        let sent_at = self.now();
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, request).await;
        answer.unwrap_or_else(|_| Err("the API server does not answer".to_owned()))?;
        Ok(SentCanary { id, api_server: target.to_string(), sent_at, answered_at: self.now() })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
