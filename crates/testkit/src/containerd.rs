//! containerd alone, without a kubelet: for tests of what happens to containers.
//!
//! A test program with [`main`] runs in PID, mount and IPC namespaces of its own, with its own `/run`. Whatever it starts
//! there ends with it, and it sees no process, mount or runc state of another containerd on the machine.

mod assets;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libtest_mimic::Trial;

pub use assets::ContainerdAssets;

use crate::harness::Need;
use crate::image::Image;
use crate::node::{require_program, runs_as_root_with};
use crate::supervise::INIT;
use crate::wait::until;
use crate::{Error, Result, harness, make, pki};

/// Limit for the start: containerd answers within a second on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Says to a test program that it is in its own namespaces, and names its folder.
const FOLDER: &str = "CARETAKER_TEST_FOLDER";
/// Exit code of a test program that could not be started.
const NOT_STARTED: u8 = 101;

/// A containerd of one test program.
#[derive(Debug)]
pub struct Containerd {
    folder: PathBuf,
    /// `None` for the one that is installed.
    built: Option<ContainerdAssets>,
    process: Mutex<Option<Child>>,
}

impl Containerd {
    /// Returns `Ok` if this machine can run it; else what it lacks, as the reason of a skipped test.
    pub fn possible() -> Result<(), String> {
        runs_as_root_with(&[])
    }

