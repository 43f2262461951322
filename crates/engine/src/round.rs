//! From what is seen to what is due: plain data, no clock and no wire.
//!
//! A round judges the homes in which something has changed or a deadline has passed, and holds what
//! is due against the limits. What may be done is handed out site by site. While something is done at
//! a site, or was begun there a moment ago, whatever belongs to it waits, and is judged when that is
//! over. What was tried and failed is left alone for a while, longer each time.

mod memory;
mod sites;

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::limits::{BREAKER_OPEN, Limits, PopulationGroups, Ledger, OpenBreaker, PACED, enforce};
use caretaker_core::deadlines::Deadlines;
use caretaker_core::{Action as _, Next, Timestamp, Verdict};

use crate::keep::{Due, Ended, Index, Keep, Refusal};
use crate::watch::News;
use memory::{Memory, Weighed};
use sites::Sites;

/// Acts that are one, because they are written together.
#[derive(Debug)]
pub struct Batch<K: Keep> {
    /// Where.
    pub site: K::Site,
    /// What.
    pub due: Vec<Due<K>>,
}

/// What a round yields.
#[derive(Debug)]
pub struct Round<K: Keep> {
    /// What may be done now.
    pub due: Vec<Batch<K>>,
    /// What is to be told.
    pub refused: Vec<Refusal>,
    /// Why the breaker opens, if it does.
    pub opened: Option<OpenBreaker>,
}

/// How many subjects of a home rest, wait, are due, are refused.
type Counts = [u32; 4];
/// Their names.
pub const NEXTS: [&str; 4] = ["rest", "wait", "act", "refuse"];

/// What is known between two rounds. Of a home that rests there is no more than how many rest there.
#[derive(Debug)]
pub struct Rounds<K: Keep> {
    seen: K::Index,
    /// To be judged at the next round.
    dirty: BTreeSet<K::Home>,
    deadlines: Deadlines<K::Home>,
    standing: BTreeMap<K::Home, Counts>,
    totals: [i64; 4],
    /// Where pace or breaker holds something back.
    held: BTreeSet<K::Home>,
    sites: Sites<K>,
    memories: BTreeMap<K::Home, Memory<K>>,
}

impl<K: Keep> Default for Rounds<K> {
    fn default() -> Self {
        Self {
            seen: K::Index::default(),
            dirty: BTreeSet::new(),
            deadlines: Deadlines::default(),
            standing: BTreeMap::new(),
            totals: [0; 4],
            held: BTreeSet::new(),
            sites: Sites::default(),
            memories: BTreeMap::new(),
        }
    }
}

impl<K: Keep> Rounds<K> {
    /// Over what was seen at once; everything is judged at the first round.
    #[must_use]
    pub fn of(seen: K::Index) -> Self {
        let mut rounds = Self { seen, ..Self::default() };
        rounds.doubt();
        rounds
    }

    /// What has been seen.
    #[must_use]
    pub fn seen(&self) -> &K::Index {
        &self.seen
    }

    /// The same, for whoever knows more than the watches tell.
    pub fn seen_mut(&mut self) -> &mut K::Index {
        &mut self.seen
    }

    /// Takes in what a watch tells of a kind.
    pub fn hear(&mut self, kind: &str, news: &News<K::Manifest>) {
        match news {
            News::Begins => self.seen.begin(kind),
            News::Is(object) => self.seen.add(kind, object),
            News::Complete => self.seen.complete(kind),
            News::Gone(object) => self.seen.remove(kind, object),
            News::Failed(_) => {}
        }
    }

    /// What an act has written or read is known before the watch tells of it.
    pub fn see(&mut self, sights: &[K::Sight]) {
        for sight in sights {
            self.seen.see(sight);
        }
    }

    /// Everything is judged at the next round.
    pub fn doubt(&mut self) {
        self.dirty.extend(self.seen.homes());
    }

    /// Nobody asks what has changed while another replica judges.
    pub fn stand_by(&mut self) {
        self.seen.take_touched();
    }

