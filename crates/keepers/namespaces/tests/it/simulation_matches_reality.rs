//! What is simulated is what happens: a simulation of 50 random namespaces, and the same run on a
//! real API server under a clock that only the test moves.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::context::list_subjects;
use crate::support::in_process::{InProcessOperator, LIMIT};
use crate::support::objects::Objects;
use caretaker_core::limits::{Ledger, Limits};
use caretaker_core::simulate::{ExternalChange, Simulation};
use caretaker_core::{Action as _, SignedDuration, Timestamp};
use caretaker_engine::Cache as _;
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_namespaces::attribution::ActivityAt;
use caretaker_namespaces::subject::{Policy, Subject, World};
use caretaker_namespaces::{Namespaces, api};
use caretaker_testkit::make::{
    Said, Scaled, activity_status, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace, mk_stateful_set,
};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};
use serde_json::json;

const NAMESPACES: usize = 50;
const HOURS: i64 = 36;
/// Minimum time between two events of one namespace.
const APART: SignedDuration = SignedDuration::from_mins(60);
/// The clock moves by at most so many minutes at once: so late may a namespace fall asleep.
const STEP: i64 = 10;
/// So much later than in the simulation everything is done: a deletion counts from a sleep that was
/// late, and its announcement too. It is less than [`APART`], so the order is the same.
const LAG: SignedDuration = SignedDuration::from_mins(3 * STEP);
/// A namespace whose label is changed to a new invalid value to see how far the keeper is.
const PROBE: &str = "probe";

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

fn policy() -> Policy {
    // As long as possible, so that there is time between an announcement and the deletion.
    Policy { deletion_notice: Policy::MAX_DELETION_NOTICE, ..Policy::default() }
}

fn used_at(at: Timestamp) -> String {
    activity_status(at)
}

/// What happens to a subject, in order: when, under which rule, what.
type Story = Vec<(Timestamp, String, String)>;

fn activity(minutes_of_use: &[i64], subject: usize) -> impl Iterator<Item = ActivityAt> {
    minutes_of_use.iter().map(move |m| ActivityAt { at: minutes(*m), subject, who: None })
}

