//! The windows on objects: which object has one, and what it says. An object without one costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_core::suspension::{Suspension, WindowAnnotation};
use caretaker_core::{Keeper, Next, ObjectRef, Timestamp, VerdictOf};
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ApiResource;

use crate::cache::is_newer_version;
use crate::events::event_target;
use crate::source::{Change, ObjectId, Observed, SourceRef, group_of};

/// The reason of Events about windows that somebody should look at.
pub const WINDOW_WARNING: &str = "WindowWarning";

/// An object with two windows, one in each spelling of the annotation.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowConflict {
    /// The object.
    pub regarding: ObjectReference,
    /// What to do about it.
    pub note: String,
}

/// The windows on the objects that sources deliver.
#[derive(Debug, Clone)]
pub struct ObjectWindows {
    /// The zone of windows that name none; `None` if windows hold nothing back, as the keeper does nothing that they
    /// could hold back. Then only those that somebody should correct are kept.
    zone: Option<TimeZone>,
    /// By the name of the object: few objects have a window, and fewer have the same name.
    by_name: BTreeMap<String, Vec<ObjectWindow>>,
    /// The number of the last list, by group and kind.
    lists: BTreeMap<(String, String), u32>,
    changed: bool,
}

#[derive(Debug, Clone)]
struct ObjectWindow {
    api_version: String,
    kind: String,
    id: ObjectId,
    /// The list that delivered it last.
    list: u32,
    window: Arc<Suspension>,
    /// That it is in conflict with another one was reported.
    is_reported: bool,
}

impl ObjectWindow {
    fn is_about(&self, group: &str, kind: &str, namespace: Option<&str>) -> bool {
        self.is_of(group, kind) && self.id.namespace.as_deref() == namespace
    }

    fn is_of(&self, group: &str, kind: &str) -> bool {
        group_of(&self.api_version) == group && self.kind == kind
    }

    fn object(&self) -> ObjectRef<'_> {
        let ObjectId { namespace, name, uid, .. } = &self.id;
        ObjectRef { api_version: &self.api_version, kind: &self.kind, namespace: namespace.as_deref(), name, uid }
    }

    fn conflict(&self) -> Option<WindowConflict> {
        let note = self.window.annotation().conflict()?.to_string();
        Some(WindowConflict { regarding: event_target(self.object()), note })
    }
}

impl Default for ObjectWindows {
    fn default() -> Self {
        Self::new(Some(TimeZone::UTC))
    }
}

impl ObjectWindows {
    /// None yet. Windows that name no zone are in this one; without a zone none holds anything back.
    #[must_use]
    pub fn new(zone: Option<TimeZone>) -> Self {
        Self { zone, by_name: BTreeMap::new(), lists: BTreeMap::new(), changed: false }
    }

