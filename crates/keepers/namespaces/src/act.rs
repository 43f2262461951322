//! What can be done, as data: an action is a list of idempotent steps, each one write.
//!
//! [`after`] says how a subject looks once a step is done. A process may die between any two steps;
//! what it leaves behind is judged like anything else.

pub mod carry_out;
pub mod patch;

use std::fmt;

use caretaker_core::{Parsed, SignedDuration, Timestamp, duration, time};

use crate::api::{self, Activity, State};
use crate::judge::Clock;
use crate::subject::{Subject, World};
use crate::workload::{Form, Workload, WorkloadKind};

/// What to do to a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Write something down on it.
    Label(Note),
    /// Say that it will be deleted.
    Announce,
    /// Lay its workloads down.
    Sleep(Sleep),
    /// Raise its workloads.
    Wake {
        /// The clock starts anew, under this name: nobody's activity woke it.
        restart: Option<&'static str>,
    },
    /// Delete it.
    Delete,
}

/// What puts it to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// Its silence.
    Idle,
    /// Its silence did, and the sleep was cut short.
    Unfinished,
    /// A person. Such a sleep leads to no deletion, so nobody notes since when it lasts.
    ByHand,
}

/// What is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// It is seen for the first time: its clock starts.
    FirstSeen,
    /// The fallback's label, and its clock starts.
    Fallback(SignedDuration),
    /// It is found asleep, nobody knows since when: since now.
    AsleepSince,
    /// Its deletion is called off.
    Withdraw,
    /// Its deletion is called off, and its silence and its sleep count from now.
    Restart,
    /// It sleeps by hand: what would lead to its deletion is taken off.
    ByHand,
    /// A sleep by hand is over, and it is awake already: that is taken off.
    HandOver,
}

impl caretaker_core::Action for Action {
    fn name(&self) -> &'static str {
        match self {
            Self::Label(_) => "label",
            Self::Announce => "announce",
            Self::Sleep { .. } => "sleep",
            Self::Wake { .. } => "wake",
            Self::Delete => "delete",
        }
    }

    fn guarded(&self) -> bool {
        // What was begun was admitted before, and to leave it half done helps nobody; what a person
        // orders is no accident.
        matches!(self, Self::Sleep(Sleep::Idle) | Self::Delete)
    }
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// On the subject's own labels and annotations.
    Mark(Mark),
    /// On one workload.
    Turn {
        /// What it is.
        kind: WorkloadKind,
        /// Its name.
        name: String,
        /// How it was.
        from: Form,
        /// How it will be.
        to: Form,
    },
    /// The end of the subject.
    Delete,
}

/// Changes to labels and annotations, in one patch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mark {
    /// The state label.
    pub state: Option<State>,
    /// The label `sleep-after`, given by the fallback.
    pub sleep_after: Option<SignedDuration>,
    /// The activity.
    pub activity: Option<Activity>,
    /// Times to set, by annotation.
    pub set: Vec<(&'static str, Timestamp)>,
    /// Annotations to remove.
    pub clear: Vec<&'static str>,
    /// The note that a person ordered its sleep: made, or removed.
    pub by_hand: Option<bool>,
}

const ANNOUNCEMENT: [&str; 2] = [api::ANNOUNCED_AT, api::DELETE_AT];
const SLEPT: [&str; 3] = [api::ASLEEP_SINCE, api::ANNOUNCED_AT, api::DELETE_AT];

/// The steps of an action on a subject at a time.
#[must_use]
pub fn steps(action: &Action, subject: &Subject, world: &World, now: Timestamp) -> Vec<Step> {
    match action {
        Action::Label(note) => vec![Step::Mark(note_down(*note, subject, now))],
        Action::Announce => vec![Step::Mark(announcement(subject, world, now))],
        Action::Sleep(sleep) => {
            let mut steps = Vec::with_capacity(subject.workloads.len() + 2);
            if subject.state() != State::Sleeping {
                steps.push(Step::Mark(Mark { state: Some(State::Sleeping), ..Mark::default() }));
            }
            steps.extend(turns(subject, Workload::laid_down));
            let noted = *sleep != Sleep::ByHand;
            let set = if noted { vec![(api::ASLEEP_SINCE, now)] } else { Vec::new() };
            let mut clear = if noted { Vec::new() } else { present(subject, &SLEPT) };
            clear.extend(present(subject, &[api::HAND_WAKE_UNTIL]));
            let by_hand = (!noted || subject.slept_by_hand).then_some(!noted);
            steps.push(Step::Mark(Mark { state: Some(State::Sleep), set, clear, by_hand, ..Mark::default() }));
            steps
        }
        Action::Wake { restart } => {
            let mut steps = turns(subject, Workload::raised);
            let activity = restart.map(|by| Activity::noted(now, by));
            let mut clear = present(subject, &SLEPT);
            clear.extend(present(subject, &[api::HAND_SLEEP_UNTIL]));
            let by_hand = subject.slept_by_hand.then_some(false);
            steps.push(Step::Mark(Mark { state: Some(State::Normal), activity, clear, by_hand, ..Mark::default() }));
            steps
        }
        Action::Delete => {
            let mut steps = Vec::with_capacity(2);
            if subject.state() != State::Deleting {
                steps.push(Step::Mark(Mark { state: Some(State::Deleting), ..Mark::default() }));
            }
            steps.push(Step::Delete);
            steps
        }
    }
}

fn turns(subject: &Subject, turn: impl Fn(&Workload) -> Option<Form>) -> Vec<Step> {
    let step =
        |w: &Workload| Some(Step::Turn { kind: w.kind, name: w.name.clone(), from: w.form.clone(), to: turn(w)? });
    subject.workloads.iter().filter_map(step).collect()
}

