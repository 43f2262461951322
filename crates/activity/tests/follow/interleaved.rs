//! Whatever the writer and the follower do, in whichever order.

use std::fmt::Write;
use std::fs;

use caretaker_activity::follow::Follower;
use proptest::prelude::*;

use crate::writer::{Writer, read, read_all};

#[derive(Debug, Clone)]
enum Deed {
    /// So many pieces of a line, and whether it ends.
    Write(usize, bool),
    Rotate,
    Logrotate,
    Copytruncate,
    /// With a read of so many bytes at each stage, and perhaps a restart.
    SlowCopytruncate(usize, bool),
    Read(usize),
    Save,
    Restart,
    Crash,
}

/// Which rotations there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Lumberjack,
    Logrotate,
    /// Both. Which one came first only the times tell, and they are set by hand.
    Mixed,
}

fn deed(scheme: Scheme) -> impl Strategy<Value = Deed> {
    let lumberjack = u32::from(scheme != Scheme::Logrotate);
    let logrotate = u32::from(scheme != Scheme::Lumberjack);
    prop_oneof![
        12 => (1..4_usize, prop::bool::weighted(0.7)).prop_map(|(pieces, ends)| Deed::Write(pieces, ends)),
        2 => (20..60_usize, prop::bool::weighted(0.7)).prop_map(|(pieces, ends)| Deed::Write(pieces, ends)),
        3 * lumberjack => Just(Deed::Rotate),
        2 * logrotate => Just(Deed::Logrotate),
        2 * logrotate => Just(Deed::Copytruncate),
        2 * logrotate => (1..2000_usize, any::<bool>()).prop_map(|(most, restarts)| Deed::SlowCopytruncate(most, restarts)),
        8 => prop_oneof![1..40_usize, 1..2000_usize].prop_map(Deed::Read),
        3 => Just(Deed::Save),
        2 => Just(Deed::Restart),
        1 => Just(Deed::Crash),
    ]
}

fn story() -> impl Strategy<Value = (Scheme, bool, Vec<Deed>)> {
    prop_oneof![Just(Scheme::Lumberjack), Just(Scheme::Logrotate), Just(Scheme::Mixed)]
        .prop_flat_map(|scheme| (Just(scheme), any::<bool>(), prop::collection::vec(deed(scheme), 1..80)))
}

/// What happened, and what should have come of it.
struct World {
    writer: Writer,
    follower: Follower,
    /// Every line there is, a torn one in its parts.
    written: Vec<String>,
    /// The line that is not ended.
    open: String,
    pieces: u32,
    /// What came, apart from what came again.
    heard: Vec<String>,
    /// How much of it would not come again.
    saved: usize,
}

impl World {
    fn new(scheme: Scheme, appends: bool) -> Self {
        let writer = Writer::with(appends, scheme == Scheme::Mixed);
        let mut follower = writer.started();
        follower.save().unwrap();
        Self { writer, follower, written: vec![], open: String::new(), pieces: 0, heard: vec![], saved: 0 }
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

    fn tear(&mut self) {
        self.written.extend(Some(std::mem::take(&mut self.open)).filter(|torn| !torn.is_empty()));
    }

    fn read(&mut self, most: usize) {
        let (lines, progress) = read(&mut self.follower, most);
        assert_eq!(progress.lost, None);
        self.heard.extend(lines);
        assert!(self.written.starts_with(&self.heard), "wrote {:?}, heard {:?}", self.written, self.heard);
    }

    fn save(&mut self) {
        self.follower.save().unwrap();
        self.saved = self.heard.len();
    }

    /// What was heard since the last save is heard again, and in the same order.
    fn crash(&mut self) {
        self.follower = self.writer.follower();
        self.heard.truncate(self.saved);
    }

    fn restart(&mut self) {
        self.save();
        self.crash();
    }

    fn copy_slowly(&mut self, most: usize, restarts: bool) {
        let length = fs::metadata(self.writer.path("audit.log")).unwrap().len();
        self.writer.begin_copy();
        // Nobody copies less than a block at a time.
        for copied in [0, length.div_euclid(2).max(256), length] {
            self.writer.go_on_with_copy(copied);
            self.read(most);
            if restarts {
                self.restart();
            }
        }
        self.writer.truncate();
        self.tear();
    }

    fn act(&mut self, deed: &Deed) {
        match deed {
            Deed::Write(pieces, ends) => self.write(*pieces, *ends),
            Deed::Rotate => {
                self.writer.rotate();
                self.tear();
            }
            Deed::Logrotate => {
                self.writer.logrotate();
                self.tear();
            }
            Deed::Copytruncate => {
                self.writer.copytruncate();
                self.tear();
            }
            Deed::SlowCopytruncate(most, restarts) => self.copy_slowly(*most, *restarts),
            Deed::Read(most) => self.read(*most),
            Deed::Save => self.save(),
            Deed::Restart => self.restart(),
            Deed::Crash => self.crash(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_line_comes_once_and_in_order((scheme, appends, deeds) in story()) {
        let mut world = World::new(scheme, appends);
        for deed in &deeds {
            world.act(deed);
        }
        world.write(1, true);
        let rest = read_all(&mut world.follower);
        world.heard.extend(rest);
        prop_assert_eq!(world.heard, world.written);
    }
}
