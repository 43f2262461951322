//! What a person ordered comes before what labels and silence ask for.

use caretaker_core::{RuleMatch, Parsed, Timestamp, time};

use super::{Clock, Found, asleep_in_part, left_as_it_is};
use crate::act::{Action, Note, Sleep};
use crate::api::{self, State};
use crate::subject::{Subject, World, ago};

pub(super) fn wake(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let until = ns.hand_wake_until.value().filter(|until| *until >= now)?;
    let because = format!("a person keeps it awake {}", until_when(until));
    if asleep_in_part(ns) || ns.asleep_since.is_set() || ns.slept_by_hand || ns.hand_sleep_until.is_set() {
        return Some(RuleMatch::act(Action::Wake { restart: Some("HandWake") }, now, because));
    }
    if ns.announced_at.is_set() || ns.delete_at.is_set() || ns.state() == State::Deleting {
        return Some(left_as_it_is(ns, now, because));
    }
    // Without a record of activity there is no deadline yet, and its clock starts as with any other.
    let (at, then) = Clock::new(ns, world, now).next()?;
    Some(RuleMatch::wait(at.max(until), then, because))
}

fn until_when(until: Timestamp) -> String {
    if until >= api::FOREVER { "until it is woken by hand".to_owned() } else { format!("until {}", time::format(until)) }
}

pub(super) fn sleep(ns: &Subject, _: &World, now: Timestamp) -> Found {
    if let Some(until) = ns.home_hand_until.filter(|until| *until >= now) {
        return Some(RuleMatch::nothing(format!("a person put its namespace to sleep {}", until_when(until))));
    }
    let until = ns.hand_sleep_until.value().filter(|until| *until >= now && ns.can_sleep())?;
    let because = format!("a person put it to sleep {}", until_when(until));
    let leads_on = !ns.slept_by_hand || ns.asleep_since.is_set() || ns.announced_at.is_set() || ns.delete_at.is_set();
    Some(if !ns.is_asleep() {
        RuleMatch::act(Action::Sleep(Sleep::ByHand), now, because)
    } else if leads_on || ns.state() == State::Deleting {
        RuleMatch::act(Action::Label(Note::ByHand), now, format!("{because}: nothing leads to its deletion meanwhile"))
    } else {
        RuleMatch::wait(until, Action::Wake { restart: Some("HandSleepOver") }, because)
    })
}

pub(super) fn sleep_over(ns: &Subject, _: &World, now: Timestamp) -> Found {
    if ns.hand_sleep_until == Parsed::Missing && ns.slept_by_hand {
        let because = "a person had put it to sleep, and took that back";
        return Some(RuleMatch::act(Action::Wake { restart: Some("HandSleepOver") }, now, because));
    }
    let until = ns.hand_sleep_until.value().filter(|until| *until < now)?;
    let because = format!("a person put it to sleep until {}, {}", time::format(until), ago(until, now));
    let action = if asleep_in_part(ns) || ns.slept_by_hand {
        Action::Wake { restart: Some("HandSleepOver") }
    } else {
        Action::Label(Note::HandOver)
    };
    Some(RuleMatch::act(action, until, because))
}
