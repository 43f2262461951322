//! What must outlive a process, by key: in a ConfigMap that replicas share, or in a file of a node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::cache::is_newer_version;
use crate::object::Partial;
use crate::projection::is_conflict;
use crate::source::resource;
use crate::watch::{Raw, watch_one};

/// The namespace of everything that is Caretaker's own.
pub const NAMESPACE: &str = "caretaker-system";
/// The name of the ConfigMap.
pub const NAME: &str = "caretaker-state";

/// Where the state is kept.
#[derive(Clone)]
pub enum StateStore {
    /// Keys of the ConfigMap `caretaker-state`, written on condition of its resourceVersion.
    ConfigMap {
        /// The ConfigMaps of Caretaker's namespace.
        api: Box<Api<ConfigMap>>,
        /// The field manager of the writes.
        field_manager: String,
    },
    /// A JSON file, replaced by rename, so that a crash leaves the old one or the new one.
    File(Arc<StateFile>),
}

/// A state file. One process at a time writes it.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Two tasks of this process may write at once.
    lock: Mutex<()>,
}

/// A value, and the version of what it was read from: empty where there is nothing yet.
#[derive(Debug, Clone, Default)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    version: String,
}

impl<T> Versioned<T> {
    /// True if an object of this version is newer than the one this was read from, or another object. A
    /// watch delivers our own writes late, one after the other.
    #[must_use]
    pub fn is_older_than(&self, version: &str) -> bool {
        match (self.version.parse::<u64>(), version.parse::<u64>()) {
            (Ok(_), Ok(_)) => is_newer_version(version, &self.version),
            _ => self.version != version,
        }
    }
}

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Somebody else wrote it meanwhile.
    #[error("{place} was written by somebody else")]
    Conflict {
        /// The ConfigMap or the file.
        place: String,
    },
    /// It is not what we wrote.
    #[error("{place}, key {key}: {why}; repair it, or remove the key and nothing is remembered")]
    Invalid {
        /// The ConfigMap or the file.
        place: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// The API server could not be asked, or refused.
    #[error("ConfigMap {NAMESPACE}/{NAME}: {}", crate::format_error(.0))]
    Api(#[from] kube::Error),
    /// The file cannot be read or written.
    #[error("{place}: {error}")]
    File {
        /// The file.
        place: String,
        /// Why.
        error: std::io::Error,
    },
}

impl StateStore {
    /// In the ConfigMap, written as this field manager.
    #[must_use]
    pub fn config_map(client: Client, field_manager: impl Into<String>) -> Self {
        Self::ConfigMap { api: Box::new(Api::namespaced(client, NAMESPACE)), field_manager: field_manager.into() }
    }

    /// In a file.
    #[must_use]
    pub fn file(path: PathBuf) -> Self {
        Self::File(Arc::new(StateFile { path, lock: Mutex::new(()) }))
    }

    /// The ConfigMap or the file, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::ConfigMap { .. } => format!("ConfigMap {NAMESPACE}/{NAME}"),
            Self::File(file) => format!("state file {}", file.path.display()),
        }
    }

    fn invalid(&self, key: &str, error: &serde_json::Error) -> StateError {
        StateError::Invalid { place: self.place(), key: key.to_owned(), why: error.to_string() }
    }

    async fn read_all(&self) -> Result<(BTreeMap<String, String>, String), StateError> {
        match self {
            Self::ConfigMap { api, .. } => {
                let map = api.get_opt(NAME).await?.unwrap_or_default();
                Ok((map.data.unwrap_or_default(), map.metadata.resource_version.unwrap_or_default()))
            }
            Self::File(file) => file.read().map_err(|error| self.file_error(error)),
        }
    }

    fn file_error(&self, error: std::io::Error) -> StateError {
        StateError::File { place: self.place(), error }
    }

    /// Reads a key; what was never written is the default.
    pub async fn read<T: DeserializeOwned + Default>(&self, key: &str) -> Result<Versioned<T>, StateError> {
        let (mut data, version) = self.read_all().await?;
        let value = match data.remove(key) {
            Some(text) => serde_json::from_str(&text).map_err(|error| self.invalid(key, &error))?,
            None => T::default(),
        };
        Ok(Versioned { value, version })
    }

    /// Writes a key, if nobody else wrote the state since it was read.
    pub async fn write<T: Serialize>(&self, key: &str, state: &mut Versioned<T>) -> Result<(), StateError> {
        let text = serde_json::to_string(&state.value).map_err(|error| self.invalid(key, &error))?;
        match self {
            Self::ConfigMap { api, field_manager } => {
                let written = if state.version.is_empty() {
                    let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
                    let data = Some([(key.to_owned(), text)].into());
                    let params = PostParams { field_manager: Some(field_manager.clone()), ..PostParams::default() };
                    api.create(&params, &ConfigMap { metadata, data, ..ConfigMap::default() }).await
                } else {
                    let patch = json!({ "metadata": { "resourceVersion": state.version }, "data": { key: text } });
                    api.patch(NAME, &patch_params(field_manager), &Patch::Merge(patch)).await
                };
                match written {
                    Ok(map) => {
                        state.version = map.metadata.resource_version.unwrap_or_default();
                        Ok(())
                    }
                    // One that was deleted meanwhile is a conflict as well: it must be created again.
                    Err(error) if is_conflict(&error) || (is_gone(&error) && !state.version.is_empty()) => {
                        Err(StateError::Conflict { place: self.place() })
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Self::File(file) => {
                let written = file.write(key, Some(text), Some(&state.version));
                match written.map_err(|error| self.file_error(error))? {
                    Some(version) => {
                        state.version = version;
                        Ok(())
                    }
                    None => Err(StateError::Conflict { place: self.place() }),
                }
            }
        }
    }

    /// Overwrites a key unconditionally, or removes it. Does nothing if there is no ConfigMap yet.
    pub async fn put_raw(&self, key: &str, text: Option<&str>) -> Result<(), StateError> {
        match self {
            Self::ConfigMap { api, field_manager } => {
                let patch = Patch::Merge(json!({ "data": { key: text } }));
                match api.patch(NAME, &patch_params(field_manager), &patch).await {
                    Err(error) if is_gone(&error) => Ok(()),
                    other => Ok(other.map(drop)?),
                }
            }
            Self::File(file) => {
                let written = file.write(key, text.map(str::to_owned), None);
                written.map(drop).map_err(|error| self.file_error(error))
            }
        }
    }

    /// The text of a key.
    pub async fn get_raw(&self, key: &str) -> Result<Option<String>, StateError> {
        let (mut data, _) = self.read_all().await?;
        Ok(data.remove(key))
    }

    /// Delivers each write of the state by any process. A file is looked at every few seconds.
    pub(crate) fn watch(&self, client: Client, resync: Duration) -> BoxStream<'static, StateChange> {
        match self {
            Self::ConfigMap { .. } => watch_config_map(client, resync).boxed(),
            Self::File(file) => {
                let written = futures::stream::unfold((file.clone(), None), async |(file, mut known)| {
                    loop {
                        tokio::time::sleep(FILE_INTERVAL).await;
                        let read = file.read().map(|(_, version)| version).ok();
                        let before = std::mem::replace(&mut known, read.clone());
                        // The first look counts as well: it may have been written since the ledger was read.
                        if let Some(version) = read.filter(|version| before.as_ref() != Some(version)) {
                            return Some((StateChange::Written(version), (file, known)));
                        }
                    }
                });
                futures::stream::iter([StateChange::Ready]).chain(written).boxed()
            }
        }
    }
}

/// What a watch of the state delivers.
#[derive(Debug)]
pub(crate) enum StateChange {
    /// It was read completely.
    Ready,
    /// It was written; this is its version.
    Written(String),
    /// It was deleted.
    Deleted,
    /// It cannot be read.
    Error(String),
}

fn watch_config_map(client: Client, resync: Duration) -> impl Stream<Item = StateChange> + Send + 'static {
    let config_maps = resource("", "v1", "ConfigMap", "configmaps");
    let raw = watch_one::<Partial>(client, &config_maps, (NAMESPACE, NAME), resync);
    raw.filter_map(async |raw| match raw {
        Raw::Init => None,
        Raw::InitDone => Some(StateChange::Ready),
        Raw::Apply(map) => Some(StateChange::Written(map.metadata.resource_version)),
        Raw::Delete(_) => Some(StateChange::Deleted),
        Raw::Error(why) => Some(StateChange::Error(why)),
    })
}

