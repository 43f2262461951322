//! Subjects and expectations, in the words of the specification.

use std::sync::Arc;

use caretaker_core::{Action as _, Parsed, RuleSet as _, SignedDuration, Timestamp, VerdictOf, duration, time};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api::{self, Activity, Field, State};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::observe::requests::PodRequests;
use caretaker_namespaces::subject::{Defaults, Kind, Policy, Subject, World};
use caretaker_namespaces::workload::{ClaimPolicy, Workload, WorkloadKind, WorkloadState};

/// The time at which everything is judged.
pub fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

pub fn span(text: &str) -> SignedDuration {
    duration::parse(text).unwrap()
}

/// This long ago.
pub fn past(text: &str) -> Timestamp {
    now() - span(text)
}

/// In this time.
pub fn future(text: &str) -> Timestamp {
    now() + span(text)
}

fn list_pods(at: Timestamp) -> Parsed<Activity> {
    Parsed::Valid(Activity { by: "ListPods".into(), user: "ann".into(), ..Activity::reported(at) })
}

/// A namespace without any label, used just now.
pub fn awake() -> Subject {
    Subject {
        name: "shop".to_owned(),
        state: Parsed::Valid(State::Normal),
        activity: list_pods(now()),
        ..Subject::default()
    }
}

/// The same, asleep for this long, idle for longer.
pub fn asleep(since: &str) -> Subject {
    let mut subject = awake().idle("1000d").in_state(State::Sleep);
    subject.asleep_since = Parsed::Valid(past(since));
    subject
}

/// Changes one fact of a subject.
pub trait SubjectBuilder: Sized {
    fn change(self, change: impl FnOnce(&mut Subject)) -> Self;

    fn sleep_after(self, text: &str) -> Self {
        self.change(|s| {
            s.sleep_after = api::read_duration(Field::Label(api::SLEEP_AFTER), Some(text));
            s.labelled = true;
        })
    }
    fn delete_after(self, text: &str) -> Self {
        self.change(|s| {
            s.delete_after = api::read_duration(Field::Label(api::DELETE_AFTER), Some(text));
            s.labelled = true;
        })
    }
    fn idle(self, text: &str) -> Self {
        self.used_at(past(text))
    }
    fn used_at(self, at: Timestamp) -> Self {
        self.change(|s| {
            s.activity = list_pods(at);
            s.last_activity = Some(at).filter(|_| s.kind == Kind::Deployment).into();
        })
    }
    /// The label `last-activity` of a Deployment has this time.
    fn last_activity(self, at: Option<Timestamp>) -> Self {
        self.change(|s| s.last_activity = at.into())
    }
    fn activity(self, text: &str) -> Self {
        self.change(|s| s.activity = api::read_activity(Some(text)))
    }
    fn never_seen(self) -> Self {
        self.change(|s| s.activity = Parsed::Missing)
    }
    /// It was used, and that is not written to it yet.
    fn activity_pending(self) -> Self {
        self.change(|s| s.activity_pending = true)
    }
    fn in_state(self, state: State) -> Self {
        self.change(|s| s.state = Parsed::Valid(state))
    }
    fn asleep_since(self, at: Timestamp) -> Self {
        self.change(|s| s.asleep_since = Parsed::Valid(at))
    }
    /// Announced this long ago, for a date.
    fn announced(self, ago: &str, at: Timestamp) -> Self {
        self.change(|s| {
            s.announced_at = Parsed::Valid(past(ago));
            s.delete_at = Parsed::Valid(at);
        })
    }
    fn ordered_asleep_until(self, at: Timestamp) -> Self {
        self.change(|s| s.sleep_until = Parsed::Valid(at))
    }
    fn ordered_awake_until(self, at: Timestamp) -> Self {
        self.change(|s| s.awake_until = Parsed::Valid(at))
    }
    /// A session is open since this long ago.
    fn in_use(self, ago: &str) -> Self {
        self.change(|s| s.sessions = Parsed::Valid([("x1".to_owned(), past(ago))].into()))
    }
    fn created(self, ago: &str) -> Self {
        self.change(|s| s.created = Some(past(ago)))
    }
    fn by_defaults(self) -> Self {
        self.change(|s| s.default_policy = true)
    }
    fn pvcs(self, count: usize) -> Self {
        self.change(|s| s.pvc_count = count)
    }
    fn called(self, name: &str) -> Self {
        self.change(|s| name.clone_into(&mut s.name))
    }
    fn kind(self, kind: Kind) -> Self {
        self.change(|s| {
            s.kind = kind;
            s.namespace = (kind != Kind::Namespace).then(|| "home".to_owned());
            let at = s.activity.get().map(|activity| activity.at);
            s.last_activity = at.filter(|_| kind == Kind::Deployment).into();
        })
    }
    fn with(self, workload: Workload) -> Self {
        self.change(|s| s.workloads.push(workload))
    }
}

impl SubjectBuilder for Subject {
    fn change(mut self, change: impl FnOnce(&mut Subject)) -> Self {
        change(&mut self);
        self
    }
}

pub fn scaled(replicas: i32, recorded: Option<i32>) -> Workload {
    let by_caretaker = recorded.is_some();
    workload(
        WorkloadKind::Deployment,
        WorkloadState::Scaled { replicas, recorded: recorded.into(), by_caretaker, claims: ClaimPolicy::Retain },
    )
}

pub fn workload(kind: WorkloadKind, state: WorkloadState) -> Workload {
    let (uid, resource_version) = (String::new(), String::new());
    Workload {
        kind,
        name: "web".to_owned(),
        uid,
        resource_version,
        excluded: false,
        own_sleep: false,
        state,
        unlabelled: None,
        requests: PodRequests::default(),
    }
}

pub fn excluded(mut workload: Workload) -> Workload {
    workload.excluded = true;
    workload
}

/// The world without anything special: the use of every namespace is recorded, and another program reports that of other
/// objects.
pub fn world() -> World {
    with_policy(Policy::default())
}

pub fn with_policy(policy: Policy) -> World {
    let policy = Policy { records_activity: true, proves_activity: true, ..policy };
    World { policy: Arc::new(policy), last_report: Some(now()), ..World::default() }
}

/// The world in which every namespace gets a label.
pub fn with_defaults(delete_with_pvcs: bool) -> World {
    let defaults = Some(Defaults { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs });
    with_policy(Policy { defaults, ..Policy::default() })
}

pub fn judge(subject: &Subject, world: &World) -> VerdictOf<Namespaces> {
    Rule::judge(subject, world, now())
}

/// A verdict in short: `rule: next action @when`, the time relative to now.
pub fn short(verdict: &VerdictOf<Namespaces>) -> String {
    let action = verdict.next.action().map(|a| format!(" {}", a.name())).unwrap_or_default();
    let when = verdict.next.deadline().map(|at| {
        let distance = time::duration_between(now(), at);
        format!(" @{}{}", if distance.is_negative() { "" } else { "+" }, duration::format(distance))
    });
    format!("{}: {}{action}{}", verdict.rule.name(), verdict.next.name(), when.unwrap_or_default())
}

pub fn verdict(subject: &Subject) -> String {
    short(&judge(subject, &world()))
}
