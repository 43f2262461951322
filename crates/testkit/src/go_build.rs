//! Builds programs from a Go module that pins their versions, into a folder of the cache.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use crate::{Error, Result};

/// A program to be built: its file name and its Go package.
pub(crate) type GoProgram = (&'static str, String);

/// A build into a folder. Two processes that need the same programs build them once.
pub(crate) struct GoBuild<'a> {
    /// What is built, for messages: `Kubernetes v1.36.3`.
    pub what: &'a str,
    /// The Go module: `go.mod` and `go.sum`.
    pub module: (&'a str, &'a str),
    /// Build tags, separated by commas.
    pub tags: &'a str,
    /// Flags of the linker, beside those that leave out symbols.
    pub link_flags: &'a str,
    /// Where the programs go.
    pub folder: &'a Path,
    /// The Go command.
    pub go: &'a Path,
    /// The error for a machine that cannot build, from the reason.
    pub cannot_build: &'a dyn Fn(String) -> Error,
}

impl GoBuild<'_> {
    /// Builds what is missing, one program at a time; `finish` runs in the module's folder after the last one, before
    /// another process may go on.
    pub(crate) fn run(
        &self,
        missing: impl Fn() -> Vec<GoProgram>,
        finish: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        if let Err(e) = Command::new(self.go).arg("version").output() {
            return Err((self.cannot_build)(format!(
                "the cache lacks binaries, and {} does not run: {e}",
                self.go.display()
            )));
        }
        fs::create_dir_all(self.folder).map_err(Error::file(self.folder))?;
        // A second process waits here, and then finds all binaries built.
        let _lock = self.lock()?;
        let missing = missing();
        if missing.is_empty() {
            return Ok(());
        }
        let module = tempfile::tempdir_in(self.folder).map_err(Error::file(self.folder))?;
        for (name, text) in [("go.mod", self.module.0), ("go.sum", self.module.1)] {
            let path = module.path().join(name);
            fs::write(&path, text).map_err(Error::file(path))?;
        }
        self.check_go_version(module.path()).map_err(self.cannot_build)?;
        eprintln!("testkit: building {} from Go modules, once, into {}", self.what, self.folder.display());
        let count = missing.len();
        for (i, (name, package)) in missing.into_iter().enumerate() {
            eprintln!("testkit: [{}/{count}] {name} …", i + 1);
            let began = Instant::now();
            self.build_one(name, &package, module.path())?;
            eprintln!("testkit: [{}/{count}] {name} in {} s", i + 1, began.elapsed().as_secs());
        }
        finish(module.path())
    }

    /// Waits until no other process builds, and returns the lock.
    fn lock(&self) -> Result<File> {
        let path = self.folder.join(".lock");
        let lock = File::create(&path).map_err(Error::file(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let what = self.what.split(' ').next().unwrap_or_default();
                eprintln!("testkit: another process is building {what}; waiting for it");
                lock.lock().map_err(Error::file(&path))?;
            }
            Err(TryLockError::Error(e)) => return Err(Error::file(&path)(e)),
        }
        Ok(lock)
    }

    /// Checks that Go can build the module: `go env` fails in a module that requires a newer version, unless Go
    /// can download that version.
    fn check_go_version(&self, module: &Path) -> Result<(), String> {
        let output = Command::new(self.go).args(["env", "GOVERSION"]).current_dir(module).output();
        let output = output.map_err(|e| format!("{} does not run: {e}", self.go.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("Go is too old, or cannot read the module: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// Builds one program under a temporary name and renames it, so that a file with its final name is
    /// complete.
    fn build_one(&self, name: &str, package: &str, module: &Path) -> Result<()> {
        let temporary = module.join(name);
        let output = Command::new(self.go)
            .current_dir(module)
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-tags", self.tags, "-ldflags"])
            .arg(format!("-s -w {}", self.link_flags))
            .arg("-o")
            .arg(&temporary)
            .arg(package)
            .output();
        succeeded(name, output)?;
        let path = self.folder.join(name);
        fs::rename(&temporary, &path).map_err(Error::file(path))
    }
}

/// The output of a command that builds something; its failure has the end of what it printed.
pub(crate) fn succeeded(what: &str, output: std::io::Result<Output>) -> Result<Output> {
    let output = output.map_err(|e| Error::Build { what: what.to_owned(), why: e.to_string() })?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let from = text.char_indices().rev().nth(2_000).map_or(0, |(i, _)| i);
    Err(Error::Build { what: what.to_owned(), why: text[from..].trim().to_owned() })
}

/// Returns the version of a module that a `go.mod` requires.
///
/// # Panics
/// If it does not require the module.
pub(crate) fn version(go_mod: &'static str, module: &str) -> &'static str {
    go_mod
        .lines()
        .find_map(|l| l.trim().strip_prefix(module)?.trim().split(' ').next().filter(|v| v.starts_with('v')))
        .unwrap_or_else(|| panic!("go.mod does not require {module}"))
}

/// Returns the Go version that a `go.mod` names.
pub(crate) fn go_version(go_mod: &'static str) -> &'static str {
    go_mod.lines().find_map(|l| l.strip_prefix("go ")).expect("go.mod names a Go version")
}
