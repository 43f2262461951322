//! What a keeper reads: a fixed kind, kinds found at run time, or another system.
//!
//! Every source delivers [`Change`]s of rows. The projection from object to row stands in the source,
//! so that a watch, a list, a live read, the answer to a write and a file give the same rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use caretaker_core::suspension::WindowAnnotation;
use caretaker_core::{ActionKind, SourceId, Timestamp};
use futures::stream::BoxStream;
use kube::core::ApiResource;
use tokio::sync::watch;

use crate::Context;
use crate::cache::Cache;
use crate::feed::CacheReader;
use crate::object::PartialObject;
use crate::projection::{Projection, Typed};

/// One object of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// The namespace; `None` for what is in none.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The uid; empty where another system has none.
    pub uid: String,
    /// The resourceVersion; empty where another system has none.
    pub resource_version: String,
}

impl ObjectId {
    /// Something of another system, which has no namespace and no version.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// An object as a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed<R> {
    /// The object.
    pub id: ObjectId,
    /// What the keeper reads of it.
    pub row: R,
    /// The window on it, which holds back work on it.
    pub window: Option<WindowAnnotation>,
}

impl<R> Observed<R> {
    /// An object without a window.
    pub fn new(id: ObjectId, row: R) -> Self {
        Self { id, row, window: None }
    }
}

/// What a source delivers, in kube's words.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<R> {
    /// A complete list starts. What it does not deliver before [`InitDone`](Self::InitDone) is gone.
    Init,
    /// The object exists and looks like this.
    Apply(Observed<R>),
    /// The object is gone.
    Delete(ObjectId),
    /// The list is complete; from here on changes are delivered.
    InitDone,
    /// Everything that happened before this time has been delivered. It comes in order with the rest:
    /// whatever it vouches for came before it.
    CurrentUntil(Timestamp),
    /// The source cannot be read; it tries again.
    Error(String),
}

impl<R> Change<R> {
    /// A row of another system.
    pub fn apply(id: ObjectId, row: R) -> Self {
        Self::Apply(Observed::new(id, row))
    }
}

/// A source; of a source that discovers kinds, one of its kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRef {
    /// The source.
    pub id: SourceId,
    /// What is read; `None` for another system, and for discovery itself.
    pub resource: Option<Arc<ApiResource>>,
}

/// A change, and the source that delivers it.
pub type Delivered<C> = (SourceRef, Change<<C as Cache>::Row>);

/// Selects objects on the server, and how many of them come at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    /// A field selector.
    pub fields: Option<String>,
    /// The only namespace that is read; `None`: all of them.
    pub namespace: Option<String>,
    /// Maximum number of objects in a page of a list; `None`: the engine's own.
    pub page_size: Option<u32>,
}

/// How a source finds out every resync interval whether its watch has lost something. After an error of the watch
/// everything is listed again in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Resync {
    /// Everything is listed again: for few and small objects.
    #[default]
    Interval,
    /// The versions of all objects are compared, which takes a list of their metadata; everything is listed again if
    /// they differ twice: for few and large objects.
    VersionDrift,
    /// The number of objects is compared, which takes one object; everything is listed again if it differs twice: for
    /// many objects. A change that is lost is not found by it; what a keeper does is confirmed by a live read anyway.
    CountDrift,
}

