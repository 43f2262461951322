//! A snapshot that is kept up to date: watches deliver what changes, and the same judge says what it means.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use caretaker_core::limits::Ledger;
use caretaker_core::{RuleSet as _, SignedDuration, Timestamp};
use caretaker_engine::cache::Cache;
use caretaker_engine::source::{Change, Delivered, StateSnapshot};
use caretaker_engine::sources::UnreadKind;
use caretaker_engine::state;
use futures::StreamExt as _;
use futures::future::select_all;
use futures::stream::{BoxStream, ReadyChunks};
use kube::Client;
use tokio::time::Instant;

use super::keeper::{DynSnapshot, KeeperSnapshot};
use super::{Snapshot, UseState, Wanted};
use crate::cli::InputArgs;
use crate::config::DEFAULT_RESYNC;
use crate::failure::READER_ROLE;
use crate::keepers::KeeperCli;
use crate::live::OperatorConfigMaps;
use crate::output::sanitize_line;

/// How often settings and state of the operator are read again: two small objects.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// What changes within this time is shown together.
const GATHER: Duration = Duration::from_millis(300);
/// Changes taken in at once.
const CHUNK: usize = 512;
/// A deadline that is further away is looked at again on the way: clocks are set.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// What watches deliver.
pub(super) type Changes<C> = ReadyChunks<BoxStream<'static, Delivered<C>>>;

/// What is printed.
#[derive(Debug, Default)]
pub struct Shown {
    /// For standard output.
    pub text: String,
    /// For standard error.
    pub notes: Vec<String>,
    /// When something changes although nothing happens in the cluster.
    pub next: Option<Timestamp>,
}

impl<K: KeeperCli> KeeperSnapshot<K> {
    pub(super) fn take_state(&mut self, state: &StateSnapshot) -> Result<()> {
        let place = || format!("ConfigMap {}/{}", state::NAMESPACE, state::NAME);
        self.sources.load_saved(state, &mut self.feed).map_err(|e| anyhow!("{}: {e}", place()))?;
        let name = self.keeper.name();
        self.ledger = match state.get(name) {
            Some(text) => serde_json::from_str(text).with_context(|| format!("{}, key {name}", place()))?,
            None => Ledger::default(),
        };
        Ok(())
    }

    /// Reads what is due as the operator does before it acts, and makes subjects of all that is known.
    pub(crate) async fn read_due(&mut self, client: &Client, now: Timestamp) {
        let due = self.keeper.read_due(client, &mut self.feed.cache, now).await;
        self.unread = self.sources.left_out(&self.feed);
        self.unread.extend(describe_skipped(&self.skipped));
        self.unread.extend(due);
        self.make_subjects();
    }

    /// Makes subjects of all that is known.
    pub(crate) fn make_subjects(&mut self) {
        self.subjects = self.feed.cache.subjects();
    }

    pub(super) fn open(&mut self, client: &Client) {
        let changes = self.sources.watch_kinds(client, DEFAULT_RESYNC.unsigned_abs());
        self.changes = Some(changes.ready_chunks(CHUNK));
    }

    pub(super) async fn take_changes(&mut self) -> Vec<String> {
        let Some(changes) = &mut self.changes else { return std::future::pending().await };
        // The watches never end.
        let Some(changes) = changes.next().await else { return std::future::pending().await };
        let mut errors = Vec::new();
        for (source, change) in changes {
            let kind = source.resource.as_ref().map(|resource| kind_name(&resource.plural, &resource.group));
            match &change {
                // What this user may not list is said once, when it is skipped.
                Change::Error(_) if self.skipped.iter().any(|skipped| Some(&skipped.kind) == kind.as_ref()) => continue,
                Change::Error(why) => errors.push(format!("what changes may be missed: {why}; trying again")),
                _ => {}
            }
            self.feed.update(&source, change);
        }
        errors
    }

    pub(super) async fn judge_again(&mut self, client: &Client, now: Timestamp) {
        // Only the operator needs to know which subjects changed.
        self.feed.cache.take_dirty();
        self.read_due(client, now).await;
        // Rules that count from the first time they match need to know that.
        let world = self.world(now);
        for key in self.feed.cache.keys() {
            for mut subject in self.feed.cache.subjects_for(&key) {
                let verdict = K::Rule::judge(&subject, &world, now);
                if self.keeper.record_verdict(&mut subject, &verdict, now) {
                    self.feed.cache.remember(&key, &subject);
                }
            }
        }
        self.make_subjects();
    }
}

