//! What has been seen of a cluster so far, kept up to date object by object.
//!
//! Plain data: whoever feeds it, a folder, one pass or a watch, gets the same subjects out of it.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::limits::Population;
use caretaker_core::{Parsed, Timestamp};

use caretaker_engine::keep::{Index, Refusal};

use super::{Manifest, Meta, home, is_of_our_group, is_single, row, subject};
use crate::Namespaces;
use crate::act::carry_out::Sight;
use crate::api::{self, Activity, State};
use crate::subject::{Kind, Subject};
use crate::workload::{Workload, WorkloadKind};

/// The rule under which a record of a workload is reported that cannot be read.
pub const BROKEN_RECORD: &str = "BrokenRecord";

/// What has been seen of a cluster so far.
#[derive(Debug, Default)]
pub struct Observation {
    namespaces: BTreeMap<String, Box<Subject>>,
    /// By the namespace they are in, as everything below.
    singles: BTreeMap<String, BTreeMap<(Kind, String), Subject>>,
    /// In the order of kind and name.
    workloads: BTreeMap<String, Vec<Workload>>,
    claims: BTreeMap<String, BTreeSet<String>>,
    kept: BTreeMap<String, BTreeSet<String>>,
    /// Whatever makes the API server call a Service, by the namespace of the Service.
    serves: BTreeMap<String, BTreeSet<Name>>,
    /// The same the other way round.
    calls: BTreeMap<Name, BTreeSet<String>>,
    /// What a list that is under way has not shown yet, by kind.
    unseen: BTreeMap<String, BTreeSet<Name>>,
    /// Namespaces in which something has changed.
    touched: BTreeSet<String>,
    /// Uses that were heard of and are not written down yet.
    uses: BTreeMap<String, Activity>,
    /// What is known to be deleted, by its identity, before the watch tells so.
    gone: BTreeSet<String>,
}

/// A namespace and a name, or a kind and a name.
type Name = (String, String);

impl Observation {
    fn add_workload(&mut self, kind: WorkloadKind, object: &Manifest) {
        let meta = &object.metadata;
        let mut row = row(kind, object);
        if kind == WorkloadKind::Deployment {
            self.add_single(Kind::Deployment, object, Some(row.clone()));
            let states = [State::Sleep, State::Sleeping, State::Deleting];
            let asleep = meta.label(api::STATE).is_some_and(|label| states.iter().any(|s| s.name() == label));
            row.own_sleep = is_single(meta) && asleep && !row.excluded;
        }
        let rows = self.workloads.entry(home(meta)).or_default();
        let place = rows.partition_point(|w| (w.kind, &w.name) < (kind, &row.name));
        rows.insert(place, row);
    }

    /// A Deployment or Service with labels of its own is a subject of its own.
    fn add_single(&mut self, kind: Kind, object: &Manifest, row: Option<Workload>) {
        if is_single(&object.metadata) {
            let mut subject = subject(kind, object);
            subject.workloads = row.into_iter().collect();
            let singles = self.singles.entry(home(&object.metadata)).or_default();
            singles.insert((kind, object.metadata.name.clone()), subject);
        }
    }

    fn add_caller(&mut self, kind: &str, object: &Manifest) {
        let webhooks = object.webhooks.iter().chain([&object.spec.conversion.webhook]);
        let services = webhooks.filter_map(|w| w.client_config.service.as_ref()).chain(&object.spec.service);
        let homes: BTreeSet<String> = services.map(|s| s.namespace.clone()).filter(|home| !home.is_empty()).collect();
        if homes.is_empty() {
            return;
        }
        let caller = (kind.to_owned(), object.metadata.name.clone());
        for home in &homes {
            self.serves.entry(home.clone()).or_default().insert(caller.clone());
            self.touched.insert(home.clone());
        }
        self.calls.insert(caller, homes);
    }

