//! Notes about schedules in manifests: those of kube-green and kube-downscaler, which nothing here reads, and those of
//! Caretaker that are rarely what their author meant.

use caretaker_core::parsed::InvalidValue;
use caretaker_core::window::Window;
use jiff::tz::TimeZone;
use serde_json::Value;

/// The annotation of a Namespace that is asleep by schedule.
const SLEEP_DURING: &str = caretaker_namespaces::api::SLEEP_DURING;
/// The API group of a SleepInfo.
const KUBE_GREEN: &str = "kube-green.com/";
/// The prefix of the annotations of kube-downscaler.
const KUBE_DOWNSCALER: &str = "downscaler/";
/// The number of replicas before kube-downscaler scaled down, which only kube-downscaler restores.
const ORIGINAL_REPLICAS: &str = "downscaler/original-replicas";

const PAGE: &str = "docs/migrate-from-kube-green.md";

/// True for the text of an object that may have a schedule; of most objects no more is read.
pub(super) fn may_have_one(text: &str) -> bool {
    [SLEEP_DURING, KUBE_GREEN, KUBE_DOWNSCALER].iter().any(|name| text.contains(name))
}

/// Notes for the owner of an object.
pub(super) fn notes(kind: &str, object: &Value) -> Vec<InvalidValue> {
    let is_kube_greens = object["apiVersion"].as_str().is_some_and(|version| version.starts_with(KUBE_GREEN));
    let mut notes = Vec::new();
    if kind == "SleepInfo" && is_kube_greens {
        notes.push(sleep_info(object));
    }
    for (key, value) in object["metadata"]["annotations"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if key == SLEEP_DURING && kind == "Namespace" {
            notes.extend(own(value));
        } else if let Some(name) = key.strip_prefix(KUBE_DOWNSCALER) {
            notes.push(downscaler(key, name, value));
        }
    }
    notes
}

fn sleep_info(object: &Value) -> InvalidValue {
    let field = |name: &str| object["spec"][name].as_str().unwrap_or_default();
    note(
        "spec.sleepAt",
        field("sleepAt"),
        "only kube-green reads a SleepInfo",
        &format!("write {SLEEP_DURING} on the Namespace; {PAGE} has each field"),
    )
}

fn downscaler(key: &str, name: &str, value: &str) -> InvalidValue {
    let field = format!("annotation {key}");
    if key == ORIGINAL_REPLICAS {
        let reason = "kube-downscaler has scaled it down, and nothing else brings back its replicas";
        return note(&field, value, reason, "let kube-downscaler wake it before you remove its annotations");
    }
    let remedy = if ["uptime", "downtime", "downscale-period", "upscale-period"].contains(&name) {
        format!("write {SLEEP_DURING} on the Namespace; {PAGE} has each annotation")
    } else {
        format!("{PAGE} has what to write instead")
    };
    note(&field, value, "only kube-downscaler reads it", &remedy)
}

/// Notes about a `sleep-during` that can be read.
fn own(value: &str) -> Vec<InvalidValue> {
    let window = Window::parse(value, &TimeZone::UTC).ok();
    let warnings = window.iter().flat_map(Window::warnings);
    let field = format!("annotation {SLEEP_DURING}");
    warnings.map(|warning| note(&field, value, &format!("it {}", warning.reason), &warning.remedy)).collect()
}

fn note(field: &str, value: &str, reason: &str, remedy: &str) -> InvalidValue {
    let (field, value) = (field.to_owned(), value.to_owned());
    InvalidValue { field, value, reason: reason.to_owned(), remedy: remedy.to_owned() }
}
