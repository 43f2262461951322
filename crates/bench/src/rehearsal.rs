//! Measures how fast a cluster is judged, simulated and read from files.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caretaker_core::limits::{Ledger, Limits};
use caretaker_core::simulate::{ExternalChange, Simulation};
use caretaker_core::{Parsed, RuleSet as _, SignedDuration, Timestamp};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::api::{Activity, State};
use caretaker_namespaces::attribution::ActivityAt;
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::observe::requests::PodRequests;
use caretaker_namespaces::subject::{Subject, World};
use caretaker_namespaces::workload::{ClaimPolicy, KubefreeTerm, Workload, WorkloadKind, WorkloadState};

use crate::Row;
use crate::operator::program;

const START: &str = "2026-03-02T09:00:00Z";
const DUMP: usize = 50_000_000;

pub(crate) fn rows() -> Result<Vec<Row>> {
    Ok(vec![
        judge(),
        simulate(0),
        simulate(50),
        plan("plan of 50 MB, only kinds that matter", &dump(false), "wanted: 3 s and 200 MB")?,
        plan("plan of 50 MB, Pods and ConfigMaps among them", &dump(true), "wanted: 3 s and 200 MB")?,
    ])
}

fn start() -> Timestamp {
    START.parse().expect("a time")
}

/// Makes namespaces in many different states.
fn subjects(count: usize) -> Vec<Subject> {
    let row = |kind, state| {
        let (name, uid, resource_version) = ("web".into(), String::new(), String::new());
        Workload {
            kind,
            name,
            uid,
            resource_version,
            excluded: false,
            own_sleep: false,
            state,
            unlabelled: None,
            requests: PodRequests::default(),
        }
    };
    (0..count)
        .map(|i| {
            let hours = |h: usize| SignedDuration::from_hours(i64::try_from(h).unwrap_or(0));
            let at = start() - hours(i % 400);
            let asleep = i % 3 == 0;
            Subject {
                name: format!("ns-{i}"),
                sleep_after: Parsed::Valid(hours(1 + i % 200)),
                delete_after: if i % 2 == 0 { Parsed::Valid(hours(1 + i % 500)) } else { Parsed::Missing },
                state: Parsed::Valid(if asleep { State::Sleep } else { State::Normal }),
                activity: Parsed::Valid(Activity {
                    by: "ListPods".into(),
                    user: "ann".into(),
                    ..Activity::reported(at)
                }),
                asleep_since: if asleep { Parsed::Valid(at + hours(1)) } else { Parsed::Missing },
                workloads: vec![
                    row(
                        WorkloadKind::Deployment,
                        WorkloadState::Scaled {
                            replicas: 0,
                            recorded: Parsed::Valid(3),
                            by_caretaker: true,
                            claims: ClaimPolicy::Retain,
                        },
                    ),
                    row(
                        WorkloadKind::DaemonSet,
                        WorkloadState::Placed { parked: asleep, kubefree: KubefreeTerm::Absent },
                    ),
                ],
                ..Subject::default()
            }
        })
        .collect()
}

fn judge() -> Row {
    let (subjects, world) = (subjects(10_000), World::default());
    let began = Instant::now();
    let acting = subjects.iter().filter(|s| Rule::judge(s, &world, start()).next.name() == "act").count();
    let took = began.elapsed();
    Row {
        what: "judge 10,000 namespaces",
        measured: millis(took),
        beside: format!("wanted: 20 ms; {acting} of them to act on"),
    }
}

/// Simulates a year of 1,000 namespaces, each with `uses_each` uses.
fn simulate(uses_each: usize) -> Row {
    let count = 1_000;
    let year = SignedDuration::from_hours(365 * 24);
    let uses: Vec<ExternalChange<Subject>> = (0..count)
        .flat_map(|subject| {
            (0..uses_each).map(move |i| {
                let hours = (i * 173 + subject * 7) % (365 * 24);
                let at = start() + SignedDuration::from_hours(i64::try_from(hours).unwrap_or(0));
                ActivityAt { at, subject, who: None }.change()
            })
        })
        .collect();
    let (keeper, world, limits) = (Namespaces::default(), World::default(), Limits::default());
    let mut simulation = Simulation::new(&keeper, world, subjects(count), limits, Ledger::default(), start());
    let began = Instant::now();
    let happened = simulation.run(start() + year, &uses).len();
    let took = began.elapsed();
    let what = if uses_each == 0 { "simulate 1,000 namespaces, a year" } else { "the same with 50,000 uses" };
    Row { what, measured: millis(took), beside: format!("wanted: 2 s; {happened} things happen") }
}

