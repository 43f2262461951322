//! Names on the wire, and what is read under them.

use kube::core::ApiResource;

/// The label on every container that the kubelet has made through the CRI: pause containers and those of pods. containerd
/// copies the labels of pods and images to them, so that no other label says whose they are; it refuses images that have
/// this one.
pub const CRI_KIND_LABEL: &str = "io.cri-containerd.kind";
/// The prefix of the annotations in the spec of every container that the kubelet has made through the CRI.
pub const CRI_ANNOTATIONS: &str = "io.kubernetes.cri.";
/// The prefix of the labels that the keeper writes on a container before it kills its task. Their values begin with the
/// time of its creation, by which the keeper [knows its own](crate::subject::Container::own).
pub const OWN_PREFIX: &str = "caretaker.dev/";
/// Labels of the keeper: the FIFOs of the task, which nobody knows once the task is deleted.
pub const FIFO_LABELS: [&str; 3] =
    ["caretaker.dev/fifo-stdin", "caretaker.dev/fifo-stdout", "caretaker.dev/fifo-stderr"];
/// Label of the keeper: how many bytes the container's snapshot takes.
pub const BYTES_LABEL: &str = "caretaker.dev/bytes";
/// Label of the keeper: when it began to clean the container.
pub const CLEANING_LABEL: &str = "caretaker.dev/cleaning-since";
/// Key and value of a label together take at most this much in containerd.
pub const LABEL_LIMIT: usize = 4096;

/// The containerd namespace of Kubernetes.
pub const CONTAINERD_NAMESPACE: &str = "k8s.io";
/// The ending of the key of a snapshot that belongs to a container.
pub const SNAPSHOT_SUFFIX: &str = "-snapshot";
/// The label by which clients of containerd keep what nothing refers to: its value is the time at which that was asked for.
pub const GC_ROOT_LABEL: &str = "containerd.io/gc.root";
/// The endings of the names of a container's FIFOs.
pub const FIFO_SUFFIXES: [&str; 3] = ["-stdin", "-stdout", "-stderr"];

/// Phases of a Sandbox in which its agent is assigned for good.
pub const ASSIGNED_PHASES: [&str; 2] = ["Bound", "Running"];
/// The phase of a Sandbox whose time is over.
pub const EXPIRED: &str = "Expired";
/// Phases of an agent pod whose containers have ended.
pub const FINISHED_PHASES: [&str; 2] = ["Failed", "Succeeded"];

/// The keys of the labels by which a container names its agent and its Sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelKeys {
    /// `true` on what the keeper may touch.
    pub managed: String,
    /// The uid of the agent pod.
    pub agent_uid: String,
    /// The name of the agent pod.
    pub agent_name: String,
    /// The namespace of the agent pod and of the Sandbox.
    pub namespace: String,
    /// The name of the Sandbox.
    pub sandbox_name: String,
    /// The uid of the Sandbox; set only in the strong mode.
    pub claim_uid: String,
    /// The ID that the Sandbox knows the container by.
    pub id: String,
}

impl Default for LabelKeys {
    fn default() -> Self {
        let key = |name: &str| format!("fast-sandbox.io/{name}");
        Self {
            managed: key("managed"),
            agent_uid: key("agent-uid"),
            agent_name: key("agent-name"),
            namespace: key("namespace"),
            sandbox_name: key("sandbox-name"),
            claim_uid: key("claim-uid"),
            id: key("id"),
        }
    }
}

/// The resource of Sandboxes: `sandboxes.sandbox.fast.io/v1alpha1`.
#[must_use]
pub fn sandbox_resource() -> ApiResource {
    caretaker_engine::source::resource("sandbox.fast.io", "v1alpha1", "Sandbox", "sandboxes")
}

/// Reads `PLURAL.GROUP/VERSION`; the kind is the singular of the plural in capitals.
pub fn parse_sandbox_resource(text: &str) -> Result<ApiResource, String> {
    let wrong =
        || format!("{text:?} is not PLURAL.GROUP/VERSION; write for instance sandboxes.sandbox.fast.io/v1alpha1");
    let (name, version) = text.split_once('/').ok_or_else(wrong)?;
    let (plural, group) = name.split_once('.').ok_or_else(wrong)?;
    if [plural, group, version].iter().any(|part| part.is_empty() || part.contains('/')) {
        return Err(wrong());
    }
    let singular =
        plural.strip_suffix("xes").map_or_else(|| plural.trim_end_matches('s').to_owned(), |s| format!("{s}x"));
    let kind = singular[..1].to_uppercase() + &singular[1..];
    Ok(caretaker_engine::source::resource(group, version, &kind, plural))
}

/// True if the ID can be part of a path without leaving the folder: what containerd itself allows.
#[must_use]
pub fn is_plain_id(id: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    id.len() <= 255 && id.chars().all(word) && edge(id.chars().next()) && edge(id.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_with_path_characters_is_not_plain() {
        for id in ["sb-1", "a", "A.b_c-9"] {
            assert!(is_plain_id(id), "{id}");
        }
        for id in ["", "..", ".", "a/b", "../a", "a b", "-a", "a-", "ä", "a\0b", &"a".repeat(256)] {
            assert!(!is_plain_id(id), "{id:?}");
        }
    }

    #[test]
    fn a_sandbox_resource_is_read_with_its_kind() {
        let resource = parse_sandbox_resource("sandboxes.sandbox.fast.io/v1alpha2").unwrap();
        assert_eq!((resource.kind.as_str(), resource.group.as_str()), ("Sandbox", "sandbox.fast.io"));
        assert_eq!(resource.api_version, "sandbox.fast.io/v1alpha2");
        for wrong in ["sandboxes", "sandboxes/v1", "a.b", "a.b/", ".b/v1", "a./v1"] {
            assert!(parse_sandbox_resource(wrong).unwrap_err().contains("PLURAL.GROUP/VERSION"), "{wrong}");
        }
    }
}
