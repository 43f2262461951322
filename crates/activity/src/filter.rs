//! Decides whether an audit event counts as activity, by user, user agent, verb and resource.
//!
//! The `ignore` lists name what does not count; the `include` lists name exceptions that count all the same. Of
//! [GitOps accounts](GitOpsAccounts) only writes count.

mod gitops;

use caretaker_core::Timestamp;
use wildmatch::WildMatch;

use crate::event::{AuditEvent, ObjectRef, UserInfo};
pub use gitops::GitOpsAccounts;

/// Why an audit event does not count as activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IgnoreReason {
    /// The request is not in a namespace.
    NoNamespace,
    /// The API server has only received the request: the impersonated user and the response are not known yet.
    RequestReceived,
    /// The same event was received before.
    Duplicate,
    /// The response is an error.
    Failed,
    /// The timestamp is missing or invalid.
    BadTimestamp,
    /// The user or one of its groups is on the `ignore` list.
    IgnoredUser,
    /// The user is a service account of the namespace itself, with the token of a pod.
    OwnServiceAccount,
    /// A read or a dry run of a GitOps account.
    GitOps,
    /// The user agent is on the `ignore` list.
    IgnoredAgent,
    /// The verb is on the `ignore` list.
    Verb,
    /// The resource is on the `ignore` list.
    Resource,
    /// The client repeats the same read at a regular interval, for longer than the poll grace period.
    PeriodicPoll,
    /// The end of a watch, which counted when it started, or of a session that lasted longer than sessions count.
    WatchClosed,
}

impl IgnoreReason {
    /// Every reason.
    pub const ALL: [Self; 13] = [
        Self::NoNamespace,
        Self::RequestReceived,
        Self::Duplicate,
        Self::Failed,
        Self::BadTimestamp,
        Self::IgnoredUser,
        Self::OwnServiceAccount,
        Self::GitOps,
        Self::IgnoredAgent,
        Self::Verb,
        Self::Resource,
        Self::PeriodicPoll,
        Self::WatchClosed,
    ];

    /// Returns the name of the reason in metrics and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoNamespace => "no-namespace",
            Self::RequestReceived => "request-received",
            Self::Duplicate => "duplicate",
            Self::Failed => "failed",
            Self::BadTimestamp => "bad-timestamp",
            Self::IgnoredUser => "ignored-user",
            Self::OwnServiceAccount => "own-serviceaccount",
            Self::GitOps => "gitops",
            Self::IgnoredAgent => "ignored-agent",
            Self::Verb => "verb",
            Self::Resource => "resource",
            Self::PeriodicPoll => "periodic-poll",
            Self::WatchClosed => "watch-closed",
        }
    }

    /// Returns a description for users, as part of a sentence.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::NoNamespace => "not in a namespace",
            Self::RequestReceived => "only received, not answered yet",
            Self::Duplicate => "received before",
            Self::Failed => "answered with an error",
            Self::BadTimestamp => "without a valid timestamp",
            Self::IgnoredUser => "the user or one of its groups is on the ignore list",
            Self::OwnServiceAccount => "a pod with a service account of the namespace itself",
            Self::GitOps => "a read or a dry run of a GitOps account",
            Self::IgnoredAgent => "the user agent is on the ignore list",
            Self::Verb => "the verb is on the ignore list",
            Self::Resource => "the resource is on the ignore list",
            Self::PeriodicPoll => "the same read at a regular interval: an automated poll",
            Self::WatchClosed => "the end of a watch, which counts when it starts",
        }
    }

    /// Returns the reason with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// Lists of patterns. `*` matches any text and `?` any one character.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PatternLists {
    /// User names.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// User agents.
    pub agents: Vec<String>,
    /// Verbs.
    pub verbs: Vec<String>,
    /// Resources: `pods`, `pods/log`, `*/status`, `leases.coordination.k8s.io`.
    pub resources: Vec<String>,
}

