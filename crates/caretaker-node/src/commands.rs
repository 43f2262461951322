//! `plan`, `explain`, `scan`, `simulate` and `breaker`: the same judge in the same world as `run`; nothing is removed.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use caretaker_containers::act::residue;
use caretaker_containers::controller::{check_identity, scan as scan_containers};
use caretaker_containers::judge::Rule;
use caretaker_containers::observe::{CONTAINERS, ContainerCache, ELSEWHERE, IDENTITY, Row, pod};
use caretaker_containers::subject::{Agent, Subject};
use caretaker_containers::{Containers, Settings};
use caretaker_core::keeper::{groups, population};
use caretaker_core::limits::{Ledger, enforce};
use caretaker_core::simulate::Simulation;
use caretaker_core::{Action as _, Keeper as _, RuleSet as _, Timestamp, VerdictOf, time};
use caretaker_engine::clock::Clock;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::sources::Sources;
use caretaker_engine::state::StateStore;
use caretaker_engine::{Cache as _, Change, Controller as _, ObjectId, ReplicaRole, SourceRef, client};
use serde_json::json;

use crate::cli::{BreakerArgs, BreakerCommand, ExplainArgs, Format, NodeArgs, PlanArgs, SimulateArgs};

/// Everything that was read.
struct Snapshot {
    keeper: Arc<Containers>,
    feed: CacheFeed<ContainerCache>,
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
        let doubt =
            check_identity(&client, node, &cleaner.host, &state, &clock, false).await.map_err(|why| anyhow!(why))?;
        feed.update(&source(IDENTITY), Change::apply(ObjectId::named(node.clone()), Row::Doubt(doubt)));
        // A pod that is not on this node is looked for once, wherever it is.
        let mut asked = std::collections::BTreeSet::new();
        for subject in feed.cache.subjects() {
            let (Agent::Gone, Some(namespace), Some(name)) =
                (&subject.agent, &subject.owner.namespace, &subject.owner.agent_name)
            else {
                continue;
            };
            if !asked.insert((namespace.clone(), name.clone())) {
                continue;
            }
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            let request = http_get(&path)?;
            match client.request(request).await {
                Ok(found) => {
                    let id = ObjectId { namespace: Some(namespace.clone()), ..ObjectId::named(name.clone()) };
                    feed.update(&source(ELSEWHERE), Change::apply(id, Row::Pod(pod(found))));
                }
                Err(kube::Error::Api(status)) if caretaker_engine::projection::is_not_found(&status, name) => {}
                Err(error) => return Err(error).with_context(|| format!("reading pod {namespace}/{name}")),
            }
        }
        let ledger = state.read::<Ledger>(keeper.name()).await?.value;
        Ok(Self { keeper, feed, ledger })
    }

    fn verdicts(&self, now: Timestamp) -> Vec<(Subject, VerdictOf<Containers>)> {
        let (keeper, subjects) = (&*self.keeper, self.feed.cache.subjects());
        let world = keeper.world(&self.feed.cache, ReplicaRole::Leader, now);
        let mut verdicts: Vec<_> = subjects.iter().map(|subject| Rule::judge(subject, &world, now)).collect();
        for (subject, verdict) in subjects.iter().zip(&mut verdicts) {
            self.feed.windows.hold_back(keeper, subject, verdict, now);
        }
        let (groups, population) = (groups(keeper, &subjects), population(keeper, &subjects));
        enforce(&mut verdicts, &groups, population, &keeper.default_limits(), &self.ledger, now);
        drop(groups);
        subjects.into_iter().zip(verdicts).collect()
    }
}

fn http_get(path: &str) -> Result<axum::http::Request<Vec<u8>>> {
    Ok(axum::http::Request::get(path).body(Vec::new())?)
}

fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// What would happen to each container.
pub fn plan(args: &PlanArgs) -> Result<String> {
    let now = crate::now();
    let snapshot = block_on(Snapshot::load(&args.node))?;
    let verdicts = snapshot.verdicts(now);
    if args.output == Format::Json {
        let rows: Vec<_> = verdicts
            .iter()
            .map(|(subject, verdict)| {
                json!({
                    "keeper": snapshot.keeper.name(), "kind": "Container", "namespace": null,
                    "name": subject.container.id, "rule": verdict.rule.name(), "because": verdict.because,
                    "next": verdict.next.name(), "action": verdict.next.action().map(caretaker_core::Action::name),
                    "at": verdict.next.deadline(),
                })
            })
            .collect();
        return Ok(serde_json::to_string_pretty(&rows)? + "\n");
    }
    let mut rows = vec![["CONTAINER", "NEXT", "AT", "RULE", "BECAUSE"].map(str::to_owned).to_vec()];
    rows.extend(verdicts.iter().map(|(subject, verdict)| {
        let next = match verdict.next.action() {
            Some(action) if verdict.next.pending_action().is_some() => action.name().to_owned(),
            Some(action) => format!("{}, {}", verdict.next.name(), action.name()),
            None => verdict.next.name().replace("none", "-"),
        };
        let at = verdict.next.deadline().map_or_else(|| "-".to_owned(), time::format);
        vec![subject.container.id.clone(), next, at, verdict.rule.name().to_owned(), verdict.because.clone()]
    }));
    Ok(columns(&rows))
}

