//! Sleep by schedule with the controllers of a real cluster, and a crash at every call.

use std::sync::Arc;
use std::thread;

use crate::support::claims::stateful_set_that_deletes_claims;
use crate::support::context::round_in;
use crate::support::sample::runtime;
use crate::support::scheduled_nights::{LIMIT, NIGHT, at, becomes, create};
use caretaker_core::Timestamp;
use caretaker_namespaces::api;
use caretaker_testkit::faults::{Fault, Faults, mortal};
use caretaker_testkit::make::{Said, mk_namespace};
use caretaker_testkit::{shared, until};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// More calls than an evening or a morning takes.
const MOST: usize = 80;
/// How many namespaces are put to sleep at once: most of the time is spent waiting for the controllers.
const AT_ONCE: usize = 6;

/// A namespace that is asleep by night: with a Deployment, and a StatefulSet whose claim goes if it is scaled down.
struct Nights {
    name: String,
    runtime: Runtime,
    client: Client,
    config: Config,
}

impl Nights {
    fn create(name: String) -> Self {
        let runtime = runtime();
        let client = runtime.block_on(async { shared().client().await.unwrap() });
        let config = runtime.block_on(shared().admin_config()).unwrap();
        let created = Self { name, runtime, client, config };
        created.runtime.block_on(created.fill());
        created
    }

    async fn fill(&self) {
        let (client, name) = (&self.client, &self.name);
        create(client, mk_namespace(name).annotation(api::SLEEP_DURING, NIGHT)).await;
        let set = stateful_set_that_deletes_claims(name);
        Api::namespaced(client.clone(), name).create(&PostParams::default(), &set).await.unwrap();
        becomes(client, name, "normal", 4).await;
    }

    /// What a night must not change: counts, labels, annotations, and which claims there are.
    async fn written(&self) -> Value {
        let (client, name) = (&self.client, &self.name);
        let web = Api::<Deployment>::namespaced(client.clone(), name).get("web").await.unwrap();
        let db = Api::<StatefulSet>::namespaced(client.clone(), name).get("db").await.unwrap();
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), name);
        let claims = claims.list(&ListParams::default()).await.unwrap().items;
        let claims: Vec<_> = claims.iter().map(|claim| (claim.uid(), &claim.metadata.deletion_timestamp)).collect();
        let (web_spec, db_spec) = (web.spec.as_ref().unwrap(), db.spec.as_ref().unwrap());
        json!([
            [web_spec.replicas, web.labels(), web.annotations()],
            [db_spec.replicas, db.labels(), db.annotations(), db_spec.persistent_volume_claim_retention_policy],
            claims,
        ])
    }

    /// A process that dies after its n-th call, and the next one, which completes what is left. True if the first died.
    fn edge(&self, n: usize, now: Timestamp) -> bool {
        let faults = Faults::none().at(n, Fault::DieAfter);
        let round = async |client: &Client| round_in(&Arc::default(), client, &self.name, now).await;
        mortal(&faults, self.config.clone(), async |client| drop(round(&client).await));
        self.runtime.block_on(async {
            // A few rounds: a wake and its last mark are two.
            until("nothing to be left to do", LIMIT, async || {
                let results = round(&self.client).await;
                Ok(if results.as_ref().is_ok_and(Vec::is_empty) { Ok(()) } else { Err(format!("{results:?}")) })
            })
            .await
            .unwrap();
        });
        faults.struck()
    }

    /// One night whose evening and morning are each cut off after the n-th call. True if either was.
    fn night(&self, n: usize) -> bool {
        let day = i64::try_from(n).unwrap();
        let becomes = |state, pods| self.runtime.block_on(becomes(&self.client, &self.name, state, pods));
        let before = self.runtime.block_on(self.written());

        let evening = self.edge(n, at(day, 20, 1));
        becomes("sleep", 0);
        assert_eq!(self.runtime.block_on(self.written())[2], before[2], "night {n}: the claims stay");
        let morning = self.edge(n, at(day + 1, 6, 1));
        becomes("normal", 4);
        assert_eq!(self.runtime.block_on(self.written()), before, "night {n}: restored exactly");
        evening || morning
    }
}

/// Night after night, the process is killed after another call in the evening and in the morning, until it makes fewer
/// calls than that.
#[test]
fn killed_at_any_call_of_an_evening_or_a_morning_every_night_ends_with_everything_restored() {
    let nights = |first: usize| {
        let namespace = Nights::create(format!("nights-{first}"));
        let cut_off = (first..).step_by(AT_ONCE).take_while(|n| {
            assert!(*n <= MOST, "it makes calls without end");
            namespace.night(*n)
        });
        cut_off.count()
    };
    let cut_off: usize = thread::scope(|scope| {
        let threads: Vec<_> = (1..=AT_ONCE).map(|first| scope.spawn(move || nights(first))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(cut_off >= 16, "only {cut_off} nights were cut off: does it act at all?");
}
