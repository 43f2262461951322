//! The merge patch of each step. The engine adds the conditions, uid and resourceVersion, when it sends it.

use caretaker_core::{Timestamp, duration, time};
use serde_json::{Map, Value, json};

use super::MetadataPatch;
use crate::api;
use crate::observe::partial;
use crate::workload::{ClaimPolicy, WorkloadState};

/// The value of the copy's annotation where nothing names the sleep.
const UNNAMED_SLEEP: &str = "true";

/// The patch of a subject's own labels and annotations.
#[must_use]
pub fn metadata(patch: &MetadataPatch) -> Value {
    let mut labels = Map::new();
    let mut annotations = Map::new();
    if let Some(state) = patch.state {
        labels.insert(api::STATE.to_owned(), json!(state.name()));
    }
    if let Some(after) = patch.sleep_after {
        // As Go writes it: kubefree must be able to read it.
        let text = duration::format_go(after);
        labels.insert(api::SLEEP_AFTER.to_owned(), json!(text));
        annotations.insert(api::DEFAULT_POLICY.to_owned(), json!(text));
    }
    if let Some(activity) = &patch.activity {
        annotations.insert(api::ACTIVITY.to_owned(), json!(activity.to_json()));
    }
    if let Some(at) = patch.last_activity {
        labels.insert(api::LAST_ACTIVITY.to_owned(), json!(api::label_time(at)));
    }
    if patch.sleep_started.is_some() || patch.sleep_ended {
        labels.insert(api::SLEEP_STARTED.to_owned(), json!(patch.sleep_started.map(api::label_time)));
    }
    for (annotation, time) in &patch.set {
        annotations.insert(annotation.key().to_owned(), json!(time.to_string()));
    }
    if let Some(manual_sleep) = patch.manual_sleep {
        let value = if manual_sleep { json!("true") } else { Value::Null };
        annotations.insert(api::MANUAL_SLEEP.to_owned(), value);
    }
    if let Some(scheduled_sleep) = patch.scheduled_sleep {
        let value = if scheduled_sleep { json!("true") } else { Value::Null };
        annotations.insert(api::SCHEDULED_SLEEP.to_owned(), value);
    }
    for annotation in &patch.clear {
        annotations.insert(annotation.key().to_owned(), Value::Null);
    }
    let mut metadata = Map::new();
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), labels.into());
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
    json!({ "metadata": metadata })
}

/// The patch that changes the state of a workload: the new value and the record of the old one, together.
///
/// `sleep` is the name of the present sleep, which the copy of the record gets. kubefree's term in the affinity of a
/// DaemonSet is not covered: a list cannot be patched without being read.
#[must_use]
pub fn workload_state(to: &WorkloadState, sleep: Option<Timestamp>) -> Value {
    match to {
        WorkloadState::Scaled { replicas, recorded, by_caretaker, claims } => {
            let recorded = recorded.value().map(|count| count.to_string());
            let name = || sleep.map_or_else(|| UNNAMED_SLEEP.to_owned(), |started| started.to_string());
            let copy = by_caretaker.then(name);
            let mut labels = json!({ api::SCALED_DOWN: recorded.as_ref().filter(|_| *by_caretaker) });
            let annotations = json!({ api::LEGACY_REPLICAS: recorded, api::LEGACY_REPLICAS_COPY: copy });
            let mut spec = json!({ "replicas": replicas });
            let policy = match claims {
                ClaimPolicy::Retain | ClaimPolicy::AlwaysDelete | ClaimPolicy::DeleteSetByOthers => None,
                ClaimPolicy::Delete => Some((partial::DELETE, None)),
                ClaimPolicy::RetainWhileAsleep => Some((partial::RETAIN, Some(partial::DELETE))),
            };
            if let Some((when_scaled, recorded)) = policy {
                spec["persistentVolumeClaimRetentionPolicy"] = json!({ "whenScaled": when_scaled });
                labels[api::LEGACY_WHEN_SCALED] = json!(recorded);
            }
            json!({ "metadata": { "labels": labels, "annotations": annotations }, "spec": spec })
        }
        WorkloadState::Placed { parked, .. } => {
            let selector = if *parked { json!("true") } else { Value::Null };
            let pod = json!({ "spec": { "nodeSelector": { api::PARKED: selector } } });
            json!({ "metadata": {}, "spec": { "template": pod } })
        }
        WorkloadState::Scheduled { suspended, recorded } => {
            let annotations = json!({ api::LEGACY_SUSPEND: recorded.value().map(|was| was.to_string()) });
            json!({ "metadata": { "annotations": annotations }, "spec": { "suspend": suspended } })
        }
        WorkloadState::Paused { paused_at, by_caretaker } => {
            let record = if *by_caretaker { json!("") } else { Value::Null };
            let annotations = json!({ api::PAUSED_REPLICAS: paused_at, api::LEGACY_PAUSED_REPLICAS: record });
            json!({ "metadata": { "annotations": annotations } })
        }
    }
}

