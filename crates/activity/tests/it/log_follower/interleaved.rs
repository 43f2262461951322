//! Random sequences of writes, rotations, reads, saves, restarts and crashes.

use std::fmt::Write;
use std::fs;

use caretaker_activity::log_follower::LogFollower;
use proptest::prelude::*;

use super::writer::{LogWriter, read, read_all};

#[derive(Debug, Clone)]
enum Step {
    /// Writes this many pieces of a line; with `true` also the newline.
    Write(usize, bool),
    Rotate,
    Logrotate,
    Copytruncate,
    /// Copies in three stages and reads this many bytes after each; with `true` also restarts.
    StagedCopytruncate(usize, bool),
    Read(usize),
    Save,
    Restart,
    Crash,
}

/// Which kinds of rotation a sequence has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Lumberjack,
    Logrotate,
    /// Both. Only the modification times give the order, so the test sets them.
    Mixed,
}

fn any_step(scheme: Scheme) -> impl Strategy<Value = Step> {
    let lumberjack = u32::from(scheme != Scheme::Logrotate);
    let logrotate = u32::from(scheme != Scheme::Lumberjack);
    prop_oneof![
        12 => (1..4_usize, prop::bool::weighted(0.7)).prop_map(|(pieces, ends)| Step::Write(pieces, ends)),
        2 => (20..60_usize, prop::bool::weighted(0.7)).prop_map(|(pieces, ends)| Step::Write(pieces, ends)),
        3 * lumberjack => Just(Step::Rotate),
        2 * logrotate => Just(Step::Logrotate),
        2 * logrotate => Just(Step::Copytruncate),
        2 * logrotate => (1..2000_usize, any::<bool>())
            .prop_map(|(max_bytes, restarts)| Step::StagedCopytruncate(max_bytes, restarts)),
        8 => prop_oneof![1..40_usize, 1..2000_usize].prop_map(Step::Read),
        3 => Just(Step::Save),
        2 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ]
}

fn any_sequence() -> impl Strategy<Value = (Scheme, bool, Vec<Step>)> {
    prop_oneof![Just(Scheme::Lumberjack), Just(Scheme::Logrotate), Just(Scheme::Mixed)]
        .prop_flat_map(|scheme| (Just(scheme), any::<bool>(), prop::collection::vec(any_step(scheme), 1..80)))
}

/// The log, its follower, and the lines that the follower must read.
struct Model {
    writer: LogWriter,
    follower: LogFollower,
    /// Every line that was written. A line that a rotation split is two.
    written: Vec<String>,
    /// The line without a newline so far.
    open: String,
    pieces: u32,
    /// The lines that were read, without repetitions after a crash.
    lines: Vec<String>,
    /// Number of lines before the saved position.
    saved: usize,
}

impl Model {
    fn new(scheme: Scheme, appends: bool) -> Self {
        let writer = LogWriter::with_options(appends, scheme == Scheme::Mixed);
        let mut follower = writer.started_follower();
        follower.save().unwrap();
        Self { writer, follower, written: vec![], open: String::new(), pieces: 0, lines: vec![], saved: 0 }
    }

    fn write(&mut self, pieces: usize, ends: bool) {
        let before = self.open.len();
        for _ in 0..pieces {
            self.pieces += 1;
            write!(self.open, "{:06}.", self.pieces).unwrap();
        }
        self.writer.write(&self.open[before..]);
        if ends {
            self.writer.write("\n");
            self.written.push(std::mem::take(&mut self.open));
        }
    }

    fn split_line(&mut self) {
        self.written.extend(Some(std::mem::take(&mut self.open)).filter(|part| !part.is_empty()));
    }

    fn read(&mut self, max_bytes: usize) {
        let (lines, progress) = read(&mut self.follower, max_bytes);
        assert_eq!(progress.lines_lost, None);
        self.lines.extend(lines);
        assert!(self.written.starts_with(&self.lines), "wrote {:?}, read {:?}", self.written, self.lines);
    }

    fn save(&mut self) {
        self.follower.save().unwrap();
        self.saved = self.lines.len();
    }

    /// Lines that were read after the last save are read again, in the same order.
    fn crash(&mut self) {
        self.follower = self.writer.follower();
        self.lines.truncate(self.saved);
    }

    fn restart(&mut self) {
        self.save();
        self.crash();
    }

    fn copy_in_stages(&mut self, max_bytes: usize, restarts: bool) {
        let length = fs::metadata(self.writer.path("audit.log")).unwrap().len();
        self.writer.start_copy();
        // Real copies are made in blocks.
        for copied in [0, length.div_euclid(2).max(256), length] {
            self.writer.continue_copy(copied);
            self.read(max_bytes);
            if restarts {
                self.restart();
            }
        }
        self.writer.truncate();
        self.split_line();
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Write(pieces, ends) => self.write(*pieces, *ends),
            Step::Rotate => {
                self.writer.rotate_lumberjack();
                self.split_line();
            }
            Step::Logrotate => {
                self.writer.rotate_logrotate();
                self.split_line();
            }
            Step::Copytruncate => {
                self.writer.copytruncate();
                self.split_line();
            }
            Step::StagedCopytruncate(max_bytes, restarts) => self.copy_in_stages(*max_bytes, *restarts),
            Step::Read(max_bytes) => self.read(*max_bytes),
            Step::Save => self.save(),
            Step::Restart => self.restart(),
            Step::Crash => self.crash(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_line_is_read_once_and_in_order((scheme, appends, steps) in any_sequence()) {
        let mut model = Model::new(scheme, appends);
        for step in &steps {
            model.apply(step);
        }
        model.write(1, true);
        let rest = read_all(&mut model.follower);
        model.lines.extend(rest);
        prop_assert_eq!(model.lines, model.written);
    }
}
