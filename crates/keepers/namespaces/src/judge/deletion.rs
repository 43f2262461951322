//! The rules about deletion: what holds it back, when it is announced, when it is done.

use caretaker_core::{RuleMatch, SignedDuration, Timestamp, time};

use super::{Found, Rule, Schedule, left_as_it_is, left_scaled_down, refuse, scheduled};
use crate::act::{Action, Bookkeeping, SleepReason};
use crate::api::State;
use crate::pods::{self, Pod};
use crate::subject::{Subject, World, ago};
use crate::workload::Workload;

/// The smallest time that passes between two rounds.
const MOMENT: SignedDuration = SignedDuration::from_secs(1);

pub(super) fn invalid_announcement(ns: &Subject, _: &World, _: Timestamp) -> Found {
    refuse(ns.invalid_announcement())
}

pub(super) fn retained_for_pvcs(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let by_defaults = world.policy.retains_by_defaults(ns) && ns.is_asleep();
    // What is awake and can sleep is still put to sleep.
    let stays_awake = ns.sleep_after().is_none() && left_scaled_down(ns).next().is_none();
    let by_settings = world.policy.retains(ns) && (ns.is_asleep() || stays_awake);
    (by_defaults || by_settings).then(|| {
        let pvcs = if ns.pvc_count == 1 {
            "a PersistentVolumeClaim".to_owned()
        } else {
            format!("{} PersistentVolumeClaims", ns.pvc_count)
        };
        let why = if by_settings { "retainWithPVCs is set" } else { "the defaults put it to sleep" };
        let kept = left_as_it_is(ns, now, format!("{why}, and it has {pvcs}: it is not deleted"));
        scheduled::not_after_next_sleep(ns, kept, now)
    })
}

pub(super) fn no_activity_source(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let because = Schedule::new(ns, world, now).why_unproven()?;
    // What is awake and can sleep is still put to sleep.
    let stays_awake = ns.sleep_after().is_none() && left_scaled_down(ns).next().is_none();
    (ns.is_asleep() || stays_awake).then(|| {
        let kept = left_as_it_is(ns, now, format!("it is not deleted, as {because}"));
        scheduled::not_after_next_sleep(ns, kept, now)
    })
}

/// `Deployment/web` for each workload that the filter selects, and the excluded Services.
fn holding_back(ns: &Subject, workloads: impl Fn(&&Workload) -> bool) -> Vec<String> {
    let names = ns.workloads.iter().filter(workloads).map(Workload::display_name);
    names.chain(ns.excluded_services.iter().cloned()).collect()
}

/// True if it is asleep, and its deletion is due or to be announced.
pub(super) fn asleep_and_near(ns: &Subject, world: &World, now: Timestamp) -> bool {
    let schedule = Schedule::new(ns, world, now);
    // A sleep that counts from this second is not over again, however short its period.
    let restarted = schedule.asleep_from().is_some_and(|since| now <= time::saturating_add(since, MOMENT));
    let announcement_is_due = schedule.announcement_is_due() && !restarted;
    ns.is_asleep() && (schedule.deletion_is_due() || announcement_is_due)
}

/// When that is the case next, for one that is asleep.
pub(super) fn near_at(schedule: &Schedule<'_>) -> Option<Timestamp> {
    let at = schedule.announcement().or_else(|| schedule.deletion())?;
    Some(schedule.asleep_from().map_or(at, |since| at.max(time::saturating_add(since, MOMENT))))
}

pub(super) fn running_again(ns: &Subject, world: &World, now: Timestamp) -> Found {
    if !asleep_and_near(ns, world, now) {
        return None;
    }
    let awake = holding_back(ns, |w| w.runs() || w.excluded);
    (!awake.is_empty()).then(|| {
        let because = format!("its deletion is near, but these run again or are excluded: {}", awake.join(", "));
        RuleMatch::refuse(Some(Action::Record(Bookkeeping::Restart(Rule::RunningAgain))), because)
    })
}

/// How long it is asleep at this time.
pub(crate) fn asleep_for(ns: &Subject, at: Timestamp) -> SignedDuration {
    ns.asleep_since.value().map_or(SignedDuration::ZERO, |since| time::duration_between(since, at))
}

