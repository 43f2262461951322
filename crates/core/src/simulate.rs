//! The clock run forward: the same judging and the same bounds, on what acting would make of the
//! subjects. It invents no outside events; those it is given, it plays at their time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use jiff::{SignedDuration, Timestamp};

use crate::admit::{Bounds, Crowd, Groups, Ledger, PACED, admit};
use crate::{Action, Keeper, Next, Verdict, time};

/// Somebody uses a subject, named by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// When.
    pub at: Timestamp,
    /// Which one.
    pub subject: usize,
}

/// Something that happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening<A> {
    /// When.
    pub at: Timestamp,
    /// To which subject; `None` for the keeper as a whole, when its breaker opens.
    pub subject: Option<usize>,
    /// What is done.
    pub action: Option<A>,
    /// Under which rule.
    pub rule: &'static str,
    /// Why.
    pub because: String,
}

/// A comparison with a deadline is strict: what is due at noon is done just after it. The simulator
/// judges at this much after the moment it shows.
const JUST_AFTER: SignedDuration = SignedDuration::from_nanos(1);

/// One action can make the next one due at the same moment, a few times over. More than this is a
/// pair of rules that undo each other; the simulator moves on rather than hang.
const AT_ONCE: usize = 16;

const A_LITTLE: SignedDuration = SignedDuration::from_mins(1);

/// Subjects on their way through time.
pub struct Simulation<K: Keeper> {
    world: K::World,
    bounds: Bounds,
    /// The subjects; those that are gone are `None`.
    pub subjects: Vec<Option<K::Subject>>,
    /// Pace counts and breaker.
    pub ledger: Ledger,
    now: Timestamp,
    /// When to look at which subject again; an entry that is not the subject's appointment was
    /// overtaken by events.
    agenda: BinaryHeap<Reverse<(Timestamp, usize)>>,
    appointments: Vec<Option<Timestamp>>,
    /// Guarded subjects that wait their turn, and since when they are due.
    queued: BTreeMap<usize, Timestamp>,
    /// Places of subjects that are bound together.
    bonds: Vec<Vec<usize>>,
    bond_of: Vec<Option<usize>>,
    /// How many count, in all and in each smaller crowd.
    counted: usize,
    sizes: BTreeMap<String, usize>,
    paced: usize,
}

