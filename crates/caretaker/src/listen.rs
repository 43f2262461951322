//! The operator's ears: what it hears of uses, from where, and who may ask it what it heard.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::routing::get;
use axum::{Json, Router};
use caretaker_activity::ear::Ear;
use caretaker_activity::fold::Fold;
use caretaker_activity::receive;
use caretaker_activity::tail::Tail;
use caretaker_engine::client;
use caretaker_namespaces::run::Source;
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::{Client, Config as Cluster};
use tokio::net::TcpListener;

use crate::config::{ActivityConfig, Sources};

/// How long a call may last that writes a use down; nobody leads in it.
const CALL: Duration = Duration::from_secs(5);
/// Calls a second that write uses down, at most.
const CALLS: u32 = 50;

/// Hears what counts by these settings.
pub(crate) fn ear(config: &ActivityConfig) -> Ear {
    Ear::new(Fold::new(config.filter(), config.beat, config.session), crate::now)
}

/// What was heard, for whoever asks at `/activity`.
pub(crate) fn routes(ear: &Ear) -> Router {
    let ear = ear.clone();
    Router::new().route("/activity", get(move || async move { Json(ear.told()) }))
}

/// A use is written down within this time after a namespace may be written again.
const WRITTEN: Duration = Duration::from_mins(1);

/// Begins to listen. `record`: how often a namespace is written, or none in a dry run, in which
/// nothing is.
pub(crate) async fn begin(sources: Sources, ear: &Ear, record: Option<Duration>) -> Result<()> {
    if let Some((log, position)) = sources.log {
        tracing::info!("following {}, and keeping the place in {}", log.display(), position.display());
        let tail = Tail::new(log, position, ear.clone(), record.map(|record| record + WRITTEN));
        std::thread::Builder::new().name("audit-log".to_owned()).spawn(move || tail.run())?;
    }
    if let Some((address, files)) = sources.listen {
        let open = files.is_open();
        let secrets = files.load().context("the audit receiver's certificate or token")?;
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("--audit-listen {address}: is another program there?"))?;
        tracing::info!("receiving audit events on {}", listener.local_addr()?);
        if open {
            tracing::warn!("whoever reaches {address} may send audit events: it is a loopback address");
        }
        tokio::spawn(receive::serve(listener, secrets, ear.clone()));
    }
    Ok(())
}

/// What the keeper needs to write uses down, and to find out whether any are heard of.
pub(crate) fn source(cluster: &Cluster, ear: Ear, config: &ActivityConfig, resumes: bool) -> Result<Source> {
    let fresh = cluster.clone();
    let fresh = move |agent: &str| {
        let mut config = fresh.clone();
        config.headers.retain(|(name, _)| name != USER_AGENT);
        config.headers.push((USER_AGENT, HeaderValue::from_str(agent).map_err(|e| e.to_string())?));
        config.default_retry = false;
        Client::try_from(config).map_err(|e| e.to_string())
    };
    Ok(Source {
        ear,
        client: client::writer(cluster.clone(), None, CALL, Some(CALLS))?,
        fresh: Arc::new(fresh),
        canary: config.canary,
        every: config.record,
        resumes,
    })
}
