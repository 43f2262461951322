//! Names on the wire.

pub use caretaker_core::suspension::{SUSPEND_DURING, SUSPENDED_DURING};

/// Annotation of the keeper: the end of the window for which it suspends the object.
pub const HELD_UNTIL: &str = "caretaker.dev/held-until";
/// Annotation: somebody resumed the object inside its window, and that is respected until this time.
pub const YIELDED_UNTIL: &str = "caretaker.dev/yielded-until";
/// Annotation of `caretaker suspend --until`: when the keeper ends that suspension.
pub const SUSPENDED_UNTIL: &str = "caretaker.dev/suspended-until";
/// Annotation: why somebody suspended the object.
pub const REASON: &str = "caretaker.dev/reason";
/// Annotation: who suspended the object.
pub const BY: &str = "caretaker.dev/by";

/// The prefix of all annotations of Caretaker.
pub const PREFIX: &str = "caretaker.dev/";

/// Annotation with the value [`DISABLED`]: the Kustomization that applies the object leaves it alone.
pub const DETACHED: &str = "kustomize.toolkit.fluxcd.io/reconcile";
/// Labels of an object that a Kustomization applies: the name of the Kustomization, and its namespace.
pub const PARENT: [&str; 2] = ["kustomize.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/namespace"];

/// The field manager of the keeper.
pub const FIELD_MANAGER: &str = "caretaker-windows";
/// The field manager of the commands.
pub const CLI_FIELD_MANAGER: &str = "caretaker-cli";

/// The type of the condition that shows a suspension.
pub const CONDITION: &str = "Suspended";

/// The value that switches a controller off where there is no `spec.suspend`.
pub const DISABLED: &str = "disabled";

/// How objects of a kind are suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// By the field `spec.suspend`.
    Field,
    /// By this annotation with the value [`DISABLED`].
    Annotation(&'static str),
}

impl Switch {
    /// What is written, for people.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Field => "spec.suspend: true".to_owned(),
            Self::Annotation(key) => format!("annotation {key}: {DISABLED}"),
        }
    }
}

/// A kind that can be suspended.
#[derive(Debug, Clone, Copy)]
pub struct FluxKind {
    /// The API group.
    pub group: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Its names in lower case, as people type them: singular, plural, short. Messages use the first.
    pub aliases: &'static [&'static str],
    /// How it is suspended.
    pub switch: Switch,
    /// Whether its objects have a status.
    pub has_status: bool,
}

const fn field(group: &'static str, kind: &'static str, aliases: &'static [&'static str]) -> FluxKind {
    FluxKind { group, kind, aliases, switch: Switch::Field, has_status: true }
}

const fn annotation(
    group: &'static str,
    kind: &'static str,
    aliases: &'static [&'static str],
    key: &'static str,
) -> FluxKind {
    FluxKind { group, kind, aliases, switch: Switch::Annotation(key), has_status: true }
}

const fn without_status(kind: FluxKind) -> FluxKind {
    FluxKind { has_status: false, ..kind }
}

/// The group of Kustomizations.
pub const KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io";
const SOURCE: &str = "source.toolkit.fluxcd.io";
const IMAGE: &str = "image.toolkit.fluxcd.io";
const NOTIFICATION: &str = "notification.toolkit.fluxcd.io";
const EXTENSIONS: &str = "source.extensions.fluxcd.io";
const OPERATOR: &str = "fluxcd.controlplane.io";
const EXTENSIONS_SWITCH: &str = "source.extensions.fluxcd.io/reconcile";
const OPERATOR_SWITCH: &str = "fluxcd.controlplane.io/reconcile";

