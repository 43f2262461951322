//! A cache that is kept up to date has the same subjects as one that is filled at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::objects::Objects;
use caretaker_activity::gap::Gaps;
use caretaker_core::keeper::population;
use caretaker_engine::{Cache as _, Change, ObjectId, SourceRef};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api::{self, Activity};
use caretaker_namespaces::observe::sources::{ACTIVITY, KINDS};
use caretaker_namespaces::observe::{ReceivedActivity, Row};
use caretaker_namespaces::subject::Subject;
use proptest::prelude::*;
use serde_json::{Value, json};

type Name = (&'static str, String, String);

/// What happens to the objects of a cluster, as a watch delivers it.
#[derive(Debug, Clone, Copy)]
enum Event {
    Applied(&'static str, usize, usize, usize),
    Deleted(&'static str, usize, usize),
    /// The watch was interrupted; meanwhile this object was deleted, and the list does not contain it.
    ListedWithout(&'static str, usize, usize),
}

fn event() -> impl Strategy<Value = Event> {
    let kind = proptest::sample::select(KINDS.iter().map(|kind| kind.kind).collect::<Vec<_>>());
    (kind, 0..3_usize, 0..2_usize, 0..6_usize, 0..6_u8).prop_map(|(kind, home, name, shape, what)| match what {
        0 => Event::Deleted(kind, home, name),
        1 => Event::ListedWithout(kind, home, name),
        _ => Event::Applied(kind, home, name, shape),
    })
}

fn is_cluster_scoped(kind: &str) -> bool {
    KINDS.iter().any(|known| known.kind == kind && !known.namespaced)
}

fn object(kind: &str, home: usize, name: usize, shape: usize, version: usize) -> Value {
    let name = if kind == "Namespace" { format!("home-{home}") } else { format!("{}-{name}", kind.to_lowercase()) };
    let labels = match shape {
        0 => json!({ api::SLEEP_AFTER: "1h" }),
        1 => json!({ api::EXCLUDE: "true" }),
        2 => json!({ api::STATE: "sleep", api::DELETE_AFTER: "2h" }),
        _ => json!({}),
    };
    let owners = if shape == 3 { json!([{ "controller": true }]) } else { json!([]) };
    let service = json!({ "namespace": format!("home-{}", shape % 3) });
    let spec = match kind {
        "APIService" => json!({ "service": service }),
        "CustomResourceDefinition" => {
            json!({ "conversion": { "webhook": { "clientConfig": { "service": service } } } })
        }
        _ => json!({ "replicas": shape }),
    };
    let webhooks = if kind.ends_with("WebhookConfiguration") {
        json!([{ "clientConfig": { "service": service } }])
    } else {
        json!([])
    };
    let mut metadata = json!({
        "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
        "labels": labels, "ownerReferences": owners,
    });
    if !is_cluster_scoped(kind) {
        metadata["namespace"] = json!(format!("home-{home}"));
    }
    json!({ "metadata": metadata, "spec": spec, "webhooks": webhooks })
}

fn key(kind: &'static str, object: &Value) -> Name {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (kind, text("namespace"), text("name"))
}

fn filled_at_once(objects: &BTreeMap<Name, Value>) -> Objects {
    let mut filled = Objects::default();
    for ((kind, ..), object) in objects {
        filled.apply(kind, object);
    }
    filled
}

fn sorted(mut subjects: Vec<Subject>) -> Vec<Subject> {
    subjects.sort_by(|a, b| (a.kind, a.namespace_name(), &a.name).cmp(&(b.kind, b.namespace_name(), &b.name)));
    subjects
}

/// Feeds one event to the cache, and to the objects that exist.
fn feed(kept: &mut Objects, objects: &mut BTreeMap<Name, Value>, event: Event, version: usize) {
    match event {
        Event::Applied(kind, home, name, shape) => {
            let object = object(kind, home, name, shape, version);
            kept.apply(kind, &object);
            objects.insert(key(kind, &object), object);
        }
        Event::Deleted(kind, home, name) => {
            let object = object(kind, home, name, 5, version);
            kept.delete(kind, &object);
            objects.remove(&key(kind, &object));
        }
        Event::ListedWithout(kind, home, name) => {
            objects.remove(&key(kind, &object(kind, home, name, 5, version)));
            kept.list(kind, objects.iter().filter(|((k, ..), _)| *k == kind).map(|(_, object)| object));
        }
    }
}

const HOMES: [&str; 3] = ["home-0", "home-1", "home-2"];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3_000) })]

    #[test]
    fn whatever_a_watch_delivers_the_subjects_are_those_of_the_objects_that_exist(history in proptest::collection::vec(event(), 0..40)) {
        let mut kept = Objects::default();
        let mut objects: BTreeMap<Name, Value> = BTreeMap::new();
        let mut before: BTreeMap<String, Vec<Subject>> = BTreeMap::new();
        for (version, event) in history.into_iter().enumerate() {
            feed(&mut kept, &mut objects, event, version);
            let dirty = kept.feed.cache.take_dirty();
            for home in HOMES {
                let now = kept.cache().subjects_for(&home.to_owned());
                if before.get(home).is_some_and(|then| *then != now) {
                    prop_assert!(dirty.contains(home), "{home} has changed and is not dirty");
                }
                before.insert(home.to_owned(), now);
            }
        }

        let filled = filled_at_once(&objects);
        let (kept, filled) = (kept.cache(), filled.cache());
        let keeper = Namespaces::default();
        prop_assert_eq!(population(&keeper, &kept.subjects()), population(&keeper, &filled.subjects()));
        let by_key: Vec<Subject> = kept.keys().iter().flat_map(|key| kept.subjects_for(key)).collect();
        prop_assert_eq!(sorted(by_key), sorted(filled.subjects()));
        prop_assert_eq!(kept.subjects(), filled.subjects());
    }

}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    /// Otherwise a confirmation would judge less than the round did.
    #[test]
    fn an_extract_has_everything_that_its_subjects_are_made_of(
        history in proptest::collection::vec(event(), 0..40),
        received in proptest::collection::vec((0..3_usize, any::<bool>()), 0..3),
        keys in proptest::collection::btree_set(proptest::sample::select(HOMES.to_vec()), 0..3),
    ) {
        let (mut kept, mut objects) = (Objects::default(), BTreeMap::new());
        for (version, event) in history.into_iter().enumerate() {
            feed(&mut kept, &mut objects, event, version);
        }
        for (home, will_be_written) in received {
            kept.feed.update(&activity_source(), Change::apply(ObjectId::named(HOMES[home]), activity(will_be_written)));
        }
        kept.feed.update(&activity_source(), Change::apply(ObjectId::named("gaps"), Row::Gaps(gaps())));

        let keys: BTreeSet<String> = keys.into_iter().map(str::to_owned).collect();
        let extract = kept.cache().extract(&keys);

        for key in &keys {
            prop_assert_eq!(extract.subjects_for(key), kept.cache().subjects_for(key));
            prop_assert_eq!(extract.invalid_objects(key), kept.cache().invalid_objects(key));
        }
        prop_assert_eq!(extract.gaps(), kept.cache().gaps());
        let expected: BTreeSet<String> = kept.cache().keys().into_iter().filter(|key| keys.contains(key)).collect();
        prop_assert_eq!(BTreeSet::from_iter(extract.keys()), expected);
    }

    /// A live list of one namespace, on the extract of that namespace, replaces what was known of it.
    #[test]
    fn a_list_on_an_extract_is_a_list_of_its_namespace(
        history in proptest::collection::vec(event(), 0..40),
        later in proptest::collection::vec(event(), 0..20),
    ) {
        let (mut kept, mut objects) = (Objects::default(), BTreeMap::new());
        let known = history.len();
        for (version, event) in history.into_iter().enumerate() {
            feed(&mut kept, &mut objects, event, version);
        }
        let mut live = Objects::default();
        live.feed.cache = kept.cache().extract(&[HOMES[0].to_owned()].into());
        for (version, event) in later.into_iter().enumerate() {
            feed(&mut kept, &mut objects, event, known + version);
        }

        for kind in &KINDS {
            let is_in = |(of, namespace, _): &Name| *of == kind.kind && (!kind.namespaced || namespace == HOMES[0]);
            live.list(kind.kind, objects.iter().filter(|(name, _)| is_in(name)).map(|(_, object)| object));
        }

        let home = HOMES[0].to_owned();
        prop_assert_eq!(live.cache().subjects_for(&home), kept.cache().subjects_for(&home));
    }
}

