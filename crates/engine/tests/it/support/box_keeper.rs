//! A keeper for tests: toys are in boxes, and each says when it is taken out.
//!
//! A box is a ConfigMap, a toy one of its keys. `60` is taken out after the sixtieth second; `!` at once,
//! by the leader and by standbys; `?` must not be taken out; anything else stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use caretaker_core::{
    ActionKind, Keeper, Membership, ObjectRef, Permission, RuleMatch, SignedDuration, SourceId, SubjectRef, Timestamp,
    VerdictOf, actions, rules,
};
use caretaker_engine::cache::InvalidObject;
use caretaker_engine::source::resource;
use caretaker_engine::writer::Writer;
use caretaker_engine::{
    BatchResult, Cache, Change, Confirmed, Controller, Leadership, Meta, ObjectId, Observed, PartialObject,
    ReplicaRole, Resync, Source, SourceRef, Standby, WriteTarget,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Takes toys out: so many of a box in one write, with so much time between two writes of a box.
pub struct Toys {
    pub max_batch: usize,
    pub min_interval: Duration,
    /// How often a toy was judged.
    pub judged: AtomicUsize,
    /// What it reads beside boxes.
    pub more: fn() -> Vec<Source<Shelf>>,
    /// How a box is found that the watch has lost.
    pub resync: Resync,
    /// Selects boxes on the server.
    pub fields: Option<&'static str>,
}

impl Toys {
    pub fn new(max_batch: usize, min_interval: u64) -> Self {
        Self {
            max_batch,
            min_interval: Duration::from_secs(min_interval),
            judged: AtomicUsize::new(0),
            more: Vec::new,
            resync: Resync::Interval,
            fields: None,
        }
    }
}

/// Where boxes are.
pub const NAMESPACE: &str = "caretaker-system";
pub const BOXES: SourceId = SourceId("configmaps");

pub fn at(second: i64) -> Timestamp {
    "2036-01-10T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toy {
    pub of: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub says: String,
}

#[derive(Debug, Clone)]
pub struct World {
    pub role: ReplicaRole,
}

actions! { pub enum TakeOut {
    /// Takes the toy out of its box.
    TakeOut => ActionKind::destructive("release").needs(&[Permission::on(BOXES, "get"), Permission::on(BOXES, "patch")]),
} }

rules! { pub enum Rule for Toys {
    /// It must stay.
    Glued => glued,
    /// Every replica may take it out.
    Certain => certain,
    /// The leader takes it out in time.
    InTime => in_time,
    /// It stays.
    Stays => stays,
} }

fn glued(toy: &Toy, _: &World, _: Timestamp) -> Option<RuleMatch<TakeOut>> {
    (toy.says == "?").then(|| RuleMatch::refuse(None, "it is glued"))
}

fn certain(toy: &Toy, _: &World, _: Timestamp) -> Option<RuleMatch<TakeOut>> {
    (toy.says == "!").then(|| RuleMatch::act(TakeOut::TakeOut, at(0), "it is certain"))
}

fn in_time(toy: &Toy, world: &World, now: Timestamp) -> Option<RuleMatch<TakeOut>> {
    let due = at(toy.says.parse().ok()?);
    Some(match world.role {
        ReplicaRole::Standby => RuleMatch::nothing("the leader takes it out"),
        ReplicaRole::Leader => RuleMatch::act_after(due, TakeOut::TakeOut, now, "it has its time"),
    })
}

fn stays(_: &Toy, _: &World, _: Timestamp) -> Option<RuleMatch<TakeOut>> {
    Some(RuleMatch::nothing("it stays"))
}

pub fn box_ref(toy: &Toy) -> ObjectRef<'_> {
    let (namespace, name, uid) = (Some(NAMESPACE), toy.of.as_str(), toy.uid.as_str());
    ObjectRef { api_version: "v1", kind: "ConfigMap", namespace, name, uid }
}

