//! `plan`, `explain`, `scan`, `simulate` and `breaker`: the same judge in the same world as `run`; nothing is removed.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use caretaker_containers::act::residue;
use caretaker_containers::controller::{AgentSearch, check_identity, scan as scan_containers};
use caretaker_containers::judge::{Rule, is_left_to_agent};
use caretaker_containers::observe::{CONTAINERS, ContainerCache, IDENTITY};
use caretaker_containers::subject::{Container, Subject};
use caretaker_containers::{Containers, Settings};
use caretaker_core::count::{counted, is_or_are};
use caretaker_core::keeper::{groups, population};
use caretaker_core::limits::{Ledger, OpenBreaker, enforce};
use caretaker_core::simulate::{SimulatedEventOf, Simulation};
use caretaker_core::{
    Action as _, Keeper as _, RuleId, RuleSet as _, Timestamp, VerdictKind, VerdictOf, duration, time,
};
use caretaker_engine::clock::Clock;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::sources::Sources;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Cache as _, Change, Controller as _, ObjectId, ReplicaRole, SourceRef, client};
use caretaker_output::explain::Explanation;
use caretaker_output::node_report::KEEPER;
use caretaker_output::plan::{PlanRow, PlanView, show};
use caretaker_output::{Output, json, sanitize_line, table};

use crate::cli::{BreakerArgs, BreakerCommand, ExplainArgs, Format, NodeArgs, PlanArgs, SimulateArgs};

/// Everything that was read.
struct Snapshot {
    keeper: Arc<Containers>,
    feed: CacheFeed<ContainerCache>,
    /// Agents that are not on this node.
    agents: AgentSearch,
    ledger: Ledger,
}

fn block_on<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

impl Snapshot {
    async fn load(args: &NodeArgs) -> Result<Self> {
        let keeper = Arc::new(args.keeper()?);
        let client = client::reader(args.kube_config().await?)?;
        let sources = Sources::of(&*keeper);
        let mut feed = sources.list_all(&client, keeper.list_concurrency()).await?;
        let Settings { node, labels, .. } = keeper.settings();
        let cleaner = keeper.cleaner();
        let source = |id| SourceRef { id, resource: None };
        for change in scan_containers(&*cleaner.containerd, labels, keeper.node_name()).await? {
            feed.update(&source(CONTAINERS), change);
        }
        let state = StateStore::file(args.state_file.clone());
        let clock = Clock::new(crate::now);
        let identity =
            check_identity(&client, node, &cleaner.host, &state, &clock, false).await.map_err(|why| anyhow!(why))?;
        feed.update(&source(IDENTITY), Change::apply(ObjectId::named(node.clone()), identity));
        let mut agents = AgentSearch::default();
        agents.look(&client, &feed.cache.subjects()).await?;
        let ledger = state.read::<Ledger>(keeper.name()).await?.value;
        Ok(Self { keeper, feed, agents, ledger })
    }

    fn verdicts(&self, now: Timestamp) -> Vec<(Subject, VerdictOf<Containers>)> {
        verdicts(&self.keeper, &self.feed, &self.agents, &self.ledger, now)
    }

    /// What a person should know beside the verdicts.
    fn notes(&self, now: Timestamp) -> Vec<String> {
        let waits = |(_, verdict): &(Subject, VerdictOf<Containers>)| {
            matches!(verdict.rule, RuleId::Keeper(rule) if is_left_to_agent(rule))
                && verdict.next.kind() == VerdictKind::Wait
        };
        let left = self.verdicts(now).iter().any(waits).then(|| LEFT_TO_AGENTS.to_owned());
        self.ledger.open.iter().map(describe_breaker).chain(left).collect()
    }

    fn rows(&self, now: Timestamp) -> Vec<PlanRow> {
        rows(&self.keeper, &self.feed, &self.agents, &self.ledger, now)
    }
}

/// This command has seen each state for the first time.
const LEFT_TO_AGENTS: &str = "the shutdown grace is counted here from now on; the keeper that runs may have seen it begin \
                              earlier, and caretaker plan shows when that one acts";