fn activity_source() -> SourceRef {
    SourceRef { id: ACTIVITY, resource: None }
}

fn activity(will_be_written: bool) -> Row {
    let at = "2036-01-10T00:00:00Z".parse().unwrap();
    let last = Some(Activity { by: "ListPods".into(), user: "ann".into(), ..Activity::reported(at) });
    Row::Activity(ReceivedActivity { last, will_be_written })
}

fn gaps() -> Gaps {
    let mut gaps = Gaps::default();
    gaps.start("2036-01-10T00:00:00Z".parse().unwrap(), "nothing arrives");
    gaps
}

#[test]
fn an_older_version_of_an_object_is_ignored() {
    let mut seen = Objects::default();
    seen.apply("Deployment", &object("Deployment", 0, 0, 4, 20));
    seen.apply("Deployment", &object("Deployment", 0, 0, 5, 19));
    seen.apply("Namespace", &object("Namespace", 0, 0, 4, 20));
    seen.apply("Namespace", &object("Namespace", 0, 0, 0, 9));

    let subject = &seen.cache().subjects_for(&"home-0".to_owned())[0];

    assert_eq!(subject.workloads[0].to_string(), "Deployment/deployment-0: 4 replicas");
    assert!(!subject.labelled);
}

#[test]
fn after_a_restore_of_etcd_a_list_with_lower_versions_is_taken_in_whole() {
    let mut seen = Objects::default();
    seen.list("Namespace", [object("Namespace", 0, 0, 4, 900)].iter());
    seen.list("Deployment", [object("Deployment", 0, 0, 4, 901)].iter());

    seen.list("Namespace", [object("Namespace", 0, 0, 0, 100)].iter());
    seen.list("Deployment", [object("Deployment", 0, 0, 5, 101)].iter());

    let subject = &seen.cache().subjects_for(&"home-0".to_owned())[0];
    assert_eq!(subject.workloads[0].to_string(), "Deployment/deployment-0: 5 replicas");
    assert!(subject.labelled);
}

