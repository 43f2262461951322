//! The keeper on a live cluster, in the engine's terms.

use caretaker_core::Timestamp;
use caretaker_engine::access::Need;
use caretaker_engine::api::Resource;
use caretaker_engine::events::Report;
use caretaker_engine::keep::{Carried, Due, Ended, Keep, Refusal};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use serde_json::Value;

use crate::Namespaces;
use crate::act::Action;
use crate::act::carry_out::{self, Hand, Judged, Sight, Undone};
use crate::observe::{Manifest, Observation, SOURCES};
use crate::run;
use crate::subject::{Subject, World};

impl Keep for Namespaces {
    type Home = String;
    type Site = String;
    type Manifest = Manifest;
    type Sight = Sight;
    type Undone = Undone;
    type Index = Observation;

    const SOURCES: &'static [Resource] = &SOURCES;
    const MANAGER: &'static str = carry_out::MANAGER;
    const LISTS: usize = 4;

    fn home(subject: &Subject) -> String {
        subject.home().to_owned()
    }

    fn site(subject: &Subject) -> String {
        subject.home().to_owned()
    }

    fn is_urgent(action: &Action) -> bool {
        matches!(action, Action::Wake { .. })
    }

    fn needs(dry_run: bool) -> Vec<Need> {
        run::needs(dry_run)
    }

    fn before(subject: &Subject) -> Value {
        run::before(subject)
    }

    fn reports(ended: &[Ended<Self>]) -> Vec<Report> {
        ended.iter().flat_map(run::reports).collect()
    }

    fn regarding(refusal: &Refusal) -> ObjectReference {
        run::regarding(refusal)
    }

    async fn carry_out(client: Client, due: Vec<Due<Self>>, world: World, now: Timestamp) -> Carried<Self> {
        let mut carried = Carried { ended: Vec::new(), seen: Vec::new() };
        for due in due {
            let judged = Judged { subject: &due.subject, rule: Some(due.verdict.rule), action: &due.action };
            let hand = Hand { client: &client, manager: Self::MANAGER };
            let (outcome, seen) = carry_out::carry_out(hand, judged, &world, now).await;
            carried.seen.extend(seen);
            carried.ended.push(Ended { due, outcome });
        }
        carried
    }
}
