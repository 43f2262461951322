//! Builds programs from a Go module that pins their versions, into a folder of the cache.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use crate::{Error, Result};

/// A program to be built: its file name and its Go package.
pub type GoProgram = (&'static str, String);

/// Makes a file in the folder of a Go module.
pub type MakeFile<'a> = &'a dyn Fn(&Path) -> Result<()>;

/// Programs of a Go module, in a folder of the cache. Two processes that need the same programs build them once.
#[expect(missing_debug_implementations, reason = "it has a function")]
pub struct GoBuild<'a> {
    /// The name of the programs in messages: `Kubernetes v1.36.3`.
    pub what: &'a str,
    /// The Go module: `go.mod` and `go.sum`.
    pub module: (&'static str, &'static str),
    /// The programs.
    pub programs: &'a [GoProgram],
    /// Build tags, separated by commas.
    pub tags: &'a str,
    /// Flags of the linker, in addition to those that leave out symbols.
    pub link_flags: &'a str,
    /// A file that is made next to the programs, and the function that makes it in the folder of the module.
    pub also: Option<(&'a str, MakeFile<'a>)>,
    /// Another way to get the programs, for the error on a machine that cannot build them.
    pub given: Option<&'a str>,
    /// The folder of the programs.
    pub folder: &'a Path,
    /// The Go command.
    pub go: &'a Path,
}

impl GoBuild<'_> {
    /// Builds the programs that the folder lacks, one at a time; progress goes to standard error.
    pub fn run(&self) -> Result<()> {
        if self.missing().is_empty() && !self.lacks_file() {
            return Ok(());
        }
        let cannot_build = |why| no_programs(self.what, why, self.module.0, self.folder.parent(), self.given);
        if let Err(e) = Command::new(self.go).arg("version").output() {
            let go = self.go.display();
            return Err(cannot_build(format!("the cache lacks binaries, and {go} does not run: {e}")));
        }
        fs::create_dir_all(self.folder).map_err(Error::file(self.folder))?;
        // A second process waits here, and then finds all binaries built.
        let _lock = self.lock()?;
        let missing = self.missing();
        if missing.is_empty() && !self.lacks_file() {
            return Ok(());
        }
        let module = tempfile::tempdir_in(self.folder).map_err(Error::file(self.folder))?;
        for (name, text) in [("go.mod", self.module.0), ("go.sum", self.module.1)] {
            let path = module.path().join(name);
            fs::write(&path, text).map_err(Error::file(path))?;
        }
        self.check_go_version(module.path()).map_err(cannot_build)?;
        eprintln!("testkit: building {} from Go modules, once, into {}", self.what, self.folder.display());
        let count = missing.len();
        for (i, (name, package)) in missing.into_iter().enumerate() {
            eprintln!("testkit: [{}/{count}] {name} …", i + 1);
            let began = Instant::now();
            self.build_one(name, package, module.path())?;
            eprintln!("testkit: [{}/{count}] {name} in {} s", i + 1, began.elapsed().as_secs());
        }
        self.also.filter(|_| self.lacks_file()).map_or(Ok(()), |(_, make)| make(module.path()))
    }

    fn missing(&self) -> Vec<&GoProgram> {
        self.programs.iter().filter(|(name, _)| !self.folder.join(name).is_file()).collect()
    }

    fn lacks_file(&self) -> bool {
        self.also.is_some_and(|(name, _)| !self.folder.join(name).exists())
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

/// Returns the error for a machine that has no Go and not all programs in its cache.
pub(crate) fn no_programs(what: &str, why: String, go_mod: &str, cache: Option<&Path>, given: Option<&str>) -> Error {
    let go = go_mod.lines().find_map(|l| l.strip_prefix("go ")).expect("go.mod names a Go version");
    let cache = cache.unwrap_or(Path::new(".")).display();
    let mut remedies = format!(
        "\n  - install Go {go} or newer and run again: it builds them once, in minutes;\n  \
         - copy the cache of another machine into {cache}, or set CARETAKER_CACHE to its folder"
    );
    if let Some(given) = given {
        remedies.push_str(&format!(";\n  - {given}"));
    }
    Error::NoPrograms { what: what.to_owned(), why, remedies }
}

/// Returns the output of a command that builds something; its failure has the end of what the command printed.
pub fn succeeded(what: &str, output: std::io::Result<Output>) -> Result<Output> {
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
#[must_use]
pub fn version(go_mod: &'static str, module: &str) -> &'static str {
    go_mod
        .lines()
        .find_map(|l| l.trim().strip_prefix(module)?.trim().split(' ').next().filter(|v| v.starts_with('v')))
        .unwrap_or_else(|| panic!("go.mod does not require {module}"))
}
