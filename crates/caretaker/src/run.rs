//! `caretaker run`: the operator.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use caretaker_core::VerdictKind;
use caretaker_engine::client::CallLimit;
use caretaker_engine::clock::Clock;
use caretaker_engine::controller::{Leadership, Standby};
use caretaker_engine::events::Events;
use caretaker_engine::health::{self, Health, Served};
use caretaker_engine::journal::Journal;
use caretaker_engine::lease::{Candidate, LeaderHandle, Timing};
use caretaker_engine::metrics::Metrics;
use caretaker_engine::permissions::lease_name;
use caretaker_engine::run::{Grace, run_controller};
use caretaker_engine::state::{self, StateStore};
use caretaker_engine::{Context, StandbyContext, client, trace};
use caretaker_telemetry::LogControl;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, Shared, join_all, try_join_all};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Config as KubeConfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::activity_source::Activity;
use crate::cli::RunArgs;
use crate::config::CommonConfig;
use crate::keepers::{self, DynKeeper, KeeperCli};
use crate::live;
use crate::output::Output;
use crate::reload::{Settings, SettingsFile};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long queued Events, and releasing the Lease, may take at the end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// How long what is under way may take before the keepers start again with other settings. Nothing is lost if that is not
/// enough, but it is found and completed only then.
const RELOAD_GRACE: Grace = Grace(Duration::from_secs(30));

/// Resolves when a keeper is asked to stop.
pub(crate) type Shutdown = Shared<LocalBoxFuture<'static, Grace>>;

/// Runs the operator until SIGTERM or SIGINT.
pub fn run(args: &RunArgs) -> Result<Output> {
    let file = SettingsFile::new(args.config.clone());
    let settings = Settings::read(args)?;
    // One thread is enough, because the loops wait for the API server nearly all the time. And if a loop
    // hangs, the health endpoint does not answer either.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let telemetry = caretaker_telemetry::start("caretaker", VERSION, trace::TARGET, args.log.clone());
        let result = operate(args, file, settings, &telemetry.log).await;
        telemetry.stop().await;
        result
    });
    // What is still open is closed by the end of the process.
    runtime.shutdown_background();
    result.map(|()| Output::default())
}

async fn operate(args: &RunArgs, mut file: SettingsFile, mut settings: Settings, log: &LogControl) -> Result<()> {
    let cluster = live::kube_config(&args.cluster).await?;
    if args.create_namespace {
        create_namespace(&cluster).await?;
    }
    let mut activity = Activity::default();
    let mut keepers = start_keepers(args, &settings, &mut activity, &cluster).await?;
    let metrics = Arc::new(Metrics::new(VERSION));
    let journal = live::journal(args.journal.as_ref(), std::io::stdout())?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: is another program using it?", args.listen))?;
    tracing::info!("answering on {}", listener.local_addr()?);
    let served = Served::default();
    let log = log.clone();
    let routes = activity.routes().merge(health::log_level_route(move |change| log.show(change)));
    let serving = tokio::spawn(health::serve(listener, served.clone(), metrics.clone(), routes));
    if args.dry_run {
        tracing::info!("dry run: nothing is written");
    }
    let mut operator = Operator {
        cluster,
        clock: Clock::new(crate::now),
        journal,
        metrics,
        identity: identity(),
        timing: Timing::of(settings.config.lease_duration.unsigned_abs()),
        dry_run: args.dry_run,
        kept: RefCell::default(),
    };
    let shutdown = shutdown_signal()?.boxed_local().shared();
    loop {
        operator.clock = Clock::new(crate::now).in_zone(settings.config.zone());
        operator.metrics.replace(|registry| keepers.iter().for_each(|keeper| keeper.register_metrics(registry)));
        let healths: Vec<Health> = keepers.iter().map(|keeper| operator.health(keeper.name())).collect();
        served.set_keepers(keepers.iter().map(|keeper| keeper.name()).zip(healths.iter().cloned()).collect());
        let (stop, stopped) = oneshot::channel();
        // An error means that the sender is gone, which stops the keepers as well.
        let stopped = stopped.map(|grace| grace.unwrap_or(Grace::SHUTDOWN)).boxed_local().shared();
        let runs = keepers.iter().zip(healths).map(|(keeper, health)| keeper.run(&operator, health, stopped.clone()));
        let mut runs = try_join_all(runs);
        let told = (&*operator.metrics, &served.process);
        let changed = tokio::select! {
            // Keepers end by an error alone.
            ended = &mut runs => return ended.map(drop),
            () = shutdown.clone() => None,
            changed = file.changed(args, &settings, activity.is_started(), told) => Some(changed),
        };
        activity.keep_open(changed.is_some());
        let _ = stop.send(if changed.is_some() { RELOAD_GRACE } else { Grace::SHUTDOWN });
        let Some(changed) = changed else {
            runs.await?;
            break;
        };
        tokio::select! {
            ended = &mut runs => drop(ended?),
            // Told to stop while something is still under way.
            () = shutdown.clone().then(|()| tokio::time::sleep(Grace::SHUTDOWN.0)) => break,
        }
        drop(runs);
        activity.keep_open(false);
        settings = changed;
        operator.stop_others(&settings.selected).await;
        keepers = start_keepers(args, &settings, &mut activity, &operator.cluster).await?;
    }
    operator.stop_others(&[]).await;
    serving.abort();
    Ok(())
}

