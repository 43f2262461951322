//! Mounts and bundles.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::{Host, SPEC, announce};

impl Host {
    /// The mounts at or below a folder, the deepest first: as this process sees them, and as the first process of the
    /// node sees them.
    pub fn mounts_below(&self, folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        let mut found = mounts_in(&std::fs::read(self.proc.join("self/mountinfo"))?, folder);
        // Without the right to look at another process there is only our own view.
        if let Ok(first) = std::fs::read(self.proc.join("1/mountinfo")) {
            found.extend(mounts_in(&first, folder));
        }
        found.sort_by_key(|path| std::cmp::Reverse((path.components().count(), path.clone())));
        found.dedup();
        Ok(found)
    }

    /// Unmounts what is mounted in the bundle of a container, the deepest first, and removes the bundle, and what runc
    /// knows of it: a shim that was killed leaves that behind. The caller has made sure that the container has no task and
    /// no shim.
    pub fn remove_bundle(&self, id: &str) -> Result<(), String> {
        let bundle = self.bundle(id);
        let said = |error: std::io::Error| format!("{}: {error}", bundle.display());
        for mount in self.mounts_below(&bundle).map_err(said)? {
            announce("unmounting", mount.display());
            // A mount that is busy is detached: it goes when its last user does.
            let result = unmount(&mount, UnmountFlags::NOFOLLOW)
                .or_else(|_| unmount(&mount, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH));
            // containerd unmounts it, too: what is not mounted any more is done.
            if let Err(error) = result
                && self.mounts_below(&bundle).map_err(said)?.contains(&mount)
            {
                return Err(format!("unmounting {}: {error}", mount.display()));
            }
        }
        if let [left, ..] = self.mounts_below(&bundle).map_err(said)?.as_slice() {
            return Err(format!("{} is still mounted", left.display()));
        }
        remove_folder(&bundle)?;
        remove_folder(&self.runc_state(id))
    }
}

/// Removes a folder if it is there. A symlink is refused.
fn remove_folder(folder: &Path) -> Result<(), String> {
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    match folder.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(said(error)),
        Ok(found) if !found.is_dir() => Err(format!("{} is no folder", folder.display())),
        Ok(found) => remove_on_device(folder, found.dev()).map_err(said),
    }
}

/// `None` for what somebody else has removed meanwhile, as containerd does when it notices that a shim is gone.
fn unless_gone<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// How often a folder is emptied before it is given up: others write in it while it is removed, as the `shim delete` of
/// containerd does, whose `runc` logs into the bundle.
const ATTEMPTS: usize = 8;

/// Removes a folder with everything in it, and stops at the edge of its file system.
fn remove_on_device(folder: &Path, device: u64) -> std::io::Result<()> {
    let mut attempt = 1;
    loop {
        remove_content(folder, device)?;
        announce("removing folder", folder.display());
        match unless_gone(std::fs::remove_dir(folder)) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && attempt < ATTEMPTS => attempt += 1,
            removed => return removed.map(drop),
        }
    }
}

/// Empties a folder. The spec goes last: it says which control group belongs to the bundle.
fn remove_content(folder: &Path, device: u64) -> std::io::Result<()> {
    let Some(entries) = unless_gone(std::fs::read_dir(folder))? else { return Ok(()) };
    let mut all = Vec::new();
    for entry in entries {
        all.extend(unless_gone(entry)?);
    }
    all.sort_by_key(|entry| entry.file_name() == SPEC);
    for entry in all {
        let Some(found) = unless_gone(entry.path().symlink_metadata())? else { continue };
        if found.is_dir() {
            if found.dev() != device {
                return Err(std::io::Error::other(format!("{} is another file system", entry.path().display())));
            }
            remove_on_device(&entry.path(), device)?;
        } else {
            announce("removing", entry.path().display());
            unless_gone(std::fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

fn mounts_in(table: &[u8], folder: &Path) -> Vec<PathBuf> {
    let table = String::from_utf8_lossy(table);
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)));
    points.filter(|point| point.starts_with(folder)).collect()
}

/// The kernel writes blanks and backslashes as octal numbers.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(place) = rest.find('\\') {
        plain.push_str(&rest[..place]);
        let code = rest.get(place + 1..place + 4).and_then(|code| u8::from_str_radix(code, 8).ok());
        if let Some(code) = code {
            plain.push(char::from(code));
            rest = &rest[place + 4..];
        } else {
            plain.push('\\');
            rest = &rest[place + 1..];
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_the_folder_is_found_and_the_deepest_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().to_owned();
        std::fs::create_dir_all(proc.join("self")).unwrap();
        let line = |point: &str| format!("36 35 98:0 / {point} rw - ext3 /dev/root rw\n");
        let table = ["/s/sb-1", "/s/sb-1/rootfs", "/s/sb-10/rootfs", "/s/sb-1/a\\040b/c"].map(line).concat();
        std::fs::write(proc.join("self/mountinfo"), table).unwrap();
        let host = Host { proc, ..Host::default() };

        let found = host.mounts_below(Path::new("/s/sb-1")).unwrap();

        assert_eq!(found, ["/s/sb-1/a b/c", "/s/sb-1/rootfs", "/s/sb-1"].map(PathBuf::from));
    }

    #[test]
    fn a_bundle_goes_with_its_files_and_a_symlink_in_it_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { state: folder.path().join("state"), runc: folder.path().join("runc"), ..Host::default() };
        let (bundle, state) = (host.bundle("sb-1"), host.runc_state("sb-1"));
        std::fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
        std::fs::create_dir_all(folder.path().join("work")).unwrap();
        std::fs::write(bundle.join("config.json"), "{}").unwrap();
        for id in ["sb-1", "sb-10"] {
            std::fs::create_dir_all(host.runc_state(id)).unwrap();
            std::fs::write(host.runc_state(id).join("state.json"), "{}").unwrap();
        }
        std::os::unix::fs::symlink(folder.path().join("work"), bundle.join("work")).unwrap();

        host.remove_bundle("sb-1").unwrap();
        host.remove_bundle("sb-1").unwrap();

        assert!(!bundle.exists() && folder.path().join("work").exists());
        assert!(!state.exists() && host.runc_state("sb-10").exists());
    }
}
