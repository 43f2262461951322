//! This side of the supervisor: orders go down the pipe, and the pipe is the leash.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::{Error, Result, is_root};

const PROGRAM: &str = env!("CARETAKER_SUPERVISOR");

/// The first process of the namespace: it waits for the supervisor, and so reaps every orphan that
/// falls to it. The `exit` keeps the shell from becoming the supervisor itself.
const INIT: [&str; 4] = ["sh", "-c", "\"$@\"; exit $?", "sh"];

/// Go collects garbage when the heap has grown by this many percent; its own 100 costs an API server
/// with a small heap a sixth of its time. It has some 100 MB more for it.
const COLLECTION: &str = "400";

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

/// Whether this process may make PID and mount namespaces. Root without `CAP_SYS_ADMIN`, as in many
/// containers, may not.
pub(crate) fn may_isolate() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        is_root()
            && Command::new("unshare")
                .args(["--mount", "--pid", "--fork", "--mount-proc", "true"])
                .stdin(Stdio::null())
                .output()
                .is_ok_and(|output| output.status.success())
    })
}

impl Supervisor {
    /// Starts the supervisor of a cluster whose files are all in `folder`, and returns when it has
    /// answered: from then on it removes that folder, whatever becomes of this process.
    ///
    /// Where it may, it gets a PID and a mount namespace, with a `/run` of its own: no process and
    /// no mount of the cluster can outlive it, and two nodes on one machine do not see each other.
    pub fn start(folder: &Path) -> Result<Self> {
        Self::launch(folder, std::env::var_os("CARETAKER_KEEP").is_some())
    }

    fn launch(folder: &Path, keep: bool) -> Result<Self> {
        let mut command = if may_isolate() {
            let mut unshare = Command::new("unshare");
            unshare.args(["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"]);
            unshare.args(["--kill-child=KILL", "--"]).args(INIT).arg(PROGRAM);
            unshare
        } else {
            Command::new(PROGRAM)
        };
        if !keep {
            command.env_remove("CARETAKER_KEEP");
        }
        if std::env::var_os("GOGC").is_none() {
            command.env("GOGC", COLLECTION);
        }
        let mut child = command
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C in the terminal must reach the test alone: the supervisor has work to do after.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Supervisor { source })?;
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let supervisor = Self { leash: Mutex::new(Some(Leash { child, orders, answers })) };
        supervisor.order(&["ping"])?;
        Ok(supervisor)
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

    /// Runs a command to its end in the namespaces of the cluster; the supervisor gives it a minute.
    pub fn run<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Result<()> {
        let mut words: Vec<OsString> = vec!["run".into(), program.into()];
        words.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self.order(&words).map(drop)
    }

    /// Kills a child and waits until it is gone.
    pub fn stop(&self, name: &str) -> Result<()> {
        self.order(&["stop", name]).map(drop)
    }

    /// A child that has ended by itself, and its exit code.
    pub fn exited(&self) -> Result<Option<(String, String)>> {
        let answer = self.order(&["exited"])?;
        Ok(answer.split_once(' ').map(|(name, code)| (name.to_owned(), code.to_owned())))
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

    /// Lets go of the leash and waits until everything is gone; an error names what is not.
    pub fn close(&self) -> Result<()> {
        let leash = self.leash.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Leash { mut child, orders, answers }) = leash else { return Ok(()) };
        drop(orders);
        let lines = answers.lines().map_while(std::result::Result::ok);
        let left: Vec<String> = lines.filter_map(|l| l.strip_prefix("left ").map(str::to_owned)).collect();
        let status = child.wait().map_err(|source| Error::Supervisor { source })?;
        match (status.success(), left.is_empty()) {
            (true, _) => Ok(()),
            (false, false) => Err(Error::Left(left.join(", "))),
            (false, true) => Err(Error::Left(format!("perhaps all of it: the supervisor ended by {status}"))),
        }
    }

    fn order<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        let line = words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(OsStr::new("\t"));
        let failed = |why: String| Error::Order { order: line.to_string_lossy().replace('\t', " "), why };
        if line.as_encoded_bytes().contains(&b'\n') {
            return Err(failed("an order to the supervisor is one line".into()));
        }
        let mut guard = self.leash.lock().unwrap_or_else(PoisonError::into_inner);
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
        // The supervisor has said on standard error what it could not remove.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Well under the minute that a command is given, well over what the clean-up takes.
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_command_that_hangs_does_not_outlive_the_leash() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = Supervisor::launch(folder.path(), false).unwrap();
        let mut leash = supervisor.leash.lock().unwrap().take().unwrap();
        leash.orders.write_all(b"run\tsleep\t3600\n").unwrap();

        let began = Instant::now();
        drop(leash.orders);
        let status = leash.child.wait().unwrap();

        assert!(status.success() && began.elapsed() < SOON, "{status} after {:?}", began.elapsed());
        assert!(!folder.path().exists());
    }

    #[test]
    fn a_child_that_ended_by_itself_is_named_with_its_code() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = Supervisor::launch(folder.path(), false).unwrap();
        let log = folder.path().join("log");
        supervisor.spawn("stays", &log, Path::new("/bin/sleep"), ["3600"]).unwrap();
        assert_eq!(supervisor.exited().unwrap(), None);

        supervisor.spawn("goes", &log, Path::new("/bin/sh"), ["-c", "exit 3"]).unwrap();

        let began = Instant::now();
        let exited = loop {
            match supervisor.exited().unwrap() {
                None if began.elapsed() < SOON => std::thread::yield_now(),
                found => break found,
            }
        };
        assert_eq!(exited, Some(("goes".to_owned(), "3".to_owned())));
        supervisor.close().unwrap();
    }

    #[test]
    fn what_cannot_be_removed_is_named() {
        // Nobody can remove a folder of procfs.
        let supervisor = Supervisor::launch(Path::new("/proc/self/task"), false).unwrap();

        let error = supervisor.close().unwrap_err().to_string();

        assert!(error.contains("the folder /proc/self/task"), "{error}");
    }
}
