//! When a Flux object is suspended and resumed.
//!
//! The first matching rule decides. What cannot be read comes first, then the end of orders, then the inside of a
//! window, then its outside, and last what shows the state.

use caretaker_core::parsed::InvalidValue;
use caretaker_core::{Cause, Next, RuleMatch, SignedDuration, Timestamp, rules, time};

use crate::Windows;
use crate::act::{Action, FOREVER, Shown};
use crate::api;
use crate::subject::{Condition, Effective, FluxObject, OnResume, Order, World};

type Found = Option<RuleMatch<Action>>;

rules! {
    /// Why a Flux object is suspended, resumed or left alone.
    pub enum Rule for Windows {
        /// It is being deleted: never touched. Inside its window that is reported, as Flux leaves behind what a suspended object has applied.
        BeingDeleted => being_deleted,
        /// Its window cannot be read: it suspends nothing, and what an earlier window suspended is resumed. Windows of the settings go on.
        InvalidWindow => invalid_window,
        /// Its kind honours the annotation itself, as the settings say: nothing is written, and what was written is withdrawn.
        NativeKind => native_kind,
        /// The time of `caretaker suspend --until` is over, or somebody undid that suspension: what is left of it goes.
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
    let invalid = object.invalid()?;
    if world.policy.has_rule_for(object) {
        // A mistake on one object ends no freeze of the settings: it is held as all the others are, and the error is
        // told here once and shown in its condition.
        let is_told = object.has_traces() || open_window(object, world, now).is_some() || is_shown(object, world, now);
        let show = || Action::Show(wanted(object, world, now));
        return (!is_told).then(|| RuleMatch::refuse(Some(show()), invalid.to_string()));
    }
    if object.has_traces() {
        return Some(ordered(Action::Resume, now, invalid.to_string()));
    }
    let show = show_refusal(object, world, invalid_condition(invalid));
    Some(RuleMatch::refuse(show, invalid.to_string()))
}

/// Shows why an object is not suspended although it has a window; `None` if that is shown or must not be.
fn show_refusal(object: &FluxObject, world: &World, condition: Condition) -> Option<Action> {
    let condition = Some(condition).filter(|_| world.policy.show_condition);
    let wanted = Shown { condition, suspended: false };
    (object.has_status && !is_shown_as(object, world, &wanted)).then_some(Action::Show(wanted))
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
    if object.order == Order::Removed {
        return Some(ordered(Action::EndOrder, now, "somebody undid what `caretaker suspend` had ordered"));
    }
    let until = object.order_until().filter(|until| *until <= now)?;
    Some(ordered(Action::EndOrder, until, format!("it was suspended until {}", time::format(until))))
}

/// What a rule waits for, or the end of an order if that comes first.
fn or_end_of_order(found: RuleMatch<Action>, object: &FluxObject) -> RuleMatch<Action> {
    let Some(end) = object.order_until() else { return found };
    match &found.next {
        Next::Wait { until, .. } if *until <= end => found,
        Next::Wait { .. } | Next::Nothing => {
            let because = format!("{}; somebody suspended it until {}", found.because, time::format(end));
            RuleMatch::wait(end, Action::EndOrder, because)
        }
        Next::Act { .. } | Next::Refuse { .. } => found,
    }
}

fn no_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let clean = !object.has_traces() && is_shown(object, world, now);
    if world.policy.effective(object, now).is_some() || !clean {
        return None;
    }
    Some(or_end_of_order(RuleMatch::nothing("it has no window"), object))
}

fn window_removed(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let is_gone = world.policy.effective(object, now).is_none();
    (is_gone && object.has_traces()).then(|| ordered(Action::Resume, now, "it has no window any more"))
}

