//! A complete keeper of one kind: a ConfigMap with the annotation `example.com/expires-at` is deleted after
//! that time. Everything that the contract requires is here; everything else has a default.

use crate::support::keeper_run::{RunningKeeper, at};
use caretaker_core::{ActionKind, Keeper, ObjectRef, Permission, RuleMatch, SourceId, SubjectRef, Timestamp};
use caretaker_core::{actions, rules, time};
use caretaker_engine::clock::Clock;
use caretaker_engine::writer::Writer;
use caretaker_engine::{BatchResult, Confirmed, Controller, Partial, ReplicaRole, Rows, Source};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use kube::core::ApiResource;
use serde_json::json;

const CONFIG_MAPS: SourceId = SourceId("configmaps");

struct Leftovers;

#[derive(Debug, Clone, PartialEq)]
struct Leftover {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    expires: Option<Timestamp>,
}

actions! { enum Action {
    /// Deletes the ConfigMap.
    Delete => ActionKind::destructive("delete").removes_subject().needs(&[
        Permission::on(CONFIG_MAPS, "get"),
        Permission::on(CONFIG_MAPS, "delete"),
    ]),
} }

rules! { enum Rule for Leftovers {
    /// It has no readable expiry: never touched.
    NoExpiry => no_expiry,
    /// Its expiry has passed: deleted.
    Expired => expired,
} }

fn no_expiry(leftover: &Leftover, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    leftover.expires.is_none().then(|| RuleMatch::nothing("it has no expiry"))
}

fn expired(leftover: &Leftover, (): &(), now: Timestamp) -> Option<RuleMatch<Action>> {
    let due = leftover.expires?;
    Some(RuleMatch::act_after(due, Action::Delete, now, format!("it expires at {}", time::format(due))))
}

impl Leftover {
    fn project(object: Partial) -> Option<Self> {
        let meta = object.metadata;
        let expires = meta.annotation("example.com/expires-at").and_then(time::parse);
        let (namespace, name) = (meta.namespace, meta.name);
        Some(Self { namespace, name, uid: meta.uid, resource_version: meta.resource_version, expires })
    }

    fn object(&self) -> ObjectRef<'_> {
        let Self { namespace, name, uid, .. } = self;
        ObjectRef { api_version: "v1", kind: "ConfigMap", namespace: Some(namespace), name, uid }
    }
}

impl Keeper for Leftovers {
    type Subject = Leftover;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "leftovers"
    }
    fn subject_ref<'a>(&self, leftover: &'a Leftover) -> SubjectRef<'a> {
        leftover.object().into()
    }
    fn facts(&self, leftover: &Leftover, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("expires", leftover.expires.map_or_else(|| "never".to_owned(), time::format))]
    }
    fn simulate_action(&self, _: Leftover, _: &Action, (): &(), _: Timestamp) -> Option<Leftover> {
        None
    }
}

impl Controller for Leftovers {
    type Cache = Rows<Leftover>;

    fn sources(&self) -> Vec<Source<Rows<Leftover>>> {
        vec![Source::watch(CONFIG_MAPS, ApiResource::erase::<ConfigMap>(&()), Leftover::project)]
    }
    fn world(&self, _: &Rows<Leftover>, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let leftover = &batch.only().subject;
        writer.delete(leftover.object(), &leftover.resource_version).await.map(drop).into()
    }
}

#[tokio::test]
async fn it_is_deleted_after_its_expiry_and_not_before() {
    let client = shared().client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("shop")).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "shop");
    for (name, expires) in [("old", time::format(at(60))), ("kept", "some day".to_owned())] {
        let metadata = json!({ "name": name, "annotations": { "example.com/expires-at": expires } });
        let map = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let (clock, hands) = Clock::manual(at(60));
    let keeper = RunningKeeper::start(Leftovers, &client, clock, |_| ());
    keeper.ready().await;
    assert_eq!(keeper.journal.outcomes(), [""; 0], "a deadline is strict");

    hands.set(at(61));
    keeper.done(&["old Expired done"]).await;

    assert!(maps.get_opt("old").await.unwrap().is_none() && maps.get_opt("kept").await.unwrap().is_some());
    keeper.stop().await;
}