fn plan(what: &'static str, text: &str, wanted: &str) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("dump.yaml"), text)?;
    let (took, peak) = run(&program("caretaker")?, folder.path())?;
    Ok(Row { what, measured: millis(took), beside: format!("{wanted}; {peak} MB at its peak") })
}

/// Runs `caretaker plan`, and returns how long it took and its peak memory in MB.
///
/// The peak is read from `/proc` while the child runs. The kernel's figure for exited children would
/// include this process, because a child shares its pages until it executes another program.
fn run(program: &Path, folder: &Path) -> Result<(Duration, u64)> {
    let answer = folder.join("answer");
    let began = Instant::now();
    let mut child = Command::new(program)
        .args(["plan", "--at", START, "--from"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&answer)?)
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("running {}", program.display()))?;
    let mark = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let text = std::fs::read_to_string(&mark).unwrap_or_default();
        let kilobytes =
            text.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = began.elapsed();
    ensure!(status.success(), "caretaker plan failed: {status}");
    ensure!(std::fs::read_to_string(&answer)?.lines().count() > 100, "the plan is empty");
    Ok((took, peak / 1024))
}

/// Returns a list as `kubectl get -o yaml` prints it; `mixed` adds Pods and ConfigMaps.
fn dump(mixed: bool) -> String {
    let mut text = String::from("apiVersion: v1\nitems:\n");
    let mut i = 0;
    while text.len() < DUMP {
        if i % 20 == 0 {
            let n = i / 20;
            let _ = write!(
                text,
                "- apiVersion: v1\n  kind: Namespace\n  metadata:\n    annotations:\n      sleepmode.kubefree.com/activity-status: '{{\"LastActivityTime\":\"2026-03-01T00:00:00Z\",\"ActionBy\":\"ListPods\",\"UserInfo\":{{\"name\":\"ann\",\"uid\":\"\"}}}}'\n    labels:\n      sleepmode.kubefree.com/sleep-after: {}h\n    name: ns-{n}\n  status:\n    phase: Active\n",
                1 + n % 99
            );
        }
        let kind = match (mixed, i % 4) {
            (true, 1 | 2) => "Pod",
            (true, 3) => "ConfigMap",
            _ => "Deployment",
        };
        workload(&mut text, kind, i);
        i += 1;
    }
    text + "kind: List\nmetadata:\n  resourceVersion: \"\"\n"
}

fn workload(text: &mut String, kind: &str, i: usize) {
    let ns = i / 20;
    let _ = write!(
        text,
        "- apiVersion: apps/v1\n  kind: {kind}\n  metadata:\n    annotations:\n      deployment.kubernetes.io/revision: \"1\"\n    creationTimestamp: \"2026-01-01T00:00:00Z\"\n    generation: 1\n    labels:\n      app: web-{i}\n    name: web-{i}\n    namespace: ns-{ns}\n    resourceVersion: \"{i}\"\n    uid: 00000000-0000-0000-0000-{i:012}\n  spec:\n    progressDeadlineSeconds: 600\n    replicas: 2\n    revisionHistoryLimit: 10\n    selector:\n      matchLabels:\n        app: web-{i}\n    strategy:\n      rollingUpdate:\n        maxSurge: 25%\n        maxUnavailable: 25%\n      type: RollingUpdate\n    template:\n      metadata:\n        labels:\n          app: web-{i}\n      spec:\n        containers:\n        - args:\n          - --listen=:8080\n          env:\n          - name: MODE\n            value: production\n          image: registry.example/web:1.25\n          imagePullPolicy: IfNotPresent\n          name: web\n          ports:\n          - containerPort: 8080\n            protocol: TCP\n          resources:\n            requests:\n              cpu: 10m\n              memory: 10Mi\n          terminationMessagePath: /dev/termination-log\n          terminationMessagePolicy: File\n        dnsPolicy: ClusterFirst\n        restartPolicy: Always\n        schedulerName: default-scheduler\n        securityContext: {{}}\n        terminationGracePeriodSeconds: 30\n  status:\n    availableReplicas: 2\n    conditions:\n    - lastTransitionTime: \"2026-01-01T00:00:00Z\"\n      lastUpdateTime: \"2026-01-01T00:00:00Z\"\n      message: Deployment has minimum availability.\n      reason: MinimumReplicasAvailable\n      status: \"True\"\n      type: Available\n    observedGeneration: 1\n    readyReplicas: 2\n    replicas: 2\n    updatedReplicas: 2\n",
    );
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