fn yielded(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now)?;
    let until = object.yielded_until.value().filter(|until| *until > now)?;
    let until_when = if until == FOREVER { "for good".to_owned() } else { format!("until {}", time::format(until)) };
    let because = format!("{}, and somebody resumed it {until_when}", words(&effective));
    Some(if object.held_until.is_some() || object.is_managed_by(api::FIELD_MANAGER) {
        ordered(Action::Yield(until), now, because)
    } else if !is_shown(object, world, now) {
        RuleMatch::act(Action::Show(wanted(object, world, now)), now, because).with_cause(Cause::Completion)
    } else if until == FOREVER {
        or_end_of_order(RuleMatch::nothing(because), object)
    } else {
        or_end_of_order(RuleMatch::wait(until, Action::Suspend(end_of(&effective)), because), object)
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
    let show = || {
        let (status, reason) = ("False".to_owned(), "EnforcementConflict".to_owned());
        show_refusal(object, world, Condition { status, reason, message: because.clone() })
    };
    Some(RuleMatch::refuse(traces.or_else(show), because.clone()))
}

fn inside_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now)?;
    let until = end_of(&effective);
    let is_right = object.is_held() && object.held_until == Some(until);
    let due = effective.state.since.unwrap_or(now).min(now);
    let invalid = object.invalid().map(|invalid| format!("; {invalid}")).unwrap_or_default();
    (!is_right).then(|| ordered(Action::Suspend(until), due, format!("{}{invalid}", words(&effective))))
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
fn is_shown_as(object: &FluxObject, world: &World, wanted: &Shown) -> bool {
    let says_so = object.status_suspended == Some(true);
    // What somebody else suspends, somebody else may show.
    let is_right = says_so == wanted.suspended || (says_so && object.is_suspended());
    object.condition == wanted.condition
        && match world.keeps_status.get(object.kind) {
            Some(true) => is_right,
            Some(false) => true,
            None => is_right || (wanted.suspended && wanted.condition.is_some()),
        }
}

/// What the status of an object should show of its suspension by a window or an order: `status.suspended` where the
/// schema keeps it, else a condition.
#[must_use]
pub(crate) fn wanted(object: &FluxObject, world: &World, now: Timestamp) -> Shown {
    let open = open_window(object, world, now).filter(|_| object.is_held());
    let condition = match open {
        Some(effective) => {
            let reason = object.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let invalid = object.invalid().map(|invalid| format!("; {invalid}")).unwrap_or_default();
            let message = format!("{}{reason}{invalid}", words(&effective));
            Some(Condition { status: "True".to_owned(), reason: "InsideWindow".to_owned(), message })
        }
        None => ordered_condition(object),
    };
    let suspended = condition.is_some();
    // An error has no field in the status of the proposal.
    let by_condition =
        world.policy.show_condition && (!suspended || world.keeps_status.get(object.kind) != Some(&true));
    let condition = condition.or_else(|| object.invalid().map(invalid_condition));
    Shown { condition: condition.filter(|_| by_condition && object.has_status), suspended }
}

/// What shows that an annotation cannot be read.
fn invalid_condition(invalid: &InvalidValue) -> Condition {
    let (status, reason) = ("Unknown".to_owned(), "InvalidWindow".to_owned());
    Condition { status, reason, message: invalid.to_string() }
}

/// What shows a suspension by `caretaker suspend`.
fn ordered_condition(object: &FluxObject) -> Option<Condition> {
    let by_order = object.is_suspended() && object.is_managed_by(api::CLI_FIELD_MANAGER);
    by_order.then(|| {
        let by = object.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let until = object.order_until().map(|until| format!(" until {}", time::format(until))).unwrap_or_default();
        let reason = object.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let message = format!("suspended{by}{until}{reason}");
        Condition { status: "True".to_owned(), reason: "SuspendedByOrder".to_owned(), message }
    })
}

/// True if its status shows what is.
fn is_shown(object: &FluxObject, world: &World, now: Timestamp) -> bool {
    !object.has_status || is_shown_as(object, world, &wanted(object, world, now))
}

fn state_not_shown(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    (!is_shown(object, world, now)).then(|| {
        let wanted = wanted(object, world, now);
        let because = match &wanted {
            Shown { condition: Some(condition), .. } => format!("shows that {}", condition.message),
            Shown { suspended: true, .. } => "shows that it is suspended".to_owned(),
            Shown { .. } => "it is not suspended any more".to_owned(),
        };
        RuleMatch::act(Action::Show(wanted), now, because).with_cause(Cause::Completion)
    })
}

fn held(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = open_window(object, world, now).filter(|_| object.is_held())?;
    let found = match effective.state.until {
        Some(until) => RuleMatch::wait(until, Action::Resume, words(&effective)),
        None => RuleMatch::nothing(words(&effective)),
    };
    Some(or_end_of_order(found, object))
}

fn waiting_for_window(object: &FluxObject, world: &World, now: Timestamp) -> Found {
    let effective = world.policy.effective(object, now)?;
    let found = match effective.state.until {
        Some(opens) => {
            let end = world.policy.effective(object, opens).map_or(FOREVER, |inside| end_of(&inside));
            let because = format!("{} opens at {}", effective.because, time::format(opens));
            RuleMatch::wait(opens, Action::Suspend(end), because)
        }
        None => RuleMatch::nothing(format!("{} does not open any more", effective.because)),
    };
    Some(or_end_of_order(found, object))
}