    /// True if no object has a window that holds anything back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.zone.is_none() || self.by_name.is_empty()
    }

    /// The objects with two windows, one in each spelling of the annotation.
    pub fn conflicts(&self) -> impl Iterator<Item = WindowConflict> {
        self.by_name.values().flatten().filter_map(ObjectWindow::conflict)
    }

    /// Those of the conflicts that this call has not returned before.
    pub fn take_conflicts(&mut self) -> Vec<WindowConflict> {
        let new = self.by_name.values_mut().flatten().filter(|known| !known.is_reported);
        new.filter_map(|known| {
            known.is_reported = true;
            known.conflict()
        })
        .collect()
    }

    /// Makes [`take_conflicts`](Self::take_conflicts) return all of them again: another replica may have reported them.
    pub fn report_conflicts_again(&mut self) {
        self.by_name.values_mut().flatten().for_each(|known| known.is_reported = false);
    }

    /// The window on an object.
    #[must_use]
    pub fn on(&self, object: ObjectRef<'_>) -> Option<&Arc<Suspension>> {
        self.zone.as_ref()?;
        let group = group_of(object.api_version);
        let named = self.by_name.get(object.name)?;
        named.iter().find(|known| known.is_about(group, object.kind, object.namespace)).map(|known| &known.window)
    }

    /// Holds a verdict back, in place, if the window on the subject's object does not allow what it asks for now. True
    /// if it is held back.
    pub fn hold_back<K: Keeper>(
        &self,
        keeper: &K,
        subject: &K::Subject,
        verdict: &mut VerdictOf<K>,
        now: Timestamp,
    ) -> bool {
        // Of most verdicts and of most keepers nothing is held back.
        let is_act = matches!(verdict.next, Next::Act { .. });
        is_act
            && !self.is_empty()
            && self.on(keeper.subject_ref(subject).object).is_some_and(|window| window.hold_back(verdict, now))
    }

    /// True if a window has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Those of the windows that are on these objects.
    #[must_use]
    pub fn extract<'a>(&self, objects: impl Iterator<Item = ObjectRef<'a>>) -> Self {
        let mut extract = Self { zone: self.zone.clone(), lists: self.lists.clone(), ..Self::new(None) };
        if self.is_empty() {
            return extract;
        }
        for object in objects {
            let named = self.by_name.get(object.name).into_iter().flatten();
            let mut windows =
                named.filter(|known| known.is_about(group_of(object.api_version), object.kind, object.namespace));
            if let (None, Some(window)) = (extract.on(object), windows.next()) {
                extract.by_name.entry(object.name.to_owned()).or_default().push(window.clone());
            }
        }
        extract
    }

    /// Takes in a change of a kind that is watched, listed or read live, as the cache does.
    pub fn update<R>(&mut self, source: &SourceRef, change: &Change<R>) {
        let annotation = match change {
            Change::Apply(Observed { window: Some(annotation), .. }) => {
                Some(annotation).filter(|annotation| self.zone.is_some() || annotation.other.is_some())
            }
            _ => None,
        };
        // Most objects have none, and in most clusters no object has one.
        if self.by_name.is_empty() && annotation.is_none() {
            return;
        }
        let Some(resource) = &source.resource else { return };
        let list = self.lists.get(&(resource.group.clone(), resource.kind.clone())).copied().unwrap_or_default();
        match change {
            Change::Apply(Observed { id, .. }) => match annotation {
                Some(annotation) => self.insert(resource, id, annotation, list),
                None => self.remove(resource, id, |known| !(known.list == list && is_late(&known.id, id))),
            },
            Change::Delete(id) => self.remove(resource, id, |known| id.uid.is_empty() || known.id.uid == id.uid),
            Change::Init => {
                self.lists.insert((resource.group.clone(), resource.kind.clone()), list + 1);
            }
            Change::InitDone => {
                self.retain(|known| !known.is_of(&resource.group, &resource.kind) || known.list == list);
            }
            Change::CurrentUntil(_) | Change::Error(_) => {}
        }
    }

    fn insert(&mut self, resource: &ApiResource, id: &ObjectId, annotation: &WindowAnnotation, list: u32) {
        let zone = &self.zone.clone().unwrap_or(TimeZone::UTC);
        let named = self.by_name.entry(id.name.clone()).or_default();
        let of_object =
            named.iter_mut().find(|known| known.is_about(&resource.group, &resource.kind, id.namespace.as_deref()));
        match of_object {
            // A late event about the object before our own write. What a list delivers is newer than what was known when
            // it started, whatever the versions say.
            Some(known) if known.list == list && is_late(&known.id, id) => {}
            Some(known) => {
                (known.id, known.list) = (id.clone(), list);
                if known.window.annotation() != annotation {
                    known.window = Arc::new(Suspension::parse(annotation.clone(), zone));
                    (known.is_reported, self.changed) = (false, true);
                }
            }
            None => {
                let (api_version, kind) = (resource.api_version.clone(), resource.kind.clone());
                let window = Arc::new(Suspension::parse(annotation.clone(), zone));
                let id = id.clone();
                named.push(ObjectWindow { api_version, kind, id, list, window, is_reported: false });
                self.changed = true;
            }
        }
    }

    fn remove(&mut self, resource: &ApiResource, id: &ObjectId, is_it: impl Fn(&ObjectWindow) -> bool) {
        let Some(named) = self.by_name.get_mut(&id.name) else { return };
        let before = named.len();
        named
            .retain(|known| !known.is_about(&resource.group, &resource.kind, id.namespace.as_deref()) || !is_it(known));
        self.changed |= named.len() < before;
        if named.is_empty() {
            self.by_name.remove(&id.name);
        }
    }

    fn retain(&mut self, is_left: impl Fn(&ObjectWindow) -> bool) {
        for named in self.by_name.values_mut() {
            let before = named.len();
            named.retain(&is_left);
            self.changed |= named.len() < before;
        }
        self.by_name.retain(|_, named| !named.is_empty());
    }
}

