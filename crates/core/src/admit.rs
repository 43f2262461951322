//! Pace and breaker: how much of what is due may happen now.
//!
//! Pure, as judging is. What is over its pace becomes waiting, under the rule `Paced`; everything
//! guarded becomes refusal while the breaker is open, under the rule `BreakerOpen`.

use std::collections::BTreeMap;

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

impl Default for Breaker {
    /// Half of all subjects, but not for a handful, within ten minutes.
    fn default() -> Self {
        Self { at_least: 20, share: 0.5, within: SignedDuration::from_mins(10) }
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
    pub guarded: Vec<Timestamp>,
    /// Set while the breaker is open.
    pub open: Option<Opened>,
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
    /// Notes an action that is about to be made, and forgets what no bound looks at any more.
    pub fn note<A: Action>(&mut self, action: &A, bounds: &Bounds, now: Timestamp) {
        if let Some(pace) = bounds.pace.get(action.name()) {
            let times = self.admitted.entry(action.name().to_owned()).or_default();
            times.retain(|t| lately(*t, pace.per, now));
            times.push(now);
        }
        if let Some(breaker) = bounds.breaker.filter(|_| action.guarded()) {
            self.guarded.retain(|t| lately(*t, breaker.within, now));
            self.guarded.push(now);
        }
    }
}

fn lately(then: Timestamp, span: SignedDuration, now: Timestamp) -> bool {
    time::between(then, now) < span
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
}

/// Holds verdicts against the bounds, in place. What is due longest goes first.
///
/// Returns why the breaker opens, if it does so now.
pub fn admit<A: Action>(
    verdicts: &mut [Verdict<A>],
    crowd: Crowd,
    bounds: &Bounds,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Opened> {
    let recent = recently_due(verdicts, bounds, now);
    for (name, pace) in &bounds.pace {
        hold_pace(verdicts, name, pace, crowd.paced, ledger, now);
    }
    let opens = if ledger.open.is_none() { opens(verdicts, &recent, crowd, bounds, ledger, now) } else { None };
    if let Some(opened) = opens.as_ref().or(ledger.open.as_ref()) {
        refuse_guarded(verdicts, opened);
    }
    opens
}

/// Which verdicts are guarded and fell due within the breaker's time.
fn recently_due<A: Action>(verdicts: &[Verdict<A>], bounds: &Bounds, now: Timestamp) -> Vec<bool> {
    let recent = |v: &Verdict<A>| match (&v.next, bounds.breaker) {
        (Next::Act { action, due }, Some(breaker)) => action.guarded() && lately(*due, breaker.within, now),
        _ => false,
    };
    verdicts.iter().map(recent).collect()
}

/// What counts is what would be done now, however long it has been due; what was done lately; and
/// what fell due lately and waits its turn. A backlog that its pace holds back anyway does not.
fn opens<A: Action>(
    verdicts: &[Verdict<A>],
    recent: &[bool],
    crowd: Crowd,
    bounds: &Bounds,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Opened> {
    let breaker = bounds.breaker?;
    let at_once = |v: &Verdict<A>| matches!(&v.next, Next::Act { action, .. } if action.guarded());
    let due = verdicts.iter().zip(recent).filter(|(v, recent)| at_once(v) || **recent).count();
    let made = ledger.guarded.iter().filter(|t| lately(**t, breaker.within, now)).count();
    let limit = of(breaker.at_least, breaker.share, crowd.subjects);
    let all = due + made + crowd.queued;
    (due > 0 && all >= limit).then(|| Opened {
        since: now,
        because: format!(
            "{all} of {} subjects would be put to sleep or destroyed within {}, the limit is {limit}",
            crowd.subjects,
            duration::format(breaker.within)
        ),
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
mod tests {
    use super::*;
    use rstest::rstest;

    #[derive(Debug, Clone, PartialEq)]
    struct Named(&'static str);

    impl Action for Named {
        fn name(&self) -> &'static str {
            self.0
        }
        fn guarded(&self) -> bool {
            self.0 != "wake"
        }
    }

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn crowd(subjects: usize) -> Crowd {
        Crowd { subjects, paced: subjects, queued: 0 }
    }

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    fn due(name: &'static str, minute: i64) -> Verdict<Named> {
        Verdict { rule: "Due", next: Next::Act { action: Named(name), due: at(minute) }, because: "it is time".into() }
    }

    fn paced(at_least: usize, share: f64) -> Bounds {
        Bounds { pace: [("delete".to_owned(), Pace { at_least, share, per: HOUR })].into(), breaker: None }
    }

    fn broken(at_least: usize, share: f64) -> Bounds {
        Bounds { breaker: Some(Breaker { at_least, share, ..Breaker::default() }), ..Bounds::default() }
    }

    #[rstest]
    #[case::a_count_for_the_few(10, 0.1, 50, 10)]
    #[case::a_share_of_the_many(10, 0.1, 500, 50)]
    #[case::a_share_is_rounded_up(1, 0.5, 3, 2)]
    #[case::never_more_than_all(0, 7.0, 3, 3)]
    fn the_greater_of_count_and_share(
        #[case] at_least: usize,
        #[case] share: f64,
        #[case] all: usize,
        #[case] expected: usize,
    ) {
        assert_eq!(of(at_least, share, all), expected);
    }

    #[test]
    fn what_is_due_longest_goes_first_and_the_rest_waits_its_turn() {
        let mut verdicts = vec![due("delete", 30), due("delete", 10), due("delete", 20)];

        admit(&mut verdicts, crowd(3), &paced(2, 0.0), &Ledger::default(), at(60));

        assert!(matches!(verdicts[1].next, Next::Act { .. }));
        assert!(matches!(verdicts[2].next, Next::Act { .. }));
        assert_eq!(verdicts[0].rule, PACED);
        assert_eq!(verdicts[0].next, Next::Wait { until: at(120), then: Named("delete") });
        assert!(verdicts[0].because.contains("Due: it is time"), "{}", verdicts[0].because);
    }

    #[test]
    fn an_act_half_an_hour_ago_still_takes_its_place() {
        let mut ledger = Ledger::default();
        ledger.note(&Named("delete"), &paced(1, 0.0), at(30));
        let mut verdicts = vec![due("delete", 0), due("delete", 1)];

        admit(&mut verdicts, crowd(2), &paced(1, 0.0), &ledger, at(60));

        assert_eq!(verdicts[0].next, Next::Wait { until: at(90), then: Named("delete") });
        assert_eq!(verdicts[1].next, Next::Wait { until: at(150), then: Named("delete") });
    }

    #[test]
    fn a_pace_that_was_lowered_does_not_give_old_places_out_again() {
        let mut ledger = Ledger::default();
        for minute in [10, 20, 30] {
            ledger.note(&Named("delete"), &paced(3, 0.0), at(minute));
        }
        let mut verdicts = vec![due("delete", 0)];

        admit(&mut verdicts, crowd(2), &paced(1, 0.0), &ledger, at(40));

        assert_eq!(verdicts[0].next.at(), Some(at(90)), "an hour after the latest");
    }

    #[test]
    fn what_is_not_paced_goes_at_once() {
        let mut verdicts = vec![due("sleep", 0); 30];

        assert_eq!(admit(&mut verdicts, crowd(30), &paced(1, 0.0), &Ledger::default(), at(0)), None);

        assert!(verdicts.iter().all(|v| v.rule == "Due"));
    }

    #[rstest]
    #[case::half_of_forty(20, 40, true)]
    #[case::one_less(19, 40, false)]
    #[case::half_of_a_handful(10, 20, false)]
    #[case::few_of_many(40, 100, false)]
    fn the_breaker_opens_for_an_implausible_share(#[case] count: usize, #[case] subjects: usize, #[case] opens: bool) {
        let mut verdicts = vec![due("sleep", 0); count];

        let opened = admit(&mut verdicts, crowd(subjects), &broken(20, 0.5), &Ledger::default(), at(0));

        assert_eq!(opened.is_some(), opens);
        assert!(verdicts.iter().all(|v| (v.rule == BREAKER_OPEN) == opens));
    }

    #[test]
    fn what_was_done_in_the_last_ten_minutes_counts_too() {
        let bounds = broken(3, 0.5);
        let mut ledger = Ledger::default();
        ledger.note(&Named("sleep"), &bounds, at(0));
        ledger.note(&Named("sleep"), &bounds, at(5));

        assert!(admit(&mut [due("sleep", 9)], crowd(4), &bounds, &ledger, at(9)).is_some());
        assert!(admit(&mut [due("sleep", 14)], crowd(4), &bounds, &ledger, at(14)).is_none(), "the first is forgotten");
    }

    #[test]
    fn an_open_breaker_stays_open_and_never_holds_back_a_wake() {
        let opened = Opened { since: at(0), because: "30 of 40".into() };
        let ledger = Ledger { open: Some(opened), ..Ledger::default() };
        let mut verdicts = vec![due("delete", 500), due("wake", 500)];

        assert_eq!(admit(&mut verdicts, crowd(40), &broken(20, 0.5), &ledger, at(600)), None, "it does not open twice");

        assert_eq!((verdicts[0].rule, verdicts[0].next.name()), (BREAKER_OPEN, "refuse"));
        assert!(verdicts[0].because.contains("30 of 40"), "{}", verdicts[0].because);
        assert!(matches!(verdicts[1].next, Next::Act { .. }));
    }

    #[test]
    fn a_pace_is_a_share_of_those_it_counts_and_not_of_all() {
        let mut verdicts = vec![due("delete", 0); 30];
        let many = Crowd { subjects: 530, paced: 30, queued: 0 };

        admit(&mut verdicts, many, &paced(10, 0.1), &Ledger::default(), at(0));

        assert_eq!(verdicts.iter().filter(|v| v.next.name() == "act").count(), 10);
    }

    #[test]
    fn a_backlog_that_its_pace_holds_back_does_not_open_the_breaker() {
        let bounds = Bounds { breaker: broken(20, 0.5).breaker, ..paced(10, 0.1) };
        let mut verdicts = vec![due("delete", 0); 45];

        assert_eq!(admit(&mut verdicts, crowd(90), &bounds, &Ledger::default(), at(600)), None);

        let mut fresh = vec![due("delete", 595); 45];
        assert!(
            admit(&mut fresh, crowd(90), &bounds, &Ledger::default(), at(600)).is_some(),
            "these fell due together"
        );
        assert!(fresh.iter().all(|v| v.rule == BREAKER_OPEN), "those that wait their turn, too");
    }

    #[test]
    fn what_waits_elsewhere_counts_too() {
        let one_more = Crowd { subjects: 40, paced: 40, queued: 19 };

        assert!(admit(&mut [due("sleep", 0)], one_more, &broken(20, 0.5), &Ledger::default(), at(0)).is_some());
    }

    #[test]
    fn the_ledger_forgets_what_no_bound_looks_at() {
        let bounds = paced(1, 0.0);
        let mut ledger = Ledger::default();
        for minute in 0..1_000 {
            ledger.note(&Named("delete"), &bounds, at(minute));
        }

        assert_eq!(ledger.admitted["delete"].len(), 60);
    }
}