/// The patch of a CronJob's status after which its controller takes nothing before `now` for a run that it missed.
#[must_use]
pub fn skip_missed_runs(now: Timestamp) -> Value {
    json!({ "metadata": {}, "status": { "lastScheduleTime": time::format(now) } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Activity, State, TimeAnnotation};
    use crate::judge::Rule;
    use crate::workload::KubefreeTerm;
    use caretaker_core::{ObjectRef, Parsed, SignedDuration};
    use caretaker_engine::writer::conditional;
    use rstest::rstest;

    const OBJECT: ObjectRef<'_> =
        ObjectRef { api_version: "v1", kind: "Namespace", namespace: None, name: "shop", uid: "u" };

    #[rstest]
    #[case::scaled_down(
        WorkloadState::Scaled { replicas: 0, recorded: Parsed::Valid(3), by_caretaker: true, claims: ClaimPolicy::Retain },
        json!({"metadata": {
            "labels": {"caretaker.dev/scaled-down": "3"},
            "annotations": {"sleepmode.kubefree.com/legacy-replicas": "3", "caretaker.dev/legacy-replicas-copy": "2026-01-10T00:00:00Z"},
        }, "spec": {"replicas": 0}})
    )]
    #[case::restored(
        WorkloadState::Scaled { replicas: 3, recorded: Parsed::Missing, by_caretaker: false, claims: ClaimPolicy::Retain },
        json!({"metadata": {
            "labels": {"caretaker.dev/scaled-down": null},
            "annotations": {"sleepmode.kubefree.com/legacy-replicas": null, "caretaker.dev/legacy-replicas-copy": null},
        }, "spec": {"replicas": 3}})
    )]
    #[case::scaled_down_with_its_claims_kept(
        WorkloadState::Scaled { replicas: 0, recorded: Parsed::Valid(3), by_caretaker: true, claims: ClaimPolicy::RetainWhileAsleep },
        json!({"metadata": {
            "labels": {"caretaker.dev/scaled-down": "3", "caretaker.dev/legacy-when-scaled": "Delete"},
            "annotations": {"sleepmode.kubefree.com/legacy-replicas": "3", "caretaker.dev/legacy-replicas-copy": "2026-01-10T00:00:00Z"},
        }, "spec": {"replicas": 0, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain"}}})
    )]
    #[case::restored_with_its_policy(
        WorkloadState::Scaled { replicas: 3, recorded: Parsed::Missing, by_caretaker: false, claims: ClaimPolicy::Delete },
        json!({"metadata": {
            "labels": {"caretaker.dev/scaled-down": null, "caretaker.dev/legacy-when-scaled": null},
            "annotations": {"sleepmode.kubefree.com/legacy-replicas": null, "caretaker.dev/legacy-replicas-copy": null},
        }, "spec": {"replicas": 3, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}})
    )]
    #[case::parked(
        WorkloadState::Placed { parked: true, kubefree: KubefreeTerm::Absent },
        json!({"metadata": {}, "spec": {"template": {"spec": {"nodeSelector": {"caretaker.dev/asleep": "true"}}}}})
    )]
    #[case::on_its_nodes(
        WorkloadState::Placed { parked: false, kubefree: KubefreeTerm::Absent },
        json!({"metadata": {}, "spec": {"template": {"spec": {"nodeSelector": {"caretaker.dev/asleep": null}}}}})
    )]
    #[case::suspended(
        WorkloadState::Scheduled { suspended: true, recorded: Parsed::Valid(false) },
        json!({"metadata": {"annotations": {"caretaker.dev/legacy-suspend": "false"}}, "spec": {"suspend": true}})
    )]
    #[case::paused(
        WorkloadState::Paused { paused_at: Some("0".into()), by_caretaker: true },
        json!({"metadata": {"annotations": {"autoscaling.keda.sh/paused-replicas": "0", "caretaker.dev/legacy-paused-replicas": ""}}})
    )]
    #[case::scaling(
        WorkloadState::Paused { paused_at: None, by_caretaker: false },
        json!({"metadata": {"annotations": {"autoscaling.keda.sh/paused-replicas": null, "caretaker.dev/legacy-paused-replicas": null}}})
    )]
    fn value_and_record_are_one_conditional_patch(#[case] to: WorkloadState, #[case] mut expected: Value) {
        expected["metadata"]["uid"] = json!("u");
        expected["metadata"]["resourceVersion"] = json!("7");

        let sleep = "2026-01-10T00:00:00Z".parse().ok();

        assert_eq!(conditional(OBJECT, "7", workload_state(&to, sleep)), expected);
    }

    #[test]
    fn all_labels_and_annotations_are_one_conditional_patch() {
        let at = "2026-01-10T00:00:00Z".parse().unwrap();
        let patch = MetadataPatch {
            state: Some(State::Sleep),
            sleep_after: Some(SignedDuration::from_hours(168)),
            activity: Some(Activity::recorded(at, Rule::FirstSeen)),
            last_activity: Some(at),
            sleep_started: Some(at),
            sleep_ended: false,
            set: vec![(TimeAnnotation::AsleepSince, at)],
            clear: vec![TimeAnnotation::AnnouncedAt],
            manual_sleep: Some(true),
            scheduled_sleep: Some(true),
        };

        let written = conditional(OBJECT, "7", metadata(&patch));

        let metadata = &written["metadata"];
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("u"), &json!("7")));
        assert_eq!(
            metadata["labels"],
            json!({
                "sleepmode.kubefree.com/state": "sleep", "sleepmode.kubefree.com/sleep-after": "168h",
                "caretaker.dev/last-activity": "20260110T000000Z",
                "caretaker.dev/sleep-started": "20260110T000000Z",
            })
        );
        let annotations = &metadata["annotations"];
        assert_eq!(annotations["caretaker.dev/asleep-since"], "2026-01-10T00:00:00Z");
        assert_eq!(annotations["caretaker.dev/default-policy"], "168h");
        assert_eq!(annotations["caretaker.dev/manual-sleep"], "true");
        assert_eq!(annotations[api::SCHEDULED_SLEEP], "true");
        assert_eq!(annotations["caretaker.dev/announced-at"], Value::Null);
        assert!(annotations[api::ACTIVITY].as_str().is_some_and(|a| a.contains("\"ActionBy\":\"FirstSeen\"")));
    }
}
