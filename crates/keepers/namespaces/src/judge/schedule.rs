//! The deadlines of a subject. All of them follow from its labels, its annotations and the last gap.

use std::collections::BTreeMap;

use caretaker_core::{SignedDuration, Timestamp, duration, spread, time};

use super::scheduled;
use crate::act::{Action, SleepReason};
use crate::api::Activity;
use crate::subject::{Deletion, Kind, Policy, Subject, World, ago};

/// A first clock is delayed by at most its period divided by this: a tenth, as the notice of a deletion is.
const FIRST_CLOCK_SPREAD: i32 = 10;

/// The deadlines of one subject at one time.
pub struct Schedule<'a> {
    subject: &'a Subject,
    world: &'a World,
    /// The time.
    pub now: Timestamp,
    lifecycle: Lifecycle,
    /// Why its labels do not lead to a deletion, although the settings would allow it.
    unproven: Option<Unproven>,
}

/// Why nothing proves that a subject is unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unproven {
    /// No other program has reported activity on this object.
    NeverReported,
    /// One has, and no program has reported anything anywhere for too long.
    Silent,
}

/// How a subject gets to its deletion, by its labels.
#[derive(Clone, Copy)]
enum Lifecycle {
    /// It is neither put to sleep nor deleted.
    None,
    /// `sleep-after`, and the settings do not let it lead to a deletion: idle for this long until it sleeps.
    Sleep(SignedDuration),
    /// `delete-after` alone, or not longer than `sleep-after`: idle for this long, without sleep.
    Idle(SignedDuration),
    /// `sleep-after` alone: idle for this long until it sleeps, and asleep for this long.
    Asleep(SignedDuration),
    /// Both labels: asleep after the one, deleted after the other.
    Both {
        /// `sleep-after`
        sleep: SignedDuration,
        /// `delete-after`
        delete: SignedDuration,
    },
}

impl Lifecycle {
    fn of(subject: &Subject, policy: &Policy) -> Self {
        let kept = policy.deletion == Deletion::Never || policy.retains(subject);
        let deletes_asleep = !kept && policy.deletion == Deletion::AsSpecified;
        match (subject.sleep_after(), subject.delete_after.value().filter(|_| !kept)) {
            (None, None) => Self::None,
            (None, Some(delete)) => Self::Idle(delete),
            (Some(sleep), None) if deletes_asleep => Self::Asleep(sleep),
            (Some(sleep), None) => Self::Sleep(sleep),
            (Some(sleep), Some(delete)) if delete <= sleep => Self::Idle(delete),
            (Some(sleep), Some(delete)) => Self::Both { sleep, delete },
        }
    }

    /// The part of it that puts to sleep.
    fn without_deletion(self, subject: &Subject) -> Self {
        match self {
            Self::None | Self::Sleep(_) => self,
            Self::Idle(_) | Self::Asleep(_) | Self::Both { .. } => {
                subject.sleep_after().map_or(Self::None, Self::Sleep)
            }
        }
    }

    /// The whole idle time after which it is deleted, with the time that its schedule adds; `None` if it never is. A
    /// schedule whose end is too far away to tell adds nothing: a longer time would count a silent reporter as alive.
    fn idle_until_deletion(self, subject: &Subject) -> Option<SignedDuration> {
        let idle = |delete: SignedDuration| {
            let from = subject.activity.get().map_or(Timestamp::UNIX_EPOCH, |activity| activity.at);
            scheduled::awake_for(subject, from, delete).map_or(delete, |end| end.duration_since(from))
        };
        match self {
            Self::None | Self::Sleep(_) => None,
            Self::Asleep(sleep) => Some(idle(sleep.checked_add(sleep).unwrap_or(SignedDuration::MAX))),
            Self::Idle(delete) | Self::Both { delete, .. } => Some(idle(delete)),
        }
    }
}

