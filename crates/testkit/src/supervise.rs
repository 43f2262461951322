//! This side of the supervisor: orders go down the pipe, and the pipe is the leash.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use crate::{Error, Result, is_root};

const PROGRAM: &str = env!("CARETAKER_SUPERVISOR");

/// A running supervisor, which ends with everything it started when this is dropped, or when this
/// process is no more.
#[derive(Debug)]
pub struct Supervisor {
    leash: Mutex<Option<Leash>>,
}

#[derive(Debug)]
struct Leash {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Starts the supervisor of a cluster whose files are all in `folder`.
    ///
    /// As root it gets a PID and a mount namespace, with a `/run` of its own: no process and no
    /// mount of the cluster can outlive it, and two nodes on one machine do not see each other.
    pub fn start(folder: &Path) -> Result<Self> {
        let mut command = if is_root() {
            let mut unshare = Command::new("unshare");
            unshare.args(["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"]).args([
                "--kill-child=KILL",
                "--",
                PROGRAM,
            ]);
            unshare
        } else {
            Command::new(PROGRAM)
        };
        let mut child = command
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C in the terminal must reach the test alone: the supervisor has work to do after.
            .process_group(0)
            .spawn()
            .map_err(|e| Error::Start { what: "the supervisor".into(), why: e.to_string() })?;
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let leash = Leash { child, orders, answers };
        Ok(Self { leash: Mutex::new(Some(leash)) })
    }

    /// Starts a child; what it prints is appended to `log`.
    pub fn spawn<S: AsRef<OsStr>>(
        &self,
        name: &str,
        log: &Path,
        program: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        let mut words: Vec<OsString> = vec!["spawn".into(), name.into(), log.into(), program.into()];
        words.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self.order(&words).map(drop)
    }

    /// Runs a command to its end in the namespaces of the cluster.
    pub fn run<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Result<()> {
        let mut words: Vec<OsString> = vec!["run".into(), program.into()];
        words.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self.order(&words).map(drop)
    }

    /// Kills a child and waits until it is gone.
    pub fn stop(&self, name: &str) -> Result<()> {
        self.order(&["stop", name]).map(drop)
    }

    /// The exit code of a child that has ended by itself.
    pub fn exited(&self, name: &str) -> Result<Option<String>> {
        Ok(self.order(&["state", name])?.strip_prefix("exited ").map(str::to_owned))
    }

    /// Has the control groups of those containers removed at the end that have an entry in this
    /// folder of containerd's then.
    pub fn owns_cgroups_of(&self, tasks: &Path) -> Result<()> {
        self.order(&[OsStr::new("cgroups"), tasks.as_os_str()]).map(drop)
    }

    /// Has the network link called so removed at the end.
    pub fn owns_link(&self, name: &str) -> Result<()> {
        self.order(&["link", name]).map(drop)
    }

    /// Lets go of the leash and waits until everything is gone.
    pub fn close(&self) {
        let leash = self.leash.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(Leash { mut child, orders, .. }) = leash {
            drop(orders);
            // An error means that it has been waited for; it is gone either way.
            let _ = child.wait();
        }
    }

    fn order<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        let line = words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(OsStr::new("\t"));
        let failed = |why: String| Error::Start { what: line.to_string_lossy().replace('\t', " "), why };
        if line.as_encoded_bytes().contains(&b'\n') {
            return Err(failed("an order to the supervisor is one line".into()));
        }
        let mut guard = self.leash.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(leash) = guard.as_mut() else { return Err(failed("the cluster has ended".into())) };
        let mut bytes = line.as_encoded_bytes().to_vec();
        bytes.push(b'\n');
        leash.orders.write_all(&bytes).map_err(|e| failed(format!("the supervisor has ended: {e}")))?;
        let mut answer = String::new();
        leash.answers.read_line(&mut answer).map_err(|e| failed(e.to_string()))?;
        match answer.trim_end().split_once(' ').unwrap_or((answer.trim_end(), "")) {
            ("ok", text) => Ok(text.to_owned()),
            ("err", text) => Err(failed(text.to_owned())),
            _ => Err(failed("the supervisor has ended".into())),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.close();
    }
}
