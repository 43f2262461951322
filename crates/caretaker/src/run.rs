//! `caretaker run`: the operator.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use caretaker_activity::ear::Ear;
use caretaker_addresses::Addresses;
use caretaker_addresses::counts::Counts;
use caretaker_addresses::subject::World as AddressesWorld;
use caretaker_core::Keeper as _;
use caretaker_engine::beside::Beside;
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::{self, Health};
use caretaker_engine::journal::Journal;
use caretaker_engine::lease::{Candidate, Timing};
use caretaker_engine::metrics::Metrics;
use caretaker_engine::run::{Settings, run};
use caretaker_engine::state::{self, State};
use caretaker_engine::{Backup, Engine, client};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::run::{Source, Uses};
use caretaker_namespaces::subject::World as NamespacesWorld;
use futures::FutureExt;
use futures::future::try_join_all;
use kube::{Client, Config as Cluster};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::Run;
use crate::config::{Config, Sources};
use crate::keepers::{self, ALL, Console};
use crate::output::Answer;
use crate::{listen, live};

/// How long Events that are still to be written, and the Lease, may take at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs until it is told to stop.
pub fn answer(args: &Run) -> Result<Answer> {
    let config = args.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?.with_environment()?;
    let asked = keepers::asked(args.keepers.as_deref())?;
    let on: Vec<&str> = match asked {
        Some(asked) => asked.iter().map(|keeper| keeper.name()).collect(),
        None => ALL.iter().filter(|keeper| keeper.is_on(&config, None)).map(|keeper| keeper.name()).collect(),
    };
    if on.is_empty() {
        let all: Vec<&str> = ALL.iter().map(|keeper| keeper.name()).collect();
        bail!(
            "no keeper is enabled: enable one in the settings, or ask for it with --keepers; there are {}",
            all.join(", ")
        );
    }
    log();
    // One thread is enough for what waits for the API server nearly all the time, and a loop that
    // hangs then does not answer for its health either.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(operate(args, &config, &on));
    // What is still open is closed by the end of the process.
    runtime.shutdown_background();
    outcome.map(|()| Answer::default())
}

async fn operate(args: &Run, config: &Config, on: &[&str]) -> Result<()> {
    let namespaces = on.contains(&Namespaces::NAME).then(Health::default);
    let addresses = on.contains(&Addresses::NAME).then(Health::default);
    let mut metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let activity = &config.keepers.namespaces.activity;
    let sources = if namespaces.is_some() {
        activity.sources(&args.audit).map_err(anyhow::Error::msg)?
    } else {
        Sources::default()
    };
    let ear = (!sources.is_empty()).then(|| listen::ear(activity));
    if let Some(ear) = &ear {
        metrics.add(|registry| ear.register(registry));
    }
    let counts = Counts::default();
    if addresses.is_some() {
        metrics.add_by_full_name(|registry| counts.register(registry));
    }
    let metrics = Arc::new(metrics);
    let journal = match &args.journal {
        Some(path) => Journal::file(path.clone()).with_context(|| format!("--journal {}", path.display()))?,
        None => Journal::new(std::io::stdout()),
    };
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: is another program there?", args.listen))?;
    tracing::info!("answering on {}", listener.local_addr()?);
    let more = ear.as_ref().map(listen::routes).unwrap_or_default();
    let of = |name, health: &Option<Health>| health.clone().map(|health| (name, health));
    let healths = [of(Namespaces::NAME, &namespaces), of(Addresses::NAME, &addresses)].into_iter().flatten().collect();
    let serving = tokio::spawn(health::serve(listener, healths, metrics.clone(), more));
    let cluster = live::settings(&args.cluster).await?;
    if args.dry_run {
        tracing::info!("dry run: nothing is written");
    }
    let timing = Timing::of(config.lease.unsigned_abs());
    let (clock, identity, dry_run) = (Clock::new(crate::now), identity(), args.dry_run);
    let house = House { cluster, clock, journal, metrics, identity, timing, dry_run };
    let stop = told_to_stop()?.boxed_local().shared();
    let mut keepers = Vec::new();
    if let Some(health) = namespaces {
        let source = hear_of_uses(args, config, sources, ear, &house.cluster).await?;
        let world = NamespacesWorld { policy: config.keepers.namespaces.policy(), last_gap: None };
        let beside = |engine: &Arc<Engine>| Uses::new(source, engine);
        keepers.push(house.keep::<Namespaces, _>(world, config, health, beside, stop.clone()).boxed_local());
    }
    if let Some(health) = addresses {
        let world = AddressesWorld { policy: config.keepers.addresses.policy(), leads: true };
        keepers.push(house.keep::<Addresses, _>(world, config, health, |_| counts, stop.clone()).boxed_local());
    }
    try_join_all(keepers).await?;
    serving.abort();
    Ok(())
}