/// Why nothing proves that the subject is unused when its deletion is due; `None` if something does, and if nothing leads
/// to its deletion.
fn unproven(subject: &Subject, world: &World, lifecycle: Lifecycle, now: Timestamp) -> Option<Unproven> {
    if world.policy.needs_no_report(subject.kind) {
        return None;
    }
    let idle = lifecycle.idle_until_deletion(subject)?;
    if subject.last_report().is_none() {
        return Some(Unproven::NeverReported);
    }
    (!world.has_reporter(idle, now)).then_some(Unproven::Silent)
}

/// True if its labels can lead to its sleep or its deletion, with these settings.
pub(super) fn can_lead_to_sleep_or_deletion(subject: &Subject, policy: &Policy) -> bool {
    let lifecycle = Lifecycle::of(subject, policy);
    let may_be_proven = policy.needs_no_report(subject.kind) || subject.last_report().is_some();
    let lifecycle = if may_be_proven { lifecycle } else { lifecycle.without_deletion(subject) };
    !matches!(lifecycle, Lifecycle::None)
}

impl<'a> Schedule<'a> {
    /// The schedule of a subject.
    #[must_use]
    pub fn new(subject: &'a Subject, world: &'a World, now: Timestamp) -> Self {
        let lifecycle = Lifecycle::of(subject, &world.policy);
        let unproven = unproven(subject, world, lifecycle, now);
        let lifecycle = if unproven.is_some() { lifecycle.without_deletion(subject) } else { lifecycle };
        Self { subject, world, now, lifecycle, unproven }
    }

    /// True if its labels lead to its sleep or its deletion.
    pub(super) fn leads_to_sleep_or_deletion(&self) -> bool {
        !matches!(self.lifecycle, Lifecycle::None)
    }

    /// Why its labels do not lead to a deletion, as a sentence: nothing proves that it is unused.
    #[must_use]
    pub fn why_unproven(&self) -> Option<String> {
        let policy = &self.world.policy;
        Some(match self.unproven? {
            Unproven::NeverReported => {
                let source = match (self.subject.kind, policy.records_activity) {
                    (Kind::Deployment | Kind::Service, true) => "audit events tell the use of namespaces alone",
                    (_, true) => "activity.canaryInterval is none",
                    (_, false) => "activity.source is annotation",
                };
                format!(
                    "nothing proves that it is unused: {source}, and no other program has written its activity-status"
                )
            }
            Unproven::Silent => {
                let last = match self.world.last_report {
                    Some(at) => format!("since {}", time::format(at)),
                    None => "yet".to_owned(),
                };
                format!("nothing proves that it is unused: no program has written an activity-status anywhere {last}")
            }
        })
    }

    /// Since when it is idle: idle time counts only from the last gap on. Without recorded activity, nothing is known
    /// about the time before its sleep.
    fn idle_since(&self) -> Option<Timestamp> {
        let known = self.subject.activity.get().map(|a| a.at);
        let asleep = || self.subject.asleep_since.value().filter(|_| self.subject.is_asleep());
        known.or_else(asleep).map(|t| self.not_before_limits(t))
    }

    /// From when its period counts: since it is idle, and for a first clock a little later.
    fn counts_from(&self) -> Option<Timestamp> {
        Some(time::saturating_add(self.idle_since()?, self.first_clock_delay()))
    }

    /// How much later a clock counts that Caretaker itself started when it saw the subject first. A cluster that
    /// adopts it, or switches on the defaults, starts all clocks in one instant; without this, everything would be due in one instant
    /// as well. It follows from the uid, so that every replica knows the same one and nothing has to be written; files
    /// without uids have their names. A use has none.
    fn first_clock_delay(&self) -> SignedDuration {
        let Subject { activity, uid, name, .. } = self.subject;
        if !activity.get().is_some_and(Activity::is_first_clock) {
            return SignedDuration::ZERO;
        }
        let limit = self.first_period() / FIRST_CLOCK_SPREAD;
        if uid.is_empty() {
            spread::delay(&format!("{}/{name}", self.subject.namespace_name()), limit)
        } else {
            spread::delay(uid, limit)
        }
    }

