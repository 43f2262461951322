//! The client of the supervisor: sends orders through a pipe. The supervisor ends the cluster when the
//! pipe closes.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::{Error, Result, is_root};

const PROGRAM: &str = env!("CARETAKER_SUPERVISOR");

/// Process 1 of the PID namespace: a shell that waits for the supervisor and reaps orphans meanwhile.
/// The `exit` keeps the shell from replacing itself with the supervisor.
pub(crate) const INIT: [&str; 4] = ["sh", "-c", "\"$@\"; exit $?", "sh"];

/// Go collects garbage when the heap has grown by this many percent. Its default of 100 costs an API server
/// with a small heap a sixth of its time; with this value it has some 100 MB more.
const GO_GC_PERCENT: &str = "400";

/// A running supervisor. It ends, with everything it started, when this value is dropped or this process
/// ends.
#[derive(Debug)]
pub struct Supervisor {
    connection: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// True if this process may create PID and mount namespaces. Root without `CAP_SYS_ADMIN`, as in many
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
    /// Starts the supervisor of a cluster with all its files in `folder`, and returns when it has
    /// answered. From then on the supervisor removes that folder, however this process ends.
    ///
    /// If permitted, the supervisor gets its own PID and mount namespace: no process and no mount of
    /// the cluster outlives it, and two nodes on one machine do not see each other.
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
            command.env("GOGC", GO_GC_PERCENT);
        }
        let mut child = command
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in the terminal must not reach the supervisor: it cleans up after the test.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Supervisor { source })?;
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let supervisor = Self { connection: Mutex::new(Some(Connection { child, orders, answers })) };
        supervisor.order(&["ping"])?;
        Ok(supervisor)
    }

    /// Starts a child process. Its standard output and standard error are appended to `log`.
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

    /// Runs a command in the namespaces of the cluster and waits until it ends, at most a minute.
    pub fn run<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Result<()> {
        let mut words: Vec<OsString> = vec!["run".into(), program.into()];
        words.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self.order(&words).map(drop)
    }

    /// Kills a child process and waits until it has exited.
    pub fn stop(&self, name: &str) -> Result<()> {
        self.order(&["stop", name]).map(drop)
    }

    /// Returns the name and the exit code of a child process that exited without being stopped, if any.
    pub fn exited(&self) -> Result<Option<(String, String)>> {
        let answer = self.order(&["exited"])?;
        Ok(answer.split_once(' ').map(|(name, code)| (name.to_owned(), code.to_owned())))
    }

    /// Registers containerd's folder of tasks: at the end the supervisor removes the control groups of
    /// every container that has an entry there.
    pub fn owns_cgroups_of(&self, tasks: &Path) -> Result<()> {
        self.order(&[OsStr::new("cgroups"), tasks.as_os_str()]).map(drop)
    }

    /// Registers a network link, which the supervisor deletes at the end.
    pub fn owns_link(&self, name: &str) -> Result<()> {
        self.order(&["link", name]).map(drop)
    }

    /// Closes the pipe and waits until the supervisor has removed everything. The error lists what it
    /// could not remove.
    pub fn close(&self) -> Result<()> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Connection { mut child, orders, answers }) = connection else { return Ok(()) };
        drop(orders);
        let lines = answers.lines().map_while(std::result::Result::ok);
        let left: Vec<String> = lines.filter_map(|l| l.strip_prefix("left ").map(str::to_owned)).collect();
        let status = child.wait().map_err(|source| Error::Supervisor { source })?;
        match (status.success(), left.is_empty()) {
            (true, _) => Ok(()),
            (false, false) => Err(Error::LeftBehind(left.join(", "))),
            (false, true) => Err(Error::LeftBehind(format!(
                "unknown, because the supervisor failed before its clean-up was done ({status})"
            ))),
        }
    }

    fn order<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        let line = words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(OsStr::new("\t"));
        let failed = |why: String| Error::Order { order: line.to_string_lossy().replace('\t', " "), why };
        if line.as_encoded_bytes().contains(&b'\n') {
            return Err(failed("an order to the supervisor must not contain a line break".into()));
        }
        let mut guard = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = guard.as_mut() else { return Err(failed("the cluster has ended".into())) };
        let mut bytes = line.as_encoded_bytes().to_vec();
        bytes.push(b'\n');
        connection.orders.write_all(&bytes).map_err(|e| failed(format!("the supervisor has ended: {e}")))?;
        let mut answer = String::new();
        connection.answers.read_line(&mut answer).map_err(|e| failed(e.to_string()))?;
        match answer.trim_end().split_once(' ').unwrap_or((answer.trim_end(), "")) {
            ("ok", text) => Ok(text.to_owned()),
            ("err", text) => Err(failed(text.to_owned())),
            _ => Err(failed("the supervisor has ended".into())),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // The supervisor has printed to standard error what it could not remove.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Less than the minute that a command may take, more than the clean-up takes.
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_command_that_hangs_ends_when_the_pipe_closes() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = Supervisor::launch(folder.path(), false).unwrap();
        let mut connection = supervisor.connection.lock().unwrap().take().unwrap();
        connection.orders.write_all(b"run\tsleep\t3600\n").unwrap();

        let began = Instant::now();
        drop(connection.orders);
        let status = connection.child.wait().unwrap();

        assert!(status.success() && began.elapsed() < SOON, "{status} after {:?}", began.elapsed());
        assert!(!folder.path().exists());
    }

    #[test]
    fn a_child_that_exited_is_reported_with_its_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = Supervisor::launch(folder.path(), false).unwrap();
        let log = folder.path().join("log");
        supervisor.spawn("runs", &log, Path::new("/bin/sleep"), ["3600"]).unwrap();
        assert_eq!(supervisor.exited().unwrap(), None);

        supervisor.spawn("exits", &log, Path::new("/bin/sh"), ["-c", "exit 3"]).unwrap();

        let began = Instant::now();
        let exited = loop {
            match supervisor.exited().unwrap() {
                None if began.elapsed() < SOON => std::thread::yield_now(),
                found => break found,
            }
        };
        assert_eq!(exited, Some(("exits".to_owned(), "3".to_owned())));
        supervisor.close().unwrap();
    }

    #[test]
    fn the_error_names_what_cannot_be_removed() {
        // A folder of procfs cannot be removed.
        let supervisor = Supervisor::launch(Path::new("/proc/self/task"), false).unwrap();

        let error = supervisor.close().unwrap_err().to_string();

        assert!(error.contains("the folder /proc/self/task"), "{error}");
    }
}
