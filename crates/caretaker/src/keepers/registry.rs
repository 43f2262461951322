//! All keepers of this program. The only place that knows them by name.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use caretaker_addresses::Addresses;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::activity::ActivitySource;
use caretaker_runtimes::Runtimes;
use caretaker_windows::Windows;
use kube::core::ApiResource;

use super::{DynKeeper, Erased, off};
use crate::cli::RunArgs;
use crate::config::{Config, FileContents, KeepersConfig, suggest};
use crate::failure::usage;

/// Every keeper with its settings, in the order in which they are shown.
#[must_use]
pub fn keepers(config: &Config) -> Vec<Box<dyn DynKeeper>> {
    with_activity(config, None)
}

fn with_activity(config: &Config, activity: Option<ActivitySource>) -> Vec<Box<dyn DynKeeper>> {
    let KeepersConfig { namespaces, addresses, windows, runtimes } = &config.keepers;
    let zone = &config.zone();
    vec![
        Erased::boxed(Namespaces::new(config.namespaces_policy(), activity), namespaces.common(), zone),
        Erased::boxed(Addresses::new(addresses.policy()), addresses.common(), zone),
        Erased::boxed(Windows::new(config.windows_policy()), windows.common(), zone),
        Erased::boxed(Runtimes::new(config.runtimes_policy()), runtimes.common(), zone),
    ]
}

/// The names of all keepers.
#[must_use]
pub fn names() -> Vec<&'static str> {
    keepers(&Config::default()).iter().map(|keeper| keeper.name()).collect()
}

/// The keeper of a name.
pub fn by_name(config: &Config, name: &str) -> Result<Box<dyn DynKeeper>> {
    match keepers(config).into_iter().find(|keeper| keeper.name() == name) {
        Some(keeper) => Ok(keeper),
        None => Err(usage(format!("there is no keeper {name:?}{}", suggest(name, &names())))),
    }
}

/// The keepers of `--keepers`, else those that the settings select. `files` has the kinds of the objects
/// in files, and is `None` on a live cluster.
pub fn select(
    config: &Config,
    requested: Option<&[String]>,
    files: Option<&BTreeSet<&str>>,
) -> Result<Vec<Box<dyn DynKeeper>>> {
    let mut all = keepers(config);
    if let Some(requested) = requested {
        for name in requested {
            by_name(config, name).map_err(|e| usage(format!("--keepers: {e}")))?;
        }
        all.retain(|keeper| requested.iter().any(|name| name == keeper.name()));
        return Ok(all);
    }
    let in_files: Vec<bool> =
        all.iter().map(|keeper| files.is_some_and(|kinds| keeper.has_subjects_in(kinds))).collect();
    let contents = |i: usize| FileContents {
        own: in_files[i],
        others: in_files.iter().enumerate().any(|(other, has_subjects)| other != i && *has_subjects),
    };
    let selected =
        all.into_iter().enumerate().filter(|(i, keeper)| keeper.selection().applies(files.map(|_| contents(*i))));
    Ok(selected.map(|(_, keeper)| keeper).collect())
}

/// An error if a keeper that is used lacks a setting that it cannot do without.
pub(crate) fn check_usable(config: &Config, used: &[Box<dyn DynKeeper>]) -> Result<()> {
    if used.iter().any(|keeper| keeper.name() == caretaker_runtimes::NAME) {
        config.keepers.runtimes.require_namespace().map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

/// A note for each keeper that the settings leave off although the cluster serves what it works on.
pub(crate) fn off_although_served(config: &Config, served: &[ApiResource]) -> Vec<String> {
    let all = keepers(config);
    let off = all.iter().filter(|keeper| !keeper.selection().applies(None));
    off.filter_map(|keeper| off::note(&**keeper, served)).collect()
}

/// The names of the keepers that `caretaker run` runs; an error if there is none, or if they cannot run with
/// these arguments.
pub(crate) fn keepers_to_run(args: &RunArgs, config: &Config) -> Result<Vec<&'static str>> {
    let selected = select(config, args.keepers.as_deref(), None)?;
    if selected.is_empty() {
        bail!(
            "no keeper is enabled: enable one in the settings, or name it with --keepers; there are {}",
            names().join(", ")
        );
    }
    check_usable(config, &selected)?;
    let selected: Vec<&str> = selected.iter().map(|keeper| keeper.name()).collect();
    if selected.contains(&caretaker_namespaces::NAME) {
        config.keepers.namespaces.activity.sources(&args.audit).map_err(anyhow::Error::msg)?;
    }
    Ok(selected)
}

/// Makes the keepers that `caretaker run` runs, ready to be run, with the activity that the process receives.
pub(crate) fn make_keepers(
    selected: &[&str],
    config: &Config,
    activity: Option<ActivitySource>,
) -> Vec<Box<dyn DynKeeper>> {
    let mut keepers = with_activity(config, activity);
    keepers.retain(|keeper| selected.contains(&keeper.name()));
    keepers
}
