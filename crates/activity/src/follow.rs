//! Follows the API server's audit log across rotation, truncation and restarts, and loses no line.
//!
//! The place is known by how a file's first line begins, and by an offset: names change with every rotation, and
//! inode numbers with every copy. What was rotated away is read to its end, then what was written after it, and at
//! last the log itself.

mod place;
mod reading;
mod siblings;

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

pub use place::Place;
use place::{Kept, Moment};
use reading::{Reading, Step};
use siblings::{Files, identity, look, metadata};

/// A line that is longer is skipped, so that no line, whatever it is, fills the memory.
pub const MOST_LINE: usize = 4 << 20;

/// As much is read at a time.
const CHUNK: usize = 64 << 10;

/// What came of reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// How many lines were handed out.
    pub lines: u64,
    /// How many were skipped because they are longer than [`MOST_LINE`].
    pub too_long: u64,
    /// Whether there may be more to read now.
    pub more: bool,
    /// Why lines may have been lost; none if all is well.
    pub lost: Option<String>,
}

/// Follows a log.
///
/// It blocks and wants a thread of its own. What [`read`](Self::read) handed out comes again after a crash unless
/// [`save`](Self::save) was called since; it never fails to come. Every start is the first one until the place was saved,
/// even if there was nothing to read.
#[derive(Debug)]
pub struct Follower {
    log: PathBuf,
    position: PathBuf,
    /// None before the first look, and while there is nothing to read.
    reading: Option<Reading>,
    /// The place, unless the file that is being read has a better one. None before the first look.
    place: Option<Place>,
    /// As the position file has it.
    kept: Option<Place>,
    /// What no call has told yet. An error does not take it away.
    progress: Progress,
}

/// Why it does not go on.
enum Stop {
    /// Files were renamed or removed between two looks at them.
    Moved,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

fn failed(attempt: &str, path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {attempt} {}: {error}", path.display()))
}

impl Follower {
    /// Of the log at the path the API server was given; `position` is the file in which the place is kept across
    /// restarts. Nothing is looked at yet.
    #[must_use]
    pub fn new(log: PathBuf, position: PathBuf) -> Self {
        Self { log, position, reading: None, place: None, kept: None, progress: Progress::default() }
    }

    /// Reads what is there now, at most `most` bytes, and hands out each whole line without its newline.
    ///
    /// Without a position file it begins with the log and not with what was rotated away before. A log that is not
    /// there yet is one without lines. What was handed out before an error is counted by the next call.
    pub fn read(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> io::Result<Progress> {
        match self.go_on(most.max(1), &mut each) {
            Ok(more) => self.progress.more = more,
            Err(Stop::Moved) => self.progress.more = true,
            Err(Stop::Failed(error)) => return Err(error),
        }
        Ok(std::mem::take(&mut self.progress))
    }

    /// The place after the last line that was handed out; none before the first look.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.reading.as_ref().and_then(Reading::place).or(self.place)
    }

    /// Keeps a place, so that a restart goes on there. Writes only a new one.
    pub fn keep(&mut self, place: Place) -> io::Result<()> {
        if self.kept != Some(place) {
            place.save(&self.position)?;
            self.kept = Some(place);
        }
        Ok(())
    }

    /// Keeps the place after the last line that was handed out.
    pub fn save(&mut self) -> io::Result<()> {
        self.place().map_or(Ok(()), |place| self.keep(place))
    }