impl<K: Keeper> Simulation<K> {
    /// Starts at a moment, with everything as it is.
    pub fn new(world: K::World, subjects: Vec<K::Subject>, bounds: Bounds, ledger: Ledger, start: Timestamp) -> Self {
        let agenda = (0..subjects.len()).map(|i| Reverse((start, i))).collect();
        let mut words: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, subject) in subjects.iter().enumerate() {
            if let Some(word) = K::bond(subject) {
                words.entry(word.to_owned()).or_default().push(i);
            }
        }
        let ties: Vec<Vec<usize>> = words.into_values().filter(|places| places.len() > 1).collect();
        let mut bond_of = vec![None; subjects.len()];
        for (bond, places) in ties.iter().enumerate() {
            for place in places {
                bond_of[*place] = Some(bond);
            }
        }
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for group in subjects.iter().filter(|s| K::is_counted(s)).filter_map(K::group) {
            *sizes.entry(group.to_owned()).or_default() += 1;
        }
        Self {
            queued: BTreeMap::new(),
            bonds: ties,
            bond_of,
            paced: subjects.iter().filter(|s| K::is_paced(s)).count(),
            world,
            bounds,
            ledger,
            now: start,
            agenda,
            appointments: vec![Some(start); subjects.len()],
            counted: subjects.iter().filter(|s| K::is_counted(s)).count(),
            sizes,
            subjects: subjects.into_iter().map(Some).collect(),
        }
    }

    /// Runs to `end`, which is not part of it any more, and tells what happens on the way. May be
    /// called again with a later end.
    pub fn run(&mut self, end: Timestamp, uses: &[Use]) -> Vec<Happening<K::Action>> {
        let mut uses: Vec<Use> = uses.iter().copied().filter(|u| u.at >= self.now && u.at < end).collect();
        uses.sort_by_key(|u| (u.at, u.subject));
        let mut uses = uses.into_iter().peekable();
        let mut happened = Vec::new();
        loop {
            let planned = self.agenda.peek().map(|Reverse((t, _))| *t);
            let announced = uses.peek().map(|u| u.at);
            let Some(at) = [planned, announced].into_iter().flatten().min().filter(|t| *t < end) else { break };
            self.now = self.now.max(at);
            let mut touched = Vec::new();
            while let Some(u) = uses.next_if(|u| u.at <= self.now) {
                if let Some(subject) = self.subjects.get_mut(u.subject).and_then(Option::take) {
                    self.subjects[u.subject] = Some(K::used(subject, u.at));
                    touched.push(u.subject);
                }
            }
            while self.agenda.peek().is_some_and(|Reverse((t, _))| *t <= self.now) {
                let Some(Reverse((t, i))) = self.agenda.pop() else { break };
                if self.appointments[i] == Some(t) {
                    self.appointments[i] = None;
                    touched.push(i);
                }
            }
            self.look(touched, &mut happened);
        }
        self.now = self.now.max(end);
        happened
    }

    /// Judges some subjects now, again as long as that leads to an act.
    fn look(&mut self, mut touched: Vec<usize>, happened: &mut Vec<Happening<K::Action>>) {
        let now = time::after(self.now, JUST_AFTER);
        for _ in 0..AT_ONCE {
            touched.sort_unstable();
            touched.dedup();
            touched.retain(|i| self.subjects[*i].is_some());
            if touched.is_empty() {
                return;
            }
            let mut verdicts: Vec<_> = touched
                .iter()
                .filter_map(|i| self.subjects[*i].as_ref())
                .map(|s| K::judge(s, &self.world, now))
                .collect();
            for (i, verdict) in touched.iter().zip(&mut verdicts) {
                self.queued.remove(i);
                // What is seen now counts from the moment that is shown.
                if let Some(subject) = &mut self.subjects[*i]
                    && K::note(subject, verdict, self.now)
                {
                    *verdict = K::judge(subject, &self.world, now);
                }
            }
            let dues: Vec<_> = verdicts.iter().map(|v| v.next.at()).collect();
            let groups = Groups {
                of: touched.iter().map(|i| self.subjects[*i].as_ref().and_then(K::group)).collect(),
                sizes: self.sizes.iter().map(|(group, size)| (group.as_str(), *size)).collect(),
            };
            let opened = admit(&mut verdicts, &groups, self.crowd(), &self.bounds, &self.ledger, self.now);
            if let Some(opened) = opened {
                happened.push(Happening {
                    at: self.now,
                    subject: None,
                    action: None,
                    rule: crate::admit::BREAKER_OPEN,
                    because: opened.because.clone(),
                });
                self.ledger.open = Some(opened);
            }
            let mut again = Vec::new();
            for ((i, verdict), due) in std::mem::take(&mut touched).into_iter().zip(verdicts).zip(dues) {
                if let (Next::Wait { then, .. }, Some(due)) = (&verdict.next, due)
                    && verdict.rule == PACED
                    && then.guarded()
                {
                    self.queued.insert(i, due);
                }
                self.carry_out(i, verdict, happened, &mut again);
            }
            touched = again;
        }
        // Rules that undo each other are looked at again a little later, and not forgotten.
        for i in touched {
            let later = time::after(self.now, A_LITTLE);
            self.appointments[i] = Some(later);
            self.agenda.push(Reverse((later, i)));
        }
    }

    fn crowd(&self) -> Crowd {
        let within = self.bounds.breaker.map(|b| b.within);
        let lately = |due: &&Timestamp| {
            within.is_some_and(|within| time::between(**due, self.now) < within) && self.ledger.counts(**due, self.now)
        };
        Crowd {
            subjects: self.counted,
            paced: self.paced,
            queued: self.queued.values().filter(lately).count(),
            leaves: K::LEAVES,
        }
    }

    /// Does what a verdict says, and names whom to judge again at once.
    fn carry_out(
        &mut self,
        i: usize,
        verdict: Verdict<K::Action>,
        happened: &mut Vec<Happening<K::Action>>,
        again: &mut Vec<usize>,
    ) {
        let Verdict { rule, next, because } = verdict;
        let due = next.at().unwrap_or(self.now);
        let action = match next {
            Next::Rest | Next::Refuse { record: None } => return,
            Next::Wait { until, .. } => {
                let until = until.max(self.now);
                if self.appointments[i] != Some(until) {
                    self.appointments[i] = Some(until);
                    self.agenda.push(Reverse((until, i)));
                }
                return;
            }
            Next::Act { action, .. } | Next::Refuse { record: Some(action) } => action,
        };
        // Gone with another one at this very moment.
        let Some(subject) = self.subjects[i].take() else { return };
        self.ledger.note(&action, due, K::group(&subject), &self.bounds, self.now);
        self.tell_those_beside(i, &subject, &action, again);
        let leaves = Leaves::of::<K>(&subject);
        self.subjects[i] = K::after(subject, &action, &self.world, self.now);
        if self.subjects[i].is_none() {
            self.gone(i, leaves);
        }
        happened.push(Happening { at: self.now, subject: Some(i), action: Some(action), rule, because });
        again.push(i);
    }

    fn tell_those_beside(&mut self, i: usize, acted: &K::Subject, action: &K::Action, again: &mut Vec<usize>) {
        let Some(bond) = self.bond_of[i] else { return };
        for place in self.bonds[bond].clone() {
            if place == i {
                continue;
            }
            let Some(subject) = self.subjects[place].take() else { continue };
            let leaves = Leaves::of::<K>(&subject);
            self.subjects[place] = K::beside(subject, acted, action, self.now);
            if self.subjects[place].is_none() {
                self.gone(place, leaves);
            } else {
                again.push(place);
            }
        }
    }

    fn gone(&mut self, i: usize, leaves: Leaves) {
        self.counted -= usize::from(leaves.counted);
        self.paced -= usize::from(leaves.paced);
        if let Some(size) = leaves.group.and_then(|group| self.sizes.get_mut(&group)) {
            *size -= usize::from(leaves.counted);
        }
        self.queued.remove(&i);
    }
}