#[test]
fn the_answer_to_a_write_is_not_replaced_by_a_list_that_started_before_it() {
    let mut seen = Objects::default();
    let deployments = Objects::source("Deployment");
    seen.list("Deployment", [object("Deployment", 0, 0, 4, 20)].iter());
    seen.apply("Namespace", &object("Namespace", 0, 0, 4, 20));

    seen.feed.update(&deployments, Change::Init);
    seen.apply("Deployment", &object("Deployment", 0, 0, 5, 22));
    seen.apply("Deployment", &object("Deployment", 0, 0, 4, 20));
    seen.feed.update(&deployments, Change::InitDone);

    let subject = &seen.cache().subjects_for(&"home-0".to_owned())[0];
    assert_eq!(subject.workloads[0].to_string(), "Deployment/deployment-0: 5 replicas");
}

#[test]
fn another_object_of_the_same_name_is_taken_whatever_its_version() {
    let mut seen = Objects::default();
    seen.apply("Namespace", &object("Namespace", 0, 0, 4, 20));
    let mut other = object("Namespace", 0, 0, 0, 9);
    other["metadata"]["uid"] = json!("another");
    seen.apply("Namespace", &other);

    assert!(seen.cache().subjects_for(&"home-0".to_owned())[0].labelled);
}

#[test]
fn an_object_that_a_live_read_did_not_find_is_removed_whatever_its_uid() {
    let mut seen = Objects::default();
    seen.apply("Namespace", &object("Namespace", 0, 0, 4, 20));
    seen.apply("Deployment", &object("Deployment", 0, 0, 4, 20));

    let id = ObjectId { namespace: Some("home-0".to_owned()), ..ObjectId::named("deployment-0") };
    let deployments = Objects::source("Deployment");
    seen.feed.update(&deployments, Change::Delete(id));
    assert!(seen.cache().subjects_for(&"home-0".to_owned())[0].workloads.is_empty());

    let namespaces = Objects::source("Namespace");
    seen.feed.update(&namespaces, Change::Delete(ObjectId::named("home-0")));
    assert_eq!(seen.cache().keys(), Vec::<String>::new());
}

