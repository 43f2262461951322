//! The keeper beside a repository that Flux applies: its Kustomization `apps` has a window.

use caretaker_engine::clock::{Clock, ClockHandle};
use caretaker_keeper_testkit::RunningKeeper;
use caretaker_test_programs::flux::{Fleet, child};
use caretaker_windows::Windows;
use serde_json::Value;

/// From 00:00 to 05:00.
pub const NIGHTLY: &str = "* 0-4 * * *";

pub fn at(text: &str) -> caretaker_core::Timestamp {
    text.parse().unwrap()
}

/// The manifest of the child with the window.
pub fn apps(annotations: &str, spec: &str) -> String {
    child("apps", &format!("reconcile.fluxcd.io/suspendedDuring: '{NIGHTLY}'{annotations}"), spec)
}

/// The keeper, at this time.
pub fn start(fleet: &Fleet, now: &str) -> (RunningKeeper, ClockHandle) {
    let (clock, handle) = Clock::manual(at(now));
    (RunningKeeper::start(Windows::default(), &fleet.client, clock, |_| ()), handle)
}

/// The rules and outcomes that the journal has about `apps` in this namespace.
pub fn story(fleet: &Fleet, keeper: &RunningKeeper) -> Vec<String> {
    let entries = keeper.journal.entries();
    let ours = entries.iter().filter(|entry| entry["namespace"] == *fleet.namespace && entry["name"] == "apps");
    ours.map(|entry| format!("{} {}", entry["rule"], entry["outcome"]).replace('"', "")).collect()
}

/// The condition that shows a suspension: its status and reason.
pub fn condition(object: &Value) -> Option<(&str, &str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == "Suspended")?;
    found["status"].as_str().zip(found["reason"].as_str())
}

/// True if a field manager has set anything but the status of the object.
pub fn is_managed_by(object: &Value, name: &str) -> bool {
    let managers = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    managers.iter().any(|fields| fields["manager"] == name && fields["subresource"].is_null())
}

/// Suspended by its window, and shown to be.
pub fn is_held(object: &Value) -> bool {
    object["spec"]["suspend"] == true && condition(object) == Some(("True", "InsideWindow"))
}

/// Nothing of the keeper is on it.
pub fn is_clean(object: &Value) -> bool {
    !is_managed_by(object, "caretaker-windows") && condition(object).is_none()
}
