//! A test keeper that creates objects: every Service with the label `card: wanted` gets a ConfigMap that it
//! owns. The ConfigMap is made again when it is lost, and a foreign object of that name is never touched.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::keeper_run::{LIMIT, RunningKeeper, at};
use caretaker_core::{ActionKind, Keeper, ObjectRef, Permission, RuleMatch, SourceId, SubjectRef, Timestamp};
use caretaker_core::{actions, rules};
use caretaker_engine::clock::Clock;
use caretaker_engine::source::resource;
use caretaker_engine::writer::Writer;
use caretaker_engine::{
    BatchResult, Cache, Change, Confirmed, Controller, Observed, Partial, ReplicaRole, Source, SourceRef,
};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

const SERVICES: SourceId = SourceId("services");
const CARDS: SourceId = SourceId("configmaps");

struct Cards;

/// A Service, and the ConfigMap of its name.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    namespace: String,
    name: String,
    uid: String,
    /// The uid of the owner of the ConfigMap of that name; empty if it has none.
    card_owner: Option<String>,
}

actions! { enum Action {
    /// Creates the ConfigMap, owned by the Service.
    Create => ActionKind::plain("create").needs(&[Permission::on(CARDS, "create")]),
} }

rules! { enum Rule for Cards {
    /// Somebody else has an object of that name: never touched, reported.
    ForeignCard => foreign_card,
    /// It has its card.
    HasCard => has_card,
    /// It has no card: created.
    CardMissing => card_missing,
} }

fn foreign_card(wanted: &Wanted, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    let owner = wanted.card_owner.as_ref()?;
    (*owner != wanted.uid)
        .then(|| RuleMatch::refuse(None, "the ConfigMap of its name is not its own; remove or rename it"))
}

fn has_card(wanted: &Wanted, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    wanted.card_owner.is_some().then(|| RuleMatch::nothing("it has its card"))
}

fn card_missing(_: &Wanted, (): &(), now: Timestamp) -> Option<RuleMatch<Action>> {
    Some(RuleMatch::act(Action::Create, now, "there is no ConfigMap of its name"))
}

/// What the two sources deliver.
#[derive(Debug, Clone)]
enum Row {
    Service { uid: String },
    Card { owner: String },
}

/// Services and ConfigMaps by namespace and name.
#[derive(Debug, Default, Clone)]
struct Index {
    services: BTreeMap<(String, String), String>,
    cards: BTreeMap<(String, String), String>,
    dirty: BTreeSet<(String, String)>,
}

impl Cache for Index {
    type Row = Row;
    type Key = (String, String);
    type Subject = Wanted;

    fn update(&mut self, source: &SourceRef, change: Change<Row>) {
        let (id, row) = match change {
            Change::Apply(Observed { id, row, .. }) => (id, Some(row)),
            Change::Delete(id) => (id, None),
            _ => return,
        };
        let key = (id.namespace.unwrap_or_default(), id.name);
        match row {
            Some(Row::Service { uid }) => _ = self.services.insert(key.clone(), uid),
            Some(Row::Card { owner }) => _ = self.cards.insert(key.clone(), owner),
            None if source.id == SERVICES => _ = self.services.remove(&key),
            None => _ = self.cards.remove(&key),
        }
        self.dirty.insert(key);
    }

    fn take_dirty(&mut self) -> BTreeSet<(String, String)> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<(String, String)> {
        self.services.keys().cloned().collect()
    }

    fn subjects_for(&self, key: &(String, String)) -> Vec<Wanted> {
        let (namespace, name) = key.clone();
        let card_owner = self.cards.get(key).cloned();
        self.services.get(key).map(|uid| Wanted { namespace, name, uid: uid.clone(), card_owner }).into_iter().collect()
    }

    fn extract(&self, _: &BTreeSet<(String, String)>) -> Self {
        self.clone()
    }
}

impl Wanted {
    fn service(&self) -> ObjectRef<'_> {
        let Self { namespace, name, uid, .. } = self;
        ObjectRef { api_version: "v1", kind: "Service", namespace: Some(namespace), name, uid }
    }
}

impl Keeper for Cards {
    type Subject = Wanted;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "cards"
    }
    fn subject_ref<'a>(&self, wanted: &'a Wanted) -> SubjectRef<'a> {
        wanted.service().into()
    }
    fn facts(&self, wanted: &Wanted, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("card of", wanted.card_owner.clone().unwrap_or_default())]
    }
    fn simulate_action(&self, mut wanted: Wanted, _: &Action, (): &(), _: Timestamp) -> Option<Wanted> {
        wanted.card_owner = Some(wanted.uid.clone());
        Some(wanted)
    }
}

impl Controller for Cards {
    type Cache = Index;

    fn sources(&self) -> Vec<Source<Index>> {
        let service = |object: Partial| {
            let meta = object.metadata;
            (meta.label("card") == Some("wanted")).then_some(Row::Service { uid: meta.uid })
        };
        let card = |object: Partial| {
            let owner = object.metadata.controller().map(|owner| owner.uid.clone()).unwrap_or_default();
            Some(Row::Card { owner })
        };
        vec![
            Source::watch(SERVICES, resource("", "v1", "Service", "services"), service),
            Source::watch(CARDS, resource("", "v1", "ConfigMap", "configmaps"), card),
        ]
    }
    fn world(&self, _: &Index, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let wanted = &batch.only().subject;
        let owner = json!({
            "apiVersion": "v1", "kind": "Service", "name": wanted.name, "uid": wanted.uid, "controller": true,
        });
        let card = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": wanted.name, "ownerReferences": [owner] }, "data": { "of": wanted.name },
        });
        let object = ObjectRef { kind: "ConfigMap", uid: "", ..wanted.service() };
        writer.create(object, &card).await.map(drop).into()
    }
}

#[tokio::test]
async fn an_object_is_created_once_made_again_when_lost_and_a_foreign_one_is_never_touched() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("shop")).await.unwrap();
    let (services, maps): (Api<Service>, Api<ConfigMap>) =
        (Api::namespaced(client.clone(), "shop"), Api::namespaced(client.clone(), "shop"));
    let foreign = serde_json::from_value(json!({ "metadata": { "name": "taken" }, "data": { "of": "somebody" } }));
    maps.create(&PostParams::default(), &foreign.unwrap()).await.unwrap();
    for name in ["web", "taken"] {
        let service = json!({
            "metadata": { "name": name, "labels": { "card": "wanted" } }, "spec": { "ports": [{ "port": 80 }] },
        });
        services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    }
    let keeper = RunningKeeper::start(Cards, &client, Clock::new(|| at(0)), |_| ());
    keeper.done(&["taken ForeignCard refused", "web CardMissing done"]).await;

    maps.delete("web", &DeleteParams::default()).await.unwrap();
    until("it to be created again", LIMIT, async || {
        let found = maps.get_opt("web").await.unwrap();
        Ok(found.map(drop).ok_or_else(|| format!("{:?}", keeper.journal.outcomes())))
    })
    .await
    .unwrap();

    let taken = maps.get("taken").await.unwrap();
    assert_eq!(taken.data.unwrap()["of"], "somebody");
    assert_eq!(taken.metadata.owner_references, None);
    keeper.stop().await;
}
