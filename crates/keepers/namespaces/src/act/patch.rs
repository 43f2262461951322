//! What is written: each step as a merge patch.
//!
//! Every patch names the uid and the resourceVersion that were judged, so that the API server
//! refuses it if the object is another one, or has changed since.

use serde_json::{Map, Value, json};

use super::Mark;
use crate::api;
use crate::workload::Form;

/// Which object, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Its identity.
    pub uid: &'a str,
    /// Its version.
    pub resource_version: &'a str,
}

impl Seen<'_> {
    fn metadata(&self) -> Map<String, Value> {
        let mut metadata = Map::new();
        metadata.insert("uid".to_owned(), json!(self.uid));
        metadata.insert("resourceVersion".to_owned(), json!(self.resource_version));
        metadata
    }
}

/// The patch of a mark on a subject's own metadata.
#[must_use]
pub fn mark(mark: &Mark, seen: &Seen<'_>) -> Value {
    let mut labels = Map::new();
    let mut annotations = Map::new();
    if let Some(state) = mark.state {
        labels.insert(api::STATE.to_owned(), json!(state.name()));
    }
    if let Some(after) = mark.sleep_after {
        // As Go writes it: whoever goes back to kubefree can still read it.
        let text = caretaker_core::duration::format_go(after);
        labels.insert(api::SLEEP_AFTER.to_owned(), json!(text));
        annotations.insert(api::FALLBACK.to_owned(), json!(text));
    }
    if let Some(activity) = &mark.activity {
        annotations.insert(api::ACTIVITY.to_owned(), json!(activity.to_json()));
    }
    for (key, time) in &mark.set {
        annotations.insert((*key).to_owned(), json!(time.to_string()));
    }
    if let Some(by_hand) = mark.by_hand {
        let note = if by_hand { json!("true") } else { Value::Null };
        annotations.insert(api::SLEPT_BY_HAND.to_owned(), note);
    }
    for key in &mark.clear {
        annotations.insert((*key).to_owned(), Value::Null);
    }
    let mut metadata = seen.metadata();
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), labels.into());
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
    json!({ "metadata": metadata })
}

/// The patch that turns a workload: the new value and the record of the old one, together.
///
/// What kubefree put into a DaemonSet's affinity is not covered: a list cannot be patched without
/// being read.
#[must_use]
pub fn turn(to: &Form, seen: &Seen<'_>) -> Value {
    let mut metadata = seen.metadata();
    let mut annotate = |annotations: Value| {
        metadata.insert("annotations".to_owned(), annotations);
    };
    let spec = match to {
        Form::Scaled { replicas, record, ours } => {
            let record = record.value().map(|count| count.to_string());
            annotate(json!({ api::LEGACY_REPLICAS: record, api::LAID_DOWN: ours.then_some("true") }));
            json!({ "replicas": replicas })
        }
        Form::Placed { parked, .. } => {
            let selector = if *parked { json!("true") } else { Value::Null };
            json!({ "template": { "spec": { "nodeSelector": { api::PARKED: selector } } } })
        }
        Form::Switched { suspended, record } => {
            annotate(json!({ api::LEGACY_SUSPEND: record.value().map(|was| was.to_string()) }));
            json!({ "suspend": suspended })
        }
        Form::Paused { paused, record } => {
            let record = if *record { json!("") } else { Value::Null };
            annotate(json!({ api::PAUSED_REPLICAS: paused, api::LEGACY_PAUSED_REPLICAS: record }));
            return json!({ "metadata": metadata });
        }
    };
    json!({ "metadata": metadata, "spec": spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Activity, State};
    use crate::workload::Term;
    use caretaker_core::Parsed;
    use rstest::rstest;

    const SEEN: Seen<'_> = Seen { uid: "u", resource_version: "7" };

    #[rstest]
    #[case::down(
        Form::Scaled { replicas: 0, record: Parsed::Valid(3), ours: true },
        json!({"metadata": {"annotations": {"sleepmode.kubefree.com/legacy-replicas": "3", "caretaker.dev/laid-down": "true"}}, "spec": {"replicas": 0}})
    )]
    #[case::up(
        Form::Scaled { replicas: 3, record: Parsed::Missing, ours: false },
        json!({"metadata": {"annotations": {"sleepmode.kubefree.com/legacy-replicas": null, "caretaker.dev/laid-down": null}}, "spec": {"replicas": 3}})
    )]
    #[case::parked(
        Form::Placed { parked: true, kubefree: Term::Absent },
        json!({"metadata": {}, "spec": {"template": {"spec": {"nodeSelector": {"caretaker.dev/asleep": "true"}}}}})
    )]
    #[case::on_its_nodes(
        Form::Placed { parked: false, kubefree: Term::Absent },
        json!({"metadata": {}, "spec": {"template": {"spec": {"nodeSelector": {"caretaker.dev/asleep": null}}}}})
    )]
    #[case::suspended(
        Form::Switched { suspended: true, record: Parsed::Valid(false) },
        json!({"metadata": {"annotations": {"caretaker.dev/legacy-suspend": "false"}}, "spec": {"suspend": true}})
    )]
    #[case::paused(
        Form::Paused { paused: Some("0".into()), record: true },
        json!({"metadata": {"annotations": {"autoscaling.keda.sh/paused-replicas": "0", "caretaker.dev/legacy-paused-replicas": ""}}})
    )]
    #[case::scaling(
        Form::Paused { paused: None, record: false },
        json!({"metadata": {"annotations": {"autoscaling.keda.sh/paused-replicas": null, "caretaker.dev/legacy-paused-replicas": null}}})
    )]
    fn turns(#[case] to: Form, #[case] mut expected: Value) {
        expected["metadata"]["uid"] = json!("u");
        expected["metadata"]["resourceVersion"] = json!("7");

        assert_eq!(turn(&to, &SEEN), expected);
    }

    #[test]
    fn a_mark_is_one_patch() {
        let at = "2026-01-10T00:00:00Z".parse().unwrap();
        let written = mark(
            &Mark {
                state: Some(State::Sleep),
                sleep_after: Some(caretaker_core::SignedDuration::from_hours(168)),
                activity: Some(Activity::noted(at, "FirstSeen")),
                set: vec![(api::ASLEEP_SINCE, at)],
                clear: vec![api::ANNOUNCED_AT],
                by_hand: Some(true),
            },
            &SEEN,
        );

        let metadata = &written["metadata"];
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("u"), &json!("7")));
        assert_eq!(
            metadata["labels"],
            json!({"sleepmode.kubefree.com/state": "sleep", "sleepmode.kubefree.com/sleep-after": "168h"})
        );
        let annotations = &metadata["annotations"];
        assert_eq!(annotations["caretaker.dev/asleep-since"], "2026-01-10T00:00:00Z");
        assert_eq!(annotations["caretaker.dev/fallback"], "168h");
        assert_eq!(annotations["caretaker.dev/slept-by-hand"], "true");
        assert_eq!(annotations["caretaker.dev/announced-at"], Value::Null);
        assert!(annotations[api::ACTIVITY].as_str().is_some_and(|a| a.contains("\"ActionBy\":\"FirstSeen\"")));
    }
}