    /// Whether there may be more.
    fn go_on(&mut self, most: usize, each: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        if self.place.is_none() {
            self.begin()?;
        }
        let mut chunk = vec![0; most.min(CHUNK)];
        let mut left = most;
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
                Step::Truncated => {
                    // What was not read of it may be in a copy.
                    next = None;
                    self.place = reading.place().or(self.place);
                    self.reading = None;
                }
                Step::Read(0) => match next.take() {
                    // The second end in a row, and the next one was seen before it: nobody writes here any more.
                    Some(Next::Another(after, gap)) => {
                        reading.end(&mut self.progress, each);
                        if gap {
                            let path = after.path.display();
                            self.progress.lose(format!("what came before {path} may have been deleted or compressed"));
                        }
                        self.place = Some(reading.last_place());
                        self.reading = Some(after);
                    }
                    Some(Next::Twin(twin)) => self.reading = Some(twin),
                    None => {
                        next = after(&self.log, Some(reading), reading.modified)?;
                        if next.is_none() {
                            return Ok(false);
                        }
                    }
                },
                Step::Read(read) => {
                    next = None;
                    left -= read;
                    reading.take(&chunk[..read], &mut self.progress, each);
                }
            }
        }
        Ok(true)
    }

    /// The first look: where to begin.
    fn begin(&mut self) -> Result<(), Stop> {
        let broken = match Place::load(&self.position)? {
            Kept::Place(place) => {
                (self.place, self.kept) = (Some(place), Some(place));
                return Ok(());
            }
            Kept::Nothing => None,
            Kept::Broken(why) => Some(why),
        };
        (self.place, self.reading) = look(&self.log, |files| {
            // What is there already is none of ours, but what is rotated away from now on is, even across a restart.
            let mut place = Place::BEGINNING;
            let mut log = None;
            for entry in &files.entries {
                match Reading::open(entry)? {
                    Some(reading) if entry.is_log => log = Some(reading),
                    Some(mut reading) => {
                        reading.go_to(reading.length);
                        place = reading.place().unwrap_or(place);
                    }
                    None => {}
                }
            }
            Ok((Some(place), log))
        })?;
        if let Some(why) = broken {
            let (position, log) = (self.position.display(), self.log.display());
            self.progress.lose(format!("{position} is broken ({why}): beginning with {log}"));
        }
        Ok(())
    }

    /// Goes on at the place, in whichever file it is now.
    fn resume(&mut self) -> Result<Option<Reading>, Stop> {
        let place = self.place.unwrap_or(Place::BEGINNING);
        if place.mark.is_none() {
            return Ok(after(&self.log, None, place.modified)?.map(Next::into));
        }
        match look(&self.log, |files| found(files, &place))? {
            Found::There(reading) => Ok(Some(reading)),
            Found::Shorter(reading) => {
                self.progress.lose(format!("{} is shorter than what was read of it", reading.path.display()));
                Ok(Some(reading))
            }
            Found::Gone => {
                let log = self.log.display();
                self.progress.lose(format!(
                    "what was read last is neither {log} nor what it was rotated to: it was deleted, compressed, or \
                     truncated without a copy"
                ));
                self.place = Some(Place::since(place.modified));
                self.resume()
            }
            // Not even a log: its folder may come later.
            Found::Nothing => Ok(None),
        }
    }
}

impl Progress {
    fn lose(&mut self, why: String) {
        match &mut self.lost {
            Some(lost) if lost.contains(&why) => {}
            Some(lost) => *lost = format!("{lost}; {why}"),
            None => self.lost = Some(why),
        }
    }
}

/// What became of the file of a place.
enum Found {
    There(Reading),
    /// It ends before the place.
    Shorter(Reading),
    Gone,
    /// There is no file at all.
    Nothing,
}

/// Looks for a place. If there are copies, the log itself is the best, and then the newest.
fn found(files: &Files, place: &Place) -> Result<Found, Stop> {
    let mut shorter = None;
    for entry in files.entries.iter().rev() {
        let Some(mut reading) = Reading::resume(entry, place)? else { continue };
        if reading.length >= place.offset {
            return Ok(Found::There(reading));
        }
        if shorter.is_none() {
            // All that is in a copy was read. What is in the log may have been written since.
            reading.go_to(if entry.is_log { 0 } else { reading.length });
            shorter = Some(reading);
        }
    }
    let is_empty = files.entries.is_empty();
    Ok(shorter.map_or(if is_empty { Found::Nothing } else { Found::Gone }, Found::Shorter))
}

/// What is read next.
enum Next {
    /// Another file, from its beginning, and whether there may have been one before it.
    Another(Reading, bool),
    /// Another one with the same lines, at the same place: one of them is a copy, and the later one grows.
    Twin(Reading),
}

impl From<Next> for Reading {
    fn from(next: Next) -> Self {
        match next {
            Next::Another(reading, _) | Next::Twin(reading) => reading,
        }
    }
}

/// What was written after the file that is being read, or else after a time. An empty file is nothing yet: whoever
/// writes may not have come to it.
fn after(log: &Path, reading: Option<&Reading>, since: Moment) -> Result<Option<Next>, Stop> {
    let is_ours = |log: Metadata| reading.is_some_and(|reading| reading.identity == identity(&log));
    if metadata(log)?.is_some_and(is_ours) {
        return Ok(None);
    }
    look(log, |files| {
        let ours = reading.and_then(|reading| files.find(reading.identity));
        let first = ours.map_or_else(|| files.before(since), |ours| ours + 1);
        let gap = reading.is_some_and(|reading| files.is_gap_after(reading.identity, since));
        let mut empty = Vec::new();
        for entry in files.entries.iter().skip(first) {
            let Some(mut next) = Reading::open(entry)? else {
                empty.push(entry);
                continue;
            };
            let twin = reading.filter(|reading| reading.is_copy_of(&next));
            if twin.is_some_and(|reading| reading.at > next.length) {
                continue;
            }
            // A copy that was being made may be whole now, and what it was made of be truncated.
            for entry in empty {
                if Reading::open(entry)?.is_some() {
                    return Err(Stop::Moved);
                }
            }
            let Some(reading) = twin else { return Ok(Some(Next::Another(next, gap))) };
            next.go_to(reading.line);
            return Ok(Some(Next::Twin(next)));
        }
        Ok(None)
    })
}
