//! What a user is blocked on waits for nothing that can wait. On a real API server.

use std::sync::Arc;

use crate::support::keeper_run::{LIMIT, RunningKeeper, at};
use caretaker_core::{ActionKind, Keeper, ObjectRef, Permission, RuleMatch, SourceId, SubjectRef, Timestamp};
use caretaker_core::{actions, rules};
use caretaker_engine::clock::Clock;
use caretaker_engine::writer::Writer;
use caretaker_engine::{BatchResult, Confirmed, Controller, Partial, ReplicaRole, Rows, Source};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Semaphore;

const CONFIG_MAPS: SourceId = SourceId("configmaps");
const PATCH: &[Permission] = &[Permission::on(CONFIG_MAPS, "get"), Permission::on(CONFIG_MAPS, "patch")];

/// Labels letters: those that are urgent first, the others as long as there are stamps.
struct Letters {
    stamps: Arc<Semaphore>,
}

#[derive(Debug, Clone, PartialEq)]
struct Letter {
    name: String,
    uid: String,
    resource_version: String,
    urgent: bool,
    sent: bool,
}

actions! { enum Action {
    /// Sends a letter.
    Send => ActionKind::plain("send").needs(PATCH),
    /// Sends a telegram.
    Wire => ActionKind::plain("wire").priority().needs(PATCH),
} }

rules! { enum Rule for Letters {
    /// It was sent.
    Sent => sent,
    /// Somebody waits for it.
    Urgent => urgent,
    /// Nobody waits for it.
    Ordinary => ordinary,
} }

fn sent(letter: &Letter, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    letter.sent.then(|| RuleMatch::nothing("it was sent"))
}

fn urgent(letter: &Letter, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    letter.urgent.then(|| RuleMatch::act(Action::Wire, at(0), "somebody waits for it"))
}

fn ordinary(_: &Letter, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    Some(RuleMatch::act(Action::Send, at(0), "it is ready"))
}

impl Letter {
    fn project(object: Partial) -> Option<Self> {
        let meta = object.metadata;
        let (urgent, sent) = (meta.name.starts_with("urgent-"), meta.label("sent").is_some());
        let is_letter = urgent || meta.name.starts_with("letter-");
        let (uid, resource_version) = (meta.uid.clone(), meta.resource_version.clone());
        is_letter.then(|| Self { name: meta.name.clone(), uid, resource_version, urgent, sent })
    }

    fn object(&self) -> ObjectRef<'_> {
        let Self { name, uid, .. } = self;
        ObjectRef { api_version: "v1", kind: "ConfigMap", namespace: Some("caretaker-system"), name, uid }
    }
}

impl Keeper for Letters {
    type Subject = Letter;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "letters"
    }
    fn subject_ref<'a>(&self, letter: &'a Letter) -> SubjectRef<'a> {
        letter.object().into()
    }
    fn facts(&self, letter: &Letter, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("sent", letter.sent.to_string())]
    }
    fn simulate_action(&self, letter: Letter, _: &Action, (): &(), _: Timestamp) -> Option<Letter> {
        Some(Letter { sent: true, ..letter })
    }
}

impl Controller for Letters {
    type Cache = Rows<Letter>;

    fn sources(&self) -> Vec<Source<Rows<Letter>>> {
        vec![Source::watch(CONFIG_MAPS, ApiResource::erase::<ConfigMap>(&()), Letter::project)]
    }
    fn world(&self, _: &Rows<Letter>, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let letter = &batch.only().subject;
        if !letter.urgent {
            self.stamps.acquire().await.unwrap().forget();
        }
        let label = json!({ "metadata": { "labels": { "sent": "yes" } } });
        writer.merge_patch(letter.object(), &letter.resource_version, label).await.map(drop).into()
    }
}

#[tokio::test]
async fn an_urgent_action_does_not_wait_until_others_have_ended() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    let letters: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    let write = async |name: &str| {
        let letter = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        letters.create(&PostParams::default(), &letter).await.unwrap();
    };
    for name in ["letter-a", "letter-b", "letter-c"] {
        write(name).await;
    }
    let stamps = Arc::new(Semaphore::new(1));
    let keeper = Letters { stamps: stamps.clone() };
    let keeper = RunningKeeper::start(keeper, &client, Clock::manual(at(60)).0, |context| context.concurrency = 2);
    until("all stamps to be used", LIMIT, async || {
        let entries = keeper.journal.outcomes();
        Ok(if stamps.available_permits() == 0 && entries.len() == 1 { Ok(()) } else { Err(format!("{entries:?}")) })
    })
    .await
    .unwrap();

    write("urgent-a").await;
    write("letter-d").await;

    until("the urgent one to be sent", LIMIT, async || {
        let entries = keeper.journal.outcomes();
        let is_sent = entries.last().is_some_and(|last| last == "urgent-a Urgent done");
        Ok(if is_sent { Ok(()) } else { Err(format!("{entries:?}")) })
    })
    .await
    .unwrap();
    stamps.add_permits(3);
    until("the others to be sent", LIMIT, async || {
        let sent = keeper.journal.outcomes().len();
        Ok(if sent == 5 { Ok(()) } else { Err(sent.to_string()) })
    })
    .await
    .unwrap();
    keeper.stop().await;
}

/// The clients share the calls per second, and those of one go first.
#[tokio::test]
async fn an_urgent_action_is_written_by_the_client_whose_calls_go_first() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    let letters: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    for name in ["letter-a", "urgent-a"] {
        let letter = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        letters.create(&PostParams::default(), &letter).await.unwrap();
    }
    let as_user = async |name: &str| {
        let config = cluster.user_config(name, Some("system:masters")).await.unwrap();
        Client::try_from(config).unwrap()
    };
    let (ordinary, first) = (as_user("ordinary").await, as_user("first").await);

    let keeper = Letters { stamps: Arc::new(Semaphore::new(1)) };
    let keeper = RunningKeeper::start(keeper, &client, Clock::manual(at(60)).0, |context| {
        (context.writer, context.urgent_writer) = (ordinary, first);
    });
    keeper.done(&["urgent-a Urgent done", "letter-a Ordinary done"]).await;
    keeper.stop().await;

    let written_by = |user: &str| {
        let calls = cluster.audit().unwrap().of(user).only(|call| call.verb == "patch");
        calls.calls().iter().map(|call| call.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((written_by("first"), written_by("ordinary")), (vec!["urgent-a".into()], vec!["letter-a".into()]));
}
