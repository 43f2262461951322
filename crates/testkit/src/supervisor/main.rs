//! The supervisor: starts the processes of one throwaway cluster, and removes everything at the end.
//!
//! It reads orders from standard input, one per line with tab-separated fields, and answers on standard
//! output. Standard input is a pipe from the test process. When that process ends, by a return, a panic
//! or SIGKILL, the kernel closes the pipe. At end of file the supervisor kills the child processes,
//! removes their mounts, control groups and network links, and deletes the cluster's folder. It reports
//! what it could not remove, on standard error and as `left TEXT` on standard output, and exits with 1.
//!
//! If permitted, it runs in its own PID and mount namespace; then the kernel does most of the clean-up
//! even if the supervisor itself is killed. Process 1 of that namespace is a shell that waits for the
//! supervisor and reaps orphans, which the standard library cannot do.
//!
//! | order | answer |
//! |---|---|
//! | `ping` | `ok` |
//! | `spawn NAME LOG PROGRAM ARG…` | `ok PID`, or `err TEXT` |
//! | `stop NAME` | `ok` when the child has exited, or `err TEXT` |
//! | `exited` | `ok`, or `ok NAME CODE` of a child that exited without being stopped |
//! | `run PROGRAM ARG…` | `ok`, or `err TEXT`: runs a command to its end, in the same namespaces |
//! | `cgroups FOLDER` | `ok`: the control groups of the containers listed in FOLDER are removed at the end |
//! | `link NAME` | `ok`: this network link is removed at the end |
//!
//! This file uses only the standard library, because `build.rs` compiles it alone.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Attempts to remove something that the kernel still uses, such as a busy mount. After these the
/// supervisor goes on with the rest of the clean-up.
const ATTEMPTS: u32 = 150;
const PAUSE: Duration = Duration::from_millis(20);

/// Limit for a command of the order `run`, because the test waits for the answer. The longest command,
/// the import of an image, takes about a second.
const COMMAND_LIMIT: Duration = Duration::from_mins(1);
const COMMAND_PAUSE: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: testkit-supervisor FOLDER"));
    let (orders, ended) = read_orders();
    let mut resources = Resources { folder, input_ended: ended, ..Resources::default() };
    for line in orders {
        if resources.input_ended.load(Ordering::SeqCst) {
            break;
        }
        let answer = match resources.handle(&line) {
            Ok(text) => format!("ok {text}"),
            Err(text) => format!("err {}", text.replace('\n', " ")),
        };
        // A failed write means that the test process has ended.
        if writeln!(io::stdout(), "{}", answer.trim_end()).and_then(|()| io::stdout().flush()).is_err() {
            break;
        }
    }
    let left = resources.remove_all();
    for what in &left {
        // A stream without a reader must not keep the report from the other stream.
        let _ = writeln!(io::stderr(), "testkit-supervisor: could not remove {what}");
        let _ = writeln!(io::stdout(), "left {}", what.replace('\n', " "));
    }
    if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reads orders on a separate thread, and returns them with a flag that is set at end of file. The flag
/// is set also while an order is running.
fn read_orders() -> (Receiver<String>, Arc<AtomicBool>) {
    let (send, orders) = channel();
    let ended = Arc::new(AtomicBool::new(false));
    let set_ended = Arc::clone(&ended);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if send.send(line).is_err() {
                break;
            }
        }
        set_ended.store(true, Ordering::SeqCst);
    });
    (orders, ended)
}

/// Everything that the supervisor removes at the end.
#[derive(Default)]
struct Resources {
    folder: PathBuf,
    /// Set at the end of standard input.
    input_ended: Arc<AtomicBool>,
    children: BTreeMap<String, Child>,
    /// containerd's folders with one entry for each container.
    tasks: Vec<PathBuf>,
    links: Vec<String>,
}

impl Resources {
    /// Carries out one order, and returns the text after `ok` or `err`.
    fn handle(&mut self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split('\t').collect();
        match words.as_slice() {
            ["ping"] => Ok(String::new()),
            ["spawn", name, log, program, args @ ..] => self.spawn(name, log, program, args),
            ["stop", name] => self.stop(name).map(|()| String::new()),
            ["exited"] => self.exited(),
            ["run", program, args @ ..] => {
                run(program, args, || self.input_ended.load(Ordering::SeqCst)).map(|()| String::new())
            }
            ["cgroups", tasks] => {
                self.tasks.push(PathBuf::from(tasks));
                Ok(String::new())
            }
            ["link", name] => {
                self.links.push((*name).to_owned());
                Ok(String::new())
            }
            _ => Err(format!("unknown order: {line}")),
        }
    }

