//! From what is seen to what is due: plain data, no clock and no wire.
//!
//! A round judges the namespaces in which something has changed or a deadline has passed, and holds
//! what is due against the bounds. One act at a time in a namespace: what is in it is judged again
//! when that is over. What was tried and failed is left alone for a while, longer each time.

mod tries;

use std::collections::{BTreeMap, BTreeSet};

use caretaker_core::admit::{BREAKER_OPEN, Bounds, Groups, Ledger, Opened, PACED, admit};
use caretaker_core::deadlines::Deadlines;
use caretaker_core::{Action as _, Next, Timestamp};
use caretaker_engine::keep::{Index as _, Refusal};
use caretaker_engine::watch::News;

use crate::Namespaces;
use crate::act::Action;
use crate::act::carry_out::Seen;
use crate::api::Activity;
use crate::judge::RULES;
use crate::observe::{Manifest, Observation};
use crate::subject::{Kind, Subject, World};
use tries::Try;

/// An act that may be made.
pub type Due = caretaker_engine::keep::Due<Namespaces>;

/// What a round yields.
#[derive(Debug, Default)]
pub struct Round {
    /// What may be done now.
    pub due: Vec<Due>,
    /// What is to be told.
    pub refused: Vec<Refusal>,
    /// Why the breaker opens, if it does.
    pub opened: Option<Opened>,
}

/// The rule under which a record of a workload is reported that cannot be read.
pub const BROKEN_RECORD: &str = "BrokenRecord";

/// An object, by its kind and name.
type Name = (&'static str, String);

/// How many subjects of a namespace rest, wait, are due, are refused.
type Counts = [i64; 4];
/// Their names.
pub const NEXTS: [&str; 4] = ["rest", "wait", "act", "refuse"];

/// What is known between two rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    seen: Observation,
    /// To be judged at the next round.
    dirty: BTreeSet<String>,
    deadlines: Deadlines<String>,
    standing: BTreeMap<String, Counts>,
    totals: Counts,
    /// Where pace or breaker holds something back.
    held: BTreeSet<String>,
    /// Where an act is under way.
    busy: BTreeSet<String>,
    tries: BTreeMap<(String, Name), Try>,
    told: BTreeMap<String, BTreeMap<Name, String>>,
    /// In a dry run: what was told already, as it does not change.
    rehearsed: BTreeMap<String, BTreeMap<Name, (String, Action)>>,
}

impl Rounds {
    /// Over what was seen at once; everything is judged at the first round.
    #[must_use]
    pub fn of(seen: Observation) -> Self {
        let mut rounds = Self { seen, ..Self::default() };
        rounds.doubt();
        rounds
    }

    /// Takes in what a watch tells of a kind.
    pub fn hear(&mut self, kind: &str, news: &News<Manifest>) {
        match news {
            News::Begins => self.seen.begin(kind),
            News::Is(object) => self.seen.add(kind, object),
            News::Complete => self.seen.complete(kind),
            News::Gone(object) => self.seen.remove(kind, object),
            News::Failed(_) => {}
        }
    }

    /// A namespace was used, which is not written down yet.
    pub fn used(&mut self, home: &str, activity: Activity) {
        self.seen.used(home, activity);
    }

    /// Whether a use is known that was not when an act was judged.
    #[must_use]
    pub fn was_used_since(&self, due: &Due) -> bool {
        self.seen.last_use(due.subject.home()) > due.subject.activity.get().map(|a| a.at)
            && due.subject.kind == Kind::Namespace
    }

