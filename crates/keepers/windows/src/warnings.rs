//! What people should know about the windows of objects before it happens.

use caretaker_engine::Cache as _;

use crate::api;
use crate::observe::FluxCache;
use crate::subject::FluxObject;

/// Everything worth a word, in the order of the objects.
#[must_use]
pub fn all(cache: &FluxCache) -> Vec<String> {
    cache.subjects().iter().flat_map(of).collect()
}

/// What is worth a word about one object.
#[must_use]
pub fn of(object: &FluxObject) -> Vec<String> {
    let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
    let mut warnings = Vec::new();
    if let Some(other) = &object.other_spelling {
        warnings.push(format!(
            "{name}: the annotations {} and {} differ, and the first counts; remove the second, {other:?}",
            api::SUSPENDED_DURING,
            api::SUSPEND_DURING
        ));
    }
    if let Some(window) = object.during.get() {
        if let Some(meant) = window.single_minutes() {
            warnings.push(format!(
                "{name}: the window {:?} opens for a single minute at a time; for whole hours write {meant:?}",
                window.text()
            ));
        }
        if let Some(manager) = object.declared_by().filter(|_| object.suspended == Some(false)) {
            warnings.push(format!(
                "{name}: {manager} declares suspend: false, so its window cannot suspend it; drop that line from Git"
            ));
        }
    }
    warnings
}
