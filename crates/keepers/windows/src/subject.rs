//! What is judged, and the world it is judged in: plain data.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_core::parsed::{InvalidValue, Parsed, quoted};
use caretaker_core::window::{Window, WindowState};
use caretaker_core::{ObjectRef, SignedDuration, Timestamp, time};
use wildmatch::WildMatch;

use crate::api::Switch;

/// A Flux object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FluxObject {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The resourceVersion that was observed.
    pub resource_version: String,
    /// It is being deleted.
    pub is_deleting: bool,
    /// Its labels, by which rules select it.
    pub labels: BTreeMap<String, String>,
    /// How its kind is suspended.
    pub switch: Switch,
    /// Its kind has a status.
    pub has_status: bool,
    /// The window of its annotation.
    pub during: Parsed<Arc<Window>>,
    /// `spec.suspend`, or whether the annotation switches its controller off; `None` if it is not set.
    pub suspended: Option<bool>,
    /// The field managers that have set it.
    pub managers: Vec<Manager>,
    /// The end of the window for which the keeper suspends it; only if the keeper itself wrote it.
    pub held_until: Option<Timestamp>,
    /// Somebody resumed it inside its window, and that is respected until this time.
    pub yielded_until: Parsed<Timestamp>,
    /// The keeper itself wrote that.
    pub is_own_yield: bool,
    /// What `caretaker suspend` has ordered.
    pub order: Order,
    /// `caretaker suspend --until`: when the keeper ends that suspension.
    pub suspended_until: Parsed<Timestamp>,
    /// Why somebody suspended it.
    pub reason: Option<String>,
    /// Who suspended it.
    pub by: Option<String>,
    /// The revision that was applied last.
    pub revision: Option<String>,
    /// The condition that shows its suspension.
    pub condition: Option<Condition>,
    /// All of its conditions, as JSON: a list that can only be written as a whole.
    pub conditions: Box<str>,
    /// `status.suspended`, where the served schema keeps it.
    pub status_suspended: Option<bool>,
    /// What its spec says about other objects, and what others say about it.
    pub relations: Relations,
}

/// What an object has to do with others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Relations {
    /// The annotations of Caretaker that it has.
    pub own_annotations: Vec<String>,
    /// The Kustomization that applies it leaves it alone: an annotation says so.
    pub is_detached: bool,
    /// The objects of its kind that must be ready before it is applied.
    pub depends_on: Vec<Name>,
    /// It waits until everything that it applies is ready.
    pub waits: bool,
    /// Its condition `Ready` is `True`.
    pub is_ready: bool,
    /// The objects that it applies without the field that suspends them.
    pub ignores: Vec<IgnoreTarget>,
    /// The Kustomization that applies it leaves that field alone. Only the cache knows it.
    pub is_ignored: bool,
    /// The objects of its kind that wait for it. Only the cache knows them.
    pub dependents: Vec<Name>,
    /// The Kustomization that applies it and waits until it is ready. Only the cache knows it.
    pub awaited_by: Option<Name>,
}

/// Namespace and name.
pub type Name = (String, String);

/// The target of a rule in `spec.ignore` of a Kustomization: what is `None` selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoreTarget {
    /// The kind.
    pub kind: Option<String>,
    /// The namespace.
    pub namespace: Option<String>,
    /// The name.
    pub name: Option<String>,
}

impl IgnoreTarget {
    /// True if it selects this object. Patterns are not read: what they select is in doubt.
    #[must_use]
    pub fn selects(&self, object: &FluxObject) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        is(&self.kind, object.kind) && is(&self.namespace, &object.namespace) && is(&self.name, &object.name)
    }
}

/// A field manager that has set the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// Its name.
    pub name: String,
    /// It declares the field by server-side apply, and will do so again.
    pub applies: bool,
}

/// What `caretaker suspend` has ordered, as the field manager of the commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    #[default]
    None,
    /// The field is set, or a window.
    Active {
        /// The window of the annotation is part of it, and goes with it.
        has_window: bool,
    },
    /// Somebody removed the field and the window; reason, author and end are left.
    Removed,
}

/// The condition that shows a suspension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `True`, or `Unknown` for an expression that cannot be read.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

