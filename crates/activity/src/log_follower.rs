//! Follows the API server's audit log across rotation, truncation and restarts, and loses no line.
//!
//! A position is the head of a file's first line and an offset: names change with every rotation, and inode numbers
//! with every copy. A rotated file is read to its end, then the files that were written after it, and last the log itself.

mod files;
mod open_file;
mod position;

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use files::{LogFiles, inode, log_metadata, with_stable_files};
use open_file::{OpenLogFile, ReadStep};
pub use position::LogPosition;
use position::{ModifiedTime, SavedPosition};

/// Maximum length of a line. Longer lines are skipped, so that no line can exhaust the memory.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// Number of bytes that are read from a file at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The result of [`LogFollower::read`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ReadProgress {
    /// The number of lines that were read.
    pub lines: u64,
    /// The number of lines that were skipped because they are longer than [`MAX_LINE_BYTES`].
    pub too_long: u64,
    /// True if there may be more to read now.
    pub more: bool,
    /// Why lines may be lost; `None` if no line is.
    pub lines_lost: Option<String>,
}

/// Follows a log. All calls block, so it needs a thread of its own.
///
/// Every line is read at least once: lines that were read after the last [`save`](Self::save) are read again after a
/// crash. Until the first save every start is a first start, even if there was nothing to read.
#[derive(Debug)]
pub struct LogFollower {
    log: PathBuf,
    position_file: PathBuf,
    /// The file that is being read; `None` before the first read and while there is nothing to read.
    reading: Option<OpenLogFile>,
    /// The position, unless `reading` has a later one; `None` before the first read.
    position: Option<LogPosition>,
    /// The content of the position file.
    saved: Option<LogPosition>,
    /// Progress that no call has returned yet. It survives errors.
    progress: ReadProgress,
}

