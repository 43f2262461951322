//! `caretaker run`: the operator.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use caretaker_engine::client::CallLimit;
use caretaker_engine::clock::Clock;
use caretaker_engine::controller::{Leadership, Standby};
use caretaker_engine::events::Events;
use caretaker_engine::health::{self, Health};
use caretaker_engine::journal::Journal;
use caretaker_engine::lease::{Candidate, Timing};
use caretaker_engine::metrics::Metrics;
use caretaker_engine::permissions::lease_name;
use caretaker_engine::run::run_controller;
use caretaker_engine::state::{self, StateStore};
use caretaker_engine::{Context, StandbyContext, client, trace};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, Shared, try_join_all};
use kube::Config as KubeConfig;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::cli::RunArgs;
use crate::config::{CommonConfig, Config};
use crate::keepers::{self, KeeperCli, StartedKeepers};
use crate::live;
use crate::output::Output;

/// How long queued Events, and releasing the Lease, may take at the end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Resolves when the process is asked to stop.
pub(crate) type Shutdown = Shared<LocalBoxFuture<'static, ()>>;

/// Runs the operator until SIGTERM or SIGINT.
pub fn run(args: &RunArgs) -> Result<Output> {
    let config = args.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?.with_environment()?;
    let selected = keepers::keepers_to_run(args, &config)?;
    // One thread is enough, because the loops wait for the API server nearly all the time. And if a loop
    // hangs, the health endpoint does not answer either.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let telemetry = caretaker_telemetry::start("caretaker", env!("CARGO_PKG_VERSION"), trace::TARGET);
        let result = operate(args, &config, &selected).await;
        telemetry.stop().await;
        result
    });
    // What is still open is closed by the end of the process.
    runtime.shutdown_background();
    result.map(|()| Output::default())
}

async fn operate(args: &RunArgs, config: &Config, selected: &[&str]) -> Result<()> {
    let cluster = live::kube_config(&args.cluster).await?;
    let StartedKeepers { keepers, routes } = keepers::start_keepers(selected, args, config, &cluster).await?;
    let mut metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    for keeper in &keepers {
        keeper.register_metrics(&mut metrics);
    }
    let metrics = Arc::new(metrics);
    let journal = match &args.journal {
        Some(path) => Journal::file(path.clone()).with_context(|| format!("--journal {}", path.display()))?,
        None => Journal::new(std::io::stdout()),
    };
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: is another program using it?", args.listen))?;
    tracing::info!("answering on {}", listener.local_addr()?);
    let healths: Vec<Health> = keepers.iter().map(|_| Health::default()).collect();
    let served = keepers.iter().map(|keeper| keeper.name()).zip(healths.iter().cloned()).collect();
    let serving = tokio::spawn(health::serve(listener, served, metrics.clone(), routes));
    if args.dry_run {
        tracing::info!("dry run: nothing is written");
    }
    let operator = Operator {
        cluster,
        clock: Clock::new(crate::now).in_zone(config.zone()),
        journal,
        metrics,
        identity: identity(),
        timing: Timing::of(config.lease_duration.unsigned_abs()),
        dry_run: args.dry_run,
    };
    let shutdown = shutdown_signal()?.boxed_local().shared();
    let runs = keepers.iter().zip(healths).map(|(keeper, health)| keeper.run(&operator, health, shutdown.clone()));
    try_join_all(runs).await?;
    serving.abort();
    Ok(())
}

/// What all keepers of a process share.
pub struct Operator {
    cluster: KubeConfig,
    clock: Clock,
    journal: Journal,
    metrics: Arc<Metrics>,
    /// Different for every process.
    identity: String,
    timing: Timing,
    dry_run: bool,
}

