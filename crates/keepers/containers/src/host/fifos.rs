//! FIFOs: found by the paths that the task named, and by their exact names.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, open, openat, statat, unlinkat};
use rustix::io::Errno;

use super::{Host, announce};
use crate::api::FIFO_SUFFIXES;

/// Why a FIFO was not removed.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct FifoError {
    /// The FIFO or its folder.
    pub path: String,
    /// Why.
    pub why: String,
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Host {
    /// Removes the FIFOs of a container, and the folders that are empty without them: those that its task named, as far
    /// as they are FIFOs below the root, and what has exactly one of their names in the folders of the root.
    pub fn remove_fifos(&self, id: &str, named: &[String]) -> Result<(), FifoError> {
        for path in named.iter().filter(|path| !path.is_empty()) {
            self.remove_fifo(Path::new(path))?;
        }
        for path in self.fifos(id)? {
            self.remove_fifo(&path)?;
        }
        Ok(())
    }

    /// The FIFOs below the root that have exactly the names of this container's.
    pub fn fifos(&self, id: &str) -> Result<Vec<PathBuf>, FifoError> {
        let Some(root) = self.open_root()? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for folder in self.fifo_folders() {
            for name in FIFO_SUFFIXES.map(|suffix| format!("{id}{suffix}")) {
                let path = Path::new(&folder).join(&name);
                if is_fifo_at(&root, &path) {
                    found.push(self.fifo_root.join(path));
                }
            }
        }
        Ok(found)
    }

    /// The IDs of which there are FIFOs, each with its paths.
    pub fn all_fifos(&self) -> Result<BTreeMap<String, Vec<PathBuf>>, FifoError> {
        let Some(root) = self.open_root()? else { return Ok(BTreeMap::new()) };
        let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for folder in self.fifo_folders() {
            for entry in std::fs::read_dir(self.fifo_root.join(&folder)).into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let id = FIFO_SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
                let path = Path::new(&folder).join(&name);
                if let Some(id) = id.filter(|_| is_fifo_at(&root, &path)) {
                    found.entry(id.to_owned()).or_default().push(self.fifo_root.join(path));
                }
            }
        }
        Ok(found)
    }

    /// The folders of the root in which nothing is: who was killed between the last FIFO and its folder leaves one.
    pub fn empty_fifo_folders(&self) -> Result<Vec<String>, FifoError> {
        if self.open_root()?.is_none() {
            return Ok(Vec::new());
        }
        let is_empty = |folder: &String| {
            std::fs::read_dir(self.fifo_root.join(folder)).is_ok_and(|mut entries| entries.next().is_none())
        };
        Ok(self.fifo_folders().into_iter().filter(is_empty).collect())
    }

    /// Removes a folder of the root. False if something is in it.
    pub fn remove_empty_fifo_folder(&self, name: &str) -> Result<bool, FifoError> {
        let path = self.fifo_root.join(name);
        let inside = path.join("any");
        let Some((folder, _)) = self.below_root(&inside) else { return Ok(false) };
        let Some(root) = self.open_root()? else { return Ok(true) };
        announce("removing folder", path.display());
        match unlinkat(&root, folder, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(failed(&path, &error.to_string())),
        }
    }

    fn fifo_folders(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.fifo_root).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The root, if there is one. A symlink is refused: it may point anywhere.
    fn open_root(&self) -> Result<Option<OwnedFd>, FifoError> {
        match open(&self.fifo_root, FOLDER, Mode::empty()) {
            Ok(root) => Ok(Some(root)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                Err(failed(&self.fifo_root, "it is no folder; --fifo-root must name one, and not a symlink"))
            }
            Err(error) => Err(failed(&self.fifo_root, &error.to_string())),
        }
    }

    /// Removes one FIFO in a folder of the root, and that folder if it is empty then. Anything else is left alone.
    pub fn remove_fifo(&self, path: &Path) -> Result<(), FifoError> {
        let Some((folder, name)) = self.below_root(path) else { return Ok(()) };
        let Some(root) = self.open_root()? else { return Ok(()) };
        let inside = match openat(&root, folder, FOLDER, Mode::empty()) {
            Ok(inside) => inside,
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(failed(path, &error.to_string())),
        };
        if is_fifo_at(&inside, Path::new(name)) {
            announce("removing FIFO", path.display());
            match unlinkat(&inside, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(path, &error.to_string())),
            }
        }
        announce("removing folder if it is empty:", self.fifo_root.join(folder).display());
        match unlinkat(&root, folder, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(failed(path, &error.to_string())),
        }
    }

    /// True for the path of a FIFO in a folder of the root, by its form. Only such a path is ever removed.
    #[must_use]
    pub fn is_fifo_path(&self, path: &str) -> bool {
        self.below_root(Path::new(path)).is_some()
    }

    /// True if there is a FIFO at this path, as the first process of the node sees it: what is outside of the root may not be
    /// mounted here.
    #[must_use]
    pub fn has_fifo(&self, path: &str) -> bool {
        let root = self.proc.join("1/root");
        let path = if root.is_dir() { root.join(path.trim_start_matches('/')) } else { PathBuf::from(path) };
        path.symlink_metadata().is_ok_and(|found| found.file_type().is_fifo())
    }

    /// Folder and name of a path that is exactly two levels below the root.
    fn below_root<'p>(&self, path: &'p Path) -> Option<(&'p str, &'p str)> {
        let parts: Vec<Component<'p>> = path.strip_prefix(&self.fifo_root).ok()?.components().collect();
        match parts.as_slice() {
            [Component::Normal(folder), Component::Normal(name)] => Some((folder.to_str()?, name.to_str()?)),
            _ => None,
        }
    }
}

