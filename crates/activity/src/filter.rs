//! What counts as use, and what does not.
//!
//! Lists name what never counts; a second set of lists names what counts all the same.

use caretaker_core::{SignedDuration, Timestamp, time};
use wildmatch::WildMatch;

use crate::event::{Event, ObjectRef, User};

/// Why an event does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is of no namespace.
    Elsewhere,
    /// The request has only just come: nobody knows yet who it counts for, and whether it is allowed.
    Early,
    /// It was heard before.
    Twice,
    /// It was answered with an error.
    Failed,
    /// Its time is not there, or lies in the future.
    Untimely,
    /// The user or a group of theirs is on a list.
    Actor,
    /// A service account of the namespace itself.
    Resident,
    /// The program is on a list.
    Agent,
    /// The verb is on a list.
    Verb,
    /// The resource is on a list.
    Resource,
    /// The same read on a steady beat, for so long that it is no person's.
    Beat,
    /// A watch that ends counted when it began.
    Ended,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Elsewhere,
        Self::Early,
        Self::Twice,
        Self::Failed,
        Self::Untimely,
        Self::Actor,
        Self::Resident,
        Self::Agent,
        Self::Verb,
        Self::Resource,
        Self::Beat,
        Self::Ended,
    ];

    /// One word, for metrics and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Elsewhere => "elsewhere",
            Self::Early => "early",
            Self::Twice => "twice",
            Self::Failed => "failed",
            Self::Untimely => "untimely",
            Self::Actor => "actor",
            Self::Resident => "resident",
            Self::Agent => "agent",
            Self::Verb => "verb",
            Self::Resource => "resource",
            Self::Beat => "beat",
            Self::Ended => "ended",
        }
    }

    /// For people.
    #[must_use]
    pub fn says(self) -> &'static str {
        match self {
            Self::Elsewhere => "of no namespace",
            Self::Early => "the request had only just come",
            Self::Twice => "heard before",
            Self::Failed => "answered with an error",
            Self::Untimely => "without a time, or with one in the future",
            Self::Actor => "the user or one of the groups is on the list",
            Self::Resident => "a service account of the namespace itself",
            Self::Agent => "the program is on the list",
            Self::Verb => "the verb is on the list",
            Self::Resource => "the resource is on the list",
            Self::Beat => "the same read on a steady beat: a machine",
            Self::Ended => "a watch counts when it begins",
        }
    }

    /// The reason of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// Lists with `*` and `?`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lists {
    /// User names.
    pub users: Vec<String>,
    /// PopulationGroups.
    pub groups: Vec<String>,
    /// Programs.
    pub agents: Vec<String>,
    /// Verbs.
    pub verbs: Vec<String>,
    /// Resources: `pods`, `pods/log`, `*/status`, `leases.coordination.k8s.io`.
    pub resources: Vec<String>,
}

impl Lists {
    /// What never counts, unless the settings say so.
    #[must_use]
    pub fn never() -> Self {
        let all = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Self {
            users: all(&[
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-scheduler",
                "system:kube-proxy",
                "system:cloud-controller-manager",
            ]),
            groups: all(&[
                "system:nodes",
                "system:serviceaccounts:kube-system",
                "system:serviceaccounts:caretaker-system",
                "system:serviceaccounts:flux-system",
                "system:serviceaccounts:argocd",
                "system:serviceaccounts:argo-cd",
                "system:serviceaccounts:monitoring",
                "system:serviceaccounts:prometheus",
                "system:serviceaccounts:cert-manager",
                "system:serviceaccounts:keda",
                "system:serviceaccounts:gatekeeper-system",
                "system:serviceaccounts:kyverno",
                "system:serviceaccounts:velero",
            ]),
            agents: all(&["caretaker/*", "caretaker-canary/*", "kube-probe/*", "Prometheus/*"]),
            verbs: Vec::new(),
            resources: all(&[
                "leases.coordination.k8s.io",
                "events",
                "events.events.k8s.io",
                "endpoints",
                "endpointslices.discovery.k8s.io",
                "*/status",
            ]),
        }
    }

    /// With more of them.
    #[must_use]
    pub fn and(mut self, more: &Self) -> Self {
        self.users.extend(more.users.iter().cloned());
        self.groups.extend(more.groups.iter().cloned());
        self.agents.extend(more.agents.iter().cloned());
        self.verbs.extend(more.verbs.iter().cloned());
        self.resources.extend(more.resources.iter().cloned());
        self
    }
}

/// Most patterns need no search.
#[derive(Debug, Clone)]
enum Pattern {
    Is(String),
    Begins(String),
    Glob(WildMatch),
}

impl Pattern {
    fn new(text: &str) -> Self {
        let is_wild = |text: &str| text.contains(['*', '?']);
        match text.strip_suffix('*') {
            _ if !is_wild(text) => Self::Is(text.to_owned()),
            Some(begin) if !is_wild(begin) => Self::Begins(begin.to_owned()),
            _ => Self::Glob(WildMatch::new(text)),
        }
    }

