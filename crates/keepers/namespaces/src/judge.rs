//! When an idle namespace sleeps, wakes and is deleted.
//!
//! The first matching rule decides. Rules about what is never touched come first, then values that cannot be read,
//! then waking, then deletion, then sleep, and last what there is to wait for.

mod deletion;
mod half_awake;
mod manual;
mod protection;
mod schedule;
mod scheduled;

use caretaker_core::parsed::InvalidValue;
use caretaker_core::{Cause, RuleMatch, Timestamp, duration, rules, time};

use crate::Namespaces;
use crate::act::{Action, Bookkeeping, SleepReason, after_action};
use crate::api::State;
use crate::subject::{Kind, Subject, World, ago};
use crate::workload::Workload;

pub(crate) use deletion::asleep_for;
pub(crate) use half_awake::running_in_sleep;
pub(crate) use protection::is_protected;
pub use protection::{is_about_to_get_defaults, is_managed};
pub use schedule::Schedule;

type Found = Option<RuleMatch<Action>>;

rules! {
    /// Why a namespace sleeps, wakes, is deleted or is left alone.
    pub enum Rule for Namespaces {
        /// Its phase is not Active, or it is being deleted already: never touched.
        NotActive => not_active,
        /// `kube-*`, `default`, `caretaker-system`, the configured patterns, and every namespace with a Service that an admission webhook, an APIService or a conversion webhook calls: never put to sleep and never deleted. One that is asleep still wakes, and an announced deletion is withdrawn.
        Protected => protection::protected,
        /// It has the label `exclude`: it wakes if it is asleep, an announced deletion is withdrawn, and nothing else happens to it.
        Excluded => excluded,
        /// `sleep-after` and `delete-after` are missing or zero, no defaults apply, and nothing is left of a sleep or an announcement: not managed.
        Unmanaged => unmanaged,
        /// A duration that is malformed or negative: reported, and nothing is changed.
        InvalidLabel => invalid_label,
        /// An unknown value of the label `state`: reported, and nothing is changed.
        UnknownState => unknown_state,
        /// An annotation or the label `last-activity` that cannot be read, or a time of activity or of sleep in the future: reported, and nothing is changed; but a use after it fell asleep wakes it, whichever clock is wrong.
        InvalidAnnotation => invalid_annotation,
        /// A person ordered it to stay awake until a time: it wakes if it is asleep, and is neither put to sleep nor deleted until then.
        ManualWake => manual::wake,
        /// A person ordered it, or the namespace that contains it, to sleep until a time: asleep regardless of labels and activity, and never deleted until then.
        ManualSleep => manual::sleep,
        /// The time of a manual sleep is over, or the order was removed: it wakes, and idle time counts from now. If it is awake already, the order is removed.
        ManualSleepExpired => manual::sleep_expired,
        /// It was used inside of the window of its `sleep-during`, and not longer ago than `awakeAfterUse`: it wakes if it is asleep, and sleeps again after that time. A use does not count with `sleep-during-strict: "true"`.
        AwakeAfterUse => scheduled::awake_after_use,
        /// The window of its `sleep-during` is open: asleep until its end, and never deleted for that.
        ScheduledSleep => scheduled::sleep,
        /// It was put to sleep by its `sleep-during`, and the window has ended or the annotation was removed: it wakes.
        ScheduledSleepOver => scheduled::sleep_over,
        /// `asleep-since` is set, but the label `state` is missing or `normal`: somebody reset it. It wakes, and idle time counts from now.
        StateLabelMissing => state_label_missing,
        /// It is asleep, and `sleep-after` was removed or set to zero: it wakes, and idle time counts from now.
        SleepAfterRemoved => sleep_after_removed,
        /// It is asleep or was being put to sleep, and was used since: it wakes, and idle time counts from that use.
        WokenByActivity => woken_by_activity,
        /// The defaults wrote its label, and there are no defaults any more: an announced deletion is withdrawn, and nothing else happens to it.
        DefaultsOff => protection::defaults_off,
        /// The defaults apply to it, and it is a system namespace: by its name (the built-in list and `systemNamespaces`), or because pods of a `system-*-critical` priority class, a CSI driver or a DaemonSet with hostNetwork run in it. It gets no label; if the defaults gave it one, it wakes if it is asleep, an announced deletion is withdrawn, and nothing else happens to it.
        SystemNamespace => protection::system_namespace,
        /// It has a label or annotation that nothing reads and whose name is nearly one that people set, such as `slep-after`, or is one that has to be a label and is an annotation, or the other way round: reported, and until the name is corrected it is neither put to sleep nor deleted.
        MisspelledName => misspelled_name,
        /// There are defaults and it has no label: it gets one, and idle time counts from now, as with `FirstSeen`.
        DefaultsApplied => protection::defaults_applied,
        /// It has a label that leads to its sleep or its deletion, and no activity: idle time counts from now. Such a first clock is spread: up to a tenth of its period is added to it, by its uid, so that what was first seen together is not due together.
        FirstSeen => first_seen,
        /// It is asleep without a record of when that began: the sleep counts from now.
        AsleepSinceUnknown => asleep_since_unknown,
        /// It was used, and that is not written to it yet: nothing is taken away until it is.
        ActivityPending => activity_pending,
        /// An announcement that cannot be read: reported, and nothing is changed.
        InvalidAnnouncement => deletion::invalid_announcement,
        /// It is asleep, and something in it runs, because somebody scaled it up or created it since: that is written to it, its sleep counts from then, and it is not deleted meanwhile. With `halfAwake: wake` the rest wakes, and idle time counts from now; with `sleep` it is put back to sleep, once in a period at most.
        HalfAwake => half_awake::half_awake,
        /// It is asleep, and what ran in it does not run any more: its sleep counts from now.
        HalfAwakeOver => half_awake::over,
        /// It has PersistentVolumeClaims, and the settings keep such namespaces (`retainWithPVCs`), or it is asleep and only the defaults gave it `sleep-after`, unless the settings allow that (`deleteWithPVCs`): not deleted, and an announced deletion is withdrawn.
        RetainedForPVCs => deletion::retained_for_pvcs,
        /// Its labels lead to its deletion, and nothing proves that it is unused: Caretaker does not record activity with canaries, and no other program has written its `activity-status`, or none has written one anywhere for its whole idle time and a week. It is not deleted, and an announced deletion is withdrawn; with `sleep-after` it is put to sleep. The setting `deleteWithoutActivitySource` deletes it all the same.
        NoActivitySource => deletion::no_activity_source,
        /// It is asleep, its deletion is due or to be announced, and something in it runs again or is excluded: refused, and idle time counts from now.
        RunningAgain => deletion::running_again,
        /// It is asleep, its deletion is due or to be announced, and pods run in it, such as those of a Job: refused, and idle time counts from now; pods that their scaled-down controller is about to delete are waited for, up to ten minutes after it fell asleep. Pods are listed live, right before the announcement and right before the deletion.
        PodsRunning => deletion::pods_running,
        /// It is awake, its deletion is near, and something in it is excluded: not deleted, and an announcement is withdrawn. It is still put to sleep if it has `sleep-after`.
        ContainsExcluded => deletion::contains_excluded,
        /// Idle for longer than `delete-after`, asleep for the difference if it also has `sleep-after`, and announced unless the notice is off: deleted.
        DeleteAfterElapsed => deletion::delete_after_elapsed,
        /// It has only `sleep-after`, has been asleep for that long once more, and announced unless the notice is off: deleted, unless the settings say `deletion: onlyDeleteAfter` or `never`.
        AsleepTooLong => deletion::asleep_too_long,
        /// Its deletion had started and is not due any more: called off.
        DeletionWithdrawn => deletion::deletion_withdrawn,
        /// Its sleep was interrupted: it is completed.
        SleepUnfinished => sleep_unfinished,
        /// Idle for longer than `sleep-after`: put to sleep.
        SleepAfterElapsed => sleep_after_elapsed,
        /// It is awake, and Caretaker left something in it scaled down: that is restored.
        StillScaledDown => still_scaled_down,
        /// Its deletion is announced and is not near any more: the announcement is withdrawn.
        AnnouncementWithdrawn => deletion::announcement_withdrawn,
        /// Its deletion is near: it is announced, or the announced date is moved.
        DeletionNear => deletion::deletion_near,
        /// It is a single Deployment, and its label `last-activity` is older than its activity-status: the label gets that time, because `kubectl rollout undo` brings back old annotations.
        LastActivityOutdated => last_activity_outdated,
        /// Its deletion is announced and waits for its date.
        DeletionAnnounced => deletion::deletion_announced,
        /// It is awake, and not idle for long enough yet.
        CountingDown => counting_down,
        /// It is asleep, and its deletion is not near yet.
        Asleep => asleep,
        /// Nothing leads to sleep or deletion, but for the next window of its `sleep-during`.
        NothingScheduled => nothing_scheduled,
    }
}