#[test]
fn activity_counts_before_it_is_written_unless_the_namespace_is_asleep() {
    let mut seen = Objects::default();
    seen.apply("Namespace", &object("Namespace", 0, 0, 0, 1));
    seen.apply("Namespace", &object("Namespace", 1, 0, 2, 1));
    for home in ["home-0", "home-1"] {
        seen.feed.update(&activity_source(), Change::apply(ObjectId::named(home), activity(true)));
    }
    let known = |seen: &Objects, home: &str| {
        let subject = seen.cache().subjects_for(&home.to_owned()).remove(0);
        (subject.activity.is_set(), subject.activity_pending)
    };
    assert_eq!((known(&seen, "home-0"), known(&seen, "home-1")), ((true, true), (false, true)));

    seen.feed.update(&activity_source(), Change::Delete(ObjectId::named("home-0")));
    assert_eq!(known(&seen, "home-0"), (false, false), "it is on the annotation now, or does not count");

    seen.feed.update(&activity_source(), Change::apply(ObjectId::named("home-1"), activity(false)));
    assert_eq!(known(&seen, "home-1"), (true, false), "a dry run writes nothing");
}

#[test]
fn an_answer_to_a_write_of_activity_does_not_bring_back_a_namespace() {
    let mut seen = Objects::default();
    let namespace = object("Namespace", 0, 0, 0, 9);
    let (_, answer) = Objects::project("Namespace", &namespace).unwrap();

    seen.feed.update(&activity_source(), answer.clone());
    assert_eq!(seen.cache().keys(), Vec::<String>::new());

    seen.apply("Namespace", &object("Namespace", 0, 0, 5, 8));
    seen.feed.update(&activity_source(), answer);
    assert!(seen.cache().subjects_for(&"home-0".to_owned())[0].labelled, "a newer version of what is known");
}

#[test]
fn a_gap_that_changes_makes_everything_dirty_and_a_canary_that_returns_makes_nothing_dirty() {
    let mut seen = Objects::default();
    for home in 0..3 {
        seen.apply("Namespace", &object("Namespace", home, 0, 0, 1));
    }
    seen.feed.cache.take_dirty();
    let deliver = |seen: &mut Objects, gaps: &Gaps| {
        let change = Change::apply(ObjectId::named("gaps"), Row::Gaps(gaps.clone()));
        seen.feed.update(&activity_source(), change);
        seen.feed.cache.take_dirty().len()
    };

    let mut gaps = gaps();
    assert_eq!(deliver(&mut seen, &gaps), 3, "it opens");
    assert_eq!(deliver(&mut seen, &gaps), 0, "nothing changes");
    seen.feed.update(&activity_source(), Change::CurrentUntil("2036-01-10T01:00:00Z".parse().unwrap()));
    assert_eq!(seen.feed.cache.take_dirty().len(), 0, "a canary came back");
    gaps.end("2036-01-10T01:00:00Z".parse().unwrap());
    assert_eq!(deliver(&mut seen, &gaps), 3, "it closes");
}
