//! Hears an audit log as it grows, on a thread of its own.
//!
//! The place is kept late, and not before all that was heard until then is written down. What is read
//! again after a restart is older than what is written down by then, and moves nothing.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::ear::{Ear, Taken};
use crate::follow::{Follower, Place};

/// Read at once, at most.
const MOST: usize = 4 << 20;
/// How often a log is looked at that has nothing new. Nobody tells of files on another machine's
/// disk, and a look costs next to nothing.
const LOOK: Duration = Duration::from_millis(250);
/// Until it is tried again after an error.
const PAUSE: Duration = Duration::from_secs(2);

/// A log that is heard.
#[derive(Debug)]
pub struct Tail {
    follower: Follower,
    log: PathBuf,
    ear: Ear,
    /// How long after it was reached a place is kept; none: it is not.
    settled: Option<Duration>,
    places: VecDeque<(Instant, Place)>,
    begun: bool,
}

impl Tail {
    /// Of a log; the place in it is kept in `position` once it is `settled` for so long.
    #[must_use]
    pub fn new(log: PathBuf, position: PathBuf, ear: Ear, settled: Option<Duration>) -> Self {
        let follower = Follower::new(log.clone(), position);
        Self { follower, log, ear, settled, places: VecDeque::new(), begun: false }
    }

    /// Hears it for ever.
    pub fn run(mut self) {
        let mut trouble = String::new();
        loop {
            let (pause, why) = match self.look() {
                Ok(true) => (Duration::ZERO, String::new()),
                // To have nothing to read is no error, but to have nothing at all is worth a word.
                Ok(false) if !self.log.exists() => (LOOK, format!("{} is not there", self.log.display())),
                Ok(false) => (LOOK, String::new()),
                Err(e) => (PAUSE, e.to_string()),
            };
            if why != trouble {
                if why.is_empty() {
                    tracing::info!("the audit log can be read again");
                } else {
                    tracing::warn!("the audit log: {why}");
                }
                self.ear.note_trouble(Some(why.clone()).filter(|why| !why.is_empty()));
                trouble = why;
            }
            std::thread::sleep(pause);
        }
    }

    /// Hears what is there now; true if there is more.
    pub fn look(&mut self) -> io::Result<bool> {
        if !self.begun {
            // The place of the very start is kept at once: what is rotated away before the first
            // place is settled is found by it.
            self.read(1)?;
            if let Some(place) = self.follower.place().filter(|_| self.settled.is_some()) {
                self.follower.keep(place)?;
            }
            self.begun = true;
        }
        let more = self.read(MOST)?;
        self.settle()?;
        Ok(more)
    }

    fn read(&mut self, most: usize) -> io::Result<bool> {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        let progress = self.follower.read(most, |line| {
            text.extend_from_slice(line);
            ends.push(text.len());
        });
        // Lines that came before an error count as well.
        let starts = std::iter::once(0).chain(ends.iter().copied());
        self.ear.lines(starts.zip(&ends).map(|(start, end)| &text[start..*end]).filter(|line| !line.is_empty()));
        let progress = progress?;
        if let Some(why) = progress.lost {
            self.ear.count(Taken::Lost);
            self.ear.lose(format!("lines of the audit log may have been lost: {why}"));
        }
        if progress.too_long > 0 {
            self.ear.count(Taken::TooLarge);
            self.ear.lose(format!("{} lines of the audit log are too long to be read", progress.too_long));
        }
        Ok(progress.more)
    }

    fn settle(&mut self) -> io::Result<()> {
        let Some(settled) = self.settled else { return Ok(()) };
        if let Some(place) =
            self.follower.place().filter(|place| self.places.back().is_none_or(|(_, last)| last != place))
        {
            self.places.push_back((Instant::now(), place));
        }
        let mut keep = None;
        while self
            .places
            .front()
            .is_some_and(|(reached, _)| reached.elapsed() >= settled && self.ear.is_written(*reached))
        {
            keep = self.places.pop_front().map(|(_, place)| place);
        }
        keep.map_or(Ok(()), |place| self.follower.keep(place))
    }
}
