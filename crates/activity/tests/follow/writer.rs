//! A log, whoever writes and rotates it, and whoever follows it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use caretaker_activity::follow::{Follower, Progress};
use tempfile::TempDir;

/// Writes a log in a folder of its own.
pub struct Writer {
    folder: TempDir,
    file: File,
    /// Whether it writes to the end of the file; otherwise, to where it was, whatever became of the file.
    appends: bool,
    /// What it says about times, if not the truth.
    clock: Option<u64>,
    rotations: u32,
}

impl Writer {
    pub fn new() -> Self {
        Self::with(true, false)
    }

    /// With `by_hand`, every write is later than the one before, however fast they follow each other.
    pub fn with(appends: bool, by_hand: bool) -> Self {
        let folder = TempDir::new().unwrap();
        let file = File::create(folder.path().join("audit.log")).unwrap();
        let clock = by_hand.then_some(0);
        let mut writer = Self { folder, file, appends, clock, rotations: 0 };
        writer.open();
        writer
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn follower(&self) -> Follower {
        Follower::new(self.path("audit.log"), self.path("position"))
    }

    /// One that has looked at the log before anything is written.
    pub fn started(&self) -> Follower {
        let mut follower = self.follower();
        assert_eq!(read_all(&mut follower), [""; 0]);
        follower
    }

    pub fn write(&mut self, text: &str) {
        self.file.write_all(text.as_bytes()).unwrap();
        self.tick("audit.log");
    }

    /// As lumberjack does it. Tells the new name.
    pub fn rotate(&mut self) -> PathBuf {
        self.rotations += 1;
        let name = format!("audit-2026-11-16T02-33-11.{:03}.log", self.rotations);
        fs::rename(self.path("audit.log"), self.path(&name)).unwrap();
        self.open();
        self.path(&name)
    }

    /// As logrotate does it.
    pub fn logrotate(&mut self) {
        self.make_room();
        fs::rename(self.path("audit.log"), self.path("audit.log.1")).unwrap();
        self.open();
    }

    /// As logrotate does it with copytruncate.
    pub fn copytruncate(&mut self) {
        self.copy();
        self.truncate();
    }

    pub fn copy(&mut self) {
        self.begin_copy();
        self.go_on_with_copy(u64::MAX);
    }

    pub fn begin_copy(&mut self) {
        self.make_room();
        File::create_new(self.path("audit.log.1")).unwrap();
        self.tick("audit.log.1");
    }

    /// Copies up to so many bytes of the log.
    pub fn go_on_with_copy(&mut self, most: u64) {
        let mut from = File::open(self.path("audit.log")).unwrap().take(most);
        let mut to = OpenOptions::new().write(true).open(self.path("audit.log.1")).unwrap();
        io::copy(&mut from, &mut to).unwrap();
        self.tick("audit.log.1");
    }

    pub fn truncate(&mut self) {
        OpenOptions::new().write(true).truncate(true).open(self.path("audit.log")).unwrap();
        self.tick("audit.log");
    }

    /// As lumberjack does it: the new file is as old as its making.
    pub fn compress(&mut self, name: &Path) {
        self.begin_compressing(name);
        fs::remove_file(name).unwrap();
    }

    pub fn begin_compressing(&mut self, name: &Path) {
        let compressed = name.with_added_extension("gz");
        File::create_new(&compressed).unwrap();
        self.tick(compressed.file_name().unwrap().to_str().unwrap());
    }

    pub fn open(&mut self) {
        let mut options = OpenOptions::new();
        options.create(true).append(self.appends).write(true);
        self.file = options.open(self.path("audit.log")).unwrap();
        self.tick("audit.log");
    }

    fn make_room(&self) {
        let highest = (1..1000).take_while(|number| self.path(&format!("audit.log.{number}")).exists()).count();
        for number in (1..=highest).rev() {
            let (from, to) = (format!("audit.log.{number}"), format!("audit.log.{}", number + 1));
            fs::rename(self.path(&from), self.path(&to)).unwrap();
        }
    }

    fn tick(&mut self, name: &str) {
        if let Some(clock) = &mut self.clock {
            *clock += 1;
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + *clock);
            let file = OpenOptions::new().write(true).open(self.folder.path().join(name)).unwrap();
            file.set_modified(time).unwrap();
        }
    }
}

/// Reads once.
pub fn read(follower: &mut Follower, most: usize) -> (Vec<String>, Progress) {
    let mut lines = Vec::new();
    let progress = follower.read(most, |line| lines.push(String::from_utf8_lossy(line).into_owned())).unwrap();
    assert_eq!(progress.lines, lines.len() as u64, "every line is counted");
    (lines, progress)
}

/// Reads until there is no more, and nothing may be lost.
pub fn read_all(follower: &mut Follower) -> Vec<String> {
    let (lines, lost) = read_out(follower);
    assert_eq!(lost, None, "nothing is lost");
    lines
}

/// Reads until there is no more.
pub fn read_out(follower: &mut Follower) -> (Vec<String>, Option<String>) {
    let (mut lines, mut lost) = (Vec::new(), None);
    loop {
        let (read, progress) = read(follower, 1 << 20);
        lines.extend(read);
        lost = lost.or(progress.lost);
        if !progress.more {
            return (lines, lost);
        }
    }
}