pub(super) fn pods_running(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let running: Vec<&Pod> = ns.pods.running().iter().collect();
    if running.is_empty() || !asleep_and_near(ns, world, now) {
        return None;
    }
    let is_due = Schedule::new(ns, world, now).deletion_is_due();
    let asleep_for = asleep_for(ns, now);
    let holding: Vec<&Pod> = if is_due {
        ns.pods.holding_back(&ns.workloads, asleep_for).collect()
    } else {
        ns.pods.holding_back_notice(&ns.workloads, asleep_for).collect()
    };
    if !holding.is_empty() {
        let because = format!(
            "its deletion is near, but pods run in it: {}; it is deleted once they have ended or are deleted",
            pods::named(&holding)
        );
        let restart = Action::Record(Bookkeeping::Restart(Rule::PodsRunning));
        return Some(RuleMatch::refuse(Some(restart), because));
    }
    is_due.then(|| {
        let because = format!("pods of what was scaled down have not ended yet: {}", pods::named(&running));
        RuleMatch::refuse(None, because)
    })
}

pub(super) fn contains_excluded(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let schedule = Schedule::new(ns, world, now);
    if ns.is_asleep_in_part() || !(schedule.deletion_is_due() || schedule.deletion_is_near()) {
        return None;
    }
    let excluded = holding_back(ns, |w| w.excluded);
    if excluded.is_empty() {
        return None;
    }
    let because = format!("its deletion is near, but these are excluded: {}", excluded.join(", "));
    match schedule.sleep() {
        _ if ns.has_announcement() => Some(RuleMatch::refuse(Some(Action::Record(Bookkeeping::Withdraw)), because)),
        Some(due) if now > due => None,
        Some(due) => {
            let waits = RuleMatch::wait(due, Action::Sleep(SleepReason::Idle), because);
            Some(scheduled::not_after_next_sleep(ns, waits, now))
        }
        None => Some(RuleMatch::refuse(None, because)),
    }
}

pub(super) fn delete_after_elapsed(ns: &Subject, world: &World, now: Timestamp) -> Found {
    ns.delete_after.value().and_then(|_| delete(&Schedule::new(ns, world, now)))
}

pub(super) fn asleep_too_long(ns: &Subject, world: &World, now: Timestamp) -> Found {
    delete(&Schedule::new(ns, world, now))
}

fn delete(schedule: &Schedule<'_>) -> Found {
    schedule.deletion_is_due().then(|| {
        let due = schedule.announced_deletion().unwrap_or(schedule.now);
        RuleMatch::act(Action::Delete, due, schedule.why_deleted())
    })
}

pub(super) fn deletion_withdrawn(ns: &Subject, _: &World, now: Timestamp) -> Found {
    (ns.state() == State::Deleting).then(|| {
        let because = "its state is deleting, but its deletion is not due any more";
        RuleMatch::act(Action::Record(Bookkeeping::Withdraw), now, because)
    })
}

pub(super) fn announcement_withdrawn(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let schedule = Schedule::new(ns, world, now);
    let announced = ns.announced_at.is_set() || ns.delete_at.is_set();
    (announced && !schedule.deletion_is_near()).then(|| {
        let because = match schedule.deletion() {
            Some(at) => format!("its deletion was announced, and is now not due before {}", time::format(at)),
            None => "its deletion was announced, and nothing leads to it any more".to_owned(),
        };
        RuleMatch::act(Action::Record(Bookkeeping::Withdraw), now, because)
    })
}

pub(super) fn deletion_near(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let schedule = Schedule::new(ns, world, now);
    if schedule.announcement_is_due() {
        let due = schedule.announcement().unwrap_or(now);
        let at = schedule.deletion_if_announced(now).map(time::format).unwrap_or_default();
        let because = format!("{}: to be deleted after {at}", schedule.why_idle());
        return Some(RuleMatch::act(Action::Announce, due, because));
    }
    (schedule.deletion_is_near() && schedule.date_moved()).then(|| {
        let date = schedule.announced().and_then(|announced| schedule.deletion_if_announced(announced));
        let date = date.map(time::format).unwrap_or_default();
        RuleMatch::act(Action::Announce, now, format!("its deletion was announced for another date than {date}"))
    })
}

pub(super) fn deletion_announced(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let schedule = Schedule::new(ns, world, now);
    let announced = schedule.announced()?;
    let at = schedule.deletion_if_announced(announced)?;
    let next_sleep = schedule.sleep().filter(|sleep| *sleep < at);
    let because = format!("{}; its deletion was announced {}", schedule.why_idle(), ago(announced, now));
    let waits = match next_sleep {
        Some(sleep) => RuleMatch::wait(sleep, Action::Sleep(SleepReason::Idle), because),
        None => RuleMatch::wait(at, Action::Delete, because),
    };
    Some(scheduled::not_after_next_sleep(ns, waits, now))
}
