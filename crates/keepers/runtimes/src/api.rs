//! Names on the wire: kdoctor's resources, the objects of a runtime, and how they are named.

mod agent;
mod crds;
mod settings;
mod templates;

use std::fmt;

use sha2::{Digest, Sha256};

pub use agent::{AgentSpec, Grace};
pub use crds::crds;
pub use settings::KdoctorSettings;
pub use templates::{TemplateError, Templates};

/// The API group of tasks.
pub const GROUP: &str = "kdoctor.io";
/// Its version.
pub const VERSION: &str = "v1beta1";
/// Group and version.
pub const API_VERSION: &str = "kdoctor.io/v1beta1";

/// The ConfigMap with the templates of carriers, pods, Services and Ingresses.
pub const TEMPLATES: &str = "kdoctor-app-config-template";
/// The ConfigMap with kdoctor's settings.
pub const SETTINGS: &str = "kdoctor";
/// The Deployment of kdoctor's own controller.
pub const KDOCTOR_CONTROLLER: &str = "kdoctor-controller";

/// The label by which kdoctor finds the pods of a runtime, unless its settings name another.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";
/// The label with the part that a pod plays.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Its value on the pods of a runtime.
pub const COMPONENT: &str = "kdoctor-agent";
/// The label with the release that kdoctor was installed as.
pub const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";

/// Annotation on a carrier: when its task was first seen finished, if the task itself does not say.
pub const FINISHED_SEEN_AT: &str = "caretaker.dev/finished-seen-at";

/// Everything of a runtime has a name that begins so.
pub const PREFIX: &str = "kdoctor-";
/// The API server accepts no longer label value, and no longer name of a Service.
const MOST_OF_A_LABEL: usize = 63;
/// `-ipv4` or `-ipv6`.
const FAMILY_SUFFIX: usize = 5;
/// Digits of the hash behind a name that was cut.
const HASH: usize = 8;

/// A kind of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskKind {
    /// Whether an application answers.
    AppHttpHealthy,
    /// Whether names are resolved.
    Netdns,
    /// Whether nodes and pods reach each other.
    NetReach,
}

impl TaskKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::AppHttpHealthy, Self::Netdns, Self::NetReach];

    /// The kind as the API writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AppHttpHealthy => "AppHttpHealthy",
            Self::Netdns => "Netdns",
            Self::NetReach => "NetReach",
        }
    }

    /// Its name in paths.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::AppHttpHealthy => "apphttphealthies",
            Self::Netdns => "netdnses",
            Self::NetReach => "netreaches",
        }
    }

    /// Its names in lower case, as people type them. Messages use the first.
    #[must_use]
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::AppHttpHealthy => &["apphttphealthy", "apphttphealthies", "ahh"],
            Self::Netdns => &["netdns", "netdnses"],
            Self::NetReach => &["netreach", "netreaches", "nr"],
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What runs the pods of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CarrierKind {
    /// On every node.
    #[default]
    DaemonSet,
    /// As many as the task says.
    Deployment,
}

impl CarrierKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::DaemonSet, Self::Deployment];

    /// The kind as the API writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DaemonSet => "DaemonSet",
            Self::Deployment => "Deployment",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for CarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family as a Service writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// `ipv4` or `ipv6`, in names and arguments.
    #[must_use]
    pub const fn lower(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }
}

/// The state of a runtime, as a task's status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuntimeStatus {
    /// It is being created.
    Creating,
    /// It is ready: the task may start.
    Created,
    /// It is deleted.
    Deleted,
}

impl RuntimeStatus {
    /// The word in the status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Deleted => "deleted",
        }
    }

    /// The state of this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Creating, Self::Created, Self::Deleted].into_iter().find(|status| status.name() == word)
    }
}

/// The name of a task's carrier, which is the label value of its pods as well: kdoctor's own, as long as the API server
/// accepts it; cut and hashed if it is too long.
#[must_use]
pub fn carrier_name(kind: TaskKind, task: &str) -> String {
    shortened(&format!("{PREFIX}{}-{task}", kind.name().to_lowercase()), MOST_OF_A_LABEL)
}

/// The name of a Service of a task's carrier. Names of Services have no dots.
#[must_use]
pub fn service_name(kind: TaskKind, task: &str, family: Family) -> String {
    let name = format!("{PREFIX}{}-{task}", kind.name().to_lowercase()).replace('.', "-");
    format!("{}-{}", shortened(&name, MOST_OF_A_LABEL - FAMILY_SUFFIX), family.lower())
}

/// The name itself if it is short enough; else its beginning and a hash of all of it.
fn shortened(name: &str, most: usize) -> String {
    if name.len() <= most {
        return name.to_owned();
    }
    let end = (0..most - HASH).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    let digest = Sha256::digest(name.as_bytes());
    let hash = format!("{:02x}{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2], digest[3]);
    format!("{}-{hash}", name[..end].trim_end_matches(['-', '.']))
}

/// True if the API server accepts it as a label value.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    let is_edge = |c: char| c.is_ascii_alphanumeric();
    let fits = text.len() <= MOST_OF_A_LABEL && text.chars().all(|c| is_edge(c) || "-_.".contains(c));
    fits && text.chars().next().is_none_or(is_edge) && text.chars().next_back().is_none_or(is_edge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::short("dns", "kdoctor-netdns-dns")]
    #[case::dots_are_legal_in_a_label("a.b", "kdoctor-netdns-a.b")]
    #[case::as_long_as_a_label(&"x".repeat(48), &format!("kdoctor-netdns-{}", "x".repeat(48)))]
    #[case::too_long(&"x".repeat(49), &format!("kdoctor-netdns-{}-1b587a2a", "x".repeat(39)))]
    #[case::cut_behind_a_dot(
        &format!("{}.{}", "x".repeat(38), "y".repeat(22)),
        &format!("kdoctor-netdns-{}-edf1bcc0", "x".repeat(38))
    )]
    fn a_carrier_has_the_name_that_kdoctor_looks_for(#[case] task: &str, #[case] expected: &str) {
        let name = carrier_name(TaskKind::Netdns, task);

        assert_eq!(name, expected);
        assert!(is_label_value(&name), "{name}");
    }

    #[rstest]
    #[case::short("dns", "kdoctor-netdns-dns-ipv4")]
    #[case::no_dots("a.b", "kdoctor-netdns-a-b-ipv4")]
    #[case::as_long_as_a_service(&"x".repeat(43), &format!("kdoctor-netdns-{}-ipv4", "x".repeat(43)))]
    #[case::too_long(&"x".repeat(44), &format!("kdoctor-netdns-{}-143f0ac6-ipv4", "x".repeat(34)))]
    fn a_service_has_a_name_that_the_api_server_accepts(#[case] task: &str, #[case] expected: &str) {
        let name = service_name(TaskKind::Netdns, task, Family::V4);

        assert_eq!(name, expected);
        assert!(name.len() <= 63 && !name.contains('.'));
    }

    #[test]
    fn two_long_names_that_differ_at_the_end_stay_two() {
        let [a, b] = ["a", "b"].map(|end| carrier_name(TaskKind::NetReach, &format!("{}{end}", "x".repeat(200))));

        assert_ne!(a, b);
    }
}
