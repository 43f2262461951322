//! One round of the keeper on the API server of the [model](crate::model): what watches have delivered is judged, and
//! confirmed by what is there.

use std::sync::Arc;

use caretaker_containers::Containers;
use caretaker_containers::observe::{CONTAINERS, IDENTITY, Row};
use caretaker_containers::subject::NodeIdentity;
use caretaker_core::limits::Ledger;
use caretaker_engine::clock::Clock;
use caretaker_engine::once::run_once_on;
use caretaker_engine::sources::Sources;
use caretaker_engine::{ActionResult, Change, Controller as _, ObjectId, SourceRef};
use caretaker_keeper_testkit::{MemoryJournal, context};

use crate::model::api::{BOOT, ModelApi, NODE_UID};

/// Judges what was scanned, and returns how each cleaning ended, by ID, and the notes of Events under `Event`. What cannot be
/// listed is not judged.
pub async fn once(keeper: &Arc<Containers>, api: &ModelApi, scanned: &[Change<Row>]) -> Vec<(String, String)> {
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
