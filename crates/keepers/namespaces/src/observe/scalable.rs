//! Kinds that the setting `scalableKinds` names and that no sleep can scale: reported, and left alone.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::SourceId;
use caretaker_engine::{Change, Source, SourceContext};
use futures::StreamExt as _;
use futures::stream;

use super::partial::CustomResourceDefinitionSpec;
use super::sources::{CUSTOM_RESOURCE_DEFINITIONS, SCALABLE};
use super::{NamespaceCache, Row};
use crate::act::WAKE;
use crate::metrics::ScalableKindMetrics;
use crate::subject::ScalableKind;

/// Looks after the settings.
const SCALABLE_KINDS_CHECK: SourceId = SourceId("check of scalableKinds");
/// The part of `/readyz` that a note is about.
const PART: &str = "scalableKinds";
/// How often the operator looks.
const INTERVAL: Duration = Duration::from_mins(1);
/// Until everything is listed for the first time.
const UNTIL_LISTED: Duration = Duration::from_secs(1);
/// Where a sleep writes the number of replicas.
const REPLICAS_PATH: &str = ".spec.replicas";
/// The only kind without a definition that is scaled so and that Caretaker does not know.
const REPLICATION_CONTROLLER: &str = "ReplicationController";

/// The definition of a kind that the settings name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The kind.
    pub kind: ScalableKind,
    /// Where its number of replicas is: `Err` with what is wrong if a sleep cannot write it.
    pub replicas: Result<(), String>,
}

impl Definition {
    /// The definition, if the settings name its kind.
    pub(super) fn of(spec: &CustomResourceDefinitionSpec, named: &[ScalableKind]) -> Option<Self> {
        let kind = named.iter().find(|kind| kind.group == spec.group && kind.kind == spec.names.kind)?;
        let scales = spec.versions.iter().filter(|version| version.served).map(|version| &version.subresources.scale);
        let wrong = scales.into_iter().find_map(|scale| match scale {
            None => Some("it has no scale subresource".to_owned()),
            Some(scale) if scale.spec_replicas_path == REPLICAS_PATH => None,
            Some(scale) => Some(format!("its number of replicas is at {}", scale.spec_replicas_path)),
        });
        Some(Self { kind: kind.clone(), replicas: wrong.map_or(Ok(()), Err) })
    }
}

/// A sentence for each kind that the settings name and that a sleep cannot scale.
#[must_use]
pub fn unusable(cache: &NamespaceCache, named: &[ScalableKind]) -> Vec<String> {
    let warning = |kind: &ScalableKind| {
        let what = format!("keepers.namespaces.scalableKinds names {} of the group {:?}", kind.kind, kind.group);
        match cache.definition(kind) {
            Some(Definition { replicas: Ok(()), .. }) => None,
            Some(Definition { replicas: Err(wrong), .. }) => Some(format!(
                "{what}: {wrong}, and only {REPLICAS_PATH} can be scaled, so a sleep leaves such objects running; \
                 remove the entry"
            )),
            None if kind.group.is_empty() && kind.kind == REPLICATION_CONTROLLER => None,
            None if cache.has_workloads_of(kind) => None,
            None => Some(format!(
                "{what}: no such kind is defined, so the entry does nothing; correct group and kind, or remove the entry"
            )),
        }
    };
    named.iter().filter_map(warning).collect()
}

/// A source that delivers nothing: it keeps log, metric and note up to date.
pub(crate) fn check(named: Vec<ScalableKind>, metrics: ScalableKindMetrics) -> Source<NamespaceCache> {
    let named = Arc::new(named);
    let start = move |context: SourceContext<NamespaceCache>| {
        let work = watch(context, named.clone(), metrics.clone());
        let listed = stream::iter([Change::<Row>::Init, Change::InitDone]);
        listed.chain(stream::once(work).filter_map(async |()| None)).boxed()
    };
    // A source that nothing needs is not run. It is complete at once.
    Source::stream(SCALABLE_KINDS_CHECK, start).needed_for(|kind| *kind != WAKE)
}

async fn watch(
    mut context: SourceContext<NamespaceCache>,
    named: Arc<Vec<ScalableKind>>,
    metrics: ScalableKindMetrics,
) {
    let (cache, health) = (context.cache.clone(), context.context.health.clone());
    let look = async {
        let mut before = Vec::new();
        loop {
            let found = cache.read(|feed| {
                let listed = [CUSTOM_RESOURCE_DEFINITIONS, SCALABLE].iter().all(|id| feed.status(*id).synced);
                listed.then(|| unusable(&feed.cache, &named))
            });
            let Some(found) = found else {
                tokio::time::sleep(UNTIL_LISTED).await;
                continue;
            };
            metrics.set_unusable(found.len());
            health.set_note(PART, (!found.is_empty()).then(|| found.join("; ")));
            for warning in found.iter().filter(|warning| !before.contains(*warning)) {
                tracing::warn!("{warning}");
            }
            before = found;
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        () = look => {}
        // An error means that the engine is gone.
        _ = context.shutdown.wait_for(|stop| *stop) => {}
    }
}