    /// What a namespace says about itself.
    #[must_use]
    pub fn namespace(&self, home: &str) -> Option<&Subject> {
        self.seen.namespace(home)
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
        let (seen, busy) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.busy));
        *self = Self { seen, busy, ..Self::default() };
    }

    /// When the next round is due by itself.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        self.deadlines.first()
    }

    /// How many subjects there are by what comes next for them.
    pub fn totals(&self) -> impl Iterator<Item = (&'static str, i64)> {
        NEXTS.into_iter().zip(self.totals)
    }

    /// Judges what has changed or fallen due; everything that is held back as well, if that may have
    /// changed: what is due longest goes first. Notes in the ledger what may be done.
    pub fn round(&mut self, world: &World, bounds: &Bounds, ledger: &mut Ledger, anew: bool, now: Timestamp) -> Round {
        let mut homes = std::mem::take(&mut self.dirty);
        homes.extend(self.seen.take_touched());
        homes.extend(self.deadlines.over(now));
        let mut judged = Judging { world, bounds, now, due: Vec::new(), again: Vec::new(), refused: Vec::new() };
        for home in &homes {
            self.judge(home, &mut judged);
        }
        let bounded = |due: &Due| due.action.guarded() || bounds.pace.contains_key(due.action.name());
        if anew || judged.due.iter().any(bounded) {
            for home in std::mem::take(&mut self.held).difference(&homes) {
                self.judge(home, &mut judged);
            }
        }
        let Judging { due, again, refused, .. } = judged;
        let mut verdicts: Vec<_> = due.iter().map(|d| d.verdict.clone()).collect();
        let opened = admit(&mut verdicts, &Groups::default(), self.seen.crowd(), bounds, ledger, now);
        if opened.is_some() {
            ledger.open.clone_from(&opened);
        }
        let mut round = Round { due: Vec::new(), refused, opened };
        // What was admitted before is not admitted twice.
        for due in again {
            if ledger.open.is_some() && due.action.guarded() {
                self.hold(due.subject.home(), None);
                self.count(due.subject.home(), "act", "refuse");
            } else {
                self.take(due, &mut round);
            }
        }
        for (due, verdict) in due.into_iter().zip(verdicts) {
            match verdict.next {
                Next::Wait { until, .. } if verdict.rule == PACED => {
                    self.hold(due.subject.home(), Some(until));
                    self.count(due.subject.home(), "act", "wait");
                }
                _ if verdict.rule == BREAKER_OPEN => {
                    self.hold(due.subject.home(), None);
                    self.count(due.subject.home(), "act", "refuse");
                }
                _ => {
                    let at = due.verdict.next.at().unwrap_or(now);
                    let action = due.action;
                    if self.take(due, &mut round) {
                        ledger.note(&action, at, None, bounds, now);
                    }
                }
            }
        }
        round
    }

    fn judge(&mut self, home: &str, judging: &mut Judging<'_>) {
        if self.busy.contains(home) {
            return;
        }
        let subjects = self.seen.at_home(&home.to_owned());
        let mut counts = Counts::default();
        let mut deadline = None;
        let mut refusals = BTreeMap::new();
        let rehearsed = self.rehearsed.remove(home).unwrap_or_default();
        for subject in subjects {
            let verdict = RULES.judge(&subject, judging.world, judging.now);
            let key = (home.to_owned(), name(&subject));
            if let Some(place) = NEXTS.iter().position(|next| *next == verdict.next.name()) {
                counts[place] += 1;
            }
            let rows = subject.workloads.iter();
            for broken in rows.filter(|_| subject.kind == Kind::Namespace && subject.inactive.is_none()) {
                if let Some(why) = broken.broken() {
                    refusals.insert((broken.kind.name(), broken.name.clone()), why.to_string());
                    let told = (broken.kind.name(), Some(home), broken.name.as_str(), broken.uid.as_str());
                    self.refuse(home, told, BROKEN_RECORD, &why.to_string(), judging);
                }
            }
            match &verdict.next {
                Next::Wait { until, .. } => deadline = earlier(deadline, Some(*until)),
                Next::Refuse { record: None } => {
                    refusals.insert(name(&subject), verdict.because.clone());
                    let told = (
                        subject.kind.name(),
                        subject.namespace.as_deref(),
                        subject.name.as_str(),
                        subject.uid.as_str(),
                    );
                    self.refuse(home, told, verdict.rule, &verdict.because, judging);
                }
                Next::Rest => {}
                Next::Act { .. } | Next::Refuse { record: Some(_) } => {
                    let Some(action) = verdict.next.to_do().copied() else { continue };
                    let due = Due { subject, verdict, action };
                    match rehearsed.get(&key.1) {
                        Some(told) if *told == (due.subject.uid.clone(), action) => {
                            self.rehearsed.entry(home.to_owned()).or_default().insert(key.1, told.clone());
                        }
                        _ => deadline = earlier(deadline, self.weigh(&key, due, judging)),
                    }
                    continue;
                }
            }
            // What failed and is not asked for any more may be asked for anew another day.
            self.tries.remove(&key);
        }
        self.deadlines.set(&home.to_owned(), deadline);
        self.stand(home, counts);
        if refusals.is_empty() {
            self.told.remove(home)
        } else {
            self.told.insert(home.to_owned(), refusals)
        };
    }

    /// Whether something that is due may be done now, must be admitted first, or waits because it was
    /// tried a moment ago; then until when.
    fn weigh(&mut self, key: &(String, Name), due: Due, judging: &mut Judging<'_>) -> Option<Timestamp> {
        let Some(tried) = self.tries.get(key).filter(|tried| tried.is(&due)) else {
            judging.due.push(due);
            return None;
        };
        if tried.not_before > judging.now {
            return Some(tried.not_before);
        }
        let again = tried.is_admitted(judging.bounds, judging.now);
        if again {
            judging.again.push(due);
        } else {
            judging.due.push(due);
        }
        None
    }

    /// Tells of a refusal, unless it was told in the same words before.
    fn refuse(
        &self,
        home: &str,
        (kind, namespace, name, uid): (&'static str, Option<&str>, &str, &str),
        rule: &'static str,
        because: &str,
        judging: &mut Judging<'_>,
    ) {
        let before = self.told.get(home).and_then(|told| told.get(&(kind, name.to_owned())));
        if before.is_none_or(|before| before != because) {
            judging.refused.push(Refusal {
                kind,
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
                uid: uid.to_owned(),
                rule,
                because: because.to_owned(),
            });
        }
    }

    fn stand(&mut self, home: &str, counts: Counts) {
        let before = if counts == Counts::default() {
            self.standing.remove(home)
        } else {
            self.standing.insert(home.to_owned(), counts)
        };
        for (i, total) in self.totals.iter_mut().enumerate() {
            *total += counts[i] - before.map_or(0, |before| before[i]);
        }
    }

    /// One subject of a namespace has something else to come than it was counted for.
    fn count(&mut self, home: &str, from: &str, to: &str) {
        let mut counts = self.standing.get(home).copied().unwrap_or_default();
        for (count, next) in counts.iter_mut().zip(NEXTS) {
            *count += i64::from(next == to) - i64::from(next == from);
        }
        self.stand(home, counts);
    }

    fn hold(&mut self, home: &str, until: Option<Timestamp>) {
        self.held.insert(home.to_owned());
        let home = home.to_owned();
        let known = self.deadlines.of(&home);
        self.deadlines.set(&home, earlier(known, until));
    }

    /// Takes an act up, unless another one is under way in its namespace.
    fn take(&mut self, due: Due, round: &mut Round) -> bool {
        let free = self.busy.insert(due.subject.home().to_owned());
        if free {
            round.due.push(due);
        }
        free
    }

    /// What was taken up is not begun after all.
    pub fn put_back(&mut self, due: &Due) {
        self.busy.remove(due.subject.home());
        self.dirty.insert(due.subject.home().to_owned());
    }

    /// It would have been done; it is not told again.
    pub fn rehearse(&mut self, due: &Due) {
        self.put_back(due);
        let told = self.rehearsed.entry(due.subject.home().to_owned()).or_default();
        told.insert(name(&due.subject), (due.subject.uid.clone(), due.action));
    }

    /// What an act has written or read is known before the watch tells of it.
    pub fn see(&mut self, seen: &Seen) {
        for sight in seen {
            self.seen.see(sight);
        }
    }

    /// It is done. Should it be asked for again at once, it did not help: then there is a pause, too.
    pub fn done(&mut self, due: &Due, now: Timestamp) {
        self.tried(due, true, now);
    }

    /// It is not done; it is tried again after a while.
    pub fn failed(&mut self, due: &Due, now: Timestamp) {
        self.tried(due, false, now);
    }

    fn tried(&mut self, due: &Due, done: bool, now: Timestamp) {
        self.put_back(due);
        let key = (due.subject.home().to_owned(), name(&due.subject));
        let before = self.tries.remove(&key).filter(|tried| tried.done == done && tried.is(due));
        self.tries.insert(key, Try::next(before.as_ref(), due, done, now));
        // What is long over, or gone for good, is not remembered.
        let seen = &self.seen;
        self.tries.retain(|(home, _), tried| seen.knows(home) && !tried.is_over(now));
    }
}

struct Judging<'a> {
    world: &'a World,
    bounds: &'a Bounds,
    now: Timestamp,
    due: Vec<Due>,
    again: Vec<Due>,
    refused: Vec<Refusal>,
}

fn name(subject: &Subject) -> Name {
    (subject.kind.name(), subject.name.clone())
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