impl Keeper for Toys {
    type Subject = Toy;
    type World = World;
    type Action = TakeOut;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        "toys"
    }

    fn subject_ref<'a>(&self, toy: &'a Toy) -> SubjectRef<'a> {
        SubjectRef { kind: "Toy", namespace: None, name: &toy.name, uid: &toy.uid, object: box_ref(toy) }
    }

    fn facts(&self, toy: &Toy, _: Timestamp) -> Vec<(&'static str, String)> {
        vec![("says", toy.says.clone())]
    }

    fn simulate_action(&self, _: Toy, _: &TakeOut, _: &World, _: Timestamp) -> Option<Toy> {
        None
    }

    fn membership<'a>(&self, toy: &'a Toy) -> Membership<'a> {
        Membership { group: Some(&toy.of), ..Membership::default() }
    }

    fn record_verdict(&self, _: &mut Toy, _: &VerdictOf<Self>, _: Timestamp) -> bool {
        self.judged.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// A box, as the API server delivers it.
#[derive(Debug, Clone, Deserialize)]
pub struct ToyBox {
    metadata: Meta,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl PartialObject for ToyBox {
    fn metadata(&self) -> &Meta {
        &self.metadata
    }
}

/// The toys of a box, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Inside {
    uid: String,
    resource_version: String,
    toys: BTreeMap<String, String>,
}

impl Inside {
    pub fn project(found: ToyBox) -> Option<Self> {
        let ToyBox { metadata, data: toys } = found;
        let (uid, resource_version) = (metadata.uid, metadata.resource_version);
        metadata.name.starts_with("box").then_some(Self { uid, resource_version, toys })
    }
}

/// The change that says what a box holds.
pub fn change(name: &str, toys: &[(&str, &str)]) -> (SourceRef, Change<Inside>) {
    let toys = toys.iter().map(|(toy, says)| ((*toy).to_owned(), (*says).to_owned())).collect();
    let inside = Inside { uid: format!("uid-{name}"), resource_version: String::new(), toys };
    let id = ObjectId { namespace: Some(NAMESPACE.to_owned()), uid: inside.uid.clone(), ..ObjectId::named(name) };
    (SourceRef { id: BOXES, resource: None }, Change::apply(id, inside))
}

/// The boxes that are known.
#[derive(Debug, Default, Clone)]
pub struct Shelf {
    boxes: BTreeMap<String, Inside>,
    dirty: BTreeSet<(String, String)>,
}

impl Cache for Shelf {
    type Row = Inside;
    /// The box and the toy.
    type Key = (String, String);
    type Subject = Toy;

    fn update(&mut self, _: &SourceRef, change: Change<Inside>) {
        let (id, after) = match change {
            Change::Apply(Observed { id, row, .. }) => (id, Some(row)),
            Change::Delete(id) => (id, None),
            _ => return,
        };
        let toys = |inside: Option<&Inside>| inside.map(|inside| inside.toys.clone()).unwrap_or_default();
        let (before, now) = (toys(self.boxes.get(&id.name)), toys(after.as_ref()));
        let changed = before.keys().chain(now.keys()).filter(|toy| before.get(*toy) != now.get(*toy));
        self.dirty.extend(changed.map(|toy| (id.name.clone(), toy.clone())));
        match after {
            Some(inside) => self.boxes.insert(id.name, inside),
            None => self.boxes.remove(&id.name),
        };
    }

    fn take_dirty(&mut self) -> BTreeSet<(String, String)> {
        std::mem::take(&mut self.dirty)
    }

    fn keys(&self) -> Vec<(String, String)> {
        let keys = |(of, inside): (&String, &Inside)| {
            inside.toys.keys().map(|toy| (of.clone(), toy.clone())).collect::<Vec<_>>()
        };
        self.boxes.iter().flat_map(keys).collect()
    }

    fn subjects_for(&self, (of, name): &(String, String)) -> Vec<Toy> {
        let toy = || {
            let inside = self.boxes.get(of)?;
            let (uid, resource_version) = (inside.uid.clone(), inside.resource_version.clone());
            let says = inside.toys.get(name)?.clone();
            Some(Toy { of: of.clone(), name: name.clone(), uid, resource_version, says })
        };
        toy().into_iter().collect()
    }

    fn extract(&self, keys: &BTreeSet<(String, String)>) -> Self {
        let boxes = keys.iter().filter_map(|(of, _)| Some((of.clone(), self.boxes.get(of)?.clone()))).collect();
        Self { boxes, dirty: BTreeSet::new() }
    }

    /// A box with a bad name is reported wherever one of its toys is judged.
    fn invalid_objects(&self, (of, _): &(String, String)) -> Vec<InvalidObject> {
        let invalid = InvalidObject {
            api_version: "v1".to_owned(),
            kind: "ConfigMap",
            namespace: None,
            name: of.clone(),
            uid: String::new(),
            because: "it is a bad box".to_owned(),
        };
        if of.ends_with("bad") { vec![invalid] } else { Vec::new() }
    }
}

impl Controller for Toys {
    type Cache = Shelf;

    fn sources(&self) -> Vec<Source<Shelf>> {
        let boxes = Source::watch(BOXES, resource("", "v1", "ConfigMap", "configmaps"), Inside::project);
        let boxes = boxes.resync(self.resync);
        let boxes = if let Some(fields) = self.fields { boxes.fields(fields) } else { boxes };
        std::iter::once(boxes).chain((self.more)()).collect()
    }

    fn world(&self, _: &Shelf, role: ReplicaRole, _: Timestamp) -> World {
        World { role }
    }

    fn leadership(&self) -> Leadership {
        Leadership::Lease { standby: Standby::ActsAtResync }
    }

    fn write_target(&self, toy: &Toy) -> WriteTarget {
        WriteTarget::new(toy.of.as_str()).max_batch(self.max_batch).min_interval(self.min_interval)
    }

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        let toys = batch.actions();
        let out: BTreeMap<&str, Value> = toys.iter().map(|one| (one.subject.name.as_str(), Value::Null)).collect();
        let first = &toys[0].subject;
        let written = writer.merge_patch(box_ref(first), &first.resource_version, json!({ "data": out })).await;
        BatchResult(toys.iter().map(|_| written.clone().map(drop)).collect())
    }
}
