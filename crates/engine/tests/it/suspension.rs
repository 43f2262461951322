//! A window on an object holds back the work on it. The test keeper's cards are ConfigMaps: each says when it is due and
//! what is then done to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::keeper_run::{RunningKeeper, at};
use caretaker_core::limits::{Ledger, Limits};
use caretaker_core::suspension::{SUSPEND_DURING, SUSPENDED_DURING};
use caretaker_core::{
    ActionKind, Cause, Keeper, Next, ObjectRef, Permission, RuleMatch, SourceId, SubjectRef, Timestamp,
};
use caretaker_core::{actions, rules};
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once_on;
use caretaker_engine::planner::Planner;
use caretaker_engine::sources::Sources;
use caretaker_engine::writer::Writer;
use caretaker_engine::{BatchResult, Confirmed, Controller, Meta, PartialObject, ReplicaRole, Rows, Source};
use caretaker_keeper_testkit::{LIMIT, MemoryJournal, context, write_events};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{shared_without_controllers as shared, until};
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;

const CARDS: SourceId = SourceId("configmaps");

/// Open from midnight, which is the tests' second 0, until five: a Thursday.
const AT_NIGHT: &str = "* 0-4 * * *";
const FIVE: i64 = 5 * 3600;

/// The cards in one namespace.
struct Cards(&'static str);

#[derive(Debug, Clone, PartialEq)]
struct Card {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    action: Option<Action>,
    due: i64,
    is_half_done: bool,
    is_ordered: bool,
    is_stamped: bool,
}

actions! {
    #[derive(Copy)]
    enum Action {
        /// Deletes the card.
        Delete => ActionKind::destructive("delete").removes_subject().needs(&[
            Permission::on(CARDS, "get"),
            Permission::on(CARDS, "delete"),
        ]),
        /// Labels the card, which takes nothing away.
        Stamp => ActionKind::plain("stamp").confirmed().needs(&[Permission::on(CARDS, "patch")]),
        /// Labels the card too, and is held back by a window.
        File => ActionKind::plain("file").suspendable().needs(&[Permission::on(CARDS, "patch")]),
    }
}

rules! { enum Rule for Cards {
    /// It is due.
    Due => due,
    /// Nothing is to be done.
    Done => done,
} }

fn due(card: &Card, (): &(), now: Timestamp) -> Option<RuleMatch<Action>> {
    let action = card.action.filter(|_| !card.is_stamped)?;
    let cause = match card {
        Card { is_half_done: true, .. } => Cause::Completion,
        Card { is_ordered: true, .. } => Cause::Ordered,
        _ => Cause::Inferred,
    };
    Some(RuleMatch::act_after(at(card.due), action, now, "its time has come").with_cause(cause))
}

fn done(_: &Card, (): &(), _: Timestamp) -> Option<RuleMatch<Action>> {
    Some(RuleMatch::nothing("nothing is to be done"))
}

#[derive(Debug, Clone, Deserialize)]
struct Written {
    metadata: Meta,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl PartialObject for Written {
    fn metadata(&self) -> &Meta {
        &self.metadata
    }
}

impl Card {
    fn project(Written { metadata: meta, data }: Written) -> Self {
        let says = |key: &str| data.get(key).map(String::as_str).unwrap_or_default();
        let action = match says("do") {
            "delete" => Some(Action::Delete),
            "stamp" => Some(Action::Stamp),
            "file" => Some(Action::File),
            _ => None,
        };
        Self {
            action,
            due: says("at").parse().unwrap_or_default(),
            is_half_done: says("cause") == "half done",
            is_ordered: says("cause") == "ordered",
            is_stamped: meta.label("stamped").is_some(),
            namespace: meta.namespace,
            name: meta.name,
            uid: meta.uid,
            resource_version: meta.resource_version,
        }
    }

    fn object(&self) -> ObjectRef<'_> {
        let Self { namespace, name, uid, .. } = self;
        ObjectRef { api_version: "v1", kind: "ConfigMap", namespace: Some(namespace), name, uid }
    }
}

impl Keeper for Cards {
    type Subject = Card;
    type World = ();
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        self.0
    }
    fn subject_ref<'a>(&self, card: &'a Card) -> SubjectRef<'a> {
        card.object().into()
    }
    fn facts(&self, card: &Card, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("due", card.due.to_string())]
    }
    fn simulate_action(&self, _: Card, _: &Action, (): &(), _: Timestamp) -> Option<Card> {
        None
    }
}

