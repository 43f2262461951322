//! Pace and breaker: how much of what is due may happen now.
//!
//! Pure, as judging is. What is over its pace becomes waiting, under the rule `Paced`; everything
//! guarded becomes refusal while the breaker is open, under the rule `BreakerOpen`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Action, Next, Verdict, duration, time};

/// The rule of what waits its turn.
pub const PACED: &str = "Paced";
/// The rule of what an open breaker holds back.
pub const BREAKER_OPEN: &str = "BreakerOpen";

/// So many of one action, or such a share of all subjects if that is more, in a span of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// At least so many.
    pub at_least: usize,
    /// Or this share of all subjects.
    pub share: f64,
    /// In this time.
    pub per: SignedDuration,
}

/// Opens when at least so many, and at least such a share of all subjects, fall due together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Breaker {
    /// Fewer than so many never open it.
    pub at_least: usize,
    /// A smaller share of all subjects never opens it.
    pub share: f64,
    /// What falls due in this time falls due together.
    pub within: SignedDuration,
}

impl Breaker {
    /// Half of all subjects, but not for a handful, within ten minutes.
    pub const USUAL: Self = Self { at_least: 20, share: 0.5, within: SignedDuration::from_mins(10) };
}

impl Default for Breaker {
    fn default() -> Self {
        Self::USUAL
    }
}

/// The greater of a count and a share of all.
fn of(at_least: usize, share: f64, all: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "counts of subjects"
    )]
    let share = (share.clamp(0.0, 1.0) * all as f64).ceil() as usize;
    at_least.max(share)
}

/// The bounds of a keeper.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bounds {
    /// By the name of the action; an action that is not here is not paced.
    pub pace: BTreeMap<String, Pace>,
    /// `None`: there is no breaker.
    pub breaker: Option<Breaker>,
}

/// What was admitted lately, and whether the breaker is open: kept over restarts and shared by
/// replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ledger {
    /// When each action was admitted, by its name, the oldest first.
    pub admitted: BTreeMap<String, Vec<Timestamp>>,
    /// When guarded actions were admitted, the oldest first.
    pub guarded: Vec<Made>,
    /// Set while the breaker is open.
    pub open: Option<Opened>,
    /// When a person last looked and closed the breaker: what was due by then may happen.
    pub looked: Option<Timestamp>,
}

/// Guarded actions that were admitted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Made {
    /// When.
    pub at: Timestamp,
    /// How many.
    pub count: usize,
    /// In which smaller crowd, if in any.
    pub group: Option<String>,
}

/// One alone is written as its time.
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

impl From<Written> for Made {
    fn from(written: Written) -> Self {
        match written {
            Written::One(at) => Self { at, count: 1, group: None },
            Written::Many { at, count, group } => Self { at, count, group },
        }
    }
}

impl From<Made> for Written {
    fn from(made: Made) -> Self {
        match made {
            Made { at, count: 1, group: None } => Self::One(at),
            Made { at, count, group } => Self::Many { at, count, group },
        }
    }
}

/// Why the breaker is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Since when.
    pub since: Timestamp,
    /// What was seen then.
    pub because: String,
}

impl Ledger {
    /// Notes an action that fell due then and is about to be made, and forgets what no bound looks at
    /// any more.
    pub fn note<A: Action>(
        &mut self,
        action: &A,
        due: Timestamp,
        group: Option<&str>,
        bounds: &Bounds,
        now: Timestamp,
    ) {
        if let Some(pace) = bounds.pace.get(action.name()) {
            let times = self.admitted.entry(action.name().to_owned()).or_default();
            // What is admitted together is noted one after the other.
            if times.last() != Some(&now) {
                times.retain(|t| lately(*t, pace.per, now));
            }
            times.push(now);
        }
        if let Some(breaker) = bounds.breaker.filter(|_| action.guarded() && self.counts(due, now)) {
            let at = full_minute(now);
            let mut together = self.guarded.iter_mut().rev().take_while(|made| made.at == at);
            if let Some(made) = together.find(|made| made.group.as_deref() == group) {
                made.count += 1;
            } else {
                self.guarded.retain(|made| lately(made.at, breaker.within, now));
                self.guarded.push(Made { at, count: 1, group: group.map(str::to_owned) });
            }
        }
    }

