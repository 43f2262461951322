//! Subjects and expectations, in the words of the specification.

#![allow(dead_code, reason = "each test file uses its part")]

use caretaker_core::{Action as _, Parsed, SignedDuration, Timestamp, Verdict, duration, time};
use caretaker_namespaces::act::Action;
use caretaker_namespaces::api::{self, Activity, Place, State};
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::subject::{Fallback, Kind, Policy, Subject, World};
use caretaker_namespaces::workload::{Form, Workload, WorkloadKind};

/// The moment at which everything is judged.
pub fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

pub fn span(text: &str) -> SignedDuration {
    duration::parse(text).unwrap()
}

/// So long ago.
pub fn past(text: &str) -> Timestamp {
    now() - span(text)
}

/// In so long.
pub fn future(text: &str) -> Timestamp {
    now() + span(text)
}

/// A namespace without any label, used just now.
pub fn awake() -> Subject {
    Subject {
        name: "shop".to_owned(),
        state: Parsed::Valid(State::Normal),
        activity: Parsed::Valid(Activity { at: now(), by: "ListPods".into(), user: "ann".into(), uid: String::new() }),
        ..Subject::default()
    }
}

/// The same, asleep for so long, silent for longer.
pub fn asleep(since: &str) -> Subject {
    let mut subject = awake().idle("1000d").in_state(State::Sleep);
    subject.asleep_since = Parsed::Valid(past(since));
    subject
}

/// Says more about a subject.
pub trait Told: Sized {
    fn change(self, change: impl FnOnce(&mut Subject)) -> Self;

    fn sleep_after(self, text: &str) -> Self {
        self.change(|s| {
            s.sleep_after = api::read_duration(Place::Label(api::SLEEP_AFTER), Some(text));
            s.labelled = true;
        })
    }
    fn delete_after(self, text: &str) -> Self {
        self.change(|s| {
            s.delete_after = api::read_duration(Place::Label(api::DELETE_AFTER), Some(text));
            s.labelled = true;
        })
    }
    fn idle(self, text: &str) -> Self {
        self.used_at(past(text))
    }
    fn used_at(self, at: Timestamp) -> Self {
        self.change(|s| {
            s.activity = Parsed::Valid(Activity { at, by: "ListPods".into(), user: "ann".into(), uid: String::new() });
        })
    }
    fn activity(self, text: &str) -> Self {
        self.change(|s| s.activity = api::read_activity(Some(text)))
    }
    fn never_seen(self) -> Self {
        self.change(|s| s.activity = Parsed::Missing)
    }
    fn in_state(self, state: State) -> Self {
        self.change(|s| s.state = Parsed::Valid(state))
    }
    fn asleep_since(self, at: Timestamp) -> Self {
        self.change(|s| s.asleep_since = Parsed::Valid(at))
    }
    /// Announced so long ago, for a date.
    fn announced(self, ago: &str, at: Timestamp) -> Self {
        self.change(|s| {
            s.announced_at = Parsed::Valid(past(ago));
            s.delete_at = Parsed::Valid(at);
        })
    }
    fn by_hand_until(self, at: Timestamp) -> Self {
        self.change(|s| s.hand_sleep_until = Parsed::Valid(at))
    }
    fn kept_awake_until(self, at: Timestamp) -> Self {
        self.change(|s| s.hand_wake_until = Parsed::Valid(at))
    }
    /// Somebody is in it since so long ago.
    fn in_use(self, ago: &str) -> Self {
        self.change(|s| s.sessions = Parsed::Valid([("x1".to_owned(), past(ago))].into()))
    }
    fn created(self, ago: &str) -> Self {
        self.change(|s| s.created = Some(past(ago)))
    }
    fn by_fallback(self) -> Self {
        self.change(|s| s.by_fallback = true)
    }
    fn claims(self, count: usize) -> Self {
        self.change(|s| s.claims = count)
    }
    fn called(self, name: &str) -> Self {
        self.change(|s| name.clone_into(&mut s.name))
    }
    fn kind(self, kind: Kind) -> Self {
        self.change(|s| {
            s.kind = kind;
            s.namespace = (kind != Kind::Namespace).then(|| "home".to_owned());
        })
    }
    fn with(self, workload: Workload) -> Self {
        self.change(|s| s.workloads.push(workload))
    }
}

impl Told for Subject {
    fn change(mut self, change: impl FnOnce(&mut Subject)) -> Self {
        change(&mut self);
        self
    }
}

pub fn scaled(replicas: i32, record: Option<i32>) -> Workload {
    workload(WorkloadKind::Deployment, Form::Scaled { replicas, record: record.into(), ours: record.is_some() })
}

pub fn workload(kind: WorkloadKind, form: Form) -> Workload {
    let (uid, resource_version) = (String::new(), String::new());
    Workload { kind, name: "web".to_owned(), uid, resource_version, excluded: false, own_sleep: false, form }
}

pub fn excluded(mut workload: Workload) -> Workload {
    workload.excluded = true;
    workload
}

/// The world without anything special.
pub fn world() -> World {
    World::default()
}

/// The world in which every namespace gets a label.
pub fn with_fallback(delete_claims: bool) -> World {
    let fallback = Some(Fallback { sleep_after: Fallback::SLEEP_AFTER, delete_claims });
    World { policy: Policy { fallback, ..Policy::default() }, ..World::default() }
}

pub fn judge(subject: &Subject, world: &World) -> Verdict<Action> {
    RULES.judge(subject, world, now())
}

/// A verdict in short: `rule: next action @when`, the time relative to now.
pub fn short(verdict: &Verdict<Action>) -> String {
    let action = verdict.next.action().map(|a| format!(" {}", a.name())).unwrap_or_default();
    let when = verdict.next.deadline().map(|at| {
        let far = time::duration_between(now(), at);
        format!(" @{}{}", if far.is_negative() { "" } else { "+" }, duration::format(far))
    });
    format!("{}: {}{action}{}", verdict.rule, verdict.next.name(), when.unwrap_or_default())
}

pub fn verdict(subject: &Subject) -> String {
    short(&judge(subject, &world()))
}
