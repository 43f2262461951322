//! What a keeper does, as data: the table behind limits, permissions, metrics and documentation.

use crate::limits::Pace;

/// Names one source of a keeper. A keeper declares its sources as constants of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub &'static str);

/// A right that an action needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// A verb on whatever a source reads: one kind, or every kind that was discovered.
    OnSource {
        /// `patch`, `delete` and so on.
        verb: &'static str,
        /// The source.
        source: SourceId,
    },
    /// A verb on a resource that no source reads: a subresource, or objects that are only created.
    OnResource {
        /// `create`, `patch` and so on.
        verb: &'static str,
        /// The API group; empty for the core group.
        group: &'static str,
        /// The plural name, with `/subresource` where needed.
        resource: &'static str,
    },
    /// The same, only in the namespace that a source reads, if it reads one alone.
    BesideSource {
        /// `list`, `get` and so on.
        verb: &'static str,
        /// The API group; empty for the core group.
        group: &'static str,
        /// The plural name, with `/subresource` where needed.
        resource: &'static str,
        /// The source.
        source: SourceId,
    },
}

impl Permission {
    /// A verb on the kinds of a source.
    #[must_use]
    pub const fn on(source: SourceId, verb: &'static str) -> Self {
        Self::OnSource { verb, source }
    }

    /// A verb on a resource that no source reads.
    #[must_use]
    pub const fn resource(verb: &'static str, group: &'static str, resource: &'static str) -> Self {
        Self::OnResource { verb, group, resource }
    }

    /// A verb on a resource that no source reads, only in the namespace of this source. A source of all namespaces
    /// has none: then the right is needed everywhere.
    #[must_use]
    pub const fn beside(source: SourceId, verb: &'static str, group: &'static str, resource: &'static str) -> Self {
        Self::BesideSource { verb, group, resource, source }
    }
}

/// Everything that the engine knows about a kind of action. Two kinds are equal if their names are.
#[derive(Debug, Clone, Copy)]
pub struct ActionKind {
    /// The name in JSON, metrics, Events and pace settings.
    pub name: &'static str,
    /// What it does, for the documentation.
    pub doc: &'static str,
    /// Takes something away from somebody. If it is inferred, the breaker counts it, and every source
    /// that it needs must be proven current first.
    pub destructive: bool,
    /// The subject no longer exists afterwards; the breaker's fractions use the count before it.
    pub removes_subject: bool,
    /// A [window](crate::suspension) on the subject's object holds it back.
    pub suspendable: bool,
    /// The subject is read live and judged again before the write. Without it, the write's own
    /// preconditions (uid, resourceVersion) decide.
    pub confirmed: bool,
    /// Jumps the queue, because a user is blocked on it.
    pub priority: bool,
    /// The pace where the settings name none.
    pub default_pace: Option<Pace>,
    /// The rights that it needs. Reading is not listed: sources ask for that themselves.
    pub permissions: &'static [Permission],
    /// Each of its rights is about one kind of object: without it only the writes of that kind fail, and nothing else is
    /// held back.
    pub kinds_alone: bool,
}

impl PartialEq for ActionKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ActionKind {}

impl ActionKind {
    /// An action that takes something away: confirmed live, guarded by the breaker, held back by a window.
    #[must_use]
    pub const fn destructive(name: &'static str) -> Self {
        Self { destructive: true, suspendable: true, confirmed: true, ..Self::plain(name) }
    }

    /// An action that changes or creates something and takes nothing away.
    #[must_use]
    pub const fn plain(name: &'static str) -> Self {
        Self {
            name,
            doc: "",
            destructive: false,
            removes_subject: false,
            suspendable: false,
            confirmed: false,
            priority: false,
            default_pace: None,
            permissions: &[],
            kinds_alone: false,
        }
    }

    /// Adds what it does, for the documentation.
    #[must_use]
    pub const fn doc(self, doc: &'static str) -> Self {
        Self { doc, ..self }
    }

