//! When an idle namespace sleeps, wakes and goes.
//!
//! First match wins. What must never be touched comes first, then doubt, then waking, then deletion,
//! then sleep, and last what there is to wait for.

mod clock;
mod hand;

use caretaker_core::rules::RuleTable;
use caretaker_core::parsed::Broken;
use caretaker_core::{RuleMatch, SignedDuration, Timestamp, duration, rules, time};

use crate::act::{Action, Note, Sleep};
use crate::api::State;
use crate::subject::{Fallback, Kind, Subject, World, ago};
use crate::workload::Workload;

pub use clock::Clock;

type Found = Option<RuleMatch<Action>>;

/// Clocks of different machines differ; what is this little ahead of ours is not from the future.
pub const SKEW: SignedDuration = SignedDuration::from_mins(5);

const MOMENT: SignedDuration = SignedDuration::from_secs(1);

/// The rules of this keeper.
pub static RULES: RuleTable<Subject, World, Action> = rules![
    /// Its phase is not Active, or it is being deleted already: never touched.
    NotActive => not_active,
    /// `kube-*`, `default`, `caretaker-system`, what the configuration protects, and whatever serves an admission webhook, an APIService or a conversion: never touched.
    Protected => protected,
    /// Its owner wants it left alone: it wakes if it sleeps, and that is all.
    Excluded => excluded,
    /// No label, no trace of ours, and no fallback: not our business.
    Unmanaged => unmanaged,
    /// A duration that is malformed or negative: reported, and everything stays as it is.
    BrokenLabel => broken_label,
    /// A state that is none: reported, and everything stays as it is.
    UnknownState => unknown_state,
    /// Activity that is no JSON or lies in the future, or another time that is none: reported, and everything stays as it is.
    BrokenAnnotation => broken_annotation,
    /// A person keeps it awake until a time: it wakes if it sleeps, and is neither put to sleep nor deleted meanwhile.
    HandWake => hand::wake,
    /// A person put it, or the namespace around it, to sleep until a time: asleep whatever its labels and its activity say, and never deleted meanwhile.
    HandSleep => hand::sleep,
    /// The time a person gave it to sleep is over: it wakes, and its clock starts anew; or it is awake already, and the note is removed.
    HandSleepOver => hand::sleep_over,
    /// There is a record of its sleep, and its state says that it is awake: somebody took the state away. It wakes, and its clock starts anew.
    StateLost => state_lost,
    /// Asleep, and `sleep-after` is gone: it wakes, and its clock starts anew.
    LabelRemoved => label_removed,
    /// Asleep or on its way there, and used since: it wakes with what it had.
    WokenByActivity => woken_by_activity,
    /// Its label is the fallback's, and the fallback is off: it is left as it is.
    FallbackOff => fallback_off,
    /// The fallback is on and it carries no label: it gets one, and its clock starts.
    FallbackLabel => fallback_label,
    /// A label without activity: its clock starts at first sight.
    FirstSeen => first_seen,
    /// Found asleep without a record of since when: since now.
    AsleepSinceUnknown => asleep_since_unknown,
    /// An announcement that cannot be read: reported, and everything stays as it is.
    BrokenAnnouncement => broken_announcement,
    /// Asleep by the fallback with PersistentVolumeClaims: not deleted, unless the configuration says so.
    KeptForClaims => kept_for_claims,
    /// Deletion is due, but something in it runs again or is excluded: refused, and its clock starts anew.
    RunningAgain => running_again,
    /// Awake, its deletion is near, and something in it is excluded: not announced, and refused.
    HoldsExcluded => holds_excluded,
    /// Silent for longer than `delete-after`, asleep as long as that asks for, and announced: deleted.
    DeleteAfterElapsed => delete_after_elapsed,
    /// Only `sleep-after`, asleep for longer than that again, and announced: deleted.
    AsleepTooLong => asleep_too_long,
    /// Its deletion was begun and is not due any more: called off.
    DeletionWithdrawn => deletion_withdrawn,
    /// It was being put to sleep: that is finished.
    SleepUnfinished => sleep_unfinished,
    /// Silent for longer than `sleep-after`: put to sleep.
    SleepAfterElapsed => sleep_after_elapsed,
    /// It is awake, and something in it still lies as we laid it down: that wakes, too.
    LeftDown => left_down,
    /// Announced, and the deletion is far off again: the announcement is withdrawn.
    AnnouncementWithdrawn => announcement_withdrawn,
    /// Its deletion is near: announced, or the announced date moved.
    DeletionNear => deletion_near,
    /// Its deletion is announced, and waits for its time.
    DeletionAnnounced => deletion_announced,
    /// Awake, and its silence does not last long enough yet.
    CountingDown => counting_down,
    /// Asleep, and its deletion is not near yet.
    Asleep => asleep,
    /// Nothing leads anywhere.
    AtRest => at_rest,
];

