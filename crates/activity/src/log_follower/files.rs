//! The log and its rotated files, in the order in which they were written.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::position::{ModifiedTime, modified, parent_folder};
use super::{ReadError, io_error};

/// Extensions of compressed files, which are not read.
const COMPRESSED_EXTENSIONS: [&str; 4] = ["gz", "zst", "xz", "bz2"];

/// Device and inode number. They distinguish files that exist at the same time.
pub(super) type Inode = (u64, u64);

pub(super) fn inode(metadata: &Metadata) -> Inode {
    (metadata.dev(), metadata.ino())
}

/// What a rotation added to the name of a file. Orders files with the same modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RotationSuffix {
    /// `audit.log.1`: the highest number is the oldest file.
    Number(Reverse<u64>),
    /// `audit-2026-11-16T02-33-11.123.log`
    Date,
}

/// A file of the log.
#[derive(Debug)]
pub(super) struct LogFile {
    pub path: PathBuf,
    pub inode: Inode,
    pub modified: ModifiedTime,
    /// True for the log itself, which the API server writes; false for a rotated file.
    pub is_active: bool,
    suffix: RotationSuffix,
}

impl LogFile {
    fn new(path: PathBuf, metadata: &Metadata, is_active: bool, suffix: RotationSuffix) -> Self {
        let (inode, modified) = (inode(metadata), modified(metadata));
        Self { path, inode, modified, is_active, suffix }
    }

    /// Opens this file. Fails with [`ReadError::FilesChanged`] if another file has its name by now.
    pub fn open(&self) -> Result<File, ReadError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(ReadError::FilesChanged),
            Err(error) => return Err(io_error("open", &self.path)(error).into()),
        };
        let metadata = file.metadata().map_err(io_error("stat", &self.path))?;
        if inode(&metadata) == self.inode { Ok(file) } else { Err(ReadError::FilesChanged) }
    }
}

/// All files of the log.
#[derive(Debug, Default)]
pub(super) struct LogFiles {
    /// The readable files, the oldest first and the log itself last.
    pub entries: Vec<LogFile>,
    /// Modification times of the files that exist only in compressed form.
    compressed: Vec<ModifiedTime>,
}

impl LogFiles {
    /// Returns the index of a file among the entries.
    pub fn find(&self, inode: Inode) -> Option<usize> {
        self.entries.iter().position(|entry| entry.inode == inode)
    }

    /// Returns the number of rotated files that were modified before a time.
    pub fn count_before(&self, time: ModifiedTime) -> usize {
        self.entries.partition_point(|entry| !entry.is_active && entry.modified < time)
    }

    /// Returns true if a file that was written after this one may have been deleted or compressed. Rotation deletes and
    /// compresses the oldest files first.
    pub fn may_miss_files_after(&self, inode: Inode, modified: ModifiedTime) -> bool {
        match self.find(inode) {
            Some(_) => self.compressed.iter().any(|time| *time > modified),
            // This file itself is one of the compressed ones.
            None => self.compressed.iter().filter(|time| **time >= modified).count() != 1,
        }
    }
}

/// Lists the files, calls `act`, and lists them again. Fails with [`ReadError::FilesChanged`] if the lists differ: a
/// list that is made during a rotation may have a file twice or not at all, and the log may have been copied away after
/// it was listed.
pub(super) fn with_stable_files<T>(
    log: &Path,
    act: impl FnOnce(&LogFiles) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let names =
        |files: &LogFiles| files.entries.iter().map(|entry| (entry.path.clone(), entry.inode)).collect::<Vec<_>>();
    let before = list(log)?;
    let result = act(&before)?;
    if names(&before) == names(&list(log)?) { Ok(result) } else { Err(ReadError::FilesChanged) }
}

/// Returns the metadata of the log; `None` if it does not exist.
pub(super) fn log_metadata(log: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(log) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(_) => Err(io_error("read", log)(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("stat", log)(error)),
    }
}

