//! API objects as JSON, through the keeper's own projections into its cache.

use std::sync::{Arc, LazyLock};

use caretaker_engine::decode::Document;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::source::Delivered;
use caretaker_engine::sources::Sources;
use caretaker_engine::{Change, Observed, SourceRef};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::observe::NamespaceCache;
use caretaker_namespaces::observe::sources::KINDS;
use serde_json::Value;

static SOURCES: LazyLock<Arc<Sources<NamespaceCache>>> = LazyLock::new(|| Sources::of(&Namespaces::default()));

/// A cache that is fed with objects.
#[derive(Default)]
pub struct Objects {
    pub feed: CacheFeed<NamespaceCache>,
}

impl Objects {
    pub fn cache(&self) -> &NamespaceCache {
        &self.feed.cache
    }

    /// `None` if no source reads the kind.
    pub fn project(kind: &str, object: &Value) -> Option<Delivered<NamespaceCache>> {
        let api_version = object["apiVersion"].as_str().unwrap_or_default();
        Some(SOURCES.decode(api_version, kind, Document::Value(object))?.unwrap())
    }

    pub fn apply(&mut self, kind: &str, object: &Value) {
        if let Some((source, change)) = Self::project(kind, object) {
            self.feed.update(&source, change);
        }
    }

    pub fn delete(&mut self, kind: &str, object: &Value) {
        if let Some((source, Change::Apply(Observed { id, .. }) | Change::Delete(id))) = Self::project(kind, object) {
            self.feed.update(&source, Change::Delete(id));
        }
    }

    /// A complete list of a kind.
    pub fn list<'a>(&mut self, kind: &str, objects: impl Iterator<Item = &'a Value>) {
        let source = Self::source(kind);
        self.feed.update(&source, Change::Init);
        objects.for_each(|object| self.apply(kind, object));
        self.feed.update(&source, Change::InitDone);
    }

    pub fn source(kind: &str) -> SourceRef {
        let id = KINDS.iter().find(|known| known.kind == kind).unwrap().id;
        let source = SOURCES.iter().find(|source| source.id == id).unwrap();
        SourceRef { id, resource: source.resource().cloned() }
    }
}
