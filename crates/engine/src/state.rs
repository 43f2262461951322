//! What must outlive a process and be shared by replicas: keys of the ConfigMap `caretaker-state`,
//! one for each keeper and each further matter, written on condition that nobody else wrote it meanwhile.

use std::time::Duration;

use futures::Stream;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::access::Need;
use crate::api::{Resource, is_conflict};
use crate::watch::{News, Versioned, watch_one};

/// The namespace of everything that is Caretaker's own.
pub const NAMESPACE: &str = "caretaker-system";
/// The name of the ConfigMap.
pub const NAME: &str = "caretaker-state";

static CONFIG_MAPS: Resource = Resource::new("/api/v1", "configmaps", "ConfigMap");

/// That it was written, by whomever: its version.
#[derive(Debug, Clone, Deserialize)]
pub struct Change {
    metadata: ChangeMeta,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangeMeta {
    resource_version: String,
}

impl Versioned for Change {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// Tells when the ConfigMap is written.
pub fn changes(client: Client, again: Duration) -> impl Stream<Item = News<Change>> + Send + 'static {
    watch_one(client, &CONFIG_MAPS, (NAMESPACE, NAME), again)
}

/// What a keeper must be allowed to for its state, its Lease and its Events.
#[must_use]
pub fn needs(lease: &'static str) -> Vec<Need> {
    let mut needs = Vec::from(["create", "patch"].map(|verb| Need::to(verb, "events.k8s.io", "events")));
    let state = |verb| Need::to(verb, "", "configmaps").within(NAMESPACE);
    needs.extend(["get", "list", "watch", "patch"].map(|verb| state(verb).named(NAME)));
    needs.push(state("create"));
    let leases = |verb| Need::to(verb, "coordination.k8s.io", "leases").within(NAMESPACE);
    needs.extend(["get", "update"].map(|verb| leases(verb).named(lease)));
    needs.push(leases("create"));
    needs
}

/// Where a keeper's state is kept.
#[derive(Clone)]
pub struct State {
    objects: Api<ConfigMap>,
    key: &'static str,
    /// Who writes it.
    manager: String,
}

/// A value, and the version of the object it was read from: empty where there is none yet.
#[derive(Debug, Clone, Default)]
pub struct Kept<T> {
    /// The value.
    pub value: T,
    version: String,
}

/// Why a state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Somebody else wrote it meanwhile.
    #[error("ConfigMap {NAMESPACE}/{NAME} was written by somebody else")]
    Conflict,
    /// It is not what we wrote.
    #[error("ConfigMap {NAMESPACE}/{NAME}, key {key}: {why}; repair it, or remove the key and nothing is remembered")]
    Broken {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The API server could not be asked, or refused.
    #[error("ConfigMap {NAMESPACE}/{NAME}: {}", crate::told(.0))]
    Api(#[from] kube::Error),
}

impl State {
    /// The state of a keeper.
    #[must_use]
    pub fn new(client: Client, key: &'static str, manager: impl Into<String>) -> Self {
        Self { objects: Api::namespaced(client, NAMESPACE), key, manager: manager.into() }
    }

    /// Reads it, live; what was never written is the default.
    pub async fn read<T: DeserializeOwned + Default>(&self) -> Result<Kept<T>, StateError> {
        let Some(map) = self.objects.get_opt(NAME).await? else { return Ok(Kept::default()) };
        let version = map.metadata.resource_version.unwrap_or_default();
        let Some(text) = map.data.unwrap_or_default().remove(self.key) else {
            return Ok(Kept { value: T::default(), version });
        };
        let value =
            serde_json::from_str(&text).map_err(|e| StateError::Broken { key: self.key, why: e.to_string() })?;
        Ok(Kept { value, version })
    }

    /// Writes it, if it is still what was read.
    pub async fn write<T: Serialize>(&self, kept: &mut Kept<T>) -> Result<(), StateError> {
        let text =
            serde_json::to_string(&kept.value).map_err(|e| StateError::Broken { key: self.key, why: e.to_string() })?;
        let written = if kept.version.is_empty() {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let data = Some([(self.key.to_owned(), text)].into());
            let params = PostParams { field_manager: Some(self.manager.clone()), ..PostParams::default() };
            self.objects.create(&params, &ConfigMap { metadata, data, ..ConfigMap::default() }).await
        } else {
            let patch = json!({ "metadata": { "resourceVersion": kept.version }, "data": { self.key: text } });
            let params = PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() };
            self.objects.patch(NAME, &params, &Patch::Merge(patch)).await
        };
        match written {
            Ok(map) => {
                kept.version = map.metadata.resource_version.unwrap_or_default();
                Ok(())
            }
            // One that was deleted meanwhile is a conflict as well: it must be made anew.
            Err(e)
                if is_conflict(&e)
                    || matches!(&e, kube::Error::Api(s) if s.code == 404 && !kept.version.is_empty()) =>
            {
                Err(StateError::Conflict)
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl State {
    /// Writes a word, whatever was there before. Where there is no ConfigMap yet, nobody asks for it.
    pub async fn say(&self, word: Option<&str>) -> Result<(), StateError> {
        let params = PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({ "data": { self.key: word } }));
        match self.objects.patch(NAME, &params, &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// The word, as it stands there.
    pub async fn word(&self) -> Result<Option<String>, StateError> {
        let map = self.objects.get_opt(NAME).await?;
        Ok(map.and_then(|map| map.data?.remove(self.key)))
    }
}

impl<T> Kept<T> {
    /// Whether an object of this version is newer than the one this was read from, or another one.
    /// The watch tells of our own writes late, one after the other.
    #[must_use]
    pub fn is_older_than(&self, version: &str) -> bool {
        match (self.version.parse::<u64>(), version.parse::<u64>()) {
            (Ok(known), Ok(told)) => known < told,
            _ => self.version != version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_newer_is_news() {
        let kept = |version: &str| Kept { value: (), version: version.to_owned() };

        assert!(!kept("100").is_older_than("100") && !kept("100").is_older_than("99"));
        assert!(kept("99").is_older_than("100") && kept("").is_older_than("1"));
    }
}
