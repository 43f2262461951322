//! The deadlines of a subject: all of them follow from its labels, its records and the last gap.

use std::collections::BTreeMap;

use caretaker_core::{SignedDuration, Timestamp, duration, time};

use crate::act::{Action, Sleep};
use crate::subject::{Kind, Policy, Subject, World, ago};

/// A subject and the time, and what is due when.
pub struct Clock<'a> {
    subject: &'a Subject,
    world: &'a World,
    /// The time.
    pub now: Timestamp,
    way: Way,
}

/// How a subject gets to its deletion.
#[derive(Clone, Copy)]
enum Way {
    /// Not at all.
    None,
    /// `delete-after` alone, or not after `sleep-after`: by silence, without sleep.
    Idle(SignedDuration),
    /// `sleep-after` alone: asleep, and then as long again.
    Asleep(SignedDuration),
    /// Both: asleep after the one, deleted after the other.
    Both {
        /// `sleep-after`
        sleep: SignedDuration,
        /// `delete-after`
        delete: SignedDuration,
    },
}

impl<'a> Clock<'a> {
    /// Reads the clock of a subject.
    #[must_use]
    pub fn new(subject: &'a Subject, world: &'a World, now: Timestamp) -> Self {
        let way = match (subject.sleep_after(), subject.delete_after.value()) {
            (None, None) => Way::None,
            (None, Some(delete)) => Way::Idle(delete),
            (Some(sleep), None) => Way::Asleep(sleep),
            (Some(sleep), Some(delete)) if delete <= sleep => Way::Idle(delete),
            (Some(sleep), Some(delete)) => Way::Both { sleep, delete },
        };
        Self { subject, world, now, way }
    }

    /// Since when it is silent: silence counts only from the last gap on. Where a sleeper has no
    /// record of activity, nobody can vouch for any silence before its sleep.
    fn idle_since(&self) -> Option<Timestamp> {
        let known = self.subject.activity.get().map(|a| a.at);
        let asleep = || self.subject.asleep_since.value().filter(|_| self.subject.is_asleep());
        known.or_else(asleep).map(|t| self.not_before_gap(t))
    }

    /// Since when its sleep counts.
    #[must_use]
    pub fn asleep_from(&self) -> Option<Timestamp> {
        let since = self.subject.asleep_since.value().filter(|_| self.subject.is_asleep())?;
        Some(self.not_before_gap(since))
    }

    /// Since when somebody is in it; a session that lasts too long counts no more.
    fn in_use(&self) -> Option<Timestamp> {
        let sessions = self.subject.sessions.get()?.values().copied();
        sessions.filter(|since| self.until(*since) > self.now).min()
    }

    /// Until when a session counts at the most.
    fn until(&self, since: Timestamp) -> Timestamp {
        time::saturating_add(since, self.world.policy.session)
    }

    /// Neither a time before the last gap nor one before it was made says anything about it, nor one
    /// in which a person had its namespace sleep; and while somebody is in it, nothing is silent.
    fn not_before_gap(&self, t: Timestamp) -> Timestamp {
        let sessions = self.subject.sessions.get().into_iter().flat_map(BTreeMap::values);
        let in_use = sessions.map(|since| self.until(*since).min(self.now)).max();
        let limits = [self.world.last_gap, self.subject.created, self.subject.home_woken, in_use];
        limits.into_iter().flatten().fold(t, Timestamp::max)
    }

    /// When it is to be put to sleep; `None` if it never is, or is asleep.
    #[must_use]
    pub fn sleep(&self) -> Option<Timestamp> {
        let after = match self.way {
            Way::Asleep(sleep) | Way::Both { sleep, .. } => sleep,
            Way::None | Way::Idle(_) => return None,
        };
        let held = self.subject.is_asleep() || (self.subject.home_asleep && self.subject.kind != Kind::Namespace);
        if held { None } else { Some(time::saturating_add(self.idle_since()?, after)) }
    }

    /// When it is to be deleted, announcements aside. For one still awake: if it is put to sleep as
    /// soon as it can be. What cannot fall asleep of its own, because its namespace sleeps, has no
    /// such time.
    #[must_use]
    pub fn deletion(&self) -> Option<Timestamp> {
        let idle = self.idle_since()?;
        if self.must_be_asleep() && !self.subject.is_asleep() && self.sleep().is_none() {
            return None;
        }
        let asleep = |sleep| self.asleep_from().unwrap_or_else(|| time::saturating_add(idle, sleep).max(self.now));
        match self.way {
            Way::None => None,
            Way::Idle(delete) => Some(time::saturating_add(idle, delete)),
            Way::Asleep(sleep) => Some(time::saturating_add(asleep(sleep), sleep)),
            Way::Both { sleep, delete } => {
                Some(time::saturating_add(idle, delete).max(time::saturating_add(asleep(sleep), delete - sleep)))
            }
        }
    }

    /// Whether it must be asleep before it may be deleted.
    fn must_be_asleep(&self) -> bool {
        matches!(self.way, Way::Asleep(_) | Way::Both { .. })
    }

