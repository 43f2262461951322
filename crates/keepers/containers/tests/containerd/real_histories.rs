//! Twenty random histories on a real containerd and a real API server, against the same [model](model): the keeper runs
//! all the time, dies at any call, and its reads fail now and then; containerd restarts in between.

use crate::lab;
use crate::objects;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::support::faulty::Mortal;
use crate::support::model::{Known, RealPod, RealSandbox, Truth, learn, name};
use caretaker_containers::containerd::Containerd;
use caretaker_containers::subject::Container;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_keeper_testkit::{LIMIT, RunningKeeper};
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::faults::{Fault, Faults, Rates};
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use fastrand::Rng;
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use lab::{Lab, Outcome, STATES, State};
use objects::{Failable, NODE, Objects, WINDOW, start_on};
use serde_json::json;

/// Their seeds.
const HISTORIES: Range<u64> = 0..20;
/// Those on containerd 2.
const MORE: Range<u64> = 20..25;
const STEPS: usize = 14;
const AGENTS: [&str; 3] = ["a1", "a2", "a3"];
const BOXES: [&str; 3] = ["b1", "b2", "b3"];

pub fn tests() -> Vec<Trial> {
    let name = "what_the_table_keeps_is_never_touched_and_what_it_cleans_is_gone_in_the_end";
    let [_, on_second] = test_on_both(name, || histories(MORE));
    vec![test(name, Need::Containerd, || histories(HISTORIES)), on_second]
}

/// A container that was made.
struct Made {
    container: Container,
    state: State,
    /// Since when there are the states in which its agent ends it.
    known: Known,
    /// The table has asked for its removal at some moment.
    was_due: bool,
    /// containerd has restarted since.
    was_loaded: bool,
}

struct History<'l> {
    lab: &'l Lab,
    objects: &'l Objects,
    prefix: String,
    dice: Rng,
    truth: Truth,
    made: BTreeMap<String, Made>,
    /// How far the clock of the test is ahead of the machine's.
    ahead: SignedDuration,
    clock: Clock,
    hands: ClockHandle,
    keeper: Option<RunningKeeper>,
    log: Vec<String>,
}