fn not_active(ns: &Subject, _: &World, _: Timestamp) -> Found {
    ns.inactive.as_ref().map(|phase| RuleMatch::nothing(format!("its phase is {phase}")))
}

fn excluded(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let because = "it has the label exclude".to_owned();
    ns.excluded.then(|| {
        let ordered = ns.manual_sleep || ns.scheduled_sleep;
        let left_asleep = ns.asleep_since.is_set() || ordered || left_scaled_down(ns).next().is_some();
        if ns.is_asleep_in_part() || left_asleep {
            RuleMatch::act(Action::Wake(Some(Rule::Excluded)), now, because)
        } else {
            left_as_it_is(ns, now, because)
        }
    })
}

fn unmanaged(ns: &Subject, world: &World, _: Timestamp) -> Found {
    let managed = ns.sleep_after.is_set() || ns.delete_after.is_set() || ns.sleep_during.is_set();
    let ordered = ns.sleep_until.is_set() || ns.manual_sleep || ns.scheduled_sleep;
    let sleeps = ns.state() != State::Normal || ns.asleep_since.is_set() || ordered;
    let announced = ns.announced_at.is_set() || ns.delete_at.is_set();
    let defaults = protection::defaults_for(ns, &world.policy).is_some();
    let touched = managed || sleeps || announced || defaults || !ns.misspelled.is_empty();
    (!touched && left_scaled_down(ns).next().is_none()).then(|| {
        let zero = ns.labelled;
        RuleMatch::nothing(if zero { "its labels are zero" } else { "it has neither sleep-after nor delete-after" })
    })
}