    /// The idle time after which the first thing is taken away: its sleep, or without sleep its deletion.
    fn first_period(&self) -> SignedDuration {
        match self.lifecycle {
            Lifecycle::None => SignedDuration::ZERO,
            Lifecycle::Sleep(period) | Lifecycle::Idle(period) | Lifecycle::Asleep(period) => period,
            Lifecycle::Both { sleep, .. } => sleep,
        }
    }

    /// From when its sleep counts.
    #[must_use]
    pub fn asleep_from(&self) -> Option<Timestamp> {
        let since = self.subject.asleep_since.value().filter(|_| self.subject.is_asleep())?;
        Some(self.not_before_limits(since))
    }

    /// The start of the oldest session that counts.
    fn open_session_since(&self) -> Option<Timestamp> {
        let sessions = self.subject.sessions.get()?.values().copied();
        sessions.filter(|since| self.counts_until(*since) > self.now).min()
    }

    /// How long a session counts at most.
    fn counts_until(&self, since: Timestamp) -> Timestamp {
        time::saturating_add(since, self.world.policy.max_session)
    }

    /// Idle time counts neither before the last gap, nor before the subject was created, nor while a person had its
    /// namespace sleep, nor while a session is open.
    fn not_before_limits(&self, t: Timestamp) -> Timestamp {
        let sessions = self.subject.sessions.get().into_iter().flat_map(BTreeMap::values);
        let session = sessions.map(|since| self.counts_until(*since).min(self.now)).max();
        let limits = [self.world.last_gap, self.subject.created, self.subject.namespace_woken_at, session];
        limits.into_iter().flatten().fold(t, Timestamp::max)
    }

    /// When it is put to sleep; `None` if it never is, or is asleep.
    #[must_use]
    pub fn sleep(&self) -> Option<Timestamp> {
        let after = match self.lifecycle {
            Lifecycle::Sleep(sleep) | Lifecycle::Asleep(sleep) | Lifecycle::Both { sleep, .. } => sleep,
            Lifecycle::None | Lifecycle::Idle(_) => return None,
        };
        let held = self.subject.is_asleep() || (self.subject.namespace_asleep && self.subject.kind != Kind::Namespace);
        if held {
            return None;
        }
        let idle = self.counts_from()?;
        let from = scheduled::last_end(self.subject, self.now).map_or(idle, |end| idle.max(end));
        Some(time::saturating_add(from, after))
    }

    /// When it is deleted, apart from the announcement. For a subject that is awake: if it is put to sleep as soon as
    /// possible. A subject that must sleep first and cannot, because its namespace is asleep, has no such time.
    #[must_use]
    pub fn deletion(&self) -> Option<Timestamp> {
        let idle = self.counts_from()?;
        if self.must_be_asleep() && !self.subject.is_asleep() && self.sleep().is_none() {
            return None;
        }
        let asleep = |sleep| {
            let ahead = || self.sleep().unwrap_or_else(|| time::saturating_add(idle, sleep)).max(self.now);
            self.asleep_from().unwrap_or_else(ahead)
        };
        match self.lifecycle {
            Lifecycle::None | Lifecycle::Sleep(_) => None,
            Lifecycle::Idle(delete) => scheduled::awake_for(self.subject, idle, delete),
            Lifecycle::Asleep(sleep) => Some(time::saturating_add(asleep(sleep), sleep)),
            Lifecycle::Both { sleep, delete } => {
                let idle = scheduled::awake_for(self.subject, idle, delete)?;
                Some(idle.max(time::saturating_add(asleep(sleep), delete - sleep)))
            }
        }
    }

