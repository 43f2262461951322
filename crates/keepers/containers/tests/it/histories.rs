//! A thousand random histories: agents and Sandboxes come, go, fail and move, containers come again under their IDs,
//! watches lag, reads fail, the clock jumps, and the janitor dies at any call.
//!
//! The cache, the rules, the confirmation and the cleaning are the real ones; containerd and the API server are in
//! memory. Every call that changes a container is compared with the [model](model) at that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::faulty::Mortal;
use crate::support::memory::{InMemory, Records};
use crate::support::model::api::{ModelApi, State, WRONGS};
use crate::support::model::{Evidence, Known, RealPod, RealSandbox, Truth, learn, name};
use crate::support::once::{Remembered, once};
use caretaker_containers::api::FIFO_LABELS;
use caretaker_containers::containerd::{Task, TaskStatus};
use caretaker_containers::controller::scan;
use caretaker_containers::host::Host;
use caretaker_containers::observe::Row;
use caretaker_containers::subject::Container;
use caretaker_containers::{Containers, Settings};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::{Change, Observed};
use fastrand::Rng;
use rstest::rstest;
use rustix::fs::{CWD, FileType, Mode, mknodat};

const NODE: &str = "node-1";
const WINDOW: SignedDuration = SignedDuration::from_secs(60);
const IDS: [&str; 6] = ["sb-1", "sb-10", "sb-100", "sb-2", "sb-1.1", "sb-1-stdin"];
const AGENTS: [&str; 3] = ["agent-1", "agent-2", "agent-3"];
const BOXES: [&str; 3] = ["box-1", "box-2", "box-3"];
const SPACES: [&str; 2] = ["shop", "farm"];

/// A container at a moment: another one of its ID is another container.
type Life = (String, Option<Timestamp>);

/// What was found wrong, and which containers were rightly touched.
#[derive(Default)]
struct Findings {
    wrong: Vec<String>,
    touched: BTreeSet<Life>,
    /// What this process was told about the ends of containers.
    known: BTreeMap<Life, Known>,
}

struct History {
    dice: Rng,
    memory: Arc<InMemory>,
    api: ModelApi,
    host: Arc<Host>,
    findings: Arc<Mutex<Findings>>,
    /// What the last scan found; a round may begin with an old one.
    scanned: Vec<Change<Row>>,
    remembered: Remembered,
    uids: u32,
}

fn begin() -> Timestamp {
    "2036-01-10T00:00:00Z".parse().unwrap()
}

fn said<'l>(labels: &'l BTreeMap<String, String>, key: &str) -> &'l str {
    labels.get(&format!("fast-sandbox.io/{key}")).map_or("", String::as_str)
}

/// Whether the API server has truly answered about what a removal rests on, in this round.
fn is_answered(state: &State, labels: &BTreeMap<String, String>, evidence: Evidence) -> bool {
    let (kind, name) = match evidence {
        Evidence::Agent => ("pods", said(labels, "agent-name")),
        Evidence::Sandbox => ("sandboxes", said(labels, "sandbox-name")),
    };
    let one = format!("{kind}/{}/{name}", said(labels, "namespace"));
    state.answered.contains(&one) || state.answered.contains(kind)
}

/// Compares a call that changes a container with the model.
fn judge_touch(call: &str, id: &str, records: &Records, api: &ModelApi, host: &Host, findings: &Mutex<Findings>) {
    let mut findings = findings.lock().unwrap();
    let Some(container) = records.containers.get(id) else {
        findings.wrong.push(format!("{call} of {id}, which has no record"));
        return;
    };
    let state = api.0.lock().unwrap();
    let known = findings.known.get(&(id.to_owned(), container.created)).cloned().unwrap_or_default();
    let reasons = state.truth.reasons(&container.labels, container.created, &known);
    if reasons.is_empty() {
        findings.wrong.push(format!("{call} of {id}, which the table keeps: {container:?}"));
    } else if !reasons.iter().any(|reason| is_answered(&state, &container.labels, *reason)) {
        findings.wrong.push(format!("{call} of {id} without a live answer: {:?}", state.answered));
    }
    let key = format!("{id}-snapshot");
    let left =
        records.tasks.contains_key(id) || records.snapshots.contains(&key) || !host.fifos(id).unwrap().is_empty();
    if call == "delete_container" && left {
        findings.wrong.push(format!("the record of {id} goes before the rest"));
    }
    findings.touched.insert((id.to_owned(), container.created));
}