fn invalid_label(ns: &Subject, _: &World, _: Timestamp) -> Found {
    refuse(ns.invalid_labels())
}

fn unknown_state(ns: &Subject, _: &World, _: Timestamp) -> Found {
    refuse(ns.state.invalid().into_iter())
}

fn invalid_annotation(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let unreadable = refuse(ns.invalid_annotations());
    // Which clock is wrong is not known. A wake does no harm, so it does not wait for the answer.
    if unreadable.is_some() || woken_by_activity(ns, world, now).is_some() {
        return unreadable;
    }
    let in_future = |field: &str, t: Timestamp| {
        (t > time::saturating_add(now, time::SKEW)).then(|| {
            let because = format!("{field} is in the future, {}", ago(t, now));
            RuleMatch::refuse(None, format!("{because}; correct the time, or remove it"))
        })
    };
    None.or_else(|| in_future("label last-activity", ns.last_activity.value()?))
        .or_else(|| in_future("annotation activity-status", ns.activity.get()?.at))
        .or_else(|| in_future("annotation asleep-since", ns.asleep_since.value()?))
}

/// What is half done is completed, and what was left scaled down is restored.
fn misspelled_name(ns: &Subject, _: &World, _: Timestamp) -> Found {
    let unfinished = ns.state() == State::Sleeping || left_scaled_down(ns).next().is_some();
    refuse(ns.misspelled.iter().filter(|_| !unfinished))
}