impl History<'_> {
    fn pick(&mut self, all: &[&str]) -> String {
        let one = all[self.dice.usize(..all.len())];
        format!("{}-{one}", self.prefix)
    }

    /// The clock never shows less than the time of creation of a container.
    fn set_clock(&mut self) {
        self.truth.now = Timestamp::now() + SignedDuration::from_secs(1) + self.ahead;
        self.hands.set(self.truth.now);
    }

    /// What the table says at this moment is remembered.
    fn note(&mut self) {
        for made in self.made.values_mut() {
            learn(&mut made.known, self.truth.endings(&made.container.labels), self.truth.now);
            let reasons = self.truth.reasons(&made.container.labels, made.container.created, &made.known);
            made.was_due |= !reasons.is_empty();
        }
    }

    /// A new janitor; the one before is gone. Its calls to containerd may end with its death, those to the API server with
    /// an error.
    async fn start_janitor(&mut self, dies: bool) -> Outcome {
        self.keeper = None;
        let last = if dies { self.dice.usize(1..80) } else { usize::MAX };
        let mortal: Arc<dyn Containerd> = Arc::new(Mortal::new(self.lab.client.clone(), last, self.dice.bool()));
        let rates = Rates { calls: if dies { 150 } else { 0 }, faults: Fault::SURVIVABLE.to_vec(), ..Rates::default() };
        let client: Client = Faults::seeded(self.dice.u64(..), rates).client(shared().admin_config().await?)?;
        let file = self.lab.containerd().folder().join(format!("{}.json", self.prefix));
        self.keeper = Some(start_on(mortal, self.lab.host.clone(), &client, &file, self.clock.clone()));
        Ok(())
    }

    async fn add_agent(&mut self, agent: &str, node: &'static str) -> Outcome {
        let uid = self.objects.agent(agent, node).await?;
        self.truth
            .pods
            .insert(name(&self.objects.namespace, agent), RealPod { uid, phase: "Running", terminating: false, node });
        Ok(())
    }

    async fn add_sandbox(&mut self, sandbox: &str, agent: &str) -> Outcome {
        let status = json!({ "phase": "Running", "assignedPod": agent, "nodeName": NODE });
        let (uid, assigned_pod) = (self.objects.sandbox(sandbox, status).await?, agent.to_owned());
        let made = RealSandbox { uid, phase: "Running", assigned_pod, ..RealSandbox::default() };
        self.truth.sandboxes.insert(name(&self.objects.namespace, sandbox), made);
        Ok(())
    }

    /// Two agents, each with a Sandbox that has a container.
    async fn begin(&mut self) -> Outcome {
        for (agent, sandbox) in AGENTS.iter().zip(BOXES).take(2) {
            let (agent, sandbox) = (format!("{}-{agent}", self.prefix), format!("{}-{sandbox}", self.prefix));
            self.add_agent(&agent, NODE).await?;
            self.add_sandbox(&sandbox, &agent).await?;
            self.make_container(&agent, &sandbox).await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Outcome {
        let (agent, sandbox) = (self.pick(&AGENTS), self.pick(&BOXES));
        let (pod, place) = (name(&self.objects.namespace, &agent), name(&self.objects.namespace, &sandbox));
        let what = self.dice.u8(..20);
        self.log.push(format!("{what} {agent} {sandbox}"));
        match what {
            0..=2 if !self.truth.pods.contains_key(&pod) => {
                let node = if self.dice.u8(..6) == 0 { "node-2" } else { NODE };
                self.add_agent(&agent, node).await?;
            }
            3 | 4 if self.truth.pods.get(&pod).is_some_and(|pod| !pod.terminating) => {
                self.objects.remove_agent(&agent).await?;
                self.truth.pods.remove(&pod);
            }
            5 => self.terminate(&agent).await?,
            6 if self.truth.pods.get(&pod).is_some_and(|pod| !pod.terminating) => {
                let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
                self.objects.pods().patch_status(&agent, &PatchParams::default(), &failed).await?;
                self.truth.pods.get_mut(&pod).unwrap().phase = "Failed";
            }
            7 | 8 if !self.truth.sandboxes.contains_key(&place) => {
                self.add_sandbox(&sandbox, &agent).await?;
            }
            9 if self.truth.sandboxes.remove(&place).is_some() => {
                self.objects.sandboxes().delete(&sandbox, &DeleteParams::default()).await?;
            }
            10 | 11 if self.truth.sandboxes.contains_key(&place) => {
                let phase = ["Running", "Bound", "Expired", "Pending"][self.dice.usize(..4)];
                let id = format!("{sandbox}-{}", self.dice.u8(..2));
                let status = json!({ "phase": phase, "assignedPod": agent, "sandboxID": id });
                let patch = Patch::Merge(json!({ "status": status }));
                self.objects.sandboxes().patch(&sandbox, &PatchParams::default(), &patch).await?;
                let known = self.truth.sandboxes.get_mut(&place).unwrap();
                (known.phase, known.assigned_pod, known.sandbox_id) = (phase, agent, id);
            }
            12..=15 => self.make_container(&agent, &sandbox).await?,
            16 => {
                self.ahead += [SignedDuration::from_mins(10), WINDOW][self.dice.usize(..2)];
                self.set_clock();
            }
            17 => self.start_janitor(true).await?,
            18 => {
                self.lab.containerd().start_again().await?;
                self.made.values_mut().for_each(|made| made.was_loaded = true);
            }
            _ => {}
        }
        self.note();
        Ok(())
    }

    /// It stays Terminating: something holds it.
    async fn terminate(&mut self, agent: &str) -> Outcome {
        let Some(pod) = self.truth.pods.get_mut(&name(&self.objects.namespace, agent)).filter(|pod| !pod.terminating)
        else {
            return Ok(());
        };
        let hold = Patch::Merge(json!({ "metadata": { "finalizers": ["test.dev/hold"] } }));
        self.objects.pods().patch(agent, &PatchParams::default(), &hold).await?;
        self.objects.remove_agent(agent).await?;
        pod.terminating = true;
        Ok(())
    }

    async fn make_container(&mut self, agent: &str, sandbox: &str) -> Outcome {
        let id = format!("{sandbox}-{}", self.dice.u8(..2));
        if self.made.contains_key(&id) {
            return Ok(());
        }
        let uid = self
            .truth
            .pods
            .get(&name(&self.objects.namespace, agent))
            .map_or("never".to_owned(), |pod| pod.uid.clone());
        let mut labels = self.objects.owned(agent, &uid, sandbox);
        labels.insert("fast-sandbox.io/id".to_owned(), id.clone());
        if let Some(known) =
            self.truth.sandboxes.get(&name(&self.objects.namespace, sandbox)).filter(|_| self.dice.bool())
        {
            labels.insert("fast-sandbox.io/claim-uid".to_owned(), known.uid.clone());
        }
        let optional = ["managed", "agent-uid", "agent-name", "namespace", "sandbox-name"];
        if self.dice.u8(..4) == 0 {
            labels.remove(&format!("fast-sandbox.io/{}", optional[self.dice.usize(..optional.len())]));
        }
        let state = STATES[self.dice.usize(..STATES.len())];
        // The clock is behind until the container is whole: it was created in the future, and is kept.
        self.hands.set(Timestamp::now() - SignedDuration::from_secs(1));
        self.lab.create(&id, &labels, state).await?;
        let container = self.lab.get(&id).await.ok_or("it was kept")?;
        self.made.insert(id, Made { container, state, known: Known::new(), was_due: false, was_loaded: false });
        self.set_clock();
        Ok(())
    }

    /// A janitor that lives, past the window: what must go is gone, what was never due is as it was made.
    async fn end(&mut self) -> Failable<usize> {
        self.start_janitor(false).await?;
        self.ahead += WINDOW + SignedDuration::from_mins(1);
        self.set_clock();
        self.note();
        // This janitor has seen nothing before: agents have the whole grace once more.
        self.ahead += self.truth.grace + SignedDuration::from_secs(1);
        self.truth.now += self.truth.grace + SignedDuration::from_secs(1);
        self.note();
        let keeper = self.keeper.as_ref().unwrap();
        let (mut gone, mut later) = (0, self.truth.now);
        for (id, made) in &self.made {
            if self.truth.reasons(&made.container.labels, made.container.created, &made.known).is_empty() {
                continue;
            }
            gone += 1;
            until(&format!("{id} to be gone"), LIMIT * 2, async || {
                later += self.truth.grace + SignedDuration::from_secs(1);
                self.hands.set(later);
                let left = self.lab.traces(&made.container).await;
                let shown = || format!("{left:?} {:?} {:?}", keeper.health.blockers(), keeper.journal.outcomes());
                Ok(if left.is_empty() { Ok(()) } else { Err(shown()) })
            })
            .await?;
        }
        self.keeper.take().unwrap().stop().await;
        for (id, made) in self.made.iter().filter(|(_, made)| !made.was_due) {
            // containerd 2 itself deletes a task that has ended when it starts.
            let has_task = self.lab.client.task(id).await?.is_some();
            let is_deleted = made.state == State::Stopped && made.was_loaded && !has_task;
            let state = if is_deleted { State::NoTask } else { made.state };
            assert!(self.lab.is_untouched(id, state).await, "{id} was never due");
        }
        for made in self.made.values() {
            if let Some(left) = self.lab.get(&made.container.id).await {
                self.lab.cleaner().clean(&left, self.truth.now).await?;
            }
        }
        Ok(gone)
    }
}

async fn histories(seeds: Range<u64>) -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "histories").await?;
    let (mut gone, mut kept) = (0, 0);
    let count = usize::try_from(seeds.end - seeds.start)?;
    for seed in seeds {
        let now = Timestamp::now();
        let (clock, hands) = Clock::manual(now);
        let mut history = History {
            lab: &lab,
            objects: &objects,
            prefix: format!("h{seed}"),
            dice: Rng::with_seed(seed),
            truth: Truth::new(NODE, now, WINDOW),
            made: BTreeMap::new(),
            ahead: SignedDuration::ZERO,
            clock,
            hands,
            keeper: None,
            log: Vec::new(),
        };
        history.begin().await?;
        history.start_janitor(true).await?;
        for _ in 0..STEPS {
            let done = history.step().await;
            done.map_err(|error| format!("history {seed}: {error}; {:?}", history.log))?;
        }
        let cleaned = history.end().await.map_err(|error| format!("history {seed}: {error}; {:?}", history.log))?;
        (gone, kept) = (gone + cleaned, kept + history.made.len() - cleaned);
    }
    assert!(gone > count && kept > count / 2, "the histories clean {gone} and keep {kept}");
    Ok(())
}