    /// Forgets what was judged, because another replica judges now.
    pub fn stand_down(&mut self) {
        let (seen, sites) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.sites));
        *self = Self { seen, sites, ..Self::default() };
    }

    /// When the next round is due by itself.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        earlier(self.deadlines.earliest(), self.sites.next())
    }

    /// How many subjects there are by what comes next for them.
    pub fn totals(&self) -> impl Iterator<Item = (&'static str, i64)> {
        NEXTS.into_iter().zip(self.totals)
    }

    /// Judges what has changed or fallen due; everything that is held back as well, if that may have
    /// changed: what is due longest goes first. Notes in the ledger what may be done.
    pub fn round(
        &mut self,
        world: &K::World,
        limits: &Limits,
        ledger: &mut Ledger,
        anew: bool,
        now: Timestamp,
    ) -> Round<K> {
        let mut homes = std::mem::take(&mut self.dirty);
        homes.extend(self.seen.take_touched());
        homes.extend(self.deadlines.pop_expired(now));
        homes.extend(self.sites.rested(now));
        let mut judging = Judging { world, limits, now, due: Vec::new(), again: Vec::new(), refused: Vec::new() };
        for home in &homes {
            self.judge(home, &mut judging);
        }
        // While the breaker is open nothing that it guards has a turn to wait for.
        let has_a_turn = |due: &Due<K>| match (due.action.guarded(), limits.pace.contains_key(due.action.name())) {
            (true, _) => ledger.open.is_none(),
            (false, paced) => paced,
        };
        if anew || judging.due.iter().any(has_a_turn) {
            for home in std::mem::take(&mut self.held).difference(&homes) {
                self.judge(home, &mut judging);
            }
        }
        let Judging { due, again, refused, .. } = judging;
        let (verdicts, opened) = self.enforce(&due, limits, ledger, now);
        if opened.is_some() {
            ledger.open.clone_from(&opened);
        }
        let mut batches = Batches::default();
        // What was admitted before is not admitted twice.
        for due in again {
            if ledger.open.is_some() && due.action.guarded() {
                self.hold(&due, None, "refuse");
            } else if let Some(batch) = self.room(&due, &mut batches) {
                batch.push(due);
            }
        }
        for (due, verdict) in due.into_iter().zip(verdicts) {
            match verdict.next {
                Next::Wait { until, .. } if verdict.rule == PACED => self.hold(&due, Some(until), "wait"),
                _ if verdict.rule == BREAKER_OPEN => self.hold(&due, None, "refuse"),
                _ => {
                    if let Some(batch) = self.room(&due, &mut batches) {
                        let at = due.verdict.next.deadline().unwrap_or(now);
                        ledger.record(&due.action, at, K::group(&due.subject), limits, now);
                        batch.push(due);
                    }
                }
            }
        }
        Round { due: batches.all, refused, opened }
    }

    /// Holds what is due against the limits.
    fn enforce(
        &self,
        due: &[Due<K>],
        limits: &Limits,
        ledger: &Ledger,
        now: Timestamp,
    ) -> (Vec<Verdict<K::Action>>, Option<OpenBreaker>) {
        let mut groups = PopulationGroups { of: due.iter().map(|d| K::group(&d.subject)).collect(), ..PopulationGroups::default() };
        for group in groups.of.iter().copied().flatten() {
            groups.sizes.entry(group).or_insert_with(|| self.seen.group_size(group));
        }
        let mut verdicts: Vec<_> = due.iter().map(|d| d.verdict.clone()).collect();
        let opened = enforce(&mut verdicts, &groups, self.seen.population(), limits, ledger, now);
        (verdicts, opened)
    }

    fn judge(&mut self, home: &K::Home, judging: &mut Judging<'_, K>) {
        let subjects = self.seen.at_home(home);
        if self.sites.defer(home, &subjects) {
            return;
        }
        let (mut before, mut memory) = (self.memories.remove(home).unwrap_or_default(), Memory::default());
        let (mut counts, mut deadline) = (Counts::default(), None);
        let mut complaints = self.seen.complaints(home, &subjects);
        for subject in subjects {
            let verdict = K::judge(&subject, judging.world, judging.now);
            self.seen.judged(&subject, &verdict, judging.now);
            for (count, next) in counts.iter_mut().zip(NEXTS) {
                *count += u32::from(next == verdict.next.name());
            }
            match &verdict.next {
                Next::Nothing => {}
                Next::Wait { until, .. } => deadline = earlier(deadline, Some(*until)),
                Next::Refuse { bookkeeping: None } => complaints.push(refusal::<K>(&subject, verdict)),
                Next::Act { .. } | Next::Refuse { bookkeeping: Some(_) } => {
                    let Some(action) = verdict.next.pending_action().cloned() else { continue };
                    let due = Due { subject, verdict, action };
                    match memory.weigh(&due, &mut before, judging.limits, judging.now) {
                        Weighed::Anew => judging.due.push(due),
                        Weighed::Again => judging.again.push(due),
                        Weighed::Later(until) => deadline = earlier(deadline, Some(until)),
                        Weighed::Told => {}
                    }
                }
            }
        }
        complaints.retain(|refusal| memory.is_news(refusal, &before));
        judging.refused.extend(complaints);
        self.deadlines.set(home, deadline);
        self.stand(home, counts);
        if !memory.is_empty() {
            self.memories.insert(home.clone(), memory);
        }
    }

    fn stand(&mut self, home: &K::Home, counts: Counts) {
        let before = if counts == Counts::default() {
            self.standing.remove(home)
        } else {
            self.standing.insert(home.clone(), counts)
        };
        for (i, total) in self.totals.iter_mut().enumerate() {
            *total += i64::from(counts[i]) - before.map_or(0, |before| i64::from(before[i]));
        }
    }

    /// Something that is due is held back, until then or until somebody has looked.
    fn hold(&mut self, due: &Due<K>, until: Option<Timestamp>, next: &str) {
        let home = K::home(&due.subject);
        let known = self.deadlines.get(&home);
        self.deadlines.set(&home, earlier(known, until));
        let mut counts = self.standing.get(&home).copied().unwrap_or_default();
        for (count, name) in counts.iter_mut().zip(NEXTS) {
            *count = (*count + u32::from(name == next)).saturating_sub(u32::from(name == "act"));
        }
        self.stand(&home, counts);
        self.held.insert(home);
    }

    /// The batch that an act belongs to, unless that is full: then it comes after it.
    fn room<'a>(&mut self, due: &Due<K>, batches: &'a mut Batches<K>) -> Option<&'a mut Vec<Due<K>>> {
        let site = K::site(&due.subject);
        self.sites.take(&site, K::home(&due.subject));
        Some(batches.at(site)).filter(|batch| batch.len() < K::TOGETHER.max(1))
    }

    /// What was taken up is not begun after all.
    pub fn put_back(&mut self, batch: &Batch<K>, now: Timestamp) {
        self.dirty.extend(self.sites.end(&batch.site, now));
    }

    /// It would have been done; it is not told again.
    pub fn rehearse(&mut self, batch: &Batch<K>, now: Timestamp) {
        self.put_back(batch, now);
        for due in &batch.due {
            self.memories.entry(K::home(&due.subject)).or_default().rehearse(due);
        }
    }

    /// What was taken up at a site is begun: after it there is no other before the site has rested.
    pub fn begin(&mut self, site: &K::Site) {
        self.sites.begin(site);
    }

    /// What was begun at a site has ended. What went well and is asked for again at once did not
    /// help: then there is a pause, as there is after a failure.
    pub fn end(&mut self, site: &K::Site, ended: &[Ended<K>], now: Timestamp) {
        for Ended { due, outcome } in ended {
            self.memories.entry(K::home(&due.subject)).or_default().tried(due, outcome.is_ok(), now);
        }
        self.dirty.extend(self.sites.end(site, now));
    }
}