fn refuse<'a>(invalid: impl Iterator<Item = &'a InvalidValue>) -> Found {
    let all: Vec<String> = invalid.map(ToString::to_string).collect();
    (!all.is_empty()).then(|| RuleMatch::refuse(None, all.join("; ")))
}

fn state_label_missing(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let since = ns.asleep_since.value().filter(|_| ns.state() == State::Normal)?;
    let because = format!("asleep since {}, but the label state is normal", time::format(since));
    Some(RuleMatch::act(Action::Wake(Some(Rule::StateLabelMissing)), now, because))
}

fn still_scaled_down(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let names: Vec<String> = left_scaled_down(ns).map(Workload::display_name).collect();
    (!names.is_empty()).then(|| {
        RuleMatch::act(Action::Wake(None), now, format!("awake, but still scaled to zero: {}", names.join(", ")))
    })
}

/// Workloads that Caretaker left scaled down in a namespace that is awake.
fn left_scaled_down(ns: &Subject) -> impl Iterator<Item = &Workload> {
    let awake = ns.kind == Kind::Namespace && ns.state() == State::Normal;
    ns.workloads.iter().filter(move |w| awake && w.left_scaled_down())
}

/// In which state it is, for people.
pub(crate) fn state_word(ns: &Subject) -> &'static str {
    match ns.state() {
        _ if ns.inactive.is_some() => "terminating",
        State::Deleting => "deleting",
        State::Sleeping => "falling asleep",
        State::Sleep if running_in_sleep(ns).next().is_some() => "half awake",
        State::Sleep => "asleep",
        State::Normal if left_scaled_down(ns).next().is_some() => "waking up",
        State::Normal => "awake",
    }
}

fn sleep_after_removed(ns: &Subject, _: &World, now: Timestamp) -> Found {
    (ns.is_asleep_in_part() && ns.sleep_after().is_none()).then(|| {
        let when = match ns.state() {
            State::Sleeping => "was falling asleep",
            State::Deleting => "was being deleted",
            State::Sleep | State::Normal => "was asleep",
        };
        let because = format!("the label sleep-after was removed while the {} {when}", ns.kind.name().to_lowercase());
        RuleMatch::act(Action::Wake(Some(Rule::SleepAfterRemoved)), now, because)
    })
}

fn woken_by_activity(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let activity = ns.activity.get()?;
    let used = |since: String| {
        let who = if activity.user.is_empty() { String::new() } else { format!(" by {}", activity.user) };
        let what = if activity.by.is_empty() { String::new() } else { format!(" ({}{who})", activity.by) };
        let because = format!("used {}{what}, {since}", ago(activity.at, now));
        RuleMatch::act(Action::Wake(None), activity.at, because)
    };
    match ns.asleep_since.value() {
        Some(since) if ns.is_asleep() => {
            (activity.at > since).then(|| used(format!("after it fell asleep at {}", time::format(since))))
        }
        // There is no record of when its sleep began. If it is idle long enough to be put to sleep now, it is asleep
        // rightly.
        _ if ns.is_asleep_in_part() && !activity.is_found_running() => {
            let allowed = ns.sleep_after()?;
            (time::saturating_add(activity.at, allowed) >= now)
                .then(|| used(format!("less than its sleep-after of {} ago", duration::format(allowed))))
        }
        _ => None,
    }
}

/// Nothing more happens, except that an announcement is withdrawn.
fn left_as_it_is(ns: &Subject, now: Timestamp, because: String) -> RuleMatch<Action> {
    if ns.has_announcement() {
        RuleMatch::act(Action::Record(Bookkeeping::Withdraw), now, because)
    } else {
        RuleMatch::nothing(because)
    }
}

fn first_seen(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let labelled = ns.sleep_after().is_some() || ns.delete_after.is_set();
    if !labelled || ns.activity.is_set() || ns.is_asleep() {
        return None;
    }
    let record = Action::Record(Bookkeeping::FirstSeen);
    let after = after_action(ns.clone(), &record, world, now)?;
    let schedule = Schedule::new(&after, world, now);
    if schedule.why_unproven().is_some() && !schedule.leads_to_sleep_or_deletion() {
        return None;
    }
    let because = "it has a label and no activity-status, so that kubefree ignores it: idle time counts from now";
    let sleep = schedule.sleep().map(|at| format!("; unless it is used, it sleeps after {}", time::format(at)));
    let because = format!("{because}{}{}", sleep.unwrap_or_default(), schedule.what_follows());
    Some(RuleMatch::act(record, now, because))
}