fn patch_params(field_manager: &str) -> PatchParams {
    PatchParams { field_manager: Some(field_manager.to_owned()), ..PatchParams::default() }
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

impl StateFile {
    /// The keys, and a version that changes with every write.
    fn read(&self) -> std::io::Result<(BTreeMap<String, String>, String)> {
        match std::fs::read(&self.path) {
            Ok(bytes) => {
                let mut data: BTreeMap<String, String> = serde_json::from_slice(&bytes)?;
                let version = data.remove(VERSION).unwrap_or_default();
                Ok((data, version))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Default::default()),
            Err(error) => Err(error),
        }
    }

    /// Replaces one key; `None` if the version is not the one that was read.
    fn write(&self, key: &str, text: Option<String>, read: Option<&str>) -> std::io::Result<Option<String>> {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut data, version) = self.read()?;
        if read.is_some_and(|read| read != version) {
            return Ok(None);
        }
        match text {
            Some(text) => data.insert(key.to_owned(), text),
            None => data.remove(key),
        };
        let next = (version.parse::<u64>().unwrap_or(0) + 1).to_string();
        data.insert(VERSION.to_owned(), next.clone());
        let beside = self.path.with_extension("next");
        let mut file = std::fs::File::create(&beside)?;
        std::io::Write::write_all(&mut file, &serde_json::to_vec(&data)?)?;
        file.sync_all()?;
        std::fs::rename(beside, &self.path)?;
        Ok(Some(next))
    }
}