    /// True if it must be asleep before it may be deleted.
    fn must_be_asleep(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Asleep(_) | Lifecycle::Both { .. })
    }

    /// True if it is deleted while it is awake, with all that runs in it.
    pub(super) fn is_deleted_awake(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Idle(_))
    }

    /// How long before its deletion it is announced; `None` if announcements are off. However short the period, there
    /// is some notice.
    fn notice(&self) -> Option<SignedDuration> {
        const SHORTEST: SignedDuration = SignedDuration::from_secs(1);
        let fraction = self.world.policy.deletion_notice.clamp(0.0, Policy::MAX_DELETION_NOTICE);
        let is_deleted = !matches!(self.lifecycle, Lifecycle::None | Lifecycle::Sleep(_));
        (fraction > 0.0 && is_deleted).then(|| self.period().mul_f64(fraction).max(SHORTEST))
    }

    /// The period after which it is deleted.
    fn period(&self) -> SignedDuration {
        match self.lifecycle {
            Lifecycle::None | Lifecycle::Sleep(_) => SignedDuration::ZERO,
            Lifecycle::Idle(period) | Lifecycle::Asleep(period) | Lifecycle::Both { delete: period, .. } => period,
        }
    }

    /// When the deletion was announced. An announcement does not count if its time is in the future, if the subject
    /// was used after it, or if its date is long past: an operator that was away must not delete what it announced
    /// weeks ago.
    #[must_use]
    pub fn announced(&self) -> Option<Timestamp> {
        /// The pace holds back a deletion for less than this.
        const LONGEST_DELAY: SignedDuration = SignedDuration::from_hours(7 * 24);
        let notice = self.notice()?;
        let at = self.subject.announced_at.value()?;
        let date =
            self.subject.delete_at.value().unwrap_or(at).max(time::saturating_add(at, notice)).max(self.deletion()?);
        let future = at > time::saturating_add(self.now, time::SKEW);
        let earlier = self.idle_since().is_none_or(|idle| at < idle);
        let stale = self.now > time::saturating_add(date, self.period().max(LONGEST_DELAY));
        (!future && !earlier && !stale).then_some(at)
    }

    /// When the deletion is announced.
    #[must_use]
    pub fn announcement(&self) -> Option<Timestamp> {
        let (at, notice) = (self.deletion()?, self.notice()?);
        Some(at.checked_sub(notice).unwrap_or(Timestamp::MIN))
    }

    /// When it is deleted if it was announced at this time: never without the full notice, and never before the
    /// announced date.
    #[must_use]
    pub fn deletion_if_announced(&self, announced: Timestamp) -> Option<Timestamp> {
        let at = self.deletion()?.max(time::saturating_add(announced, self.notice()?));
        let promised = self.subject.delete_at.value().filter(|_| self.announced().is_some());
        Some(promised.map_or(at, |promised| promised.max(at)))
    }

    /// True if the announced date is earlier than the real one by more than a tenth of the notice.
    #[must_use]
    pub fn date_moved(&self) -> bool {
        let Some(at) = self.announced().and_then(|announced| self.deletion_if_announced(announced)) else {
            return false;
        };
        let tolerance = self.notice().unwrap_or_default() / 10;
        self.subject.delete_at.value().is_none_or(|date| time::duration_between(date, at) > tolerance)
    }

    /// When it is deleted; `None` if it must be announced first and is not.
    #[must_use]
    pub fn announced_deletion(&self) -> Option<Timestamp> {
        match self.notice() {
            None => self.deletion(),
            Some(_) => self.deletion_if_announced(self.announced()?),
        }
    }

    /// True if it is to be deleted now.
    #[must_use]
    pub fn deletion_is_due(&self) -> bool {
        let slept = !self.must_be_asleep() || self.subject.is_asleep();
        slept && self.announced_deletion().is_some_and(|at| self.now > at)
    }

    /// True if its deletion is to be announced now.
    #[must_use]
    pub fn announcement_is_due(&self) -> bool {
        self.announced().is_none() && self.deletion_is_near()
    }

    /// True if the time for the announcement has come, whether it was made or not.
    #[must_use]
    pub fn deletion_is_near(&self) -> bool {
        self.announcement().is_some_and(|at| self.now > at)
    }

    /// What happens next by itself, if the deletion is not announced.
    #[must_use]
    pub fn next(&self) -> Option<(Timestamp, Action)> {
        let scheduled = scheduled::next_sleep(self.subject, self.now);
        [self.next_by_labels(), scheduled].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// The same without its window of sleep.
    #[must_use]
    pub fn next_by_labels(&self) -> Option<(Timestamp, Action)> {
        let sleep = self.sleep().map(|at| (at, Action::Sleep(SleepReason::Idle)));
        let asleep_enough = !self.must_be_asleep() || self.subject.is_asleep();
        let delete = match self.announcement() {
            Some(at) => Some((at, Action::Announce)),
            None => self.deletion().filter(|_| asleep_enough).map(|at| (at, Action::Delete)),
        };
        [sleep, delete].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// How long it is idle, as a sentence.
    #[must_use]
    pub fn why_idle(&self) -> String {
        let Some(idle) = self.idle_since() else { return "its idle time does not count yet".to_owned() };
        let leads_to_deletion = matches!(self.lifecycle, Lifecycle::Idle(_) | Lifecycle::Both { .. });
        let delete = self.subject.delete_after.value().filter(|_| leads_to_deletion);
        let limits = [("sleep-after", self.subject.sleep_after()), ("delete-after", delete)];
        let limits: Vec<String> =
            limits.into_iter().filter_map(|(name, d)| Some(format!("{name} is {}", duration::format(d?)))).collect();
        if let Some(since) = self.open_session_since() {
            return format!("in use: a session is open since {}; {}", time::format(since), limits.join(", "));
        }
        let delay = match self.first_clock_delay() {
            SignedDuration::ZERO => String::new(),
            delay => format!(", and {} more, as first clocks are spread", duration::format(delay)),
        };
        let asleep = match delete.and_then(|delete| self.asleep_by_schedule(delete)) {
            Some(asleep) => format!(", without {} asleep by schedule", duration::format(asleep)),
            None => String::new(),
        };
        let (at, limits) = (time::format(idle), limits.join(", ") + &asleep + &delay);
        if self.world.last_gap.is_some_and(|gap| gap >= idle) {
            return format!("idle time counts from {at} on, as activity may have been missed before; {limits}");
        }
        format!("{} {} at {at}; {limits}", self.what_started(idle), ago(idle, self.now))
    }

    /// How much later the schedule lets this period end.
    fn asleep_by_schedule(&self, period: SignedDuration) -> Option<SignedDuration> {
        let from = self.counts_from()?;
        let end = scheduled::awake_for(self.subject, from, period)?;
        Some(end.duration_since(time::saturating_add(from, period))).filter(SignedDuration::is_positive)
    }

    /// What happened when its idle time began to count.
    fn what_started(&self, idle: Timestamp) -> &'static str {
        let activity = self.subject.activity.get().filter(|activity| activity.at == idle);
        match activity {
            Some(activity) if activity.is_first_clock() => "first seen",
            Some(activity) if activity.is_found_running() => "found running",
            Some(activity) => match activity.recorded_under() {
                Some(_) => "woken without a use",
                None => "last used",
            },
            None if self.subject.created == Some(idle) => "created",
            None if self.subject.namespace_woken_at == Some(idle) => "its namespace was woken",
            None if self.subject.asleep_since.value() == Some(idle) => "no use is known; put to sleep",
            None => "last used",
        }
    }

    /// When it is deleted if nobody uses it, as the end of a sentence; empty if nothing leads to that.
    #[must_use]
    pub fn what_follows(&self) -> String {
        if let Some(why) = self.why_unproven() {
            return format!("; it is not deleted, as {why}");
        }
        let deletion = self.deletion().filter(|_| !self.world.policy.retains_by_defaults(self.subject));
        let at = deletion.map(|at| format!("; unless it is used, it is deleted after {}", time::format(at)));
        at.unwrap_or_default()
    }

    /// Why it is deleted, as a sentence.
    #[must_use]
    pub fn why_deleted(&self) -> String {
        let asleep =
            self.asleep_from().map(|since| format!(", asleep since {}", time::format(since))).unwrap_or_default();
        let announced = self.announced().map(|at| format!(", announced at {}", time::format(at))).unwrap_or_default();
        format!("{}{asleep}{announced}", self.why_idle())
    }
}
