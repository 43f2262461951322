//! What is rehearsed is what happens: a simulation of 50 random namespaces, and the same run on a
//! real API server under a clock that runs an hour in a second.

mod works;

use caretaker_engine::keep::Index as _;
use std::collections::BTreeMap;
use std::time::Duration;

use caretaker_core::limits::{Limits, Ledger};
use caretaker_core::simulate::{Simulation, Use};
use caretaker_core::{Action as _, SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_engine::keep::observe;
use caretaker_namespaces::subject::{Kind, Policy, Subject, World};
use caretaker_namespaces::{Namespaces, api};
use caretaker_testkit::Cluster;
use caretaker_testkit::make::{Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace, mk_stateful_set};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};
use serde_json::json;
use works::Working;

const NAMESPACES: usize = 50;
/// An hour in a second.
const SPEED: f64 = 3_600.0;
const HOURS: i64 = 36;
/// What happens to one namespace lies at least so far apart, so that a second of a busy machine does
/// not change the order.
const APART: SignedDuration = SignedDuration::from_mins(60);

/// Later than any namespace that is made here: nothing counts that is said about an earlier time.
fn start() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

fn minutes(count: i64) -> Timestamp {
    start() + SignedDuration::from_mins(count)
}

/// A namespace as its owner made it, and when it is used.
#[derive(Debug, Clone)]
struct Plan {
    sleep_after: Option<i64>,
    delete_after: Option<i64>,
    used: i64,
    uses: Vec<i64>,
    deployments: Vec<i32>,
    others: [bool; 3],
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let uses = proptest::collection::vec(60..HOURS * 60, 0..7);
    let labels = (proptest::option::weighted(0.9, 2_i64..16), proptest::option::weighted(0.6, 6_i64..60));
    let workloads = (proptest::collection::vec(0..5_i32, 0..3), any::<[bool; 3]>());
    (labels, -300..0_i64, uses, workloads).prop_map(
        |((sleep_after, delete_after), used, uses, (deployments, others))| Plan {
            sleep_after,
            delete_after,
            used,
            uses,
            deployments,
            others,
        },
    )
}

fn world() -> World {
    // As long as may be, so that an announcement and what it announces lie apart.
    World { policy: Policy { announce: Policy::MOST_ANNOUNCE, ..Policy::default() }, ..World::default() }
}

fn used_at(at: Timestamp) -> String {
    json!({ "LastActivityTime": at.to_string(), "ActionBy": "ListPods", "UserInfo": { "name": "ann", "uid": "" } })
        .to_string()
}

/// What happens to a subject, in order: when, under which rule, what.
type Story = Vec<(Timestamp, String, String)>;

fn simulate(subjects: Vec<Subject>, uses: &[Use]) -> (Vec<Story>, Vec<Option<Subject>>) {
    let mut stories = vec![Story::new(); subjects.len()];
    let limits = Limits::default();
    let mut simulation = Simulation::<Namespaces>::new(world(), subjects, limits, Ledger::default(), start());
    for event in simulation.run(minutes(HOURS * 60), uses) {
        let (Some(i), Some(action)) = (event.subject, event.action) else { continue };
        stories[i].push((event.at, event.rule.to_owned(), action.name().to_owned()));
    }
    (stories, simulation.subjects)
}

/// Whether no two things that happen to it, and neither of them and the end, lie close together. A
/// use and the wake that it causes are one thing.
fn lies_apart(story: &Story, uses: &[i64]) -> bool {
    let mut times: Vec<Timestamp> = story.iter().map(|(at, ..)| *at).chain(uses.iter().map(|m| minutes(*m))).collect();
    times.push(minutes(HOURS * 60));
    times.sort_unstable();
    times.dedup();
    times.windows(2).all(|pair| pair[1].duration_since(pair[0]) >= APART)
}

/// The subject that this plan makes, without a cluster.
fn subject_of(plan: &Plan) -> Subject {
    let mut labels = json!({});
    for (key, hours) in [(api::SLEEP_AFTER, plan.sleep_after), (api::DELETE_AFTER, plan.delete_after)] {
        if let Some(hours) = hours {
            labels[key] = json!(format!("{hours}h"));
        }
    }
    let annotations = json!({ api::ACTIVITY: used_at(minutes(plan.used)) });
    let object = json!({ "metadata": { "name": "x", "labels": labels, "annotations": annotations } });
    caretaker_namespaces::observe::subject(Kind::Namespace, &serde_json::from_value(object).unwrap())
}