impl FluxObject {
    /// The object in the API.
    #[must_use]
    pub fn object(&self) -> ObjectRef<'_> {
        let Self { api_version, kind, namespace, name, uid, .. } = self;
        ObjectRef { api_version, kind, namespace: Some(namespace), name, uid }
    }

    /// What cannot be read of its annotations.
    #[must_use]
    pub fn invalid(&self) -> Option<&InvalidValue> {
        self.during.invalid().or(self.yielded_until.invalid()).or(self.suspended_until.invalid())
    }

    /// True if its controller leaves it alone.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended == Some(true)
    }

    /// True if the keeper has set the field.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_suspended() && self.is_managed_by(crate::api::FIELD_MANAGER)
    }

    /// True if anything of the keeper is on it, apart from what only shows its state.
    #[must_use]
    pub fn has_traces(&self) -> bool {
        self.held_until.is_some() || self.is_own_yield || self.is_managed_by(crate::api::FIELD_MANAGER)
    }

    /// True if this field manager has set the field.
    #[must_use]
    pub fn is_managed_by(&self, name: &str) -> bool {
        self.managers.iter().any(|manager| manager.name == name)
    }

    /// When the keeper ends what `caretaker suspend` has ordered.
    #[must_use]
    pub fn order_until(&self) -> Option<Timestamp> {
        self.suspended_until.value().filter(|_| self.order != Order::None)
    }

    /// True if the window of its annotation is part of what `caretaker suspend` has ordered.
    #[must_use]
    pub fn order_has_window(&self) -> bool {
        self.order == Order::Active { has_window: true }
    }

    /// Who declares the field by server-side apply, apart from the keeper and the commands.
    #[must_use]
    pub fn declared_by(&self) -> Option<&str> {
        let own = [crate::api::FIELD_MANAGER, crate::api::CLI_FIELD_MANAGER];
        let others = self.managers.iter().filter(|manager| manager.applies && !own.contains(&manager.name.as_str()));
        others.map(|manager| manager.name.as_str()).next()
    }

    /// Who declares that it is not suspended, so that a window cannot suspend it. Nobody if the Kustomization that
    /// applies it leaves it alone, or at least the field.
    #[must_use]
    pub fn pinned_by(&self) -> Option<&str> {
        let is_free = self.relations.is_detached || self.relations.is_ignored;
        self.declared_by().filter(|_| self.suspended == Some(false) && !is_free)
    }

    /// Everything that rules look at, for people.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let moment = |at: &Timestamp| format!("{} ({})", time::format(*at), time::ago(*at, now));
        let shown = |parsed: &Parsed<Timestamp>| match parsed {
            Parsed::Missing => None,
            Parsed::Valid(at) => Some(moment(at)),
            Parsed::Invalid(invalid) => Some(format!("{} ({})", quoted(&invalid.value), invalid.reason)),
        };
        let during = match &self.during {
            Parsed::Missing => "not set".to_owned(),
            Parsed::Valid(window) => window.to_string(),
            Parsed::Invalid(invalid) => format!("{} ({})", quoted(&invalid.value), invalid.reason),
        };
        let mut facts = vec![("suspendedDuring", during)];
        let suspended = match self.suspended {
            None => "not set",
            Some(true) => "true",
            Some(false) => "false",
        };
        let managers = self.managers.iter().map(|manager| manager.name.as_str()).collect::<Vec<_>>().join(", ");
        let by = if managers.is_empty() { String::new() } else { format!(", set by {managers}") };
        facts.push(("suspended", format!("{suspended}{by}")));
        facts.extend(self.held_until.as_ref().map(|at| ("held until", moment(at))));
        facts.extend(shown(&self.yielded_until).map(|at| ("yielded until", at)));
        facts.extend(shown(&self.suspended_until).map(|at| ("ordered until", at)));
        facts.extend(self.reason.as_ref().map(|reason| ("reason", reason.clone())));
        facts.extend(self.by.as_ref().map(|by| ("by", by.clone())));
        facts.extend(self.revision.as_ref().map(|revision| ("revision", revision.clone())));
        let names =
            |names: &[Name]| names.iter().map(|(ns, name)| format!("{ns}/{name}")).collect::<Vec<_>>().join(", ");
        let Relations { dependents, awaited_by, is_detached, .. } = &self.relations;
        facts.extend((!dependents.is_empty()).then(|| ("dependents", names(dependents))));
        facts.extend(awaited_by.as_ref().map(|parent| ("awaited by", names(std::slice::from_ref(parent)))));
        facts.extend(is_detached.then(|| ("detached", format!("{}: {}", crate::api::DETACHED, crate::api::DISABLED))));
        facts.extend(self.relations.is_ignored.then(|| ("ignored", "its parent ignores /spec/suspend".to_owned())));
        facts.extend(
            self.condition.as_ref().map(|c| ("condition", format!("{} {}: {}", c.status, c.reason, c.message))),
        );
        facts
    }
}

/// What is not the object's own.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// The settings.
    pub policy: Arc<Policy>,
    /// For each kind whether the API server keeps `status.suspended`, as far as its answers have shown.
    pub keeps_status: BTreeMap<&'static str, bool>,
}

