//! The gRPC client.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_client::events::{ContainerCreate, ContainerDelete, ContainerUpdate};
use containerd_client::services::v1 as api;
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    Info, Kind, ListSnapshotsRequest, RemoveSnapshotRequest, StatSnapshotRequest, UsageRequest,
};
use containerd_client::services::v1::tasks_client::TasksClient;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use prost_types::{Any, FieldMask};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::record::{RecordMessage, time_of};
use super::{Answer, Containerd, ContainerdError, Snapshot, SnapshotKind, Task, TaskStatus};
use crate::api::GC_ROOT_LABEL;
use crate::subject::Container;

/// The largest message that is read. A single record with its spec takes a few kilobytes; a list comes as a stream,
/// one record at a time.
pub const MAX_MESSAGE: usize = 64 << 20;

/// How long an ordinary call may take. On a loaded node containerd answers within a few seconds.
const CALL: Duration = Duration::from_secs(20);
/// How long the deletion of a task may take: the shim drains what the task has written for up to ten seconds, and a
/// deletion that is given up leaks the shim.
const DELETE_TASK: Duration = Duration::from_mins(1);
/// How long a list of everything may take.
const LIST: Duration = Duration::from_mins(1);

/// A client of one namespace of one containerd. It connects when it is first used, and again when the connection broke.
#[derive(Clone)]
pub struct GrpcClient {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
    socket: PathBuf,
}

impl GrpcClient {
    /// Of this socket. Nothing is connected yet.
    pub fn new(socket: &Path, namespace: &str) -> Result<Self, ContainerdError> {
        let wrong = |why: String| ContainerdError::Failed(format!("connecting to {}", socket.display()), why);
        let path = socket.to_owned();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is not used: the connector opens the socket.
        let endpoint = Endpoint::from_static("http://containerd").connect_timeout(CALL);
        let channel = endpoint.connect_with_connector_lazy(connect);
        let namespace = namespace.parse().map_err(|_| wrong(format!("{namespace:?} is no containerd namespace")))?;
        Ok(Self { channel, namespace, socket: socket.to_owned() })
    }

    fn request<T>(&self, message: T, limit: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        request.set_timeout(limit);
        request
    }

    fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn snapshots_client(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn error(&self, what: String, status: &Status) -> ContainerdError {
        match status.code() {
            Code::NotFound => ContainerdError::NotFound(what),
            Code::Unavailable => {
                let why = format!("{} at {}", status.message(), self.socket.display());
                ContainerdError::Unavailable(what, why)
            }
            code => ContainerdError::Failed(what, format!("{} ({code:?})", status.message())),
        }
    }

    /// For calls whose answer has records, which are read leniently.
    async fn records(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    async fn get_record(&self, id: &str) -> Result<Option<Container>, Status> {
        let request = self.request(api::GetContainerRequest { id: id.to_owned() }, CALL);
        let path = PathAndQuery::from_static("/containerd.services.containers.v1.Containers/Get");
        let answer = self.records().await?.unary(request, path, codec()).await?;
        Ok(answer.into_inner().container.map(Container::from))
    }

    async fn list_stream(&self, filters: Vec<String>) -> Answer<Vec<Container>> {
        let what = || "listing containers".to_owned();
        let request = self.request(api::ListContainersRequest { filters }, LIST);
        let read = async {
            let mut grpc = self.records().await?;
            let path = PathAndQuery::from_static("/containerd.services.containers.v1.Containers/ListStream");
            let mut stream = grpc.server_streaming(request, path, codec()).await?.into_inner();
            let mut all = Vec::new();
            while let Some(message) = stream.message().await? {
                all.extend(message.container.map(Container::from));
            }
            Ok::<_, Status>(all)
        };
        match tokio::time::timeout(LIST, read).await {
            Ok(read) => read.map_err(|status| self.error(what(), &status)),
            Err(_) => Err(late(what(), LIST)),
        }
    }
}

fn codec<T: Message + Default + 'static>() -> ProstCodec<T, RecordMessage> {
    ProstCodec::default()
}

fn late(what: String, limit: Duration) -> ContainerdError {
    ContainerdError::Failed(what, format!("no answer within {} s", limit.as_secs()))
}

/// Makes one call, within its limit.
macro_rules! call {
    ($self:ident, $what:expr, $limit:expr, $client:expr, $method:ident, $message:expr) => {{
        let request = $self.request($message, $limit);
        match tokio::time::timeout($limit, $client.$method(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner).map_err(|status| $self.error($what, &status)),
            Err(_) => Err(late($what, $limit)),
        }
    }};
}

/// `None` for what is not found.
fn optional<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Containerd for GrpcClient {
    fn list<'a>(&'a self, managed: &'a str) -> BoxFuture<'a, Answer<Vec<Container>>> {
        self.list_stream(vec![format!("labels.{managed:?}==true")]).boxed()
    }

    fn list_all(&self) -> BoxFuture<'_, Answer<Vec<Container>>> {
        self.list_stream(Vec::new()).boxed()
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Option<Container>>> {
        async move {
            let what = || format!("reading container {id}");
            let answer = match tokio::time::timeout(CALL, self.get_record(id)).await {
                Ok(answer) => answer.map_err(|status| self.error(what(), &status)),
                Err(_) => Err(late(what(), CALL)),
            };
            Ok(optional(answer)?.flatten())
        }
        .boxed()
    }

    fn set_labels<'a>(&'a self, id: &'a str, labels: BTreeMap<String, String>) -> BoxFuture<'a, Answer<()>> {
        async move {
            let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
            let labels: HashMap<String, String> = labels.into_iter().collect();
            let container = api::Container { id: id.to_owned(), labels, ..api::Container::default() };
            let message =
                api::UpdateContainerRequest { container: Some(container), update_mask: Some(FieldMask { paths }) };
            call!(self, format!("labelling container {id}"), CALL, self.containers(), update, message).map(drop)
        }
        .boxed()
    }

    fn delete_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        async move {
            let message = api::DeleteContainerRequest { id: id.to_owned() };
            call!(self, format!("deleting container {id}"), CALL, self.containers(), delete, message)
        }
        .boxed()
    }