/// Every container, with its agent wherever that is.
fn subjects(feed: &CacheFeed<ContainerCache>, agents: &AgentSearch) -> Vec<Subject> {
    let mut subjects = feed.cache.subjects();
    for subject in &mut subjects {
        agents.complete(subject);
    }
    subjects
}

/// The verdict on each container, after windows on Sandboxes and the breaker.
fn verdicts(
    keeper: &Containers,
    feed: &CacheFeed<ContainerCache>,
    agents: &AgentSearch,
    ledger: &Ledger,
    now: Timestamp,
) -> Vec<(Subject, VerdictOf<Containers>)> {
    let subjects = subjects(feed, agents);
    let world = keeper.world(&feed.cache, ReplicaRole::Leader, now);
    let mut verdicts: Vec<_> = subjects.iter().map(|subject| Rule::judge(subject, &world, now)).collect();
    for (subject, verdict) in subjects.iter().zip(&mut verdicts) {
        feed.windows.hold_back(keeper, subject, verdict, now);
    }
    let (groups, population) = (groups(keeper, &subjects), population(keeper, &subjects));
    enforce(&mut verdicts, &groups, population, &keeper.default_limits(), ledger, now);
    drop(groups);
    subjects.into_iter().zip(verdicts).collect()
}

/// The same as rows of a plan.
pub(crate) fn rows(
    keeper: &Containers,
    feed: &CacheFeed<ContainerCache>,
    agents: &AgentSearch,
    ledger: &Ledger,
    now: Timestamp,
) -> Vec<PlanRow> {
    let world = keeper.world(&feed.cache, ReplicaRole::Leader, now);
    let row = |(subject, verdict)| PlanRow::new(keeper, &subject, verdict, &world, now);
    verdicts(keeper, feed, agents, ledger, now).into_iter().map(row).collect()
}

/// What would happen to each container.
pub fn plan(args: &PlanArgs) -> Result<Output> {
    let now = crate::now();
    let snapshot = block_on(Snapshot::load(&args.node))?;
    let rows = snapshot.rows(now);
    let text = match args.output {
        Format::Json => json(&rows)?,
        Format::Table | Format::Wide => {
            let view = PlanView { wide: args.output == Format::Wide, all: args.all, ..PlanView::default() };
            show(rows, view, now)
        }
    };
    Ok(Output { text, notes: snapshot.notes(now), code: 0 })
}

/// Everything about one container.
pub fn explain(args: &ExplainArgs) -> Result<Output> {
    let now = crate::now();
    let snapshot = block_on(Snapshot::load(&args.node))?;
    let keeper = &*snapshot.keeper;
    let Some((subject, verdict)) = snapshot.verdicts(now).into_iter().find(|(s, _)| s.container.id == args.id) else {
        bail!("containerd has no managed container {:?} on this node; caretaker-node scan lists them", args.id);
    };
    let window = snapshot.feed.windows.on(keeper.subject_ref(&subject).object).map(|window| window.describe(now));
    let world = keeper.world(&snapshot.feed.cache, ReplicaRole::Leader, now);
    let explanation = Explanation::new(keeper, &subject, verdict, &world, now).with_window(window);
    Ok(Output { text: explanation.show(args.rules), notes: snapshot.notes(now), code: 0 })
}

