//! The supervisor: it owns every process of one throwaway cluster and outlives none of it.
//!
//! It reads orders from standard input, one a line, fields parted by tabs, and answers on standard
//! output. Standard input is a pipe whose other end only the test process holds: however that
//! process ends, by a return, a panic or SIGKILL, the kernel closes the pipe, and at end of file
//! the supervisor ends the children, unmounts what they mounted, removes their control groups and
//! network links, and deletes the cluster's folder. What it cannot remove it names, on standard
//! error and as `left TEXT` on standard output, and it exits with 1.
//!
//! Where it may, it is started in a PID namespace and a mount namespace of its own; then the kernel
//! does most of the same even if the supervisor itself is killed. Process 1 there is a shell that
//! only waits for it: a shell reaps the orphans that fall to process 1, which the standard library
//! cannot.
//!
//! | order | answer |
//! |---|---|
//! | `ping` | `ok` |
//! | `spawn NAME LOG PROGRAM ARG…` | `ok PID`, or `err TEXT` |
//! | `stop NAME` | `ok` once it is gone |
//! | `exited` | `ok`, or `ok NAME CODE` of a child that ended by itself |
//! | `run PROGRAM ARG…` | `ok`, or `err TEXT`: a command that ends by itself, in the same namespaces |
//! | `cgroups FOLDER` | `ok`: at the end the control groups of the containers listed there are removed |
//! | `link NAME` | `ok`: at the end this network link is removed |
//!
//! Only the standard library is used: `build.rs` compiles this file alone.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What the kernel has not let go of (a busy mount, a slow exit) is tried again this often; beyond
/// it something is stuck, and the rest of the clean-up must still happen.
const ATTEMPTS: u32 = 150;
const PAUSE: Duration = Duration::from_millis(20);

/// The longest command is the import of an image, about a second. A caller waits for the answer, so
/// none may hang for ever.
const COMMAND_LIMIT: Duration = Duration::from_mins(1);
const COMMAND_PAUSE: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: testkit-supervisor FOLDER"));
    let (orders, ended) = read_orders();
    let mut household = Household { folder, ended, ..Household::default() };
    for line in orders {
        if household.ended.load(Ordering::SeqCst) {
            break;
        }
        let answer = match household.obey(&line) {
            Ok(text) => format!("ok {text}"),
            Err(text) => format!("err {}", text.replace('\n', " ")),
        };
        // The reader may be gone already; then the next read is the end of file.
        if writeln!(io::stdout(), "{}", answer.trim_end()).and_then(|()| io::stdout().flush()).is_err() {
            break;
        }
    }
    let left = household.close();
    for what in &left {
        // Either stream may have lost its reader, and the other must still get its share.
        let _ = writeln!(io::stderr(), "testkit-supervisor: could not remove {what}");
        let _ = writeln!(io::stdout(), "left {}", what.replace('\n', " "));
    }
    if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// On a thread of its own, so that the end of file is noticed while an order is carried out.
fn read_orders() -> (Receiver<String>, Arc<AtomicBool>) {
    let (send, orders) = channel();
    let ended = Arc::new(AtomicBool::new(false));
    let at_end = Arc::clone(&ended);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if send.send(line).is_err() {
                break;
            }
        }
        at_end.store(true, Ordering::SeqCst);
    });
    (orders, ended)
}

#[derive(Default)]
struct Household {
    folder: PathBuf,
    ended: Arc<AtomicBool>,
    children: BTreeMap<String, Child>,
    tasks: Vec<PathBuf>,
    links: Vec<String>,
}