/// Always the same fifty; another number gives another fifty.
fn plans() -> Vec<Plan> {
    let seed = std::env::var("AGREE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let config = Config { rng_seed: RngSeed::Fixed(seed), rng_algorithm: RngAlgorithm::ChaCha, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let mut plans = Vec::new();
    while plans.len() < NAMESPACES {
        let plan = any_plan().new_tree(&mut runner).unwrap().current();
        let uses: Vec<Use> = plan.uses.iter().map(|m| Use { at: minutes(*m), subject: 0 }).collect();
        let (stories, _) = simulate(vec![subject_of(&plan)], &uses);
        if lies_apart(&stories[0], &plan.uses) {
            plans.push(plan);
        }
    }
    plans
}

async fn furnish(client: &Client, name: &str, plan: &Plan) {
    let post = PostParams::default();
    let mut namespace = mk_namespace(name).annotation(api::ACTIVITY, &used_at(minutes(plan.used)));
    for (key, hours) in [(api::SLEEP_AFTER, plan.sleep_after), (api::DELETE_AFTER, plan.delete_after)] {
        if let Some(hours) = hours {
            namespace = namespace.label(key, &format!("{hours}h"));
        }
    }
    Api::all(client.clone()).create(&post, &namespace).await.unwrap();
    for (i, replicas) in plan.deployments.iter().enumerate() {
        let deployment = mk_deployment(name, &format!("web-{i}")).replicas(*replicas);
        Api::namespaced(client.clone(), name).create(&post, &deployment).await.unwrap();
    }
    let [db, agent, nightly] = plan.others;
    if db {
        Api::namespaced(client.clone(), name).create(&post, &mk_stateful_set(name, "db").replicas(2)).await.unwrap();
    }
    if agent {
        Api::namespaced(client.clone(), name).create(&post, &mk_daemon_set(name, "agent")).await.unwrap();
    }
    if nightly {
        Api::namespaced(client.clone(), name).create(&post, &mk_cron_job(name, "nightly")).await.unwrap();
    }
}

/// How a subject ends, in words, without what differs between two runs.
fn told(subject: &Subject) -> Vec<String> {
    let mut words = vec![subject.state().to_string()];
    words.extend(subject.workloads.iter().map(ToString::to_string));
    words
}

async fn subjects(client: &Client) -> Vec<Subject> {
    let all = observe::<Namespaces>(client).await.unwrap().subjects();
    all.into_iter().filter(|s| s.name.starts_with("random-") && s.inactive.is_none()).collect()
}

#[tokio::test]
async fn a_simulation_of_fifty_namespaces_agrees_with_what_happens() {
    let plans = plans();
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    for (i, plan) in plans.iter().enumerate() {
        furnish(&client, &format!("random-{i:02}"), plan).await;
    }
    let before = subjects(&client).await;
    assert_eq!(before.len(), NAMESPACES);
    let names: Vec<String> = before.iter().map(|s| s.name.clone()).collect();
    let mut uses: Vec<Use> = Vec::new();
    for (subject, plan) in plans.iter().enumerate() {
        uses.extend(plan.uses.iter().map(|m| Use { at: minutes(*m), subject }));
    }
    uses.sort_by_key(|u| u.at);

    let (expected, ends) = simulate(before, &uses);

    let clock = Clock::sped_up(start(), SPEED);
    let working = Working::start(&client, clock.clone(), Duration::from_mins(10), world());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for u in &uses {
        clock.over(Some(u.at)).await;
        let patch = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(u.at) } } });
        // It may be gone; a use of what is gone is none in the simulation either.
        let _ = namespaces.patch(&names[u.subject], &PatchParams::default(), &Patch::Merge(patch)).await;
    }
    clock.over(Some(minutes(HOURS * 60))).await;
    let mut real: BTreeMap<String, Story> = BTreeMap::new();
    for (name, at, rule, action) in working.done() {
        real.entry(name).or_default().push((at, rule, action));
    }
    working.stop().await;

    let words = |story: &Story| story.iter().map(|(_, rule, action)| format!("{rule} {action}")).collect::<Vec<_>>();
    for (name, expected) in names.iter().zip(&expected) {
        let real = real.remove(name).unwrap_or_default();
        assert_eq!(words(&real), words(expected), "{name}: simulated {expected:?}, real {real:?}");
        let early = real.iter().zip(expected).find(|(real, simulated)| real.0 < simulated.0);
        assert_eq!(early, None, "{name}: nothing is done before its time");
    }
    let after: BTreeMap<String, Subject> = subjects(&client).await.into_iter().map(|s| (s.name.clone(), s)).collect();
    for (name, end) in names.iter().zip(&ends) {
        assert_eq!(after.get(name).map(told), end.as_ref().map(told), "{name}");
    }
    let happened: usize = expected.iter().map(Vec::len).sum();
    let count = |action: &str| expected.iter().flatten().filter(|(.., a)| a == action).count();
    let counts = ["sleep", "wake", "announce", "delete"].map(count);
    assert!(happened > 100 && counts.iter().all(|count| *count > 5), "{happened} happenings, {counts:?}");
}