    /// Closes the breaker, because a person has looked: what is due by now does not open it again.
    pub fn close(&mut self, now: Timestamp) {
        *self = Self { admitted: std::mem::take(&mut self.admitted), looked: Some(now), ..Self::default() };
    }

    /// Whether what fell due then counts towards the breaker. Nobody has looked in the future.
    pub(crate) fn counts(&self, due: Timestamp, now: Timestamp) -> bool {
        self.looked.filter(|looked| *looked <= time::after(now, SKEW)).is_none_or(|looked| due > looked)
    }
}

/// Clocks of different machines differ by so much; what is further ahead is an error of one of them,
/// and must neither hold things back until then nor let them pass.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// What is admitted in the same minute is one entry, so that there are only so many of them; it counts a
/// little longer than it must.
fn full_minute(now: Timestamp) -> Timestamp {
    let over = now.as_second().rem_euclid(60);
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let missing = if over == 0 && whole == now { 0 } else { 60 - over };
    time::after(whole, SignedDuration::from_secs(missing))
}

fn lately(then: Timestamp, span: SignedDuration, now: Timestamp) -> bool {
    let passed = time::between(then, now);
    passed < span && passed > -SKEW
}

/// Those among whom shares are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crowd {
    /// All subjects of the keeper: what the breaker's share is a share of.
    pub subjects: usize,
    /// Those whose number a pace is a share of.
    pub paced: usize,
    /// Guarded subjects that wait their turn, are not among the verdicts at hand, and fell due
    /// within the breaker's time.
    pub queued: usize,
    /// Whether whatever a guarded action was made on is not among them any more.
    pub leaves: bool,
}

/// Smaller crowds, of which the breaker holds a share as well: for instance the addresses of one pool.
#[derive(Debug, Clone, Default)]
pub struct Groups<'a> {
    /// That of each verdict at hand.
    pub of: Vec<Option<&'a str>>,
    /// How many subjects each has.
    pub sizes: BTreeMap<&'a str, usize>,
}

