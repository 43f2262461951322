//! The rules about orders of a person. They come before what labels and idleness ask for.

use caretaker_core::{Cause, Parsed, RuleMatch, Timestamp, time};

use super::{Found, Rule, Schedule, half_awake, left_as_it_is, left_running, running_in_sleep, scheduled};
use crate::act::{Action, Bookkeeping, SleepReason};
use crate::api::{self, State};
use crate::subject::{Subject, World, ago};

pub(super) fn wake(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let until = ns.awake_until.value().filter(|until| *until >= now)?;
    let because = format!("a person ordered it to stay awake {}", until_when(until));
    let slept = ns.asleep_since.is_set() || ns.manual_sleep || ns.scheduled_sleep || ns.sleep_until.is_set();
    if ns.is_asleep_in_part() || slept {
        return Some(RuleMatch::act(Action::Wake(Some(Rule::ManualWake)), now, because));
    }
    if ns.has_announcement() {
        return Some(left_as_it_is(ns, now, because));
    }
    if api::is_forever(until) {
        return Some(RuleMatch::nothing(because));
    }
    // Without activity there is no deadline yet, and idle time starts to count as with any other subject.
    let by_labels = Schedule::new(ns, world, now).next_by_labels().map(|(at, then)| (at.max(until), then));
    let by_schedule = scheduled::next_sleep(ns, until);
    let (at, then) = [by_schedule, by_labels].into_iter().flatten().min_by_key(|(at, _)| *at)?;
    Some(RuleMatch::wait(at, then, because))
}

fn until_when(until: Timestamp) -> String {
    if api::is_forever(until) { "until another order".to_owned() } else { format!("until {}", time::format(until)) }
}

fn until_woken(until: Timestamp) -> String {
    if api::is_forever(until) { "until it is woken".to_owned() } else { until_when(until) }
}

pub(super) fn sleep(ns: &Subject, world: &World, now: Timestamp) -> Found {
    if let Some(until) = ns.namespace_sleep_until.filter(|until| *until >= now) {
        return Some(RuleMatch::nothing(format!("a person ordered its namespace to sleep {}", until_woken(until))));
    }
    let until = ns.sleep_until.value().filter(|until| *until >= now && ns.can_sleep())?;
    let because = format!("a person ordered it to sleep {}", until_woken(until));
    let announced = ns.announced_at.is_set() || ns.delete_at.is_set();
    let counts_towards_deletion = !ns.manual_sleep || ns.asleep_since.is_set() || announced;
    // What runs when the order comes is put to sleep as well.
    let half_awake = !ns.manual_sleep && running_in_sleep(ns).next().is_some();
    let end = Some(until).filter(|until| !api::is_forever(*until));
    Some(if !ns.is_asleep() || half_awake {
        let because = format!("{because}{}", left_running(ns));
        let is_half_done = ns.state() == State::Sleeping;
        let cause = if is_half_done { Cause::Completion } else { Cause::Ordered };
        RuleMatch::act(Action::Sleep(SleepReason::Manual), now, because).with_cause(cause)
    } else if counts_towards_deletion || ns.state() == State::Deleting {
        let because = format!("{because}: it is not deleted until then");
        RuleMatch::act(Action::Record(Bookkeeping::ManualSleep), now, because)
    } else if let Some(found) = half_awake::in_ordered_sleep(ns, world, SleepReason::Manual, end, now) {
        found
    } else {
        let because = because + &half_awake::beside_an_order(ns);
        match end {
            Some(end) => RuleMatch::wait(end, Action::Wake(Some(Rule::ManualSleepExpired)), because),
            None => RuleMatch::nothing(because),
        }
    })
}

pub(super) fn sleep_expired(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let wake = Action::Wake(Some(Rule::ManualSleepExpired));
    if ns.sleep_until == Parsed::Missing && ns.manual_sleep {
        return Some(RuleMatch::act(wake, now, "a person ordered it to sleep, and the order was removed"));
    }
    let until = ns.sleep_until.value().filter(|until| *until < now)?;
    let because = format!("a person ordered it to sleep until {}, {}", time::format(until), ago(until, now));
    let sleeps = ns.is_asleep_in_part() || ns.manual_sleep;
    let action = if sleeps { wake } else { Action::Record(Bookkeeping::ManualSleepOver) };
    Some(RuleMatch::act(action, until, because))
}