fn list(log: &Path) -> io::Result<LogFiles> {
    let folder = parent_folder(log);
    let names = match fs::read_dir(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(LogFiles::default()),
        Err(error) => return Err(io_error("read", folder)(error)),
    };
    let (mut entries, mut compressed) = (Vec::new(), Vec::new());
    for name in names {
        let name = name.map_err(io_error("read", folder))?.file_name();
        let path = folder.join(&name);
        let is_compressed =
            path.extension().is_some_and(|extension| COMPRESSED_EXTENSIONS.iter().any(|known| extension == *known));
        let uncompressed = if is_compressed { path.with_extension("") } else { path.clone() };
        let Some(suffix) = uncompressed.file_name().and_then(|name| rotation_suffix(log, name)) else { continue };
        match fs::metadata(&path) {
            Ok(metadata) if is_compressed => compressed.push((uncompressed, modified(&metadata))),
            Ok(metadata) if metadata.is_file() => entries.push(LogFile::new(path, &metadata, false, suffix)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("stat", &path)(error)),
        }
    }
    // While a file is being compressed, both forms exist.
    compressed.retain(|(uncompressed, _)| entries.iter().all(|entry| entry.path != *uncompressed));
    let compressed = compressed.into_iter().map(|(_, modified)| modified).collect();
    entries.sort_by(|a, b| (a.modified, a.suffix, &a.path).cmp(&(b.modified, b.suffix, &b.path)));
    if let Some(metadata) = log_metadata(log)? {
        entries.push(LogFile::new(log.to_owned(), &metadata, true, RotationSuffix::Date));
    }
    Ok(LogFiles { entries, compressed })
}

/// Returns what a rotation added to the log's name; `None` if this is not the name of a rotated file.
fn rotation_suffix(log: &Path, name: &OsStr) -> Option<RotationSuffix> {
    let whole = log.file_name()?.as_encoded_bytes();
    let stem = log.file_stem()?.as_encoded_bytes();
    let name = name.as_encoded_bytes();
    // audit.log.1 and audit.log-20261116; audit-2026-11-16T02-33-11.123.log and audit.1.log
    let between = || name.strip_prefix(stem)?.strip_suffix(whole.strip_prefix(stem)?);
    let added = name.strip_prefix(whole).or_else(between)?;

    let (separator, rest) = added.split_first()?;
    let is_rotated = matches!(separator, b'.' | b'-')
        && rest.first().is_some_and(u8::is_ascii_digit)
        && rest.iter().all(|byte| byte.is_ascii_digit() || b"-.:_TZ".contains(byte));
    let parse = || str::from_utf8(rest).ok()?.parse().ok();
    let number = if *separator == b'.' { parse() } else { None };
    is_rotated.then_some(number.map_or(RotationSuffix::Date, |number| RotationSuffix::Number(Reverse(number))))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const fn number(number: u64) -> RotationSuffix {
        RotationSuffix::Number(Reverse(number))
    }

    #[rstest]
    #[case::lumberjack("audit.log", "audit-2026-11-16T02-33-11.123.log", Some(RotationSuffix::Date))]
    #[case::number("audit.log", "audit.log.12", Some(number(12)))]
    #[case::date("audit.log", "audit.log-20261116", Some(RotationSuffix::Date))]
    #[case::number_before_the_extension("audit.log", "audit.2.log", Some(number(2)))]
    #[case::without_an_extension("audit", "audit.3", Some(number(3)))]
    #[case::lumberjack_without_an_extension("audit", "audit-2026-11-16T02-33-11.123", Some(RotationSuffix::Date))]
    #[case::a_number_beyond_u64("audit.log", "audit.log.99999999999999999999", Some(RotationSuffix::Date))]
    #[case::the_log_itself("audit.log", "audit.log", None)]
    #[case::compressed("audit.log", "audit.log.1.gz", None)]
    #[case::another_log("audit.log", "audit-webhook.log", None)]
    #[case::not_a_log("audit.log", "audit-policy.yaml", None)]
    #[case::a_position_file("audit.log", "audit.log.position", None)]
    #[case::a_longer_stem("audit.log", "auditor.log.1", None)]
    fn a_rotated_file_is_recognized_by_its_name(
        #[case] log: &str,
        #[case] name: &str,
        #[case] expected: Option<RotationSuffix>,
    ) {
        assert_eq!(rotation_suffix(&Path::new("/logs").join(log), OsStr::new(name)), expected);
    }

    #[test]
    fn the_highest_number_is_the_oldest_file() {
        assert!(number(10) < number(9) && number(2) < number(1));
    }
}
