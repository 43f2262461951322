//! An observation that is kept up to date says the same as one made afresh.

use caretaker_engine::keep::Index as _;
use std::collections::BTreeMap;

use caretaker_namespaces::api;
use caretaker_namespaces::observe::{Manifest, Observation, SOURCES};
use caretaker_namespaces::subject::Subject;
use proptest::prelude::*;
use serde_json::{Value, json};

type Name = (&'static str, String, String);

/// What happens to the objects of a cluster, as a watch tells it.
#[derive(Debug, Clone)]
enum Told {
    Of(&'static str, usize, usize, usize),
    Gone(&'static str, usize, usize),
    /// The watch was lost; meanwhile this one went, and the list does not show it.
    ListedWithout(&'static str, usize, usize),
}

fn told() -> impl Strategy<Value = Told> {
    let kind = proptest::sample::select(SOURCES.iter().map(|s| s.kind).collect::<Vec<_>>());
    (kind, 0..3_usize, 0..2_usize, 0..6_usize, 0..6_u8).prop_map(|(kind, home, name, shape, what)| match what {
        0 => Told::Gone(kind, home, name),
        1 => Told::ListedWithout(kind, home, name),
        _ => Told::Of(kind, home, name, shape),
    })
}

fn is_cluster_wide(kind: &str) -> bool {
    SOURCES.iter().skip(9).any(|s| s.kind == kind) || kind == "Namespace"
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
    if !is_cluster_wide(kind) {
        metadata["namespace"] = json!(format!("home-{home}"));
    }
    json!({ "metadata": metadata, "spec": spec, "webhooks": webhooks })
}

fn manifest(object: &Value) -> Manifest {
    serde_json::from_value(object.clone()).unwrap()
}

fn key(kind: &'static str, object: &Value) -> Name {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (kind, text("namespace"), text("name"))
}

fn afresh(objects: &BTreeMap<Name, Value>) -> Observation {
    let mut fresh = Observation::default();
    for ((kind, ..), object) in objects {
        fresh.add(kind, &manifest(object));
    }
    fresh
}

fn sorted(mut subjects: Vec<Subject>) -> Vec<Subject> {
    subjects.sort_by(|a, b| (a.kind, a.home(), &a.name).cmp(&(b.kind, b.home(), &b.name)));
    subjects
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3_000) })]

    #[test]
    fn whatever_a_watch_tells_the_subjects_are_those_of_what_is_there(history in proptest::collection::vec(told(), 0..40)) {
        let mut kept = Observation::default();
        let mut objects: BTreeMap<Name, Value> = BTreeMap::new();
        let mut touched = std::collections::BTreeSet::new();
        let mut before: BTreeMap<String, Vec<Subject>> = BTreeMap::new();
        for (version, told) in history.into_iter().enumerate() {
            match told {
                Told::Of(kind, home, name, shape) => {
                    let object = object(kind, home, name, shape, version);
                    kept.add(kind, &manifest(&object));
                    objects.insert(key(kind, &object), object);
                }
                Told::Gone(kind, home, name) => {
                    let object = object(kind, home, name, 5, version);
                    kept.remove(kind, &manifest(&object));
                    objects.remove(&key(kind, &object));
                }
                Told::ListedWithout(kind, home, name) => {
                    objects.remove(&key(kind, &object(kind, home, name, 5, version)));
                    kept.begin(kind);
                    objects.iter().filter(|((k, ..), _)| *k == kind).for_each(|(_, o)| kept.add(kind, &manifest(o)));
                    kept.complete(kind);
                }
            }
            touched.extend(kept.take_touched());
            for home in ["home-0", "home-1", "home-2"] {
                let now = kept.at_home(&home.to_owned());
                if before.get(home).is_some_and(|then| *then != now) {
                    prop_assert!(touched.contains(home), "{home} has changed and nobody was told");
                }
                before.insert(home.to_owned(), now);
            }
            touched.clear();
        }

        let fresh = afresh(&objects);
        prop_assert_eq!(kept.population(), fresh.population());
        let by_home: Vec<Subject> = kept.homes().iter().flat_map(|home| kept.at_home(home)).collect();
        let expected = fresh.subjects();
        prop_assert_eq!(sorted(by_home), sorted(expected.clone()));
        prop_assert_eq!(kept.subjects(), expected);
    }
}

#[test]
fn what_is_older_than_what_is_known_is_passed_over() {
    let mut seen = Observation::default();
    seen.add("Deployment", &manifest(&object("Deployment", 0, 0, 4, 20)));
    seen.add("Deployment", &manifest(&object("Deployment", 0, 0, 5, 19)));
    seen.add("Namespace", &manifest(&object("Namespace", 0, 0, 4, 20)));
    seen.add("Namespace", &manifest(&object("Namespace", 0, 0, 0, 9)));

    let subject = &seen.at_home(&"home-0".to_owned())[0];

    assert_eq!(subject.workloads[0].to_string(), "Deployment/deployment-0: 4 replicas");
    assert!(!subject.labelled);
}

#[test]
fn another_object_of_the_same_name_is_news_whatever_its_version() {
    let mut seen = Observation::default();
    seen.add("Namespace", &manifest(&object("Namespace", 0, 0, 4, 20)));
    let mut other = object("Namespace", 0, 0, 0, 9);
    other["metadata"]["uid"] = json!("another");
    seen.add("Namespace", &manifest(&other));

    assert!(seen.at_home(&"home-0".to_owned())[0].labelled);
}
