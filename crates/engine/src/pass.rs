//! One pass over a cluster: observe, judge, admit, act.
//!
//! This is the scan that closes the loop; everything else is only faster. It keeps nothing: all it
//! knows it reads from the cluster, so that any process can make the next pass.

use caretaker_core::Timestamp;
use caretaker_core::limits::{Limits, Ledger, OpenBreaker};
use futures::StreamExt;
use kube::Client;

use crate::keep::{Ended, Keep, Unlisted, observe};
use crate::round::{Round, Rounds};

/// What a pass works with.
#[derive(Debug, Clone)]
pub struct Pass<K: Keep> {
    /// What subjects are judged in.
    pub world: K::World,
    /// What holds acts back.
    pub limits: Limits,
    /// How many sites at a time; zero is as good as one.
    pub concurrency: usize,
}

impl<K: Keep> Default for Pass<K> {
    fn default() -> Self {
        Self { world: K::World::default(), limits: Limits::default(), concurrency: 1 }
    }
}

/// What a pass did.
#[derive(Debug)]
pub struct Passed<K: Keep> {
    /// Its acts, in the order in which they ended.
    pub done: Vec<Ended<K>>,
    /// Why the breaker opened, if it did.
    pub opened: Option<OpenBreaker>,
}

impl<K: Keep> Pass<K> {
    /// Makes one pass over those subjects that are `ours`.
    pub async fn make(
        &self,
        client: &Client,
        ledger: &mut Ledger,
        now: Timestamp,
        ours: impl Fn(&K::Subject) -> bool,
    ) -> Result<Passed<K>, Unlisted> {
        let mut rounds = Rounds::<K>::of(observe::<K>(client).await?);
        let Round { mut due, opened, .. } = rounds.round(&self.world, &self.limits, ledger, true, now);
        for batch in &mut due {
            batch.due.retain(|due| ours(&due.subject));
        }
        due.retain(|batch| !batch.due.is_empty());
        let acts = due.into_iter().map(|batch| K::carry_out(client.clone(), batch.due, self.world.clone(), now));
        let mut acts = futures::stream::iter(acts).buffer_unordered(self.concurrency.max(1));
        let mut done = Vec::new();
        while let Some(carried) = acts.next().await {
            done.extend(carried.ended);
        }
        Ok(Passed { done, opened })
    }
}
