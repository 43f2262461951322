//! Half awake: something runs in a namespace that is asleep, because somebody scaled it up or created it since.
//!
//! That is noticed at once and written to the namespace, and what comes of it is a choice of the settings. A tool that
//! restores what is in Git may scale up again what was put back to sleep, so that is done once in a period at most.
//! While something runs the namespace is not deleted, and afterwards its sleep counts from then on.

use caretaker_core::{Cause, RuleMatch, SignedDuration, Timestamp, time};

use super::{Found, Rule, Schedule, deletion};
use crate::act::{Action, Bookkeeping, SleepReason};
use crate::subject::{HalfAwake, Kind, Subject, World};
use crate::workload::Workload;

/// Workloads that run although the namespace is asleep. Those that a sleep leaves running are none.
pub(crate) fn running_in_sleep(ns: &Subject) -> impl Iterator<Item = &Workload> {
    let asleep = ns.kind == Kind::Namespace && ns.is_asleep();
    ns.workloads.iter().filter(move |w| asleep && w.runs() && !w.is_left_running())
}

/// What runs, as the beginning of a sentence; `None` if nothing does.
fn what_runs(ns: &Subject) -> Option<String> {
    let names: Vec<String> = running_in_sleep(ns).map(Workload::display_name).collect();
    let runs = if names.len() == 1 { "runs" } else { "run" };
    (!names.is_empty()).then(|| format!("half awake: {} {runs} although the namespace is asleep", names.join(", ")))
}

/// The period in which it is put back to sleep once at most.
fn put_back_period(ns: &Subject, world: &World) -> SignedDuration {
    ns.sleep_after().unwrap_or(world.policy.awake_after_use)
}

/// When it may be put back to sleep; `None` if that is now.
fn next_put_back(ns: &Subject, world: &World, now: Timestamp) -> Option<Timestamp> {
    let next = time::saturating_add(ns.put_back_at.value()?, put_back_period(ns, world));
    (next >= now).then_some(next)
}

/// Why it is not put back to sleep yet.
fn put_back_before(ns: &Subject, next: Timestamp) -> String {
    let before = ns.put_back_at.value().map(time::format).unwrap_or_default();
    format!(
        "; it was put back to sleep at {before} and scaled up again, by a GitOps tool perhaps, so it is not put back \
         before {}",
        time::format(next)
    )
}

/// The record that it is half awake, if it has none yet.
fn note(ns: &Subject, because: &str) -> Found {
    let noted = ns.half_awake_since.is_set() && !ns.has_announcement();
    let record = Action::Record(Bookkeeping::HalfAwake);
    (!noted).then(|| RuleMatch::refuse(Some(record), format!("{because}: it is not deleted meanwhile")))
}

pub(super) fn half_awake(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let mut what = what_runs(ns)?;
    let schedule = Schedule::new(ns, world, now);
    // What runs is read live then, and its period starts again.
    if deletion::asleep_and_near(ns, world, now) && !world.policy.retains_by_defaults(ns) {
        return None;
    }
    match world.policy.half_awake {
        // Awake, it would be deleted with what runs in it. Asleep, whatever runs holds the deletion back.
        HalfAwake::Wake if schedule.is_deleted_awake() => {
            what += "; the rest does not wake, as its delete-after would then delete it without a sleep";
        }
        HalfAwake::Wake => {
            let because = format!("{what}; the settings wake the rest");
            return Some(RuleMatch::act(Action::Wake(Some(Rule::HalfAwake)), now, because));
        }
        HalfAwake::Sleep => {
            let again = Action::Sleep(SleepReason::Idle);
            let Some(next) = next_put_back(ns, world, now) else {
                return Some(RuleMatch::act(again, now, format!("{what}; the settings put it back to sleep")));
            };
            let because = what + &put_back_before(ns, next);
            return note(ns, &because).or_else(|| Some(RuleMatch::wait(next, again, because)));
        }
        HalfAwake::Leave => {}
    }
    note(ns, &what).or_else(|| {
        let restart = Action::Record(Bookkeeping::Restart(Rule::RunningAgain));
        let near = deletion::near_at(&schedule).filter(|_| !world.policy.retains_by_defaults(ns));
        Some(match near {
            Some(at) => RuleMatch::wait(at, restart, format!("{what}: its period starts again instead of a deletion")),
            None => RuleMatch::nothing(what),
        })
    })
}

pub(super) fn over(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let since = ns.half_awake_since.value().filter(|_| ns.is_asleep() && running_in_sleep(ns).next().is_none())?;
    let because =
        format!("half awake since {}, and nothing runs any more: its sleep counts from now", time::format(since));
    Some(RuleMatch::act(Action::Record(Bookkeeping::HalfAwakeOver), now, because))
}

/// The same in a sleep that a person or a schedule ordered, which is not counted towards a deletion: what is to be done
/// about it now, or before `end`. An order is not overruled by waking the rest.
pub(super) fn in_ordered_sleep(
    ns: &Subject,
    world: &World,
    reason: SleepReason,
    end: Option<Timestamp>,
    now: Timestamp,
) -> Found {
    let Some(what) = what_runs(ns) else { return over(ns, world, now) };
    if world.policy.half_awake != HalfAwake::Sleep {
        return note(ns, &what);
    }
    let again = Action::Sleep(reason);
    let Some(next) = next_put_back(ns, world, now) else {
        let because = format!("{what}; the settings put it back to sleep");
        return Some(RuleMatch::act(again, now, because).with_cause(Cause::Ordered));
    };
    let because = what + &put_back_before(ns, next);
    let waits = || (end.is_none_or(|end| next < end)).then(|| RuleMatch::wait(next, again, because.clone()));
    note(ns, &because).or_else(waits)
}

/// What runs in an ordered sleep, as the end of a sentence.
pub(super) fn beside_an_order(ns: &Subject) -> String {
    what_runs(ns).map(|what| format!("; {what}")).unwrap_or_default()
}
