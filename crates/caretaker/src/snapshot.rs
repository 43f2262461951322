//! Everything that a command works on: a snapshot of each keeper, and what could not be read.

mod follow;
mod keeper;

use std::any::Any;
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use caretaker_core::Timestamp;
use caretaker_core::count::counted;
use caretaker_engine::source::StateSnapshot;
use kube::Client;

use crate::cli::InputArgs;
use crate::config::{Config, did_you_mean};
use crate::keepers::{self, DynKeeper, KeeperCli};
use crate::live::{self, OperatorConfigMaps};
use crate::manifests::{ManifestSet, RawFiles};
use crate::output::Output;

pub use follow::{Shown, follow};
pub use keeper::{DynSnapshot, KeeperSnapshot};

/// What a command works on.
#[derive(Default)]
pub struct Snapshot {
    /// The settings.
    pub config: Config,
    /// One for each keeper that is used.
    pub keepers: Vec<Box<dyn DynSnapshot>>,
    /// Notes for standard error.
    pub notes: Vec<String>,
    /// True if part of the input could not be read.
    pub incomplete: bool,
}

/// Which keepers a command uses.
pub enum Wanted<'a> {
    /// Those of `--keepers`, else those that the settings enable.
    Selected,
    /// This one, enabled or not.
    Only(&'a str),
}

/// What a command takes from the state of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseState {
    /// Ledger and saved sources, as the operator has them now.
    Current,
    /// Nothing: the command goes back in time.
    Ignored,
}

impl Snapshot {
    /// Reads the input of the command line, which is looked at as it is at this time.
    pub fn load(input: &InputArgs, wanted: &Wanted<'_>, use_state: UseState, at: Timestamp) -> Result<Self> {
        let mut snapshot = Self::default();
        if let Some(path) = &input.from {
            let files = RawFiles::read(path)?;
            let mut manifests = ManifestSet::split(&files);
            snapshot.config = resolve_config(input.config.as_deref(), &manifests.operator)?;
            let keepers = snapshot.wanted_keepers(input, wanted, Some(&manifests.kinds()))?;
            let state = use_state.of(&manifests.operator);
            snapshot.load_files(&path.display().to_string(), &mut manifests, &keepers, &state)?;
        } else {
            live::block_on(snapshot.load_cluster(input, wanted, use_state))?;
        }
        if snapshot.keepers.is_empty() {
            let names = keepers::names();
            let note = |keeper| format!("the keeper {keeper} is not enabled; use it with --keepers {keeper}");
            snapshot.notes.extend(names.into_iter().map(note));
        }
        snapshot.incomplete |= snapshot.keepers.iter().any(|keeper| keeper.is_incomplete());
        // What decides about all verdicts comes before what was skipped.
        let notes: Vec<String> = snapshot.keepers.iter().flat_map(|keeper| keeper.notes(at)).collect();
        snapshot.notes.splice(0..0, notes);
        Ok(snapshot)
    }

    fn wanted_keepers(
        &self,
        input: &InputArgs,
        wanted: &Wanted<'_>,
        files: Option<&BTreeSet<&str>>,
    ) -> Result<Vec<Box<dyn DynKeeper>>> {
        let selected = keepers::select(&self.config, input.keepers.as_deref(), files)?;
        let wanted = match wanted {
            Wanted::Selected => selected,
            Wanted::Only(name) => vec![keepers::by_name(&self.config, name)?],
        };
        keepers::check_usable(&self.config, &wanted)?;
        Ok(wanted)
    }

