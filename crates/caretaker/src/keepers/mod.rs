//! The keepers, as the commands know them.
//!
//! Judging, admitting, simulating and most of telling is the same for all of them and stands in
//! [`crate::stage`]. What differs is in [`Console`]: a keeper that is to be seen in the commands
//! implements it, has a section in the settings, and stands in [`ALL`].

mod addresses;
mod namespaces;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod toy;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::marker::PhantomData;

use anyhow::{Context, Result, anyhow, bail};
use caretaker_core::Timestamp;
use caretaker_core::limits::{Limits, Breaker, Ledger, Pace};
use caretaker_core::parsed::Broken;
use caretaker_engine::keep::{self, Index as _, Keep, Unlisted};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use kube::Client;

use crate::config::{Common, Config, nearest, suggest};
use crate::lint;
use crate::manifests::Manifests;
use crate::scene::Settings;
use crate::stage::{Stage, Staged};

pub use namespaces::Ground;

/// Every keeper there is, in the order in which people read of them.
pub static ALL: &[&dyn Listed] =
    &[&Of::<caretaker_namespaces::Namespaces>(PhantomData), &Of::<caretaker_addresses::Addresses>(PhantomData)];

/// A kind of subject, as people type it.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// As the API says it.
    pub name: &'static str,
    /// In lower case, in full, in the plural, and in short; the first is what messages say.
    pub words: &'static [&'static str],
    /// Whether `-n` tells one from another of the same name.
    pub namespaced: bool,
}

/// A key of an object that no judgement asks for, and how deep it stands: `(0, "status:")`, or below
/// `spec`, two for each level, `(6, "containers:")`.
pub type Needless = (usize, &'static str);

/// What an action does to the lane of a subject in a timeline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stroke {
    /// What the lane is from then on.
    pub fill: Option<char>,
    /// What stands at that moment.
    pub mark: Option<char>,
}

/// Something that is wrong with an object of a file.
#[derive(Debug)]
pub struct Fault {
    /// The namespace of the object.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// What is wrong.
    pub broken: Broken,
}

/// What the commands ask of a keeper, beside what it is.
pub trait Console: Keep {
    /// What the settings and the operator's own records say, of which a world is made at any time.
    type Ground: Debug + 'static;

    /// The kinds of its subjects.
    const KINDS: &'static [Kind];
    /// The actions that can be paced.
    const PACED: &'static [&'static str];
    /// The pace of actions of which the settings say nothing.
    const PACES: &'static [(&'static str, Pace)];
    /// What the breaker is where the settings say nothing of it.
    const BREAKER: Breaker = Breaker::DEFAULT;
    /// What the characters of a lane mean.
    const LEGEND: &'static str;
    /// What became of subjects, by action, in the order of a summary.
    const SUMMARY: &'static [(&'static str, &'static str)];
    /// Whether it has something to say about manifests before they reach a cluster.
    const LINTS: bool = false;

    /// The part of its section that every keeper has.
    fn common(config: &Config) -> Common<'_>;

    /// What is wrong with the rest of its section.
    fn check(_config: &Config) -> Result<(), String> {
        Ok(())
    }

    /// Whether it is to be asked where nobody names it; `files` has the kinds that there are in
    /// files, and is none on a live cluster.
    fn is_on(config: &Config, files: Option<&BTreeSet<&str>>) -> bool;

    /// What its worlds are made of; `kept` are Caretaker's own ConfigMaps.
    fn ground(config: &Config, kept: &Settings) -> Result<Self::Ground>;

    /// The world at a time.
    fn world(ground: &Self::Ground, now: Timestamp) -> Self::World;

    /// What people should know beside the verdicts.
    fn notes(_ground: &Self::Ground, _subjects: &[Self::Subject]) -> Vec<String> {
        Vec::new()
    }

    /// What files of these kinds lack, so that less is judged, or with less care. Only their owner can
    /// say whether it is not in the cluster either.
    #[must_use]
    fn lacks(_kinds: &BTreeSet<&str>) -> Vec<String> {
        Vec::new()
    }

    /// All namespaces there are; `None` if this keeper does not know all of them.
    fn homes(_subjects: &[Self::Subject]) -> Option<BTreeSet<&str>> {
        None
    }

    /// Whether a subject is shown if this namespace is asked for.
    fn is_in(subject: &Self::Subject, namespace: &str) -> bool {
        Self::name(subject).namespace == Some(namespace)
    }

    /// Whether a subject is meant by what was typed behind its kind.
    fn is_called(subject: &Self::Subject, name: &str) -> bool {
        Self::name(subject).name == name
    }

    /// What to say where there is no such subject.
    fn absent(kind: &Kind, name: &str, subjects: &[Self::Subject]) -> String {
        let names = subjects.iter().map(Self::name).filter(|n| n.kind == kind.name).map(|n| n.name);
        let meant = nearest(name, names).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        format!("there is no {} {name:?}{meant}", kind.name)
    }

    /// What can be left out of objects of a kind before they are parsed.
    #[must_use]
    fn needless(_kind: &str) -> &'static [Needless] {
        &[]
    }

    /// Everything that is wrong with an object of a file.
    fn lint(_kind: &str, _object: &Self::Manifest, _now: Timestamp) -> Vec<Fault> {
        Vec::new()
    }

    /// What the lane of a subject is at first.
    fn lane(subject: &Self::Subject) -> char;

    /// What an action does to it.
    fn stroke(action: &Self::Action) -> Stroke;
}

/// Whether objects of this kind matter to a keeper.
pub(crate) fn wants<K: Keep>(kind: &str) -> bool {
    keep::wants::<K>(kind)
}