/// Creates the operator's namespace, unless there is one.
async fn create_namespace(cluster: &KubeConfig) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(Client::try_from(cluster.clone())?);
    let attempt = || format!("creating the namespace {}", state::NAMESPACE);
    if namespaces.get_metadata_opt(state::NAMESPACE).await.with_context(attempt)?.is_some() {
        return Ok(());
    }
    let metadata = ObjectMeta { name: Some(state::NAMESPACE.to_owned()), ..ObjectMeta::default() };
    match namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await {
        Ok(_) => tracing::info!("the namespace {} was created", state::NAMESPACE),
        // Somebody else was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error).with_context(attempt),
    }
    Ok(())
}

/// The keepers of the settings. The first namespaces keeper also starts to receive activity.
async fn start_keepers(
    args: &RunArgs,
    Settings { config, selected }: &Settings,
    activity: &mut Activity,
    cluster: &KubeConfig,
) -> Result<Vec<Box<dyn DynKeeper>>> {
    let received = if selected.contains(&caretaker_namespaces::NAME) {
        activity.start(args, &config.keepers.namespaces, cluster).await?
    } else {
        None
    };
    Ok(keepers::make_keepers(selected, config, received))
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
    /// What outlives a keeper that starts again with other settings, by its name.
    kept: RefCell<BTreeMap<&'static str, Kept>>,
}

impl Operator {
    /// The health of a keeper, which knows nothing yet.
    fn health(&self, keeper: &'static str) -> Health {
        let mut kept = self.kept.borrow_mut();
        let health = &kept.entry(keeper).or_default().health;
        health.clear();
        health.clone()
    }

    /// Gives up the leadership of all keepers but these, and waits for what is still to be written about them.
    async fn stop_others(&self, keepers: &[&str]) {
        let others: Vec<_> = self.kept.borrow_mut().extract_if(.., |name, _| !keepers.contains(name)).collect();
        let stops = others.into_iter().map(async |(name, kept)| {
            self.metrics.running(name, false);
            self.metrics.leader(name, false);
            self.metrics.breaker(name, false);
            for kind in VerdictKind::ALL {
                self.metrics.subjects(name, kind.name(), 0);
            }
            kept.stop().await;
        });
        join_all(stops).await;
    }

    /// Runs a keeper until it is told to stop; its leadership is kept.
    pub(crate) async fn run_keeper<K: KeeperCli>(
        &self,
        keeper: Arc<K>,
        config: &CommonConfig,
        health: Health,
        shutdown: Shutdown,
    ) -> Result<()> {
        let context = self.context(&*keeper, config, health)?;
        run_controller(keeper, Arc::new(context), shutdown).await;
        Ok(())
    }

    /// What the keeper runs with: a Lease and the shared state, or on a node neither. The Lease is kept from before.
    fn context<K: KeeperCli>(&self, keeper: &K, config: &CommonConfig, health: Health) -> Result<Context> {
        let field_manager = lease_name(keeper.name());
        let limit = config.calls_per_second.0.map(CallLimit::new);
        let reader = client::reader_with_clock(self.cluster.clone(), self.clock.clone())?;
        let writer = |leadership, limit, urgent| {
            client::writer(self.cluster.clone(), leadership, self.timing.call(), limit, urgent)
        };
        let mut kept = self.kept.borrow_mut();
        let kept = kept.entry(keeper.name()).or_default();
        let mut standby = None;
        if !self.dry_run && kept.events.is_none() {
            let (metrics, health) = (self.metrics.clone(), health.clone());
            let (queue, writing) = Events::new(reader.clone(), &field_manager, &self.identity, metrics, health);
            kept.tasks.push(tokio::spawn(writing));
            kept.events = Some(queue);
        }
        if let (Leadership::Lease { standby: role }, false) = (keeper.leadership(), self.dry_run) {
            if kept.leadership.is_none() {
                let candidate = Candidate {
                    client: writer(None, None, true)?,
                    namespace: state::NAMESPACE.to_owned(),
                    name: field_manager.clone(),
                    identity: self.identity.clone(),
                    timing: self.timing,
                    clock: self.clock.clone(),
                };
                kept.campaign(candidate);
            }
            if role == Standby::ActsAtResync {
                let writer = writer(None, limit.as_ref(), true)?;
                standby =
                    Some(StandbyContext { state: StateStore::config_map(writer.clone(), &*field_manager), writer });
            }
        }
        let leadership = kept.leadership.as_ref().map(|leadership| leadership.kept(self.clock.now()));
        let events = kept.events.clone().unwrap_or_else(Events::disabled);
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
        Ok(context)
    }
}

/// What runs next to a keeper, and is kept when it starts again: its campaign for the Lease, and the writer of its Events.
#[derive(Default)]
struct Kept {
    health: Health,
    leadership: Option<LeaderHandle>,
    events: Option<Events>,
    tasks: Vec<JoinHandle<()>>,
    /// Dropped to release the Lease.
    release: Option<oneshot::Sender<()>>,
}

impl Kept {
    fn campaign(&mut self, candidate: Candidate) {
        let (release, released) = oneshot::channel::<()>();
        let (handle, campaign) = candidate.campaign(async {
            // An error means that the sender is gone, which ends the campaign as well.
            let _ = released.await;
        });
        self.tasks.insert(0, tokio::spawn(campaign));
        (self.leadership, self.release) = (Some(handle), Some(release));
    }

    /// Releases the Lease, and waits for what is still to be written. Called after the last write, so that
    /// the next leader starts when nothing of this one is running.
    async fn stop(self) {
        drop((self.release, self.events));
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
