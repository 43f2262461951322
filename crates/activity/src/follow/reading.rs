//! A file of the log that is being read.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::place::{Mark, Moment, Place, head_at, is_whole, modified, read_at, start};
use super::siblings::{Entry, Identity};
use super::{MOST_LINE, Progress, Stop, failed};

/// An open file, and how far it is read.
#[derive(Debug)]
pub(super) struct Reading {
    pub path: PathBuf,
    pub identity: Identity,
    /// As they were last seen.
    pub length: u64,
    pub modified: Moment,
    file: File,
    /// Where the first line begins, and how it begins, as far as it was written. Never empty.
    start: u64,
    head: Vec<u8>,
    /// Where the line begins that is being read.
    pub line: u64,
    /// How far the file is read.
    pub at: u64,
    /// What is read of the line, unless it is too long.
    part: Vec<u8>,
    too_long: bool,
}

/// What there was to read.
pub(super) enum Step {
    Read(usize),
    /// What was read before is no longer in this file.
    Truncated,
}

impl Reading {
    /// From the beginning; none if there is nothing in it yet that tells it from others.
    pub fn open(entry: &Entry) -> Result<Option<Self>, Stop> {
        let file = entry.open()?;
        let Some(begin) = start(&file).map_err(failed("read", &entry.path))? else { return Ok(None) };
        let reading = Self::at(entry, file, begin, begin)?;
        if start(&reading.file).map_err(failed("read", &entry.path))? != Some(begin) {
            return Err(Stop::Moved);
        }
        // Nothing is added any more to what was rotated away.
        let is_enough = if entry.is_log { is_whole(&reading.head) } else { !reading.head.is_empty() };
        Ok(is_enough.then_some(reading))
    }

    /// From where a place is, if it is in this file.
    pub fn resume(entry: &Entry, place: &Place) -> Result<Option<Self>, Stop> {
        let Some(mark) = place.mark else { return Ok(None) };
        let reading = Self::at(entry, entry.open()?, mark.start, place.offset)?;
        // A first line that was never ended may be too short to be like no other.
        let is_alone = is_whole(&reading.head) || (!entry.is_log && reading.modified == place.modified);
        Ok((is_alone && Mark::new(mark.start, &reading.head) == mark).then_some(reading))
    }

    fn at(entry: &Entry, file: File, start: u64, offset: u64) -> io::Result<Self> {
        let (path, identity) = (entry.path.clone(), entry.identity);
        let head = head_at(&file, start).map_err(failed("read", &path))?;
        let metadata = file.metadata().map_err(failed("look at", &path))?;
        let (length, modified, part) = (metadata.len(), modified(&metadata), Vec::new());
        Ok(Self {
            path,
            identity,
            length,
            modified,
            file,
            start,
            head,
            line: offset,
            at: offset,
            part,
            too_long: false,
        })
    }

    /// Reads on, but takes nothing yet. A truncation lasts, so that to look for it after reading is enough.
    pub fn fill(&mut self, into: &mut [u8]) -> io::Result<Step> {
        let read = read_at(&self.file, into, self.at).map_err(failed("read", &self.path))?;
        let metadata = self.file.metadata().map_err(failed("look at", &self.path))?;
        let head = head_at(&self.file, self.start).map_err(failed("read", &self.path))?;
        if metadata.len() < self.at + read as u64 || !head.starts_with(&self.head) {
            return Ok(Step::Truncated);
        }
        (self.length, self.modified, self.head) = (metadata.len(), modified(&metadata), head);
        Ok(Step::Read(read))
    }

    /// Whether this and another file have the same first line. After a hole of the same size, any part of it is enough:
    /// whoever copies may have come no further.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        let is_enough = is_whole(&self.head) || self.start > 0;
        is_enough && self.start == other.start && other.head.starts_with(&self.head)
    }

    /// Goes on at another place.
    pub fn go_to(&mut self, offset: u64) {
        (self.line, self.at) = (offset.max(self.start), offset.max(self.start));
        self.part.clear();
    }

    /// Takes what was read, and hands out the lines in it.
    pub fn take(&mut self, bytes: &[u8], progress: &mut Progress, each: &mut dyn FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let hole = if self.has_part() { 0 } else { piece.iter().take_while(|byte| **byte == 0).count() };
            self.line += hole as u64;
            self.at += piece.len() as u64;
            let piece = &piece[hole..];
            let text = piece.strip_suffix(b"\n");
            self.add(text.unwrap_or(piece), text.is_some(), progress, each);
        }
    }

    fn add(&mut self, text: &[u8], ends: bool, progress: &mut Progress, each: &mut dyn FnMut(&[u8])) {
        if self.too_long || self.part.len() + text.len() > MOST_LINE {
            self.too_long = true;
            self.part = Vec::new();
        } else if ends && self.part.is_empty() {
            each(text);
        } else {
            self.part.extend_from_slice(text);
            if ends {
                each(&self.part);
            }
        }
        if ends {
            self.count(progress);
        }
    }

    fn count(&mut self, progress: &mut Progress) {
        *(if self.too_long { &mut progress.too_long } else { &mut progress.lines }) += 1;
        self.too_long = false;
        self.part.clear();
        self.line = self.at;
    }

    /// Whether a line is begun and not ended.
    fn has_part(&self) -> bool {
        self.at > self.line
    }

    /// Hands out the last line, which nobody will end any more.
    pub fn end(&mut self, progress: &mut Progress, each: &mut dyn FnMut(&[u8])) {
        if self.has_part() {
            if !self.too_long {
                each(&self.part);
            }
            self.count(progress);
        }
    }

    /// The place in it; none as long as it would not be known again.
    pub fn place(&self) -> Option<Place> {
        is_whole(&self.head).then(|| self.last_place())
    }

    /// The place in a file to which nothing is added any more.
    pub fn last_place(&self) -> Place {
        Place { mark: Some(Mark::new(self.start, &self.head)), offset: self.line, modified: self.modified }
    }
}