    /// A namespace was used; so it is judged, until its object says the same.
    pub fn used(&mut self, home: &str, activity: Activity) {
        let known = self.uses.get(home).map(|a| a.at);
        if self.namespaces.contains_key(home) && known.is_none_or(|known| known < activity.at) {
            self.uses.insert(home.to_owned(), activity);
            self.touched.insert(home.to_owned());
        }
    }

    /// When a namespace was last used, written down or only heard of.
    #[must_use]
    pub fn last_use(&self, home: &str) -> Option<Timestamp> {
        let said = self.namespaces.get(home).and_then(|ns| ns.activity.get());
        [said, self.uses.get(home)].into_iter().flatten().map(|a| a.at).max()
    }

    /// Whether a use is known that was not when a subject was judged.
    #[must_use]
    pub fn was_used_since(&self, subject: &Subject) -> bool {
        subject.kind == Kind::Namespace && self.last_use(subject.home()) > subject.activity.get().map(|a| a.at)
    }

    /// What a namespace says about itself; what stands around it is not part of it.
    #[must_use]
    pub fn namespace(&self, home: &str) -> Option<&Subject> {
        self.namespaces.get(home).map(|ns| &**ns)
    }

    /// A subject was deleted; what the watch still tells of its life is passed over.
    pub fn deleted(&mut self, subject: &Subject) {
        self.gone.insert(subject.uid.clone());
        let mut gone = Meta::default();
        gone.name.clone_from(&subject.name);
        gone.namespace = subject.namespace.clone().unwrap_or_default();
        self.forget(subject.kind.name(), &gone);
    }

    fn forget(&mut self, kind: &str, meta: &Meta) {
        let (home, name) = (home(meta), &meta.name);
        match kind {
            "Namespace" => {
                self.namespaces.remove(name);
                self.touched.insert(name.clone());
                return;
            }
            "PersistentVolumeClaim" => drop_from(&mut self.claims, &home, |claims| _ = claims.remove(name)),
            "Service" => {
                drop_from(&mut self.kept, &home, |kept| _ = kept.remove(name));
                drop_from(&mut self.singles, &home, |singles| _ = singles.remove(&(Kind::Service, name.clone())));
            }
            _ => match WorkloadKind::named(kind) {
                Some(workload) => {
                    drop_from(&mut self.workloads, &home, |rows| {
                        rows.retain(|w| w.kind != workload || w.name != *name);
                    });
                    if workload == WorkloadKind::Deployment {
                        let single = (Kind::Deployment, name.clone());
                        drop_from(&mut self.singles, &home, |singles| _ = singles.remove(&single));
                    }
                }
                None => return self.forget_caller(kind, name),
            },
        }
        self.touched.insert(home);
    }

    fn forget_caller(&mut self, kind: &str, name: &str) {
        let caller = (kind.to_owned(), name.to_owned());
        for home in self.calls.remove(&caller).unwrap_or_default() {
            drop_from(&mut self.serves, &home, |callers| _ = callers.remove(&caller));
            self.touched.insert(home);
        }
    }

    /// Puts together what stands in different objects.
    fn assemble(&self, home: &str, namespace: Option<Subject>, singles: impl Iterator<Item = Subject>) -> Vec<Subject> {
        let serves = self.serves.get(home).and_then(BTreeSet::first).map(|(kind, name)| format!("{kind}/{name}"));
        let mut subjects: Vec<Subject> = namespace.into_iter().collect();
        let around = subjects.first().map(|ns| {
            let woken = ns.activity.get().filter(|a| a.by == "HandSleepOver").map(|a| a.at);
            (ns.is_asleep() || ns.state() == State::Sleeping, ns.hand_sleep_until.value(), woken)
        });
        for ns in &mut subjects {
            if let Some(heard) = self.uses.get(home)
                && ns.activity.get().is_none_or(|said| said.at < heard.at)
                && ns.activity.invalid().is_none()
            {
                ns.activity = Parsed::Valid(heard.clone());
            }
            ns.claims = self.claims.get(home).map_or(0, BTreeSet::len);
            ns.kept = self.kept.get(home).into_iter().flatten().map(|name| format!("Service/{name}")).collect();
            ns.serves.clone_from(&serves);
        }
        for mut single in singles {
            (single.home_asleep, single.home_hand_until, single.home_woken) = around.unwrap_or_default();
            single.serves.clone_from(&serves);
            subjects.push(single);
        }
        subjects
    }