/// True if an event is about an earlier version of the object than the one that is known.
fn is_late(known: &ObjectId, event: &ObjectId) -> bool {
    known.uid == event.uid && is_newer_version(&known.resource_version, &event.resource_version)
}

#[cfg(test)]
mod tests {
    use caretaker_core::suspension::{SUSPEND_DURING, SUSPENDED_DURING};

    use super::*;
    use crate::source::resource;

    fn pools() -> SourceRef {
        let resource = resource("example.com", "v1", "Pool", "pools");
        SourceRef { id: caretaker_core::SourceId("pools"), resource: Some(Arc::new(resource)) }
    }

    fn pool(name: &str) -> ObjectRef<'_> {
        ObjectRef { api_version: "example.com/v1", kind: "Pool", namespace: None, name, uid: "" }
    }

    fn id(name: &str, version: &str) -> ObjectId {
        ObjectId { uid: format!("uid-{name}"), resource_version: version.to_owned(), ..ObjectId::named(name) }
    }

    fn seen(name: &str, version: &str, window: Option<&str>) -> Change<()> {
        let window = window.map(|value| WindowAnnotation::new(SUSPENDED_DURING, value));
        Change::Apply(Observed { window, ..Observed::new(id(name, version), ()) })
    }

    fn window_on(windows: &ObjectWindows, name: &str) -> Option<String> {
        windows.on(pool(name)).map(|window| window.annotation().value.clone())
    }

    #[test]
    fn a_window_is_known_while_it_stands_on_its_object() {
        let (mut windows, source) = (ObjectWindows::default(), pools());
        windows.update(&source, &seen("a", "1", None));
        assert!(windows.is_empty() && !windows.take_changed(), "an object without a window costs nothing");

        windows.update(&source, &seen("a", "2", Some("@always")));
        assert_eq!((window_on(&windows, "a").as_deref(), windows.take_changed()), (Some("@always"), true));
        windows.update(&source, &seen("a", "3", Some("@always")));
        assert!(!windows.take_changed(), "another field of the object changed");
        windows.update(&source, &seen("a", "4", Some("@daily")));
        assert_eq!((window_on(&windows, "a").as_deref(), windows.take_changed()), (Some("@daily"), true));

        windows.update(&source, &seen("a", "3", None));
        assert_eq!(window_on(&windows, "a").as_deref(), Some("@daily"), "a late event");
        windows.update(&source, &seen("a", "5", None));
        assert!(windows.is_empty() && windows.take_changed());
    }

    #[test]
    fn a_window_goes_with_its_object() {
        let (mut windows, source) = (ObjectWindows::default(), pools());
        for name in ["a", "b", "c"] {
            windows.update(&source, &seen(name, "1", Some("@always")));
        }
        windows.update(&source, &Change::<()>::Delete(ObjectId { uid: "another".to_owned(), ..id("a", "2") }));
        assert!(windows.on(pool("a")).is_some(), "an object that had this name before");
        windows.update(&source, &Change::<()>::Delete(id("a", "2")));
        assert!(windows.on(pool("a")).is_none());

        windows.update(&source, &Change::<()>::Init);
        windows.update(&source, &seen("b", "1", Some("@always")));
        windows.update(&source, &Change::<()>::InitDone);
        assert!(windows.on(pool("b")).is_some() && windows.on(pool("c")).is_none(), "not in the list any more");
    }

    #[test]
    fn a_list_after_a_restore_of_etcd_counts_whatever_its_versions_are() {
        let (mut windows, source) = (ObjectWindows::default(), pools());
        windows.update(&source, &seen("a", "900", Some("@always")));
        windows.update(&source, &seen("b", "900", Some("@always")));

        windows.update(&source, &Change::<()>::Init);
        windows.update(&source, &seen("a", "100", Some("@daily")));
        windows.update(&source, &seen("b", "100", None));
        windows.update(&source, &Change::<()>::InitDone);

        assert_eq!((window_on(&windows, "a").as_deref(), window_on(&windows, "b")), (Some("@daily"), None));
    }

    #[test]
    fn a_keeper_that_nothing_holds_back_keeps_no_windows() {
        let mut windows = ObjectWindows::new(None);
        windows.update(&pools(), &seen("a", "1", Some("@always")));
        assert!(windows.is_empty() && windows.by_name.is_empty());

        windows.update(&pools(), &seen_twice("a", "2", "@always", "@daily"));
        assert!(windows.is_empty() && windows.on(pool("a")).is_none());
    }

    fn seen_twice(name: &str, version: &str, first: &str, second: &str) -> Change<()> {
        let annotations = [(SUSPENDED_DURING, first), (SUSPEND_DURING, second)];
        let window = WindowAnnotation::find(|key| Some(annotations.iter().find(|(known, _)| *known == key)?.1));
        Change::Apply(Observed { window, ..Observed::new(id(name, version), ()) })
    }

    #[test]
    fn two_windows_on_an_object_are_reported_once_until_they_change_and_again_by_another_leader() {
        let taken = |windows: &mut ObjectWindows| -> Vec<_> {
            windows.take_conflicts().into_iter().filter_map(|conflict| conflict.regarding.name).collect()
        };
        for zone in [None, Some(TimeZone::UTC)] {
            let (mut windows, source) = (ObjectWindows::new(zone), pools());
            windows.update(&source, &seen("a", "1", Some("@always")));
            windows.update(&source, &seen_twice("b", "1", "@always", "@daily"));
            windows.update(&source, &seen_twice("c", "1", "@always", "@always"));
            assert_eq!(taken(&mut windows), ["b"]);
            windows.update(&source, &seen_twice("b", "2", "@always", "@daily"));
            assert!(taken(&mut windows).is_empty(), "another field of the object changed");
            assert_eq!(windows.conflicts().count(), 1);

            windows.update(&source, &seen_twice("b", "3", "@always", "@hourly"));
            assert_eq!(taken(&mut windows), ["b"], "it says something else");
            windows.report_conflicts_again();
            assert_eq!(taken(&mut windows), ["b"]);
            windows.update(&source, &seen("b", "4", Some("@always")));
            assert_eq!(windows.conflicts().count(), 0, "it is corrected");
        }
    }

    #[test]
    fn an_extract_has_the_windows_of_the_objects_it_is_about() {
        let (mut windows, source) = (ObjectWindows::default(), pools());
        windows.update(&source, &seen("a", "1", Some("@always")));
        windows.update(&source, &seen("b", "1", Some("@always")));

        let extract = windows.extract([pool("a"), pool("a"), pool("c")].into_iter());

        assert!(extract.on(pool("a")).is_some() && extract.on(pool("b")).is_none());
        let other = ObjectRef { kind: "Lake", ..pool("a") };
        assert!(windows.on(other).is_none(), "another kind of that name");
    }
}
