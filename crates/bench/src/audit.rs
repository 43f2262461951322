//! Measures how many audit events one core processes, from the bytes of a batch to the last use of each
//! namespace.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::event;
use caretaker_activity::filter::{Filter, PatternLists};
use caretaker_activity::state::ActivityState;
use caretaker_core::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::Row;

/// Events in a batch: the most that the API server sends by default.
const BATCH: usize = 400;
const BATCHES: usize = 250;
const START: i64 = 1_772_442_000;

pub(crate) fn rows() -> Result<Vec<Row>> {
    let batches: Vec<Vec<u8>> = (0..BATCHES).map(batch).collect();
    let events = BATCH * BATCHES;
    let bytes: usize = batches.iter().map(Vec::len).sum();

    let (values, generic) =
        timed(|| batches.iter().filter(|body| serde_json::from_slice::<Value>(body).is_ok()).count());
    ensure!(values == BATCHES, "a batch is not JSON");
    let (read, typed) = timed(|| {
        let mut count = 0;
        for body in &batches {
            let _ = event::decode_batch(body, |event| count += usize::from(event.is_some()));
        }
        count
    });
    ensure!(read == events, "{read} of {events} were read");
    let (collector, whole) = timed(|| {
        let collector = ActivityCollector::new(
            ActivityState::new(
                Filter::new(&PatternLists::ignored_by_default(), &PatternLists::default()),
                Some(SignedDuration::from_mins(30)),
                SignedDuration::from_hours(24),
            ),
            || Timestamp::constant(START + 86_400, 0),
        );
        for body in &batches {
            // Every batch was decoded above, so this does not fail.
            let _ = collector.add_batch(body);
        }
        collector
    });
    let pending = collector.take_pending();
    let counted: u64 = collector.activity_by_namespace().iter().map(|namespace| namespace.counted).sum();
    ensure!(!pending.is_empty() && counted > 0, "nothing counted");
    #[expect(clippy::cast_precision_loss, reason = "a count of events")]
    let rate = |took: Duration| events as f64 / took.as_secs_f64();
    let own = format!("wanted: 100,000; {counted} of {events} count, in {} namespaces", pending.len());
    Ok(vec![
        Row { what: "audit events a second, one core", measured: format!("{:.0}", rate(whole)), beside: own },
        Row {
            what: "  of which reading them",
            measured: format!("{:.0}", rate(typed)),
            beside: format!("{} bytes each", bytes / events),
        },
        Row {
            what: "  serde_json into its own Value",
            measured: format!("{:.0}", rate(generic)),
            beside: format!("{:.2} times as fast as that", rate(whole) / rate(generic)),
        },
    ])
}

/// Runs `work` five times, and returns the last result and the shortest time.
fn timed<T>(mut work: impl FnMut() -> T) -> (T, Duration) {
    let mut best = Duration::MAX;
    let mut result = None;
    for _ in 0..5 {
        let began = Instant::now();
        result = Some(work());
        best = best.min(began.elapsed());
    }
    (result.expect("it ran five times"), best)
}

/// Makes a batch with the mixture of a large cluster: most events come from Kubernetes' own components.
fn batch(number: usize) -> Vec<u8> {
    let items: Vec<Value> = (0..BATCH).map(|i| item(number * BATCH + i)).collect();
    let list = json!({ "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": items });
    serde_json::to_vec(&list).context("JSON").unwrap_or_default()
}

fn item(i: usize) -> Value {
    let namespace = format!("team-{}", i * 7 % 500);
    let account = format!("system:serviceaccount:{namespace}:web");
    let person = format!("person-{}@example.com", i % 90);
    let (user, groups, verb, resource, group, sub, agent): (&str, &[&str], _, _, _, _, _) = match i % 10 {
        0 | 1 => (
            "system:node:worker-17",
            &["system:nodes", "system:authenticated"],
            "get",
            "configmaps",
            "",
            "",
            "kubelet/v1.36.3 (linux/amd64) kubernetes/abcdef0",
        ),
        2 => (
            "system:node:worker-17",
            &["system:nodes", "system:authenticated"],
            "patch",
            "pods",
            "",
            "status",
            "kubelet/v1.36.3 (linux/amd64) kubernetes/abcdef0",
        ),
        3 | 4 => (
            "system:serviceaccount:kube-system:deployment-controller",
            &["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
            "update",
            "deployments",
            "apps",
            "",
            "kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/abcdef0/system:serviceaccount:kube-system:deployment-controller",
        ),
        5 => (
            &account,
            &["system:serviceaccounts", "system:authenticated"],
            "update",
            "leases",
            "coordination.k8s.io",
            "",
            "web/v0.0.0 (linux/amd64)",
        ),
        6 => (
            "system:kube-scheduler",
            &["system:authenticated"],
            "create",
            "pods",
            "",
            "binding",
            "kube-scheduler/v1.36.3",
        ),
        7 => (
            "system:serviceaccount:platform:operator",
            &["system:serviceaccounts", "system:authenticated"],
            "watch",
            "secrets",
            "",
            "",
            "operator/v0.0.0 (linux/amd64) kubernetes/$Format",
        ),
        8 => (
            &person,
            &["dev", "oncall", "system:authenticated"],
            "list",
            "pods",
            "",
            "",
            "kubectl/v1.36.3 (darwin/arm64) kubernetes/abcdef0",
        ),
        _ => (
            &person,
            &["dev", "oncall", "system:authenticated"],
            "patch",
            "deployments",
            "apps",
            "",
            "kubectl/v1.36.3 (darwin/arm64) kubernetes/abcdef0",
        ),
    };
    let at = Timestamp::from_microsecond((START * 1_000_000) + i64::try_from(i).unwrap_or(0) * 731).unwrap_or_default();
    json!({
        "level": "Metadata",
        "auditID": format!("{:08x}-1f2e-4d3c-8b9a-{:012x}", i, i * 977),
        "stage": "ResponseComplete",
        "requestURI": format!("/apis/{group}/v1/namespaces/{namespace}/{resource}/name-{}?limit=500&resourceVersion=0", i % 1_000),
        "verb": verb,
        "user": { "username": user, "uid": "4f2a7c1e-8f3b-4f57-9d39-5e7d60f2b1aa", "groups": groups, "extra": {
            "authentication.kubernetes.io/credential-id": ["JTI=0f9d6f9c-5a57-44a1-a1b2-6f8a2d6c1e11"],
        } },
        "sourceIPs": ["10.12.7.33"],
        "userAgent": agent,
        "objectRef": { "resource": resource, "namespace": namespace, "name": format!("name-{}", i % 1_000), "apiGroup": group, "apiVersion": "v1", "subresource": sub },
        "responseStatus": { "metadata": {}, "code": 200 },
        "requestReceivedTimestamp": format!("{at:.6}"),
        "stageTimestamp": format!("{at:.6}"),
        "annotations": { "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: allowed by ClusterRoleBinding \"edit\" of ClusterRole \"edit\" to Group \"dev\"" },
    })
}
