//! Where the operator receives activity from: audit events of API servers, by webhook or from a log.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use caretaker_activity::audit_log::AuditLogSource;
use caretaker_activity::audit_webhook;
use caretaker_activity::collector::ActivityCollector;
use caretaker_activity::state::ActivityState;
use caretaker_engine::client;
use caretaker_namespaces::activity::{ActivitySource, CanaryTarget};
use http::header::USER_AGENT;
use http::{HeaderValue, StatusCode};
use kube::{Client, Config as KubeConfig};
use tokio::net::TcpListener;

use crate::cli::RunArgs;
use crate::config::{ActivityConfig, AuditSources, NamespacesConfig};

/// Timeout of a call that writes activity. Such calls need no leadership, so no Lease limits them.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of calls per second that write activity.
const QPS: u32 = 50;
/// Timeout of the connection of a canary. Some clusters drop the packets to single API servers.
const CANARY_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Activity is written within this time after the namespace may be written again.
const WRITE_DELAY: Duration = Duration::from_mins(1);

/// A collector for what counts by these settings.
pub(crate) fn collector(config: &ActivityConfig) -> ActivityCollector {
    ActivityCollector::new(ActivityState::new(config.filter(), config.poll_grace, config.max_session), crate::now)
}

/// What the process receives: it starts with the first namespaces keeper and stays, whatever keepers come and go.
#[derive(Default)]
pub(crate) struct Activity {
    is_started: bool,
    /// `None`: another program writes the annotation.
    source: Option<ActivitySource>,
    /// What `/activity` shows.
    shown: Arc<OnceLock<ActivityCollector>>,
}

impl Activity {
    /// Starts to receive audit events for the namespaces keeper, if flags or settings ask for it; otherwise another
    /// program writes the annotation. What was started before stays as it is.
    pub(crate) async fn start(
        &mut self,
        args: &RunArgs,
        config: &NamespacesConfig,
        cluster: &KubeConfig,
    ) -> Result<Option<ActivitySource>> {
        if !self.is_started {
            self.source = start(args, config, cluster).await?;
            self.is_started = true;
        }
        if let Some(source) = &self.source {
            // Fails if it was set before, to the same.
            let _ = self.shown.set(source.collector.clone());
        }
        Ok(self.source.clone())
    }

    /// True if it was started: its settings cannot change any more.
    pub(crate) fn is_started(&self) -> bool {
        self.is_started
    }

    /// Whether those who write activity may change: what arrives meanwhile is kept for the next one.
    pub(crate) fn keep_open(&self, kept_open: bool) {
        self.shown.get().into_iter().for_each(|collector| collector.keep_open(kept_open));
    }

    /// `/activity`: what was received, with the names of users. So it is served to connections from inside the pod
    /// alone: those of `kubectl port-forward`, for which the API server has authenticated the user and checked
    /// that the user may forward ports.
    pub(crate) fn routes(&self) -> Router {
        let shown = self.shown.clone();
        let handler = async move |ConnectInfo(client): ConnectInfo<SocketAddr>| match shown.get() {
            Some(collector) => show_activity(collector, client),
            None => StatusCode::NOT_FOUND.into_response(),
        };
        Router::new().route("/activity", get(handler))
    }
}

async fn start(args: &RunArgs, config: &NamespacesConfig, cluster: &KubeConfig) -> Result<Option<ActivitySource>> {
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

fn show_activity(collector: &ActivityCollector, client: SocketAddr) -> Response {
    if is_port_forward(client.ip()) {
        return Json(collector.activity_by_namespace()).into_response();
    }
    let advice = "this tells who used what, and is served to connections from inside the pod alone: use caretaker \
                  activity, or kubectl port-forward\n";
    (StatusCode::FORBIDDEN, advice).into_response()
}

/// True for the addresses from which a container runtime connects for a port-forward. Sidecars of service meshes
/// use other loopback addresses for connections from outside.
fn is_port_forward(client: IpAddr) -> bool {
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].contains(&client.to_canonical())
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
    let canary_client = move |agent: &str, target: CanaryTarget| {
        let mut config = cluster_of_canaries.clone();
        config.connect_timeout = Some(CANARY_CONNECT_TIMEOUT);
        if let CanaryTarget::ApiServer(address) = target {
            // All API servers of a cluster have certificates for the name under which clients know the cluster, and
            // not all for their own address.
            let host = config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned());
            config.tls_server_name = config.tls_server_name.or(host);
            config.cluster_url = format!("https://{address}/").parse().map_err(|e| format!("{address}: {e}"))?;
        }
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
        max_skew: config.max_clock_skew,
        write_interval: config.write_interval,
        resumes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::a_port_forward("127.0.0.1:40000", StatusCode::OK)]
    #[case::a_port_forward_over_ipv6("[::1]:40000", StatusCode::OK)]
    #[case::a_port_forward_to_a_listener_of_both("[::ffff:127.0.0.1]:40000", StatusCode::OK)]
    #[case::another_pod("10.244.1.7:40000", StatusCode::FORBIDDEN)]
    #[case::the_proxy_of_the_api_server("172.18.0.2:40000", StatusCode::FORBIDDEN)]
    #[case::another_pod_through_a_sidecar("127.0.0.6:40000", StatusCode::FORBIDDEN)]
    fn activity_is_shown_to_connections_from_inside_the_pod_alone(#[case] client: &str, #[case] status: StatusCode) {
        let collector = collector(&ActivityConfig::default());

        assert_eq!(show_activity(&collector, client.parse().unwrap()).status(), status);
    }
}