/// A key of an object that no projection reads, with its colon, and its depth: `(0, "status:")`, or
/// below `spec`, two for each level, `(6, "containers:")`.
pub type SkippableField = (usize, &'static str);

/// What a stream of another system works with.
pub struct SourceContext<C: Cache> {
    /// What the keeper runs with: clients, clock, leadership, health.
    pub context: Arc<Context>,
    /// The cache, read only.
    pub cache: CacheReader<C>,
    /// The latest deadline for which a destructive action waits for [`Change::CurrentUntil`].
    pub proof_wanted: watch::Receiver<Option<Timestamp>>,
    /// True after shutdown was requested: the stream flushes and ends.
    pub shutdown: watch::Receiver<bool>,
    /// Counts the writes to the state store, by any process.
    pub state_changes: watch::Receiver<u64>,
}

impl<C: Cache> Clone for SourceContext<C> {
    fn clone(&self) -> Self {
        Self {
            context: self.context.clone(),
            cache: self.cache.clone(),
            proof_wanted: self.proof_wanted.clone(),
            shutdown: self.shutdown.clone(),
            state_changes: self.state_changes.clone(),
        }
    }
}

/// The keys of the state store as they were read, for commands that do not run the source.
pub type StateSnapshot = BTreeMap<String, String>;

type StartStream<C> = Arc<dyn Fn(SourceContext<C>) -> BoxStream<'static, Change<<C as Cache>::Row>> + Send + Sync>;
type LoadSaved<R> = Arc<dyn Fn(&StateSnapshot) -> Result<Vec<Observed<R>>, String> + Send + Sync>;
pub(crate) type Wants = Arc<dyn Fn(&ApiResource) -> bool + Send + Sync>;

/// Where the rows of a source come from.
pub(crate) enum Origin<C: Cache> {
    Watch { resource: Arc<ApiResource>, optional: bool, selector: Selector, projection: Arc<dyn Projection<C::Row>> },
    Discover { wants: Wants, projection: Arc<dyn Projection<C::Row>> },
    Stream { start: StartStream<C>, saved: Option<LoadSaved<C::Row>>, proves: bool },
}

/// One thing that a keeper reads.
pub struct Source<C: Cache> {
    /// Its name.
    pub id: SourceId,
    /// The actions that must not start while it is not complete and allowed. Default: every action.
    pub needed_for: fn(&ActionKind) -> bool,
    /// Fields that its projection never reads, so that large manifests are cut before they are parsed.
    pub unread_fields: &'static [SkippableField],
    /// How it finds what its watch has lost. A stream of another system does that itself.
    pub resync: Resync,
    /// How often it does; `None`: every resync interval of the process.
    pub resync_interval: Option<Duration>,
    /// Of a source that discovers kinds: a kind that cannot be read holds back nothing but itself.
    pub kinds_alone: bool,
    /// What people do not know without it, if a command that only shows something can do without it.
    pub unknown_without: Option<&'static str>,
    pub(crate) origin: Origin<C>,
}

impl<C: Cache> Source<C> {
    fn new(id: SourceId, origin: Origin<C>) -> Self {
        Self {
            id,
            needed_for: |_| true,
            unread_fields: &[],
            resync: Resync::Interval,
            resync_interval: None,
            kinds_alone: false,
            unknown_without: None,
            origin,
        }
    }

    /// Watches one kind. The projection returns `None` for an object that does not matter.
    pub fn watch<T: PartialObject>(
        id: SourceId,
        resource: ApiResource,
        project: impl Fn(T) -> Option<C::Row> + Send + Sync + 'static,
    ) -> Self {
        let projection = Typed::boxed(move |_: &ApiResource, object| project(object));
        let (optional, selector) = (false, Selector::default());
        Self::new(id, Origin::Watch { resource: Arc::new(resource), optional, selector, projection })
    }

    /// Watches every served kind that the predicate wants, and follows kinds that come and go.
    pub fn discover<T: PartialObject>(
        id: SourceId,
        wants: impl Fn(&ApiResource) -> bool + Send + Sync + 'static,
        project: impl Fn(&ApiResource, T) -> Option<C::Row> + Send + Sync + 'static,
    ) -> Self {
        Self::new(id, Origin::Discover { wants: Arc::new(wants), projection: Typed::boxed(project) })
    }

    /// Reads another system. The stream starts with `Init … InitDone`, repeats that after every gap, and
    /// ends after shutdown once it has flushed.
    pub fn stream(
        id: SourceId,
        start: impl Fn(SourceContext<C>) -> BoxStream<'static, Change<C::Row>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(id, Origin::Stream { start: Arc::new(start), saved: None, proves: false })
    }

    /// A cluster that does not serve this kind is no error: there are no such objects.
    #[must_use]
    pub fn optional(mut self) -> Self {
        if let Origin::Watch { optional, .. } = &mut self.origin {
            *optional = true;
        }
        self
    }

    /// Only objects that this field selector selects.
    #[must_use]
    pub fn fields(mut self, fields: impl Into<String>) -> Self {
        if let Origin::Watch { selector, .. } = &mut self.origin {
            selector.fields = Some(fields.into());
        }
        self
    }

    /// Only objects in this namespace: a Role there is enough. A file is read as a whole, so that a projection which
    /// must not see objects of other namespaces checks the namespace itself.
    #[must_use]
    pub fn in_namespace(mut self, namespace: impl Into<String>) -> Self {
        if let Origin::Watch { selector, .. } = &mut self.origin {
            selector.namespace = Some(namespace.into());
        }
        self
    }

    /// Lists come in pages of at most so many objects: for a kind whose objects are large, so that a page fits
    /// into memory.
    #[must_use]
    pub fn page_size(mut self, objects: u32) -> Self {
        if let Origin::Watch { selector, .. } = &mut self.origin {
            selector.page_size = Some(objects);
        }
        self
    }

    /// Only these actions wait for it.
    #[must_use]
    pub fn needed_for(mut self, needed_for: fn(&ActionKind) -> bool) -> Self {
        self.needed_for = needed_for;
        self
    }

    /// Fields that its projection never reads.
    #[must_use]
    pub fn unread_fields(mut self, fields: &'static [SkippableField]) -> Self {
        self.unread_fields = fields;
        self
    }

    /// How it finds what its watch has lost.
    #[must_use]
    pub fn resync(mut self, resync: Resync) -> Self {
        self.resync = resync;
        self
    }

    /// It does so this often, whatever the resync interval of the process: for a kind of which little is watched, so that
    /// asking costs little.
    #[must_use]
    pub fn resync_every(mut self, interval: Duration) -> Self {
        self.resync_interval = Some(interval);
        self
    }

    /// Of a source that discovers kinds: a kind that cannot be read is reported, and the rest goes on. For a keeper
    /// whose objects do not depend on objects of other kinds.
    #[must_use]
    pub fn kinds_alone(mut self) -> Self {
        self.kinds_alone = true;
        self
    }

    /// A command that only shows something can do without it if its user may not list it; it then says what is not
    /// known: `whether …`.
    #[must_use]
    pub fn unknown_without(mut self, unknown: &'static str) -> Self {
        self.unknown_without = Some(unknown);
        self
    }

    /// The stream sends [`Change::CurrentUntil`]: an inferred destructive action that needs this source
    /// starts only after the source is proven current beyond the action's deadline.
    #[must_use]
    pub fn proves_currency(mut self) -> Self {
        if let Origin::Stream { proves, .. } = &mut self.origin {
            *proves = true;
        }
        self
    }

    /// What the stream has saved in the state store, as rows: commands read it instead of the system.
    #[must_use]
    pub fn saved(
        mut self,
        load: impl Fn(&StateSnapshot) -> Result<Vec<Observed<C::Row>>, String> + Send + Sync + 'static,
    ) -> Self {
        if let Origin::Stream { saved, .. } = &mut self.origin {
            *saved = Some(Arc::new(load));
        }
        self
    }

    /// True if destructive actions wait until it is proven current.
    #[must_use]
    pub fn proves(&self) -> bool {
        matches!(self.origin, Origin::Stream { proves: true, .. })
    }

    /// The fixed kind that it watches.
    #[must_use]
    pub fn resource(&self) -> Option<&Arc<ApiResource>> {
        if let Origin::Watch { resource, .. } = &self.origin { Some(resource) } else { None }
    }

    /// The only name that it reads, if its field selector says so. The right to it is then enough.
    #[must_use]
    pub fn only_name(&self) -> Option<&str> {
        let Origin::Watch { selector, .. } = &self.origin else { return None };
        selector.fields.as_deref()?.strip_prefix("metadata.name=").filter(|name| !name.contains(','))
    }

    /// The only namespace that it reads. A right in that namespace is then enough.
    #[must_use]
    pub fn only_namespace(&self) -> Option<&str> {
        let Origin::Watch { selector, .. } = &self.origin else { return None };
        selector.namespace.as_deref()
    }

    /// True if a cluster may lack the kind that it watches.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        matches!(self.origin, Origin::Watch { optional: true, .. })
    }

    /// What it reads, for people: `watching deployments`.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.origin {
            Origin::Watch { resource, .. } => format!("watching {}", resource.plural),
            Origin::Discover { .. } => format!("discovering {}", self.id.0),
            Origin::Stream { .. } => self.id.0.to_owned(),
        }
    }
}

/// A resource of which group, version, kind and plural are known when the program is written.
#[must_use]
pub fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let (group, version, kind, plural) = (group.to_owned(), version.to_owned(), kind.to_owned(), plural.to_owned());
    ApiResource { group, version, api_version, kind, plural }
}

/// The group of an apiVersion; empty for the core group.
#[must_use]
pub fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}
