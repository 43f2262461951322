//! The rules about sleep by schedule: the annotation `sleep-during` of a Namespace.
//!
//! While its window is open it is asleep, and at its end it is awake. Such a sleep says nothing about idleness, so its
//! time does not count towards deletion, and neither does it make what is idle look used: only the time until the next
//! sleep for idleness counts from the end of the window.

use caretaker_core::window::Window;
use caretaker_core::{Cause, Next, RuleMatch, SignedDuration, Timestamp, time};

use super::{Found, Schedule, half_awake, left_running, running_in_sleep};
use crate::act::{Action, Bookkeeping, SleepReason};
use crate::api::State;
use crate::subject::{Subject, World, ago};

/// The window in which it sleeps.
fn window(ns: &Subject) -> Option<&Window> {
    ns.sleep_during.get().map(|window| &**window)
}

/// The last use inside of the open window, if uses count.
fn used_inside(ns: &Subject, world: &World, window: &Window, now: Timestamp) -> Option<Timestamp> {
    if ns.sleep_during_strict.value() == Some(true) {
        return None;
    }
    let activity = ns.activity.get().filter(|activity| !activity.is_own_record()).map(|activity| activity.at);
    let sessions = ns.sessions.get().into_iter().flat_map(|sessions| sessions.values());
    let session = sessions.map(|since| time::saturating_add(*since, world.policy.max_session).min(now)).max();
    let opened = window.last_edge(now).map(|edge| edge.at);
    activity.max(session).filter(|used| opened.is_none_or(|opened| *used >= opened))
}

pub(super) fn awake_after_use(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let window = window(ns).filter(|window| window.is_open(now))?;
    let used = used_inside(ns, world, window, now)?;
    let until = time::saturating_add(used, world.policy.awake_after_use);
    if until < now {
        return None;
    }
    let because = format!(
        "used {} at {}, inside of its sleep-during {}: awake until {}",
        ago(used, now),
        time::format(used),
        window.quoted(),
        time::format(until)
    );
    if ns.is_asleep_in_part() || ns.scheduled_sleep {
        return Some(RuleMatch::act(Action::Wake(None), used, because));
    }
    Some(match window.next_edge(now).map(|edge| edge.at).filter(|end| *end <= until) {
        None => RuleMatch::wait(until, Action::Sleep(SleepReason::Scheduled), because),
        // The window ends first, and then everything is as outside of it.
        Some(end) => match Schedule::new(ns, world, end).next() {
            Some((at, then)) => RuleMatch::wait(at.max(end), then, because),
            None => RuleMatch::nothing(because),
        },
    })
}

pub(super) fn sleep(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let window = window(ns).filter(|window| window.is_open(now))?;
    let (opened, end) = (window.last_edge(now), window.next_edge(now).map(|edge| edge.at));
    let until = end.map_or_else(|| "for ever".to_owned(), |end| format!("until {}", time::format(end)));
    let because = format!("its sleep-during is {}: asleep {until}", window.quoted());
    let counts_towards_deletion = !ns.scheduled_sleep || ns.asleep_since.is_set() || ns.has_announcement();
    // What runs when the window opens is put to sleep as well.
    let half_awake = !ns.scheduled_sleep && running_in_sleep(ns).next().is_some();
    Some(if !ns.is_asleep() || half_awake {
        let cause = if ns.state() == State::Sleeping { Cause::Completion } else { Cause::Ordered };
        let (due, because) = (opened.map_or(now, |edge| edge.at), format!("{because}{}", left_running(ns)));
        RuleMatch::act(Action::Sleep(SleepReason::Scheduled), due, because).with_cause(cause)
    } else if counts_towards_deletion {
        let because = format!("{because}, which does not count towards its deletion");
        RuleMatch::act(Action::Record(Bookkeeping::ScheduledSleep), now, because).with_cause(Cause::Ordered)
    } else if let Some(found) = half_awake::in_ordered_sleep(ns, world, SleepReason::Scheduled, end, now) {
        found
    } else {
        let because = because + &half_awake::beside_an_order(ns);
        match end {
            Some(end) => RuleMatch::wait(end, Action::Wake(None), because),
            None => RuleMatch::nothing(because),
        }
    })
}

pub(super) fn sleep_over(ns: &Subject, _: &World, now: Timestamp) -> Found {
    if !ns.scheduled_sleep {
        return None;
    }
    let ended = window(ns).and_then(|window| Some((window, window.last_edge(now)?.at)));
    let (due, because) = match ended {
        Some((window, end)) => {
            let text = window.quoted();
            (end, format!("its sleep-during {text} ended {} at {}", ago(end, now), time::format(end)))
        }
        None => (now, "it sleeps by schedule, and the schedule was removed".to_owned()),
    };
    Some(RuleMatch::act(Action::Wake(None), due, because).with_cause(Cause::Ordered))
}

/// When the schedule asks for its sleep next, at a time or after it, and what is done then.
pub(super) fn next_sleep(ns: &Subject, from: Timestamp) -> Option<(Timestamp, Action)> {
    let window = window(ns)?;
    let at = if window.is_open(from) { from } else { window.next_edge(from).filter(|edge| edge.opens)?.at };
    let asleep = ns.is_asleep();
    Some((at, if asleep { Action::Record(Bookkeeping::ScheduledSleep) } else { Action::Sleep(SleepReason::Scheduled) }))
}

/// When its last scheduled sleep ended, or would have: idle time that leads to a sleep counts from there.
pub(super) fn last_end(ns: &Subject, now: Timestamp) -> Option<Timestamp> {
    window(ns).filter(|window| !window.is_open(now))?.last_edge(now).map(|edge| edge.at)
}

/// How many edges of a window are followed: years of nights. A window with more is one of minutes.
const MAX_EDGES: usize = 2_000;

/// When it was awake for this long since a time, as far as the schedule is concerned: its own, or that of the namespace
/// that contains it. `None` if that is never, or too far away to tell.
pub(super) fn awake_for(subject: &Subject, since: Timestamp, period: SignedDuration) -> Option<Timestamp> {
    let own = window(subject).or(subject.namespace_sleep_during.as_deref());
    let Some(window) = own else { return Some(time::saturating_add(since, period)) };
    let (mut at, mut left, mut asleep) = (since, period, window.is_open(since));
    for _ in 0..MAX_EDGES {
        let edge = window.next_edge(at).map(|edge| edge.at);
        if !asleep {
            let end = time::saturating_add(at, left);
            match edge.filter(|edge| *edge < end) {
                Some(edge) => left -= edge.duration_since(at),
                None => return Some(end),
            }
        }
        (at, asleep) = (edge?, !asleep);
    }
    None
}

/// The same, but not later than the schedule asks for its sleep.
pub(super) fn not_after_next_sleep(ns: &Subject, found: RuleMatch<Action>, now: Timestamp) -> RuleMatch<Action> {
    let Some((at, then)) = next_sleep(ns, now) else { return found };
    match found.next {
        Next::Nothing => RuleMatch::wait(at, then, found.because),
        Next::Wait { until, .. } if until > at => RuleMatch::wait(at, then, found.because),
        _ => found,
    }
}

/// What the schedule asks for next, where nothing else leads to anything.
pub(super) fn ahead(ns: &Subject, now: Timestamp) -> Found {
    let (at, then) = next_sleep(ns, now)?;
    let text = window(ns).map(Window::quoted).unwrap_or_default();
    Some(RuleMatch::wait(at, then, format!("its sleep-during is {text}")))
}