fn present(subject: &Subject, keys: &[&'static str]) -> Vec<&'static str> {
    keys.iter().copied().filter(|key| moment(subject, key).is_set()).collect()
}

fn moment<'a>(subject: &'a Subject, key: &str) -> &'a Parsed<Timestamp> {
    match key {
        api::ASLEEP_SINCE => &subject.asleep_since,
        api::ANNOUNCED_AT => &subject.announced_at,
        api::DELETE_AT => &subject.delete_at,
        api::HAND_WAKE_UNTIL => &subject.hand_wake_until,
        _ => &subject.hand_sleep_until,
    }
}

fn note_down(note: Note, subject: &Subject, now: Timestamp) -> Mark {
    let seen = || Some(Activity::noted(now, Activity::FIRST_SEEN));
    match note {
        Note::FirstSeen => Mark { activity: seen(), ..Mark::default() },
        Note::Fallback(sleep_after) => Mark { sleep_after: Some(sleep_after), activity: seen(), ..Mark::default() },
        Note::AsleepSince => Mark { set: vec![(api::ASLEEP_SINCE, now)], ..Mark::default() },
        Note::Withdraw => {
            let before = if subject.is_asleep() { State::Sleep } else { State::Normal };
            let state = (subject.state() == State::Deleting).then_some(before);
            Mark { state, clear: present(subject, &ANNOUNCEMENT), ..Mark::default() }
        }
        Note::ByHand => Mark {
            state: (subject.state() == State::Deleting).then_some(State::Sleep),
            clear: present(subject, &SLEPT),
            by_hand: Some(true),
            ..Mark::default()
        },
        Note::HandOver => Mark { clear: present(subject, &[api::HAND_SLEEP_UNTIL]), ..Mark::default() },
        // Both clocks from the same moment: activity that is not newer than the sleep wakes nothing.
        Note::Restart => Mark {
            activity: Some(Activity::noted(now, "RunningAgain")),
            state: (subject.state() == State::Deleting).then_some(State::Sleep),
            set: vec![(api::ASLEEP_SINCE, now)],
            clear: present(subject, &ANNOUNCEMENT),
            ..Mark::default()
        },
    }
}

/// An announcement that was made stays made at its time; only the date moves.
fn announcement(subject: &Subject, world: &World, now: Timestamp) -> Mark {
    let clock = Clock::new(subject, world, now);
    let announced = clock.announced().unwrap_or(now);
    let delete_at = clock.deletion_if_announced(announced).unwrap_or(Timestamp::MAX);
    Mark { set: vec![(api::ANNOUNCED_AT, announced), (api::DELETE_AT, delete_at)], ..Mark::default() }
}

/// How a subject looks after a step; `None` if it is gone.
#[must_use]
pub fn after(mut subject: Subject, step: &Step) -> Option<Subject> {
    match step {
        Step::Mark(mark) => {
            if let Some(state) = mark.state {
                subject.state = Parsed::Valid(state);
            }
            if let Some(sleep_after) = mark.sleep_after {
                subject.sleep_after = Parsed::Valid(sleep_after);
                subject.by_fallback = true;
                subject.labelled = true;
            }
            if let Some(activity) = &mark.activity {
                subject.activity = Parsed::Valid(activity.clone());
            }
            if let Some(by_hand) = mark.by_hand {
                subject.slept_by_hand = by_hand;
            }
            for (key, value) in mark
                .set
                .iter()
                .map(|(k, t)| (*k, Parsed::Valid(*t)))
                .chain(mark.clear.iter().map(|k| (*k, Parsed::Missing)))
            {
                match key {
                    api::ASLEEP_SINCE => subject.asleep_since = value,
                    api::ANNOUNCED_AT => subject.announced_at = value,
                    api::DELETE_AT => subject.delete_at = value,
                    api::HAND_WAKE_UNTIL => subject.hand_wake_until = value,
                    _ => subject.hand_sleep_until = value,
                }
            }
        }
        Step::Turn { kind, name, to, .. } => {
            if let Some(workload) = subject.workloads.iter_mut().find(|w| w.kind == *kind && w.name == *name) {
                workload.form = to.clone();
            }
        }
        Step::Delete => return None,
    }
    Some(subject)
}

/// How a subject looks after a whole action; `None` if it is gone.
#[must_use]
pub fn after_all(subject: Subject, action: &Action, world: &World, now: Timestamp) -> Option<Subject> {
    steps(action, &subject, world, now).iter().try_fold(subject, after)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark(mark) => mark.fmt(f),
            Self::Turn { kind, name, from, to } => write!(f, "{kind}/{name}: {from} → {to}"),
            Self::Delete => f.write_str("delete it, if it is still the one that was judged"),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
        let mut words = Vec::new();
        words.extend(self.state.map(|s| format!("state={s}")));
        words.extend(self.sleep_after.map(|d| format!("sleep-after={0}, fallback={0}", duration::format_go(d))));
        words.extend(self.activity.as_ref().map(|a| format!("activity-status={} {}", time::format(a.at), a.by)));
        words.extend(self.set.iter().map(|(key, t)| format!("{}={}", short(key), time::format(*t))));
        words.extend(self.clear.iter().map(|key| format!("no {}", short(key))));
        words.extend(self.by_hand.map(|by_hand| if by_hand { "slept-by-hand" } else { "no slept-by-hand" }.to_owned()));
        write!(f, "write {}", words.join(", "))
    }
}