impl PatternLists {
    /// Returns what is ignored in every cluster: the control plane, nodes, common controllers and Caretaker itself.
    #[must_use]
    pub fn ignored_by_default() -> Self {
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

    /// Returns these lists with the patterns of `more` added.
    #[must_use]
    pub fn extended_with(mut self, more: &Self) -> Self {
        self.users.extend(more.users.iter().cloned());
        self.groups.extend(more.groups.iter().cloned());
        self.agents.extend(more.agents.iter().cloned());
        self.verbs.extend(more.verbs.iter().cloned());
        self.resources.extend(more.resources.iter().cloned());
        self
    }
}

/// A compiled pattern. Most patterns are a plain text or a prefix and need no glob search.
#[derive(Debug, Clone)]
enum Pattern {
    Exact(String),
    Prefix(String),
    Glob(WildMatch),
}

impl Pattern {
    fn new(text: &str) -> Self {
        let has_wildcard = |text: &str| text.contains(['*', '?']);
        match text.strip_suffix('*') {
            _ if !has_wildcard(text) => Self::Exact(text.to_owned()),
            Some(prefix) if !has_wildcard(prefix) => Self::Prefix(prefix.to_owned()),
            _ => Self::Glob(WildMatch::new(text)),
        }
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
            Self::Glob(glob) => glob.matches(text),
        }
    }
}

fn any_matches(patterns: &[Pattern], text: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(text))
}

/// [`PatternLists`] in compiled form.
#[derive(Debug, Clone)]
struct CompiledLists {
    users: Vec<Pattern>,
    groups: Vec<Pattern>,
    agents: Vec<Pattern>,
    verbs: Vec<Pattern>,
    /// Patterns without a slash. They match the resource and all of its subresources.
    resources: Vec<Pattern>,
    /// Patterns with a slash, split into resource and subresource.
    subresources: Vec<(Pattern, Pattern)>,
}

impl CompiledLists {
    fn new(lists: &PatternLists) -> Self {
        let compile = |list: &[String]| list.iter().map(|text| Pattern::new(text)).collect();
        let (with_slash, without): (Vec<&String>, Vec<&String>) =
            lists.resources.iter().partition(|text| text.contains('/'));
        Self {
            users: compile(&lists.users),
            groups: compile(&lists.groups),
            agents: compile(&lists.agents),
            verbs: compile(&lists.verbs),
            resources: without.into_iter().map(|text| Pattern::new(text)).collect(),
            subresources: with_slash
                .into_iter()
                .filter_map(|text| text.split_once('/'))
                .map(|(resource, subresource)| (Pattern::new(resource), Pattern::new(subresource)))
                .collect(),
        }
    }

    fn matches_user(&self, user: &UserInfo<'_>) -> bool {
        any_matches(&self.users, &user.username) || user.groups.iter().any(|group| any_matches(&self.groups, &group.0))
    }

    fn matches_resource(&self, object: &ObjectRef<'_>) -> bool {
        let matches = |pattern: &Pattern| {
            pattern.matches(&object.resource)
                || (!object.api_group.is_empty()
                    && matches!(pattern, Pattern::Exact(text) if is_qualified_name(text, object))
                    || matches!(pattern, Pattern::Glob(_) | Pattern::Prefix(_))
                        && pattern.matches(&format!("{}.{}", object.resource, object.api_group)))
        };
        if self.resources.iter().any(matches) {
            return true;
        }
        !object.subresource.is_empty()
            && self
                .subresources
                .iter()
                .any(|(resource, subresource)| matches(resource) && subresource.matches(&object.subresource))
    }
}

/// Returns true if the text is the object's resource with its group, such as `leases.coordination.k8s.io`. Does not
/// allocate.
fn is_qualified_name(text: &str, object: &ObjectRef<'_>) -> bool {
    text.strip_prefix(object.resource.as_ref())
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|group| group == object.api_group)
}

/// Decides which events are ignored, by user, user agent, verb and resource.
#[derive(Debug, Clone)]
pub struct Filter {
    ignore: CompiledLists,
    include: CompiledLists,
    gitops: CompiledLists,
    /// True if the writes of GitOps accounts count.
    counts_gitops_writes: bool,
}

/// Subresources that keep a connection open while a user works through it.
const SESSION_SUBRESOURCES: [&str; 3] = ["exec", "attach", "portforward"];

impl Filter {
    /// Ignores what `ignore` matches, except what `include` matches. The GitOps accounts are the built-in ones.
    #[must_use]
    pub fn new(ignore: &PatternLists, include: &PatternLists) -> Self {
        let gitops = CompiledLists::new(&PatternLists::default());
        let filter = Self {
            ignore: CompiledLists::new(ignore),
            include: CompiledLists::new(include),
            gitops,
            counts_gitops_writes: true,
        };
        filter.with_gitops(&GitOpsAccounts::default())
    }

