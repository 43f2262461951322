//! Whatever happens in whatever order, and whenever the keeper dies: at most one runtime of a task's uid, none deleted
//! early, and none without a task for longer than a resync.
//!
//! The cluster is a model; the cache, the rules and the confirmation by live reads are the real ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::support::sample;
use crate::support::sample::at;
use caretaker_core::{Keeper as _, Next, RuleSet as _, SignedDuration, Timestamp};
use caretaker_engine::source::resource;
use caretaker_engine::{Cache, Change, ObjectId, Observed, SourceRef};
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::act::{Action, Record};
use caretaker_runtimes::api::{CarrierKind, RuntimeStatus, TaskKind};
use caretaker_runtimes::judge::Rule;
use caretaker_runtimes::observe::{DAEMON_SETS, DEPLOYMENTS, NETREACHES, Row, RuntimeCache, SERVICES};
use caretaker_runtimes::subject::{Agent, Carrier, Named, Policy, Subject, Task, TaskResource, TaskRuntime};
use proptest::prelude::*;

const GRACE: i64 = 10;
/// Longer than the garbage collector's time and any grace.
const RESYNC: i64 = 30;

/// What happens.
#[derive(Debug, Clone)]
enum Event {
    CreateTask(usize, CarrierKind),
    DeleteTask(usize),
    Finish(usize),
    GetReady,
    LoseCarriers(usize),
    LoseServices,
    Collect,
    Deliver(usize),
    /// A round, in which the keeper dies before this write.
    Round(usize),
    Restart,
    Advance(i64),
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![Just(CarrierKind::DaemonSet), Just(CarrierKind::Deployment)];
    prop_oneof![
        3 => (0..2usize, kind).prop_map(|(task, kind)| Event::CreateTask(task, kind)),
        2 => (0..2usize).prop_map(Event::DeleteTask),
        2 => (0..2usize).prop_map(Event::Finish),
        2 => Just(Event::GetReady),
        1 => (0..2usize).prop_map(Event::LoseCarriers),
        1 => Just(Event::LoseServices),
        1 => Just(Event::Collect),
        4 => (1..6usize).prop_map(Event::Deliver),
        6 => (0..8usize).prop_map(Event::Round),
        1 => Just(Event::Restart),
        2 => (1..15i64).prop_map(Event::Advance),
    ]
}

/// What the API server holds, and what it has not delivered yet.
struct Model {
    tasks: BTreeMap<usize, Task>,
    carriers: BTreeMap<(CarrierKind, String), Carrier>,
    services: BTreeMap<String, Named>,
    pending: VecDeque<(SourceRef, Change<Row>)>,
    cache: RuntimeCache,
    keeper: Runtimes,
    now: i64,
    version: u64,
}

fn source_of(row: &Row) -> SourceRef {
    let (id, served) = match row {
        Row::Task(_) => (NETREACHES, resource("kdoctor.io", "v1beta1", "NetReach", "netreaches")),
        Row::Carrier(carrier) if carrier.kind == CarrierKind::DaemonSet => {
            (DAEMON_SETS, resource("apps", "v1", "DaemonSet", "daemonsets"))
        }
        Row::Carrier(_) => (DEPLOYMENTS, resource("apps", "v1", "Deployment", "deployments")),
        _ => (SERVICES, resource("", "v1", "Service", "services")),
    };
    SourceRef { id, resource: Some(Arc::new(served)) }
}

fn id_of(row: &Row, version: u64) -> ObjectId {
    let (namespace, name, uid) = match row {
        Row::Task(task) => (None, task.name.to_string(), task.uid.clone()),
        Row::Carrier(carrier) => (Some(carrier.namespace.to_string()), carrier.name.clone(), carrier.uid.clone()),
        Row::Named(named) => (Some(named.namespace.to_string()), named.name.clone(), named.uid.clone()),
        other => unreachable!("{other:?}"),
    };
    ObjectId { namespace, name, uid, resource_version: version.to_string() }
}

impl Model {
    fn new() -> Self {
        let policy = Policy { namespace: Some(sample::NAMESPACE.to_owned()), ..Policy::default() };
        let keeper = Runtimes::new(policy);
        let (tasks, carriers, services) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (pending, cache) = (VecDeque::new(), RuntimeCache::default());
        Self { tasks, carriers, services, pending, cache, keeper, now: 0, version: 0 }
    }