    fn fits(&self, text: &str) -> bool {
        match self {
            Self::Is(word) => word == text,
            Self::Begins(begin) => text.starts_with(begin.as_str()),
            Self::Glob(glob) => glob.matches(text),
        }
    }
}

#[derive(Debug, Clone)]
struct Patterns {
    users: Vec<Pattern>,
    groups: Vec<Pattern>,
    agents: Vec<Pattern>,
    verbs: Vec<Pattern>,
    /// Without a slash; then those with one, resource and subresource apart.
    resources: Vec<Pattern>,
    parts: Vec<(Pattern, Pattern)>,
}

impl Patterns {
    fn new(lists: &Lists) -> Self {
        let all = |list: &[String]| list.iter().map(|text| Pattern::new(text)).collect();
        let (parts, whole): (Vec<&String>, Vec<&String>) = lists.resources.iter().partition(|r| r.contains('/'));
        Self {
            users: all(&lists.users),
            groups: all(&lists.groups),
            agents: all(&lists.agents),
            verbs: all(&lists.verbs),
            resources: whole.into_iter().map(|text| Pattern::new(text)).collect(),
            parts: parts
                .into_iter()
                .filter_map(|text| text.split_once('/'))
                .map(|(resource, sub)| (Pattern::new(resource), Pattern::new(sub)))
                .collect(),
        }
    }

    fn resource(&self, object: &ObjectRef<'_>) -> bool {
        let named = |pattern: &Pattern| {
            pattern.fits(&object.resource)
                || (!object.api_group.is_empty() && matches!(pattern, Pattern::Is(text) if is_qualified(text, object))
                    || matches!(pattern, Pattern::Glob(_) | Pattern::Begins(_))
                        && pattern.fits(&format!("{}.{}", object.resource, object.api_group)))
        };
        if self.resources.iter().any(named) {
            return true;
        }
        !object.subresource.is_empty()
            && self.parts.iter().any(|(resource, sub)| named(resource) && sub.fits(&object.subresource))
    }
}

/// `leases.coordination.k8s.io`, without putting it together.
fn is_qualified(text: &str, object: &ObjectRef<'_>) -> bool {
    text.strip_prefix(object.resource.as_ref())
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|group| group == object.api_group)
}

/// Decides what counts, by who, with what and on what.
#[derive(Debug, Clone)]
pub struct Filter {
    ignore: Patterns,
    count: Patterns,
}

/// Clocks of different machines differ; what is this little ahead of ours is not from the future.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// What holds a connection open for a person to work through.
const SESSIONS: [&str; 3] = ["exec", "attach", "portforward"];

impl Filter {
    /// `ignore` never counts, except what is in `count`.
    #[must_use]
    pub fn new(ignore: &Lists, count: &Lists) -> Self {
        Self { ignore: Patterns::new(ignore), count: Patterns::new(count) }
    }

    /// Why an event in a namespace does not count, if it does not.
    #[must_use]
    pub fn ignores(&self, event: &Event<'_>, object: &ObjectRef<'_>) -> Option<Reason> {
        match event.stage.as_ref() {
            "ResponseStarted" | "ResponseComplete" => {}
            "RequestReceived" => return Some(Reason::Early),
            _ => return Some(Reason::Failed),
        }
        let code = event.response_status.unwrap_or_default().code;
        if !((200..300).contains(&code) || code == 101) {
            return Some(Reason::Failed);
        }
        let actor = event.actor();
        let name = actor.username.as_ref();
        if name.is_empty() {
            return Some(Reason::Actor);
        }
        if self.actor(actor) {
            return Some(Reason::Actor);
        }
        let resident = name
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.split_once(':'))
            .is_some_and(|(home, _)| home == object.namespace);
        let wanted = || self.count.users.iter().any(|p| p.fits(name));
        if resident && !wanted() {
            return Some(Reason::Resident);
        }
        let listed = |ignore: &[Pattern], count: &[Pattern], text: &str| {
            ignore.iter().any(|p| p.fits(text)) && !count.iter().any(|p| p.fits(text))
        };
        if listed(&self.ignore.agents, &self.count.agents, &event.user_agent) {
            return Some(Reason::Agent);
        }
        if listed(&self.ignore.verbs, &self.count.verbs, &event.verb) {
            return Some(Reason::Verb);
        }
        (self.ignore.resource(object) && !self.count.resource(object)).then_some(Reason::Resource)
    }

    fn actor(&self, user: &User<'_>) -> bool {
        let on = |lists: &Patterns| {
            lists.users.iter().any(|p| p.fits(&user.username))
                || user.groups.iter().any(|group| lists.groups.iter().any(|p| p.fits(&group.0)))
        };
        on(&self.ignore) && !on(&self.count)
    }
}

/// Whether it lasts as long as somebody works through it.
#[must_use]
pub fn is_session(object: &ObjectRef<'_>) -> bool {
    SESSIONS.contains(&object.subresource.as_ref())
}

/// Whether it only looks.
#[must_use]
pub fn is_read(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "watch")
}

/// A time that may be taken for one: a little ahead is now, far ahead is none.
#[must_use]
pub fn timely(at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    at.filter(|at| *at <= time::saturating_add(now, SKEW)).map(|at| at.min(now))
}
