//! A test keeper with a source that is not Kubernetes: a stream of who rings at which door. A ConfigMap is a
//! door; a door at which nobody rang for a minute is closed, but only after the stream has proven that
//! everything up to that minute was delivered. A proof judges nothing again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::keeper_run::{LIMIT, RunningKeeper, at};
use caretaker_core::{ActionKind, Keeper, ObjectRef, Permission, RuleMatch, SignedDuration, SourceId, SubjectRef};
use caretaker_core::{Timestamp, VerdictOf, actions, rules, time};
use caretaker_engine::clock::Clock;
use caretaker_engine::source::resource;
use caretaker_engine::writer::Writer;
use caretaker_engine::{
    BatchResult, Cache, Change, Confirmed, Controller, ObjectId, Observed, Partial, ReplicaRole, Source, SourceContext,
    SourceRef,
};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{mpsc, watch};

const DOORS: SourceId = SourceId("configmaps");
const RINGS: SourceId = SourceId("rings");
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// The other system's end of the stream.
type Feed = mpsc::UnboundedReceiver<Change<Row>>;

struct Doors {
    feed: Arc<Mutex<Option<Feed>>>,
    /// The proof that was asked for last, and whether the stream has flushed.
    wanted: watch::Sender<Option<Timestamp>>,
    flushed: watch::Sender<bool>,
    judged: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, PartialEq)]
struct Door {
    name: String,
    uid: String,
    resource_version: String,
    open: bool,
    rang: Timestamp,
}

actions! { enum Action {
    /// Closes the door.
    Close => ActionKind::destructive("close").needs(&[Permission::on(DOORS, "get"), Permission::on(DOORS, "patch")]),
} }

rules! { enum Rule for Doors {
    /// It is closed.
    Closed => closed,
    /// Nobody rang for a minute: closed.
    Silent => silent,
} }

fn closed(door: &Door, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    (!door.open).then(|| RuleMatch::nothing("it is closed"))
}

fn silent(door: &Door, (): &(), now: Timestamp) -> Option<RuleMatch<Action>> {
    Some(RuleMatch::act_after(time::saturating_add(door.rang, MINUTE), Action::Close, now, "nobody rings"))
}

#[derive(Debug, Clone)]
enum Row {
    Door { uid: String, resource_version: String, open: bool },
    Ring(Timestamp),
}

#[derive(Debug, Default, Clone)]
struct Street {
    doors: BTreeMap<String, (String, String, bool)>,
    rings: BTreeMap<String, Timestamp>,
    dirty: BTreeSet<String>,
}

impl Cache for Street {
    type Row = Row;
    type Key = String;
    type Subject = Door;

    fn update(&mut self, _: &SourceRef, change: Change<Row>) {
        let Change::Apply(Observed { id, row, .. }) = change else { return };
        match row {
            Row::Door { uid, resource_version, open } => {
                self.doors.insert(id.name.clone(), (uid, resource_version, open));
            }
            Row::Ring(at) => _ = self.rings.insert(id.name.clone(), at),
        }
        self.dirty.insert(id.name);
    }

    fn take_dirty(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<String> {
        self.doors.keys().cloned().collect()
    }

    fn subjects_for(&self, name: &String) -> Vec<Door> {
        let door = |(uid, resource_version, open): &(String, String, bool)| Door {
            name: name.clone(),
            uid: uid.clone(),
            resource_version: resource_version.clone(),
            open: *open,
            rang: self.rings.get(name).copied().unwrap_or(at(0)),
        };
        self.doors.get(name).map(door).into_iter().collect()
    }

    fn extract(&self, _: &BTreeSet<String>) -> Self {
        self.clone()
    }
}

impl Keeper for Doors {
    type Subject = Door;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "doors"
    }
    fn subject_ref<'a>(&self, door: &'a Door) -> SubjectRef<'a> {
        let Door { name, uid, .. } = door;
        ObjectRef { api_version: "v1", kind: "ConfigMap", namespace: Some("street"), name, uid }.into()
    }
    fn facts(&self, door: &Door, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("rang", time::format(door.rang))]
    }
    fn simulate_action(&self, mut door: Door, _: &Action, (): &(), _: Timestamp) -> Option<Door> {
        door.open = false;
        Some(door)
    }
    fn record_verdict(&self, _: &mut Door, _: &VerdictOf<Self>, _: Timestamp) -> bool {
        self.judged.fetch_add(1, Ordering::Relaxed);
        false
    }
}

impl Controller for Doors {
    type Cache = Street;

