//! System namespaces: what a cluster is run with. The defaults never touch them, without any configuration.
//!
//! A namespace is one by its name (`system-namespaces.txt`, and the setting `systemNamespaces`), or by what runs in it.

use std::fmt;
use std::sync::LazyLock;

use wildmatch::WildMatch;

use crate::observe::partial::PodSpec;
use crate::subject::{Policy, Subject};

/// The list, with comments, for people.
pub const LIST: &str = include_str!("system-namespaces.txt");

/// The patterns of a list: one a line, without empty lines and comments.
fn patterns(list: &str) -> impl Iterator<Item = &str> {
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// What makes the namespace of a workload a system namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemRole {
    /// Its pods have a priority class `system-…-critical`.
    Critical,
    /// It registers a CSI driver, or another plugin, with the kubelet.
    KubeletPlugin,
    /// It is a DaemonSet on the network of the nodes.
    HostNetwork,
}

impl fmt::Display for SystemRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Critical => "has a system-critical priority class",
            Self::KubeletPlugin => "registers a CSI driver or another plugin with the kubelet",
            Self::HostNetwork => "is a DaemonSet with hostNetwork",
        })
    }
}

/// The folder of the kubelet in which drivers register themselves; distributions put it at different places.
const KUBELET_REGISTRY: &str = "/plugins_registry";

impl SystemRole {
    /// What the pods of a workload are, by their priority class.
    #[must_use]
    pub fn of_priority_class(name: &str) -> Option<Self> {
        (name.starts_with("system-") && name.ends_with("-critical")).then_some(Self::Critical)
    }

    /// What the pods of a DaemonSet are. A CSIDriver does not say where it runs; but whatever serves one registers it
    /// with the kubelet of each node, in a folder of the node.
    #[must_use]
    pub fn of_daemon_set(pod: &PodSpec) -> Option<Self> {
        let registers = pod.volumes.iter().any(|volume| {
            let path = volume.host_path.path.trim_end_matches('/');
            path.ends_with(KUBELET_REGISTRY)
        });
        let critical = Self::of_priority_class(&pod.priority_class_name);
        critical.or(registers.then_some(Self::KubeletPlugin)).or(pod.host_network.then_some(Self::HostNetwork))
    }
}

/// Why a namespace is a system namespace, as a sentence; `None` if it is none.
#[must_use]
pub fn why_system(ns: &Subject, policy: &Policy) -> Option<String> {
    static BUILT_IN: LazyLock<Vec<WildMatch>> = LazyLock::new(|| patterns(LIST).map(WildMatch::new).collect());
    let mut patterns = policy.system.iter().chain(&*BUILT_IN);
    let by_name = patterns.find(|glob| glob.matches(ns.namespace_name()));
    let by_name = by_name.map(|glob| format!("the pattern {glob} of system namespaces matches its name"));
    by_name.or_else(|| ns.system_workload.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::distribution("cattle-fleet-system", true)]
    #[case::mesh("istio-system", true)]
    #[case::gitops("argocd", true)]
    #[case::exact("cdi", true)]
    #[case::a_team_with_a_similar_name("cdi-shop", false)]
    #[case::a_team("shop", false)]
    fn names(#[case] name: &str, #[case] is_system: bool) {
        let ns = Subject { name: name.to_owned(), ..Subject::default() };

        assert_eq!(why_system(&ns, &Policy::default()).is_some(), is_system);
    }

    #[test]
    fn every_line_of_the_list_is_a_pattern_or_a_comment() {
        let all: Vec<&str> = patterns(LIST).collect();

        assert!(all.len() > 50 && all.iter().all(|pattern| !pattern.contains(char::is_whitespace)), "{all:?}");
    }

    #[test]
    fn the_settings_extend_the_list() {
        let policy = Policy { system: vec![WildMatch::new("platform-*")], ..Policy::default() };
        let ns = Subject { name: "platform-dns".to_owned(), ..Subject::default() };

        assert_eq!(
            why_system(&ns, &policy).as_deref(),
            Some("the pattern platform-* of system namespaces matches its name")
        );
    }
}
