//! What people should know about the windows of objects before it happens.

use caretaker_core::parsed::InvalidValue;
use caretaker_core::suspension::WindowAnnotation;
use caretaker_core::window::Window;
use caretaker_engine::Cache as _;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::api;
use crate::cache::FluxCache;
use crate::subject::{FluxObject, Name, Policy, WindowRule};

/// Everything worth a word: about the rules of the settings first, then about objects in their order, each with the
/// object in front.
#[must_use]
pub fn all(cache: &FluxCache, policy: &Policy) -> Vec<String> {
    let of_rule = |(place, rule): (usize, &WindowRule)| {
        let warnings =
            of_window(&rule.during).map(|warning| format!("keepers.windows.rules[{place}].during: {warning}"));
        warnings.collect::<Vec<_>>()
    };
    let of_rules = policy.rules.iter().enumerate().flat_map(of_rule);
    let named = |object: &FluxObject| {
        let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
        of(object, policy).into_iter().map(move |warning| format!("{name}: {warning}")).collect::<Vec<_>>()
    };
    of_rules.chain(cache.subjects().iter().flat_map(named)).collect()
}

/// Sentences about a window that is rarely what its author meant.
fn of_window(window: &Window) -> impl Iterator<Item = String> {
    window.warnings().iter().map(|warning| format!("the window {} {warning}", window.quoted()))
}

/// What is worth a word about one object with a window.
#[must_use]
pub fn of(object: &FluxObject, policy: &Policy) -> Vec<String> {
    let mut warnings = Vec::new();
    if !policy.has_window(object) {
        return warnings;
    }
    warnings.extend(object.during.get().into_iter().flat_map(|window| of_window(window)));
    warnings.extend(object.invalid().map(ToString::to_string));
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
    let Some(WindowAnnotation { key, value: during, .. }) = WindowAnnotation::find(text) else { return Vec::new() };
    let mut notes = Vec::new();
    let mut note = |field: String, value: &str, reason: &str, remedy: String| {
        notes.push(InvalidValue { field, value: value.to_owned(), reason: reason.to_owned(), remedy });
    };
    let window = Window::parse(&during, &TimeZone::UTC).ok();
    for warning in window.iter().flat_map(Window::warnings) {
        note(format!("annotation {key}"), &during, &format!("it {}", warning.reason), warning.remedy.clone());
    }
    if object["spec"]["suspend"] == false && text(api::DETACHED) != Some(api::DISABLED) {
        let reason = "Flux declares it again and again, so that the window cannot suspend the object";
        note("spec.suspend".to_owned(), "false", reason, "drop that line".to_owned());
    }
    notes
}
