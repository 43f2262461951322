//! The clock run forward: the same judge and the same limits, on what the actions would leave behind.
//! It invents no outside events; those it is given happen at their time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::limits::{Ledger, Limits, OpenBreaker, Population, PopulationGroups, enforce};
use crate::suspension::Suspension;
use crate::{Action, EngineRule, Keeper, Membership, Next, RuleId, RuleSet, Verdict, VerdictOf, time};

/// Something that happens to a subject from outside: the change itself. The namespaces keeper makes
/// these from an audit log.
pub struct ExternalChange<S> {
    /// When.
    pub at: Timestamp,
    /// The place of the subject.
    pub subject: usize,
    /// The subject afterwards.
    pub change: Box<dyn Fn(S) -> S>,
}

/// One thing that happens in a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedEvent<R, A> {
    /// When.
    pub at: Timestamp,
    /// The place of the subject; `None` for the keeper as a whole, when its breaker opens.
    pub subject: Option<usize>,
    /// The action.
    pub action: Option<A>,
    /// The rule.
    pub rule: RuleId<R>,
    /// The evidence.
    pub because: String,
}

/// The simulated events of a keeper.
pub type SimulatedEventOf<K> = SimulatedEvent<<K as Keeper>::Rule, <K as Keeper>::Action>;

/// A deadline is strict: an action due at noon is done just after it. The simulator judges at this
/// much after the moment it shows.
const JUST_AFTER: SignedDuration = SignedDuration::from_nanos(1);

/// One action can make the next one due at the same moment, a few times over. More than this is a
/// pair of rules that undo each other; the simulator moves on instead of looping.
const ROUNDS_AT_ONCE: usize = 16;

/// When rules that undo each other are judged again.
const LATER: SignedDuration = SignedDuration::from_mins(1);

/// Subjects on their way through time.
pub struct Simulation<'k, K: Keeper> {
    keeper: &'k K,
    world: K::World,
    limits: Limits,
    /// The subjects; `None` once it is gone.
    pub subjects: Vec<Option<K::Subject>>,
    /// Pace counts and breaker.
    pub ledger: Ledger,
    /// Subjects that an open breaker holds back.
    pub held: BTreeSet<usize>,
    /// The breaker is reset at once when it opens.
    resets_breaker: bool,
    now: Timestamp,
    /// When to judge which subject again; an entry that is not the subject's appointment is outdated.
    agenda: BinaryHeap<Reverse<(Timestamp, usize)>>,
    appointments: Vec<Option<Timestamp>>,
    /// Guarded subjects that wait their turn, and since when they are due.
    queued: BTreeMap<usize, Timestamp>,
    /// Places of subjects that affect each other, and the relation of each place.
    relations: Vec<Vec<usize>>,
    relation_of: Vec<Option<usize>>,
    population: Population,
    group_sizes: BTreeMap<String, usize>,
    groups_apart: BTreeSet<String>,
    /// The windows on the objects of subjects, by place.
    windows: BTreeMap<usize, Arc<Suspension>>,
}

