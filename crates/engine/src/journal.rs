//! The journal: an entry in JSON for each action that was done, refused, or would have been done.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caretaker_core::{Action as _, Timestamp};
use serde::Serialize;
use serde_json::Value;

use crate::controller::{Controller, PlannedAction};

/// One entry.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
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
    /// The subject's uid.
    pub uid: String,
    /// The rule.
    pub rule: String,
    /// The evidence.
    pub because: String,
    /// The action; none for a refusal.
    pub action: Option<&'static str>,
    /// How it went.
    pub outcome: Outcome,
    /// What failed.
    pub error: Option<String>,
    /// Whether nothing was written.
    pub dry_run: bool,
    /// What it takes to restore the subject by hand.
    pub before: Option<Value>,
}

impl Entry {
    /// What became of an action.
    #[must_use]
    pub fn of_action<K: Controller>(
        keeper: &K,
        planned: &PlannedAction<K>,
        outcome: Outcome,
        error: Option<String>,
        dry_run: bool,
        now: Timestamp,
    ) -> Self {
        let PlannedAction { subject, verdict, action, .. } = planned;
        let found = keeper.subject_ref(subject);
        Self {
            at: now,
            keeper: keeper.name(),
            kind: found.kind.to_owned(),
            namespace: found.namespace.map(str::to_owned),
            name: found.name.to_owned(),
            uid: found.uid.to_owned(),
            rule: verdict.rule.name().to_owned(),
            because: verdict.because.clone(),
            action: Some(action.name()),
            outcome,
            error,
            dry_run,
            before: Some(keeper.snapshot(subject, now)),
        }
    }
}

/// How something went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is done.
    Done,
    /// It would have been done; nothing was written.
    DryRun,
    /// The live read found something else; it was not done.
    Stale,
    /// Some of it could not be written; it is tried again.
    Partial,
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
            Self::DryRun => "dry-run",
            Self::Stale => "stale",
            Self::Partial => "partial",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// Where the entries go. An entry that cannot be written is kept and tried again.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Pending>>);

struct Pending {
    to: Box<dyn Write + Send>,
    /// Not written yet, in order.
    unwritten: String,
}

impl Journal {
    /// To anything that can be written.
    #[must_use]
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Pending { to: Box::new(to), unwritten: String::new() })))
    }

    /// To the end of a file, which may be moved away at any time.
    pub fn file(path: PathBuf) -> io::Result<Self> {
        let mut file = ReopenedFile(path);
        file.write_all(b"")?;
        Ok(Self::new(file))
    }

    /// Writes an entry, after those that could not be written before.
    pub fn write(&self, entry: &Entry) -> io::Result<()> {
        let text = serde_json::to_string(entry)?;
        let mut pending = self.pending();
        pending.unwritten.push_str(&text);
        pending.unwritten.push('\n');
        pending.flush_pending()
    }

    /// Writes the entries that could not be written before.
    pub fn flush_pending(&self) -> io::Result<()> {
        self.pending().flush_pending()
    }

    /// True if every entry is written.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.pending().unwritten.is_empty()
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn flush_pending(&mut self) -> io::Result<()> {
        if !self.unwritten.is_empty() {
            self.to.write_all(self.unwritten.as_bytes())?;
            self.unwritten.clear();
            self.to.flush()?;
        }
        Ok(())
    }
}

/// A file that is opened by its name for each write, so that it can be rotated.
struct ReopenedFile(PathBuf);

impl Write for ReopenedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        OpenOptions::new().append(true).create(true).open(&self.0)?.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
