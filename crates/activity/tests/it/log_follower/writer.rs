//! Writes and rotates a log, as the API server and logrotate do, and reads it with a follower.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use caretaker_activity::log_follower::{LogFollower, ReadProgress};
use tempfile::TempDir;

/// Writes a log in a temporary folder.
pub struct LogWriter {
    folder: TempDir,
    file: File,
    /// Opens the log with O_APPEND. Without it, a write after a truncation leaves a hole.
    appends: bool,
    /// Sets the modification times of files, if they are not the real ones.
    clock: Option<u64>,
    rotations: u32,
}

impl LogWriter {
    pub fn new() -> Self {
        Self::with_options(true, false)
    }

    /// With `manual_clock` every write has a later modification time than the one before.
    pub fn with_options(appends: bool, manual_clock: bool) -> Self {
        let folder = TempDir::new().unwrap();
        let file = File::create(folder.path().join("audit.log")).unwrap();
        let clock = manual_clock.then_some(0);
        let mut writer = Self { folder, file, appends, clock, rotations: 0 };
        writer.open();
        writer
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn follower(&self) -> LogFollower {
        LogFollower::new(self.path("audit.log"), self.path("position"))
    }

    /// Returns a follower that has read the log while it was empty.
    pub fn started_follower(&self) -> LogFollower {
        let mut follower = self.follower();
        assert_eq!(read_all(&mut follower), [""; 0]);
        follower
    }

    pub fn write(&mut self, text: &str) {
        self.file.write_all(text.as_bytes()).unwrap();
        self.tick("audit.log");
    }

    /// Rotates as lumberjack does, which the API server uses. Returns the path of the rotated file.
    pub fn rotate_lumberjack(&mut self) -> PathBuf {
        self.rotations += 1;
        let name = format!("audit-2026-11-16T02-33-11.{:03}.log", self.rotations);
        fs::rename(self.path("audit.log"), self.path(&name)).unwrap();
        self.open();
        self.path(&name)
    }

    /// Rotates as logrotate does.
    pub fn rotate_logrotate(&mut self) {
        self.shift_numbers();
        fs::rename(self.path("audit.log"), self.path("audit.log.1")).unwrap();
        self.open();
    }

    /// Rotates as logrotate does with copytruncate.
    pub fn copytruncate(&mut self) {
        self.copy();
        self.truncate();
    }

    pub fn copy(&mut self) {
        self.start_copy();
        self.continue_copy(u64::MAX);
    }

    pub fn start_copy(&mut self) {
        self.shift_numbers();
        File::create_new(self.path("audit.log.1")).unwrap();
        self.tick("audit.log.1");
    }

    /// Copies the first bytes of the log.
    pub fn continue_copy(&mut self, length: u64) {
        let mut from = File::open(self.path("audit.log")).unwrap().take(length);
        let mut to = OpenOptions::new().write(true).open(self.path("audit.log.1")).unwrap();
        io::copy(&mut from, &mut to).unwrap();
        self.tick("audit.log.1");
    }

    pub fn truncate(&mut self) {
        OpenOptions::new().write(true).truncate(true).open(self.path("audit.log")).unwrap();
        self.tick("audit.log");
    }

    /// Compresses as lumberjack does: the compressed file has a new modification time.
    pub fn compress(&mut self, path: &Path) {
        self.start_compressing(path);
        fs::remove_file(path).unwrap();
    }

    pub fn start_compressing(&mut self, path: &Path) {
        let compressed = path.with_added_extension("gz");
        File::create_new(&compressed).unwrap();
        self.tick(compressed.file_name().unwrap().to_str().unwrap());
    }

    pub fn open(&mut self) {
        let mut options = OpenOptions::new();
        options.create(true).append(self.appends).write(true);
        self.file = options.open(self.path("audit.log")).unwrap();
        self.tick("audit.log");
    }

    fn shift_numbers(&self) {
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
pub fn read(follower: &mut LogFollower, max_bytes: usize) -> (Vec<String>, ReadProgress) {
    let mut lines = Vec::new();
    let progress = follower.read(max_bytes, |line| lines.push(String::from_utf8_lossy(line).into_owned())).unwrap();
    assert_eq!(progress.lines, lines.len() as u64, "every line is counted");
    (lines, progress)
}

/// Reads to the end. Fails if lines are lost.
pub fn read_all(follower: &mut LogFollower) -> Vec<String> {
    let (lines, lost) = read_with_loss(follower);
    assert_eq!(lost, None, "no line is lost");
    lines
}

/// Reads to the end. Returns the lines, and why lines are lost.
pub fn read_with_loss(follower: &mut LogFollower) -> (Vec<String>, Option<String>) {
    let (mut lines, mut lost) = (Vec::new(), None);
    loop {
        let (read, progress) = read(follower, 1 << 20);
        lines.extend(read);
        lost = lost.or(progress.lines_lost);
        if !progress.more {
            return (lines, lost);
        }
    }
}