/// Why a read stops early.
enum ReadError {
    /// Files were renamed, removed or replaced during the read. The next read starts over.
    FilesChanged,
    Io(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Returns a function that adds the attempted operation and the path to an error.
fn io_error(attempt: &str, path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {attempt} {}: {error}", path.display()))
}

impl LogFollower {
    /// Prepares to follow `log`, the path of the API server's `--audit-log-path`. `position_file` keeps the position
    /// across restarts. Reads nothing yet.
    #[must_use]
    pub fn new(log: PathBuf, position_file: PathBuf) -> Self {
        Self { log, position_file, reading: None, position: None, saved: None, progress: ReadProgress::default() }
    }

    /// Reads what is there now, at most `max_bytes`, and calls `each` with every complete line, without its newline.
    ///
    /// Without a position file it starts with the log itself and skips files that were rotated before. A log that does
    /// not exist yet has no lines. After an error, the next call counts the lines that were read before the error.
    pub fn read(&mut self, max_bytes: usize, mut each: impl FnMut(&[u8])) -> io::Result<ReadProgress> {
        match self.read_files(max_bytes.max(1), &mut each) {
            Ok(more) => self.progress.more = more,
            Err(ReadError::FilesChanged) => self.progress.more = true,
            Err(ReadError::Io(error)) => return Err(error),
        }
        Ok(std::mem::take(&mut self.progress))
    }

    /// Returns the position after the last line that was read; `None` before the first read.
    #[must_use]
    pub fn position(&self) -> Option<LogPosition> {
        self.reading.as_ref().and_then(OpenLogFile::position).or(self.position)
    }

    /// Writes a position to the position file, so that a restart continues there. Does not write an unchanged position.
    pub fn save_position(&mut self, position: LogPosition) -> io::Result<()> {
        if self.saved != Some(position) {
            position.save(&self.position_file)?;
            self.saved = Some(position);
        }
        Ok(())
    }

    /// Saves the position after the last line that was read.
    pub fn save(&mut self) -> io::Result<()> {
        self.position().map_or(Ok(()), |position| self.save_position(position))
    }

    /// Reads files one after the other. Returns true if there may be more.
    fn read_files(&mut self, max_bytes: usize, each: &mut dyn FnMut(&[u8])) -> Result<bool, ReadError> {
        if self.position.is_none() {
            self.start()?;
        }
        let mut chunk = vec![0; max_bytes.min(CHUNK_BYTES)];
        let mut left = max_bytes;
        let mut next = None;
        while left > 0 {
            let Some(reading) = &mut self.reading else {
                self.reading = self.resume()?;
                if self.reading.is_none() {
                    return Ok(false);
                }
                continue;
            };
            let room = left.min(chunk.len());
            match reading.fill(&mut chunk[..room])? {
                ReadStep::Truncated => {
                    // The unread rest may be in a copy.
                    next = None;
                    self.position = reading.position().or(self.position);
                    self.reading = None;
                }
                ReadStep::Bytes(0) => match next.take() {
                    // The file was at its end before and after its successor was found: nothing more is written to it.
                    Some(NextFile::Successor { file, may_miss_files }) => {
                        reading.finish(&mut self.progress, each);
                        if may_miss_files {
                            let path = file.path.display();
                            self.progress.add_loss(format!(
                                "files before {path} may have been deleted or compressed before they were read"
                            ));
                        }
                        self.position = Some(reading.final_position());
                        self.reading = Some(file);
                    }
                    Some(NextFile::Copy(copy)) => self.reading = Some(copy),
                    None => {
                        next = find_next(&self.log, Some(reading), reading.modified)?;
                        if next.is_none() {
                            return Ok(false);
                        }
                    }
                },
                ReadStep::Bytes(read) => {
                    next = None;
                    left -= read;
                    reading.consume(&chunk[..read], &mut self.progress, each);
                }
            }
        }
        Ok(true)
    }

    /// Sets the first position: the saved one, or the start of the log behind the files that are rotated already.
    fn start(&mut self) -> Result<(), ReadError> {
        let invalid = match LogPosition::load(&self.position_file)? {
            SavedPosition::Valid(position) => {
                (self.position, self.saved) = (Some(position), Some(position));
                return Ok(());
            }
            SavedPosition::Missing => None,
            SavedPosition::Invalid(reason) => Some(reason),
        };
        (self.position, self.reading) = with_stable_files(&self.log, |files| {
            // The position is behind the last rotated file: a file that is rotated from now on comes after it, even
            // across a restart.
            let mut position = LogPosition::BEGINNING;
            let mut log = None;
            for entry in &files.entries {
                match OpenLogFile::open(entry)? {
                    Some(file) if entry.is_active => log = Some(file),
                    Some(mut file) => {
                        file.seek(file.length);
                        position = file.position().unwrap_or(position);
                    }
                    None => {}
                }
            }
            Ok((Some(position), log))
        })?;
        if let Some(reason) = invalid {
            let (position_file, log) = (self.position_file.display(), self.log.display());
            self.progress
                .add_loss(format!("position file {position_file} is invalid ({reason}): reading {log} from its start"));
        }
        Ok(())
    }

    /// Opens the file that has the position now, under any name; `None` if there is nothing to read.
    fn resume(&mut self) -> Result<Option<OpenLogFile>, ReadError> {
        let position = self.position.unwrap_or(LogPosition::BEGINNING);
        if position.mark.is_none() {
            return Ok(find_next(&self.log, None, position.modified)?.map(NextFile::into));
        }
        match with_stable_files(&self.log, |files| find_position(files, &position))? {
            PositionLookup::Found(file) => Ok(Some(file)),
            PositionLookup::Shorter(file) => {
                self.progress.add_loss(format!("{} is shorter than the part of it that was read", file.path.display()));
                Ok(Some(file))
            }
            PositionLookup::Gone => {
                let log = self.log.display();
                self.progress.add_loss(format!(
                    "the file that was read last is neither {log} nor one of its rotated files: it was deleted, \
                     compressed, or truncated without a copy"
                ));
                self.position = Some(LogPosition::before_files_since(position.modified));
                self.resume()
            }
            // The folder may not be mounted yet.
            PositionLookup::NoFiles => Ok(None),
        }
    }
}

impl ReadProgress {
    fn add_loss(&mut self, reason: String) {
        match &mut self.lines_lost {
            Some(reasons) if reasons.contains(&reason) => {}
            Some(reasons) => *reasons = format!("{reasons}; {reason}"),
            None => self.lines_lost = Some(reason),
        }
    }
}

/// Which file has a position.
enum PositionLookup {
    Found(OpenLogFile),
    /// The file ends before the position.
    Shorter(OpenLogFile),
    /// There are files, and none of them has the position.
    Gone,
    NoFiles,
}

/// Looks for the file of a position. Of several copies it prefers the log itself, and then the newest one.
fn find_position(files: &LogFiles, position: &LogPosition) -> Result<PositionLookup, ReadError> {
    let mut shorter = None;
    for entry in files.entries.iter().rev() {
        let Some(mut file) = OpenLogFile::resume(entry, position)? else { continue };
        if file.length >= position.offset {
            return Ok(PositionLookup::Found(file));
        }
        if shorter.is_none() {
            // All of a copy was read. The log may have been written again after it was truncated.
            file.seek(if entry.is_active { 0 } else { file.length });
            shorter = Some(file);
        }
    }
    Ok(match shorter {
        Some(file) => PositionLookup::Shorter(file),
        None if files.entries.is_empty() => PositionLookup::NoFiles,
        None => PositionLookup::Gone,
    })
}

/// The file that is read next.
enum NextFile {
    /// The file that was written next, at its first line.
    Successor {
        file: OpenLogFile,
        /// True if other files may have been between the two and are gone.
        may_miss_files: bool,
    },
    /// A file with the same lines, at the same position. One of the two is a copy, and only the later one still grows.
    Copy(OpenLogFile),
}

impl From<NextFile> for OpenLogFile {
    fn from(next: NextFile) -> Self {
        match next {
            NextFile::Successor { file, .. } | NextFile::Copy(file) => file,
        }
    }
}

/// Returns the file that was written after `reading`, or without one the first file that was modified at `since` or
/// later. Skips files without a line: they may still be written, or be copies in progress.
fn find_next(log: &Path, reading: Option<&OpenLogFile>, since: ModifiedTime) -> Result<Option<NextFile>, ReadError> {
    let is_reading = |log: Metadata| reading.is_some_and(|reading| reading.inode == inode(&log));
    if log_metadata(log)?.is_some_and(is_reading) {
        return Ok(None);
    }
    with_stable_files(log, |files| {
        let index = reading.and_then(|reading| files.find(reading.inode));
        let first = index.map_or_else(|| files.count_before(since), |index| index + 1);
        let may_miss_files = reading.is_some_and(|reading| files.may_miss_files_after(reading.inode, since));
        let mut empty = Vec::new();
        for entry in files.entries.iter().skip(first) {
            let Some(mut file) = OpenLogFile::open(entry)? else {
                empty.push(entry);
                continue;
            };
            let original = reading.filter(|reading| reading.is_copy_of(&file));
            if original.is_some_and(|reading| reading.offset > file.length) {
                continue;
            }
            // A copy that was in progress may be complete by now, and its original truncated.
            for entry in empty {
                if OpenLogFile::open(entry)?.is_some() {
                    return Err(ReadError::FilesChanged);
                }
            }
            let Some(original) = original else { return Ok(Some(NextFile::Successor { file, may_miss_files })) };
            file.seek(original.line);
            return Ok(Some(NextFile::Copy(file)));
        }
        Ok(None)
    })
}
