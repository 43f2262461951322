//! Pace and breaker: how much of what is due may happen now.
//!
//! Pure, as judging is. An action over its pace becomes waiting, under the rule `Paced`; every guarded
//! action becomes a refusal while the breaker is open, under the rule `BreakerOpen`. Both guard only
//! what is inferred.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::count::{counted, is_or_are};
use crate::{Action, Cause, EngineRule, Membership, Next, RuleSet, Verdict, duration, time};

/// At most `limit` of an action, or `fraction` of its population if that is more, in a `window`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// This many are always allowed.
    pub limit: usize,
    /// Or this fraction of the population, if that is more.
    pub fraction: f64,
    /// The time in which they are counted.
    pub window: SignedDuration,
}

/// Opens when at least `min_count`, and at least `min_fraction` of the population, fall due in a `window`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Breaker {
    /// Fewer than this never open it.
    pub min_count: usize,
    /// A smaller fraction of the population never opens it.
    pub min_fraction: f64,
    /// What falls due in this time falls due together.
    pub window: SignedDuration,
}

impl Breaker {
    /// Half of the population, at least 20, within ten minutes.
    pub const DEFAULT: Self = Self { min_count: 20, min_fraction: 0.5, window: SignedDuration::from_mins(10) };
}

impl Default for Breaker {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The greater of a count and a fraction of the total.
fn threshold(count: usize, fraction: f64, total: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "counts of subjects"
    )]
    let part = (fraction.clamp(0.0, 1.0) * total as f64).ceil() as usize;
    count.max(part)
}

/// The limits of a keeper.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// By the name of the action's kind; an action that is not here is not paced.
    pub pace: BTreeMap<String, Pace>,
    /// `None`: there is no breaker.
    pub breaker: Option<Breaker>,
}

/// What was admitted recently, and whether the breaker is open. Persisted before anything starts, and
/// shared by replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ledger {
    /// When each kind of action was admitted, the oldest first.
    pub admitted: BTreeMap<String, Vec<Timestamp>>,
    /// When destructive actions were admitted, the oldest first.
    pub recent_destructive: Vec<GuardedBatch>,
    /// The incidents among them, and when something was last admitted because of each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub incidents: BTreeMap<String, Timestamp>,
    /// Set while the breaker is open.
    pub open: Option<OpenBreaker>,
    /// When a person last reset the breaker: what was due by then may happen.
    pub reset_at: Option<Timestamp>,
}

/// Destructive actions that were admitted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct GuardedBatch {
    /// When.
    pub at: Timestamp,
    /// How many.
    pub count: usize,
    /// The group of the subjects, if they have one.
    pub group: Option<String>,
}

/// A batch of one without a group is written as its time.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    One(Timestamp),
    Many {
        at: Timestamp,
        count: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<String>,
    },
}

impl From<Written> for GuardedBatch {
    fn from(written: Written) -> Self {
        match written {
            Written::One(at) => Self { at, count: 1, group: None },
            Written::Many { at, count, group } => Self { at, count, group },
        }
    }
}

impl From<GuardedBatch> for Written {
    fn from(batch: GuardedBatch) -> Self {
        match batch {
            GuardedBatch { at, count: 1, group: None } => Self::One(at),
            GuardedBatch { at, count, group } => Self::Many { at, count, group },
        }
    }
}

/// Why the breaker is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBreaker {
    /// Since when.
    pub since: Timestamp,
    /// What was counted then.
    pub because: String,
}

impl Ledger {
    /// Records what is about to start because of `next`, and forgets what no limit looks at any more.
    /// Only an inferred action counts, and an incident only once.
    pub fn record<A: Action>(&mut self, next: &Next<A>, member: Membership<'_>, limits: &Limits, now: Timestamp) {
        let Next::Act { action, due, cause: Cause::Inferred } = next else { return };
        if let Some(pace) = limits.pace.get(action.name()) {
            let times = self.admitted.entry(action.name().to_owned()).or_default();
            // Actions that are admitted together are recorded one after the other.
            if times.last() != Some(&now) {
                times.retain(|t| is_recent(*t, pace.window, now));
            }
            times.push(now);
        }
        if let Some(breaker) = limits.breaker.filter(|_| next.is_guarded() && self.counts(*due, now)) {
            if let Some(incident) = member.incident {
                let known = self.has_incident(incident, breaker.window, now);
                self.incidents.retain(|_, at| is_recent(*at, breaker.window, now));
                self.incidents.insert(incident.to_owned(), now);
                if known {
                    return;
                }
            }
            let (at, group) = (full_minute(now), member.group);
            let mut together = self.recent_destructive.iter_mut().rev().take_while(|batch| batch.at == at);
            if let Some(batch) = together.find(|batch| batch.group.as_deref() == group) {
                batch.count += 1;
            } else {
                self.recent_destructive.retain(|batch| is_recent(batch.at, breaker.window, now));
                self.recent_destructive.push(GuardedBatch { at, count: 1, group: group.map(str::to_owned) });
            }
        }
    }