/// Every kind that can be suspended. Versions are those that the API server serves.
pub static KINDS: [FluxKind; 17] = [
    field(KUSTOMIZE, "Kustomization", &["kustomization", "kustomizations", "ks"]),
    field("helm.toolkit.fluxcd.io", "HelmRelease", &["helmrelease", "helmreleases", "hr"]),
    field(SOURCE, "GitRepository", &["gitrepository", "gitrepositories", "gitrepo"]),
    field(SOURCE, "OCIRepository", &["ocirepository", "ocirepositories", "ocirepo"]),
    field(SOURCE, "HelmRepository", &["helmrepository", "helmrepositories", "helmrepo"]),
    field(SOURCE, "HelmChart", &["helmchart", "helmcharts", "hc"]),
    field(SOURCE, "Bucket", &["bucket", "buckets"]),
    field(IMAGE, "ImageRepository", &["imagerepository", "imagerepositories", "imgrepo"]),
    field(IMAGE, "ImagePolicy", &["imagepolicy", "imagepolicies", "imgpol"]),
    field(IMAGE, "ImageUpdateAutomation", &["imageupdateautomation", "imageupdateautomations", "iua"]),
    field(NOTIFICATION, "Receiver", &["receiver", "receivers"]),
    without_status(field(NOTIFICATION, "Alert", &["alert", "alerts"])),
    without_status(field(NOTIFICATION, "Provider", &["provider", "providers"])),
    annotation(EXTENSIONS, "ArtifactGenerator", &["artifactgenerator", "artifactgenerators", "ag"], EXTENSIONS_SWITCH),
    annotation(OPERATOR, "FluxInstance", &["fluxinstance", "fluxinstances"], OPERATOR_SWITCH),
    annotation(OPERATOR, "ResourceSet", &["resourceset", "resourcesets", "rset"], OPERATOR_SWITCH),
    annotation(
        OPERATOR,
        "ResourceSetInputProvider",
        &["resourcesetinputprovider", "resourcesetinputproviders", "rsip"],
        OPERATOR_SWITCH,
    ),
];

/// The kind of a group and a name. The items of a list in a file may not say their group; no kind of the core group has
/// one of these names.
#[must_use]
pub fn kind(group: &str, kind: &str) -> Option<&'static FluxKind> {
    KINDS.iter().find(|known| known.kind == kind && (known.group == group || group.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Flux and the Flux Operator have them: group, kind, the annotation that switches it off if it has no
    /// `spec.suspend`, and whether it has a status.
    #[test]
    fn the_kinds_are_those_of_flux() {
        let (generator, operator) =
            (Some("source.extensions.fluxcd.io/reconcile"), Some("fluxcd.controlplane.io/reconcile"));
        let expected = [
            ("source.toolkit.fluxcd.io", "GitRepository", None, true),
            ("source.toolkit.fluxcd.io", "OCIRepository", None, true),
            ("source.toolkit.fluxcd.io", "HelmRepository", None, true),
            ("source.toolkit.fluxcd.io", "HelmChart", None, true),
            ("source.toolkit.fluxcd.io", "Bucket", None, true),
            ("kustomize.toolkit.fluxcd.io", "Kustomization", None, true),
            ("helm.toolkit.fluxcd.io", "HelmRelease", None, true),
            ("image.toolkit.fluxcd.io", "ImageRepository", None, true),
            ("image.toolkit.fluxcd.io", "ImagePolicy", None, true),
            ("image.toolkit.fluxcd.io", "ImageUpdateAutomation", None, true),
            ("notification.toolkit.fluxcd.io", "Receiver", None, true),
            ("notification.toolkit.fluxcd.io", "Alert", None, false),
            ("notification.toolkit.fluxcd.io", "Provider", None, false),
            ("source.extensions.fluxcd.io", "ArtifactGenerator", generator, true),
            ("fluxcd.controlplane.io", "FluxInstance", operator, true),
            ("fluxcd.controlplane.io", "ResourceSet", operator, true),
            ("fluxcd.controlplane.io", "ResourceSetInputProvider", operator, true),
        ];
        let found = KINDS.iter().map(|kind| {
            let key = if let Switch::Annotation(key) = kind.switch { Some(key) } else { None };
            (kind.group, kind.kind, key, kind.has_status)
        });
        let sorted = |all: &mut Vec<(&'static str, &'static str, Option<&'static str>, bool)>| all.sort_unstable();
        let (mut expected, mut found) = (expected.to_vec(), found.collect::<Vec<_>>());
        sorted(&mut expected);
        sorted(&mut found);
        assert_eq!(found, expected);
    }
}