    fn spawn(&mut self, name: &str, log: &str, program: &str, args: &[&str]) -> Result<String, String> {
        let open = || -> io::Result<(File, File)> {
            let file = OpenOptions::new().create(true).append(true).open(log)?;
            Ok((file.try_clone()?, file))
        };
        let (out, err) = open().map_err(|e| format!("cannot open {log}: {e}"))?;
        if let Some(mut earlier) = self.children.remove(name) {
            kill_and_wait(&mut earlier);
        }
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|e| format!("cannot start {program}: {e}"))?;
        let pid = child.id();
        self.children.insert(name.to_owned(), child);
        Ok(pid.to_string())
    }

    fn stop(&mut self, name: &str) -> Result<(), String> {
        let mut child = self.children.remove(name).ok_or_else(|| format!("no process {name} is running"))?;
        if kill_and_wait(&mut child) { Ok(()) } else { Err(format!("{name} did not exit after SIGKILL")) }
    }

    fn exited(&mut self) -> Result<String, String> {
        for (name, child) in &mut self.children {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Ok(format!("{name} {}", status.code().unwrap_or(-1))),
                Err(e) => return Err(format!("reading the status of {name}: {e}")),
            }
        }
        Ok(String::new())
    }

    /// Removes everything, and returns what could not be removed.
    fn remove_all(mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (name, child) in &mut self.children {
            if !kill_and_wait(child) {
                left.push(format!("the process {name} ({})", child.id()));
            }
        }
        if self.owns_pid_namespace() && !retry(|| kill_all(&other_pids())) {
            left.push(format!("the processes {:?}", other_pids()));
        }
        for tasks in &self.tasks {
            for container in fs::read_dir(tasks).into_iter().flatten().flatten() {
                remove_cgroups(&Path::new("k8s.io").join(container.file_name()), &mut left);
            }
        }
        if !self.tasks.is_empty() {
            for base in cgroup_bases() {
                // The parent group of all containers. It stays if another containerd uses it, because
                // then it is not empty.
                let _ = fs::remove_dir(base.join("k8s.io"));
            }
        }
        unmount_below(&self.folder, &mut left);
        for name in &self.links {
            let exists = || Path::new("/sys/class/net").join(name).exists();
            if !retry(|| !exists() || run("ip", &["link", "delete", name], || false).is_ok()) && exists() {
                left.push(format!("the network link {name}"));
            }
        }
        if std::env::var_os("CARETAKER_KEEP").is_some() {
            let _ = writeln!(
                io::stderr(),
                "testkit-supervisor: CARETAKER_KEEP is set, so {} is not deleted",
                self.folder.display()
            );
        } else if !retry(|| fs::remove_dir_all(&self.folder).is_ok() || !self.folder.exists()) {
            left.push(format!("the folder {}", self.folder.display()));
        }
        left
    }

    /// True if process 1 was started with this cluster's folder as argument: then the PID namespace belongs
    /// to this cluster, and so does every process in it, such as container shims and containers.
    fn owns_pid_namespace(&self) -> bool {
        let words = fs::read("/proc/1/cmdline").unwrap_or_default();
        words.split(|b| *b == 0).any(|word| word == self.folder.as_os_str().as_encoded_bytes())
    }
}

/// Kills a child and waits until it has exited; false if it does not.
fn kill_and_wait(child: &mut Child) -> bool {
    // Fails only if the child has exited already.
    let _ = child.kill();
    retry(|| !matches!(child.try_wait(), Ok(None)))
}

/// Returns every process of this PID namespace except process 1 and this one.
fn other_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != 1 && *pid != std::process::id()).collect()
}

/// Sends SIGKILL to the processes; true if there were none.
fn kill_all(pids: &[u32]) -> bool {
    if pids.is_empty() {
        return true;
    }
    let words: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut args = vec!["-c", "kill -KILL \"$@\"", "sh"];
    args.extend(words.iter().map(String::as_str));
    // Fails if one of them has exited already; the caller calls again with those that remain.
    let _ = run("sh", &args, || false);
    false
}

/// Runs a command until it ends, `cancelled` returns true, or the time limit passes.
fn run(program: &str, args: &[&str], cancelled: impl Fn() -> bool) -> Result<(), String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {program}: {e}"))?;
    let mut stderr = child.stderr.take().expect("piped");
    // On its own thread, because a full pipe would block the command.
    let output = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).trim().to_owned()
    });
    let began = Instant::now();
    let failed = |why: &str| Err(format!("{program} {}: {why}", args.join(" ")));
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let text = output.join().unwrap_or_default();
                return failed(if text.is_empty() { status.to_string() } else { text }.as_str());
            }
            Ok(None) if cancelled() => {
                kill_and_wait(&mut child);
                return failed("stopped, because the cluster is ending");
            }
            Ok(None) if began.elapsed() > COMMAND_LIMIT => {
                kill_and_wait(&mut child);
                return failed(&format!("did not end within {} s", COMMAND_LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(COMMAND_PAUSE),
            Err(e) => return failed(&e.to_string()),
        }
    }
}

/// Calls `done` until it returns true, at most [`ATTEMPTS`] times; false if it never does.
fn retry(mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..ATTEMPTS {
        if done() {
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

/// Unmounts everything below the folder, the deepest first. Repeats, because mounts can be stacked on one
/// folder. Adds what stays mounted to `left`.
fn unmount_below(folder: &Path, left: &mut Vec<String>) {
    let Some(prefix) = folder.to_str().map(|f| format!("{f}/")) else { return };
    let mounted = || -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|l| l.split(' ').nth(4));
        let mut points: Vec<String> = points.filter(|p| p.starts_with(&prefix)).map(str::to_owned).collect();
        points.sort_unstable_by_key(|p| std::cmp::Reverse(p.len()));
        points
    };
    let done = retry(|| {
        let points = mounted();
        for point in &points {
            let _ = run("umount", &["--lazy", point], || false);
        }
        points.is_empty()
    });
    if !done {
        left.extend(mounted().iter().map(|point| format!("the mount {point}")));
    }
}

/// Returns the root folders of control groups: cgroup v1 has one for each controller, v2 has a single one.
fn cgroup_bases() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let controllers = fs::read_dir(&root).into_iter().flatten().flatten().map(|e| e.path());
    controllers.filter(|p| p.is_dir()).chain([root.clone()]).collect()
}

/// Removes a control group under every root. Adds to `left` what could not be removed.
fn remove_cgroups(name: &Path, left: &mut Vec<String>) {
    for base in cgroup_bases() {
        let group = base.join(name);
        let gone = retry(|| {
            remove_tree(&group);
            !group.exists()
        });
        if !gone {
            left.push(format!("the control group {}", group.display()));
        }
    }
}

/// Removes a control group after its children: only an empty group can be removed.
fn remove_tree(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}
