//! What was observed: rows by object, and which task each of them matters to.

mod queue;

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caretaker_core::Timestamp;
use caretaker_engine::cache::{RowKey, SourceKey};
use caretaker_engine::source::resource;
use caretaker_engine::{Cache, Change, Rows, SourceRef};

use smallvec::SmallVec;

use queue::Obstacles;
pub(crate) use queue::failure_name;

use super::{DIAGNOSES, Elsewhere, FAILURES, Row, SETTINGS};
use crate::api::{self, Family, GROUP, KDOCTOR_CONTROLLER, KdoctorSettings, RuntimeStatus, Templates};
use crate::subject::{
    Carrier, Diagnosis, Ended, Named, Orphan, Place, Policy, Subject, Task, TaskKey, TaskRuntime, World,
};

/// What the ConfigMap with kdoctor's settings is called here.
const SETTINGS_KIND: &str = "Settings";

/// What was observed.
#[derive(Debug, Clone, Default)]
pub struct RuntimeCache {
    rows: Rows<Row>,
    /// The tasks that are known.
    tasks: BTreeMap<TaskKey, Waits>,
    /// The tasks that need a carrier, in the order in which they were created.
    waiting: BTreeSet<(Option<Timestamp>, TaskKey)>,
    /// What may keep a task from starting; only of tasks that have such.
    obstacles: BTreeMap<TaskKey, Obstacles>,
    /// The carriers of a task, and of earlier ones of its name.
    carriers: ByKey<TaskKey, RowKey>,
    /// Carriers, Services and Ingresses by their names.
    by_name: ByKey<Arc<str>, RowKey>,
    /// The task whose runtime needs a name.
    needed_by: ByKey<Arc<str>, TaskKey>,
    templates: Option<Result<Arc<Templates>, Arc<str>>>,
    settings: Option<Arc<KdoctorSettings>>,
    /// What is outside of kdoctor's namespace; only files have it.
    elsewhere: BTreeMap<RowKey, Elsewhere>,
    families: BTreeMap<String, Vec<Family>>,
    refused: BTreeSet<Family>,
    /// When a carrier was first seen without its task, by its uid.
    orphan_since: BTreeMap<String, Timestamp>,
    /// The task and the uid of the carrier of a row: to find them when the row is gone.
    owners: BTreeMap<RowKey, (TaskKey, String)>,
    /// The tasks of rows that the keeper noted itself: what it found, and what failed.
    noted: BTreeMap<RowKey, TaskKey>,
    dirty: BTreeSet<TaskKey>,
}

/// Values by their key, in order. Nearly every key has one value, for which a set would take the room of eleven.
type ByKey<K, V> = BTreeMap<K, SmallVec<[V; 1]>>;

/// Where a task is in the queue, if it needs a carrier.
type Waits = Option<Option<Timestamp>>;

fn task_row(key: &TaskKey) -> RowKey {
    RowKey::new(SourceKey::new(GROUP, key.0.name()), None, &key.1)
}

/// The names that a runtime needs, as far as they are told apart here: of the carrier, and of Services without the
/// family.
fn names(key: &TaskKey) -> [String; 2] {
    let service = api::service_name(key.0, &key.1, Family::V4);
    [api::carrier_name(key.0, &key.1), family_less(&service).to_owned()]
}

fn family_less(name: &str) -> &str {
    name.strip_suffix("-ipv4").or_else(|| name.strip_suffix("-ipv6")).unwrap_or(name)
}

fn insert<K: Ord + Clone, V: Ord>(index: &mut ByKey<K, V>, key: &K, value: V) {
    let values = index.entry(key.clone()).or_default();
    if let Err(place) = values.binary_search(&value) {
        values.insert(place, value);
    }
}

fn remove<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V: Ord>(index: &mut ByKey<K, V>, key: &Q, value: &V) {
    if let Some(values) = index.get_mut(key) {
        if let Ok(place) = values.binary_search(value) {
            values.remove(place);
        }
        if values.is_empty() {
            index.remove(key);
        }
    }
}

impl RuntimeCache {
    fn row(&self, key: &RowKey) -> Option<Row> {
        self.rows.subjects_for(key).pop()
    }

    fn task(&self, key: &TaskKey) -> Option<Task> {
        match self.row(&task_row(key)) {
            Some(Row::Task(task)) => Some(*task),
            _ => None,
        }
    }

