//! A file of the log that is being read.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::files::{Inode, LogFile};
use super::position::{FileMark, LogPosition, ModifiedTime, first_line_start, is_final, line_head, modified, read_at};
use super::{MAX_LINE_BYTES, ReadError, ReadProgress, io_error};

/// An open file, and how far it is read.
#[derive(Debug)]
pub(super) struct OpenLogFile {
    pub path: PathBuf,
    pub inode: Inode,
    /// Length and modification time at the last read.
    pub length: u64,
    pub modified: ModifiedTime,
    file: File,
    /// Offset and head of the first line, as far as it is written. The head is never empty.
    start: u64,
    head: Vec<u8>,
    /// Offset of the line that is being read.
    pub line: u64,
    /// Offset up to which the file is read.
    pub offset: u64,
    /// The part of the line that is read; empty if the line is too long.
    partial_line: Vec<u8>,
    is_too_long: bool,
}

/// The result of one read.
pub(super) enum ReadStep {
    /// The number of bytes; 0 at the end of the file.
    Bytes(usize),
    /// The file no longer contains what was read from it.
    Truncated,
}

impl OpenLogFile {
    /// Opens a file at its first line; `None` while it has too little text to distinguish it from other files.
    pub fn open(entry: &LogFile) -> Result<Option<Self>, ReadError> {
        let file = entry.open()?;
        let Some(start) = first_line_start(&file).map_err(io_error("read", &entry.path))? else { return Ok(None) };
        let open = Self::at(entry, file, start, start)?;
        if first_line_start(&open.file).map_err(io_error("read", &entry.path))? != Some(start) {
            return Err(ReadError::FilesChanged);
        }
        // A rotated file does not grow any more.
        let is_enough = if entry.is_active { is_final(&open.head) } else { !open.head.is_empty() };
        Ok(is_enough.then_some(open))
    }

    /// Opens a file at a position; `None` if the position is in another file.
    pub fn resume(entry: &LogFile, position: &LogPosition) -> Result<Option<Self>, ReadError> {
        let Some(mark) = position.mark else { return Ok(None) };
        let open = Self::at(entry, entry.open()?, mark.start, position.offset)?;
        // The head of an unfinished first line may be too short to be unique. Then the time must match as well.
        let is_unique = is_final(&open.head) || (!entry.is_active && open.modified == position.modified);
        Ok((is_unique && FileMark::new(mark.start, &open.head) == mark).then_some(open))
    }

    fn at(entry: &LogFile, file: File, start: u64, offset: u64) -> io::Result<Self> {
        let (path, inode) = (entry.path.clone(), entry.inode);
        let head = line_head(&file, start).map_err(io_error("read", &path))?;
        let metadata = file.metadata().map_err(io_error("stat", &path))?;
        Ok(Self {
            path,
            inode,
            length: metadata.len(),
            modified: modified(&metadata),
            file,
            start,
            head,
            line: offset,
            offset,
            partial_line: Vec::new(),
            is_too_long: false,
        })
    }

    /// Reads the next bytes into the buffer and does not consume them. A truncation is permanent, so it is enough to
    /// check for it after the read.
    pub fn fill(&mut self, buffer: &mut [u8]) -> io::Result<ReadStep> {
        let read = read_at(&self.file, buffer, self.offset).map_err(io_error("read", &self.path))?;
        let metadata = self.file.metadata().map_err(io_error("stat", &self.path))?;
        let head = line_head(&self.file, self.start).map_err(io_error("read", &self.path))?;
        if metadata.len() < self.offset + read as u64 || !head.starts_with(&self.head) {
            return Ok(ReadStep::Truncated);
        }
        (self.length, self.modified, self.head) = (metadata.len(), modified(&metadata), head);
        Ok(ReadStep::Bytes(read))
    }

    /// Returns true if the other file has the same first line. Behind a hole of the same size any part of the line is
    /// enough, because a copy in progress may not contain more.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        let is_enough = is_final(&self.head) || self.start > 0;
        is_enough && self.start == other.start && other.head.starts_with(&self.head)
    }

    /// Moves to the line at an offset, or to the first line if that is later.
    pub fn seek(&mut self, offset: u64) {
        (self.line, self.offset) = (offset.max(self.start), offset.max(self.start));
        self.partial_line.clear();
    }

    /// Consumes bytes that [`fill`](Self::fill) read, and calls `each` with every line that they complete.
    pub fn consume(&mut self, bytes: &[u8], progress: &mut ReadProgress, each: &mut dyn FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let hole = if self.has_partial_line() { 0 } else { piece.iter().take_while(|byte| **byte == 0).count() };
            self.line += hole as u64;
            self.offset += piece.len() as u64;
            let piece = &piece[hole..];
            let text = piece.strip_suffix(b"\n");
            self.add_text(text.unwrap_or(piece), text.is_some(), progress, each);
        }
    }

    fn add_text(&mut self, text: &[u8], ends: bool, progress: &mut ReadProgress, each: &mut dyn FnMut(&[u8])) {
        if self.is_too_long || self.partial_line.len() + text.len() > MAX_LINE_BYTES {
            self.is_too_long = true;
            self.partial_line = Vec::new();
        } else if ends && self.partial_line.is_empty() {
            each(text);
        } else {
            self.partial_line.extend_from_slice(text);
            if ends {
                each(&self.partial_line);
            }
        }
        if ends {
            self.finish_line(progress);
        }
    }

    fn finish_line(&mut self, progress: &mut ReadProgress) {
        *(if self.is_too_long { &mut progress.too_long } else { &mut progress.lines }) += 1;
        self.is_too_long = false;
        self.partial_line.clear();
        self.line = self.offset;
    }

    /// Returns true if a line is started and its newline not read yet.
    fn has_partial_line(&self) -> bool {
        self.offset > self.line
    }

    /// Calls `each` with the last line if it has no newline. Called when nothing more is written to the file.
    pub fn finish(&mut self, progress: &mut ReadProgress, each: &mut dyn FnMut(&[u8])) {
        if self.has_partial_line() {
            if !self.is_too_long {
                each(&self.partial_line);
            }
            self.finish_line(progress);
        }
    }

    /// Returns the position; `None` while the file could not be recognized by it after a restart.
    pub fn position(&self) -> Option<LogPosition> {
        is_final(&self.head).then(|| self.final_position())
    }

    /// Returns the position. Called when nothing more is written to the file.
    pub fn final_position(&self) -> LogPosition {
        LogPosition { mark: Some(FileMark::new(self.start, &self.head)), offset: self.line, modified: self.modified }
    }
}
