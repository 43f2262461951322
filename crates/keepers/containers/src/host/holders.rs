//! Who has a file open.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::Host;

impl Host {
    /// Those of the files that a process has open, whatever it calls them in its mount namespace. If that cannot be known,
    /// all of them.
    #[must_use]
    pub fn held<'p>(&self, paths: &'p [PathBuf]) -> Vec<&'p Path> {
        if paths.is_empty() {
            return Vec::new();
        }
        let open = self.open_files();
        let is_held = |path: &&PathBuf| match (&open, path.symlink_metadata()) {
            (Some(open), Ok(file)) => open.contains(&(file.dev(), file.ino())),
            (None, Ok(_)) => true,
            (_, Err(error)) => error.kind() != ErrorKind::NotFound,
        };
        paths.iter().filter(is_held).map(PathBuf::as_path).collect()
    }

    /// Every file that a process has open, by device and number; `None` if the files of a process cannot be read.
    fn open_files(&self) -> Option<BTreeSet<(u64, u64)>> {
        let mut open = BTreeSet::new();
        for pid in self.pids() {
            match std::fs::read_dir(self.proc.join(pid.to_string()).join("fd")) {
                Ok(entries) => {
                    // A file that is closed meanwhile is not open.
                    let files = entries.flatten().filter_map(|entry| std::fs::metadata(entry.path()).ok());
                    open.extend(files.map(|file| (file.dev(), file.ino())));
                }
                Err(error) if error.kind() == ErrorKind::NotFound || has_ended(&error) => {}
                Err(_) => return None,
            }
        }
        Some(open)
    }
}

/// True if the process ended while its files were read.
pub(super) fn has_ended(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}