/// Where one was counted that is gone.
struct Leaves {
    counted: bool,
    paced: bool,
    group: Option<String>,
}

impl Leaves {
    fn of<K: Keeper>(subject: &K::Subject) -> Self {
        let group = K::group(subject).map(str::to_owned);
        Self { counted: K::is_counted(subject), paced: K::is_paced(subject), group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::{BREAKER_OPEN, Breaker, Pace};
    use crate::keeper::Name;
    use crate::{Finding, rules::RuleTable};

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    /// A candle burns for an hour after it was last trimmed, and is then taken away.
    #[derive(Debug, Clone, PartialEq)]
    struct Candle(Timestamp);

    #[derive(Debug, Clone, PartialEq)]
    struct Take;

    impl Action for Take {
        fn name(&self) -> &'static str {
            "take"
        }
        fn guarded(&self) -> bool {
            true
        }
    }

    #[derive(Debug)]
    struct Candles;

    static RULES: RuleTable<Candle, (), Take> = crate::rules![
        /// Burnt for an hour.
        BurntDown => burnt_down,
    ];

    fn burnt_down(candle: &Candle, (): &(), now: Timestamp) -> Option<Finding<Take>> {
        let due = time::after(candle.0, HOUR);
        Some(if now > due { Finding::act(Take, due, "burnt") } else { Finding::wait(due, Take, "burns") })
    }

    impl Keeper for Candles {
        const NAME: &'static str = "candles";
        type Subject = Candle;
        type World = ();
        type Action = Take;
        fn rules() -> &'static RuleTable<Candle, (), Take> {
            &RULES
        }
        fn name(_: &Candle) -> Name<'_> {
            Name { kind: "Candle", namespace: None, name: "candle", uid: "" }
        }
        fn facts(candle: &Candle, _: Timestamp) -> Vec<(&'static str, String)> {
            vec![("lit", time::show(candle.0))]
        }
        fn steps(_: &Candle, action: &Take, (): &(), _: Timestamp) -> Vec<String> {
            vec![action.name().to_owned()]
        }
        fn after(_: Candle, _: &Take, (): &(), _: Timestamp) -> Option<Candle> {
            None
        }
        fn used(_: Candle, at: Timestamp) -> Candle {
            Candle(at)
        }
    }

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    fn simulate(lit: &[i64], bounds: Bounds, uses: &[Use]) -> Vec<(i64, Option<usize>, &'static str)> {
        let candles = lit.iter().map(|m| Candle(at(*m))).collect();
        let mut simulation = Simulation::<Candles>::new((), candles, bounds, Ledger::default(), at(0));
        let happened = simulation.run(at(600), uses);
        happened.into_iter().map(|h| (h.at.as_second() / 60, h.subject, h.rule)).collect()
    }

    #[test]
    fn each_falls_due_at_its_deadline_in_order() {
        let happened = simulate(&[20, 0], Bounds::default(), &[]);

        assert_eq!(happened, [(60, Some(1), "BurntDown"), (80, Some(0), "BurntDown")]);
    }

    #[test]
    fn what_is_overdue_at_the_start_happens_at_the_start() {
        assert_eq!(simulate(&[-500], Bounds::default(), &[]), [(0, Some(0), "BurntDown")]);
    }

    #[test]
    fn use_puts_off_the_deadline() {
        let uses = [Use { at: at(59), subject: 0 }, Use { at: at(30), subject: 0 }];

        assert_eq!(simulate(&[0], Bounds::default(), &uses), [(119, Some(0), "BurntDown")]);
    }

    #[test]
    fn what_is_over_its_pace_waits_its_turn() {
        let pace = Pace { at_least: 1, share: 0.0, per: HOUR };
        let bounds = Bounds { pace: [("take".to_owned(), pace)].into(), breaker: None };

        let times: Vec<i64> = simulate(&[0, 0, 0], bounds, &[]).into_iter().map(|(at, ..)| at).collect();

        assert_eq!(times, [60, 120, 180]);
    }

    #[test]
    fn a_breaker_opens_once_and_ends_it() {
        let breaker = Breaker { at_least: 2, ..Breaker::default() };
        let bounds = Bounds { breaker: Some(breaker), ..Bounds::default() };

        let happened = simulate(&[0, 0, 0, 30], bounds, &[]);

        assert_eq!(happened, [(60, None, BREAKER_OPEN)]);
    }

    #[test]
    fn many_uses_leave_one_appointment() {
        let uses: Vec<Use> = (0..5_000).map(|i| Use { at: at(0) + SignedDuration::from_secs(i), subject: 0 }).collect();
        let mut simulation =
            Simulation::<Candles>::new((), vec![Candle(at(0))], Bounds::default(), Ledger::default(), at(0));

        simulation.run(at(84), &uses);

        let valid = simulation.agenda.iter().filter(|Reverse((t, i))| simulation.appointments[*i] == Some(*t)).count();
        assert_eq!(valid, 1);
    }
}