impl Operator {
    /// Runs a keeper until shutdown, then gives up its leadership.
    pub(crate) async fn run_keeper<K: KeeperCli>(
        &self,
        keeper: Arc<K>,
        config: &CommonConfig,
        health: Health,
        shutdown: Shutdown,
    ) -> Result<()> {
        let (context, background) = self.context(&*keeper, config, health)?;
        run_controller(keeper, Arc::new(context), shutdown).await;
        background.stop().await;
        Ok(())
    }

    /// What the keeper runs with: a Lease and the shared state, or on a node neither.
    fn context<K: KeeperCli>(
        &self,
        keeper: &K,
        config: &CommonConfig,
        health: Health,
    ) -> Result<(Context, Background)> {
        let field_manager = lease_name(keeper.name());
        let limit = config.calls_per_second.0.map(CallLimit::new);
        let reader = client::reader(self.cluster.clone())?;
        let writer = |leadership, limit, urgent| {
            client::writer(self.cluster.clone(), leadership, self.timing.call(), limit, urgent)
        };
        let (mut leadership, mut events, mut standby) = (None, Events::disabled(), None);
        let mut background = Background::default();
        if !self.dry_run {
            let (metrics, health) = (self.metrics.clone(), health.clone());
            let (queue, writing) = Events::new(reader.clone(), &field_manager, &self.identity, metrics, health);
            background.tasks.push(tokio::spawn(writing));
            events = queue;
        }
        if let (Leadership::Lease { standby: role }, false) = (keeper.leadership(), self.dry_run) {
            let candidate = Candidate {
                client: writer(None, None, true)?,
                namespace: state::NAMESPACE.to_owned(),
                name: field_manager.clone(),
                identity: self.identity.clone(),
                timing: self.timing,
                clock: self.clock.clone(),
            };
            let (release, released) = oneshot::channel::<()>();
            let (handle, campaign) = candidate.campaign(async {
                // An error means that the sender is gone, which ends the campaign as well.
                let _ = released.await;
            });
            background.tasks.insert(0, tokio::spawn(campaign));
            background.release = Some(release);
            leadership = Some(handle);
            if role == Standby::ActsAtResync {
                let writer = writer(None, limit.as_ref(), true)?;
                standby =
                    Some(StandbyContext { state: StateStore::config_map(writer.clone(), &*field_manager), writer });
            }
        }
        let urgent_writer = writer(leadership.clone(), limit.as_ref(), true)?;
        let writer = writer(leadership.clone(), limit.as_ref(), false)?;
        let state = match keeper.leadership() {
            Leadership::Lease { .. } => StateStore::config_map(urgent_writer.clone(), &*field_manager),
            Leadership::PerNode { state_file, .. } => StateStore::file(state_file),
        };
        let context = Context {
            reader,
            writer,
            urgent_writer,
            leadership,
            state,
            standby,
            clock: self.clock.clone(),
            journal: self.journal.clone(),
            events,
            metrics: self.metrics.clone(),
            health,
            limits: config.limits(keeper.default_limits()),
            concurrency: config.concurrency,
            dry_run: self.dry_run,
            resync_interval: config.resync_interval.unsigned_abs(),
            field_manager,
        };
        Ok((context, background))
    }
}

/// What runs next to a keeper: its campaign for the Lease, and the writer of its Events.
#[derive(Default)]
struct Background {
    tasks: Vec<JoinHandle<()>>,
    /// Dropped to release the Lease.
    release: Option<oneshot::Sender<()>>,
}

impl Background {
    /// Releases the Lease, and waits for what is still to be written. Called after the last write, so that
    /// the next leader starts when nothing of this one is running.
    async fn stop(self) {
        drop(self.release);
        for task in self.tasks {
            let _ = tokio::time::timeout(SHUTDOWN_GRACE, task).await;
        }
    }
}

/// Different for every process, and readable for people.
fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .or_else(|_| std::env::var("HOSTNAME"))
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()));
    format!("{}_{:08x}", host.as_deref().unwrap_or("caretaker"), fastrand::u32(..))
}

/// Resolves at the first SIGTERM or SIGINT.
fn shutdown_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    })
}