/// The settings that rules look at.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The zone of windows that name none.
    pub zone: jiff::tz::TimeZone,
    /// What happens when somebody resumes an object inside its window.
    pub on_resume: OnResume,
    /// Whether a condition shows the suspension.
    pub show_condition: bool,
    /// Kinds whose controllers honour the annotation themselves: nothing of theirs is written.
    pub native_kinds: Vec<String>,
    /// Windows for many objects.
    pub rules: Vec<WindowRule>,
    /// Over how long the resumes at one end of a window are spread.
    pub resume_jitter: SignedDuration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            zone: jiff::tz::TimeZone::UTC,
            on_resume: OnResume::Yield,
            show_condition: true,
            native_kinds: Vec::new(),
            rules: Vec::new(),
            resume_jitter: SignedDuration::ZERO,
        }
    }
}

/// What happens when somebody resumes an object inside its window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnResume {
    /// It stays resumed until the next window.
    #[default]
    Yield,
    /// It is suspended again.
    Enforce,
}

/// A window of the settings for many objects.
#[derive(Debug, Clone)]
pub struct WindowRule {
    /// The kinds; empty: every kind.
    pub kinds: Vec<String>,
    /// The namespaces; empty: every namespace.
    pub namespaces: Vec<WildMatch>,
    /// Labels that the object must have.
    pub labels: BTreeMap<String, String>,
    /// When they are suspended.
    pub during: Arc<Window>,
    /// Why, for people.
    pub reason: Option<String>,
}

impl WindowRule {
    fn selects(&self, object: &FluxObject) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == object.kind);
        let namespace = self.namespaces.is_empty() || self.namespaces.iter().any(|n| n.matches(&object.namespace));
        kind && namespace && self.labels.iter().all(|(key, value)| object.labels.get(key) == Some(value))
    }
}

/// The windows of an object taken together, at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// Whether one is open, since when, and until when none is.
    pub state: WindowState,
    /// Which: `* 0-4 * * *`, or `rule * 0-4 * * * (release freeze)`.
    pub because: String,
}

impl Policy {
    /// True if an object has a window, of its own or by the settings.
    #[must_use]
    pub fn has_window(&self, object: &FluxObject) -> bool {
        object.during.get().is_some() || self.has_rule_for(object)
    }

    /// True if a rule of the settings gives an object a window.
    #[must_use]
    pub fn has_rule_for(&self, object: &FluxObject) -> bool {
        self.rules.iter().any(|rule| rule.selects(object))
    }

    /// The windows of an object at a time; `None` if it has none. If any of its annotations cannot be read, its own
    /// window suspends nothing, and those of the settings still do.
    #[must_use]
    pub fn effective(&self, object: &FluxObject, now: Timestamp) -> Option<Effective> {
        let own = object.during.get().filter(|_| object.invalid().is_none());
        let own = own.map(|window| (window.as_ref(), format!("window {}", window.quoted())));
        let rules = self.rules.iter().filter(|rule| rule.selects(object)).map(|rule| {
            let reason = rule.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            (rule.during.as_ref(), format!("window {} of the settings{reason}", rule.during.quoted()))
        });
        let windows: Vec<(&Window, String)> = own.into_iter().chain(rules).collect();
        let open: Vec<&str> =
            windows.iter().filter(|(window, _)| window.is_open(now)).map(|(_, words)| words.as_str()).collect();
        let all: Vec<&Window> = windows.iter().map(|(window, _)| *window).collect();
        let state = union_state(&all, now)?;
        let because = if open.is_empty() { windows.first()?.1.clone() } else { open.join(" and ") };
        Some(Effective { state, because })
    }
}

/// How many ends are followed in search of a moment at which no window is open.
const MOST_ENDS: usize = 1_000;

/// The state of several windows together: open while one of them is.
fn union_state(windows: &[&Window], now: Timestamp) -> Option<WindowState> {
    let states: Vec<WindowState> = windows.iter().map(|window| window.state_at(now)).collect();
    let open: Vec<&WindowState> = states.iter().filter(|state| state.open).collect();
    if open.is_empty() {
        let since = states.iter().filter_map(|state| state.since).max();
        let until = states.iter().filter_map(|state| state.until).min();
        return (!states.is_empty()).then_some(WindowState { open: false, since, until });
    }
    let since = open.iter().map(|state| state.since).min().flatten();
    // Where one ends another may go on, and another one may have begun meanwhile.
    let mut until = now;
    for _ in 0..MOST_ENDS {
        let ends: Option<Vec<Timestamp>> = windows
            .iter()
            .filter(|window| window.is_open(until))
            .map(|window| window.next_edge(until).map(|edge| edge.at))
            .collect();
        match ends.as_deref() {
            None => return Some(WindowState { open: true, since, until: None }),
            Some([]) => return Some(WindowState { open: true, since, until: Some(until) }),
            Some(ends) => until = ends.iter().copied().max().unwrap_or(until),
        }
    }
    Some(WindowState { open: true, since, until: Some(until) })
}
