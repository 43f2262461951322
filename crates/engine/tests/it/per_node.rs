//! A test keeper that runs on every node: it watches only the Pods of its node, needs no Lease, and keeps its
//! ledger in a file. What it admitted before a restart still counts afterwards.

use std::path::{Path, PathBuf};

use crate::support::keeper_run::{LIMIT, RunningKeeper, at};
use caretaker_core::limits::{Ledger, Limits, Pace};
use caretaker_core::{ActionKind, Keeper, ObjectRef, Permission, RuleMatch, SignedDuration, SourceId, SubjectRef};
use caretaker_core::{Timestamp, actions, rules, time};
use caretaker_engine::clock::Clock;
use caretaker_engine::permissions;
use caretaker_engine::source::resource;
use caretaker_engine::sources::Sources;
use caretaker_engine::state::StateStore;
use caretaker_engine::writer::Writer;
use caretaker_engine::{BatchResult, Confirmed, Controller, Leadership, Partial, ReplicaRole, Rows, Source};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

const PODS: SourceId = SourceId("pods");

struct Stickers {
    node: &'static str,
    state_file: PathBuf,
}

#[derive(Debug, Clone, PartialEq)]
struct Bare {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    sticker: bool,
}

actions! { enum Action {
    /// Removes the sticker.
    Remove => ActionKind::destructive("remove").needs(&[Permission::on(PODS, "get"), Permission::on(PODS, "patch")]),
} }

rules! { enum Rule for Stickers {
    /// It has a sticker: removed.
    HasSticker => has_sticker,
    /// It has none.
    Clean => clean,
} }

fn has_sticker(pod: &Bare, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    pod.sticker.then(|| RuleMatch::act(Action::Remove, at(0), "it has a sticker"))
}

fn clean(_: &Bare, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    Some(RuleMatch::nothing("it has no sticker"))
}

impl Bare {
    fn project(object: Partial) -> Option<Self> {
        let meta = object.metadata;
        let sticker = meta.label("sticker").is_some();
        let (namespace, name) = (meta.namespace, meta.name);
        Some(Self { namespace, name, uid: meta.uid, resource_version: meta.resource_version, sticker })
    }

    fn object(&self) -> ObjectRef<'_> {
        let Self { namespace, name, uid, .. } = self;
        ObjectRef { api_version: "v1", kind: "Pod", namespace: Some(namespace), name, uid }
    }
}

impl Keeper for Stickers {
    type Subject = Bare;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "stickers"
    }
    fn subject_ref<'a>(&self, pod: &'a Bare) -> SubjectRef<'a> {
        pod.object().into()
    }
    fn facts(&self, pod: &Bare, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("sticker", pod.sticker.to_string())]
    }
    fn simulate_action(&self, mut pod: Bare, _: &Action, (): &(), _: Timestamp) -> Option<Bare> {
        pod.sticker = false;
        Some(pod)
    }
}

impl Controller for Stickers {
    type Cache = Rows<Bare>;

    fn sources(&self) -> Vec<Source<Rows<Bare>>> {
        let pods = Source::watch(PODS, resource("", "v1", "Pod", "pods"), Bare::project);
        vec![pods.fields(format!("spec.nodeName={}", self.node))]
    }
    fn world(&self, _: &Rows<Bare>, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let pod = &batch.only().subject;
        let patch = json!({ "metadata": { "labels": { "sticker": null } } });
        writer.merge_patch(pod.object(), &pod.resource_version, patch).await.map(drop).into()
    }

    fn leadership(&self) -> Leadership {
        Leadership::PerNode { node: self.node.to_owned(), state_file: self.state_file.clone() }
    }
}

fn start(client: &Client, node: &'static str, state_file: &Path, clock: Clock) -> RunningKeeper {
    let keeper = Stickers { node, state_file: state_file.to_owned() };
    RunningKeeper::start(keeper, client, clock, |context| {
        context.state = StateStore::file(state_file.to_owned());
        let pace = Pace { limit: 1, fraction: 0.0, window: SignedDuration::from_hours(1) };
        context.limits = Limits { pace: [("remove".to_owned(), pace)].into(), breaker: None };
    })
}

async fn create(client: &Client, name: &str, node: &str) {
    let spec = json!({ "nodeName": node, "containers": [{ "name": "main", "image": "none" }] });
    let pod = json!({ "metadata": { "name": name, "labels": { "sticker": "yes" } }, "spec": spec });
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_keeper_of_a_node_needs_no_lease_and_its_ledger_outlives_it() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("shop")).await.unwrap();
    let account = serde_json::from_value(json!({ "metadata": { "name": "default" } })).unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "shop");
    accounts.create(&PostParams::default(), &account).await.unwrap();
    for (name, node) in [("a", "here"), ("b", "here"), ("c", "another-node")] {
        create(&client, name, node).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.json");

    let (clock, _hands) = Clock::manual(at(10));
    let first = start(&client, "here", &file, clock);
    first.done(&["a HasSticker done"]).await;
    first.stop().await;
    let ledger = StateStore::file(file.clone()).read::<Ledger>("stickers").await.unwrap().value;
    assert_eq!(ledger.admitted["remove"], [at(10)], "what was admitted is in the file");

    // The one that follows waits for its turn, as if it had never stopped.
    let (clock, hands) = Clock::manual(at(20));
    let second = start(&client, "here", &file, clock);
    second.ready().await;
    hands.set(time::saturating_add(at(10), SignedDuration::from_mins(59)));
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    let stickers = async || {
        let pods = pods.list(&kube::api::ListParams::default()).await.unwrap().items;
        let with = pods.into_iter().filter(|pod| pod.metadata.labels.as_ref().is_some_and(|l| !l.is_empty()));
        with.filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()
    };
    assert_eq!(stickers().await, ["b", "c"]);
    hands.set(time::saturating_add(at(11), SignedDuration::from_hours(1)));
    second.done(&["b HasSticker done"]).await;
    assert_eq!(stickers().await, ["c"], "the Pod of another node is not its business");
    second.stop().await;
}

#[test]
fn it_asks_for_no_right_on_leases_or_on_the_state() {
    let keeper = Stickers { node: "here", state_file: PathBuf::from("state.json") };
    let rights: Vec<String> = permissions::required(&keeper, &Sources::of(&keeper), false)
        .iter()
        .map(|required| required.right.to_string())
        .collect();

    assert_eq!(
        rights,
        [
            "get pods",
            "list pods",
            "patch pods",
            "watch pods",
            "create events.events.k8s.io",
            "patch events.events.k8s.io"
        ]
    );
}

#[tokio::test]
async fn a_state_file_that_cannot_be_read_holds_everything_back_and_says_so() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.json");
    std::fs::write(&file, "{\"stickers\":\"[\"}").unwrap();

    let keeper = start(&client, "here", &file, Clock::new(|| at(0)));

    until("the reason to be shown", LIMIT, async || {
        let blockers = keeper.health.blockers().join("; ");
        let said = blockers.contains("state.json") && blockers.contains("remove the key");
        Ok(if said { Ok(()) } else { Err(blockers) })
    })
    .await
    .unwrap();
    keeper.stop().await;
}