    /// How long before its deletion it is announced; `None` if announcements are off. However short
    /// the period, there is some notice.
    fn lead(&self) -> Option<SignedDuration> {
        const SOME: SignedDuration = SignedDuration::from_secs(1);
        let share = self.world.policy.announce.clamp(0.0, Policy::MOST_ANNOUNCE);
        let leads_on = !matches!(self.way, Way::None);
        (share > 0.0 && leads_on).then(|| self.period().mul_f64(share).max(SOME))
    }

    /// What its deletion comes after.
    fn period(&self) -> SignedDuration {
        match self.way {
            Way::None => SignedDuration::ZERO,
            Way::Idle(period) | Way::Asleep(period) | Way::Both { delete: period, .. } => period,
        }
    }

    /// When the deletion was announced, if it was. An announcement from the future is none, nor is
    /// one from before the silence that it should have announced the end of, nor one whose date is
    /// long over: an operator that was away must not delete what people were told about weeks ago.
    #[must_use]
    pub fn announced(&self) -> Option<Timestamp> {
        /// A queue that its pace holds back is shorter than this.
        const LONG: SignedDuration = SignedDuration::from_hours(7 * 24);
        let lead = self.lead()?;
        let at = self.subject.announced_at.value()?;
        let date = self.subject.delete_at.value().unwrap_or(at).max(time::saturating_add(at, lead)).max(self.deletion()?);
        let future = at > time::saturating_add(self.now, super::SKEW);
        let earlier = self.idle_since().is_none_or(|idle| at < idle);
        let stale = self.now > time::saturating_add(date, self.period().max(LONG));
        (!future && !earlier && !stale).then_some(at)
    }

    /// When the deletion is to be announced.
    #[must_use]
    pub fn announcement(&self) -> Option<Timestamp> {
        let (at, lead) = (self.deletion()?, self.lead()?);
        Some(at.checked_sub(lead).unwrap_or(Timestamp::MIN))
    }

    /// When it is deleted if it was announced then: never without the full lead, and never before
    /// the date that was given.
    #[must_use]
    pub fn deletion_if_announced(&self, announced: Timestamp) -> Option<Timestamp> {
        let at = self.deletion()?.max(time::saturating_add(announced, self.lead()?));
        let promised = self.subject.delete_at.value().filter(|_| self.announced().is_some());
        Some(promised.map_or(at, |promised| promised.max(at)))
    }

    /// Whether the date that was given is so far from the true one that people should be told. A
    /// tenth of the lead is not.
    #[must_use]
    pub fn date_moved(&self) -> bool {
        let Some(at) = self.announced().and_then(|announced| self.deletion_if_announced(announced)) else {
            return false;
        };
        let told = self.subject.delete_at.value();
        let little = self.lead().unwrap_or_default() / 10;
        told.is_none_or(|told| time::duration_between(told, at) > little)
    }

    /// When it is deleted, announced as far as it has to be; `None` if it is not announced yet.
    #[must_use]
    pub fn announced_deletion(&self) -> Option<Timestamp> {
        match self.lead() {
            None => self.deletion(),
            Some(_) => self.deletion_if_announced(self.announced()?),
        }
    }

    /// Whether it is to be deleted now.
    #[must_use]
    pub fn deletion_is_due(&self) -> bool {
        let slept = !self.must_be_asleep() || self.subject.is_asleep();
        slept && self.announced_deletion().is_some_and(|at| self.now > at)
    }

    /// Whether its deletion is to be announced now.
    #[must_use]
    pub fn announcement_is_due(&self) -> bool {
        self.announced().is_none() && self.deletion_is_near()
    }

    /// Whether the time for an announcement has come, made or not.
    #[must_use]
    pub fn deletion_is_near(&self) -> bool {
        self.announcement().is_some_and(|at| self.now > at)
    }

    /// What comes next by itself, for one whose deletion is not announced.
    #[must_use]
    pub fn next(&self) -> Option<(Timestamp, Action)> {
        let sleep = self.sleep().map(|at| (at, Action::Sleep(Sleep::Idle)));
        let asleep_enough = !self.must_be_asleep() || self.subject.is_asleep();
        let delete = match self.announcement() {
            Some(at) => Some((at, Action::Announce)),
            None => self.deletion().filter(|_| asleep_enough).map(|at| (at, Action::Delete)),
        };
        [sleep, delete].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Its silence, as a sentence.
    #[must_use]
    pub fn why_idle(&self) -> String {
        let Some(idle) = self.idle_since() else { return "its clock has not started".to_owned() };
        let limits = [("sleep-after", self.subject.sleep_after()), ("delete-after", self.subject.delete_after.value())];
        let limits: Vec<String> =
            limits.into_iter().filter_map(|(name, d)| Some(format!("{name} is {}", duration::format(d?)))).collect();
        if let Some(since) = self.in_use() {
            return format!("in use: a session is open since {}; {}", time::format(since), limits.join(", "));
        }
        let (at, limits) = (time::format(idle), limits.join(", "));
        if self.world.last_gap.is_some_and(|gap| gap >= idle) {
            return format!("silence counts from {at} on, as activity may have been missed before; {limits}");
        }
        format!("last used {} at {at}; {limits}", ago(idle, self.now))
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
