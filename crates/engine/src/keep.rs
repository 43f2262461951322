//! A keeper on a live cluster: what the engine asks of it to watch, judge, act and tell.
//!
//! [`Keeper`] says what is decided; [`Keep`] says what is read for it, what is judged together, what
//! is written together, and how. The loop around both is the engine's.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use caretaker_core::limits::Population;
use caretaker_core::{Keeper, Timestamp, Verdict};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::access::Need;
use crate::api::Resource;
use crate::events::Report;
use crate::journal::Outcome;
use crate::watch::Versioned;

/// A keeper that works on a live cluster.
pub trait Keep: Keeper + Sized {
    /// What is judged together: one of its subjects has changed, all of them are looked at.
    type Home: Ord + Clone + Debug + Send + Sync + 'static;
    /// What is written together: one act at a time.
    type Site: Ord + Clone + Debug + Send + Sync + 'static;
    /// The fields that matter, of an object of any kind that is read.
    type Manifest: Versioned + Clone + DeserializeOwned + Debug + Send + Sync + 'static;
    /// What is seen while acting.
    type Sight: Debug + Send + 'static;
    /// Why something was not done.
    type Undone: Undone;
    /// What has been seen.
    type Index: Index<Self>;

    /// Everything that is read of a cluster, in this order.
    const SOURCES: &'static [Resource];
    /// The Lease, and the field manager of the operator's writes.
    const MANAGER: &'static str;
    /// Lists under way at once: enough to hide the way there and back, few enough to be held. One,
    /// where the order matters.
    const LISTS: usize;
    /// How many acts at a site are one.
    const TOGETHER: usize = 1;
    /// The least time from the end of one act at a site, which is when it writes, to the beginning of the next.
    const REST: Duration = Duration::ZERO;

    /// Where a subject is judged.
    fn home(subject: &Self::Subject) -> Self::Home;

    /// Where it is written.
    fn site(subject: &Self::Subject) -> Self::Site;

    /// Whether somebody waits for it.
    fn is_urgent(_action: &Self::Action) -> bool {
        false
    }

    /// Everything that it does to a cluster, and therefore must be allowed to.
    fn needs(dry_run: bool) -> Vec<Need>;

    /// How a subject was: all that it takes to put it back by hand.
    fn before(subject: &Self::Subject) -> Value;

    /// What there is to say on objects about acts that have ended together.
    fn reports(ended: &[Ended<Self>]) -> Vec<Report>;

    /// The object that a subject stands on, if it is none itself.
    fn stands_on(_subject: &Self::Subject) -> Option<ObjectReference> {
        None
    }

    /// On which object an Event tells of a refusal. Of a kind that is no API's, a keeper says itself.
    #[must_use]
    fn regarding(refusal: &Refusal) -> ObjectReference {
        let Refusal { kind, namespace, name, uid, .. } = refusal;
        let source = Self::SOURCES.iter().find(|source| source.kind == *kind);
        let reference = source.map(|source| source.reference(namespace.as_deref(), name, uid));
        reference.unwrap_or_else(|| ObjectReference {
            kind: Some((*kind).to_owned()),
            namespace: namespace.clone(),
            name: Some(name.clone()),
            uid: Some(uid.clone()),
            ..ObjectReference::default()
        })
    }

    /// The world in which a replica that does not lead judges at each scan, and may act; `None` if
    /// only the leader does.
    fn of_a_backup(_world: &Self::World) -> Option<Self::World> {
        None
    }

    /// Confirms what was judged at one site, live, and carries it out.
    fn carry_out(
        client: Client,
        due: Vec<Due<Self>>,
        world: Self::World,
        now: Timestamp,
    ) -> impl Future<Output = Carried<Self>> + Send;
}

