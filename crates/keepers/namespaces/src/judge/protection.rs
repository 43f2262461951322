//! The rules about what is never put to sleep nor deleted, and about what the defaults apply to.

use caretaker_core::{Next, RuleMatch, RuleSet as _, Timestamp, duration};

use super::{Found, Rule, left_as_it_is, left_scaled_down, schedule, scheduled};
use crate::act::{Action, Bookkeeping};
use crate::subject::{Defaults, Kind, Policy, Subject, World};
use crate::system::why_system;

pub(super) fn protected(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let because = why_protected(ns, &world.policy)?;
    if !ns.is_asleep_in_part() && !ns.has_traces_of_sleep() {
        return Some(RuleMatch::nothing(because));
    }
    // Protection forbids sleep and deletion: a rule that wakes it, or withdraws an announcement, still decides.
    let rest = Rule::ALL.iter().skip_while(|rule| **rule != Rule::Protected).skip(1);
    let otherwise = rest.into_iter().find_map(|rule| rule.check(ns, world, now));
    let helps = |action: &Action| matches!(action, Action::Wake(_) | Action::Record(Bookkeeping::Withdraw));
    match otherwise.map(|found| found.next) {
        Some(Next::Act { action, .. } | Next::Wait { then: action, .. }) if helps(&action) => None,
        _ if ns.has_announcement() => Some(left_as_it_is(ns, now, because)),
        _ if ns.is_asleep_in_part() => {
            Some(RuleMatch::nothing(format!("{because}; it is asleep, and activity or an order wakes it")))
        }
        _ => Some(RuleMatch::nothing(because)),
    }
}

/// True if it is never touched, whatever its labels say.
pub(crate) fn is_protected(ns: &Subject, policy: &Policy) -> bool {
    ns.excluded || why_protected(ns, policy).is_some()
}

/// Why a namespace is protected, as a sentence; `None` if it is not.
fn why_protected(ns: &Subject, policy: &Policy) -> Option<String> {
    let name = ns.namespace_name();
    let by_name =
        policy.protects(name).map(|pattern| format!("namespace {name} is protected by the pattern {pattern}"));
    let caller = ns.used_by_control_plane.as_ref();
    by_name.or_else(|| caller.map(|caller| format!("the control plane depends on it: {caller}")))
}

/// The defaults, if they apply: to a namespace that has neither label, not even with the value zero.
pub(super) fn defaults_for<'a>(ns: &Subject, policy: &'a Policy) -> Option<&'a Defaults> {
    let defaults = policy.defaults.as_ref().filter(|defaults| !defaults.sleep_after.is_zero())?;
    (ns.kind == Kind::Namespace && !ns.labelled).then_some(defaults)
}

/// True if only the defaults lead to its sleep and its deletion.
fn has_defaults_only(ns: &Subject) -> bool {
    ns.default_policy && !ns.delete_after.is_set()
}

/// True if a label or the defaults can lead to its sleep or deletion: what counts in the breaker's denominator.
#[must_use]
pub fn is_managed(ns: &Subject, policy: &Policy) -> bool {
    let by_defaults = defaults_for(ns, policy).is_some() || has_defaults_only(ns);
    let managed = if by_defaults {
        policy.defaults.is_some() && why_system(ns, policy).is_none()
    } else {
        schedule::can_lead_to_sleep_or_deletion(ns, policy)
    };
    managed && !is_protected(ns, policy)
}

/// True if the defaults are about to label it.
#[must_use]
pub fn is_about_to_get_defaults(ns: &Subject, policy: &Policy) -> bool {
    defaults_for(ns, policy).is_some() && ns.inactive.is_none() && is_managed(ns, policy)
}

pub(super) fn defaults_off(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let off = has_defaults_only(ns) && world.policy.defaults.is_none();
    off.then(|| {
        let because = "the defaults wrote its sleep-after, and they are switched off".to_owned();
        scheduled::not_after_next_sleep(ns, left_as_it_is(ns, now, because), now)
    })
}

pub(super) fn system_namespace(ns: &Subject, world: &World, now: Timestamp) -> Found {
    if defaults_for(ns, &world.policy).is_none() && !has_defaults_only(ns) {
        return None;
    }
    let why = why_system(ns, &world.policy)?;
    let because = format!("a system namespace, which the defaults leave alone: {why}; a label of its own manages it");
    // Only the defaults put it to sleep, before it was known to be one.
    if ns.is_asleep_in_part() || left_scaled_down(ns).next().is_some() {
        return Some(RuleMatch::act(Action::Wake(Some(Rule::SystemNamespace)), now, because));
    }
    Some(scheduled::not_after_next_sleep(ns, left_as_it_is(ns, now, because), now))
}

pub(super) fn defaults_applied(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let defaults = defaults_for(ns, &world.policy)?;
    let after = duration::format_go(defaults.sleep_after);
    let because = format!("it has no label, and the default sleep-after is {after}");
    Some(RuleMatch::act(Action::Record(Bookkeeping::Defaults(defaults.sleep_after)), now, because))
}