/// Holds verdicts against the bounds, in place. What is due longest goes first.
///
/// Returns why the breaker opens, if it does so now.
pub fn admit<A: Action>(
    verdicts: &mut [Verdict<A>],
    groups: &Groups<'_>,
    crowd: Crowd,
    bounds: &Bounds,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Opened> {
    let recent = recently_due(verdicts, bounds, now);
    for (name, pace) in &bounds.pace {
        hold_pace(verdicts, name, pace, crowd.paced, ledger, now);
    }
    let opens = if ledger.open.is_none() { opens(verdicts, &recent, groups, crowd, bounds, ledger, now) } else { None };
    if let Some(opened) = opens.as_ref().or(ledger.open.as_ref()) {
        refuse_guarded(verdicts, opened);
    }
    opens
}

/// Which verdicts are guarded and fell due within the breaker's time, and when.
fn recently_due<A: Action>(verdicts: &[Verdict<A>], bounds: &Bounds, now: Timestamp) -> Vec<Option<Timestamp>> {
    let recent = |v: &Verdict<A>| match (&v.next, bounds.breaker) {
        (Next::Act { action, due }, Some(breaker)) => {
            Some(*due).filter(|due| action.guarded() && lately(*due, breaker.within, now))
        }
        _ => None,
    };
    verdicts.iter().map(recent).collect()
}

/// What counts is what would be done now, however long it has been due; what was done lately; and
/// what fell due lately and waits its turn. A backlog that its pace holds back anyway does not.
fn opens<A: Action>(
    verdicts: &[Verdict<A>],
    recent: &[Option<Timestamp>],
    groups: &Groups<'_>,
    crowd: Crowd,
    bounds: &Bounds,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Opened> {
    let breaker = bounds.breaker?;
    let at_once = |v: &Verdict<A>| match &v.next {
        Next::Act { action, due } => Some(*due).filter(|_| action.guarded()),
        _ => None,
    };
    let (mut due, mut due_in) = (0, BTreeMap::<&str, usize>::new());
    let mut names = BTreeSet::new();
    for (i, (verdict, recent)) in verdicts.iter().zip(recent).enumerate() {
        if at_once(verdict).or(*recent).is_some_and(|at| ledger.counts(at, now)) {
            due += 1;
            names.extend(verdict.next.action().map(Action::name));
            if let Some(group) = groups.of.get(i).copied().flatten() {
                *due_in.entry(group).or_default() += 1;
            }
        }
    }
    let made = || ledger.guarded.iter().filter(|made| lately(made.at, breaker.within, now));
    let names: Vec<&str> = names.into_iter().collect();
    // What is gone was among them when it fell due.
    let too_many = |all: usize, made: usize, left: usize, whose: &str| {
        let subjects = if crowd.leaves { left + made } else { left };
        let limit = of(breaker.at_least, breaker.share, subjects);
        (all >= limit).then(|| Opened {
            since: now,
            because: format!(
                "{all} of {subjects} subjects{whose} are due for {} within {}, the limit is {limit}",
                names.join(" or "),
                duration::format(breaker.within)
            ),
        })
    };
    if due == 0 {
        return None;
    }
    let before = made().map(|made| made.count).sum::<usize>();
    too_many(due + before + crowd.queued, before, crowd.subjects, "").or_else(|| {
        due_in.into_iter().find_map(|(group, due)| {
            let before = made().filter(|made| made.group.as_deref() == Some(group)).map(|made| made.count);
            let (before, left) = (before.sum::<usize>(), groups.sizes.get(group).copied().unwrap_or(0));
            too_many(due + before, before, left, &format!(" of {group}"))
        })
    })
}

fn refuse_guarded<A: Action>(verdicts: &mut [Verdict<A>], opened: &Opened) {
    for verdict in verdicts {
        let held = match &verdict.next {
            Next::Act { action, .. } => Some(action),
            Next::Wait { then, .. } if verdict.rule == PACED => Some(then),
            _ => None,
        };
        let Some(action) = held.filter(|action| action.guarded()) else { continue };
        verdict.because = format!(
            "{} is due ({}), but the breaker is open since {}: {}",
            action.name(),
            verdict.rule,
            time::show(opened.since),
            opened.because
        );
        verdict.rule = BREAKER_OPEN;
        verdict.next = Next::Refuse { record: None };
    }
}

fn hold_pace<A: Action>(
    verdicts: &mut [Verdict<A>],
    name: &str,
    pace: &Pace,
    subjects: usize,
    ledger: &Ledger,
    now: Timestamp,
) {
    let mut queue: Vec<(Timestamp, usize)> = verdicts
        .iter()
        .enumerate()
        .filter_map(|(i, v)| match &v.next {
            Next::Act { action, due } if action.name() == name => Some((*due, i)),
            _ => None,
        })
        .collect();
    queue.sort_unstable();
    let allowed = of(pace.at_least, pace.share, subjects).max(1);
    let mut made: Vec<Timestamp> =
        ledger.admitted.get(name).into_iter().flatten().copied().filter(|t| lately(*t, pace.per, now)).collect();
    made.sort_unstable();
    let free = allowed.saturating_sub(made.len()).min(queue.len());
    let later = queue.split_off(free);
    made.extend(queue.iter().map(|_| now));
    // A place is free again one span after it was taken, and then taken by the next in line. If the
    // allowance has shrunk, the oldest places are not given out again.
    for (place, (_, i)) in later.into_iter().enumerate() {
        let taken = made[made.len() - allowed + place % allowed];
        let rounds = i32::try_from(place / allowed + 1).unwrap_or(i32::MAX);
        let until = time::after(taken, pace.per.saturating_mul(rounds));
        let verdict = &mut verdicts[i];
        if let Next::Act { action, .. } = verdict.next.clone() {
            verdict.because = format!(
                "{name} is due ({}: {}), but {allowed} in {} is the pace and {} are ahead of it",
                verdict.rule,
                verdict.because,
                duration::format(pace.per),
                free + place
            );
            verdict.rule = PACED;
            verdict.next = Next::Wait { until, then: action };
        }
    }
}

#[cfg(test)]
mod tests;