    /// The subject is gone afterwards.
    #[must_use]
    pub const fn removes_subject(self) -> Self {
        Self { removes_subject: true, ..self }
    }

    /// A window on the subject's object holds it back, although it takes nothing away.
    #[must_use]
    pub const fn suspendable(self) -> Self {
        Self { suspendable: true, ..self }
    }

    /// A window on the subject's object does not hold it back, although it takes something away.
    #[must_use]
    pub const fn not_suspendable(self) -> Self {
        Self { suspendable: false, ..self }
    }

    /// The subject is read live and judged again before the write.
    #[must_use]
    pub const fn confirmed(self) -> Self {
        Self { confirmed: true, ..self }
    }

    /// Jumps the queue.
    #[must_use]
    pub const fn priority(self) -> Self {
        Self { priority: true, ..self }
    }

    /// The pace where the settings name none.
    #[must_use]
    pub const fn paced(self, pace: Pace) -> Self {
        Self { default_pace: Some(pace), ..self }
    }

    /// The rights that it needs.
    #[must_use]
    pub const fn needs(self, permissions: &'static [Permission]) -> Self {
        Self { permissions, ..self }
    }

    /// Without the right to one kind of object, only the writes of that kind fail.
    #[must_use]
    pub const fn kinds_alone(self) -> Self {
        Self { kinds_alone: true, ..self }
    }

    /// False for what a user is blocked on and what takes nothing away: it starts even while the journal, Events
    /// or the state cannot be written.
    #[must_use]
    pub const fn waits_for_records(&self) -> bool {
        self.destructive || !self.priority
    }
}

/// The actions of a keeper, written with [`actions!`](crate::actions!). Never implemented by hand.
pub trait Action: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// Every kind, in the order of the documentation.
    const KINDS: &'static [ActionKind];

    /// The kind of this action.
    fn kind(&self) -> &'static ActionKind;

    /// The name of its kind, in JSON, metrics and pace settings: `sleep`, `wake`, `delete`.
    fn name(&self) -> &'static str {
        self.kind().name
    }
}

/// Writes an enum of actions together with the table that says how each is limited and allowed.
#[macro_export]
macro_rules! actions {
    ($(#[$attr:meta])* $vis:vis enum $Name:ident {
        $( $(#[doc = $doc:literal])+ $Variant:ident $(($($payload:ty),+))? => $kind:expr ),+ $(,)?
    }) => {
        $(#[$attr])*
        #[derive(Debug, Clone, PartialEq)]
        $vis enum $Name { $( $(#[doc = $doc])+ $Variant $(($($payload),+))? ),+ }

        impl $crate::Action for $Name {
            const KINDS: &'static [$crate::ActionKind] =
                &[$( $kind.doc($crate::rules::trim(concat!($($doc),+))) ),+];

            fn kind(&self) -> &'static $crate::ActionKind {
                match self { $( Self::$Variant { .. } => {
                    static KIND: $crate::ActionKind = $kind.doc($crate::rules::trim(concat!($($doc),+)));
                    &KIND
                } ),+ }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::actions! { enum Deed {
        /// Takes it away.
        Take(u8) => ActionKind::destructive("take").removes_subject(),
        /// Paints it.
        Paint => ActionKind::plain("paint").priority(),
    } }

    #[test]
    fn a_table_says_everything_about_a_kind() {
        assert_eq!(
            Deed::KINDS.iter().map(|kind| (kind.name, kind.doc)).collect::<Vec<_>>(),
            [("take", "Takes it away."), ("paint", "Paints it."),]
        );
        let (take, paint) = (Deed::Take(1).kind(), Deed::Paint.kind());
        assert!(take.destructive && take.confirmed && take.removes_subject && !take.priority);
        assert!(!paint.destructive && !paint.confirmed && !paint.removes_subject && paint.priority);
        assert!(take.waits_for_records() && !paint.waits_for_records());
    }
}