/// What has been seen of a cluster so far, kept up to date object by object: plain data. Whoever
/// feeds it, a folder, one pass or a watch, gets the same subjects out of it.
pub trait Index<K: Keep>: Default + Debug + Send + 'static {
    /// A list of all objects of a kind begins; what it does not show by its end is gone.
    fn begin(&mut self, kind: &str);

    /// Takes in an object. One that comes twice counts once, the newer one.
    fn add(&mut self, kind: &str, object: &K::Manifest);

    /// That list is complete.
    fn complete(&mut self, kind: &str);

    /// An object is gone.
    fn remove(&mut self, kind: &str, object: &K::Manifest);

    /// What an act has written or read is known before the watch tells of it.
    fn see(&mut self, sight: &K::Sight);

    /// Where something has changed since this was asked last.
    fn take_touched(&mut self) -> BTreeSet<K::Home>;

    /// Everywhere that there is something to say about.
    fn homes(&self) -> Vec<K::Home>;

    /// Whether there is such a one.
    fn knows(&self, home: &K::Home) -> bool;

    /// What is judged together.
    fn at_home(&self, home: &K::Home) -> Vec<K::Subject>;

    /// All subjects, in the order in which people read them.
    fn subjects(self) -> Vec<K::Subject>;

    /// Those among whom shares are counted.
    fn population(&self) -> Population;

    /// How many are in a smaller population.
    fn group_size(&self, _group: &str) -> usize {
        0
    }

    /// What cannot be read, beside the subjects themselves.
    fn complaints(&self, _home: &K::Home, _subjects: &[K::Subject]) -> Vec<Refusal> {
        Vec::new()
    }

    /// Takes note of a verdict: what was seen for the first time may count from then on.
    fn judged(&mut self, _subject: &K::Subject, _verdict: &Verdict<K::Action>, _now: Timestamp) {}
}

/// An act that may be made.
#[derive(Debug, Clone)]
pub struct Due<K: Keeper> {
    /// To whom.
    pub subject: K::Subject,
    /// Why.
    pub verdict: Verdict<K::Action>,
    /// What.
    pub action: K::Action,
}

/// An act that has ended.
#[derive(Debug)]
pub struct Ended<K: Keep> {
    /// What was to be done.
    pub due: Due<K>,
    /// How it went.
    pub outcome: Result<(), K::Undone>,
}

/// What became of acts that were one.
#[derive(Debug)]
pub struct Carried<K: Keep> {
    /// Each of them.
    pub ended: Vec<Ended<K>>,
    /// What was seen on the way, which is worth knowing however it ended.
    pub seen: Vec<K::Sight>,
}

/// Why something was not done, or not wholly.
pub trait Undone: std::error::Error + Send + 'static {
    /// What became of it, in a word.
    fn outcome(&self) -> Outcome;

    /// Whether we were not allowed to.
    fn is_forbidden(&self) -> bool;
}

/// Something that must not happen, or cannot be read, and was not told before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Refusal {
    /// The kind of the object.
    pub kind: &'static str,
    /// The namespace it is in; none for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// The rule.
    pub rule: &'static str,
    /// What is wrong.
    pub because: String,
    /// The object it stands on, if it is none itself.
    pub on: Option<ObjectReference>,
}

/// Whether objects of this kind matter to a keeper.
#[must_use]
pub fn wants<K: Keep>(kind: &str) -> bool {
    K::SOURCES.iter().any(|source| source.kind == kind)
}

/// Reads everything that matters, live. An error means that nothing is known, and nothing is done.
pub async fn observe<K: Keep>(client: &Client) -> Result<K::Index, Unlisted> {
    let list = async |source: &'static Resource| {
        let mut objects: Vec<K::Manifest> = Vec::new();
        match source.list(client, None, |object| objects.push(object)).await {
            Ok(()) => Ok((source.kind, objects)),
            Err(e) => Err(Unlisted { path: source.path(None), source: Box::new(e) }),
        }
    };
    let mut lists = futures::stream::iter(K::SOURCES).map(list).buffered(K::LISTS);
    let mut seen = K::Index::default();
    while let Some((kind, objects)) = lists.try_next().await? {
        for object in &objects {
            seen.add(kind, object);
        }
    }
    Ok(seen)
}

/// Why a cluster could not be observed.
#[derive(Debug, thiserror::Error)]
#[error("reading {path}: {}", crate::told(.source.as_ref()))]
pub struct Unlisted {
    /// What was to be listed.
    pub path: String,
    /// The API server's answer.
    pub source: Box<kube::Error>,
}