    fn now(&self) -> Timestamp {
        at(self.now)
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// The object was written: the watch delivers it later.
    fn written(&mut self, row: Row) -> (SourceRef, Change<Row>) {
        let id = id_of(&row, self.next_version());
        let change = (source_of(&row), Change::Apply(Observed::new(id, row)));
        self.pending.push_back(change.clone());
        change
    }

    fn deleted(&mut self, row: &Row) {
        let id = id_of(row, self.next_version());
        self.pending.push_back((source_of(row), Change::Delete(id)));
    }

    fn deliver(&mut self, most: usize) {
        for _ in 0..most.min(self.pending.len()) {
            let (source, change) = self.pending.pop_front().unwrap();
            self.cache.update(&source, change);
        }
    }

    /// A new process: it lists everything.
    fn restart(&mut self) {
        (self.cache, self.pending) = (RuntimeCache::default(), VecDeque::new());
        let tasks = self.tasks.values().map(|task| Row::Task(Box::new(task.clone())));
        let carriers = self.carriers.values().cloned().map(Row::Carrier);
        let services = self.services.values().cloned().map(Row::Named);
        let rows: Vec<Row> = tasks.chain(carriers).chain(services).collect();
        for row in rows {
            let id = id_of(&row, self.next_version());
            self.cache.update(&source_of(&row), Change::Apply(Observed::new(id, row)));
        }
    }

    fn create_task(&mut self, number: usize, kind: CarrierKind) {
        if self.tasks.contains_key(&number) {
            return;
        }
        let mut task = sample::runtime().task;
        let uid = self.next_version();
        (task.name, task.uid, task.created) = (format!("t{number}").into(), format!("task-{uid}"), Some(self.now()));
        task.grace = Ok(Some(SignedDuration::from_mins(GRACE)));
        task.agent = Some(Agent { kind, json: "{}".into() });
        self.tasks.insert(number, task.clone());
        self.written(Row::Task(Box::new(task)));
    }

    fn delete_task(&mut self, number: usize) {
        if let Some(task) = self.tasks.remove(&number) {
            self.deleted(&Row::Task(Box::new(task)));
        }
    }

    fn change_task(&mut self, uid: &str, change: impl FnOnce(&mut Task)) -> Option<(SourceRef, Change<Row>)> {
        let task = self.tasks.values_mut().find(|task| task.uid == uid)?;
        change(task);
        let task = task.clone();
        Some(self.written(Row::Task(Box::new(task))))
    }

    fn finish(&mut self, number: usize) {
        let now = self.now();
        if let Some(uid) = self.tasks.get(&number).map(|task| task.uid.clone()) {
            self.change_task(&uid, |task| {
                task.is_finished = true;
                task.finish_time.get_or_insert(now);
            });
        }
    }

    fn get_ready(&mut self) {
        for carrier in self.carriers.clone().into_values().filter(|carrier| carrier.ready == 0) {
            let ready = Carrier { ready: 1, ..carrier };
            self.carriers.insert((ready.kind, ready.name.clone()), ready.clone());
            self.written(Row::Carrier(ready));
        }
    }

    fn remove_carrier(&mut self, carrier: &Carrier) {
        if self.carriers.remove(&(carrier.kind, carrier.name.clone())).is_some() {
            self.deleted(&Row::Carrier(carrier.clone()));
        }
    }

    /// What a cluster's garbage collector does.
    fn collect(&mut self) {
        let uids: BTreeSet<String> = self.tasks.values().map(|task| task.uid.clone()).collect();
        for carrier in self.carriers.clone().into_values().filter(|carrier| !uids.contains(&carrier.task_uid)) {
            self.remove_carrier(&carrier);
        }
        let uids: BTreeSet<String> = self.carriers.values().map(|carrier| carrier.uid.clone()).collect();
        let is_lost = |service: &Named| !uids.contains(&service.controller.as_ref().unwrap().uid);
        for service in self.services.clone().into_values().filter(is_lost) {
            self.services.remove(&service.name);
            self.deleted(&Row::Named(service));
        }
    }

    /// Judges every subject, confirms by live reads, and writes until the keeper dies before the n-th write.
    fn round(&mut self, mut writes_left: usize) {
        let now = self.now();
        let world = self.cache.world(&self.keeper.policy, self.now());
        for key in self.cache.keys() {
            for mut subject in self.cache.subjects_for(&key) {
                let verdict = Rule::judge(&subject, &world, now);
                if self.keeper.record_verdict(&mut subject, &verdict, now) {
                    self.cache.remember(&key, &subject);
                }
                let Next::Act { action, .. } = &verdict.next else { continue };
                let mut view = self.cache.extract(&BTreeSet::from([key.clone()]));
                self.read_live(&subject, &mut view);
                let (uid, kind) = (subject.subject_ref().uid.to_owned(), subject.subject_ref().kind.to_owned());
                let is_same = |live: &Subject| (live.subject_ref().uid, live.subject_ref().kind) == (&uid, &kind);
                let Some(live) = view.subjects_for(&key).into_iter().find(is_same) else { continue };
                let again = Rule::judge(&live, &world, now);
                if again.rule != verdict.rule || again.next.pending_action() != Some(action) {
                    continue;
                }
                if self.apply(&live, action, &mut writes_left).is_none() {
                    return self.restart();
                }
            }
        }
    }

    /// The task and the carriers of a subject as they are now.
    fn read_live(&mut self, subject: &Subject, view: &mut RuntimeCache) {
        let name = subject.task_key().1;
        let source =
            SourceRef { id: NETREACHES, resource: source_of(&Row::Task(Box::new(sample::runtime().task))).resource };
        let task = self.tasks.values().find(|task| task.name == name).cloned();
        let change = match task {
            Some(task) => {
                let row = Row::Task(Box::new(task));
                Change::Apply(Observed::new(id_of(&row, self.next_version()), row))
            }
            None => Change::Delete(ObjectId::named(name.to_string())),
        };
        view.update(&source, change);
        let known = match subject {
            Subject::Task(runtime) => runtime.carriers.clone(),
            Subject::Orphan(orphan) => vec![orphan.carrier.clone()],
        };
        for carrier in known {
            let live = self.carriers.get(&(carrier.kind, carrier.name.clone())).cloned();
            let source = source_of(&Row::Carrier(carrier.clone()));
            let change = match live {
                Some(live) => {
                    let row = Row::Carrier(live);
                    Change::Apply(Observed::new(id_of(&row, self.next_version()), row))
                }
                None => Change::Delete(ObjectId {
                    namespace: Some(sample::NAMESPACE.to_owned()),
                    ..ObjectId::named(carrier.name)
                }),
            };
            view.update(&source, change);
        }
    }

    /// `None` if the keeper died.
    fn apply(&mut self, subject: &Subject, action: &Action, left: &mut usize) -> Option<()> {
        let mut spend = || {
            *left = left.checked_sub(1)?;
            Some(())
        };
        match (subject, action) {
            (Subject::Orphan(orphan), _) => {
                spend()?;
                self.delete_carrier(&orphan.carrier);
            }
            (Subject::Task(runtime), Action::Create) => {
                let carrier = if let Some(carrier) = runtime.carrier() {
                    carrier.clone()
                } else {
                    spend()?;
                    let Some(carrier) = self.post_carrier(runtime) else { return Some(()) };
                    carrier
                };
                let name = format!("kdoctor-netreach-{}-ipv4", runtime.task.name);
                if runtime.part_of(&carrier, "Service", &name).is_none() {
                    spend()?;
                    if !self.post_service(&name, &carrier) {
                        return Some(());
                    }
                }
                spend()?;
                self.write_status(runtime, &carrier, RuntimeStatus::Creating);
            }
            (Subject::Task(runtime), Action::Record(Record::Created)) => {
                spend()?;
                let carrier = runtime.carrier().unwrap().clone();
                self.write_status(runtime, &carrier, RuntimeStatus::Created);
            }
            (Subject::Task(runtime), Action::Record(_)) => {
                spend()?;
                self.write_deleted(runtime);
            }
            (Subject::Task(runtime), Action::Retire) => {
                for carrier in runtime.carriers.clone() {
                    spend()?;
                    self.delete_carrier(&carrier);
                }
                spend()?;
                self.write_deleted(runtime);
            }
            (Subject::Task(_), Action::Warn | Action::Clean) => {}
        }
        Some(())
    }

    /// Deletes what was judged, if it is that: only of a task that is gone, or that ended and had its grace.
    fn delete_carrier(&mut self, judged: &Carrier) {
        let Some(carrier) = self.carriers.get(&(judged.kind, judged.name.clone())).cloned() else { return };
        if carrier.uid != judged.uid {
            return;
        }
        if let Some(task) = self.tasks.values().find(|task| task.uid == carrier.task_uid) {
            let due = task.finish_time.map(|finished| finished + SignedDuration::from_mins(GRACE));
            assert!(due.is_some_and(|due| due <= self.now()), "deleted early: {task:?}");
        }
        self.remove_carrier(&carrier);
    }

    fn post_carrier(&mut self, runtime: &TaskRuntime) -> Option<Carrier> {
        let kind = runtime.task.agent.as_ref().unwrap().kind;
        let name = runtime.carrier_name();
        if self.carriers.contains_key(&(kind, name.clone())) {
            return None;
        }
        let uid = format!("carrier-{}", self.next_version());
        let (task, task_uid, created) = (runtime.task.key(), runtime.task.uid.clone(), Some(self.now()));
        let carrier = Carrier { kind, name: name.clone(), uid, task, task_uid, created, ..sample::carrier(0) };
        self.carriers.insert((kind, name), carrier.clone());
        let (source, change) = self.written(Row::Carrier(carrier.clone()));
        self.cache.update(&source, change);
        Some(carrier)
    }

    fn post_service(&mut self, name: &str, carrier: &Carrier) -> bool {
        if self.services.contains_key(name) {
            return false;
        }
        let owner = Some((carrier.kind.name(), carrier.name.as_str(), carrier.uid.as_str()));
        let service =
            Named { uid: format!("service-{}", self.next_version()), ..sample::named("Service", name, owner) };
        self.services.insert(name.to_owned(), service.clone());
        let (source, change) = self.written(Row::Named(service));
        self.cache.update(&source, change);
        true
    }

    fn write_status(&mut self, runtime: &TaskRuntime, carrier: &Carrier, status: RuntimeStatus) {
        let resource = TaskResource {
            name: carrier.name.clone(),
            kind: carrier.kind.name().to_owned(),
            service_v4: None,
            service_v6: None,
            status: Some(status),
        };
        if let Some((source, change)) = self.change_task(&runtime.task.uid, |task| task.resource = Some(resource)) {
            self.cache.update(&source, change);
        }
    }

    fn write_deleted(&mut self, runtime: &TaskRuntime) {
        let written = self.change_task(&runtime.task.uid, |task| {
            if let Some(resource) = &mut task.resource {
                resource.status = Some(RuntimeStatus::Deleted);
            }
        });
        if let Some((source, change)) = written {
            self.cache.update(&source, change);
        }
    }

    fn check(&self) {
        let mut owners = BTreeSet::new();
        for carrier in self.carriers.values() {
            assert!(owners.insert(&carrier.task_uid), "two runtimes of {}", carrier.task_uid);
            assert_eq!(carrier.task.0, TaskKind::NetReach);
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::CreateTask(number, kind) => self.create_task(number, kind),
            Event::DeleteTask(number) => self.delete_task(number),
            Event::Finish(number) => self.finish(number),
            Event::GetReady => self.get_ready(),
            Event::LoseCarriers(number) => {
                let of = format!("t{number}");
                for carrier in self.carriers.clone().into_values().filter(|carrier| *carrier.task.1 == *of) {
                    self.remove_carrier(&carrier);
                }
            }
            Event::LoseServices => {
                for service in std::mem::take(&mut self.services).into_values() {
                    self.deleted(&Row::Named(service));
                }
            }
            Event::Collect => self.collect(),
            Event::Deliver(most) => self.deliver(most),
            Event::Round(writes) => self.round(writes),
            Event::Restart => self.restart(),
            Event::Advance(minutes) => self.now += minutes,
        }
    }

    /// Nothing happens any more: only the keeper and, for Services, the garbage collector work.
    fn settle(&mut self) {
        for resync in 0..6 {
            self.deliver(usize::MAX);
            self.round(usize::MAX);
            self.check();
            let is_orphan = |carrier: &&Carrier| !self.tasks.values().any(|task| task.uid == carrier.task_uid);
            let orphan = self.carriers.values().find(is_orphan);
            assert!(resync == 0 || orphan.is_none(), "without a task for longer than a resync: {orphan:?}");
            self.now += RESYNC;
            let lost: Vec<Named> = self.services.values().cloned().collect();
            for service in lost {
                let owner = &service.controller.as_ref().unwrap().uid;
                if !self.carriers.values().any(|carrier| carrier.uid == *owner) {
                    self.services.remove(&service.name);
                    self.deleted(&Row::Named(service));
                }
            }
            self.get_ready();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn at_most_one_runtime_of_a_uid_none_deleted_early_and_none_without_a_task(
        events in prop::collection::vec(event(), 1..60)
    ) {
        let mut model = Model::new();
        for event in events {
            model.happen(&event);
            model.check();
        }

        model.settle();

        for carrier in model.carriers.values() {
            let task = model.tasks.values().find(|task| task.uid == carrier.task_uid);
            prop_assert!(task.is_some_and(|task| !task.is_finished), "left behind: {:?}", carrier);
        }
        for task in model.tasks.values() {
            let carriers = model.carriers.values().filter(|carrier| carrier.task_uid == task.uid).count();
            prop_assert_eq!(carriers, usize::from(!task.is_finished), "{:?}", task);
            let expected = if task.is_finished { RuntimeStatus::Deleted } else { RuntimeStatus::Created };
            prop_assert!(task.runtime_status().is_none_or(|status| status == expected), "{:?}", task);
            prop_assert!(task.is_finished || task.runtime_status() == Some(expected), "{:?}", task);
        }
    }
}
