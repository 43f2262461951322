//! What the keeper needs to know of its surroundings: how much an API server takes, and how one
//! namespace alone is read.

use caretaker_engine::keep::{Index as _, Unlisted};
use kube::Client;

use crate::observe::{Manifest, Observation, SOURCES};

/// Eight writes at a time are what an API server on two cores takes; more only wait there.
pub const CONCURRENCY: usize = 8;

/// Reads all that is in one namespace, and whatever may depend on it from outside; live.
pub async fn observe_home(client: &Client, name: &str) -> Result<Observation, Unlisted> {
    let mut seen = Observation::default();
    let namespaces = &SOURCES[0];
    let unlisted = |path: String| |e| Unlisted { path, source: Box::new(e) };
    let found: Option<Manifest> =
        namespaces.get(client, None, name).await.map_err(unlisted(format!("{}/{name}", namespaces.path(None))))?;
    let Some(found) = found else { return Ok(seen) };
    seen.add(namespaces.kind, &found);
    for source in &SOURCES[1..] {
        let home = source.namespaced.then_some(name);
        let add = |object: Manifest| seen.add(source.kind, &object);
        source.list(client, home, add).await.map_err(unlisted(source.path(home)))?;
    }
    Ok(seen)
}
