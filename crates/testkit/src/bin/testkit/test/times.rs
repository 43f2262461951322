//! How long each test program took the last time, to start the longest ones first.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use caretaker_testkit::assets::cache_folder;

use super::programs::Program;

/// Seconds by the name of a program, kept in the cache folder.
pub(super) struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, f64>,
}

impl Times {
    /// Empty if nothing was kept or it cannot be read: it only decides on the order.
    pub(super) fn load() -> Self {
        let file = cache_folder().join("test-times.json");
        let seconds = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, seconds }
    }

    /// Sorts programs by their last duration. One that never ran goes first, because it may be long.
    pub(super) fn longest_first(&self, programs: &mut [Program]) {
        let seconds = |program: &Program| self.seconds.get(&program.name).copied().unwrap_or(f64::MAX);
        programs.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    }

    /// Keeps the durations of programs that ran. Failure is of no consequence but the order.
    pub(super) fn save(&mut self, durations: &BTreeMap<String, Duration>) {
        self.seconds.extend(durations.iter().map(|(name, time)| (name.clone(), time.as_secs_f64())));
        let _ = serde_json::to_vec_pretty(&self.seconds).map(|bytes| fs::write(&self.file, bytes));
    }
}
