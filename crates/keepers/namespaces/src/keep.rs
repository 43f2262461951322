//! One pass over a cluster: observe, judge, admit, act.
//!
//! This is the scan that closes the loop; everything else is only faster. It keeps nothing: all it
//! knows it reads from the cluster, so that any process can make the next pass.

use caretaker_core::admit::{Bounds, Ledger, Opened};
use caretaker_core::{Timestamp, Verdict};
use caretaker_engine::keep::{Index as _, Unlisted, observe};
use futures::StreamExt;
use kube::Client;

use crate::Namespaces;
use crate::act::Action;
use crate::act::carry_out::{Hand, Judged, MANAGER, Undone, carry_out};
use crate::observe::{Manifest, Observation, SOURCES};
use crate::round::{Due, Round, Rounds};
use crate::subject::{Subject, World};

/// Eight writes at a time are what an API server on two cores takes; more only wait there.
pub const CONCURRENCY: usize = 8;

/// What a pass works with.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// What subjects are judged in.
    pub world: World,
    /// What holds acts back.
    pub bounds: Bounds,
    /// How many acts at a time; zero is as good as one.
    pub concurrency: usize,
}

/// One act of a pass.
#[derive(Debug)]
pub struct Done {
    /// What it was done to.
    pub subject: Subject,
    /// The verdict that asked for it.
    pub verdict: Verdict<Action>,
    /// How it went.
    pub outcome: Result<(), Undone>,
}

/// What a pass did.
#[derive(Debug, Default)]
pub struct Pass {
    /// Its acts, in the order in which they ended.
    pub done: Vec<Done>,
    /// Why the breaker opened, if it did.
    pub opened: Option<Opened>,
}

/// Reads all that is in one namespace, and whatever may depend on it from outside; live.
pub async fn observe_home(client: &Client, name: &str) -> Result<Observation, Unlisted> {
    let mut seen = Observation::default();
    let namespaces = &SOURCES[0];
    let unlisted = |path: String| |e| Unlisted { path, source: Box::new(e) };
    let found: Option<Manifest> =
        namespaces.get(client, None, name).await.map_err(unlisted(format!("{}/{name}", namespaces.path(None))))?;
    let Some(found) = found else { return Ok(seen) };
    seen.add(namespaces.kind, &found);
    for source in &SOURCES[1..] {
        let home = source.namespaced.then_some(name);
        let add = |object: Manifest| seen.add(source.kind, &object);
        source.list(client, home, add).await.map_err(unlisted(source.path(home)))?;
    }
    Ok(seen)
}

impl Keep {
    /// Makes one pass over those subjects that are `ours`.
    pub async fn pass(
        &self,
        client: &Client,
        ledger: &mut Ledger,
        now: Timestamp,
        ours: impl Fn(&Subject) -> bool,
    ) -> Result<Pass, Unlisted> {
        let mut rounds = Rounds::of(observe::<Namespaces>(client).await?);
        let Round { due, opened, .. } = rounds.round(&self.world, &self.bounds, ledger, true, now);
        let acts = due.into_iter().filter(|due| ours(&due.subject)).map(|due| async move {
            let Due { subject, verdict, action } = due;
            let judged = Judged { subject: &subject, rule: Some(verdict.rule), action: &action };
            let (outcome, _) = carry_out(Hand { client, manager: MANAGER }, judged, &self.world, now).await;
            Done { subject, verdict, outcome }
        });
        let done = futures::stream::iter(acts).buffer_unordered(self.concurrency.max(1)).collect().await;
        Ok(Pass { done, opened })
    }
}
