//! The commands about Flux objects, with the habits of the flux CLI: `get`, `suspend`, `resume`, `reconcile --once` and
//! `windows report`.

mod get;
mod kinds;
mod order;
mod report;
mod wait;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use caretaker_core::Timestamp;
use caretaker_engine::caller::current_user_and_time;
use caretaker_windows::api::FluxKind;
use caretaker_windows::subject::World;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Client};

use crate::cli::SessionArgs;
use crate::live::{self, OperatorConfigMaps};
use crate::snapshot::resolve_config;

pub use get::run as get;
pub(crate) use kinds::check_name;
pub use order::{reconcile, resume, suspend};
pub use report::run as windows;

/// Pages of a list have so many objects.
const PAGE: u32 = 500;

/// A cluster, and what its operator is set to.
struct Session {
    client: Client,
    world: World,
    user: String,
    /// The time of the API server when the command began.
    now: Timestamp,
    notes: Vec<String>,
    opened: Instant,
}

impl Session {
    async fn open(args: &SessionArgs) -> Result<Self> {
        let client = live::client(&args.cluster).await?;
        let (operator, notes) = OperatorConfigMaps::read(&client).await;
        let config = resolve_config(args.config.as_deref(), &operator)?;
        let (user, now) = current_user_and_time(&client, crate::now).await;
        let world = World { policy: Arc::new(config.windows_policy()), ..World::default() };
        Ok(Self { client, world, user, now, notes, opened: Instant::now() })
    }

    /// The time of the API server.
    fn time(&self) -> Timestamp {
        self.now + self.opened.elapsed()
    }

    /// Those of these kinds that the API server serves, each in its most stable version.
    async fn served(&self, kinds: &[&'static FluxKind]) -> Result<Vec<(&'static FluxKind, ApiResource)>> {
        let served = live::served_kinds(&self.client).await.context("asking which kinds are served")?;
        let find = |kind: &&'static FluxKind| {
            let found = served.iter().find(|served| served.group == kind.group && served.kind == kind.kind);
            found.map(|resource| (*kind, resource.clone()))
        };
        Ok(kinds.iter().filter_map(find).collect())
    }

    /// The same of a single kind, which must be served.
    async fn served_kind(&self, kind: &'static FluxKind) -> Result<ApiResource> {
        match self.served(&[kind]).await?.pop() {
            Some((_, resource)) => Ok(resource),
            None => bail!("the cluster does not serve {}; is Flux installed?", kind.aliases[1]),
        }
    }

    fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    async fn list(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<Vec<DynamicObject>> {
        let api = self.api(resource, namespace);
        let mut params =
            ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() }.limit(PAGE);
        let mut all = Vec::new();
        loop {
            let page = api.list(&params).await.with_context(|| format!("listing {}", resource.plural))?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
    }
}

/// A revision with a short hash, as flux prints it: `main@sha1:1a2b3c4d`.
fn short_revision(revision: &str) -> String {
    const HASH: usize = 40;
    const SHORT: usize = 8;
    match revision.rsplit_once(':') {
        Some((start, hash)) if hash.len() >= HASH && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{start}:{}", &hash[..SHORT])
        }
        _ => revision.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("main@sha1:450796ddb2ab6724ee1cc32a4be56da032d1cca0", "main@sha1:450796dd")]
    #[case("1.2.3", "1.2.3")]
    #[case("main@sha1:short", "main@sha1:short")]
    #[case("sha1:450796ddb2ab6724ee1cc32a4be56da032d1ccaé", "sha1:450796ddb2ab6724ee1cc32a4be56da032d1ccaé")]
    fn a_revision_has_a_short_hash(#[case] revision: &str, #[case] short: &str) {
        assert_eq!(short_revision(revision), short);
    }
}