    fn task<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Option<Task>>> {
        async move {
            let message = api::GetRequest { container_id: id.to_owned(), exec_id: String::new() };
            let answer = call!(self, format!("reading the task of {id}"), CALL, self.tasks(), get, message);
            Ok(optional(answer)?.and_then(|answer| answer.process).map(|process| Task {
                status: match process.status {
                    1 => TaskStatus::Created,
                    2 => TaskStatus::Running,
                    3 => TaskStatus::Stopped,
                    4 | 5 => TaskStatus::Paused,
                    _ => TaskStatus::Unknown,
                },
                fifos: [process.stdin, process.stdout, process.stderr],
            }))
        }
        .boxed()
    }

    fn kill<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        async move {
            let message =
                api::KillRequest { container_id: id.to_owned(), exec_id: String::new(), signal: 9, all: true };
            call!(self, format!("killing the task of {id}"), CALL, self.tasks(), kill, message)
        }
        .boxed()
    }

    fn wait<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        async move {
            let message = api::WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
            let what = || format!("waiting for the end of the task of {id}");
            call!(self, what(), DELETE_TASK, self.tasks(), wait, message).map(drop)
        }
        .boxed()
    }

    fn resume<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        async move {
            let message = api::ResumeTaskRequest { container_id: id.to_owned() };
            call!(self, format!("resuming the task of {id}"), CALL, self.tasks(), resume, message)
        }
        .boxed()
    }

    fn delete_task<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<()>> {
        async move {
            let message = api::DeleteTaskRequest { container_id: id.to_owned() };
            call!(self, format!("deleting the task of {id}"), DELETE_TASK, self.tasks(), delete, message).map(drop)
        }
        .boxed()
    }

    fn snapshot_bytes<'a>(&'a self, snapshotter: &'a str, key: &'a str) -> BoxFuture<'a, Answer<Option<u64>>> {
        async move {
            let what = || format!("measuring snapshot {key}");
            let message = UsageRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
            let usage = optional(call!(self, what(), CALL, self.snapshots_client(), usage, message))?;
            Ok(usage.map(|usage| usage.size.try_into().unwrap_or(0)))
        }
        .boxed()
    }

    fn remove_snapshot<'a>(&'a self, snapshotter: &'a str, key: &'a str) -> BoxFuture<'a, Answer<()>> {
        async move {
            let message = RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
            call!(self, format!("removing snapshot {key}"), CALL, self.snapshots_client(), remove, message)
        }
        .boxed()
    }

    fn snapshots<'a>(&'a self, snapshotter: &'a str) -> BoxFuture<'a, Answer<Vec<Snapshot>>> {
        async move {
            let what = || format!("listing the snapshots of {snapshotter}");
            let message = ListSnapshotsRequest { snapshotter: snapshotter.to_owned(), filters: Vec::new() };
            let read = async {
                let request = self.request(message, LIST);
                let mut stream = self.snapshots_client().list(request).await?.into_inner();
                let mut all = Vec::new();
                while let Some(page) = stream.message().await? {
                    all.extend(page.info.into_iter().map(|info| snapshot_of(snapshotter, info)));
                }
                Ok::<_, Status>(all)
            };
            match tokio::time::timeout(LIST, read).await {
                Ok(read) => read.map_err(|status| self.error(what(), &status)),
                Err(_) => Err(late(what(), LIST)),
            }
        }
        .boxed()
    }

    fn snapshot<'a>(&'a self, snapshotter: &'a str, key: &'a str) -> BoxFuture<'a, Answer<Option<Snapshot>>> {
        async move {
            let message = StatSnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
            let answer = call!(self, format!("reading snapshot {key}"), CALL, self.snapshots_client(), stat, message);
            Ok(optional(answer)?.and_then(|answer| answer.info).map(|info| snapshot_of(snapshotter, info)))
        }
        .boxed()
    }

    fn leased_snapshots<'a>(&'a self, snapshotter: &'a str) -> BoxFuture<'a, Answer<BTreeSet<String>>> {
        async move {
            let message = api::ListRequest { filters: Vec::new() };
            let leases = call!(self, "listing leases".to_owned(), LIST, self.leases(), list, message)?.leases;
            let (kind, mut held) = (format!("snapshots/{snapshotter}"), BTreeSet::new());
            for lease in leases {
                let what = format!("reading lease {}", lease.id);
                let message = api::ListResourcesRequest { id: lease.id };
                // One that has ended meanwhile holds nothing.
                let found = optional(call!(self, what, CALL, self.leases(), list_resources, message))?;
                let resources = found.map(|found| found.resources).unwrap_or_default();
                held.extend(resources.into_iter().filter(|one| one.r#type == kind).map(|one| one.id));
            }
            Ok(held)
        }
        .boxed()
    }

    fn events(&self) -> BoxStream<'static, String> {
        let filters = vec!["topic~=^/containers/".to_owned()];
        // Events of all namespaces come; the stream has no end, so it has no limit either.
        let request = Request::new(api::SubscribeRequest { filters });
        let mut client = EventsClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let namespace = self.namespace.to_str().unwrap_or_default().to_owned();
        // containerd answers with the first event, and not before.
        let subscribed = async move { client.subscribe(request).await.map(tonic::Response::into_inner) };
        let envelopes = futures::stream::once(subscribed).flat_map(|subscribed| match subscribed {
            Ok(envelopes) => envelopes.boxed(),
            Err(status) => futures::stream::iter([Err(status)]).boxed(),
        });
        let envelopes = envelopes.take_while(|envelope| futures::future::ready(envelope.is_ok()));
        envelopes
            .filter_map(move |envelope| {
                let ours = envelope.ok().filter(|envelope| envelope.namespace == namespace);
                futures::future::ready(ours.and_then(|envelope| envelope.event).and_then(|event| id_of(&event)))
            })
            .boxed()
    }
}