impl<'k, K: Keeper> Simulation<'k, K> {
    /// Starts at a moment, with everything as it is.
    pub fn new(
        keeper: &'k K,
        world: K::World,
        subjects: Vec<K::Subject>,
        limits: Limits,
        ledger: Ledger,
        start: Timestamp,
    ) -> Self {
        let mut by_key: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, subject) in subjects.iter().enumerate() {
            if let Some(key) = keeper.relation_key(subject) {
                by_key.entry(key).or_default().push(i);
            }
        }
        let relations: Vec<Vec<usize>> = by_key.into_values().filter(|places| places.len() > 1).collect();
        let mut relation_of = vec![None; subjects.len()];
        for (relation, places) in relations.iter().enumerate() {
            for place in places {
                relation_of[*place] = Some(relation);
            }
        }
        let counted: Vec<_> = subjects.iter().map(|subject| Counted::of(keeper, subject)).collect();
        let mut simulation = Self {
            keeper,
            world,
            limits,
            ledger,
            held: BTreeSet::new(),
            resets_breaker: false,
            now: start,
            agenda: (0..subjects.len()).map(|i| Reverse((start, i))).collect(),
            appointments: vec![Some(start); subjects.len()],
            queued: BTreeMap::new(),
            relations,
            relation_of,
            population: Population::default(),
            group_sizes: BTreeMap::new(),
            groups_apart: BTreeSet::new(),
            windows: BTreeMap::new(),
            subjects: subjects.into_iter().map(Some).collect(),
        };
        for counted in counted {
            simulation.count(counted);
        }
        simulation
    }

    /// With windows on the objects of subjects, by place.
    #[must_use]
    pub fn with_windows(mut self, windows: BTreeMap<usize, Arc<Suspension>>) -> Self {
        self.windows = windows;
        self
    }

    /// As if a person reset the breaker at once whenever it is open: everything goes on, at its pace.
    #[must_use]
    pub fn with_breaker_resets(mut self) -> Self {
        self.resets_breaker = true;
        if self.ledger.open.is_some() {
            self.ledger.reset_breaker(self.now);
        }
        self
    }

    /// Runs to `end`, which is no longer part of it, and returns what happens on the way. May be called
    /// again with a later end.
    pub fn run(&mut self, end: Timestamp, outside: &[ExternalChange<K::Subject>]) -> Vec<SimulatedEventOf<K>> {
        let mut outside: Vec<_> = outside.iter().filter(|c| c.at >= self.now && c.at < end).collect();
        outside.sort_by_key(|change| (change.at, change.subject));
        let mut outside = outside.into_iter().peekable();
        let mut events = Vec::new();
        loop {
            let planned = self.agenda.peek().map(|Reverse((t, _))| *t);
            let external = outside.peek().map(|change| change.at);
            let Some(at) = [planned, external].into_iter().flatten().min().filter(|t| *t < end) else { break };
            self.now = self.now.max(at);
            let mut dirty = Vec::new();
            while let Some(change) = outside.next_if(|change| change.at <= self.now) {
                if let Some(subject) = self.subjects.get_mut(change.subject).and_then(Option::take) {
                    let counted = Counted::of(self.keeper, &subject);
                    self.subjects[change.subject] = Some((change.change)(subject));
                    self.recount(change.subject, counted);
                    dirty.push(change.subject);
                }
            }
            while self.agenda.peek().is_some_and(|Reverse((t, _))| *t <= self.now) {
                let Some(Reverse((t, i))) = self.agenda.pop() else { break };
                if self.appointments[i] == Some(t) {
                    self.appointments[i] = None;
                    dirty.push(i);
                }
            }
            self.judge(dirty, &mut events);
        }
        self.now = self.now.max(end);
        events
    }

    /// Judges some subjects now, again as long as that leads to an action.
    fn judge(&mut self, mut dirty: Vec<usize>, events: &mut Vec<SimulatedEventOf<K>>) {
        let now = time::saturating_add(self.now, JUST_AFTER);
        for _ in 0..ROUNDS_AT_ONCE {
            dirty.sort_unstable();
            dirty.dedup();
            dirty.retain(|i| self.subjects[*i].is_some());
            if dirty.is_empty() {
                return;
            }
            let mut verdicts: Vec<VerdictOf<K>> = dirty
                .iter()
                .filter_map(|i| self.subjects[*i].as_ref())
                .map(|subject| K::Rule::judge(subject, &self.world, now))
                .collect();
            for (i, verdict) in dirty.iter().zip(&mut verdicts) {
                self.queued.remove(i);
                self.held.remove(i);
                // What is seen now counts from the moment that is shown.
                if let Some(subject) = &mut self.subjects[*i]
                    && self.keeper.record_verdict(subject, verdict, self.now)
                {
                    *verdict = K::Rule::judge(subject, &self.world, now);
                }
                if let Some(window) = self.windows.get(i) {
                    window.hold_back(verdict, now);
                }
            }
            let deadlines: Vec<_> = verdicts.iter().map(|v| v.next.deadline()).collect();
            let group = |i: &usize| self.subjects[*i].as_ref().and_then(|s| self.keeper.membership(s).group);
            let incident = |i: &usize| self.subjects[*i].as_ref().and_then(|s| self.keeper.membership(s).incident);
            let groups = PopulationGroups {
                of: dirty.iter().map(group).collect(),
                incidents: dirty.iter().map(incident).collect(),
                sizes: self.group_sizes.iter().map(|(group, size)| (group.as_str(), *size)).collect(),
                apart: self.groups_apart.iter().map(String::as_str).collect(),
            };
            let opens = enforce(&mut verdicts, &groups, self.population(), &self.limits, &self.ledger, self.now);
            if let Some(open) = opens {
                events.push(self.open_breaker(open, now));
            }
            let (mut again, mut held) = (Vec::new(), Vec::new());
            for ((i, verdict), deadline) in std::mem::take(&mut dirty).into_iter().zip(verdicts).zip(deadlines) {
                if let (Next::Wait { then, .. }, Some(due)) = (&verdict.next, deadline)
                    && verdict.rule.is_engine(EngineRule::Paced)
                    && then.kind().destructive
                {
                    self.queued.insert(i, due);
                }
                if verdict.rule.is_engine(EngineRule::BreakerOpen) {
                    // After a reset it is judged again at once.
                    let places = if self.resets_breaker { &mut again } else { &mut held };
                    places.push(i);
                }
                self.apply(i, verdict, events, &mut again);
            }
            self.held.extend(held);
            dirty = again;
        }
        // Rules that undo each other are judged again a little later, and not forgotten.
        for i in dirty {
            self.schedule(i, time::saturating_add(self.now, LATER));
        }
    }

    /// The breaker opens, or opens and is reset.
    fn open_breaker(&mut self, open: OpenBreaker, now: Timestamp) -> SimulatedEventOf<K> {
        let mut because = open.because.clone();
        if self.resets_breaker {
            because.push_str("; it is reset at once");
            self.ledger.reset_breaker(now);
        } else {
            self.ledger.open = Some(open);
        }
        let rule = EngineRule::BreakerOpen.into();
        SimulatedEvent { at: self.now, subject: None, action: None, rule, because }
    }

    fn schedule(&mut self, i: usize, at: Timestamp) {
        if self.appointments[i] != Some(at) {
            self.appointments[i] = Some(at);
            self.agenda.push(Reverse((at, i)));
        }
    }

    fn population(&self) -> Population {
        let window = self.limits.breaker.map(|b| b.window);
        let recent = |due: &&Timestamp| {
            window.is_some_and(|window| time::duration_between(**due, self.now) < window)
                && self.ledger.counts(**due, self.now)
        };
        Population { queued: self.queued.values().filter(recent).count(), ..self.population }
    }

    /// Does what a verdict says, and adds the places to judge again at once.
    fn apply(
        &mut self,
        i: usize,
        verdict: VerdictOf<K>,
        events: &mut Vec<SimulatedEventOf<K>>,
        again: &mut Vec<usize>,
    ) {
        if let Next::Wait { until, .. } = verdict.next {
            self.schedule(i, until.max(self.now));
        }
        let Some(action) = verdict.next.pending_action().cloned() else { return };
        // Gone with another one at this very moment.
        let Some(subject) = self.subjects[i].take() else { return };
        let Verdict { rule, next, because } = verdict;
        self.ledger.record(&next, self.keeper.membership(&subject), &self.limits, self.now);
        self.affect_related(i, &subject, &action, again);
        let counted = Counted::of(self.keeper, &subject);
        self.subjects[i] = self.keeper.simulate_action(subject, &action, &self.world, self.now);
        self.recount(i, counted);
        events.push(SimulatedEvent { at: self.now, subject: Some(i), action: Some(action), rule, because });
        again.push(i);
    }

    fn affect_related(&mut self, i: usize, acted: &K::Subject, action: &K::Action, again: &mut Vec<usize>) {
        let Some(relation) = self.relation_of[i] else { return };
        for place in self.relations[relation].clone() {
            if place == i {
                continue;
            }
            let Some(subject) = self.subjects[place].take() else { continue };
            let counted = Counted::of(self.keeper, &subject);
            self.subjects[place] = self.keeper.simulate_related_action(subject, acted, action, self.now);
            self.recount(place, counted);
            if self.subjects[place].is_some() {
                again.push(place);
            }
        }
    }

    /// Counts a subject as it is now instead of as it was: changed, or gone.
    fn recount(&mut self, i: usize, before: Counted) {
        self.population.breaker_total -= usize::from(before.breaker && !before.apart);
        self.population.pace_total -= usize::from(before.pace);
        if let Some(size) = before.group.and_then(|group| self.group_sizes.get_mut(&group)) {
            *size -= usize::from(before.breaker);
        }
        let Some(subject) = &self.subjects[i] else {
            self.queued.remove(&i);
            self.held.remove(&i);
            return;
        };
        self.count(Counted::of(self.keeper, subject));
    }

    fn count(&mut self, counted: Counted) {
        self.population.breaker_total += usize::from(counted.breaker && !counted.apart);
        self.population.pace_total += usize::from(counted.pace);
        let Some(group) = counted.group else { return };
        if counted.apart {
            self.groups_apart.insert(group.clone());
        }
        if counted.breaker {
            *self.group_sizes.entry(group).or_default() += 1;
        }
    }
}

/// What a subject counts for in pace and breaker, kept while it changes.
struct Counted {
    breaker: bool,
    pace: bool,
    group: Option<String>,
    apart: bool,
}

impl Counted {
    fn of<K: Keeper>(keeper: &K, subject: &K::Subject) -> Self {
        let Membership { breaker, pace, group, apart, .. } = keeper.membership(subject);
        Self { breaker, pace, group: group.map(str::to_owned), apart }
    }
}

#[cfg(test)]
mod tests;