fn not_active(ns: &Subject, _: &World, _: Timestamp) -> Found {
    ns.inactive.as_ref().map(|phase| RuleMatch::nothing(format!("its phase is {phase}")))
}

fn protected(ns: &Subject, world: &World, _: Timestamp) -> Found {
    let asleep = if asleep_in_part(ns) { "; it is asleep, and only a person will wake it" } else { "" };
    if let Some(pattern) = world.policy.protects(ns.home()) {
        return Some(RuleMatch::nothing(format!("namespace {} is protected by the pattern {pattern}{asleep}", ns.home())));
    }
    ns.serves.as_ref().map(|what| RuleMatch::nothing(format!("the control plane depends on it: {what}{asleep}")))
}

fn excluded(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let because = "its label exclude asks for it to be left alone".to_owned();
    ns.excluded.then(|| {
        if asleep_in_part(ns) || ns.asleep_since.is_set() || ns.slept_by_hand || lying(ns).next().is_some() {
            RuleMatch::act(Action::Wake { restart: Some("Excluded") }, now, because)
        } else {
            left_as_it_is(ns, now, because)
        }
    })
}

fn unmanaged(ns: &Subject, world: &World, _: Timestamp) -> Found {
    let managed = ns.sleep_after.is_set() || ns.delete_after.is_set();
    let by_hand = ns.hand_sleep_until.is_set() || ns.slept_by_hand;
    let sleeps = ns.state() != State::Normal || ns.asleep_since.is_set() || by_hand;
    let announced = ns.announced_at.is_set() || ns.delete_at.is_set();
    let fallback = fallback(ns, world).is_some();
    (!managed && !sleeps && !announced && !fallback && lying(ns).next().is_none()).then(|| {
        RuleMatch::nothing(if ns.labelled {
            "its labels say zero"
        } else {
            "it carries neither sleep-after nor delete-after"
        })
    })
}

/// The fallback, where it applies: to a namespace on which neither label stands, not even a zero.
fn fallback<'a>(ns: &Subject, world: &'a World) -> Option<&'a Fallback> {
    let fallback = world.policy.fallback.as_ref().filter(|f| !f.sleep_after.is_zero())?;
    (ns.kind == Kind::Namespace && !ns.labelled).then_some(fallback)
}

fn broken_label(ns: &Subject, _: &World, _: Timestamp) -> Found {
    refuse(ns.broken_labels())
}

fn unknown_state(ns: &Subject, _: &World, _: Timestamp) -> Found {
    refuse(ns.state.invalid().into_iter())
}

fn broken_annotation(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let ahead = |what: &str, t: Timestamp| {
        let far = t > time::saturating_add(now, SKEW);
        far.then(|| {
            RuleMatch::refuse(
                None,
                format!("annotation {what} lies in the future, {}; set the right time, or remove it", ago(t, now)),
            )
        })
    };
    refuse(ns.broken_annotations())
        .or_else(|| ahead("activity-status", ns.activity.get()?.at))
        .or_else(|| ahead("asleep-since", ns.asleep_since.value()?))
}

fn refuse<'a>(broken: impl Iterator<Item = &'a Broken>) -> Found {
    let all: Vec<String> = broken.map(ToString::to_string).collect();
    (!all.is_empty()).then(|| RuleMatch::refuse(None, all.join("; ")))
}

fn state_lost(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let since = ns.asleep_since.value().filter(|_| ns.state() == State::Normal)?;
    let because = format!("asleep since {}, but its label state says normal", time::format(since));
    Some(RuleMatch::act(Action::Wake { restart: Some("StateLost") }, now, because))
}

fn left_down(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let rows: Vec<String> = lying(ns).map(|w| format!("{}/{}", w.kind, w.name)).collect();
    (!rows.is_empty()).then(|| {
        let because = format!("it is awake, but this still lies: {}", rows.join(", "));
        RuleMatch::act(Action::Wake { restart: None }, now, because)
    })
}

/// What lies in a namespace that is awake.
fn lying(ns: &Subject) -> impl Iterator<Item = &Workload> {
    let awake = ns.kind == Kind::Namespace && ns.state() == State::Normal;
    ns.workloads.iter().filter(move |w| awake && w.is_left_down())
}

fn label_removed(ns: &Subject, _: &World, now: Timestamp) -> Found {
    (asleep_in_part(ns) && ns.sleep_after().is_none()).then(|| {
        let action = Action::Wake { restart: Some("LabelRemoved") };
        RuleMatch::act(action, now, format!("its state is {} and it carries no sleep-after any more", ns.state()))
    })
}