/// Makes a container with everything, as an agent does.
fn make_container(memory: &InMemory, host: &Host, dice: &mut Rng, container: Container) {
    use TaskStatus::{Created, Paused, Running, Stopped, Unknown};

    let id = container.id.clone();
    let folder = host.fifo_root.join(format!("r{:08x}", dice.u32(..)));
    std::fs::create_dir_all(&folder).unwrap();
    let fifos = ["-stdin", "-stdout", "-stderr"].map(|suffix| {
        let path = folder.join(format!("{id}{suffix}"));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        path.display().to_string()
    });
    let mut records = memory.records();
    records.snapshots.insert(container.snapshot_key.clone());
    records.containers.insert(id.clone(), container);
    if let Some(status) = [Created, Running, Running, Paused, Stopped, Unknown].get(dice.usize(..8)) {
        records.tasks.insert(id, Task { status: *status, fifos });
    }
}

/// Removes a container with everything, as its agent does.
fn unmake_container(memory: &InMemory, host: &Host, id: &str) {
    let mut records = memory.records();
    records.containers.remove(id);
    records.tasks.remove(id);
    records.snapshots.remove(&format!("{id}-snapshot"));
    host.remove_fifos(id, &[]).unwrap();
}

impl History {
    fn new(seed: u64, folder: &Path) -> Self {
        let none = folder.join("none");
        let host = Host {
            fifo_root: folder.join(format!("fifo-{seed}")),
            state: none.clone(),
            proc: folder.join("proc"),
            cgroups: none,
            ..Host::default()
        };
        let (memory, host) = (Arc::new(InMemory::default()), Arc::new(host));
        let api = ModelApi::new(Truth::new(NODE, begin(), WINDOW));
        let findings: Arc<Mutex<Findings>> = Arc::default();
        let told = (api.clone(), host.clone(), findings.clone());
        *memory.on_touch.lock().unwrap() =
            Some(Box::new(move |call, id, records| judge_touch(call, id, records, &told.0, &told.1, &told.2)));
        let dice = Rng::with_seed(seed);
        let (scanned, remembered) = (Vec::new(), Remembered::new());
        Self { dice, memory, api, host, findings, scanned, remembered, uids: 0 }
    }

