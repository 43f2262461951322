//! What is written to a subject itself, for each record and around each sleep and wake.

use caretaker_core::Timestamp;

use super::{Bookkeeping, MetadataPatch, SleepReason};
use crate::api::{Activity, State, TimeAnnotation};
use crate::judge::{Rule, Schedule, running_in_sleep};
use crate::subject::{Subject, World};

const ANNOUNCEMENT: [TimeAnnotation; 2] = [TimeAnnotation::AnnouncedAt, TimeAnnotation::DeleteAt];
const SLEEP_TIMES: [TimeAnnotation; 3] =
    [TimeAnnotation::AsleepSince, TimeAnnotation::AnnouncedAt, TimeAnnotation::DeleteAt];
const HALF_AWAKE: [TimeAnnotation; 2] = [TimeAnnotation::HalfAwakeSince, TimeAnnotation::PutBackAt];

/// Those of the annotations that the subject has.
fn set_times(subject: &Subject, annotations: &[TimeAnnotation]) -> Vec<TimeAnnotation> {
    annotations.iter().copied().filter(|annotation| subject.time(*annotation).is_set()).collect()
}

/// A record of Caretaker's own, which remembers that another program reported on the subject.
fn recorded(subject: &Subject, rule: Rule, now: Timestamp) -> Activity {
    Activity::recorded(now, rule).replacing(&subject.activity)
}

/// Before the workloads are scaled down. One that is half awake is put back into the same sleep, which keeps its name,
/// and that it was put back is known even if it is interrupted.
pub(super) fn start_of_sleep(reason: SleepReason, subject: &Subject, now: Timestamp) -> MetadataPatch {
    let puts_back = subject.is_asleep();
    let is_ordered = matches!(reason, SleepReason::Manual | SleepReason::Scheduled);
    let (set, clear) = if puts_back {
        let mut clear = set_times(subject, &ANNOUNCEMENT);
        clear.extend(set_times(subject, &[TimeAnnotation::HalfAwakeSince]));
        (vec![(TimeAnnotation::PutBackAt, now)], clear)
    } else {
        (Vec::new(), set_times(subject, &HALF_AWAKE))
    };
    MetadataPatch {
        state: Some(State::Sleeping),
        // What ran until now was of use to somebody.
        activity: (puts_back && !is_ordered).then(|| recorded(subject, Rule::HalfAwake, now)),
        sleep_started: Some(now).filter(|_| !puts_back || subject.sleep_started.is_none()),
        // If it is interrupted, the end of its schedule still wakes it.
        scheduled_sleep: (reason == SleepReason::Scheduled).then_some(true),
        set,
        clear,
        ..MetadataPatch::default()
    }
}

/// After the workloads were scaled down.
pub(super) fn end_of_sleep(reason: SleepReason, subject: &Subject, now: Timestamp) -> MetadataPatch {
    let (is_manual, is_scheduled) = (reason == SleepReason::Manual, reason == SleepReason::Scheduled);
    let is_ordered = is_manual || is_scheduled;
    let set = if is_ordered { Vec::new() } else { vec![(TimeAnnotation::AsleepSince, now)] };
    let mut clear = if is_ordered { set_times(subject, &SLEEP_TIMES) } else { Vec::new() };
    clear.extend(set_times(subject, &[TimeAnnotation::AwakeUntil]));
    let manual_sleep = (is_manual || subject.manual_sleep).then_some(is_manual);
    let scheduled_sleep = (is_scheduled || subject.scheduled_sleep).then_some(is_scheduled);
    let state = Some(State::Sleep);
    MetadataPatch { state, set, clear, manual_sleep, scheduled_sleep, ..MetadataPatch::default() }
}

/// After the workloads were restored. With a rule, idle time counts from now.
pub(super) fn end_of_wake(restart: Option<Rule>, subject: &Subject, now: Timestamp) -> MetadataPatch {
    let mut clear = set_times(subject, &SLEEP_TIMES);
    clear.extend(set_times(subject, &[TimeAnnotation::SleepUntil]));
    clear.extend(set_times(subject, &HALF_AWAKE));
    MetadataPatch {
        state: Some(State::Normal),
        activity: restart.map(|rule| recorded(subject, rule, now)),
        clear,
        manual_sleep: subject.manual_sleep.then_some(false),
        scheduled_sleep: subject.scheduled_sleep.then_some(false),
        sleep_ended: subject.sleep_started.is_some(),
        ..MetadataPatch::default()
    }
}