/// Everything about one container.
pub fn explain(args: &ExplainArgs) -> Result<String> {
    let now = crate::now();
    let snapshot = block_on(Snapshot::load(&args.node))?;
    let keeper = &*snapshot.keeper;
    let Some((subject, verdict)) = snapshot.verdicts(now).into_iter().find(|(s, _)| s.container.id == args.id) else {
        bail!("containerd has no managed container {:?} on this node", args.id);
    };
    let world = keeper.world(&snapshot.feed.cache, ReplicaRole::Leader, now);
    let mut text = format!("Container {} at {}\n\nFacts\n", args.id, time::format(now));
    let facts = subject.facts(now).into_iter().map(|(name, value)| vec![format!("  {name}"), value]);
    text.push_str(&columns(&facts.collect::<Vec<_>>()));
    text.push_str("\nRules\n");
    let mut rows = Vec::new();
    for rule in Rule::ALL {
        let found = rule.check(&subject, &world, now);
        let answer = if found.is_some() { "YES" } else { "no" };
        rows.push(vec![format!("  {answer}"), rule.name().to_owned(), rule.doc().to_owned()]);
        if let Some(found) = found {
            rows.push(vec![String::new(), String::new(), found.because]);
            break;
        }
    }
    text.push_str(&columns(&rows));
    text.push_str(&format!("\nVerdict\n  {}: {}, {}\n", verdict.rule.name(), verdict.next.name(), verdict.because));
    if let Some(action) = verdict.next.action() {
        for (i, step) in keeper.describe_steps(&subject, action, &world, now).iter().enumerate() {
            text.push_str(&format!("    {}. {step}\n", i + 1));
        }
    }
    Ok(text)
}

/// What is on the node.
pub fn scan(args: &NodeArgs) -> Result<String> {
    block_on(async {
        let keeper = args.keeper()?;
        let cleaner = keeper.cleaner();
        let containers = cleaner.containerd.list(&keeper.settings().labels.managed).await?;
        let mut rows = vec![["CONTAINER", "CREATED", "AGENT", "SANDBOX"].map(str::to_owned).to_vec()];
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        for container in containers {
            let owner = container.owner(&keeper.settings().labels);
            let created = text(container.created.map(time::format));
            rows.push(vec![
                container.id,
                created,
                text(owner.agent_name.or(owner.agent_uid)),
                text(owner.sandbox_name),
            ]);
        }
        let found = residue::find(&*cleaner.containerd, &cleaner.host, &args.snapshotter).await?;
        let mut shown = columns(&rows);
        shown.extend(found.iter().map(|one| format!("residue: {one}\n")));
        Ok(shown)
    })
}

/// What would be cleaned, and when.
pub fn simulate(args: &SimulateArgs) -> Result<String> {
    let now = crate::now();
    let Snapshot { keeper, feed, ledger } = block_on(Snapshot::load(&args.node))?;
    let world = keeper.world(&feed.cache, ReplicaRole::Leader, now);
    let subjects = feed.cache.subjects();
    let windows = subjects
        .iter()
        .enumerate()
        .filter_map(|(i, subject)| Some((i, feed.windows.on(keeper.subject_ref(subject).object)?.clone())));
    let windows = windows.collect();
    let limits = keeper.default_limits();
    let mut simulation = Simulation::new(&*keeper, world, subjects.clone(), limits, ledger, now).with_windows(windows);
    let events = simulation.run(time::saturating_add(now, args.length), &[]);
    let mut rows = vec![["AT", "CONTAINER", "ACTION", "RULE", "BECAUSE"].map(str::to_owned).to_vec()];
    rows.extend(events.into_iter().map(|event| {
        let name = event.subject.and_then(|i| subjects.get(i)).map_or("-", |subject| &subject.container.id);
        let action = event.action.as_ref().map_or("-", |action| action.name());
        vec![time::format(event.at), name.to_owned(), action.to_owned(), event.rule.name().to_owned(), event.because]
    }));
    Ok(columns(&rows))
}

/// Shows the breaker, or closes it.
pub fn breaker(args: &BreakerArgs) -> Result<String> {
    block_on(async {
        let state = StateStore::file(args.state_file.clone());
        let mut ledger = state.read::<Ledger>("containers").await?;
        let open = ledger.value.open.clone();
        match (&args.command, open) {
            (None, None) => Ok("the breaker is closed\n".to_owned()),
            (None, Some(open)) => {
                Ok(format!("the breaker is open since {}: {}\n", time::format(open.since), open.because))
            }
            (Some(BreakerCommand::Reset), None) => Ok("the breaker was not open\n".to_owned()),
            (Some(BreakerCommand::Reset), Some(open)) => {
                ledger.value.reset_breaker(crate::now());
                state.write("containers", &mut ledger).await?;
                Ok(format!("the breaker is closed; it was open since {}: {}\n", time::format(open.since), open.because))
            }
        }
    })
}