    /// Closes the breaker, because a person has looked: what is due by now does not open it again.
    pub fn reset_breaker(&mut self, now: Timestamp) {
        *self = Self { admitted: std::mem::take(&mut self.admitted), reset_at: Some(now), ..Self::default() };
    }

    /// True if something was admitted recently because of this incident.
    fn has_incident(&self, incident: &str, window: SignedDuration, now: Timestamp) -> bool {
        self.incidents.get(incident).is_some_and(|at| is_recent(*at, window, now))
    }

    /// Whether what fell due then counts towards the breaker. A reset in the future is ignored.
    pub(crate) fn counts(&self, due: Timestamp, now: Timestamp) -> bool {
        self.reset_at.filter(|reset| *reset <= time::saturating_add(now, time::SKEW)).is_none_or(|reset| due > reset)
    }
}

/// Actions that are admitted in the same minute are one entry, so that there are only so many of them;
/// the entry counts a little longer than it must.
fn full_minute(now: Timestamp) -> Timestamp {
    let over = now.as_second().rem_euclid(60);
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let missing = if over == 0 && whole == now { 0 } else { 60 - over };
    time::saturating_add(whole, SignedDuration::from_secs(missing))
}

/// A time that is too far ahead is an error of some clock: it must neither hold things back until then
/// nor let them pass.
fn is_recent(then: Timestamp, window: SignedDuration, now: Timestamp) -> bool {
    let passed = time::duration_between(then, now);
    passed < window && passed > -time::SKEW
}

/// The denominators of a keeper's limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Population {
    /// Subjects that count for the breaker.
    pub breaker_total: usize,
    /// Subjects that count for paces.
    pub pace_total: usize,
    /// Guarded subjects that wait their turn, are not among the verdicts at hand, and fell due within
    /// the breaker's window.
    pub queued: usize,
}

/// Smaller populations that the breaker guards as well: the addresses of one pool.
#[derive(Debug, Clone, Default)]
pub struct PopulationGroups<'a> {
    /// The group of each verdict at hand.
    pub of: Vec<Option<&'a str>>,
    /// The incident of each verdict at hand.
    pub incidents: Vec<Option<&'a str>>,
    /// How many subjects each group has.
    pub sizes: BTreeMap<&'a str, usize>,
    /// Groups that are not a part of the whole.
    pub apart: BTreeSet<&'a str>,
}

impl PopulationGroups<'_> {
    /// True if subjects of this group count in the whole.
    fn is_part(&self, group: Option<&str>) -> bool {
        group.is_none_or(|group| !self.apart.contains(group))
    }
}

