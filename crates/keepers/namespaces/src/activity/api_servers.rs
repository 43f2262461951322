//! The API servers that canaries are sent to: every one that the EndpointSlices of the Service `default/kubernetes` name.
//!
//! A request to the address of the Service, or to a load balancer, reaches one of them, and says nothing about the
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use caretaker_engine::format_error;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};

/// The namespace and the label of the EndpointSlices.
const NAMESPACE: &str = "default";
const SERVICE_LABEL: &str = "kubernetes.io/service-name=kubernetes";

/// Clusters have few API servers. More addresses are an error of some program.
const MAX_API_SERVERS: usize = 32;

/// Where a canary is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CanaryTarget {
    /// The address of the client's own configuration.
    Configured,
    /// One API server. Its certificate is checked against the name of the configuration.
    ApiServer(SocketAddr),
}

impl std::fmt::Display for CanaryTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Configured => f.write_str("the API server"),
            Self::ApiServer(address) => write!(f, "API server {address}"),
        }
    }
}

/// The API servers that are known, and which of them cannot be reached from here.
#[derive(Debug, Default)]
pub(super) struct ApiServers {
    /// How often the EndpointSlices are read at most, and an API server that could not be reached is tried again: canaries
    /// may be sent more often.
    interval: Duration,
    known: BTreeSet<SocketAddr>,
    /// Why an API server could not be reached, until it is tried again.
    unreachable: BTreeMap<SocketAddr, String>,
    /// Why the EndpointSlices could not be read.
    error: Option<String>,
    read_at: Option<Instant>,
}

impl ApiServers {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, ..Self::default() }
    }

    /// Reads the EndpointSlices, unless they were read less than an interval ago.
    pub(super) async fn refresh(&mut self, client: &Client) {
        if self.read_at.is_some_and(|read_at| read_at.elapsed() < self.interval) {
            return;
        }
        self.read_at = Some(Instant::now());
        self.unreachable.clear();
        match read(client).await {
            Ok(known) => (self.known, self.error) = (known, None),
            // Those that are known stay known.
            Err(error) => self.error = Some(error),
        }
    }

    /// Returns where the next canaries are sent to.
    pub(super) fn targets(&self) -> Vec<CanaryTarget> {
        let reachable = self.known.iter().filter(|address| !self.unreachable.contains_key(*address));
        let mut targets: Vec<CanaryTarget> = reachable.copied().map(CanaryTarget::ApiServer).collect();
        if targets.len() < self.known.len() || targets.is_empty() {
            targets.push(CanaryTarget::Configured);
        }
        targets
    }

    /// Records that an API server cannot be reached from here. It is tried again after an interval.
    pub(super) fn record_unreachable(&mut self, address: SocketAddr, error: String) {
        self.unreachable.insert(address, error);
    }

    /// Returns what the canaries do not prove, for people; `None` if they prove that every API server reports.
    pub(super) fn note(&self) -> Option<String> {
        if let Some((address, error)) = self.unreachable.first_key_value() {
            let all = self.unreachable.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Some(format!(
                "whether audit events of API server {all} arrive is not checked, because canaries do not reach it: \
                 {address}: {error}"
            ));
        }
        let error = self.error.as_ref()?;
        Some(format!(
            "canaries check one API server at a time, because the EndpointSlices of Service {NAMESPACE}/kubernetes \
             cannot be read: {error}"
        ))
    }
}

async fn read(client: &Client) -> Result<BTreeSet<SocketAddr>, String> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let listed = slices.list(&ListParams::default().labels(SERVICE_LABEL)).await;
    let listed = listed.map_err(|error| format_error(&error))?;
    Ok(listed.items.iter().flat_map(addresses).take(MAX_API_SERVERS).collect())
}

/// The addresses of a slice, except of endpoints that are not ready.
fn addresses(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let ports = slice.ports.iter().flatten().filter_map(|port| u16::try_from(port.port?).ok());
    let ready = slice
        .endpoints
        .iter()
        .flatten()
        .filter(|endpoint| endpoint.conditions.as_ref().is_none_or(|conditions| conditions.ready != Some(false)));
    let hosts: Vec<IpAddr> =
        ready.flat_map(|endpoint| &endpoint.addresses).filter_map(|address| address.parse().ok()).collect();
    ports.flat_map(|port| hosts.iter().map(move |host| SocketAddr::new(*host, port)).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_ready_endpoint_of_a_slice_is_an_api_server() {
        let slice = json!({
            "metadata": { "name": "kubernetes" }, "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.0.0.1"], "conditions": { "ready": true } },
                { "addresses": ["10.0.0.2"], "conditions": {} },
                { "addresses": ["10.0.0.3"], "conditions": { "ready": false } },
                { "addresses": ["api.example.com"] },
                { "addresses": ["fd00::1"] },
            ],
            "ports": [{ "name": "https", "port": 6443, "protocol": "TCP" }],
        });

        let found = addresses(&serde_json::from_value(slice).unwrap());

        let expected = ["10.0.0.1:6443", "10.0.0.2:6443", "[fd00::1]:6443"].map(|address| address.parse().unwrap());
        assert_eq!(found, expected);
    }

    #[test]
    fn an_api_server_that_cannot_be_reached_is_noted_and_the_configured_address_is_used_as_well() {
        let address: SocketAddr = "10.0.0.1:6443".parse().unwrap();
        let mut servers =
            ApiServers { known: [address, "10.0.0.2:6443".parse().unwrap()].into(), ..ApiServers::default() };
        assert_eq!(servers.note(), None);

        servers.record_unreachable(address, "no route to host".to_owned());

        let note = servers.note().unwrap();
        assert!(note.contains("API server 10.0.0.1:6443") && note.contains("no route to host"), "{note}");
        let other = CanaryTarget::ApiServer("10.0.0.2:6443".parse().unwrap());
        assert_eq!(servers.targets(), [other, CanaryTarget::Configured]);
    }
}