    /// Whether something newer of the same object is known: what was written is noted at once, and
    /// the watch tells of what was before it.
    fn is_old_news(&self, kind: &str, meta: &Meta) -> bool {
        let known = match (kind, WorkloadKind::named(kind)) {
            ("Namespace", _) => self.namespaces.get(&meta.name).map(|ns| (&ns.uid, &ns.resource_version)),
            (_, Some(workload)) => {
                let rows = self.workloads.get(&home(meta)).map(Vec::as_slice).unwrap_or_default();
                let row = rows.iter().find(|w| w.kind == workload && w.name == meta.name);
                row.map(|w| (&w.uid, &w.resource_version))
            }
            _ => None,
        };
        let number = |version: &str| version.parse::<u64>().ok();
        known.is_some_and(|(uid, version)| {
            *uid == meta.uid && number(version).zip(number(&meta.resource_version)).is_some_and(|(has, new)| new < has)
        })
    }
}

impl Index<Namespaces> for Observation {
    fn begin(&mut self, kind: &str) {
        let names = match kind {
            "Namespace" => self.namespaces.keys().map(|name| (String::new(), name.clone())).collect(),
            "PersistentVolumeClaim" => all(&self.claims, |claims| claims.iter()),
            "Service" => {
                let mut names = all(&self.kept, |kept| kept.iter());
                names.extend(all(&self.singles, |s| s.keys().filter(|k| k.0 == Kind::Service).map(|k| &k.1)));
                names
            }
            _ => match WorkloadKind::named(kind) {
                Some(workload) => {
                    all(&self.workloads, |rows| rows.iter().filter(|w| w.kind == workload).map(|w| &w.name))
                }
                None => self
                    .calls
                    .keys()
                    .filter(|(k, _)| k == kind)
                    .map(|(_, name)| (String::new(), name.clone()))
                    .collect(),
            },
        };
        self.unseen.insert(kind.to_owned(), names);
    }

    fn add(&mut self, kind: &str, object: &Manifest) {
        if !is_of_our_group(kind, &object.api_version) {
            return;
        }
        let meta = &object.metadata;
        if let Some(unseen) = self.unseen.get_mut(kind) {
            unseen.remove(&name(meta));
        }
        if self.is_old_news(kind, meta) || self.gone.contains(&meta.uid) {
            return;
        }
        self.forget(kind, meta);
        let home = home(meta);
        match kind {
            "Namespace" => {
                let ns = subject(Kind::Namespace, object);
                let said = ns.activity.get().map(|a| a.at);
                if self.uses.get(&meta.name).is_some_and(|heard| said.is_some_and(|said| said >= heard.at)) {
                    self.uses.remove(&meta.name);
                }
                self.namespaces.insert(meta.name.clone(), Box::new(ns));
            }
            "PersistentVolumeClaim" => {
                self.claims.entry(home).or_default().insert(meta.name.clone());
            }
            "Service" => {
                if api::read_exclude(meta.label(api::EXCLUDE)) {
                    self.kept.entry(home).or_default().insert(meta.name.clone());
                }
                self.add_single(Kind::Service, object, None);
            }
            // What somebody else controls is not scaled on its own.
            "ReplicaSet" if meta.owner_references.iter().any(|o| o.controller) => {}
            _ => match WorkloadKind::named(kind) {
                Some(workload) => self.add_workload(workload, object),
                None => self.add_caller(kind, object),
            },
        }
    }

    fn complete(&mut self, kind: &str) {
        self.gone.clear();
        for (namespace, name) in self.unseen.remove(kind).unwrap_or_default() {
            let mut gone = Meta::default();
            (gone.name, gone.namespace) = (name, namespace);
            self.forget(kind, &gone);
        }
    }