/// Holds verdicts against the limits, in place. What is due longest goes first.
///
/// Returns why the breaker opens, if it does so now. [`Ledger::record`] is for what really starts.
pub fn enforce<R: RuleSet, A: Action>(
    verdicts: &mut [Verdict<R, A>],
    groups: &PopulationGroups<'_>,
    population: Population,
    limits: &Limits,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<OpenBreaker> {
    let recent = recently_due(verdicts, limits, now);
    for (name, pace) in &limits.pace {
        enforce_pace(verdicts, name, pace, population.pace_total, ledger, now);
    }
    let opens =
        if ledger.open.is_none() { opens(verdicts, &recent, groups, population, limits, ledger, now) } else { None };
    if let Some(open) = opens.as_ref().or(ledger.open.as_ref()) {
        refuse_guarded(verdicts, open);
    }
    opens
}

/// Which verdicts are guarded and fell due within the breaker's window, and when.
fn recently_due<R, A: Action>(verdicts: &[Verdict<R, A>], limits: &Limits, now: Timestamp) -> Vec<Option<Timestamp>> {
    let recent = |verdict: &Verdict<R, A>| {
        let breaker = limits.breaker.filter(|_| verdict.next.is_guarded())?;
        verdict.next.deadline().filter(|due| is_recent(*due, breaker.window, now))
    };
    verdicts.iter().map(recent).collect()
}

/// Counted are: what would be done now, however long it has been due; what was done recently; and what
/// fell due recently and waits its turn. A backlog that its pace holds back anyway is not.
fn opens<R: RuleSet, A: Action>(
    verdicts: &[Verdict<R, A>],
    recent: &[Option<Timestamp>],
    groups: &PopulationGroups<'_>,
    population: Population,
    limits: &Limits,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<OpenBreaker> {
    let breaker = limits.breaker?;
    let at_once = |verdict: &Verdict<R, A>| verdict.next.deadline().filter(|_| verdict.next.is_guarded());
    let (mut due, mut due_in) = (0_usize, BTreeMap::<&str, usize>::new());
    let (mut names, mut incidents) = (BTreeSet::new(), BTreeSet::new());
    for (i, (verdict, recent)) in verdicts.iter().zip(recent).enumerate() {
        if at_once(verdict).or(*recent).is_some_and(|at| ledger.counts(at, now)) {
            let incident = groups.incidents.get(i).copied().flatten();
            let mut is_known =
                |incident| ledger.has_incident(incident, breaker.window, now) || !incidents.insert(incident);
            if incident.is_some_and(&mut is_known) {
                continue;
            }
            let group = groups.of.get(i).copied().flatten();
            due += usize::from(groups.is_part(group));
            names.extend(verdict.next.action().map(Action::name));
            if let Some(group) = group {
                *due_in.entry(group).or_default() += 1;
            }
        }
    }
    if due == 0 && due_in.is_empty() {
        return None;
    }
    let batches = || ledger.recent_destructive.iter().filter(|batch| is_recent(batch.at, breaker.window, now));
    let names: Vec<&str> = names.into_iter().collect();
    // Subjects that are gone were in the population when they fell due.
    let removes = A::KINDS.iter().any(|kind| kind.removes_subject);
    let too_many = |count: usize, done: usize, left: usize, whose: &str| {
        let total = if removes { left + done } else { left };
        let limit = threshold(breaker.min_count, breaker.min_fraction, total);
        (count >= limit).then(|| OpenBreaker {
            since: now,
            because: format!(
                "{count} of {}{whose} {} due for {} within {}, the limit is {limit}",
                counted(total, "subject", "subjects"),
                is_or_are(count),
                names.join(" or "),
                duration::format(breaker.window)
            ),
        })
    };
    let of_the_whole = batches().filter(|batch| groups.is_part(batch.group.as_deref()));
    let done = of_the_whole.map(|batch| batch.count).sum::<usize>();
    let whole = (due > 0).then(|| too_many(due + done + population.queued, done, population.breaker_total, ""));
    whole.flatten().or_else(|| {
        due_in.into_iter().find_map(|(group, due)| {
            let done = batches().filter(|batch| batch.group.as_deref() == Some(group)).map(|batch| batch.count);
            let (done, left) = (done.sum::<usize>(), groups.sizes.get(group).copied().unwrap_or(0));
            too_many(due + done, done, left, &format!(" of {group}"))
        })
    })
}

fn refuse_guarded<R: RuleSet, A: Action>(verdicts: &mut [Verdict<R, A>], open: &OpenBreaker) {
    for verdict in verdicts {
        let held = match &verdict.next {
            Next::Act { action, .. } if verdict.next.is_guarded() => action,
            Next::Wait { then, .. } if verdict.rule.is_engine(EngineRule::Paced) && then.kind().destructive => then,
            _ => continue,
        };
        verdict.because = format!(
            "{} is due ({}), but the breaker is open since {}: {}",
            held.name(),
            verdict.rule,
            time::format(open.since),
            open.because
        );
        verdict.rule = EngineRule::BreakerOpen.into();
        verdict.next = Next::Refuse { bookkeeping: None };
    }
}

fn enforce_pace<R: RuleSet, A: Action>(
    verdicts: &mut [Verdict<R, A>],
    name: &str,
    pace: &Pace,
    population: usize,
    ledger: &Ledger,
    now: Timestamp,
) {
    let mut queue: Vec<(Timestamp, usize)> = verdicts
        .iter()
        .enumerate()
        .filter_map(|(i, v)| match &v.next {
            Next::Act { action, due, cause: Cause::Inferred } if action.name() == name => Some((*due, i)),
            _ => None,
        })
        .collect();
    queue.sort_unstable();
    let allowed = threshold(pace.limit, pace.fraction, population).max(1);
    let mut taken: Vec<Timestamp> =
        ledger.admitted.get(name).into_iter().flatten().copied().filter(|t| is_recent(*t, pace.window, now)).collect();
    taken.sort_unstable();
    let free = allowed.saturating_sub(taken.len()).min(queue.len());
    let later = queue.split_off(free);
    taken.extend(queue.iter().map(|_| now));
    // A place is free again one window after it was taken, and then taken by the next in line. If the
    // allowance has shrunk, the oldest places are not given out again.
    for (place, (_, i)) in later.into_iter().enumerate() {
        let since = taken[taken.len() - allowed + place % allowed];
        let windows = i32::try_from(place / allowed + 1).unwrap_or(i32::MAX);
        let until = time::saturating_add(since, pace.window.saturating_mul(windows));
        let verdict = &mut verdicts[i];
        if let Next::Act { action, .. } = verdict.next.clone() {
            verdict.because = format!(
                "{name} is due ({}: {}), but {allowed} in {} is the pace and {} are ahead of it",
                verdict.rule,
                verdict.because,
                duration::format(pace.window),
                free + place
            );
            verdict.rule = EngineRule::Paced.into();
            verdict.next = Next::Wait { until, then: action };
        }
    }
}

#[cfg(test)]
mod tests;