fn is_fifo_at(folder: &OwnedFd, path: &Path) -> bool {
    let found = statat(folder, path, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

fn failed(path: &Path, why: &str) -> FifoError {
    FifoError { path: path.display().to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, mknodat};

    use super::*;

    fn mkfifo(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    fn host(root: &Path) -> Host {
        Host { fifo_root: root.to_owned(), ..Host::default() }
    }

    #[test]
    fn fifos_go_with_their_folder_and_those_of_sb_10_stay_when_sb_1_goes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("fifo");
        for name in ["r1/sb-1-stdin", "r1/sb-1-stdout", "r2/sb-10-stdout", "r3/sb-1-stderr", "r3/other"] {
            mkfifo(&root.join(name));
        }
        let named = [root.join("r1/sb-1-stdin").display().to_string(), String::new()];

        host(&root).remove_fifos("sb-1", &named).unwrap();

        assert!(!root.join("r1").exists());
        assert!(root.join("r2/sb-10-stdout").exists() && root.join("r3/other").exists());
        assert!(!root.join("r3/sb-1-stderr").exists());
        assert_eq!(host(&root).all_fifos().unwrap().keys().collect::<Vec<_>>(), ["sb-10"]);
    }

    #[test]
    fn nothing_outside_the_root_and_nothing_that_is_no_fifo_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("fifo"), folder.path().join("outside"));
        mkfifo(&outside.join("r/sb-1-stdin"));
        fs::create_dir_all(root.join("plain")).unwrap();
        fs::write(root.join("plain/sb-1-stdout"), "a file").unwrap();
        symlink(outside.join("r"), root.join("link")).unwrap();
        symlink(outside.join("r/sb-1-stdin"), root.join("plain/sb-1-stdin")).unwrap();
        let named = [
            outside.join("r/sb-1-stdin"),
            root.join("link/sb-1-stdin"),
            root.join("plain/sb-1-stdin"),
            root.join("../outside/r/sb-1-stdin"),
            root.join("plain"),
        ];

        host(&root).remove_fifos("sb-1", &named.map(|path| path.display().to_string())).unwrap();

        assert!(outside.join("r/sb-1-stdin").exists());
        assert!(root.join("plain/sb-1-stdout").exists() && root.join("plain/sb-1-stdin").is_symlink());
    }

    #[test]
    fn a_folder_is_removed_only_if_it_is_empty_and_in_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("fifo"), folder.path().join("outside"));
        mkfifo(&root.join("used/sb-1-stdin"));
        for path in [root.join("empty"), outside.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        symlink(&outside, root.join("link")).unwrap();
        let host = host(&root);
        assert_eq!(host.empty_fifo_folders().unwrap(), ["empty"]);

        for name in ["used", "link", "../outside", ".."] {
            assert!(!host.remove_empty_fifo_folder(name).unwrap(), "{name}");
        }
        for _ in 0..2 {
            assert!(host.remove_empty_fifo_folder("empty").unwrap());
        }

        assert!(!root.join("empty").exists() && root.join("used/sb-1-stdin").exists());
        assert!(outside.exists() && root.join("link").is_symlink());
    }

    #[test]
    fn a_root_that_is_a_symlink_is_refused_with_the_flag_to_change() {
        let folder = tempfile::tempdir().unwrap();
        mkfifo(&folder.path().join("real/r/sb-1-stdin"));
        symlink(folder.path().join("real"), folder.path().join("root")).unwrap();

        let error = host(&folder.path().join("root")).remove_fifos("sb-1", &[]).unwrap_err().to_string();

        assert!(error.contains("--fifo-root"), "{error}");
        assert!(folder.path().join("real/r/sb-1-stdin").exists());
        assert!(host(&folder.path().join("none")).remove_fifos("sb-1", &[]).is_ok());
    }
}
