//! Rounds of the keeper in a corner: whole ones, and their two halves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use caretaker_addresses::Addresses;
use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::AddressCache;
use caretaker_addresses::subject::World;
use caretaker_core::limits::{Ledger, Limits, OpenBreaker};
use caretaker_core::{Keeper as _, RuleSet as _, Timestamp};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::clock::Clock;
use caretaker_engine::events::Events;
use caretaker_engine::feed::CacheFeed;
use caretaker_engine::health::Health;
use caretaker_engine::journal::{Journal, Outcome};
use caretaker_engine::lease::{Candidate, Timing};
use caretaker_engine::metrics::Metrics;
use caretaker_engine::once::run_once;
use caretaker_engine::planner::Planner;
use caretaker_engine::run::confirm_and_apply;
use caretaker_engine::sources::Sources;
use caretaker_engine::state::StateStore;
use caretaker_engine::writer::Writer;
use caretaker_engine::{ActionResult, ApplyError, Batch, Context, Controller as _, PlannedAction, ReplicaRole};
use kube::Client;

use super::Corner;

impl Corner {
    /// The world of this corner's role.
    pub fn world(&self) -> World {
        let role = if self.leads { ReplicaRole::Leader } else { ReplicaRole::Standby };
        self.keeper.world(&AddressCache::default(), role, Timestamp::UNIX_EPOCH)
    }

    /// What one round runs with. A standby is a candidate that never campaigned.
    fn context(&self, client: &Client, clock: Clock) -> Context {
        let candidate = Candidate {
            client: client.clone(),
            namespace: self.name.clone(),
            name: "caretaker-addresses".to_owned(),
            identity: "standby".to_owned(),
            timing: Timing::default(),
            clock: clock.clone(),
        };
        let (standby, _) = candidate.campaign(std::future::pending());
        Context {
            reader: client.clone(),
            writer: client.clone(),
            urgent_writer: client.clone(),
            leadership: (!self.leads).then_some(standby),
            state: StateStore::config_map(client.clone(), "test"),
            standby: None,
            clock,
            journal: Journal::new(std::io::sink()),
            events: Events::disabled(),
            metrics: Arc::new(Metrics::new("test")),
            health: Health::default(),
            limits: self.limits.clone(),
            concurrency: 1,
            dry_run: false,
            resync_interval: Duration::from_mins(10),
            field_manager: "caretaker-addresses".to_owned(),
        }
    }

    /// One round, and how each action of it ended.
    pub async fn collect(&self, now: Timestamp) -> Vec<Result<(), ApplyError>> {
        self.collect_with(&self.client, now).await
    }

    /// The same with another client.
    pub async fn collect_with(&self, client: &Client, now: Timestamp) -> Vec<Result<(), ApplyError>> {
        self.collect_at(client, clock(now)).await
    }

    /// The same by a clock.
    pub async fn collect_at(&self, client: &Client, clock: Clock) -> Vec<Result<(), ApplyError>> {
        self.round(client, clock).await.unwrap().0
    }

    /// One round: how each action of it ended, and why the breaker opened.
    pub async fn round(&self, client: &Client, clock: Clock) -> Result<Round, String> {
        let context = self.context(client, clock);
        let round = run_once(&self.keeper, &context, &mut Ledger::default(), |subject| self.is_ours(subject)).await;
        let round = round.map_err(|error| error.to_string())?;
        Ok((round.results.into_iter().map(|ended| ended.result).collect(), round.opens))
    }

    /// Rounds until nothing is left to do. No action fails; one that is stale, because somebody else was
    /// faster, is judged again.
    pub async fn settle(&self, now: Timestamp) {
        for _ in 0..8 {
            let results = self.collect(now).await;
            assert!(results.iter().all(is_done_or_stale), "{results:?}");
            if results.is_empty() {
                return;
            }
        }
        panic!("{} does not settle", self.name);
    }

    /// The rule and the reason of every address, for messages.
    pub async fn verdicts(&self, now: Timestamp) -> Vec<String> {
        let cache = Sources::of(&*self.keeper).list_all(&self.client, 1).await.unwrap().cache;
        let ours = cache.subjects().into_iter().filter(|subject| self.is_ours(subject));
        let verdict = |subject| {
            let verdict = Rule::judge(&subject, &self.world(), now);
            format!("{}: {}: {}", self.keeper.subject_ref(&subject).name, verdict.rule, verdict.because)
        };
        ours.map(verdict).collect()
    }

    /// What one round would do, before anything is confirmed.
    pub async fn decide(&self, now: Timestamp) -> Decision {
        self.decide_after(None, now).await
    }