    /// Loads the keepers from files.
    pub(crate) fn load_files(
        &mut self,
        origin: &str,
        manifests: &mut ManifestSet<'_>,
        keepers: &[Box<dyn DynKeeper>],
        state: &StateSnapshot,
    ) -> Result<()> {
        let mut missing = Vec::new();
        for keeper in keepers {
            let (loaded, lacks) = keeper.load_files(manifests, state)?;
            self.keepers.push(loaded);
            missing.extend(lacks);
        }
        self.incomplete = !manifests.problems.is_empty();
        self.notes.extend(manifests.problems.iter().map(ToString::to_string));
        if keepers.is_empty() {
            return Ok(());
        }
        let skipped =
            manifests.skipped(|api_version, kind| keepers.iter().any(|keeper| keeper.reads_kind(api_version, kind)));
        if manifests.decoded() == 0 {
            let (files, skipped) = (counted(manifests.files, "file", "files"), counted(skipped, "object", "objects"));
            self.notes.push(format!("{origin}: nothing to judge in {files}, {skipped} of other kinds"));
        } else if skipped > 0 {
            let (objects, were) = (counted(skipped, "object", "objects"), if skipped == 1 { "was" } else { "were" });
            self.notes.push(format!("{objects} of other kinds {were} skipped"));
        }
        self.notes.extend(missing);
        Ok(())
    }

    /// Loads the keepers from a live cluster; it only lists and gets.
    async fn load_cluster(&mut self, input: &InputArgs, wanted: &Wanted<'_>, use_state: UseState) -> Result<()> {
        let client = live::client(&input.cluster).await?;
        let (operator, notes) = OperatorConfigMaps::read(&client).await;
        self.load_from(&client, input, wanted, use_state, &operator).await?;
        self.notes.extend(notes);
        Ok(())
    }

    async fn load_from(
        &mut self,
        client: &Client,
        input: &InputArgs,
        wanted: &Wanted<'_>,
        use_state: UseState,
        operator: &OperatorConfigMaps,
    ) -> Result<()> {
        self.config = resolve_config(input.config.as_deref(), operator)?;
        let state = use_state.of(operator);
        for keeper in self.wanted_keepers(input, wanted, None)? {
            self.keepers.push(keeper.load_cluster(client, &state).await?);
        }
        Ok(())
    }

    /// The snapshot of a keeper of a known type, if it is used.
    #[must_use]
    pub fn keeper<K: KeeperCli>(&self) -> Option<&KeeperSnapshot<K>> {
        self.keepers.iter().find_map(|keeper| (&**keeper as &dyn Any).downcast_ref())
    }

    /// The same to change it.
    pub fn keeper_mut<K: KeeperCli>(&mut self) -> Option<&mut KeeperSnapshot<K>> {
        self.keepers.iter_mut().find_map(|keeper| (&mut **keeper as &mut dyn Any).downcast_mut())
    }

    /// The error if the namespace of `-n` does not exist. Without a keeper that knows all namespaces,
    /// there is no error.
    #[must_use]
    pub fn missing_namespace(&self, namespace: Option<&str>) -> Option<String> {
        let name = namespace?;
        let known: Vec<BTreeSet<&str>> = self.keepers.iter().filter_map(|keeper| keeper.known_namespaces()).collect();
        let missing = !known.is_empty() && !known.iter().any(|names| names.contains(name));
        missing.then(|| no_namespace(name, known.iter().flatten().copied()))
    }

    /// The output of a command whose subject does not exist; the notes may explain it.
    #[must_use]
    pub fn not_found(mut self, message: String) -> Output {
        self.notes.push(message);
        Output { text: String::new(), notes: self.notes, code: 1 }
    }

    /// The output of a command that has succeeded.
    #[must_use]
    pub fn output(self, text: String) -> Output {
        Output { text, code: if self.incomplete { 3 } else { 0 }, notes: self.notes }
    }
}

impl UseState {
    fn of(self, operator: &OperatorConfigMaps) -> StateSnapshot {
        match self {
            Self::Current => operator.state(),
            Self::Ignored => StateSnapshot::new(),
        }
    }
}

pub(crate) fn no_namespace<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    format!("there is no namespace {name:?}{}", did_you_mean(name, known))
}

/// The settings of `--config` (or its variable), else those of the running operator, else the built-in
/// ones.
pub(crate) fn resolve_config(path: Option<&Path>, operator: &OperatorConfigMaps) -> Result<Config> {
    let config = match (path, operator.settings()) {
        (Some(path), _) => Config::read(path)?,
        (None, Some((text, origin))) => Config::parse(text, &origin)?,
        (None, None) => Config::default(),
    };
    Ok(config.with_environment()?)
}

#[cfg(test)]
mod tests;
