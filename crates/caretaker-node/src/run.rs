//! `caretaker-node run`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use caretaker_containers::Containers;
use caretaker_containers::act::residue::{self, Removal, Sightings};
use caretaker_core::Keeper as _;
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::health::{self, Health};
use caretaker_engine::journal::Journal;
use caretaker_engine::metrics::Metrics;
use caretaker_engine::permissions::lease_name;
use caretaker_engine::run::run_controller;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Context, Controller as _, client, trace};
use caretaker_telemetry::LogControl;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{ResidueMode, RunArgs};
use crate::report;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long a call to the API server may take.
const CALL: Duration = Duration::from_secs(10);
/// How often everything is judged again, and lists are compared with what the watches delivered.
const RESYNC: Duration = Duration::from_mins(10);
/// How long queued Events may take at the end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Runs the keeper until SIGTERM or SIGINT.
pub fn run(args: &RunArgs) -> Result<()> {
    // One thread is enough: the keeper waits for containerd nearly all the time.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let telemetry = caretaker_telemetry::start("caretaker-node", VERSION, trace::TARGET, args.log.clone());
        let result = operate(args, &telemetry.log).await;
        telemetry.stop().await;
        result
    });
    runtime.shutdown_background();
    result
}

async fn operate(args: &RunArgs, log: &LogControl) -> Result<()> {
    let keeper = Arc::new(args.node.keeper()?);
    let state_file = &args.node.state_file;
    if let Some(folder) = state_file.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("--state-file {}", state_file.display()))?;
    }
    let cluster = args.node.kube_config().await?;
    let mut metrics = Metrics::new(VERSION);
    metrics.register(|registry| keeper.register_metrics(registry));
    let metrics = Arc::new(metrics);
    let journal = match &args.journal {
        Some(path) => Journal::file(path.clone()).with_context(|| format!("--journal {}", path.display()))?,
        None => Journal::new(std::io::stdout()),
    };
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: is another program using it?", args.listen))?;
    tracing::info!("answering on {}", listener.local_addr()?);
    let health = Health::default();
    let log = log.clone();
    let serving = tokio::spawn(health::serve(
        listener,
        vec![(keeper.name(), health.clone())],
        metrics.clone(),
        health::log_level_route(move |change| log.show(change)),
    ));
    let reader = client::reader(cluster.clone())?;
    let writer = client::writer(cluster.clone(), None, CALL, None, false)?;
    let field_manager = lease_name(keeper.name());
    let (events, writing) = if args.dry_run {
        tracing::info!("dry run: nothing is written");
        (Events::disabled(), None)
    } else {
        let (events, writing) =
            Events::new(reader.clone(), &field_manager, &args.node.node, metrics.clone(), health.clone());
        (events, Some(tokio::spawn(writing)))
    };
    let report = report::run(args, keeper.clone(), writer.clone(), health.clone());
    let context = Context {
        reader,
        urgent_writer: writer.clone(),
        writer,
        leadership: None,
        state: StateStore::file(state_file.clone()),
        standby: None,
        clock: Clock::new(crate::now),
        journal,
        events,
        metrics,
        health,
        limits: keeper.default_limits(),
        concurrency: args.node.parallel.max(1),
        dry_run: args.dry_run,
        resync_interval: RESYNC,
        field_manager,
    };
    let residue = watch_residue(&keeper, &args.node.snapshotter, args.residue, args.dry_run);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    };
    tokio::select! {
        () = run_controller(keeper.clone(), Arc::new(context), stop) => {}
        () = residue => {}
        () = report => {}
    }
    if let Some(writing) = writing {
        let _ = tokio::time::timeout(SHUTDOWN_GRACE, writing).await;
    }
    serving.abort();
    Ok(())
}

/// Looks for residue each interval, reports it, and removes what was seen twice if that is asked for. Never returns.
async fn watch_residue(keeper: &Containers, snapshotter: &str, mode: ResidueMode, dry_run: bool) {
    let mut sightings = Sightings::default();
    let cleaner = keeper.cleaner();
    loop {
        tokio::time::sleep(keeper.settings().interval).await;
        // containerd that does not answer is reported by the keeper itself.
        let Ok(found) = residue::find(&*cleaner.containerd, &cleaner.host, snapshotter).await else { continue };
        let twice = sightings.twice(found);
        keeper.report_residue(twice.len());
        for one in twice {
            tracing::warn!("{one}: containerd has no record of it");
            if mode == ResidueMode::Report || dry_run {
                continue;
            }
            match residue::remove(&*cleaner.containerd, &cleaner.host, &one).await {
                Ok(Removal::Removed) => tracing::info!("{one}: removed"),
                Ok(Removal::Kept(why)) => tracing::warn!("{one}: kept: {why}"),
                Err(why) => tracing::warn!("{one}: not removed: {why}"),
            }
        }
    }
}
