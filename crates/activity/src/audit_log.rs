//! Feeds an audit log into the collector while the log grows, on a thread of its own.
//!
//! The position in the log is saved late: not before all activity up to there is written to the cluster. Lines that are
//! read again after a restart are older than the activity in the cluster by then, and change nothing.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::collector::{ActivityCollector, DeliveryOutcome};
use crate::log_follower::{LogFollower, LogPosition, MAX_LINE_BYTES};

/// Maximum number of bytes that one poll reads.
const MAX_READ_BYTES: usize = 4 << 20;
/// Time between two polls of a log without new lines. File notifications do not work on network file systems, and a
/// poll is cheap.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time until the next attempt after an error.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// An audit log that feeds a collector.
#[derive(Debug)]
pub struct AuditLogSource {
    follower: LogFollower,
    log: PathBuf,
    collector: ActivityCollector,
    /// Minimum time between reaching a position and saving it; `None` if positions are not saved.
    save_delay: Option<Duration>,
    /// Positions that are not saved yet, with the time when they were reached.
    unsaved: VecDeque<(Instant, LogPosition)>,
    started: bool,
}

impl AuditLogSource {
    /// Prepares to follow `log`. A position is saved in `position_file` once it is `save_delay` old; with `None` it is
    /// never saved. Reads nothing yet.
    #[must_use]
    pub fn new(
        log: PathBuf,
        position_file: PathBuf,
        collector: ActivityCollector,
        save_delay: Option<Duration>,
    ) -> Self {
        let follower = LogFollower::new(log.clone(), position_file);
        Self { follower, log, collector, save_delay, unsaved: VecDeque::new(), started: false }
    }

    /// Follows the log forever. Blocks its thread.
    pub fn run(mut self) {
        let mut last_error = None;
        loop {
            let (delay, error) = match self.poll() {
                Ok(true) => (Duration::ZERO, None),
                Ok(false) if !self.log.exists() => (POLL_INTERVAL, Some(self.missing_log())),
                Ok(false) => (POLL_INTERVAL, None),
                Err(e) => (RETRY_DELAY, Some(e.to_string())),
            };
            if error != last_error {
                if let Some(error) = &error {
                    tracing::warn!("cannot follow the audit log: {error}");
                } else {
                    tracing::info!("audit log {} is readable again", self.log.display());
                }
                self.collector.set_log_error(error.clone());
                last_error = error;
            }
            std::thread::sleep(delay);
        }
    }

    fn missing_log(&self) -> String {
        let log = self.log.display();
        format!("{log} does not exist: check the API server's --audit-log-path, and that its folder is mounted here")
    }

    /// Adds the lines that are there now. Returns true if there may be more.
    pub fn poll(&mut self) -> io::Result<bool> {
        if !self.started {
            // The first position is saved at once: without it, a restart could not find lines that are rotated away
            // before the first delayed save.
            self.read(1)?;
            if let Some(position) = self.follower.position().filter(|_| self.save_delay.is_some()) {
                self.follower.save_position(position)?;
            }
            self.started = true;
        }
        let more = self.read(MAX_READ_BYTES)?;
        self.save_written_position()?;
        Ok(more)
    }

    fn read(&mut self, max_bytes: usize) -> io::Result<bool> {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        let progress = self.follower.read(max_bytes, |line| {
            text.extend_from_slice(line);
            ends.push(text.len());
        });
        // Lines that were read before an error count.
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let lines = starts.zip(&ends).map(|(start, end)| &text[start..*end]);
        let undecodable = self.collector.add_lines(lines.filter(|line| !line.is_empty()));
        let log = self.log.display();
        if undecodable > 0 {
            self.collector.count_delivery(DeliveryOutcome::LinesLost);
            self.collector.report_lost_events(format!(
                "lines of audit log {log} are not audit events: check that only the API server writes to it"
            ));
        }
        let progress = progress?;
        if let Some(reason) = progress.lines_lost {
            self.collector.count_delivery(DeliveryOutcome::LinesLost);
            self.collector.report_lost_events(format!("lines of audit log {log} may be lost: {reason}"));
        }
        if progress.too_long > 0 {
            let (count, limit) = (progress.too_long, MAX_LINE_BYTES >> 20);
            let (lines, are) = if count == 1 { ("line", "is") } else { ("lines", "are") };
            self.collector.count_delivery(DeliveryOutcome::TooLarge);
            self.collector.report_lost_events(format!(
                "{count} {lines} of audit log {log} {are} longer than {limit} MiB and skipped: \
                 lower the level of the audit policy"
            ));
        }
        Ok(progress.more)
    }

    /// Saves the newest position that is old enough and whose activity is written.
    fn save_written_position(&mut self) -> io::Result<()> {
        let Some(save_delay) = self.save_delay else { return Ok(()) };
        let is_new = |position: &LogPosition| self.unsaved.back().is_none_or(|(_, last)| last != position);
        if let Some(position) = self.follower.position().filter(is_new) {
            self.unsaved.push_back((Instant::now(), position));
        }
        let mut written = None;
        while self
            .unsaved
            .front()
            .is_some_and(|(reached, _)| reached.elapsed() >= save_delay && self.collector.is_written_until(*reached))
        {
            written = self.unsaved.pop_front().map(|(_, position)| position);
        }
        written.map_or(Ok(()), |position| self.follower.save_position(position))
    }
}