    fn carriers_of(&self, key: &TaskKey) -> Vec<Carrier> {
        let rows = self.carriers.get(key).into_iter().flatten().filter_map(|row| self.row(row));
        rows.filter_map(|row| if let Row::Carrier(carrier) = row { Some(carrier) } else { None }).collect()
    }

    /// The rows of everything that has a name of this task's runtime.
    fn named_rows(&self, key: &TaskKey) -> BTreeSet<&RowKey> {
        let [carrier, service] = names(key);
        let services = Family::ALL.map(|family| format!("{service}-{}", family.lower()));
        let all = services.into_iter().chain([carrier]);
        all.filter_map(|name| self.by_name.get(name.as_str())).flatten().collect()
    }

    /// Follows a row that changed, so that every task that it matters to is judged.
    fn follow(&mut self, key: RowKey) {
        let row = self.row(&key);
        let was_elsewhere = self.elsewhere.remove(&key).is_some();
        match (&row, key.source().group(), key.source().kind()) {
            (Some(Row::Elsewhere(found)), ..) => _ = self.elsewhere.insert(key, found.clone()),
            (None, ..) if was_elsewhere => {}
            (Some(Row::Task(_)), ..) | (None, GROUP, _) => {
                let kind = api::TaskKind::parse(key.source().kind());
                if let Some(kind) = kind {
                    self.follow_task((kind, key.name().into()), row.is_some());
                }
            }
            (Some(Row::Templates(_) | Row::Settings(_)), ..) | (None, "", "ConfigMap" | SETTINGS_KIND) => {
                self.follow_config(&key, row);
            }
            (Some(Row::Families(_) | Row::RefusedFamily(_)), ..) | (None, _, "ServiceCIDR") => {
                match row {
                    Some(Row::Families(families)) => _ = self.families.insert(key.name().to_owned(), families),
                    Some(Row::RefusedFamily(family)) => _ = self.refused.insert(family),
                    _ => _ = self.families.remove(key.name()),
                }
                self.all_dirty();
            }
            (Some(Row::Diagnosis(task, _)), ..) => {
                self.dirty.insert(task.clone());
                self.noted.insert(key, task.clone());
            }
            (Some(Row::Failure(task, _)), ..) => {
                self.noted.insert(key, task.clone());
                self.touch(task.clone());
                self.wake_waiting();
            }
            (None, "", "") => _ = self.noted.remove(&key),
            _ => self.follow_object(key, row.as_ref()),
        }
    }

    fn follow_config(&mut self, key: &RowKey, row: Option<Row>) {
        match row {
            Some(Row::Templates(read)) => self.templates = Some(read),
            Some(Row::Settings(read)) => self.settings = Some(read),
            _ if key.name() == api::TEMPLATES => self.templates = None,
            _ if key.name() == api::SETTINGS => self.settings = None,
            _ => return,
        }
        // What the API server refused was made from what was there before.
        for task in self.noted.values().cloned().collect::<Vec<_>>() {
            self.forget_notes(&task, &[FAILURES]);
            self.touch(task);
        }
        self.all_dirty();
    }

    fn all_dirty(&mut self) {
        self.dirty.extend(self.tasks.keys().cloned());
    }

    fn follow_task(&mut self, key: TaskKey, exists: bool) {
        for name in names(&key) {
            if exists {
                insert(&mut self.needed_by, &Arc::from(name), key.clone());
            } else {
                remove(&mut self.needed_by, name.as_str(), &key);
            }
        }
        if exists {
            self.tasks.entry(key.clone()).or_default();
        } else {
            if let Some(Some(created)) = self.tasks.remove(&key) {
                self.waiting.remove(&(created, key.clone()));
            }
            self.forget_notes(&key, &[DIAGNOSES, FAILURES]);
        }
        self.touch(key);
    }