    fn remove(&mut self, kind: &str, object: &Manifest) {
        if is_of_our_group(kind, &object.api_version) {
            if kind == "Namespace" {
                self.uses.remove(&object.metadata.name);
            }
            self.gone.remove(&object.metadata.uid);
            self.forget(kind, &object.metadata);
        }
    }

    fn see(&mut self, sight: &Sight) {
        match sight {
            Sight::Is(kind, object) => self.add(kind, object),
            Sight::Gone(subject) => self.deleted(subject),
        }
    }

    fn take_touched(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.touched)
    }

    fn homes(&self) -> Vec<String> {
        let singles = self.singles.keys().filter(|home| !self.namespaces.contains_key(*home));
        self.namespaces.keys().chain(singles).cloned().collect()
    }

    fn knows(&self, home: &String) -> bool {
        self.namespaces.contains_key(home)
    }

    fn at_home(&self, home: &String) -> Vec<Subject> {
        let namespace = self.namespaces.get(home).map(|ns| Subject {
            workloads: self.workloads.get(home).cloned().unwrap_or_default(),
            ..Subject::clone(ns)
        });
        let singles = self.singles.get(home).into_iter().flat_map(BTreeMap::values).cloned();
        self.assemble(home, namespace, singles)
    }

    fn subjects(mut self) -> Vec<Subject> {
        let homes = self.homes();
        let mut subjects = Vec::with_capacity(self.namespaces.len());
        let mut singles = Vec::new();
        for home in &homes {
            let namespace = self
                .namespaces
                .remove(home)
                .map(|ns| Subject { workloads: self.workloads.remove(home).unwrap_or_default(), ..*ns });
            let inside = self.singles.remove(home).unwrap_or_default().into_values();
            let found = self.assemble(home, namespace, inside);
            for subject in found {
                if subject.kind == Kind::Namespace { subjects.push(subject) } else { singles.push(subject) }
            }
        }
        singles.sort_by(|a, b| (a.kind, &a.namespace, &a.name).cmp(&(b.kind, &b.namespace, &b.name)));
        subjects.extend(singles);
        subjects
    }

    /// Records of workloads that cannot be read.
    fn complaints(&self, home: &String, subjects: &[Subject]) -> Vec<Refusal> {
        let complains = |subject: &&Subject| subject.kind == Kind::Namespace && subject.inactive.is_none();
        let rows = subjects.iter().filter(complains).flat_map(|subject| &subject.workloads);
        let refusal = |row: &Workload| {
            let because = row.invalid()?.to_string();
            let (kind, name, uid) = (row.kind.name(), row.name.clone(), row.uid.clone());
            Some(Refusal { kind, namespace: Some(home.clone()), name, uid, rule: BROKEN_RECORD, because, on: None })
        };
        rows.filter_map(refusal).collect()
    }

    fn population(&self) -> Population {
        let paced = self.namespaces.len();
        Population {
            breaker_total: pace_total + self.singles.values().map(BTreeMap::len).sum::<usize>(),
            pace_total,
            queued: 0,
            removes: false,
        }
    }
}

fn name(meta: &Meta) -> Name {
    (meta.namespace.clone(), meta.name.clone())
}

fn all<'a, T, I: Iterator<Item = &'a String>>(
    homes: &'a BTreeMap<String, T>,
    names: impl Fn(&'a T) -> I,
) -> BTreeSet<Name> {
    homes.iter().flat_map(|(home, inside)| names(inside).map(|name| (home.clone(), name.clone()))).collect()
}

/// Changes what is kept for a namespace, and keeps nothing where nothing is left.
fn drop_from<T: Default + PartialEq>(homes: &mut BTreeMap<String, T>, home: &str, change: impl FnOnce(&mut T)) {
    if let Some(inside) = homes.get_mut(home) {
        change(inside);
        if *inside == T::default() {
            homes.remove(home);
        }
    }
}
