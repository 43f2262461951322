//! The journal: a line of JSON for each thing that was done, refused, or would have been done.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caretaker_core::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// One line.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// When.
    pub at: Timestamp,
    /// Which keeper.
    pub keeper: &'static str,
    /// The subject's kind.
    pub kind: String,
    /// Its namespace; none for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Under which rule.
    pub rule: String,
    /// The evidence.
    pub because: String,
    /// What was done; none for a refusal.
    pub action: Option<&'static str>,
    /// How it went.
    pub outcome: Outcome,
    /// What failed.
    pub error: Option<String>,
    /// Whether nothing was written.
    pub dry_run: bool,
    /// How it was before.
    pub before: Option<Value>,
}

/// How something went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It is done.
    Done,
    /// It would have been done; nothing was written.
    Rehearsed,
    /// The last look saw something else; it was not done.
    Overtaken,
    /// Some of it could not be written; it is tried again.
    Partly,
    /// It could not be done; it is tried again.
    Failed,
    /// It must not be done.
    Refused,
}

impl Outcome {
    /// As JSON and metrics say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Rehearsed => "rehearsed",
            Self::Overtaken => "overtaken",
            Self::Partly => "partly",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// Where the lines go. What cannot be written is kept and tried again.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Pages>>);

struct Pages {
    to: Box<dyn Write + Send>,
    /// Not written yet, in order.
    unwritten: String,
}

impl Journal {
    /// To anything that can be written.
    #[must_use]
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Pages { to: Box::new(to), unwritten: String::new() })))
    }

    /// To the end of a file, which may be moved away at any time.
    pub fn file(path: PathBuf) -> io::Result<Self> {
        let mut file = Moving(path);
        file.write_all(b"")?;
        Ok(Self::new(file))
    }

    /// Writes a line, after those that could not be written before.
    pub fn write(&self, line: &Line) -> io::Result<()> {
        let text = serde_json::to_string(line)?;
        let mut pages = self.pages();
        pages.unwritten.push_str(&text);
        pages.unwritten.push('\n');
        pages.catch_up()
    }

    /// Tries again what could not be written.
    pub fn catch_up(&self) -> io::Result<()> {
        self.pages().catch_up()
    }

    /// Whether every line is written.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pages().unwritten.is_empty()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn catch_up(&mut self) -> io::Result<()> {
        if !self.unwritten.is_empty() {
            self.to.write_all(self.unwritten.as_bytes())?;
            self.unwritten.clear();
            self.to.flush()?;
        }
        Ok(())
    }
}

/// A file that is looked up by its name for each line, so that it can be rotated.
struct Moving(PathBuf);

impl Write for Moving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        OpenOptions::new().append(true).create(true).open(&self.0)?.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
