//! The containers of this node, as a source: a scan of everything, then containerd's events; a scan again every
//! interval, and after every gap.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use caretaker_engine::{Change, ObjectId, SourceContext};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc::{self, Sender};
use tokio::time::Instant;

use crate::api::LabelKeys;
use crate::containerd::{Answer, Containerd};
use crate::metrics::ContainerMetrics;
use crate::observe::{ContainerCache, Row};
use crate::subject::{AgentPod, Container, NodeRef};

/// Pause after a failure; twice as long each time, up to the last.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// When the scan after the first one is made: by then containerd delivers events.
const FIRST_RESCAN: Duration = Duration::from_secs(2);
/// Events that came meanwhile are answered together.
const EVENTS_AT_ONCE: usize = 256;
/// Changes on their way into the cache.
const QUEUE: usize = 1_024;

/// What it takes to follow containerd.
#[derive(Clone)]
pub(crate) struct Follower {
    pub(crate) containerd: Arc<dyn Containerd>,
    pub(crate) labels: Arc<LabelKeys>,
    pub(crate) node: Arc<NodeRef>,
    pub(crate) interval: Duration,
    pub(crate) metrics: ContainerMetrics,
}

type Changes = Sender<Change<Row>>;

/// A container as a change.
pub(super) fn row(labels: &LabelKeys, node: &Arc<NodeRef>, container: Container) -> Change<Row> {
    let owner = container.owner(labels);
    let id = ObjectId::named(container.id.clone());
    Change::apply(id, Row::Container(Box::new((container, owner, node.clone()))))
}

/// Every managed container as a complete list.
pub async fn scan(containerd: &dyn Containerd, labels: &LabelKeys, node: &Arc<NodeRef>) -> Answer<Vec<Change<Row>>> {
    let all = containerd.list(&labels.managed).await?;
    let rows = all.into_iter().map(|container| row(labels, node, container));
    Ok([Change::Init].into_iter().chain(rows).chain([Change::InitDone]).collect())
}

/// The stream. It ends after shutdown.
pub(super) fn follow(follower: Follower, context: SourceContext<ContainerCache>) -> BoxStream<'static, Change<Row>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(run(follower, context, sender));
    futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver))).boxed()
}

async fn run(follower: Follower, context: SourceContext<ContainerCache>, changes: Changes) {
    let mut shutdown = context.shutdown.clone();
    let work = async {
        let mut pause = RETRY.0;
        loop {
            let began = Instant::now();
            let why = match follower.follow_once(&context, &changes).await {
                Ok(()) => "containerd has ended its stream of events".to_owned(),
                Err(error) => error.to_string(),
            };
            if changes.send(Change::Error(why)).await.is_err() {
                return;
            }
            // What worked for a while is tried again at once.
            pause = if began.elapsed() > RETRY.1 { RETRY.0 } else { (pause * 2).min(RETRY.1) };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = work => {}
        _ = shutdown.wait_for(|stop| *stop) => {}
    }
}

impl Follower {
    /// Scans, and follows the events until the connection breaks.
    async fn follow_once(&self, context: &SourceContext<ContainerCache>, changes: &Changes) -> Answer<()> {
        let mut events = self.containerd.events().ready_chunks(EVENTS_AT_ONCE);
        let mut known = self.scan_into(changes, true, &BTreeSet::new()).await?;
        // What happened before the first event could be delivered is found by a scan soon after.
        let mut tick = tokio::time::interval_at(Instant::now() + FIRST_RESCAN.min(self.interval), self.interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ids = events.next() => {
                    let Some(ids) = ids else { return Ok(()) };
                    for id in ids.into_iter().collect::<BTreeSet<String>>() {
                        self.read_into(&id, changes, &mut known).await?;
                    }
                }
                _ = tick.tick() => {
                    known = self.scan_into(changes, false, &known).await?;
                    self.read_elsewhere(context, changes).await;
                }
            }
        }
    }

    /// Delivers everything. After a gap it is a list of its own; else only what is gone is told beside what is there.
    async fn scan_into(&self, changes: &Changes, gap: bool, known: &BTreeSet<String>) -> Answer<BTreeSet<String>> {
        let began = Instant::now();
        let rows = scan(&*self.containerd, &self.labels, &self.node).await?;
        let mut found = BTreeSet::new();
        for change in rows {
            if let Change::Apply(observed) = &change {
                found.insert(observed.id.name.clone());
            } else if !gap {
                continue;
            }
            let _ = changes.send(change).await;
        }
        for id in known.difference(&found) {
            let _ = changes.send(Change::Delete(ObjectId::named(id.clone()))).await;
        }
        self.metrics.scan_seconds.observe(began.elapsed().as_secs_f64());
        Ok(found)
    }

    async fn read_into(&self, id: &str, changes: &Changes, known: &mut BTreeSet<String>) -> Answer<()> {
        let found = self.containerd.get(id).await?;
        let managed = found.filter(|container| container.owner(&self.labels).managed);
        let change = match managed {
            Some(container) => {
                known.insert(id.to_owned());
                row(&self.labels, &self.node, container)
            }
            None if known.remove(id) => Change::Delete(ObjectId::named(id)),
            None => return Ok(()),
        };
        let _ = changes.send(change).await;
        Ok(())
    }

    /// Agents that were found on another node are read again: no watch tells when they are gone.
    async fn read_elsewhere(&self, context: &SourceContext<ContainerCache>, changes: &Changes) {
        let elsewhere: Vec<AgentPod> = context.cache.read(|feed| feed.cache.elsewhere());
        for pod in elsewhere {
            let pods = kube::Api::<k8s_openapi::api::core::v1::Pod>::namespaced(
                context.context.reader.clone(),
                &pod.namespace,
            );
            // An error says nothing about it.
            let Ok(found) = pods.get_metadata_opt(&pod.name).boxed().await else { continue };
            if found.is_none_or(|found| found.metadata.uid.as_deref() != Some(&pod.uid)) {
                let id = ObjectId { namespace: Some(pod.namespace), ..ObjectId::named(pod.name) };
                let _ = changes.send(Change::apply(id, Row::NotElsewhere)).await;
            }
        }
    }
}
