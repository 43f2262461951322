//! Calls to containerd that its ordinary clients do not make.

use std::collections::BTreeMap;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::container::Runtime;
use containerd_client::tonic::Request;
use containerd_client::tonic::client::Grpc;
use prost_types::Any;
use tonic_prost::ProstCodec;

use super::lab::{Lab, Outcome};

#[derive(Clone, PartialEq, prost::Message)]
pub struct Label {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, repeated, tag = "2")]
    pub labels: Vec<Label>,
    #[prost(message, optional, tag = "4")]
    pub runtime: Option<Runtime>,
    #[prost(message, optional, tag = "5")]
    pub spec: Option<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateRequest {
    #[prost(message, optional, tag = "1")]
    pub container: Option<Container>,
}

pub fn label(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Label {
    Label { key: key.as_ref().to_vec(), value: value.as_ref().to_vec() }
}

/// A record with a label of these bytes beside the others.
pub async fn record_with_bytes(
    lab: &Lab,
    id: &str,
    labels: &BTreeMap<String, String>,
    (key, value): (&[u8], &[u8]),
) -> Outcome {
    let mut all: Vec<Label> = labels.iter().map(|(key, value)| label(key, value)).collect();
    all.push(label(key, value));
    let runtime = Some(Runtime { name: "io.containerd.runc.v2".into(), options: None });
    let type_url = "types.containerd.io/opencontainers/runtime-spec/1/Spec".to_owned();
    let spec = Some(Any { type_url, value: b"{}".to_vec() });
    let container = Container { id: id.to_owned(), labels: all, runtime, spec };
    let mut grpc = Grpc::new(lab.raw.clone());
    grpc.ready().await?;
    let mut request = Request::new(CreateRequest { container: Some(container) });
    request.metadata_mut().insert("containerd-namespace", "k8s.io".parse()?);
    let path = "/containerd.services.containers.v1.Containers/Create".parse()?;
    let codec = ProstCodec::<CreateRequest, ()>::default();
    grpc.unary(request, path, codec).await?;
    Ok(())
}

/// The list that is one message, with the limit that clients have by default.
pub async fn list_in_one_message(lab: &Lab) -> Result<usize, String> {
    let mut request = Request::new(api::ListContainersRequest::default());
    request.metadata_mut().insert("containerd-namespace", "k8s.io".parse().unwrap());
    let listed = api::containers_client::ContainersClient::new(lab.raw.clone()).list(request).await;
    listed.map(|all| all.into_inner().containers.len()).map_err(|status| status.message().to_owned())
}