/// What is on the node.
pub fn scan(args: &NodeArgs) -> Result<Output> {
    block_on(async {
        let keeper = args.keeper()?;
        let cleaner = keeper.cleaner();
        let containers = cleaner.containerd.list(&keeper.settings().labels.managed).await?;
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let (of_kubelet, containers): (Vec<_>, Vec<_>) = containers.into_iter().partition(Container::is_of_kubelet);
        let mut rows = Vec::new();
        for container in containers {
            let owner = container.owner(&keeper.settings().labels);
            let created = text(container.created.map(time::format));
            let agent = text(owner.agent_name.or(owner.agent_uid));
            rows.push([container.id, created, agent, text(owner.sandbox_name)]);
        }
        let found = residue::find(&*cleaner.containerd, &cleaner.host, &args.snapshotter).await?;
        let count = rows.len();
        let mut shown = table(["CONTAINER", "CREATED", "AGENT", "SANDBOX"], rows);
        shown.push_str(&format!("\n{count} managed containers, {} traces without a record\n", found.len()));
        shown.extend(of_kubelet.iter().map(|one| format!("  container {} is of the kubelet: never touched\n", one.id)));
        shown.extend(found.iter().map(|one| format!("  {}\n", sanitize_line(&one.to_string()))));
        Ok(Output::text(shown))
    })
}

/// What would be cleaned, and when.
pub fn simulate(args: &SimulateArgs) -> Result<Output> {
    let now = crate::now();
    let snapshot = block_on(Snapshot::load(&args.node))?;
    let notes = snapshot.notes(now);
    let Snapshot { keeper, feed, agents, ledger } = snapshot;
    let world = keeper.world(&feed.cache, ReplicaRole::Leader, now);
    let subjects = subjects(&feed, &agents);
    let window = |(i, subject)| Some((i, feed.windows.on(keeper.subject_ref(subject).object)?.clone()));
    let windows = subjects.iter().enumerate().filter_map(window).collect();
    let limits = keeper.default_limits();
    let mut simulation = Simulation::new(&*keeper, world, subjects.clone(), limits, ledger, now).with_windows(windows);
    let end = time::saturating_add(now, args.length);
    let events = simulation.run(end, &[]);
    let mut text = format!("{} to {} ({})\n\n", time::format(now), time::format(end), duration::format(args.length));
    if events.is_empty() {
        text.push_str(&format!("Nothing happens to any of {}.\n", counted(subjects.len(), "container", "containers")));
        return Ok(Output { text, notes, code: 0 });
    }
    let cleaned = events.iter().filter(|event| event.action.is_some()).count();
    let row = |event: SimulatedEventOf<Containers>| {
        let name = event.subject.and_then(|i| subjects.get(i)).map_or("all containers", |s| &s.container.id);
        let action = event.action.as_ref().map_or("stop", |action| action.name());
        let at = event.at.strftime("%H:%M:%S").to_string();
        [at, action.to_owned(), name.to_owned(), event.rule.name().to_owned(), event.because]
    };
    text.push_str(&table(["AT", "ACTION", "CONTAINER", "RULE", "BECAUSE"], events.into_iter().map(row).collect()));
    text.push_str(&format!(
        "\n{cleaned} of {} {} cleaned.\n",
        counted(subjects.len(), "container", "containers"),
        is_or_are(cleaned)
    ));
    Ok(Output { text, notes, code: 0 })
}

/// Shows the breaker, or closes it.
pub fn breaker(args: &BreakerArgs) -> Result<Output> {
    let text = block_on(async {
        let state = StateStore::file(args.state_file.clone());
        let mut ledger = state.read::<Ledger>(KEEPER).await?;
        let open = ledger.value.open.clone();
        match (&args.command, open) {
            (None, None) => Ok("the breaker is closed\n".to_owned()),
            (None, Some(open)) => Ok(format!("{}\n", describe_breaker(&open))),
            (Some(BreakerCommand::Reset), None) => Ok("the breaker was not open\n".to_owned()),
            (Some(BreakerCommand::Reset), Some(open)) => {
                ledger.value.reset_breaker(crate::now());
                state.write(KEEPER, &mut ledger).await?;
                Ok(format!("the breaker is closed; it was open since {}: {}\n", time::format(open.since), open.because))
            }
        }
    })?;
    Ok(Output::text(text))
}

fn describe_breaker(open: &OpenBreaker) -> String {
    format!(
        "the breaker is open since {}: {}; nothing is cleaned until it is closed with: caretaker-node breaker reset",
        time::format(open.since),
        open.because
    )
}
