//! The place in the log, and the file in which it is kept.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::failed;

/// So much of a file's first line tells it from every other: its auditID is among it.
const HEAD: usize = 256;

/// More than any place needs, so that no file, whatever it is, fills the memory.
const MOST_KEPT: u64 = 4096;

/// Seconds and nanoseconds since 1970.
pub(super) type Moment = (i64, i64);

/// When a file was last written.
pub(super) fn modified(of: &fs::Metadata) -> Moment {
    (of.mtime(), of.mtime_nsec())
}

/// How a file is known again, wherever it was moved or copied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// Where its first line begins. A writer that does not append leaves a hole before it after a truncation.
    pub start: u64,
    /// Of the beginning of that line.
    pub fingerprint: u64,
}

impl Mark {
    pub fn new(start: u64, head: &[u8]) -> Self {
        // FNV-1a: the same in every version of the program, which a hasher of the standard library is not.
        let fingerprint = head
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        Self { start, fingerprint }
    }
}

/// How far the log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// In which file. None: nothing is read of any file that was modified since.
    pub(super) mark: Option<Mark>,
    /// Where the first line begins that is not read.
    pub(super) offset: u64,
    /// When that file was last seen to be modified. What comes after it was modified later.
    pub(super) modified: Moment,
}

/// What the position file holds.
pub(super) enum Kept {
    Place(Place),
    Nothing,
    Broken(String),
}

impl Place {
    /// Before everything there is.
    pub(super) const BEGINNING: Self = Self::since((i64::MIN, 0));

    /// Before everything that was modified since.
    pub(super) const fn since(modified: Moment) -> Self {
        Self { mark: None, offset: 0, modified }
    }

    pub(super) fn load(from: &Path) -> io::Result<Kept> {
        let file = match File::open(from) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Kept::Nothing),
            Err(error) => return Err(failed("open", from)(error)),
        };
        let mut text = Vec::new();
        file.take(MOST_KEPT).read_to_end(&mut text).map_err(failed("read", from))?;
        Ok(match serde_json::from_slice::<Self>(&text) {
            Ok(place) if place.is_possible() => Kept::Place(place),
            Ok(_) => Kept::Broken("no file is that long".to_owned()),
            Err(error) => Kept::Broken(error.to_string()),
        })
    }

    fn is_possible(&self) -> bool {
        let start = self.mark.map_or(0, |mark| mark.start);
        start <= self.offset && i64::try_from(self.offset).is_ok()
    }

    /// Written aside and renamed, so that a crash leaves the old one or the new one.
    pub(super) fn save(&self, to: &Path) -> io::Result<()> {
        let aside = to.with_added_extension("new");
        let text = serde_json::to_vec(self)?;
        let mut file = File::create(&aside).map_err(failed("create", &aside))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed("write", &aside))?;
        fs::rename(&aside, to).map_err(failed("rename to", to))?;
        let folder = folder(to);
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))
    }
}

/// Where a file lies.
pub(super) fn folder(of: &Path) -> &Path {
    of.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What stands at a place of a file: as much as there is room for, or as there is.
pub(super) fn read_at(file: &File, into: &mut [u8], mut at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(room) = into.get_mut(filled..).filter(|room| !room.is_empty()) {
        match file.read_at(room, at) {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                at += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Where the first line begins; none if there is nothing but holes.
pub(super) fn start(file: &File) -> io::Result<Option<u64>> {
    let mut bytes = [0; 4096];
    let mut at = 0;
    loop {
        let read = read_at(file, &mut bytes, at)?;
        let hole = bytes.iter().take(read).take_while(|byte| **byte == 0).count();
        at += hole as u64;
        if hole < read {
            return Ok(Some(at));
        }
        if read < bytes.len() {
            return Ok(None);
        }
    }
}

/// The beginning of the line that begins there.
pub(super) fn head_at(file: &File, start: u64) -> io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD];
    let read = read_at(file, &mut head, start)?;
    let end = head.iter().position(|byte| *byte == b'\n').map_or(read, |newline| newline + 1);
    head.truncate(end.min(read));
    Ok(head)
}

/// Whether nothing that is written later changes it.
pub(super) fn is_whole(head: &[u8]) -> bool {
    head.len() >= HEAD || head.ends_with(b"\n")
}
