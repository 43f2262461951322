//! The log and what it was rotated to, in the order in which they were written.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::place::{Moment, folder, modified};
use super::{Stop, failed};

/// How the names end of what cannot be read any more.
const COMPRESSED: [&str; 4] = ["gz", "zst", "xz", "bz2"];

/// Device and inode: they tell apart what exists at the same time.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(of: &Metadata) -> Identity {
    (of.dev(), of.ino())
}

/// How a file was renamed. The order is for those that were modified at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rotated {
    /// audit.log.1: the higher, the older.
    Counted(Reverse<u64>),
    /// audit-2026-11-16T02-33-11.123.log
    Dated,
}

/// A file of the log.
#[derive(Debug)]
pub(super) struct Entry {
    pub path: PathBuf,
    pub identity: Identity,
    pub modified: Moment,
    /// Whether it is the one that is written.
    pub is_log: bool,
    rotated: Rotated,
}

impl Entry {
    fn new(path: PathBuf, metadata: &Metadata, is_log: bool, rotated: Rotated) -> Self {
        let (identity, modified) = (identity(metadata), modified(metadata));
        Self { path, identity, modified, is_log, rotated }
    }

    /// Opens this file, and no other one that has come to its name since.
    pub fn open(&self) -> Result<File, Stop> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(Stop::Moved),
            Err(error) => return Err(failed("open", &self.path)(error).into()),
        };
        let metadata = file.metadata().map_err(failed("look at", &self.path))?;
        if identity(&metadata) == self.identity { Ok(file) } else { Err(Stop::Moved) }
    }
}

/// What there is of the log.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The oldest first and the log last.
    pub entries: Vec<Entry>,
    /// When those were modified that are there in compressed form only.
    compressed: Vec<Moment>,
}

impl Files {
    /// Where a file is among them.
    pub fn find(&self, identity: Identity) -> Option<usize> {
        self.entries.iter().position(|entry| entry.identity == identity)
    }

    /// How many are older than a time.
    pub fn before(&self, time: Moment) -> usize {
        self.entries.partition_point(|entry| !entry.is_log && entry.modified < time)
    }

    /// Whether a file that was written after this one may have been deleted or compressed. Whoever does that begins
    /// with the oldest.
    pub fn is_gap_after(&self, identity: Identity, modified: Moment) -> bool {
        match self.find(identity) {
            Some(_) => self.compressed.iter().any(|time| *time > modified),
            // One of the compressed ones is this one.
            None => self.compressed.iter().filter(|time| **time >= modified).count() != 1,
        }
    }
}

/// Looks at what there is, and does something with it.
pub(super) fn look<T>(log: &Path, act: impl FnOnce(&Files) -> Result<T, Stop>) -> Result<T, Stop> {
    let names =
        |files: &Files| files.entries.iter().map(|entry| (entry.path.clone(), entry.identity)).collect::<Vec<_>>();
    let before = list(log)?;
    let done = act(&before)?;
    // A list that is made while files are renamed may have one of them twice, or not at all. And what was in the log
    // while it was made may have been copied away since.
    if names(&before) == names(&list(log)?) { Ok(done) } else { Err(Stop::Moved) }
}

/// The log's own metadata, if it is there.
pub(super) fn metadata(log: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(log) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(_) => Err(failed("read", log)(io::Error::new(ErrorKind::InvalidInput, "it is not a file"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("look at", log)(error)),
    }
}

fn list(log: &Path) -> io::Result<Files> {
    let folder = folder(log);
    let names = match fs::read_dir(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Files::default()),
        Err(error) => return Err(failed("read", folder)(error)),
    };
    let (mut entries, mut compressed) = (Vec::new(), Vec::new());
    for name in names {
        let name = name.map_err(failed("read", folder))?.file_name();
        let path = folder.join(&name);
        let is_compressed =
            path.extension().is_some_and(|extension| COMPRESSED.iter().any(|known| extension == *known));
        let readable = if is_compressed { path.with_extension("") } else { path.clone() };
        let Some(rotated) = readable.file_name().and_then(|name| rotated(log, name)) else { continue };
        match fs::metadata(&path) {
            Ok(metadata) if is_compressed => compressed.push((readable, modified(&metadata))),
            Ok(metadata) if metadata.is_file() => entries.push(Entry::new(path, &metadata, false, rotated)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look at", &path)(error)),
        }
    }
    // While a file is being compressed both are there.
    compressed.retain(|(readable, _)| entries.iter().all(|entry| entry.path != *readable));
    let compressed = compressed.into_iter().map(|(_, modified)| modified).collect();
    entries.sort_by(|a, b| (a.modified, a.rotated, &a.path).cmp(&(b.modified, b.rotated, &b.path)));
    if let Some(metadata) = metadata(log)? {
        entries.push(Entry::new(log.to_owned(), &metadata, true, Rotated::Dated));
    }
    Ok(Files { entries, compressed })
}

/// How a log was rotated to a name, if it was.
fn rotated(log: &Path, name: &OsStr) -> Option<Rotated> {
    let whole = log.file_name()?.as_encoded_bytes();
    let stem = log.file_stem()?.as_encoded_bytes();
    let name = name.as_encoded_bytes();
    // audit.log.1 and audit.log-20261116; audit-2026-11-16T02-33-11.123.log and audit.1.log
    let between = || name.strip_prefix(stem)?.strip_suffix(whole.strip_prefix(stem)?);
    let added = name.strip_prefix(whole).or_else(between)?;

    let (sign, rest) = added.split_first()?;
    let is_rotated = matches!(sign, b'.' | b'-')
        && rest.first().is_some_and(u8::is_ascii_digit)
        && rest.iter().all(|byte| byte.is_ascii_digit() || b"-.:_TZ".contains(byte));
    let number = || str::from_utf8(rest).ok()?.parse().ok();
    let counted = if *sign == b'.' { number() } else { None };
    is_rotated.then_some(counted.map_or(Rotated::Dated, |number| Rotated::Counted(Reverse(number))))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const fn counted(number: u64) -> Rotated {
        Rotated::Counted(Reverse(number))
    }

    #[rstest]
    #[case::lumberjack("audit.log", "audit-2026-11-16T02-33-11.123.log", Some(Rotated::Dated))]
    #[case::counted("audit.log", "audit.log.12", Some(counted(12)))]
    #[case::dated("audit.log", "audit.log-20261116", Some(Rotated::Dated))]
    #[case::counted_before_the_extension("audit.log", "audit.2.log", Some(counted(2)))]
    #[case::without_an_extension("audit", "audit.3", Some(counted(3)))]
    #[case::lumberjack_without_an_extension("audit", "audit-2026-11-16T02-33-11.123", Some(Rotated::Dated))]
    #[case::more_than_a_number_holds("audit.log", "audit.log.99999999999999999999", Some(Rotated::Dated))]
    #[case::itself("audit.log", "audit.log", None)]
    #[case::compressed("audit.log", "audit.log.1.gz", None)]
    #[case::another_log("audit.log", "audit-webhook.log", None)]
    #[case::no_log("audit.log", "audit-policy.yaml", None)]
    #[case::a_position("audit.log", "audit.log.position", None)]
    #[case::a_longer_word("audit.log", "auditor.log.1", None)]
    fn a_sibling_is_known_by_its_name(#[case] log: &str, #[case] name: &str, #[case] expected: Option<Rotated>) {
        assert_eq!(rotated(&Path::new("/logs").join(log), OsStr::new(name)), expected);
    }

    #[test]
    fn of_those_that_are_counted_the_highest_is_the_oldest() {
        assert!(counted(10) < counted(9) && counted(2) < counted(1));
    }
}
