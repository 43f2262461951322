//! The keeper on a live cluster, in the engine's terms.

use caretaker_core::Timestamp;
use caretaker_engine::writer::Writer;
use caretaker_engine::{BatchResult, Confirmed, Controller, ReplicaRole, Source};

use crate::Windows;
use crate::observe::{self, FluxCache};
use crate::subject::World;

impl Controller for Windows {
    type Cache = FluxCache;

    fn sources(&self) -> Vec<Source<FluxCache>> {
        observe::sources(self.policy.zone.clone())
    }

    fn world(&self, _: &FluxCache, _: ReplicaRole, _: Timestamp) -> World {
        World { policy: self.policy.clone() }
    }

    async fn apply(&self, batch: Confirmed<Self>, writer: &mut Writer<Self>) -> BatchResult {
        crate::act::apply(&batch, writer).await
    }
}