    /// Returns the filter with other GitOps accounts.
    #[must_use]
    pub fn with_gitops(mut self, accounts: &GitOpsAccounts) -> Self {
        let (users, groups) = (accounts.users.clone(), accounts.groups.clone());
        self.gitops = CompiledLists::new(&PatternLists { users, groups, ..PatternLists::default() });
        self.counts_gitops_writes = accounts.writes_count;
        self
    }

    /// Returns why an event does not count as activity; `None` if it counts. `object` is the event's object and must
    /// have a namespace.
    #[must_use]
    pub fn ignore_reason(&self, event: &AuditEvent<'_>, object: &ObjectRef<'_>) -> Option<IgnoreReason> {
        match event.stage.as_ref() {
            "ResponseStarted" | "ResponseComplete" => {}
            "RequestReceived" => return Some(IgnoreReason::RequestReceived),
            _ => return Some(IgnoreReason::Failed),
        }
        let code = event.response_status.unwrap_or_default().code;
        if !((200..300).contains(&code) || code == 101) {
            return Some(IgnoreReason::Failed);
        }
        let actor = event.actor();
        let name = actor.username.as_ref();
        if name.is_empty() || self.ignore.matches_user(actor) && !self.include.matches_user(actor) {
            return Some(IgnoreReason::IgnoredUser);
        }
        if self.is_ignored_gitops(event) {
            return Some(IgnoreReason::GitOps);
        }
        let is_own_service_account = || {
            name.strip_prefix("system:serviceaccount:")
                .and_then(|rest| rest.split_once(':'))
                .is_some_and(|(namespace, _)| namespace == object.namespace)
        };
        // Without a pod it is a person or a CI system with a kubeconfig of that account.
        if actor.is_bound_to_a_pod() && is_own_service_account() && !any_matches(&self.include.users, name) {
            return Some(IgnoreReason::OwnServiceAccount);
        }
        if any_matches(&self.ignore.agents, &event.user_agent) && !any_matches(&self.include.agents, &event.user_agent)
        {
            return Some(IgnoreReason::IgnoredAgent);
        }
        if any_matches(&self.ignore.verbs, &event.verb) && !any_matches(&self.include.verbs, &event.verb) {
            return Some(IgnoreReason::Verb);
        }
        (self.ignore.matches_resource(object) && !self.include.matches_resource(object))
            .then_some(IgnoreReason::Resource)
    }

    /// Returns true for a request of a GitOps account that does not count: a read, a dry run, a write of an object of the
    /// tool itself, or any write if writes do not count. Flux impersonates an account of the namespace where it is told to, so the authenticated user matters
    /// as well.
    fn is_ignored_gitops(&self, event: &AuditEvent<'_>) -> bool {
        let users = [Some(&event.user), event.impersonated_user.as_ref()];
        let matches = |lists: &CompiledLists| users.into_iter().flatten().any(|user| lists.matches_user(user));
        let is_counted_write = || {
            let is_own = event.object_ref.as_ref().is_some_and(is_gitops_object);
            self.counts_gitops_writes && !is_read_verb(&event.verb) && !event.is_dry_run() && !is_own
        };
        matches(&self.gitops) && !matches(&self.include) && !is_counted_write()
    }
}

/// Returns true for an object of the GitOps tools themselves: Argo CD writes an Application at each refresh, whether
/// anything is deployed or not. A Rollout is what is deployed.
fn is_gitops_object(object: &ObjectRef<'_>) -> bool {
    let group = object.api_group.as_ref();
    group.ends_with("fluxcd.io") || (group == "argoproj.io" && object.resource != "rollouts")
}

/// Returns true for exec, attach and port-forward: the namespace is in use until they end.
#[must_use]
pub fn is_session(object: &ObjectRef<'_>) -> bool {
    SESSION_SUBRESOURCES.contains(&object.subresource.as_ref())
}

/// Returns true for `get`, `list` and `watch`.
#[must_use]
pub fn is_read_verb(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "watch")
}

/// Returns the time that an event counts for; `None` if its timestamp is missing or invalid. A time after `now` counts as
/// `now`: the clock of the API server may be ahead of this one, and the namespace is in use all the same.
#[must_use]
pub fn plausible_time(at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    at.map(|at| at.min(now))
}