fn snapshot_of(snapshotter: &str, info: Info) -> Snapshot {
    let kind = match Kind::try_from(info.kind) {
        Ok(Kind::View) => SnapshotKind::View,
        Ok(Kind::Active) => SnapshotKind::Active,
        Ok(Kind::Committed) => SnapshotKind::Committed,
        _ => SnapshotKind::Unknown,
    };
    let is_gc_root = info.labels.contains_key(GC_ROOT_LABEL);
    let created = info.created_at.and_then(time_of);
    Snapshot { snapshotter: snapshotter.to_owned(), key: info.name, kind, is_gc_root, created }
}

/// The container that an event is about. The type URLs of containerd have no leading slash.
fn id_of(event: &Any) -> Option<String> {
    let name = event.type_url.rsplit('/').next().unwrap_or_default();
    let value = event.value.as_slice();
    match name {
        "containerd.events.ContainerCreate" => ContainerCreate::decode(value).ok().map(|event| event.id),
        "containerd.events.ContainerUpdate" => ContainerUpdate::decode(value).ok().map(|event| event.id),
        "containerd.events.ContainerDelete" => ContainerDelete::decode(value).ok().map(|event| event.id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_container_with_or_without_a_slash() {
        let value = ContainerDelete { id: "sb-1".into() }.encode_to_vec();
        for type_url in ["containerd.events.ContainerDelete", "types.containerd.io/containerd.events.ContainerDelete"] {
            let event = Any { type_url: type_url.to_owned(), value: value.clone() };
            assert_eq!(id_of(&event).as_deref(), Some("sb-1"));
        }
    }
}
