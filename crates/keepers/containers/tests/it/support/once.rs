//! One round of the keeper on the API server of the [model](crate::support::model): what watches have delivered is judged, and
//! confirmed by what is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use caretaker_containers::Containers;
use caretaker_containers::judge::Rule;
use caretaker_containers::observe::{CONTAINERS, IDENTITY, Row};
use caretaker_containers::subject::{NodeIdentity, Subject};
use caretaker_core::limits::Ledger;
use caretaker_core::{Keeper as _, RuleSet as _};
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once_on;
use caretaker_engine::sources::Sources;
use caretaker_engine::{ActionResult, Cache as _, Change, Controller as _, ObjectId, ReplicaRole, SourceRef};
use caretaker_keeper_testkit::{MemoryJournal, context};

use crate::support::model::api::{BOOT, ModelApi, NODE_UID};

/// What a process has remembered of its verdicts, by ID.
pub type Remembered = BTreeMap<String, Subject>;

/// Judges what was scanned, and returns how each cleaning ended, by ID, and the notes of Events under `Event`. What cannot be
/// listed is not judged. Whoever passes on what was remembered is the same process.
pub async fn once(
    keeper: &Arc<Containers>,
    api: &ModelApi,
    scanned: &[Change<Row>],
    remembered: &mut Remembered,
) -> Vec<(String, String)> {
    let (client, sources) = (api.client(), Sources::of(&**keeper));
    let Ok(mut feed) = sources.list_all(&client, 1).await else { return Vec::new() };
    let source = |id| SourceRef { id, resource: None };
    for change in scanned {
        feed.update(&source(CONTAINERS), change.clone());
    }
    let (now, doubted) = {
        let state = api.0.lock().unwrap();
        (state.truth.now, state.delivered.doubted)
    };
    let node = NodeIdentity { uid: NODE_UID.to_owned(), boot_id: BOOT.to_owned() };
    let identity = if doubted { Row::Doubt("another cluster".to_owned()) } else { Row::Proven(node) };
    feed.update(&source(IDENTITY), Change::apply(ObjectId::named(keeper.settings().node.clone()), identity));
    let world = keeper.world(&feed.cache, ReplicaRole::Leader, now);
    for mut subject in feed.cache.subjects() {
        let id = subject.container.id.clone();
        if let Some(before) = remembered.remove(&id).filter(|before| before.uid == subject.uid) {
            (subject.gone_since, subject.sighting) = (before.gone_since, before.sighting);
        }
        let verdict = Rule::judge(&subject, &world, now);
        keeper.record_verdict(&mut subject, &verdict, now);
        feed.cache.remember(&id, &subject);
        remembered.insert(id, subject);
    }
    let context = context(&client, "containers", Clock::manual(now).0, MemoryJournal::default());
    let ended = run_once_on(keeper, &context, &sources, feed, &mut Ledger::default(), |_| true).await;
    let text = |one: ActionResult<Containers>| match one.result {
        Ok(()) => format!("done: {}", one.planned.verdict.because),
        Err(error) => error.to_string(),
    };
    let events = keeper.events(&ended.results).into_iter().map(|event| ("Event".to_owned(), event.note));
    let events: Vec<(String, String)> = events.collect();
    let ended = ended.results.into_iter().map(|one| (one.planned.subject.container.id.clone(), text(one)));
    ended.chain(events).collect()
}