    /// The same after an earlier round, which saw what is gone for the first time.
    pub async fn decide_after(&self, first: Option<Timestamp>, now: Timestamp) -> Decision {
        let sources = Sources::of(&*self.keeper);
        let mut feed = sources.list_all(&self.client, 1).await.unwrap();
        let (mut planner, mut ledger) = (Planner::<Addresses>::default(), Ledger::default());
        planner.mark_all_dirty(&feed.cache);
        let world = self.world();
        if let Some(first) = first {
            planner.judge(&self.keeper, &mut feed, &world, &self.limits, &ledger, true, first);
            planner.mark_all_dirty(&feed.cache);
        }
        let (batches, _) = plan(&mut planner, &mut feed, &self.keeper, &world, &self.limits, &mut ledger, now);
        let actions = batches.into_iter().flat_map(|batch| batch.actions);
        let ours = actions.filter(|planned| self.is_ours(&planned.subject)).collect();
        Decision { cache: Arc::new(feed.cache), sources, planned: ours }
    }

    /// Confirms and applies actions on one write target, with a client during whose calls something may
    /// happen.
    pub async fn confirm_and_apply_batch(&self, client: &Client, decision: Decision, now: Timestamp) -> Vec<Ended> {
        let Decision { cache, sources, planned } = decision;
        let Some(first) = planned.first() else { return Vec::new() };
        let batch = Batch { target: self.keeper.write_target(&first.subject), actions: planned };
        let (extract, writer) = (cache.extract(&batch.keys()), writer(client, &sources));
        let (keeper, world) = (self.keeper.clone(), self.world());
        confirm_and_apply(keeper, sources, writer, batch, extract, world, clock(now)).await.results
    }

    /// The rule for each of our subjects, and what comes next, by name.
    pub async fn rules(&self, now: Timestamp) -> BTreeMap<String, (&'static str, &'static str)> {
        let sources = Sources::of(&*self.keeper);
        let subjects = sources.list_all(&self.client, 1).await.unwrap().cache.subjects();
        let ours = subjects.into_iter().filter(|subject| self.is_ours(subject));
        ours.map(|subject| {
            let verdict = Rule::judge(&subject, &self.world(), now);
            (self.keeper.subject_ref(&subject).name.to_owned(), (verdict.rule.name(), verdict.next.name()))
        })
        .collect()
    }
}

/// How an action ended.
pub type Ended = ActionResult<Addresses>;
/// How the actions of a round ended, and why the breaker opened.
pub type Round = (Vec<Result<(), ApplyError>>, Option<OpenBreaker>);

/// What a round would do, and the cache that it was decided from.
pub struct Decision {
    cache: Arc<AddressCache>,
    sources: Arc<Sources<AddressCache>>,
    pub planned: Vec<PlannedAction<Addresses>>,
}

impl Decision {
    /// The actions for which this is true, and the others.
    pub fn split(self, is_first: impl Fn(&PlannedAction<Addresses>) -> bool) -> (Self, Self) {
        let Self { cache, sources, planned } = self;
        let (first, second) = planned.into_iter().partition(is_first);
        let of = |planned| Self { cache: cache.clone(), sources: sources.clone(), planned };
        (of(first), of(second))
    }
}

/// A clock that stays at this time.
pub fn clock(now: Timestamp) -> Clock {
    Clock::manual(now).0
}

pub fn writer(client: &Client, sources: &Arc<Sources<AddressCache>>) -> Writer<Addresses> {
    Writer::new(client.clone(), "caretaker-addresses", sources.clone())
}

/// Judge, limit and batch.
pub fn plan(
    planner: &mut Planner<Addresses>,
    feed: &mut CacheFeed<AddressCache>,
    keeper: &Addresses,
    world: &World,
    limits: &Limits,
    ledger: &mut Ledger,
    now: Timestamp,
) -> (Vec<Batch<Addresses>>, Option<OpenBreaker>) {
    let judged = planner.judge(keeper, feed, world, limits, ledger, true, now);
    let admitted = planner.limit(keeper, judged, |_| false, limits, ledger, now);
    let opens = admitted.opens.clone();
    (planner.batch(keeper, admitted, limits, ledger, now), opens)
}

/// True if the action was done, or was not because somebody else was faster.
pub fn is_done_or_stale(result: &Result<(), ApplyError>) -> bool {
    result.is_ok() || is_stale(result)
}

/// True if the action was not done because something had changed.
pub fn is_stale(result: &Result<(), ApplyError>) -> bool {
    result.as_ref().is_err_and(|error| error.outcome() == Outcome::Stale)
}

/// True if a round did so many actions, and all succeeded.
pub fn all_done(results: &[Result<(), ApplyError>], count: usize) -> bool {
    results.len() == count && results.iter().all(Result::is_ok)
}
