//! When a Flux object is suspended and resumed.
//!
//! The first matching rule decides. What cannot be read comes first, then the end of orders, then the inside of a
//! window, then its outside, and last what shows the state.

use caretaker_core::{Cause, RuleMatch, SignedDuration, Timestamp, rules, time};

use crate::Windows;
use crate::act::{Action, FOREVER, Shown};
use crate::api;
use crate::subject::{Condition, Effective, FluxObject, OnResume, World};

type Found = Option<RuleMatch<Action>>;

rules! {
    /// Why a Flux object is suspended, resumed or left alone.
    pub enum Rule for Windows {
        /// It is being deleted: never touched. Inside its window that is reported, as Flux leaves behind what a suspended object has applied.
        BeingDeleted => being_deleted,
        /// Its window cannot be read: it suspends nothing, and what an earlier window suspended is resumed.
        InvalidWindow => invalid_window,
        /// Its kind honours the annotation itself, as the settings say: nothing is written, and what was written is withdrawn.
        NativeKind => native_kind,
        /// The time of `caretaker suspend --until` is over: that suspension ends.
        OrderOver => order_over,
        /// It has no window, and nothing of the keeper is on it: not managed.
        NoWindow => no_window,
        /// It has no window any more: what its last window suspended is resumed.
        WindowRemoved => window_removed,
        /// Inside its window, somebody ordered it to stay resumed: until the window ends.
        Yielded => yielded,
        /// Inside its window, and Git declares that it is not suspended: reported, and not fought.
        EnforcementConflict => enforcement_conflict,
        /// Inside its window, somebody resumed it: it stays resumed until the next window, unless the settings say that it is suspended again.
        ResumedByPerson => resumed_by_person,
        /// Inside its window: suspended.
        InsideWindow => inside_window,
        /// Outside of its window, and the keeper's field is still on it: resumed.
        OutsideWindow => outside_window,
        /// Its status does not show what is: written.
        StateNotShown => state_not_shown,
        /// It is suspended until its window ends.
        Held => held,
        /// It waits for its next window.
        WaitingForWindow => waiting_for_window,
    }
}

fn ordered(action: Action, now: Timestamp, because: impl Into<String>) -> RuleMatch<Action> {
    RuleMatch::act(action, now, because).with_cause(Cause::Ordered)
}

/// The window that is open now.
fn open_window(object: &FluxObject, world: &World, now: Timestamp) -> Option<Effective> {
    world.policy.effective(object, now).filter(|effective| effective.state.open)
}

fn end_of(effective: &Effective) -> Timestamp {
    effective.state.until.unwrap_or(FOREVER)
}

fn words(effective: &Effective) -> String {
    match effective.state.until {
        Some(until) => format!("{} is open until {}", effective.because, time::format(until)),
        None => format!("{} is open without an end", effective.because),
    }
}

fn being_deleted(object: &FluxObject, _: &World, _: Timestamp) -> Found {
    object.is_deleting.then(|| {
        if object.is_held() {
            RuleMatch::refuse(
                None,
                "it is being deleted while its window suspends it: what it has applied stays behind, as Flux does not \
                 prune it; delete that by hand, and next time resume it first",
            )
        } else {
            RuleMatch::nothing("it is being deleted")
        }
    })
}

fn invalid_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let invalid = object.during.invalid().or(object.yielded_until.invalid()).or(object.suspended_until.invalid())?;
    if object.has_traces() {
        return Some(ordered(Action::Resume, now, invalid.to_string()));
    }
    let show = show_refusal(object, world, "Unknown", "InvalidWindow", &invalid.to_string());
    Some(RuleMatch::refuse(show, invalid.to_string()))
}

/// Shows why an object is not suspended although it has a window; `None` if that is shown or must not be.
fn show_refusal(object: &FluxObject, world: &World, status: &str, reason: &str, message: &str) -> Option<Action> {
    let (status, reason, message) = (status.to_owned(), reason.to_owned(), message.to_owned());
    let condition = Some(Condition { status, reason, message }).filter(|_| world.policy.show_condition);
    let wanted = Shown { condition, suspended: false };
    (object.has_status && !is_shown(object, world, &wanted)).then_some(Action::Show(wanted))
}

fn native_kind(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    world.policy.native_kinds.iter().any(|kind| kind == object.kind).then(|| {
        let because = format!("{} honours the annotation itself", object.kind);
        if object.has_traces() {
            ordered(Action::Resume, now, because)
        } else if object.condition.is_some() {
            RuleMatch::act(Action::Show(Shown::default()), now, because).with_cause(Cause::Completion)
        } else {
            RuleMatch::nothing(because)
        }
    })
}

fn order_over(object: &FluxObject, _: &World, now: Timestamp) -> Found {
    let until = object.suspended_until.value().filter(|until| *until <= now)?;
    Some(ordered(Action::EndOrder, until, format!("it was suspended until {}", time::format(until))))
}

fn no_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let clean = !object.has_traces() && object.condition.is_none();
    if world.policy.effective(object, now).is_some() || !clean {
        return None;
    }
    Some(match object.suspended_until.value() {
        Some(until) => {
            RuleMatch::wait(until, Action::EndOrder, format!("somebody suspended it until {}", time::format(until)))
        }
        None => RuleMatch::nothing("it has no window"),
    })
}

fn window_removed(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    if world.policy.effective(object, now).is_some() {
        return None;
    }
    let because = "it has no window any more";
    Some(if object.has_traces() {
        ordered(Action::Resume, now, because)
    } else if object.condition.is_some() {
        RuleMatch::act(Action::Show(Shown::default()), now, because).with_cause(Cause::Completion)
    } else {
        RuleMatch::nothing(because)
    })
}