/// Begins to listen for uses of namespaces, if anybody tells of them.
async fn hear_of_uses(
    args: &Run,
    config: &Config,
    sources: Sources,
    ear: Option<Ear>,
    cluster: &Cluster,
) -> Result<Option<Source>> {
    let keeper = &config.keepers.namespaces;
    let Some(ear) = ear else {
        tracing::info!("activity is what the annotation activity-status says: somebody else writes it");
        if keeper.fallback.is_some() {
            tracing::warn!(
                "the fallback is on, but nobody here hears of activity: where nobody writes activity-status, everything looks idle"
            );
        }
        return Ok(None);
    };
    let record = (!args.dry_run).then(|| keeper.activity.record.unsigned_abs());
    let resumes = sources.listen.is_none();
    listen::begin(sources, &ear, record).await?;
    Ok(Some(listen::source(cluster, ear, &keeper.activity, resumes)?))
}

/// What all keepers of a process share.
struct House {
    cluster: Cluster,
    clock: Clock,
    journal: Journal,
    metrics: Arc<Metrics>,
    identity: String,
    timing: Timing,
    dry_run: bool,
}

impl House {
    /// Has a keeper campaign and work until `stop` rings; then it hands its lead back.
    async fn keep<K: Console, B: Beside<K>>(
        &self,
        world: K::World,
        config: &Config,
        health: Health,
        beside: impl FnOnce(&Arc<Engine>) -> B,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let Self { cluster, clock, journal, metrics, identity, timing, dry_run } = self;
        let common = K::common(config);
        let (limits, concurrency, calls) =
            (keepers::limits::<K>(config), common.concurrency, common.calls_per_second.0);
        let settings = Settings { world, limits, concurrency };
        let reader = client::reader(cluster.clone())?;
        let writer = |lead, calls| client::writer(cluster.clone(), lead, timing.call(), calls);
        let state = |writer: &Client| State::new(writer.clone(), K::NAME, K::MANAGER);
        let (hand_back, handed_back) = oneshot::channel::<()>();
        let (mut lead, mut events, mut backup, mut lasts) = (None, Events::none(), None, Vec::new());
        if !dry_run {
            let candidate = Candidate {
                client: writer(None, None)?,
                namespace: state::NAMESPACE.to_owned(),
                name: K::MANAGER.to_owned(),
                identity: identity.clone(),
                timing: *timing,
                clock: clock.clone(),
            };
            let (won, campaign) = candidate.campaign(async {
                // Dropped is as good as rung.
                let _ = handed_back.await;
            });
            let (say, telling) = Events::new(reader.clone(), K::MANAGER, identity, metrics.clone(), health.clone());
            lasts.extend([tokio::spawn(campaign), tokio::spawn(telling)]);
            (lead, events) = (Some(won), say);
            if K::of_a_backup(&settings.world).is_some() {
                let writer = writer(None, calls)?;
                backup = Some(Backup { state: state(&writer), writer });
            }
        }
        let writer = writer(lead.clone(), calls)?;
        let engine = Arc::new(Engine {
            state: state(&writer),
            reader,
            writer,
            lead,
            clock: clock.clone(),
            journal: journal.clone(),
            events,
            metrics: metrics.clone(),
            health,
            dry_run: *dry_run,
            scan: common.scan.unsigned_abs(),
            backup,
        });
        let beside = beside(&engine);
        run(settings, engine, beside, stop).await;
        // Whoever is next begins when nothing of this one is under way any more.
        drop(hand_back);
        for last in lasts {
            let _ = tokio::time::timeout(LAST_WORDS, last).await;
        }
        Ok(())
    }
}

/// Different for every process, and telling people which one it is.
fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .or_else(|_| std::env::var("HOSTNAME"))
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()));
    format!("{}_{:08x}", host.as_deref().unwrap_or("caretaker"), fastrand::u32(..))
}

fn told_to_stop() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("told to stop");
    })
}

/// What happens, for people, on standard error. The journal is for programs.
fn log() {
    // kube tells what the health says already.
    let targets = Targets::new().with_default(LevelFilter::INFO);
    let targets = targets.with_target("kube_runtime", LevelFilter::OFF).with_target("kube_client", LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // A second one in the same process keeps the first's.
    let _ = tracing_subscriber::registry().with(lines).with(targets).try_init();
}