/// A record alone.
pub(super) fn record(bookkeeping: Bookkeeping, subject: &Subject, now: Timestamp) -> MetadataPatch {
    let seen = || Some(recorded(subject, Rule::FirstSeen, now));
    let is_deleting = subject.state() == State::Deleting;
    match bookkeeping {
        Bookkeeping::FirstSeen => MetadataPatch { activity: seen(), ..MetadataPatch::default() },
        Bookkeeping::Defaults(sleep_after) => {
            MetadataPatch { sleep_after: Some(sleep_after), activity: seen(), ..MetadataPatch::default() }
        }
        Bookkeeping::AsleepSince => {
            MetadataPatch { set: vec![(TimeAnnotation::AsleepSince, now)], ..MetadataPatch::default() }
        }
        Bookkeeping::Withdraw => {
            let before = if subject.is_asleep() { State::Sleep } else { State::Normal };
            let clear = set_times(subject, &ANNOUNCEMENT);
            MetadataPatch { state: is_deleting.then_some(before), clear, ..MetadataPatch::default() }
        }
        Bookkeeping::ManualSleep => MetadataPatch {
            state: is_deleting.then_some(State::Sleep),
            clear: set_times(subject, &SLEEP_TIMES),
            manual_sleep: Some(true),
            ..MetadataPatch::default()
        },
        Bookkeeping::ScheduledSleep => MetadataPatch {
            state: is_deleting.then_some(State::Sleep),
            clear: set_times(subject, &SLEEP_TIMES),
            scheduled_sleep: Some(true),
            ..MetadataPatch::default()
        },
        Bookkeeping::ManualSleepOver => {
            MetadataPatch { clear: set_times(subject, &[TimeAnnotation::SleepUntil]), ..MetadataPatch::default() }
        }
        Bookkeeping::LastActivity => {
            MetadataPatch { last_activity: subject.unlabelled_activity(), ..MetadataPatch::default() }
        }
        Bookkeeping::Restart(rule) => restart(rule, subject, now),
        Bookkeeping::HalfAwake => restart(Rule::HalfAwake, subject, now),
        Bookkeeping::HalfAwakeOver => restart(Rule::HalfAwakeOver, subject, now),
    }
}

/// A deletion is called off, and idle time and sleep count from now. Both count from the same moment: activity that is not
/// newer than the sleep does not wake. A sleep that a person or a schedule ordered does not count, and stays so.
fn restart(rule: Rule, subject: &Subject, now: Timestamp) -> MetadataPatch {
    let counts = subject.asleep_since.is_set() || !(subject.manual_sleep || subject.scheduled_sleep);
    let mut set: Vec<_> = counts.then_some((TimeAnnotation::AsleepSince, now)).into_iter().collect();
    let mut clear = set_times(subject, &ANNOUNCEMENT);
    if running_in_sleep(subject).next().is_none() {
        clear.extend(set_times(subject, &[TimeAnnotation::HalfAwakeSince]));
    } else if !subject.half_awake_since.is_set() {
        set.push((TimeAnnotation::HalfAwakeSince, now));
    }
    MetadataPatch {
        activity: counts.then(|| recorded(subject, rule, now)),
        state: (subject.state() == State::Deleting).then_some(State::Sleep),
        set,
        clear,
        ..MetadataPatch::default()
    }
}

/// The time of an existing announcement stays; only the date moves.
pub(super) fn announcement(subject: &Subject, world: &World, now: Timestamp) -> MetadataPatch {
    let schedule = Schedule::new(subject, world, now);
    let announced = schedule.announced().unwrap_or(now);
    let delete_at = schedule.deletion_if_announced(announced).unwrap_or(Timestamp::MAX);
    let set = vec![(TimeAnnotation::AnnouncedAt, announced), (TimeAnnotation::DeleteAt, delete_at)];
    MetadataPatch { set, ..MetadataPatch::default() }
}
