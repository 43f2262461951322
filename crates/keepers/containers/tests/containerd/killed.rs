//! A process that cleans is killed with SIGKILL at each of its steps, those on the host included; the next process
//! completes the cleaning. All on a real containerd.

use crate::lab;

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use crate::support::faulty::deadly::{Deadly, Death, HostSteps, Steps};
use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::act::residue;
use caretaker_containers::containerd::{Containerd as _, GrpcClient};
use caretaker_containers::host::Host;
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use futures::StreamExt as _;
use lab::{Lab, Outcome, STATES, State, now, orphan};
use rustix::mount::{MountFlags, mount};

/// Says to this program that it is the process that cleans.
const CLEAN: &str = "clean-this-container-and-die";
/// The signal that nobody can catch.
const SIGKILL: i32 = 9;
/// So many are cleaned at once.
const CONCURRENCY: usize = 6;

/// Does what this process was started for, if it was started by a test to clean.
pub fn job() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mark, job) = words.split_first()?;
    (mark == CLEAN).then(|| clean(job))
}

pub fn tests() -> Vec<Trial> {
    let tests = [test_on_both("killed_at_any_step_it_is_completed_by_the_next_process", killed_at_any_step)];
    tests.into_iter().flatten().collect()
}

/// What the process that cleans does. Its arguments: the container, where it dies, the socket, the folder of FIFOs, the
/// state folder of containerd.
fn clean(job: &[String]) -> ExitCode {
    let [id, before, during, socket, fifo_root, state] = job else { panic!("{job:?}") };
    let death = match (before.parse(), during.parse()) {
        (Ok(step), _) => Death::Before(step),
        (_, Ok(call)) => Death::During(call),
        _ => Death::Before(usize::MAX),
    };
    let steps = Steps::new(death);
    tracing::subscriber::set_global_default(HostSteps(steps.clone())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cleaned = runtime.block_on(async {
        let client = Arc::new(GrpcClient::new(Path::new(socket), "k8s.io").unwrap());
        // It knows nothing but what containerd has.
        let Some(container) = client.get(id).await.unwrap() else { return Ok(()) };
        let host = Host { fifo_root: fifo_root.into(), state: state.into(), ..Host::default() };
        Cleaner::new(Arc::new(Deadly { inner: client, steps }), Arc::new(host)).clean(&container, now()).await.map(drop)
    });
    match cleaned {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs that process. Returns the steps that it began if it was killed; `None` if it has cleaned the container.
async fn dies(lab: &Lab, id: &str, death: Option<Death>) -> Result<Option<Vec<String>>, Box<dyn std::error::Error>> {
    let (before, during) = match death {
        None => (String::new(), String::new()),
        Some(Death::Before(step)) => (step.to_string(), String::new()),
        Some(Death::During(call)) => (String::new(), call.to_string()),
    };
    let ended = tokio::process::Command::new(std::env::current_exe()?)
        .args([CLEAN, id, &before, &during])
        .args([&lab.containerd().socket(), &lab.host.fifo_root, &lab.host.state])
        .stdin(Stdio::null())
        .output()
        .await?;
    let steps: Vec<String> = String::from_utf8(ended.stdout)?.lines().map(str::to_owned).collect();
    match (ended.status.success(), ended.status.signal()) {
        (true, _) => Ok(None),
        (_, Some(SIGKILL)) => Ok(Some(steps)),
        _ => {
            let said = String::from_utf8_lossy(&ended.stderr);
            Err(format!("cleaning {id}, which is to die at {death:?}: {said}; {steps:?}").into())
        }
    }
}

/// Why a cleaning may end early while containerd itself still removes what the process before has left: it is tried again.
const PASSING: [&str; 3] = ["left:", "it has a shim", "has not ended"];

/// The next process cleans it. What containerd has a part in may need a third.
async fn completes(lab: &Lab, before: Before, id: &str) -> Outcome {
    let mut tries = if matches!(before, Before::Whole(_)) { 3 } else { 1 };
    loop {
        tries -= 1;
        match dies(lab, id, None).await {
            Ok(None) => return Ok(()),
            Ok(Some(steps)) => return Err(format!("nothing kills the next process: {steps:?}").into()),
            Err(error) => {
                let passes = PASSING.iter().any(|reason| error.to_string().contains(reason));
                if !passes || tries == 0 {
                    return Err(error);
                }
                eprintln!("{before:?}: tried again: {error}");
            }
        }
    }
}

/// What there is of a container before it is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Everything, with a task in this state.
    Whole(State),
    /// What containerd has no part in any more: a bundle with a mount, a control group with a process in it.
    LeftAlone,
    /// A bundle, and a shim that nobody ends.
    Shim,
}

/// Processes that belong to a container; collected as soon as they end, as the first process of a node does.
fn collected(child: std::io::Result<Child>) -> std::io::Result<u32> {
    let mut child = child?;
    let (pid, input) = (child.id(), child.stdin.take());
    std::thread::spawn(move || {
        let ended = child.wait();
        drop(input);
        ended
    });
    Ok(pid)
}

impl Before {
    async fn make(self, lab: &Lab, id: &str) -> Outcome {
        let Self::Whole(state) = self else {
            lab.create(id, &orphan(), State::NoTask).await?;
            return self.leave(lab, id).await;
        };
        lab.create(id, &orphan(), state).await
    }

    async fn leave(self, lab: &Lab, id: &str) -> Outcome {
        let container = lab.get(id).await.ok_or("it was made")?;
        let rootfs = lab.bundle(id).join("rootfs");
        std::fs::create_dir_all(&rootfs)?;
        let spec = serde_json::json!({ "linux": { "cgroupsPath": container.cgroup } });
        std::fs::write(lab.bundle(id).join("config.json"), spec.to_string())?;
        if self == Self::Shim {
            // It reads from a pipe that stays open.
            let mut shim = Command::new("sh");
            shim.arg0("containerd-shim-runc-v2").args(["-c", "read line", "-namespace", "k8s.io", "-id", id]);
            collected(shim.stdin(Stdio::piped()).spawn())?;
            return Ok(());
        }
        mount("tmpfs", &rootfs, "tmpfs", MountFlags::empty(), None)?;
        std::fs::write(rootfs.join("file"), "on another file system")?;
        let process = collected(Command::new("sleep").arg("3600").spawn())?;
        let group = lab.host.cgroups.join("pids").join(container.cgroup.trim_start_matches('/'));
        std::fs::create_dir_all(group.join("child"))?;
        std::fs::write(group.join("cgroup.procs"), process.to_string())?;
        Ok(())
    }
}

/// One container dies there, and the next process completes it. Returns the step at which it died.
async fn dies_there(lab: &Lab, before: Before, death: Death) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let words = format!("{before:?} {death:?}").to_lowercase().replace(['(', ')'], " ");
    let id = &words.split_whitespace().collect::<Vec<_>>().join("-");
    before.make(lab, id).await?;
    let container = lab.get(id).await.ok_or("it was made")?;
    assert_ne!(lab.traces(&container).await, [""; 0]);

    let died = dies(lab, id, Some(death)).await?;
    completes(lab, before, id).await?;

    assert_eq!(lab.traces(&container).await, [""; 0], "{before:?}, killed at {death:?}: {died:?}");
    Ok(died.map(|mut steps| steps.pop().unwrap_or_default()))
}

/// Dies at each step in turn. Returns the steps.
async fn dies_everywhere(
    lab: &Lab,
    before: Before,
    death: fn(usize) -> Death,
) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut steps = BTreeMap::new();
    for first in (1..).step_by(CONCURRENCY) {
        let next = (first..first + CONCURRENCY).map(|n| async move { (n, dies_there(lab, before, death(n)).await) });
        let mut all = futures::stream::iter(next).buffer_unordered(CONCURRENCY);
        while let Some((n, died)) = all.next().await {
            steps.extend(died?.map(|step| (n, step)));
        }
        // On a busy machine a run may have fewer steps than another, as it asks less often whether something has ended.
        if (first..first + CONCURRENCY).all(|n| !steps.contains_key(&n)) {
            break;
        }
    }
    Ok(steps.into_values().collect())
}

