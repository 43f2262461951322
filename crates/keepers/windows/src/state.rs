//! What users see of an object: whether it is suspended, by what, and when that changes.

use caretaker_core::Timestamp;

use crate::api;
use crate::subject::{FluxObject, World};

/// How many ends and beginnings are followed in search of a change.
const MOST_EDGES: usize = 100;

/// What suspends an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspendedBy {
    /// Nothing.
    Nothing,
    /// A person, Git or `caretaker suspend`, by the field.
    Spec,
    /// A window.
    Window,
    /// Both.
    Both,
}

impl SuspendedBy {
    /// The word in JSON; `None` for nothing.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Spec => Some("spec"),
            Self::Window => Some("window"),
            Self::Both => Some("both"),
        }
    }
}

/// When an object is suspended or resumed next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextChange {
    /// When.
    pub at: Timestamp,
    /// What it is from then on.
    pub suspended: bool,
}

/// The effective state of an object: `spec.suspend` or a window, as the proposal defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveState {
    /// What suspends it now.
    pub by: SuspendedBy,
    /// When that changes; `None` if it does not.
    pub next: Option<NextChange>,
    /// What the keeper has not done yet, if anything: it is late, or does not run.
    pub late: Option<&'static str>,
}

impl EffectiveState {
    /// The state of an object at a time.
    #[must_use]
    pub fn of(object: &FluxObject, world: &World, now: Timestamp) -> Self {
        let held = object.is_held();
        let window = is_open(object, world, now);
        let by = match (by_spec(object, now), window || held) {
            (true, true) => SuspendedBy::Both,
            (true, false) => SuspendedBy::Spec,
            (false, true) => SuspendedBy::Window,
            (false, false) => SuspendedBy::Nothing,
        };
        let native = world.policy.native_kinds.iter().any(|kind| kind == object.kind);
        let late = match (window, held) {
            (true, _) if !object.is_suspended() && !native => {
                Some("its window is open, and nothing has suspended it yet")
            }
            (false, true) => Some("its window is over, and it is still suspended"),
            _ => None,
        };
        let next = next_change(object, world, now).filter(|next| next.suspended != (by != SuspendedBy::Nothing));
        Self { by, next, late }
    }

    /// True if it is suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.by != SuspendedBy::Nothing
    }
}

/// True if the field suspends it at a time for another reason than a window.
fn by_spec(object: &FluxObject, at: Timestamp) -> bool {
    let is_over = object.order_until().is_some_and(|until| until <= at);
    let counts = |name: &str| name != api::FIELD_MANAGER && !(is_over && name == api::CLI_FIELD_MANAGER);
    object.is_suspended() && (object.managers.is_empty() || object.managers.iter().any(|manager| counts(&manager.name)))
}

/// True if a window suspends it at a time: one is open, nobody has resumed the object inside it, and Git does not declare
/// the opposite.
fn is_open(object: &FluxObject, world: &World, at: Timestamp) -> bool {
    let is_yielded = object.yielded_until.value().is_some_and(|until| until > at);
    let is_refused = object.suspended == Some(false) && object.declared_by().is_some();
    let is_over = object.order_has_window() && object.order_until().is_some_and(|until| until <= at);
    let own = FluxObject { during: None.into(), ..object.clone() };
    let object = if is_over { &own } else { object };
    !is_yielded && !is_refused && world.policy.effective(object, at).is_some_and(|effective| effective.state.open)
}

fn next_change(object: &FluxObject, world: &World, now: Timestamp) -> Option<NextChange> {
    let is_suspended = |at: Timestamp| by_spec(object, at) || is_open(object, world, at);
    let before = is_suspended(now);
    let ends = [object.order_until(), object.yielded_until.value()];
    let mut at = now;
    for _ in 0..MOST_EDGES {
        let edge = world.policy.effective(object, at).and_then(|effective| effective.state.until);
        at = ends.into_iter().chain([edge]).flatten().filter(|end| *end > at).min()?;
        let suspended = is_suspended(at);
        if suspended != before {
            return Some(NextChange { at, suspended });
        }
    }
    None
}