    fn pick<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.dice.usize(..all.len())]
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }

    /// Something happens in the cluster.
    fn change_cluster(&mut self) {
        let (space, agent, sandbox) = (self.pick(&SPACES), self.pick(&AGENTS), self.pick(&BOXES));
        let (agent, sandbox, uid) = (name(space, agent), name(space, sandbox), self.uid());
        let other = self.pick(&AGENTS).to_owned();
        let id = self.pick(&IDS).to_owned();
        let (what, node) = (self.dice.u8(..15), if self.dice.u8(..8) == 0 { "node-2" } else { NODE });
        let phase = ["Pending", "Bound", "Running", "Running", "Expired", "Failed"][self.dice.usize(..6)];
        let mut state = self.api.0.lock().unwrap();
        let truth = &mut state.truth;
        match what {
            0..=2 => {
                truth.pods.entry(agent).or_insert(RealPod { uid, phase: "Running", terminating: false, node });
            }
            3 => _ = truth.pods.remove(&agent),
            4 => {
                if let Some(pod) = truth.pods.get_mut(&agent) {
                    pod.terminating = true;
                }
            }
            5 => {
                let phase = if uid.len() % 2 == 0 { "Failed" } else { "Succeeded" };
                if let Some(pod) = truth.pods.get_mut(&agent) {
                    pod.phase = phase;
                }
            }
            6..=8 => {
                let made = RealSandbox { uid, phase, assigned_pod: agent.1, sandbox_id: id, terminating: false };
                truth.sandboxes.entry(sandbox).or_insert(made);
            }
            9 => _ = truth.sandboxes.remove(&sandbox),
            10 => {
                if let Some(one) = truth.sandboxes.get_mut(&sandbox) {
                    one.terminating = true;
                }
            }
            11 | 12 => {
                if let Some(one) = truth.sandboxes.get_mut(&sandbox) {
                    (one.phase, one.assigned_pod, one.sandbox_id) = (phase, other.clone(), id.clone());
                }
            }
            13 => {
                truth.served = !truth.served;
                if !truth.served {
                    truth.sandboxes.clear();
                }
            }
            _ => {
                truth.ending = !truth.ending;
                if truth.ending {
                    truth.sandboxes.clear();
                }
            }
        }
    }

    /// The watches deliver everything, or one kind.
    fn deliver(&mut self) {
        let what = self.dice.u8(..4);
        let mut state = self.api.0.lock().unwrap();
        let State { truth, delivered, .. } = &mut *state;
        if what != 1 {
            delivered.pods.clone_from(&truth.pods);
        }
        if what != 2 {
            delivered.sandboxes.clone_from(&truth.sandboxes);
            delivered.served = truth.served;
        }
        if what != 3 {
            (delivered.ending, delivered.doubted) = (truth.ending, truth.doubted);
        }
    }

    /// The clock of the node moves, now and then back.
    fn move_clock(&mut self) {
        let seconds = [1, 10, 30, 59, 60, 61, 90, -15][self.dice.usize(..8)];
        self.api.0.lock().unwrap().truth.now += SignedDuration::from_secs(seconds);
    }

    /// A container of an agent and a Sandbox that are there, or were, or never were; some labels are missing or empty.
    fn new_container(&mut self, id: &str) -> Container {
        let (space, agent, sandbox) = (self.pick(&SPACES), self.pick(&AGENTS), self.pick(&BOXES));
        let (pod, claim, now) = {
            let truth = &self.api.0.lock().unwrap().truth;
            let claim = truth.sandboxes.get(&name(space, sandbox)).map(|found| found.uid.clone());
            (truth.pods.get(&name(space, agent)).map(|pod| pod.uid.clone()), claim, truth.now)
        };
        let agent_uid = pod.unwrap_or_else(|| format!("uid-{}", self.dice.u32(..=self.uids)));
        let claim = claim.filter(|_| self.dice.bool()).unwrap_or_default();
        let mut labels: BTreeMap<String, String> = BTreeMap::new();
        for (key, value) in [
            ("managed", "true"),
            ("agent-uid", &agent_uid),
            ("agent-name", agent),
            ("namespace", space),
            ("sandbox-name", sandbox),
            ("claim-uid", &claim),
            ("id", id),
        ] {
            let value = match self.dice.u8(..40) {
                0 => continue,
                1 => "",
                2 if key == "managed" => "True",
                2 if key == "claim-uid" => "uid-before",
                _ => value,
            };
            labels.insert(format!("fast-sandbox.io/{key}"), value.to_owned());
        }
        // Nanoseconds tell a container from the next one of its ID.
        let now = now + SignedDuration::from_nanos(i64::from(self.uids) + 1);
        self.uids += 1;
        let created = match self.dice.u8(..40) {
            0 => None,
            1 => Some(now + SignedDuration::from_secs(20)),
            _ => Some(now),
        };
        // Labels that a container inherits from its pod or its image.
        if self.dice.u8(..20) == 0 {
            labels.insert("io.cri-containerd.kind".to_owned(), "container".to_owned());
        }
        if self.dice.u8(..4) == 0 {
            let other = self.pick(&IDS);
            let fifos = self.host.fifos(other).unwrap();
            labels.extend(fifos.first().map(|path| (FIFO_LABELS[0].to_owned(), path.display().to_string())));
        }
        let (snapshot_key, cgroup) = (format!("{id}-snapshot"), format!("/none/{id}"));
        let (id, snapshotter) = (id.to_owned(), "memory".to_owned());
        Container { id, created, labels, snapshotter, snapshot_key, cgroup, unreadable: None }
    }

    fn change_containers(&mut self) {
        let id = self.pick(&IDS).to_owned();
        let there = self.memory.records().containers.contains_key(&id);
        if there && self.dice.u8(..3) > 0 {
            return;
        }
        if there {
            unmake_container(&self.memory, &self.host, &id);
        }
        if !there || self.dice.bool() {
            let made = self.new_container(&id);
            make_container(&self.memory, &self.host, &mut self.dice, made);
        }
    }

    /// A container is made again under its ID before the n-th read of a round.
    fn plan_reset(&mut self) {
        let id = self.pick(&IDS).to_owned();
        if !self.memory.records().containers.contains_key(&id) {
            return;
        }
        let made = self.new_container(&id);
        let (memory, host, seed) = (Arc::downgrade(&self.memory), self.host.clone(), self.dice.u64(..));
        let reset = move || {
            let memory = memory.upgrade().unwrap();
            if memory.records().containers.contains_key(&made.id) {
                unmake_container(&memory, &host, &made.id);
                make_container(&memory, &host, &mut Rng::with_seed(seed), made);
            }
        };
        *self.memory.at_read.lock().unwrap() = Some((self.dice.usize(1..20), Box::new(reset)));
    }

    /// What the process is told in this round about the ends of containers. If Sandboxes cannot be listed, it judges nothing.
    fn tell(&self) {
        let state = self.api.0.lock().unwrap();
        let (now, told) = (state.truth.now, &state.delivered);
        if !told.served {
            return;
        }
        let mut findings = self.findings.lock().unwrap();
        let mut before = std::mem::take(&mut findings.known);
        for change in &self.scanned {
            let Change::Apply(Observed { row: Row::Container(row), .. }) = change else { continue };
            let life = (row.0.id.clone(), row.0.created);
            let mut known = before.remove(&life).unwrap_or_default();
            learn(&mut known, told.endings(&row.0.labels), now);
            findings.known.insert(life, known);
        }
    }

    /// The next process remembers nothing.
    fn forget(&mut self) {
        self.remembered.clear();
        self.findings.lock().unwrap().known.clear();
    }

    /// A round of a janitor, which dies at the n-th call.
    async fn round(&mut self, last: usize, done: bool) {
        let mortal = Arc::new(Mortal::new(self.memory.clone(), last, done));
        let mut settings = Settings::new(NODE, "none");
        (settings.window, settings.parallel) = (WINDOW, 1);
        let keeper = Arc::new(Containers::new(settings, mortal.clone(), (*self.host).clone()));
        self.api.0.lock().unwrap().answered.clear();
        let work = async {
            if self.scanned.is_empty() || self.dice.u8(..3) > 0 {
                let labels = &keeper.settings().labels;
                self.scanned = scan(&*mortal, labels, keeper.node_name()).await.unwrap();
            }
            self.tell();
            once(&keeper, &self.api, &self.scanned, &mut self.remembered).await;
        };
        let dies = tokio::select! {
            () = work => false,
            () = mortal.death() => true,
        };
        if dies {
            self.forget();
        }
        *self.memory.at_read.lock().unwrap() = None;
    }

    async fn random_round(&mut self) {
        let wrong = match self.dice.u8(..4) {
            0 => (0..40).map(|_| Some(WRONGS[self.dice.usize(..WRONGS.len())])).collect(),
            1 => (0..40).map(|_| WRONGS.get(self.dice.usize(..3 * WRONGS.len())).copied()).collect(),
            _ => Vec::new(),
        };
        self.api.0.lock().unwrap().wrong = wrong;
        if self.dice.u8(..3) == 0 {
            self.plan_reset();
        }
        let last = if self.dice.bool() { self.dice.usize(1..60) } else { usize::MAX };
        let done = self.dice.bool();
        self.round(last, done).await;
    }

    /// What was never rightly touched has everything that it was made with.
    fn check(&self, when: &str) {
        let findings = self.findings.lock().unwrap();
        assert!(findings.wrong.is_empty(), "{when}: {:#?}", findings.wrong);
        let records = self.memory.records();
        for (id, container) in &records.containers {
            if findings.touched.contains(&(id.clone(), container.created)) {
                continue;
            }
            let written =
                |(key, value): (&String, &String)| key.starts_with("caretaker.dev/") && !value.starts_with('/');
            assert!(!container.labels.iter().any(written), "{when}: {id} is labelled");
            assert!(records.snapshots.contains(&container.snapshot_key), "{when}: {id} has lost its snapshot");
            assert_eq!(self.host.fifos(id).unwrap().len(), 3, "{when}: {id} has lost its FIFOs");
        }
    }

    /// Everything is well again: after the window, nothing is left of what must go.
    async fn end(&mut self, when: &str) -> usize {
        {
            let mut state = self.api.0.lock().unwrap();
            // Without their definition Sandboxes cannot be listed, and nothing is judged.
            (state.truth.served, state.truth.ending, state.truth.doubted) = (true, false, false);
            state.truth.now += WINDOW + SignedDuration::from_secs(60);
            state.delivered = state.truth.clone();
            state.wrong.clear();
            let mut records = self.memory.records();
            for task in records.tasks.values_mut().filter(|task| task.status == TaskStatus::Unknown) {
                task.status = TaskStatus::Stopped;
            }
        }
        self.scanned.clear();
        // What was found by a live read is judged in the next round, and what agents end when they have had their time.
        for _ in 0..4 {
            self.scanned.clear();
            self.round(usize::MAX, true).await;
            let mut state = self.api.0.lock().unwrap();
            let truth = &mut state.truth;
            truth.now += truth.grace + SignedDuration::from_secs(1);
        }
        self.check(when);
        let records = self.memory.records();
        let truth = &self.api.0.lock().unwrap().truth;
        let findings = self.findings.lock().unwrap();
        let due = |one: &&Container| {
            let known = findings.known.get(&(one.id.clone(), one.created)).cloned().unwrap_or_default();
            !truth.reasons(&one.labels, one.created, &known).is_empty()
        };
        let left: Vec<&Container> = records.containers.values().filter(due).collect();
        assert!(left.is_empty(), "{when}: {left:?} must go: {truth:?} {:?}", records.tasks);
        for id in IDS.iter().filter(|id| !records.containers.contains_key(**id)) {
            assert!(!records.tasks.contains_key(*id), "{when}: {id} has a task");
            assert!(!records.snapshots.contains(&format!("{id}-snapshot")), "{when}: {id} has a snapshot");
            assert!(self.host.fifos(id).unwrap().is_empty(), "{when}: {id} has FIFOs");
        }
        findings.touched.len()
    }
}

