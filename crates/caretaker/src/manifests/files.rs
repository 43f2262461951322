//! Files as they are on disk, and the files below a folder.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Problem;

/// The bytes of files.
#[derive(Debug, Default)]
pub struct RawFiles {
    pub(super) files: Vec<(PathBuf, Vec<u8>)>,
    pub(super) problems: Vec<Problem>,
}

impl RawFiles {
    /// Reads everything below a folder, one file, or standard input (`-`).
    pub fn read(path: &Path) -> Result<Self> {
        let mut all = Self::default();
        all.read_more(path)?;
        Ok(all)
    }

    /// Reads more files, in addition to those that were read before.
    pub fn read_more(&mut self, path: &Path) -> Result<()> {
        if path == Path::new("-") {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).context("reading standard input")?;
            self.add(PathBuf::from("standard input"), bytes);
            return Ok(());
        }
        let FileTree { files, unreadable, .. } =
            FileTree::of(path).with_context(|| format!("reading {}", path.display()))?;
        for file in files {
            match std::fs::read(&file) {
                Ok(bytes) => self.add(file, bytes),
                Err(e) => self.add_problem(file, &e),
            }
        }
        for (folder, e) in unreadable {
            self.add_problem(folder, &e);
        }
        Ok(())
    }

    /// Adds one file.
    pub fn add(&mut self, file: PathBuf, bytes: Vec<u8>) {
        self.files.push((file, bytes));
    }

    fn add_problem(&mut self, file: PathBuf, e: &std::io::Error) {
        let reason = format!("cannot be read: {e}");
        self.problems.push(Problem { file, line: None, kind: None, name: None, reason });
    }
}

/// The manifests below a folder, and the folders that could not be read.
#[derive(Default)]
struct FileTree {
    files: Vec<PathBuf>,
    unreadable: Vec<(PathBuf, std::io::Error)>,
    /// Folders that were visited: a symbolic link may lead back up.
    visited: BTreeSet<PathBuf>,
}

impl FileTree {
    /// A file that is named explicitly is included whatever its ending is.
    fn of(path: &Path) -> std::io::Result<Self> {
        let mut tree = Self::default();
        if std::fs::metadata(path)?.is_dir() {
            tree.walk(path)?;
        } else {
            tree.files.push(path.to_owned());
        }
        Ok(tree)
    }

    fn walk(&mut self, folder: &Path) -> std::io::Result<()> {
        if !self.visited.insert(folder.canonicalize()?) {
            return Ok(());
        }
        let entries = std::fs::read_dir(folder)?;
        let mut entries: Vec<PathBuf> = entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
        entries.sort_unstable();
        for entry in entries {
            if entry.is_dir() {
                if let Err(e) = self.walk(&entry) {
                    self.unreadable.push((entry, e));
                }
            } else if is_manifest(&entry) {
                self.files.push(entry);
            }
        }
        Ok(())
    }
}

fn is_manifest(file: &Path) -> bool {
    let known = ["yaml", "yml", "json"];
    file.extension().is_some_and(|e| known.iter().any(|known| e.eq_ignore_ascii_case(known)))
}