fn simulate(subjects: Vec<Subject>, uses: &[ActivityAt]) -> (Vec<Story>, Vec<Option<Subject>>) {
    let mut stories = vec![Story::new(); subjects.len()];
    let keeper = Namespaces::new(policy(), None);
    // The annotations that the samples begin with were written by another program, and it goes on.
    let world = World { policy: keeper.policy().clone(), last_report: Some(start()), ..World::default() };
    let changes: Vec<ExternalChange<Subject>> = uses.iter().map(ActivityAt::change).collect();
    let mut simulation = Simulation::new(&keeper, world, subjects, Limits::default(), Ledger::default(), start());
    for event in simulation.run(minutes(HOURS * 60), &changes) {
        let (Some(i), Some(action)) = (event.subject, event.action) else { continue };
        stories[i].push((event.at, event.rule.name().to_owned(), action.name().to_owned()));
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
    let mut objects = Objects::default();
    objects.apply("Namespace", &object);
    objects.cache().subjects().remove(0)
}

/// Always the same fifty; another number gives another fifty.
fn plans() -> Vec<Plan> {
    let seed = std::env::var("AGREE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let config = Config { rng_seed: RngSeed::Fixed(seed), rng_algorithm: RngAlgorithm::ChaCha, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let mut plans = Vec::new();
    while plans.len() < NAMESPACES {
        let plan = any_plan().new_tree(&mut runner).unwrap().current();
        let uses: Vec<ActivityAt> = activity(&plan.uses, 0).collect();
        let (stories, _) = simulate(vec![subject_of(&plan)], &uses);
        if lies_apart(&stories[0], &plan.uses) {
            plans.push(plan);
        }
    }
    plans
}

async fn create_sample(client: &Client, name: &str, plan: &Plan) {
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
fn described(subject: &Subject) -> Vec<String> {
    let mut words = vec![subject.state().to_string()];
    words.extend(subject.workloads.iter().map(ToString::to_string));
    words
}

async fn subjects(client: &Client) -> Vec<Subject> {
    let all = list_subjects(client).await;
    all.into_iter().filter(|s| s.name.starts_with("random-") && s.inactive.is_none()).collect()
}

/// Every time to which the clock moves, and the subjects that are used then.
fn moments(uses: &[ActivityAt]) -> BTreeMap<Timestamp, Vec<usize>> {
    let steps = (0..=HOURS * 60).step_by(usize::try_from(STEP).unwrap());
    let mut moments: BTreeMap<Timestamp, Vec<usize>> = steps.map(|minute| (minutes(minute), Vec::new())).collect();
    for u in uses {
        moments.entry(u.at).or_default().push(u.subject);
    }
    moments
}

/// The keeper under a clock that stands still until the keeper has done all that is due: it makes no
/// difference how long the machine takes.
struct Run<'a> {
    operator: InProcessOperator,
    clock_handle: ClockHandle,
    namespaces: Api<Namespace>,
    pods: Api<Pod>,
    names: &'a [String],
    expected: &'a [Story],
    probes: usize,
}

impl<'a> Run<'a> {
    async fn start(client: Client, names: &'a [String], expected: &'a [Story]) -> Self {
        let (clock, clock_handle) = Clock::manual(start());
        let operator = InProcessOperator::start(&client, clock, Duration::from_mins(10), policy());
        let (namespaces, pods): (Api<Namespace>, Api<Pod>) = (Api::all(client.clone()), Api::all(client));
        namespaces.create(&PostParams::default(), &mk_namespace(PROBE)).await.unwrap();
        Self { operator, clock_handle, namespaces, pods, names, expected, probes: 0 }
    }

    /// Moves the clock, has the subjects used, and waits until the keeper has judged everything as of
    /// then and has done what it may not be later with.
    async fn advance(&mut self, at: Timestamp, used: &[usize]) {
        self.pods_end().await;
        self.clock_handle.set(at);
        for subject in used {
            let patch = json!({ "metadata": { "annotations": { api::ACTIVITY: used_at(at) } } });
            // It may be gone; a use of what is gone is none in the simulation either.
            let _ = self.namespaces.patch(&self.names[*subject], &PatchParams::default(), &Patch::Merge(patch)).await;
        }
        self.probe(at).await;
        until(&format!("what was simulated {LAG} before {at} to be done"), LIMIT, async || {
            let mut done: BTreeMap<String, usize> = BTreeMap::new();
            self.operator.done().into_iter().for_each(|(name, ..)| *done.entry(name).or_default() += 1);
            let lacking = self.names.iter().zip(self.expected).find(|(name, story)| {
                let simulated = story.iter().filter(|(then, ..)| *then + LAG < at).count();
                done.get(*name).copied().unwrap_or_default() < simulated
            });
            Ok(lacking.map_or(Ok(()), |(name, story)| Err(format!("{name}: simulated {story:?}"))))
        })
        .await
        .unwrap();
    }

    /// Waits until the controllers have deleted the pods of what is asleep: hours pass in a moment here, and a deletion
    /// waits for them.
    async fn pods_end(&self) {
        until("the pods of what is asleep to end", LIMIT, async || {
            let asleep = ListParams::default().labels(&format!("{}=sleep", api::STATE));
            let asleep = self.namespaces.list(&asleep).await.unwrap();
            let asleep: Vec<String> = asleep.iter().map(ResourceExt::name_any).collect();
            let pods = self.pods.list_metadata(&ListParams::default()).await.unwrap();
            let left: Vec<String> = pods.iter().filter_map(ResourceExt::namespace).collect();
            let left: Vec<&String> = left.iter().filter(|namespace| asleep.contains(namespace)).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("pods in {left:?}")) })
        })
        .await
        .unwrap();
    }

    /// Waits until the keeper has judged what was written before. A watch tells of changes in their
    /// order, so what it says of the probe is later than all of that.
    async fn probe(&mut self, at: Timestamp) {
        self.probes += 1;
        let label = json!({ "metadata": { "labels": { api::SLEEP_AFTER: format!("probe-{}", self.probes) } } });
        self.namespaces.patch(PROBE, &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
        until(&format!("the keeper to judge as of {at}"), LIMIT, async || {
            let entries = self.operator.entries_of(PROBE).len();
            Ok(if entries == self.probes { Ok(()) } else { Err(format!("{entries} of {} probes", self.probes)) })
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn a_simulation_of_fifty_namespaces_agrees_with_what_happens() {
    let plans = plans();
    let cluster = Cluster::builder().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("caretaker-system")).await.unwrap();
    for (i, plan) in plans.iter().enumerate() {
        create_sample(&client, &format!("random-{i:02}"), plan).await;
    }
    let before = subjects(&client).await;
    assert_eq!(before.len(), NAMESPACES);
    let names: Vec<String> = before.iter().map(|s| s.name.clone()).collect();
    let mut uses: Vec<ActivityAt> = Vec::new();
    for (subject, plan) in plans.iter().enumerate() {
        uses.extend(activity(&plan.uses, subject));
    }
    uses.sort_by_key(|u| u.at);

    let (expected, ends) = simulate(before, &uses);

    let mut run = Run::start(client.clone(), &names, &expected).await;
    for (at, used) in moments(&uses) {
        run.advance(at, &used).await;
    }
    let operator = run.operator;
    let mut real: BTreeMap<String, Story> = BTreeMap::new();
    for (name, at, rule, action) in operator.done() {
        real.entry(name).or_default().push((at, rule, action));
    }
    operator.stop().await;

    let words = |story: &Story| story.iter().map(|(_, rule, action)| format!("{rule} {action}")).collect::<Vec<_>>();
    for (name, expected) in names.iter().zip(&expected) {
        let real = real.remove(name).unwrap_or_default();
        assert_eq!(words(&real), words(expected), "{name}: simulated {expected:?}, real {real:?}");
        let early = real.iter().zip(expected).find(|(real, simulated)| real.0 < simulated.0);
        assert_eq!(early, None, "{name}: nothing is done before its time");
    }
    let after: BTreeMap<String, Subject> = subjects(&client).await.into_iter().map(|s| (s.name.clone(), s)).collect();
    for (name, end) in names.iter().zip(&ends) {
        assert_eq!(after.get(name).map(described), end.as_ref().map(described), "{name}");
    }
    let happened: usize = expected.iter().map(Vec::len).sum();
    let count = |action: &str| expected.iter().flatten().filter(|(.., a)| a == action).count();
    let counts = ["sleep", "wake", "announce", "delete"].map(count);
    assert!(happened > 100 && counts.iter().all(|count| *count > 5), "{happened} events, {counts:?}");
}