/// What holds a keeper back.
pub(crate) fn limits<K: Console>(config: &Config) -> Limits {
    K::common(config).limits(K::PACES, K::BREAKER)
}

/// What the operator recorded under a key of its state.
pub(crate) fn kept<T: Default + serde::de::DeserializeOwned>(settings: &Settings, key: &str) -> Result<T> {
    let text = settings.get("caretaker-state").and_then(|data| data.get(key));
    text.map_or_else(
        || Ok(T::default()),
        |text| {
            serde_json::from_str(text).with_context(|| format!("ConfigMap caretaker-system/caretaker-state, key {key}"))
        },
    )
}

/// Any keeper.
pub trait Listed: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The kinds of its subjects.
    fn kinds(&self) -> &'static [Kind];

    /// Whether objects of this kind matter to it.
    fn wants(&self, kind: &str) -> bool;

    /// Its rules, as a table in Markdown.
    fn rules(&self) -> String;

    /// What is wrong with its section of the settings.
    fn check(&self, config: &Config) -> Result<(), String>;

    /// Whether it is to be asked where nobody names it.
    fn is_on(&self, config: &Config, files: Option<&BTreeSet<&str>>) -> bool;

    /// Its stage, of files, and what these lack.
    fn of_files(&self, files: &mut Manifests<'_>, config: &Config) -> Result<(Box<dyn Staged>, Vec<String>)>;

    /// Its stage, of a live cluster.
    fn of_cluster<'a>(
        &self,
        client: &'a Client,
        config: &'a Config,
        kept: &'a Settings,
    ) -> LocalBoxFuture<'a, Result<Box<dyn Staged>>>;

    /// Whether it has something to say about manifests before they reach a cluster.
    fn lints(&self) -> bool;

    /// What it has to say about them.
    fn lint(&self, files: &mut Manifests<'_>, now: Timestamp) -> Vec<lint::Row>;
}

/// A keeper as one of many.
pub struct Of<K>(pub PhantomData<fn() -> K>);

impl<K: Console> Listed for Of<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn kinds(&self) -> &'static [Kind] {
        K::KINDS
    }

    fn wants(&self, kind: &str) -> bool {
        wants::<K>(kind)
    }

    fn rules(&self) -> String {
        K::rules().markdown()
    }

    fn check(&self, config: &Config) -> Result<(), String> {
        K::common(config).check(K::NAME, K::PACED)?;
        K::check(config)
    }

    fn is_on(&self, config: &Config, files: Option<&BTreeSet<&str>>) -> bool {
        K::is_on(config, files)
    }

    fn of_files(&self, files: &mut Manifests<'_>, config: &Config) -> Result<(Box<dyn Staged>, Vec<String>)> {
        let mut seen = K::Index::default();
        let mut kinds = BTreeSet::new();
        let found = files.parse::<K>();
        for object in &found {
            seen.add(&object.kind, &object.object);
            kinds.insert(object.kind.as_str());
        }
        let lacks = if kinds.is_empty() { Vec::new() } else { K::lacks(&kinds) };
        Ok((Box::new(stage::<K>(seen, config, &files.settings)?), lacks))
    }

    fn of_cluster<'a>(
        &self,
        client: &'a Client,
        config: &'a Config,
        kept: &'a Settings,
    ) -> LocalBoxFuture<'a, Result<Box<dyn Staged>>> {
        async move {
            let seen = keep::observe::<K>(client).await.map_err(|e| unlisted(K::NAME, &e))?;
            Ok(Box::new(stage::<K>(seen, config, kept)?) as Box<dyn Staged>)
        }
        .boxed_local()
    }

    fn lints(&self) -> bool {
        K::LINTS
    }

    fn lint(&self, files: &mut Manifests<'_>, now: Timestamp) -> Vec<lint::Row> {
        let found = files.parse::<K>();
        found
            .iter()
            .flat_map(|found| {
                let faults = K::lint(&found.kind, &found.object, now);
                faults.into_iter().map(|fault| lint::Row::of(fault, found.file, found.line, &found.kind))
            })
            .collect()
    }
}

/// Why a live cluster cannot be looked at, and what to do about it.
fn unlisted(keeper: &str, error: &Unlisted) -> anyhow::Error {
    match &*error.source {
        kube::Error::Api(status) if status.code == 404 => {
            anyhow!("this cluster has no {}: what the keeper {keeper} looks after is not installed", error.path)
        }
        _ => anyhow!("{error}; may this user list all of it?"),
    }
}

fn stage<K: Console>(seen: K::Index, config: &Config, kept_by_operator: &Settings) -> Result<Stage<K>> {
    let ledger: Ledger = kept(kept_by_operator, K::NAME)?;
    Ok(Stage::new(seen.subjects(), K::ground(config, kept_by_operator)?, limits::<K>(config), ledger))
}

/// The keeper of a name.
pub fn named(name: &str) -> Result<&'static dyn Listed> {
    match ALL.iter().find(|keeper| keeper.name() == name) {
        Some(keeper) => Ok(*keeper),
        None => bail!(
            "there is no keeper {name:?}{}",
            suggest(name, &ALL.iter().map(|keeper| keeper.name()).collect::<Vec<_>>())
        ),
    }
}

/// The keepers that were asked for with `--keepers`, each once and in the order of [`ALL`]; `None` if
/// nobody said.
pub fn asked(names: Option<&[String]>) -> Result<Option<Vec<&'static dyn Listed>>> {
    let Some(names) = names else { return Ok(None) };
    for name in names {
        named(name).map_err(|e| anyhow::anyhow!("--keepers: {e}"))?;
    }
    Ok(Some(ALL.iter().copied().filter(|keeper| names.iter().any(|name| name == keeper.name())).collect()))
}