async fn killed_at_any_step() -> Outcome {
    let lab = Lab::start().await?;
    let all = STATES.map(Before::Whole).into_iter().chain([Before::LeftAlone, Before::Shim]);
    for before in all {
        let steps = dies_everywhere(&lab, before, Death::Before).await?;
        let mut expected = vec![
            "get",
            "task",
            "set_labels",
            "remove_snapshot",
            "removing FIFO",
            "removing folder if",
            "delete_container",
        ];
        expected.extend(match before {
            Before::Whole(State::NoTask) => &[][..],
            Before::Whole(State::Stopped) => &["delete_task"],
            Before::Whole(_) => &["kill", "wait", "delete_task"],
            Before::LeftAlone => &["killing", "unmounting", "removing folder", "removing control group"],
            Before::Shim => &["ending shim", "removing folder"],
        });
        for step in expected {
            assert!(steps.iter().any(|made| made.starts_with(step)), "{before:?}: no {step} in {steps:?}");
        }
    }
    for before in [State::NoTask, State::Running, State::Stopped].map(Before::Whole) {
        let calls = dies_everywhere(&lab, before, Death::During).await?;
        assert!(calls.len() >= 3, "{before:?}: {calls:?}");
    }

    let left = residue::find(&*lab.client, &lab.host, "overlayfs").await?;
    assert!(left.is_empty(), "{left:?}");
    assert!(std::fs::read_dir(&lab.host.fifo_root)?.next().is_none(), "no folder of FIFOs is left");
    Ok(())
}