fn asleep_in_part(ns: &Subject) -> bool {
    ns.state() == State::Sleeping || ns.is_asleep()
}

fn woken_by_activity(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let activity = ns.activity.get()?;
    let used = |since: String| {
        let who = if activity.user.is_empty() { String::new() } else { format!(" by {}", activity.user) };
        let what = if activity.by.is_empty() { String::new() } else { format!(" ({}{who})", activity.by) };
        let because = format!("used {}{what}, {since}", ago(activity.at, now));
        RuleMatch::act(Action::Wake { restart: None }, activity.at, because)
    };
    match ns.asleep_since.value() {
        Some(since) if ns.is_asleep() => {
            (activity.at > since).then(|| used(format!("after it fell asleep at {}", time::format(since))))
        }
        // Nobody noted when its sleep began. Were it still idle long enough to be put to sleep, it
        // could be asleep rightly.
        _ if asleep_in_part(ns) => {
            let allowed = ns.sleep_after()?;
            (time::saturating_add(activity.at, allowed) >= now)
                .then(|| used(format!("less than its sleep-after of {} ago", duration::format(allowed))))
        }
        _ => None,
    }
}

fn fallback_off(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let off = ns.by_fallback && !ns.delete_after.is_set() && world.policy.fallback.is_none();
    off.then(|| left_as_it_is(ns, now, "its sleep-after is the fallback's, and the fallback is off".to_owned()))
}

/// Nothing more, except that what was announced is called off.
fn left_as_it_is(ns: &Subject, now: Timestamp, because: String) -> RuleMatch<Action> {
    let announced = ns.announced_at.is_set() || ns.delete_at.is_set() || ns.state() == State::Deleting;
    if announced { RuleMatch::act(Action::Label(Note::Withdraw), now, because) } else { RuleMatch::nothing(because) }
}

fn fallback_label(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let fallback = fallback(ns, world)?;
    let because = format!("it carries no label, and the fallback is {}", duration::format_go(fallback.sleep_after));
    Some(RuleMatch::act(Action::Label(Note::Fallback(fallback.sleep_after)), now, because))
}

fn first_seen(ns: &Subject, _: &World, now: Timestamp) -> Found {
    let labelled = ns.sleep_after().is_some() || ns.delete_after.is_set();
    (labelled && !ns.activity.is_set() && !ns.is_asleep()).then(|| {
        RuleMatch::act(Action::Label(Note::FirstSeen), now, "it has a label and no activity-status: its clock starts now")
    })
}

fn asleep_since_unknown(ns: &Subject, _: &World, now: Timestamp) -> Found {
    (ns.is_asleep() && !ns.asleep_since.is_set()).then(|| {
        RuleMatch::act(
            Action::Label(Note::AsleepSince),
            now,
            "it is asleep and nobody noted since when: it counts from now",
        )
    })
}

fn broken_announcement(ns: &Subject, _: &World, _: Timestamp) -> Found {
    refuse(ns.broken_announcement())
}

fn kept_for_claims(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let may = world.policy.fallback.as_ref().is_some_and(|f| f.delete_claims);
    let fallback_only = ns.by_fallback && !ns.delete_after.is_set();
    (fallback_only && ns.claims > 0 && ns.is_asleep() && !may).then(|| {
        let claims = if ns.claims == 1 {
            "a PersistentVolumeClaim".to_owned()
        } else {
            format!("{} PersistentVolumeClaims", ns.claims)
        };
        left_as_it_is(ns, now, format!("asleep by the fallback, and it has {claims}: it is not deleted"))
    })
}

fn running_again(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    // A clock that was started anew this very second has not run out again, however short its period.
    let started = clock.asleep_from().is_some_and(|since| now <= time::saturating_add(since, MOMENT));
    let due = ns.is_asleep() && (clock.deletion_is_due() || (clock.announcement_is_due() && !started));
    let awake: Vec<String> = if due {
        let rows = ns.workloads.iter().filter(|w| w.runs() || w.excluded).map(|w| format!("{}/{}", w.kind, w.name));
        rows.chain(ns.kept.iter().cloned()).collect()
    } else {
        return None;
    };
    (!awake.is_empty()).then(|| {
        let because = format!("its deletion is near, but this runs again or is excluded: {}", awake.join(", "));
        RuleMatch::refuse(Some(Action::Label(Note::Restart)), because)
    })
}

