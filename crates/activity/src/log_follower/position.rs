//! The position in the log, and the file that keeps it across restarts.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use caretaker_core::fnv;
use serde::{Deserialize, Serialize};

use super::io_error;

/// This many bytes of a file's first line distinguish the file from every other one: they contain the audit ID.
const HEAD_BYTES: usize = 256;

/// A position file is never longer. Bounds memory if the path names another file.
const MAX_POSITION_FILE_BYTES: u64 = 4096;

/// A file's modification time: seconds and nanoseconds since 1970.
pub(super) type ModifiedTime = (i64, i64);

/// Returns when a file was last written.
pub(super) fn modified(metadata: &fs::Metadata) -> ModifiedTime {
    (metadata.mtime(), metadata.mtime_nsec())
}

/// Identifies a file by its content, after it was renamed or copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileMark {
    /// Offset of the first line. It is not 0 if the file starts with a hole: a writer without O_APPEND leaves one after
    /// a truncation.
    pub start: u64,
    /// Hash of the head of the first line.
    pub fingerprint: u64,
}

impl FileMark {
    pub fn new(start: u64, head: &[u8]) -> Self {
        Self { start, fingerprint: fnv::hash(head.iter().copied()) }
    }
}

/// How far the log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// The file; `None` if nothing is read of the files that were modified at `modified` or later.
    pub(super) mark: Option<FileMark>,
    /// Offset of the first unread line.
    pub(super) offset: u64,
    /// Modification time of the file when it was last read. Later files have later times.
    pub(super) modified: ModifiedTime,
}

/// The content of a position file.
pub(super) enum SavedPosition {
    Valid(LogPosition),
    Missing,
    /// The file exists and holds no position, for this reason.
    Invalid(String),
}

impl LogPosition {
    /// The position before every file.
    pub(super) const BEGINNING: Self = Self::before_files_since((i64::MIN, 0));

    /// Returns the position before every file that was modified at this time or later.
    pub(super) const fn before_files_since(modified: ModifiedTime) -> Self {
        Self { mark: None, offset: 0, modified }
    }

    /// Reads a position file. A file that exists and cannot be read is an error, not a missing one.
    pub(super) fn load(path: &Path) -> io::Result<SavedPosition> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SavedPosition::Missing),
            Err(error) => return Err(io_error("open", path)(error)),
        };
        let mut text = Vec::new();
        file.take(MAX_POSITION_FILE_BYTES).read_to_end(&mut text).map_err(io_error("read", path))?;
        Ok(match serde_json::from_slice::<Self>(&text) {
            Ok(position) if position.is_possible() => SavedPosition::Valid(position),
            Ok(_) => SavedPosition::Invalid("its offset is out of range".to_owned()),
            Err(error) => SavedPosition::Invalid(error.to_string()),
        })
    }

    fn is_possible(&self) -> bool {
        let start = self.mark.map_or(0, |mark| mark.start);
        start <= self.offset && i64::try_from(self.offset).is_ok()
    }

    /// Writes the position to a new file and renames it, so that a crash leaves either the old or the new position.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let new = path.with_added_extension("new");
        let text = serde_json::to_vec(self)?;
        let mut file = File::create(&new).map_err(io_error("create", &new))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(io_error("write", &new))?;
        fs::rename(&new, path).map_err(io_error("rename the new position file to", path))?;
        let folder = parent_folder(path);
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("sync", folder))
    }
}

/// Returns the folder of a file; the working directory for a bare file name.
pub(super) fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fills the buffer from an offset of the file, and returns the number of bytes. It is less than the buffer's length
/// only at the end of the file.
pub(super) fn read_at(file: &File, buffer: &mut [u8], mut offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset) {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                offset += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Returns the offset of the first line, behind a hole; `None` if the file has nothing else.
pub(super) fn first_line_start(file: &File) -> io::Result<Option<u64>> {
    let mut bytes = [0; 4096];
    let mut offset = 0;
    loop {
        let read = read_at(file, &mut bytes, offset)?;
        let hole = bytes.iter().take(read).take_while(|byte| **byte == 0).count();
        offset += hole as u64;
        if hole < read {
            return Ok(Some(offset));
        }
        if read < bytes.len() {
            return Ok(None);
        }
    }
}

/// Returns the head of the line that starts at the offset: at most [`HEAD_BYTES`], with its newline.
pub(super) fn line_head(file: &File, start: u64) -> io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD_BYTES];
    let read = read_at(file, &mut head, start)?;
    let end = head.iter().position(|byte| *byte == b'\n').map_or(read, |newline| newline + 1);
    head.truncate(end.min(read));
    Ok(head)
}

/// Returns true if later writes do not change the head.
pub(super) fn is_final(head: &[u8]) -> bool {
    head.len() >= HEAD_BYTES || head.ends_with(b"\n")
}