impl Household {
    fn obey(&mut self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split('\t').collect();
        match words.as_slice() {
            ["ping"] => Ok(String::new()),
            ["spawn", name, log, program, args @ ..] => self.spawn(name, log, program, args),
            ["stop", name] => self.stop(name).map(|()| String::new()),
            ["exited"] => self.exited(),
            ["run", program, args @ ..] => {
                run(program, args, || self.ended.load(Ordering::SeqCst)).map(|()| String::new())
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
            end(&mut earlier);
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
        let mut child = self.children.remove(name).ok_or_else(|| format!("no child is called {name}"))?;
        if end(&mut child) { Ok(()) } else { Err(format!("{name} does not end")) }
    }

    fn exited(&mut self) -> Result<String, String> {
        for (name, child) in &mut self.children {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Ok(format!("{name} {}", status.code().unwrap_or(-1))),
                Err(e) => return Err(format!("asking for {name}: {e}")),
            }
        }
        Ok(String::new())
    }

    /// Removes everything, and returns what would not go.
    fn close(mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (name, child) in &mut self.children {
            if !end(child) {
                left.push(format!("the process {name} ({})", child.id()));
            }
        }
        if self.is_alone() && !patiently(|| kill(&others())) {
            left.push(format!("the processes {:?}", others()));
        }
        for tasks in &self.tasks {
            for container in fs::read_dir(tasks).into_iter().flatten().flatten() {
                remove_cgroups(&Path::new("k8s.io").join(container.file_name()), &mut left);
            }
        }
        if !self.tasks.is_empty() {
            for base in cgroup_bases() {
                // containerd's name for all of them. Another containerd may be using it: then it is
                // not empty and stays.
                let _ = fs::remove_dir(base.join("k8s.io"));
            }
        }
        unmount_below(&self.folder, &mut left);
        for name in &self.links {
            let exists = || Path::new("/sys/class/net").join(name).exists();
            if !patiently(|| !exists() || run("ip", &["link", "delete", name], || false).is_ok()) && exists() {
                left.push(format!("the network link {name}"));
            }
        }
        if std::env::var_os("CARETAKER_KEEP").is_some() {
            let _ = writeln!(io::stderr(), "testkit-supervisor: {} is kept", self.folder.display());
        } else if !patiently(|| fs::remove_dir_all(&self.folder).is_ok() || !self.folder.exists()) {
            left.push(format!("the folder {}", self.folder.display()));
        }
        left
    }

    /// Whether this PID namespace is ours: then its process 1 was given our folder, and whatever
    /// the children left behind (container shims, the containers themselves) is ours as well.
    fn is_alone(&self) -> bool {
        let words = fs::read("/proc/1/cmdline").unwrap_or_default();
        words.split(|b| *b == 0).any(|word| word == self.folder.as_os_str().as_encoded_bytes())
    }
}

/// Kills a child and waits for it; false if the kernel keeps it.
fn end(child: &mut Child) -> bool {
    // Fails only if it has ended already, which is what is wanted.
    let _ = child.kill();
    patiently(|| !matches!(child.try_wait(), Ok(None)))
}

/// Every process here but process 1 and this one.
fn others() -> Vec<u32> {
    let here = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = here.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != 1 && *pid != std::process::id()).collect()
}

/// True once there is nobody to kill.
fn kill(pids: &[u32]) -> bool {
    if pids.is_empty() {
        return true;
    }
    let words: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut args = vec!["-c", "kill -KILL \"$@\"", "sh"];
    args.extend(words.iter().map(String::as_str));
    // A failure means that one of them is gone already; the next look tells.
    let _ = run("sh", &args, || false);
    false
}

/// Runs a command to its end, or until `give_up` says so.
fn run(program: &str, args: &[&str], give_up: impl Fn() -> bool) -> Result<(), String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {program}: {e}"))?;
    let mut stderr = child.stderr.take().expect("piped");
    // Read beside the waiting: a full pipe would stop the command.
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = stderr.read_to_end(&mut said);
        String::from_utf8_lossy(&said).trim().to_owned()
    });
    let began = Instant::now();
    let failed = |why: &str| Err(format!("{program} {}: {why}", args.join(" ")));
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let said = said.join().unwrap_or_default();
                return failed(if said.is_empty() { status.to_string() } else { said }.as_str());
            }
            Ok(None) if give_up() => {
                end(&mut child);
                return failed("the cluster ends");
            }
            Ok(None) if began.elapsed() > COMMAND_LIMIT => {
                end(&mut child);
                return failed(&format!("did not end within {} s", COMMAND_LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(COMMAND_PAUSE),
            Err(e) => return failed(&e.to_string()),
        }
    }
}

/// Tries until it is done; false if it never is.
fn patiently(mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..ATTEMPTS {
        if done() {
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

/// Deepest first, again until none is left: mounts can be stacked on one folder.
fn unmount_below(folder: &Path, left: &mut Vec<String>) {
    let Some(prefix) = folder.to_str().map(|f| format!("{f}/")) else { return };
    let mounted = || -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|l| l.split(' ').nth(4));
        let mut points: Vec<String> = points.filter(|p| p.starts_with(&prefix)).map(str::to_owned).collect();
        points.sort_unstable_by_key(|p| std::cmp::Reverse(p.len()));
        points
    };
    let done = patiently(|| {
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

/// cgroup v1 has one tree per controller, v2 has one in all.
fn cgroup_bases() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let controllers = fs::read_dir(&root).into_iter().flatten().flatten().map(|e| e.path());
    controllers.filter(|p| p.is_dir()).chain([root.clone()]).collect()
}

/// A control group can be removed once it is empty, its children before it.
fn remove_cgroups(name: &Path, left: &mut Vec<String>) {
    for base in cgroup_bases() {
        let group = base.join(name);
        let gone = patiently(|| {
            remove_tree(&group);
            !group.exists()
        });
        if !gone {
            left.push(format!("the control group {}", group.display()));
        }
    }
}

fn remove_tree(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}