fn holds_excluded(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    if ns.is_asleep() || ns.state() == State::Sleeping || !(clock.deletion_is_due() || clock.deletion_is_near()) {
        return None;
    }
    let rows = ns.workloads.iter().filter(|w| w.excluded).map(|w| format!("{}/{}", w.kind, w.name));
    let held: Vec<String> = rows.chain(ns.kept.iter().cloned()).collect();
    if held.is_empty() {
        return None;
    }
    let because = format!("its deletion is near, but this is excluded: {}", held.join(", "));
    let announced = ns.announced_at.is_set() || ns.delete_at.is_set() || ns.state() == State::Deleting;
    match clock.sleep() {
        _ if announced => Some(RuleMatch::refuse(Some(Action::Label(Note::Withdraw)), because)),
        Some(due) if now > due => None,
        Some(due) => Some(RuleMatch::wait(due, Action::Sleep(Sleep::Idle), because)),
        None => Some(RuleMatch::refuse(None, because)),
    }
}

fn delete_after_elapsed(ns: &Subject, world: &World, now: Timestamp) -> Found {
    ns.delete_after.value().and_then(|_| delete(&Clock::new(ns, world, now)))
}

fn asleep_too_long(ns: &Subject, world: &World, now: Timestamp) -> Found {
    delete(&Clock::new(ns, world, now))
}

fn delete(clock: &Clock<'_>) -> Found {
    clock
        .deletion_is_due()
        .then(|| RuleMatch::act(Action::Delete, clock.announced_deletion().unwrap_or(clock.now), clock.why_deleted()))
}

fn deletion_withdrawn(ns: &Subject, _: &World, now: Timestamp) -> Found {
    (ns.state() == State::Deleting).then(|| {
        RuleMatch::act(Action::Label(Note::Withdraw), now, "its state is deleting, but its deletion is not due any more")
    })
}

fn sleep_unfinished(ns: &Subject, _: &World, now: Timestamp) -> Found {
    (ns.state() == State::Sleeping).then(|| {
        RuleMatch::act(Action::Sleep(Sleep::Unfinished), now, "it was being put to sleep when that was cut short")
    })
}

fn sleep_after_elapsed(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    let due = clock.sleep().filter(|due| now > *due)?;
    Some(RuleMatch::act(Action::Sleep(Sleep::Idle), due, clock.why_idle()))
}

fn announcement_withdrawn(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    let announced = ns.announced_at.is_set() || ns.delete_at.is_set();
    (announced && !clock.deletion_is_near()).then(|| {
        let because = match clock.deletion() {
            Some(at) => format!("its deletion was announced and is now not before {}", time::format(at)),
            None => "its deletion was announced and nothing leads to it any more".to_owned(),
        };
        RuleMatch::act(Action::Label(Note::Withdraw), now, because)
    })
}

fn deletion_near(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    if clock.announcement_is_due() {
        let due = clock.announcement().unwrap_or(now);
        let at = clock.deletion_if_announced(now).map(time::format).unwrap_or_default();
        return Some(RuleMatch::act(Action::Announce, due, format!("{}: to be deleted after {at}", clock.why_idle())));
    }
    (clock.deletion_is_near() && clock.date_moved()).then(|| {
        let at = clock
            .announced()
            .and_then(|announced| clock.deletion_if_announced(announced))
            .map(time::format)
            .unwrap_or_default();
        RuleMatch::act(Action::Announce, now, format!("its deletion was announced for another date than {at}"))
    })
}

fn deletion_announced(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    let announced = clock.announced()?;
    let at = clock.deletion_if_announced(announced)?;
    let next_sleep = clock.sleep().filter(|sleep| *sleep < at);
    let because = format!("{}; its deletion was announced {}", clock.why_idle(), ago(announced, now));
    Some(match next_sleep {
        Some(sleep) => RuleMatch::wait(sleep, Action::Sleep(Sleep::Idle), because),
        None => RuleMatch::wait(at, Action::Delete, because),
    })
}

fn counting_down(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    if ns.is_asleep() {
        return None;
    }
    let (until, then) = clock.next()?;
    Some(RuleMatch::wait(until, then, clock.why_idle()))
}

fn asleep(ns: &Subject, world: &World, now: Timestamp) -> Found {
    let clock = Clock::new(ns, world, now);
    let since = clock.asleep_from().filter(|_| ns.is_asleep())?;
    let because = format!("asleep since {}, {}", time::format(since), ago(since, now));
    Some(match clock.next() {
        Some((until, then)) => RuleMatch::wait(until, then, because),
        None => RuleMatch::nothing(because),
    })
}

fn at_rest(ns: &Subject, _: &World, _: Timestamp) -> Found {
    Some(RuleMatch::nothing(if ns.home_asleep { "its namespace is asleep" } else { "nothing leads to sleep or deletion" }))
}