    fn follow_object(&mut self, key: RowKey, row: Option<&Row>) {
        let needed: Vec<TaskKey> = [key.name(), family_less(key.name())]
            .iter()
            .filter_map(|name| self.needed_by.get(*name))
            .flatten()
            .cloned()
            .collect();
        if let Some((before, uid)) = self.owners.remove(&key) {
            remove(&mut self.carriers, &before, &key);
            self.touch(before);
            if row.is_none() {
                self.orphan_since.remove(&uid);
                self.wake_waiting();
            }
        }
        if let Some(Row::Carrier(carrier)) = row {
            insert(&mut self.carriers, &carrier.task, key.clone());
            self.owners.insert(key.clone(), (carrier.task.clone(), carrier.uid.clone()));
            self.touch(carrier.task.clone());
        }
        if row.is_some() {
            insert(&mut self.by_name, &Arc::from(key.name()), key);
        } else {
            remove(&mut self.by_name, key.name(), &key);
        }
        for task in needed {
            self.touch(task);
        }
    }

    /// Something of this task changed: it is judged, and its place in the queue is found again.
    fn touch(&mut self, key: TaskKey) {
        let task = self.task(&key);
        match task.as_ref().and_then(|task| Obstacles::of(task, self.failure(task).as_ref())) {
            Some(obstacles) => _ = self.obstacles.insert(key.clone(), obstacles),
            None => _ = self.obstacles.remove(&key),
        }
        let waits = task.filter(|task| self.needs_carrier(task)).map(|task| task.created);
        if let Some(known) = self.tasks.get_mut(&key)
            && *known != waits
        {
            if let Some(created) = std::mem::replace(known, waits) {
                self.waiting.remove(&(created, key.clone()));
            }
            if let Some(created) = waits {
                self.waiting.insert((created, key.clone()));
            }
        }
        self.dirty.insert(key);
    }

    /// True if a carrier is to be created for it, as far as that is up to the task.
    fn needs_carrier(&self, task: &Task) -> bool {
        let wants = task.has_agent_spec && task.invalid.is_none() && !task.is_deleting;
        let is_over = task.runtime_status() == Some(RuntimeStatus::Deleted)
            || task.ended(None, Timestamp::UNIX_EPOCH) != Ended::No;
        let key = task.key();
        let is_own = |carrier: &Carrier| carrier.task_uid == task.uid;
        wants && !is_over && !self.carriers_of(&key).iter().any(is_own) && self.named_rows(&key).is_empty()
    }

    /// The world that tasks are judged in.
    #[must_use]
    pub fn world(&self, policy: &Arc<Policy>, now: Timestamp) -> World {
        let place = self.place(policy);
        let queue = if policy.max_runtimes.is_some() { self.queue(policy, now) } else { BTreeMap::new() };
        let mut cluster_families: Vec<Family> = self.families.values().flatten().copied().collect();
        cluster_families.sort_unstable();
        cluster_families.dedup();
        World {
            policy: policy.clone(),
            kdoctor: self.settings.clone().unwrap_or_default(),
            place,
            cluster_families,
            refused_families: self.refused.iter().copied().collect(),
            alive: self.owners.len(),
            queue: Arc::new(queue),
        }
    }

    fn place(&self, policy: &Policy) -> Result<Place, Arc<str>> {
        let Some(namespace) = policy.namespace.as_deref() else {
            return Err("keepers.runtimes.namespace is not set: write kdoctor's namespace there".into());
        };
        let templates = match (&policy.templates, &self.templates) {
            (Some(Ok(templates)), _) => templates.clone(),
            (Some(Err(error)), _) => return Err(format!("keepers.runtimes.template: {error}").into()),
            (None, Some(read)) => read.clone()?,
            (None, None) => default_templates(),
        };
        Ok(Place { namespace: namespace.into(), templates })
    }

    /// True if kdoctor's namespace has its templates.
    #[must_use]
    pub fn has_templates(&self) -> bool {
        self.templates.is_some()
    }

    /// What is outside of kdoctor's namespace and looks as if it belonged there: left alone.
    pub fn elsewhere(&self) -> impl Iterator<Item = &Elsewhere> {
        self.elsewhere.values()
    }

    /// True if kdoctor's own controller runs: it creates runtimes as well.
    #[must_use]
    pub fn kdoctor_runs(&self) -> bool {
        let rows = self.by_name.get(KDOCTOR_CONTROLLER).into_iter().flatten().filter_map(|row| self.row(row));
        rows.into_iter().any(|row| matches!(row, Row::Named(Named { kind: "Deployment", ready, .. }) if ready > 0))
    }

