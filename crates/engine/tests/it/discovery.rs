//! A test keeper of kinds that are found at run time and come and go: an object of any kind in the group
//! `toys.example.com` with the annotation `example.com/paint` gets a label of that colour.

use std::time::Duration;

use crate::support::keeper_run::{LIMIT, RunningKeeper, at};
use caretaker_core::{ActionKind, Keeper, ObjectRef, Permission, RuleMatch, SourceId, SubjectRef, Timestamp};
use caretaker_core::{actions, rules};
use caretaker_engine::clock::Clock;
use caretaker_engine::writer::Writer;
use caretaker_engine::{BatchResult, Confirmed, Controller, Partial, ReplicaRole, Rows, Source};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::json;

const TOYS: SourceId = SourceId("toys");
const GROUP: &str = "toys.example.com";

struct Painter;

#[derive(Debug, Clone, PartialEq)]
struct Toy {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    resource_version: String,
    wanted: Option<String>,
    colour: Option<String>,
}

actions! { enum Action {
    /// Sets the label.
    Paint(String) => ActionKind::plain("paint").confirmed().needs(&[
        Permission::on(TOYS, "get"),
        Permission::on(TOYS, "patch"),
    ]),
} }

rules! { enum Rule for Painter {
    /// It has another colour than it wants: painted.
    WrongColour => wrong_colour,
    /// It is as it wants to be.
    Painted => painted,
} }

fn wrong_colour(toy: &Toy, (): &(), now: Timestamp) -> Option<RuleMatch<Action>> {
    let wanted = toy.wanted.as_ref().filter(|wanted| toy.colour.as_ref() != Some(wanted))?;
    Some(RuleMatch::act(Action::Paint(wanted.clone()), now, format!("it wants to be {wanted}")))
}

fn painted(_: &Toy, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    Some(RuleMatch::nothing("nothing is to be painted"))
}

impl Toy {
    fn project(resource: &ApiResource, object: Partial) -> Option<Self> {
        let meta = object.metadata;
        let text = |text: Option<&str>| text.map(str::to_owned);
        Some(Self {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            wanted: text(meta.annotation("example.com/paint")),
            colour: text(meta.label("colour")),
            name: meta.name,
            uid: meta.uid,
            resource_version: meta.resource_version,
        })
    }

    fn object(&self) -> ObjectRef<'_> {
        let Self { api_version, kind, name, uid, .. } = self;
        ObjectRef { api_version, kind, namespace: None, name, uid }
    }
}

impl Keeper for Painter {
    type Subject = Toy;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "painter"
    }
    fn subject_ref<'a>(&self, toy: &'a Toy) -> SubjectRef<'a> {
        toy.object().into()
    }
    fn facts(&self, toy: &Toy, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("colour", toy.colour.clone().unwrap_or_default())]
    }
    fn simulate_action(&self, mut toy: Toy, Action::Paint(colour): &Action, (): &(), _: Timestamp) -> Option<Toy> {
        toy.colour = Some(colour.clone());
        Some(toy)
    }
}

impl Controller for Painter {
    type Cache = Rows<Toy>;

    fn sources(&self) -> Vec<Source<Rows<Toy>>> {
        vec![Source::discover(TOYS, |resource| resource.group == GROUP, Toy::project)]
    }
    fn world(&self, _: &Rows<Toy>, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let one = batch.only();
        let Action::Paint(colour) = &one.action;
        let patch = json!({ "metadata": { "labels": { "colour": colour } } });
        writer.merge_patch(one.subject.object(), &one.subject.resource_version, patch).await.map(drop).into()
    }
}

/// Makes the API server serve a kind; returns how its objects are reached.
async fn serve(client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    let version =
        json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } });
    let definition = json!({
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP, "scope": "Cluster", "versions": [version],
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
        },
    });
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    let toys = Api::all_with(client.clone(), &caretaker_engine::source::resource(GROUP, "v1", kind, plural));
    until("the kind to be served", LIMIT, async || {
        Ok(toys.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await
    .unwrap();
    toys
}

async fn create(toys: &Api<DynamicObject>, kind: &str, name: &str) {
    let metadata = json!({ "name": name, "annotations": { "example.com/paint": "red" } });
    let toy = json!({ "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata });
    toys.create(&PostParams::default(), &serde_json::from_value(toy).unwrap()).await.unwrap();
}

#[tokio::test]
async fn kinds_are_found_when_they_are_served_and_forgotten_when_they_vanish() {
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let balls = serve(&client, "Ball", "balls").await;
    create(&balls, "Ball", "first").await;
    let keeper = RunningKeeper::start(Painter, &client, Clock::new(|| at(0)), |context| {
        context.resync_interval = Duration::from_secs(1);
    });
    keeper.done(&["first WrongColour done"]).await;

    // Two kinds of one group that have objects of one name are two subjects.
    let kites = serve(&client, "Kite", "kites").await;
    create(&kites, "Kite", "first").await;
    keeper.done(&["first WrongColour done", "first WrongColour done"]).await;
    assert_eq!(kites.get("first").await.unwrap().metadata.labels.unwrap()["colour"], "red");

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete(&format!("balls.{GROUP}"), &DeleteParams::default()).await.unwrap();
    until("the kind to be gone", LIMIT, async || {
        Ok(if balls.list(&ListParams::default()).await.is_err() {
            Ok(())
        } else {
            Err("it is still served".to_owned())
        })
    })
    .await
    .unwrap();
    create(&kites, "Kite", "second").await;
    keeper.done(&["first WrongColour done", "first WrongColour done", "second WrongColour done"]).await;
    keeper.ready().await;
    keeper.stop().await;
}