    fn sources(&self) -> Vec<Source<Street>> {
        let door = |object: Partial| {
            let meta = object.metadata;
            let (open, uid) = (meta.label("door") == Some("open"), meta.uid);
            (meta.namespace == "street").then_some(Row::Door { uid, resource_version: meta.resource_version, open })
        };
        let (feed, wanted, flushed) = (self.feed.clone(), self.wanted.clone(), self.flushed.clone());
        let rings = move |context: SourceContext<Street>| -> BoxStream<'static, Change<Row>> {
            let feed = feed.lock().unwrap().take().expect("opened once");
            let (wanted, flushed) = (wanted.clone(), flushed.clone());
            futures::stream::unfold((feed, context), move |(mut feed, mut context)| {
                let (wanted, flushed) = (wanted.clone(), flushed.clone());
                async move {
                    loop {
                        tokio::select! {
                            change = feed.recv() => return change.map(|change| (change, (feed, context))),
                            Ok(()) = context.proof_wanted.changed() => {
                                wanted.send_replace(*context.proof_wanted.borrow_and_update());
                            }
                            stopped = async { context.shutdown.wait_for(|stop| *stop).await.is_ok() } => {
                                flushed.send_replace(stopped);
                                return None;
                            }
                        }
                    }
                }
            })
            .boxed()
        };
        vec![
            Source::watch(DOORS, resource("", "v1", "ConfigMap", "configmaps"), door),
            Source::stream(RINGS, rings).proves_currency(),
        ]
    }
    fn world(&self, _: &Street, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let door = &batch.only().subject;
        let patch = json!({ "metadata": { "labels": { "door": "closed" } } });
        let object = self.subject_ref(door).object;
        writer.merge_patch(object, &door.resource_version, patch).await.map(drop).into()
    }
}

async fn create(client: &Client, name: &str) {
    let door = json!({ "metadata": { "name": name, "labels": { "door": "open" } } });
    let doors: Api<ConfigMap> = Api::namespaced(client.clone(), "street");
    doors.create(&PostParams::default(), &serde_json::from_value(door).unwrap()).await.unwrap();
}

fn ring(door: &str, at: Timestamp) -> Change<Row> {
    Change::apply(ObjectId::named(door), Row::Ring(at))
}

/// Waits until a proof up to this deadline is asked for.
async fn asked_for(wanted: &mut watch::Receiver<Option<Timestamp>>, deadline: Timestamp) {
    tokio::time::timeout(LIMIT, wanted.wait_for(|wanted| *wanted == Some(deadline))).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_takes_something_away_waits_until_the_stream_is_proven_current() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("street")).await.unwrap();
    create(&client, "one").await;
    create(&client, "two").await;
    let (sender, feed) = mpsc::unbounded_channel();
    let (wanted, mut asked) = watch::channel(None);
    let (flushed, mut has_flushed) = watch::channel(false);
    let judged = Arc::new(AtomicUsize::new(0));
    let feed = Arc::new(Mutex::new(Some(feed)));
    let doors = Doors { feed, wanted, flushed, judged: judged.clone() };
    let (clock, hands) = Clock::manual(at(61));
    let keeper = RunningKeeper::start(doors, &client, clock, |_| ());

    // Without its first list the stream is not complete, and nothing is judged.
    let stream_only = ["rings: not yet"];
    until("everything but the stream to be ready", LIMIT, async || {
        let blockers = keeper.health.blockers();
        Ok(if blockers == stream_only { Ok(()) } else { Err(blockers.join("; ")) })
    })
    .await
    .unwrap();
    assert_eq!(judged.load(Ordering::Relaxed), 0);

    // Both doors are due; a proof is asked for, and one of them was used before it comes.
    sender.send(Change::Init).unwrap();
    sender.send(Change::InitDone).unwrap();
    asked_for(&mut asked, at(60)).await;
    sender.send(ring("two", at(30))).unwrap();
    sender.send(Change::CurrentUntil(at(60))).unwrap();
    sender.send(Change::CurrentUntil(at(61))).unwrap();
    keeper.done(&["one Silent done"]).await;

    // From here on only the clock makes the second door due.
    let before = judged.load(Ordering::Relaxed);
    for second in 62..70 {
        sender.send(Change::CurrentUntil(at(second))).unwrap();
    }
    hands.set(at(91));
    asked_for(&mut asked, at(90)).await;
    assert_eq!(judged.load(Ordering::Relaxed), before + 1, "a proof judges nothing again");
    sender.send(Change::CurrentUntil(at(91))).unwrap();
    keeper.done(&["one Silent done", "two Silent done"]).await;

    keeper.stop().await;
    assert!(*has_flushed.borrow_and_update(), "the stream may flush before the keeper ends");
}