fn kind_name(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// Shows a live cluster, and shows it again whenever something changes there, in its settings or by the time; until
/// standard output is closed.
pub async fn follow(
    client: &Client,
    input: &InputArgs,
    wanted: &Wanted<'_>,
    mut show: impl AsyncFnMut(&Snapshot, Timestamp) -> Result<Shown>,
) -> Result<()> {
    let mut said = BTreeSet::new();
    loop {
        let (operator, notes) = OperatorConfigMaps::read(client).await;
        let mut snapshot = Snapshot::default();
        snapshot.load_from(client, input, wanted, UseState::Current, &operator).await?;
        say(&mut said, notes);
        snapshot.keepers.iter_mut().for_each(|keeper| keeper.follow(client));
        if follow_with(client, &mut snapshot, operator, &mut said, &mut show).await? == Ended::Closed {
            return Ok(());
        }
        say(&mut said, vec!["the settings of the operator have changed".to_owned()]);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Closed,
    OtherSettings,
}

async fn follow_with(
    client: &Client,
    snapshot: &mut Snapshot,
    mut operator: OperatorConfigMaps,
    said: &mut BTreeSet<String>,
    show: &mut impl AsyncFnMut(&Snapshot, Timestamp) -> Result<Shown>,
) -> Result<Ended> {
    let mut look = Instant::now() + LOOK_INTERVAL;
    loop {
        let now = crate::now();
        for keeper in &mut snapshot.keepers {
            keeper.refresh(client, now).await;
        }
        say(said, snapshot.keepers.iter().flat_map(|keeper| keeper.notes(now)).collect());
        let Shown { text, notes, next } = show(snapshot, now).await?;
        say(said, notes);
        let mut out = io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(Ended::Closed);
        }
        drop(out);
        loop {
            tokio::select! {
                errors = next_changes(&mut snapshot.keepers) => {
                    say(said, errors);
                    tokio::time::sleep(GATHER).await;
                    break;
                }
                () = sleep_until(next) => break,
                () = tokio::time::sleep_until(look) => {
                    look = Instant::now() + LOOK_INTERVAL;
                    let (present, unread) = OperatorConfigMaps::read(client).await;
                    if !unread.is_empty() || present == operator {
                        continue;
                    }
                    if present.settings() != operator.settings() {
                        return Ok(Ended::OtherSettings);
                    }
                    for keeper in &mut snapshot.keepers {
                        keeper.set_state(&present.state())?;
                    }
                    operator = present;
                    break;
                }
            }
        }
    }
}

async fn next_changes(keepers: &mut [Box<dyn DynSnapshot>]) -> Vec<String> {
    if keepers.is_empty() {
        return std::future::pending().await;
    }
    select_all(keepers.iter_mut().map(|keeper| keeper.next_changes())).await.0
}

async fn sleep_until(next: Option<Timestamp>) {
    let Some(next) = next else { return std::future::pending().await };
    // A rule that waits until a time acts after it.
    let left = next.duration_since(crate::now()).max(SignedDuration::ZERO).unsigned_abs() + Duration::from_millis(1);
    tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
}

/// Prints the notes that were not printed before.
fn say(said: &mut BTreeSet<String>, notes: Vec<String>) {
    for note in notes {
        if said.insert(note.clone()) {
            let _ = writeln!(io::stderr(), "caretaker: {}", sanitize_line(&note));
        }
    }
}

/// A note for each thing that is not known, with all kinds that this user may not list.
fn describe_skipped(skipped: &[UnreadKind]) -> Vec<String> {
    let mut by_meaning: Vec<(&str, Vec<&str>)> = Vec::new();
    for UnreadKind { kind, unknown } in skipped {
        match by_meaning.iter_mut().find(|(known, _)| known == unknown) {
            Some((_, kinds)) => kinds.push(kind),
            None => by_meaning.push((unknown, vec![kind])),
        }
    }
    let note = |(unknown, kinds): (&str, Vec<&str>)| {
        let kinds = kinds.join(", ");
        format!(
            "this user may not list {kinds}: not known is {unknown}; the ClusterRole {READER_ROLE} has these rights"
        )
    };
    by_meaning.into_iter().map(note).collect()
}