impl Controller for Cards {
    type Cache = Rows<Card>;

    fn sources(&self) -> Vec<Source<Rows<Card>>> {
        let project = |written| Some(Card::project(written));
        let cards = Source::watch(CARDS, ApiResource::erase::<ConfigMap>(&()), project);
        vec![cards.fields(format!("metadata.namespace={}", self.0))]
    }
    fn world(&self, _: &Rows<Card>, _: ReplicaRole, _: Timestamp) {}

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let one = batch.only();
        let (card, version) = (one.subject.object(), one.subject.resource_version.as_str());
        let done = match one.action {
            Action::Delete => writer.delete(card, version).await,
            Action::Stamp | Action::File => {
                let stamped = json!({ "metadata": { "labels": { "stamped": "yes" } } });
                writer.merge_patch(card, version, stamped).await
            }
        };
        done.map(drop).into()
    }
}

/// A namespace for one test.
async fn cards(namespace: &'static str) -> (Client, Api<ConfigMap>) {
    let client = shared().client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace(namespace)).await.unwrap();
    (client.clone(), Api::namespaced(client, namespace))
}

/// Puts a card there, which is due after the sixtieth second.
async fn put(cards: &Api<ConfigMap>, name: &str, action: &str, cause: &str, window: Option<(&str, &str)>) {
    let annotations: BTreeMap<&str, &str> = window.into_iter().collect();
    let data = json!({ "at": "60", "do": action, "cause": cause });
    let card = json!({ "metadata": { "name": name, "annotations": annotations }, "data": data });
    cards.create(&PostParams::default(), &serde_json::from_value(card).unwrap()).await.unwrap();
}

