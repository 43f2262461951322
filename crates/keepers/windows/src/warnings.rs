//! What people should know about the windows of objects before it happens.

use caretaker_core::parsed::InvalidValue;
use caretaker_core::window::Window;
use caretaker_engine::Cache as _;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::api;
use crate::cache::FluxCache;
use crate::subject::{FluxObject, Name};

/// The reason of the Events that warn.
pub const EVENT_REASON: &str = "WindowWarning";

/// Everything worth a word, in the order of the objects, each with the object in front.
#[must_use]
pub fn all(cache: &FluxCache) -> Vec<String> {
    let named = |object: &FluxObject| {
        let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
        of(object).into_iter().map(move |warning| format!("{name}: {warning}")).collect::<Vec<_>>()
    };
    cache.subjects().iter().flat_map(named).collect()
}

/// What is worth a word about one object with a window.
#[must_use]
pub fn of(object: &FluxObject) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(other) = &object.other_spelling {
        warnings.push(format!(
            "the annotations {} and {} differ, and the first counts; remove the second, {other:?}",
            api::SUSPENDED_DURING,
            api::SUSPEND_DURING
        ));
    }
    let Some(window) = object.during.get() else { return warnings };
    if let Some(meant) = window.single_minutes() {
        warnings.push(format!(
            "the window {:?} opens for a single minute at a time; for whole hours write {meant:?}",
            window.text()
        ));
    }
    // In a file nobody has set anything yet; what it says is what Git says.
    let in_file = (object.suspended == Some(false) && object.managers.is_empty() && !object.relations.is_detached)
        .then_some("its manifest");
    if let Some(manager) = object.pinned_by().or(in_file) {
        warnings.push(format!(
            "{manager} declares suspend: false, so its window cannot suspend it; drop that line from Git"
        ));
    }
    let names = |names: &[Name]| names.iter().map(|(ns, name)| format!("{ns}/{name}")).collect::<Vec<_>>().join(", ");
    if !object.relations.dependents.is_empty() {
        warnings.push(format!(
            "{} depends on it: while it is suspended, a new revision of its source blocks them; give them the same window",
            names(&object.relations.dependents)
        ));
    }
    // A child that was ready before stays ready; one that never was makes its parent fail.
    if let Some(parent) = object.relations.awaited_by.as_ref().filter(|_| !object.relations.is_ready) {
        warnings.push(format!(
            "Kustomization {} waits until it is ready, which it is not: while it is suspended that wait times out; give \
             the parent the same window",
            names(std::slice::from_ref(parent))
        ));
    }
    warnings
}

/// What is wrong with the annotations of an object in a file.
#[must_use]
pub fn lint(object: &Value) -> Vec<InvalidValue> {
    let text = |key: &str| object["metadata"]["annotations"][key].as_str();
    let keys = [api::SUSPENDED_DURING, api::SUSPEND_DURING];
    let windows = keys.into_iter().filter_map(|key| Some((key, text(key)?)));
    windows
        .filter_map(|(key, text)| {
            let error = Window::parse(text, &TimeZone::UTC).err()?;
            Some(error.in_field(&format!("annotation {key}"), text))
        })
        .collect()
}

/// What the owner of an object in a file should know, although its annotations can be read.
#[must_use]
pub fn lint_notes(object: &Value) -> Vec<InvalidValue> {
    let text = |key: &str| object["metadata"]["annotations"][key].as_str();
    let (first, second) = (text(api::SUSPENDED_DURING), text(api::SUSPEND_DURING));
    let key = if first.is_some() { api::SUSPENDED_DURING } else { api::SUSPEND_DURING };
    let Some(during) = first.or(second) else { return Vec::new() };
    let mut notes = Vec::new();
    let mut note = |field: String, value: &str, reason: &str, remedy: String| {
        notes.push(InvalidValue { field, value: value.to_owned(), reason: reason.to_owned(), remedy });
    };
    let window = Window::parse(during, &TimeZone::UTC).ok();
    let meant = window.as_ref().and_then(Window::single_minutes);
    if let Some(meant) = meant {
        let remedy = format!("for whole hours write {meant:?}");
        note(format!("annotation {key}"), during, "it opens for a single minute at a time", remedy);
    }
    if let Some(other) = second.filter(|_| first.is_some()).filter(|second| Some(*second) != first) {
        let reason = format!("{} says something else, and counts", api::SUSPENDED_DURING);
        note(format!("annotation {}", api::SUSPEND_DURING), other, &reason, "remove it".to_owned());
    }
    if object["spec"]["suspend"] == false && text(api::DETACHED) != Some(api::DISABLED) {
        let reason = "Flux declares it again and again, so that the window cannot suspend the object";
        note("spec.suspend".to_owned(), "false", reason, "drop that line".to_owned());
    }
    notes
}