async fn play(seed: u64, folder: &Path) -> usize {
    let mut history = History::new(seed, folder);
    for step in 0..30 {
        match history.dice.u8(..16) {
            0..=3 => history.change_cluster(),
            4..=6 => history.change_containers(),
            7 | 8 => history.deliver(),
            9 | 10 => history.move_clock(),
            11 => {
                let truth = &mut history.api.0.lock().unwrap().truth;
                truth.doubted = !truth.doubted;
            }
            _ => history.random_round().await,
        }
        history.check(&format!("seed {seed}, step {step}"));
    }
    history.end(&format!("seed {seed}, at the end")).await
}

#[rstest]
#[case::first(0)]
#[case::second(250)]
#[case::third(500)]
#[case::fourth(750)]
#[tokio::test(start_paused = true)]
async fn what_the_table_keeps_is_never_touched_and_what_it_cleans_is_gone_in_the_end(#[case] first: u64) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("proc/self")).unwrap();
    std::fs::write(folder.path().join("proc/self/mountinfo"), "").unwrap();
    let mut cleaned = 0;
    for seed in first..first + 250 {
        // The clock stands still while anything is under way: only what hangs takes an hour.
        let played = tokio::time::timeout(Duration::from_hours(1), play(seed, folder.path())).await;
        cleaned += played.unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
    assert!(cleaned > 250, "the histories clean something: {cleaned}");
}