fn asleep_since_unknown(ns: &Subject, world: &World, now: Timestamp) -> Found {
    if !ns.is_asleep() || ns.asleep_since.is_set() {
        return None;
    }
    let record = Action::Record(Bookkeeping::AsleepSince);
    let after = after_action(ns.clone(), &record, world, now)?;
    let because = "it is asleep without a record of when that began: its sleep counts from now";
    let because = format!("{because}{}", Schedule::new(&after, world, now).what_follows());
    Some(RuleMatch::act(record, now, because))
}

fn activity_pending(ns: &Subject, world: &World, now: Timestamp) -> Found {
    // An interrupted sleep is completed in any case.
    if !ns.activity_pending || ns.state() == State::Sleeping {
        return None;
    }
    let schedule = Schedule::new(ns, world, now);
    let sleep_is_due = schedule.sleep().is_some_and(|due| now > due);
    let is_due = sleep_is_due || schedule.deletion_is_due() || schedule.deletion_is_near();
    is_due.then(|| {
        let pending = RuleMatch::nothing("it was used, and that is not written to it yet");
        scheduled::not_after_next_sleep(ns, pending, now)
    })
}

fn sleep_unfinished(ns: &Subject, _: &World, now: Timestamp) -> Found {
    (ns.state() == State::Sleeping).then(|| {
        let action = Action::Sleep(SleepReason::Unfinished);
        let because = format!("its sleep was interrupted{}", left_running(ns));
        RuleMatch::act(action, now, because).with_cause(Cause::Completion)
    })
}

fn sleep_after_elapsed(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let schedule = Schedule::new(ns, world, now);
    let due = schedule.sleep().filter(|due| now > *due)?;
    let because = format!("{}{}{}", schedule.why_idle(), schedule.what_follows(), left_running(ns));
    Some(RuleMatch::act(Action::Sleep(SleepReason::Idle), due, because))
}

/// Which workloads and pods a sleep leaves running, as the end of a sentence.
fn left_running(ns: &Subject) -> String {
    let kept = ns.workloads.iter().filter(|workload| workload.is_left_running_for_its_claims());
    let kept: Vec<String> = kept.map(Workload::display_name).collect();
    let kept = if kept.is_empty() {
        String::new()
    } else {
        format!("; left running, as a scale-down would delete its claims: {}", kept.join(", "))
    };
    kept + &ns.pods.after_sleep_message(&ns.workloads)
}

fn last_activity_outdated(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let at = ns.unlabelled_activity()?;
    let because = format!("its label last-activity is older than its last use at {}", time::format(at));
    Some(RuleMatch::act(Action::Record(Bookkeeping::LastActivity), now, because))
}

fn counting_down(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let schedule = Schedule::new(ns, world, now);
    if ns.is_asleep() || !schedule.leads_to_sleep_or_deletion() {
        return None;
    }
    let (until, then) = schedule.next()?;
    Some(RuleMatch::wait(until, then, schedule.why_idle() + &schedule.what_follows()))
}

fn asleep(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let schedule = Schedule::new(ns, world, now);
    let since = schedule.asleep_from().filter(|_| ns.is_asleep())?;
    let because = format!("asleep since {}, {}{}", time::format(since), ago(since, now), schedule.what_follows());
    Some(match schedule.next() {
        Some((until, then)) => RuleMatch::wait(until, then, because),
        None => RuleMatch::nothing(because),
    })
}

fn nothing_scheduled(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let asleep = ns.namespace_asleep;
    let ahead = scheduled::ahead(ns, now);
    ahead.or_else(|| {
        Some(RuleMatch::nothing(if asleep { "its namespace is asleep" } else { "nothing leads to sleep or deletion" }))
    })
}