/// How often a state file is looked at: a person may reset the breaker in it.
const FILE_INTERVAL: Duration = Duration::from_secs(2);

/// The key of the version in a state file.
const VERSION: &str = "version";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_newer_is_newer() {
        let state = |version: &str| Versioned { value: (), version: version.to_owned() };

        assert!(!state("100").is_older_than("100") && !state("100").is_older_than("99"));
        assert!(state("99").is_older_than("100") && state("").is_older_than("1"));
    }

    #[tokio::test]
    async fn a_file_keeps_its_keys_and_refuses_what_was_read_before_another_write() {
        let folder = std::env::temp_dir().join(format!("caretaker-state-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&folder).unwrap();
        let store = StateStore::file(folder.join("state.json"));
        let mut first: Versioned<u32> = store.read("toys").await.unwrap();
        let mut second = first.clone();

        (first.value, second.value) = (1, 2);
        store.write("toys", &mut first).await.unwrap();
        let refused = store.write("toys", &mut second).await.unwrap_err();
        store.put_raw("other", Some("word")).await.unwrap();

        assert!(matches!(refused, StateError::Conflict { .. }), "{refused}");
        assert_eq!(store.read::<u32>("toys").await.unwrap().value, 1);
        assert_eq!(store.get_raw("other").await.unwrap().as_deref(), Some("word"));
        std::fs::write(folder.join("state.json"), "{\"toys\":\"[\"}").unwrap();
        let invalid = store.read::<u32>("toys").await.unwrap_err().to_string();
        assert!(invalid.contains("key toys") && invalid.contains("remove the key"), "{invalid}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