struct Judging<'a, K: Keep> {
    world: &'a K::World,
    limits: &'a Limits,
    now: Timestamp,
    due: Vec<Due<K>>,
    again: Vec<Due<K>>,
    refused: Vec<Refusal>,
}

/// In the order in which they were begun.
struct Batches<K: Keep> {
    all: Vec<Batch<K>>,
    places: BTreeMap<K::Site, usize>,
}

impl<K: Keep> Default for Batches<K> {
    fn default() -> Self {
        Self { all: Vec::new(), places: BTreeMap::new() }
    }
}

impl<K: Keep> Batches<K> {
    fn at(&mut self, site: K::Site) -> &mut Vec<Due<K>> {
        let place = *self.places.entry(site.clone()).or_insert(self.all.len());
        if place == self.all.len() {
            self.all.push(Batch { site, due: Vec::new() });
        }
        &mut self.all[place].due
    }
}

fn refusal<K: Keep>(subject: &K::Subject, verdict: Verdict<K::Action>) -> Refusal {
    let name = K::name(subject);
    Refusal {
        kind: name.kind,
        namespace: name.namespace.map(str::to_owned),
        name: name.name.to_owned(),
        uid: name.uid.to_owned(),
        rule: verdict.rule,
        because: verdict.because,
        on: K::stands_on(subject),
    }
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