    /// Starts it in the folder of this test program, with the image of the test pods, and returns when it answers. In the
    /// second test of [`test_on_both`] it is the one that the test kit builds.
    ///
    /// # Panics
    /// If the search for its programs panics, which is a bug of this crate.
    pub async fn start() -> Result<Self> {
        let folder = std::env::var_os(FOLDER).map(PathBuf::from);
        let folder =
            folder.ok_or_else(|| Error::NoNode("needs containerd::main as the main of the program".to_owned()))?;
        let folder = folder.join(format!("containerd-{:08x}", fastrand::u32(..)));
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let built = if BUILT.try_with(|built| *built).unwrap_or(false) {
            Some(tokio::task::spawn_blocking(ContainerdAssets::get).await.expect("the search does not panic")?)
        } else {
            None
        };
        let containerd = Self { folder, built, process: Mutex::default() };
        pki::write(&containerd.folder, "containerd.toml", &containerd.config())?;
        containerd.start_again().await?;
        let busybox = require_program("busybox")?;
        let image = Image::busybox(make::IMAGE, &busybox, &["sleep", "3600"]);
        let archive = image.write(&containerd.folder.join("busybox.tar"))?;
        containerd.ctr(&["images", "import", &archive.to_string_lossy()])?;
        Ok(containerd)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// Its state folder.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// A folder for the FIFOs of tasks.
    #[must_use]
    pub fn fifo_root(&self) -> PathBuf {
        self.folder.join("fifo")
    }

    /// A folder of the test's own, which goes with the program.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The control group of this test program, below which containers belong.
    #[must_use]
    pub fn cgroup() -> String {
        let folder = std::env::var(FOLDER).unwrap_or_default();
        format!("/{}", Path::new(&folder).file_name().and_then(|name| name.to_str()).unwrap_or("caretaker-test"))
    }

    /// Kills it; shims and containers go on.
    pub fn stop(&self) {
        if let Some(mut process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Fails only if it has exited.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again, and returns when it answers.
    pub async fn start_again(&self) -> Result<()> {
        self.stop();
        let log = self.folder.join("containerd.log");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).map_err(Error::file(&log))?;
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        let program = match &self.built {
            Some(built) => {
                // Its own shim comes before the installed one.
                path =
                    std::env::join_paths([built.folder().to_owned()].into_iter().chain(std::env::split_paths(&path)))
                        .unwrap_or(path);
                built.folder().join("containerd")
            }
            None => require_program("containerd")?,
        };
        let process = Command::new(program)
            .arg("--config")
            .arg(self.folder.join("containerd.toml"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .map_err(|source| Error::Supervisor { source })?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        until("containerd to answer", START_LIMIT, async || {
            if tokio::net::UnixStream::connect(self.socket()).await.is_err() {
                return Ok(Err("no process listens on its socket".to_owned()));
            }
            Ok(self.ctr(&["--timeout", "1s", "version"]).map(drop).map_err(|error| error.to_string()))
        })
        .await
    }

    /// Runs `ctr` in the namespace `k8s.io`, and returns its output.
    pub fn ctr(&self, args: &[&str]) -> Result<String> {
        let failed = |why: String| Error::Command { command: format!("ctr {}", args.join(" ")), why };
        let output = Command::new(require_program("ctr")?)
            .args(["--connect-timeout", "1s", "--namespace", "k8s.io", "--address"])
            .arg(self.socket())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        }
    }

    fn config(&self) -> String {
        let (folder, state, socket) = (self.folder.display(), self.state(), self.socket());
        format!(
            r#"version = 2
root = "{folder}/root"
state = "{}"
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "{}"
"#,
            state.display(),
            socket.display()
        )
    }
}

tokio::task_local! {
    /// Whether a test wants the containerd that the test kit builds.
    static BUILT: bool;
}

/// The same test twice: on the containerd that is installed, and on the one that the test kit builds.
#[track_caller]
pub fn test_on_both<F, Fut>(name: &str, body: F) -> [Trial; 2]
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = std::result::Result<(), Box<dyn std::error::Error>>>,
{
    let again = body.clone();
    [
        harness::test(name, Need::Containerd, body),
        harness::test(&format!("{name}_on_containerd_2"), Need::Containerd, move || BUILT.scope(true, again())),
    ]
}

/// Lets paused containers of this test program run, so that they can end: what is frozen does not even die.
fn thaw_groups() {
    fn thaw(group: &Path) {
        for (file, text) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            if group.join(file).exists() {
                // Fails for a group that is gone meanwhile.
                let _ = std::fs::write(group.join(file), text);
            }
        }
        let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
        for child in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            thaw(&child.path());
        }
    }
    let name = Containerd::cgroup();
    for tree in ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup"] {
        thaw(&Path::new(tree).join(name.trim_start_matches('/')));
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The main of a test program that uses [`Containerd`]: runs it again in namespaces of its own, and removes its folder
/// and its control groups afterwards. Where that is not possible its tests count as ignored.
#[must_use]
pub fn main(tests: Vec<Trial>) -> ExitCode {
    main_with_nodes(tests, Vec::new())
}

/// Like [`main`], with tests that have a node of their own, and so run outside of those namespaces.
#[must_use]
pub fn main_with_nodes(mut tests: Vec<Trial>, on_nodes: Vec<Trial>) -> ExitCode {
    if std::env::var_os(FOLDER).is_some() {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("containerd: could not mount a /run of its own");
            return ExitCode::from(NOT_STARTED);
        }
        let code = harness::main(tests);
        thaw_groups();
        return code;
    }
    if Containerd::possible().is_err() {
        tests.extend(on_nodes);
        return harness::main(tests);
    }
    let run = || -> std::io::Result<u8> {
        let folder = tempfile::Builder::new().prefix("caretaker-containers-").tempdir()?;
        let status = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--"])
            .args(INIT)
            .arg(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(FOLDER, folder.path())
            .status()?;
        let name = folder.path().file_name().map(PathBuf::from).unwrap_or_default();
        for base in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_groups(&base.path().join(&name));
        }
        remove_groups(&Path::new("/sys/fs/cgroup").join(&name));
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_STARTED))
    };
    match run() {
        Ok(code) if on_nodes.is_empty() => ExitCode::from(code),
        Ok(code) => {
            let nodes = harness::main(on_nodes);
            if code == 0 { nodes } else { ExitCode::from(code) }
        }
        Err(error) => {
            eprintln!("containerd: {error}");
            ExitCode::from(NOT_STARTED)
        }
    }
}

/// Removes control groups without processes, the deepest first.
fn remove_groups(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}