    fn runtime(&self, task: Task) -> TaskRuntime {
        let key = task.key();
        let mut carriers = self.carriers_of(&key);
        carriers.retain(|carrier| carrier.task_uid == task.uid);
        let rows = self.named_rows(&key).into_iter().filter_map(|row| self.row(row));
        let named = rows.filter_map(|row| match row {
            Row::Named(named) => Some(named),
            // The carrier of another task: in the way.
            Row::Carrier(carrier) if carrier.task_uid != task.uid => Some(in_the_way(carrier)),
            _ => None,
        });
        let named = named.collect();
        let diagnosis = self.row(&RowKey::new(SourceKey::new("", ""), None, &task.uid));
        let diagnosis = if let Some(Row::Diagnosis(_, diagnosis)) = diagnosis { Some(diagnosis) } else { None };
        let diagnosis = diagnosis.filter(|found: &Diagnosis| !found.found.is_empty());
        let failure = self.failure(&task);
        TaskRuntime { task, carriers, named, diagnosis, failure }
    }
}

/// The default template, which never changes.
fn default_templates() -> Arc<Templates> {
    static DEFAULT: std::sync::LazyLock<Arc<Templates>> = std::sync::LazyLock::new(Arc::default);
    DEFAULT.clone()
}

/// Two sources read ConfigMaps, each by a name of its own: what one of them lists says nothing about the other.
fn apart(source: &SourceRef) -> Cow<'_, SourceRef> {
    if source.id != SETTINGS {
        return Cow::Borrowed(source);
    }
    let kind = resource("", "v1", SETTINGS_KIND, "settings");
    Cow::Owned(SourceRef { id: source.id, resource: Some(Arc::new(kind)) })
}

fn in_the_way(carrier: Carrier) -> Named {
    let Carrier { kind, namespace, name, uid, task, task_uid, is_deleting, ready, .. } = carrier;
    let controller =
        crate::subject::Controller { kind: task.0.name().to_owned(), name: task.1.to_string(), uid: task_uid };
    Named { kind: kind.name(), namespace, name, uid, controller: Some(controller), is_deleting, ready }
}

impl Cache for RuntimeCache {
    type Row = Row;
    type Key = TaskKey;
    type Subject = Subject;

    fn update(&mut self, source: &SourceRef, change: Change<Row>) {
        self.rows.update(&apart(source), change);
        for key in self.rows.take_dirty() {
            self.follow(key);
        }
    }

    fn take_dirty(&mut self) -> BTreeSet<TaskKey> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<TaskKey> {
        let mut keys: BTreeSet<&TaskKey> = self.tasks.keys().collect();
        keys.extend(self.carriers.keys());
        keys.into_iter().cloned().collect()
    }

    fn subjects_for(&self, key: &TaskKey) -> Vec<Subject> {
        let task = self.task(key);
        let uid = task.as_ref().map(|task| task.uid.clone());
        let orphans = self.carriers_of(key).into_iter().filter(|carrier| Some(&carrier.task_uid) != uid.as_ref());
        let orphans = orphans.map(|carrier| {
            let since = self.orphan_since.get(&carrier.uid).copied();
            Subject::Orphan(Box::new(Orphan { carrier, since }))
        });
        let task = task.map(|task| Subject::Task(Box::new(self.runtime(task))));
        task.into_iter().chain(orphans).collect()
    }

    fn extract(&self, keys: &BTreeSet<TaskKey>) -> Self {
        let mut rows: BTreeSet<RowKey> = BTreeSet::new();
        for key in keys {
            rows.insert(task_row(key));
            rows.extend(self.carriers.get(key).into_iter().flatten().cloned());
            rows.extend(self.named_rows(key).into_iter().cloned());
            rows.extend(self.noted.iter().filter(|(_, task)| *task == key).map(|(row, _)| row.clone()));
        }
        let mut part =
            Self { rows: self.rows.extract(&rows), orphan_since: self.orphan_since.clone(), ..Self::default() };
        for row in rows {
            if part.row(&row).is_some() {
                part.follow(row);
            }
        }
        part.dirty.clear();
        part
    }

    fn remember(&mut self, _: &TaskKey, subject: &Subject) {
        if let Subject::Orphan(orphan) = subject
            && let Some(since) = orphan.since
        {
            self.orphan_since.insert(orphan.carrier.uid.clone(), since);
        }
    }
}
