//! Where the operator receives activity from: audit events of API servers, by webhook or from a log.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::routing::get;
use axum::{Json, Router};
use caretaker_activity::audit_log::AuditLogSource;
use caretaker_activity::audit_webhook;
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::state::ActivityState;
use caretaker_engine::client;
use caretaker_namespaces::activity::ActivitySource;
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::{Client, Config as KubeConfig};
use tokio::net::TcpListener;

use crate::cli::RunArgs;
use crate::config::{ActivityConfig, AuditSources, NamespacesConfig};

/// Timeout of a call that writes activity. Such calls need no leadership, so no Lease limits them.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of calls per second that write activity.
const QPS: u32 = 50;
/// Activity is written within this time after the namespace may be written again.
const WRITE_DELAY: Duration = Duration::from_mins(1);

/// A collector for what counts by these settings.
pub(crate) fn collector(config: &ActivityConfig) -> ActivityCollector {
    ActivityCollector::new(ActivityState::new(config.filter(), config.poll_grace, config.max_session), crate::now)
}

/// Starts to receive audit events for the namespaces keeper, if flags or settings ask for it; otherwise
/// another program writes the annotation.
pub(crate) async fn start_activity(
    args: &RunArgs,
    config: &NamespacesConfig,
    cluster: &KubeConfig,
) -> Result<Option<ActivitySource>> {
    let sources = config.activity.sources(&args.audit).map_err(anyhow::Error::msg)?;
    if sources.is_empty() {
        tracing::info!("activity comes from the annotation activity-status: another program must write it");
        if config.defaults.is_some() {
            tracing::warn!(
                "defaults are on, but no audit events are received: namespaces where no program writes activity-status look idle"
            );
        }
        return Ok(None);
    }
    let collector = collector(&config.activity);
    let write_interval = (!args.dry_run).then(|| config.activity.write_interval.unsigned_abs());
    let resumes = sources.listen.is_none();
    receive(sources, &collector, write_interval).await?;
    keeper_source(cluster, collector, &config.activity, resumes).map(Some)
}

/// `/activity`: what was received.
pub(crate) fn routes(collector: &ActivityCollector) -> Router {
    let collector = collector.clone();
    Router::new().route("/activity", get(move || async move { Json(collector.namespaces()) }))
}

/// Starts to receive. `write_interval` is how often a namespace is written; `None` in a dry run, which
/// writes nothing.
async fn receive(sources: AuditSources, collector: &ActivityCollector, write_interval: Option<Duration>) -> Result<()> {
    if let Some((log, position_file)) = sources.log {
        tracing::info!("following {}; the position is saved in {}", log.display(), position_file.display());
        let save_delay = write_interval.map(|interval| interval + WRITE_DELAY);
        let source = AuditLogSource::new(log, position_file, collector.clone(), save_delay);
        std::thread::Builder::new().name("audit-log".to_owned()).spawn(move || source.run())?;
    }
    if let Some((address, files)) = sources.listen {
        let anonymous = files.allows_anonymous();
        let credentials = files.load().context("the audit receiver's certificate or token")?;
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("--audit-listen {address}: is another program using it?"))?;
        tracing::info!("receiving audit events on {}", listener.local_addr()?);
        if anonymous {
            tracing::warn!("every program on this machine can send audit events to {address}, a loopback address");
        }
        tokio::spawn(audit_webhook::serve(listener, credentials, collector.clone()));
    }
    Ok(())
}

/// What the keeper needs to write activity, and to check that audit events arrive.
fn keeper_source(
    cluster: &KubeConfig,
    collector: ActivityCollector,
    config: &ActivityConfig,
    resumes: bool,
) -> Result<ActivitySource> {
    let cluster_of_canaries = cluster.clone();
    let canary_client = move |agent: &str| {
        let mut config = cluster_of_canaries.clone();
        config.headers.retain(|(name, _)| name != USER_AGENT);
        config.headers.push((USER_AGENT, HeaderValue::from_str(agent).map_err(|e| e.to_string())?));
        config.default_retry = false;
        Client::try_from(config).map_err(|e| e.to_string())
    };
    Ok(ActivitySource {
        collector,
        client: client::writer(cluster.clone(), None, CALL_TIMEOUT, Some(&client::CallLimit::new(QPS)), false)?,
        canary_client: Arc::new(canary_client),
        canary_interval: config.canary_interval,
        write_interval: config.write_interval,
        resumes,
    })
}