fn yielded(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now)?;
    let until = object.yielded_until.value().filter(|until| *until > now)?;
    let because = format!("{}, and somebody resumed it until {}", words(&effective), time::format(until));
    Some(if object.held_until.is_some() || object.is_managed_by(api::FIELD_MANAGER) {
        ordered(Action::Yield(until), now, because)
    } else if object.has_status && !is_shown(object, world, &Shown::default()) {
        RuleMatch::act(Action::Show(Shown::default()), now, because).with_cause(Cause::Completion)
    } else if until == FOREVER {
        RuleMatch::nothing(because)
    } else {
        RuleMatch::wait(until, Action::Suspend(end_of(&effective)), because)
    })
}

fn resumed_by_person(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now)?;
    let held_until = object.held_until.filter(|until| *until > now && !object.is_held())?;
    let because = format!("{}, and somebody resumed it", words(&effective));
    Some(match world.policy.on_resume {
        OnResume::Yield => ordered(Action::Yield(held_until), now, because),
        OnResume::Enforce => {
            ordered(Action::Suspend(end_of(&effective)), now, format!("{because}, which the settings do not allow"))
        }
    })
}

fn enforcement_conflict(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now)?;
    let declared_by = object.pinned_by()?;
    let because = format!(
        "{}, and {declared_by} declares suspend: false; drop that line from Git, or let the parent Kustomization \
         ignore /spec/suspend (spec.ignore, kustomize-controller 1.9 or newer), or annotate the object with \
         kustomize.toolkit.fluxcd.io/reconcile: disabled",
        words(&effective)
    );
    // What is left of an earlier hold says nothing any more.
    let traces = object.has_traces().then_some(Action::Resume);
    let show = || show_refusal(object, world, "False", "EnforcementConflict", &because);
    Some(RuleMatch::refuse(traces.or_else(show), because.clone()))
}

fn inside_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now)?;
    let until = end_of(&effective);
    let is_right = object.is_held() && object.held_until == Some(until);
    let due = effective.state.since.unwrap_or(now).min(now);
    (!is_right).then(|| ordered(Action::Suspend(until), due, words(&effective)))
}

fn outside_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = world.policy.effective(object, now).filter(|effective| !effective.state.open)?;
    if !object.has_traces() {
        return None;
    }
    let ended = effective.state.since.unwrap_or(now).min(now);
    let due = time::saturating_add(ended, jitter(object, world.policy.resume_jitter));
    let because = format!("{} is over since {}", effective.because, time::format(ended));
    Some(if now < due { RuleMatch::wait(due, Action::Resume, because) } else { ordered(Action::Resume, due, because) })
}

/// A part of the jitter that is always the same for an object.
fn jitter(object: &FluxObject, most: SignedDuration) -> SignedDuration {
    let hash = object.uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        let mixed = (hash ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    });
    most.mul_f64(f64::from(u16::try_from(hash >> 48).unwrap_or_default()) / f64::from(u16::MAX))
}

/// True if the status of an object shows this. Whether its schema keeps `status.suspended` is known only after the
/// first answer to a write; until then the condition counts, and every write tries both.
fn is_shown(object: &FluxObject, world: &World, wanted: &Shown) -> bool {
    let says_so = object.status_suspended == Some(true);
    object.condition == wanted.condition
        && match world.keeps_status.get(object.kind) {
            Some(true) => says_so == wanted.suspended,
            Some(false) => true,
            None => says_so <= wanted.suspended && (says_so == wanted.suspended || wanted.condition.is_some()),
        }
}

/// What the status of an object that its window suspends should show: `status.suspended` where the schema keeps it,
/// else a condition.
fn shown_while_held(object: &FluxObject, world: &World, effective: &Effective) -> Shown {
    let reason = object.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let message = format!("{}{reason}", words(effective));
    let condition = Condition { status: "True".to_owned(), reason: "InsideWindow".to_owned(), message };
    let by_condition = world.policy.show_condition && world.keeps_status.get(object.kind) != Some(&true);
    Shown { condition: by_condition.then_some(condition), suspended: true }
}

fn state_not_shown(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    if !object.has_status {
        return None;
    }
    let open = open_window(object, world, now).filter(|_| object.is_held());
    let wanted = open.as_ref().map(|effective| shown_while_held(object, world, effective)).unwrap_or_default();
    (!is_shown(object, world, &wanted)).then(|| {
        let because = match &open {
            Some(effective) => format!("shows that {}", words(effective)),
            None => "it is not suspended by a window any more".to_owned(),
        };
        RuleMatch::act(Action::Show(wanted), now, because).with_cause(Cause::Completion)
    })
}

fn held(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now).filter(|_| object.is_held())?;
    Some(match effective.state.until {
        Some(until) => RuleMatch::wait(until, Action::Resume, words(&effective)),
        None => RuleMatch::nothing(words(&effective)),
    })
}

fn waiting_for_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = world.policy.effective(object, now)?;
    Some(match effective.state.until {
        Some(opens) => {
            let end = world.policy.effective(object, opens).map_or(FOREVER, |inside| end_of(&inside));
            let because = format!("{} opens at {}", effective.because, time::format(opens));
            RuleMatch::wait(opens, Action::Suspend(end), because)
        }
        None => RuleMatch::nothing(format!("{} does not open any more", effective.because)),
    })
}
