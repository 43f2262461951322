//! The supervisor: it owns every process of one throwaway cluster and outlives none of it.
//!
//! It reads orders from standard input, one a line, fields parted by tabs, and answers on standard
//! output. Standard input is a pipe whose other end only the test process holds: however that
//! process ends, by a return, a panic or SIGKILL, the kernel closes the pipe, and at end of file
//! the supervisor ends the children, unmounts what they mounted, removes their control groups and
//! network links, and deletes the cluster's folder.
//!
//! Where it may, it is started as process 1 of a PID namespace and in a mount namespace of its
//! own; then the kernel does the same even if the supervisor itself is killed.
//!
//! | order | answer |
//! |---|---|
//! | `spawn NAME LOG PROGRAM ARG…` | `ok PID`, or `err TEXT` |
//! | `stop NAME` | `ok` once it is gone |
//! | `state NAME` | `ok running`, `ok exited CODE` |
//! | `run PROGRAM ARG…` | `ok`, or `err TEXT`: a command that ends by itself, in the same namespaces |
//! | `cgroups FOLDER` | `ok`: at the end the control groups of the containers listed there are removed |
//! | `link NAME` | `ok`: at the end this network link is removed |
//!
//! Only the standard library is used: `build.rs` compiles this file alone.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A child that the kernel has not let go of (a busy mount, a slow exit) is asked again this often;
/// beyond it something is stuck in the kernel, and the rest of the clean-up must still happen.
const ATTEMPTS: u32 = 50;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

fn main() {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: supervisor FOLDER"));
    let mut household = Household { folder, ..Household::default() };
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = match household.obey(&line) {
            Ok(text) => format!("ok {text}"),
            Err(text) => format!("err {}", text.replace('\n', " ")),
        };
        // The reader may be gone already; then the next read is the end of file.
        if writeln!(io::stdout(), "{}", answer.trim_end()).and_then(|()| io::stdout().flush()).is_err() {
            break;
        }
    }
    household.close();
}

#[derive(Default)]
struct Household {
    folder: PathBuf,
    children: BTreeMap<String, Child>,
    tasks: Vec<PathBuf>,
    links: Vec<String>,
}

impl Household {
    fn obey(&mut self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split('\t').collect();
        match words.as_slice() {
            ["spawn", name, log, program, args @ ..] => self.spawn(name, log, program, args),
            ["stop", name] => self.stop(name).map(|()| String::new()),
            ["state", name] => self.state(name),
            ["run", program, args @ ..] => run(program, args).map(|()| String::new()),
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
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|e| format!("cannot start {program}: {e}"))?;
        let pid = child.id();
        if let Some(mut earlier) = self.children.insert(name.to_owned(), child) {
            end(&mut earlier);
        }
        Ok(pid.to_string())
    }

    fn stop(&mut self, name: &str) -> Result<(), String> {
        let mut child = self.children.remove(name).ok_or_else(|| format!("no child is called {name}"))?;
        end(&mut child);
        Ok(())
    }

    fn state(&mut self, name: &str) -> Result<String, String> {
        let child = self.children.get_mut(name).ok_or_else(|| format!("no child is called {name}"))?;
        match child.try_wait() {
            Ok(None) => Ok("running".to_owned()),
            Ok(Some(status)) => Ok(format!("exited {}", status.code().unwrap_or(-1))),
            Err(e) => Err(e.to_string()),
        }
    }

    fn close(mut self) {
        for child in self.children.values_mut() {
            end(child);
        }
        // As process 1 of a PID namespace, whatever the children left behind (container shims, the
        // containers themselves) is ours as well, and nothing else is.
        if std::process::id() == 1 {
            let _ = run("kill", &["-KILL", "-1"]);
        }
        for tasks in &self.tasks {
            for container in fs::read_dir(tasks).into_iter().flatten().flatten() {
                remove_cgroups(&Path::new("k8s.io").join(container.file_name()));
            }
        }
        unmount_below(&self.folder);
        for name in &self.links {
            let _ = run("ip", &["link", "delete", name]);
        }
        if std::env::var_os("CARETAKER_KEEP").is_none() {
            patiently(|| fs::remove_dir_all(&self.folder).is_ok() || !self.folder.exists());
        }
    }
}

fn end(child: &mut Child) {
    // Both fail only if it has ended already, which is what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot start {program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

fn patiently(mut done: impl FnMut() -> bool) {
    for _ in 0..ATTEMPTS {
        if done() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Deepest first, again until none is left: mounts can be stacked on one folder.
fn unmount_below(folder: &Path) {
    let Some(prefix) = folder.to_str().map(|f| format!("{f}/")) else { return };
    patiently(|| {
        let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return true };
        let mut points: Vec<&str> =
            table.lines().filter_map(|l| l.split(' ').nth(4)).filter(|p| p.starts_with(&prefix)).collect();
        points.sort_unstable_by_key(|p| std::cmp::Reverse(p.len()));
        for point in &points {
            let _ = run("umount", &["--lazy", point]);
        }
        points.is_empty()
    });
}

/// A control group can be removed once it is empty, its children before it; cgroup v1 has one tree
/// per controller.
fn remove_cgroups(name: &Path) {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path());
    for base in controllers.chain([root.to_owned()]) {
        let group = base.join(name);
        patiently(|| {
            remove_tree(&group);
            !group.exists()
        });
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