async fn annotate(cards: &Api<ConfigMap>, name: &str, window: Option<&str>) {
    let patch = json!({ "metadata": { "annotations": { SUSPENDED_DURING: window } } });
    cards.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn night() -> Option<(&'static str, &'static str)> {
    Some((SUSPENDED_DURING, AT_NIGHT))
}

#[tokio::test]
async fn what_a_window_holds_back_is_done_when_it_closes() {
    let (client, cards) = cards("closes").await;
    put(&cards, "a-half-done", "delete", "half done", night()).await;
    put(&cards, "b-harmless", "stamp", "", night()).await;
    put(&cards, "c-held", "delete", "", night()).await;
    put(&cards, "d-ordered", "delete", "ordered", Some((SUSPEND_DURING, AT_NIGHT))).await;
    put(&cards, "e-created", "file", "", night()).await;
    put(&cards, "f-free", "delete", "", Some((SUSPENDED_DURING, "* 5-23 * * *"))).await;
    let (clock, hands) = Clock::manual(at(61));
    let keeper = RunningKeeper::start(Cards("closes"), &client, clock, |_| ());

    let at_once = ["a-half-done Due done", "b-harmless Due done", "f-free Due done"];
    keeper.done(&at_once).await;
    hands.set(at(FIVE));
    assert!(cards.get_opt("c-held").await.unwrap().is_some(), "the end of the window itself is not after it");
    keeper.done(&at_once).await;

    hands.set(at(FIVE + 1));
    let later = ["c-held Due done", "d-ordered Due done", "e-created Due done"];
    keeper.done(&[at_once, later].concat()).await;
    keeper.stop().await;
}

#[tokio::test]
async fn a_window_counts_from_the_moment_it_is_written_until_it_is_removed() {
    let (client, cards) = cards("written").await;
    put(&cards, "card", "delete", "", Some((SUSPENDED_DURING, "@always"))).await;
    let keeper = RunningKeeper::start(Cards("written"), &client, Clock::manual(at(61)).0, |_| ());
    keeper.ready().await;
    put(&cards, "other", "delete", "", None).await;
    keeper.done(&["other Due done"]).await;

    annotate(&cards, "card", Some(AT_NIGHT)).await;
    put(&cards, "another", "delete", "", None).await;
    keeper.done(&["other Due done", "another Due done"]).await;

    annotate(&cards, "card", None).await;
    keeper.done(&["other Due done", "another Due done", "card Due done"]).await;
    keeper.stop().await;
}

#[tokio::test]
async fn an_unreadable_window_is_reported_once_and_nothing_is_taken_away() {
    let (client, cards) = cards("unreadable").await;
    let unreadable = Some((SUSPENDED_DURING, "* 25 * * *"));
    put(&cards, "a-stamped", "stamp", "", unreadable).await;
    put(&cards, "b-kept", "delete", "", unreadable).await;
    let keeper = RunningKeeper::start(Cards("unreadable"), &client, Clock::manual(at(61)).0, |_| ());
    keeper.done(&["b-kept InvalidWindow refused", "a-stamped Due done"]).await;
    let because = keeper.journal.entries()[0]["because"].as_str().unwrap().to_owned();
    assert!(because.contains("annotation reconcile.fluxcd.io/suspendedDuring is \"* 25 * * *\""), "{because}");

    annotate(&cards, "b-kept", Some("* 5 * * *")).await;
    keeper.done(&["b-kept InvalidWindow refused", "a-stamped Due done", "b-kept Due done"]).await;
    keeper.stop().await;
}

#[tokio::test]
async fn a_dry_run_does_not_report_what_a_window_holds_back() {
    let (client, cards) = cards("dry-run").await;
    put(&cards, "a-held", "delete", "", night()).await;
    put(&cards, "b-free", "delete", "", None).await;
    let (clock, hands) = Clock::manual(at(61));
    let keeper = RunningKeeper::start(Cards("dry-run"), &client, clock, |context| context.dry_run = true);
    keeper.done(&["b-free Due dry-run"]).await;

    hands.set(at(FIVE + 1));
    keeper.done(&["b-free Due dry-run", "a-held Due dry-run"]).await;
    assert!(cards.get_opt("a-held").await.unwrap().is_some());
    keeper.stop().await;
}

#[tokio::test]
async fn a_window_that_only_the_live_read_finds_counts_and_one_that_is_gone_does_not() {
    let (client, cards) = cards("live").await;
    put(&cards, "a-suspended-since", "delete", "", None).await;
    put(&cards, "b-plain", "delete", "", None).await;
    let keeper = Arc::new(Cards("live"));
    let (sources, context) = (Sources::of(&*keeper), context(&client, "live", at_61(), MemoryJournal::default()));
    let feed = sources.list_all(&client, 1).await.unwrap();
    annotate(&cards, "a-suspended-since", Some(AT_NIGHT)).await;

    let done = run_once_on(&keeper, &context, &sources, feed, &mut Ledger::default(), |_| true).await;

    let outcomes: Vec<_> = done.results.iter().map(|one| (one.planned.subject.name.as_str(), &one.result)).collect();
    let [("a-suspended-since", Err(error)), ("b-plain", Ok(()))] = outcomes.as_slice() else {
        panic!("{outcomes:?}");
    };
    assert!(error.to_string().contains("Suspended: delete is due"), "{error}");
    assert!(cards.get_opt("a-suspended-since").await.unwrap().is_some());
}

fn at_61() -> Clock {
    Clock::manual(at(61)).0
}

#[tokio::test]
async fn what_is_held_back_neither_counts_nor_is_judged_until_its_window_ends() {
    let (client, cards) = cards("timer").await;
    for i in 0..3 {
        put(&cards, &format!("card-{i}"), "delete", "", night()).await;
    }
    let keeper = Cards("timer");
    let mut feed = Sources::of(&keeper).list_all(&client, 1).await.unwrap();
    let (mut planner, mut ledger) = (Planner::<Cards>::default(), Ledger::default());
    let limits = Limits {
        breaker: Some(caretaker_core::limits::Breaker { min_count: 2, ..Default::default() }),
        ..Limits::default()
    };
    let judged = planner.judge(&keeper, &mut feed, &(), &limits, &ledger, false, at(61));
    assert!(judged.due.is_empty() && judged.refusals.is_empty());
    let admitted = planner.limit(&keeper, judged, |_| false, &limits, &mut ledger, at(61));
    assert_eq!(admitted.opens, None, "three of three would open the breaker");

    assert_eq!(planner.next_deadline(), Some(at(FIVE)), "a timer, and no polling");
    let waiting: Vec<_> = planner.verdict_counts().map(|(kind, count)| (kind.name(), count)).collect();
    assert_eq!(waiting, [("none", 0), ("wait", 3), ("act", 0), ("refuse", 0)]);
    let judged = planner.judge(&keeper, &mut feed, &(), &limits, &ledger, false, at(FIVE + 1));
    assert_eq!(judged.due.len(), 3);
    assert!(judged.due.iter().all(|planned| matches!(planned.verdict.next, Next::Act { .. })));
}

#[tokio::test]
async fn a_window_without_a_zone_is_in_the_zone_of_the_clock() {
    let (client, cards) = cards("zone").await;
    put(&cards, "a-held", "delete", "", night()).await;
    put(&cards, "b-names-its-zone", "delete", "", Some((SUSPENDED_DURING, "TZ=UTC * 0-4 * * *"))).await;
    put(&cards, "c-free", "delete", "", None).await;
    let (clock, hands) = Clock::manual(at(61));
    // An hour ahead of UTC, so that its night ends an hour earlier.
    let clock = clock.in_zone(TimeZone::get("Etc/GMT-1").unwrap());
    let keeper = RunningKeeper::start(Cards("zone"), &client, clock, |_| ());
    keeper.done(&["c-free Due done"]).await;

    hands.set(at(FIVE - 3600 + 1));
    keeper.done(&["c-free Due done", "a-held Due done"]).await;
    assert!(cards.get_opt("b-names-its-zone").await.unwrap().is_some());
    hands.set(at(FIVE + 1));
    keeper.done(&["c-free Due done", "a-held Due done", "b-names-its-zone Due done"]).await;
    keeper.stop().await;
}

#[tokio::test]
async fn two_windows_on_one_object_are_an_event_and_the_first_counts() {
    let (client, cards) = cards("two-windows").await;
    put(&cards, "both", "delete", "", night()).await;
    let other = json!({ "metadata": { "annotations": { SUSPEND_DURING: "* 5 * * *" } } });
    cards.patch("both", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    put(&cards, "one", "delete", "", night()).await;
    let (clock, hands) = Clock::manual(at(61));
    let keeper = RunningKeeper::start(Cards("two-windows"), &client, clock, write_events);

    let events: Api<Event> = Api::namespaced(client.clone(), "two-windows");
    let warned = until("the Event", LIMIT, async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let found = all.into_iter().find(|event| event.reason.as_deref() == Some("WindowWarning"));
        Ok(found.ok_or_else(|| "no Event".to_owned()))
    });
    let warned = warned.await.unwrap();
    assert_eq!(warned.regarding.unwrap().name.as_deref(), Some("both"));
    let note = "annotation reconcile.fluxcd.io/suspendDuring is \"* 5 * * *\": annotation \
                reconcile.fluxcd.io/suspendedDuring says something else, and counts; remove it";
    assert_eq!(warned.note.as_deref(), Some(note));

    // The second window is open now, and the first is not.
    hands.set(at(FIVE + 1));
    keeper.done(&["both Due done", "one Due done"]).await;
    keeper.stop().await;
}
