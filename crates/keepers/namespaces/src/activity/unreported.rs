//! Whether anybody reports activity at all, where Caretaker does not record it itself.
//!
//! With `source: annotation` another program writes `activity-status`. If none does, namespaces in constant use look
//! unused since Caretaker first saw them, and are put to sleep by their labels.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::count::counted;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::SourceContext;

use crate::judge::is_managed;
use crate::metrics::ActivityMetrics;
use crate::observe::NamespaceCache;
use crate::observe::sources::NAMESPACES;
use crate::subject::{Policy, World};

/// How often the operator looks.
const INTERVAL: Duration = Duration::from_mins(1);
/// Until the namespaces are listed for the first time.
const UNTIL_LISTED: Duration = Duration::from_secs(1);

/// Namespaces that are judged although their use is not seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Those that a label, the defaults or a schedule put to sleep.
    pub sleeping: usize,
    /// Those that have a `delete-after` alone.
    pub deleted: usize,
}

/// Counts the namespaces that are judged while no other program has reported activity for a week. `None` if one has, if
/// there is no such namespace, and where Caretaker records activity itself.
#[must_use]
pub fn unreported(cache: &NamespaceCache, policy: &Policy, now: Timestamp) -> Option<Unseen> {
    let last = cache.last_report(now);
    let has_reporter = World { last_report: last, ..World::default() }.has_reporter(SignedDuration::ZERO, now);
    if policy.records_activity || has_reporter {
        return None;
    }
    let mut unseen = Unseen::default();
    for subject in cache.bare_namespaces().filter(|subject| !subject.excluded) {
        if is_managed(subject, policy) || subject.sleep_during.is_set() {
            unseen.sleeping += 1;
        } else if subject.delete_after.value().is_some() {
            unseen.deleted += 1;
        }
    }
    Some(unseen).filter(|unseen| *unseen != Unseen::default())
}

/// The warning for people.
#[must_use]
pub fn warning(unseen: Unseen, policy: &Policy) -> String {
    let sleep = counted(unseen.sleeping, "namespace sleeps by its", "namespaces sleep by their");
    let deleted = counted(unseen.deleted, "namespace has delete-after", "namespaces have delete-after");
    let fate = match (unseen, policy.delete_without_activity_source) {
        (Unseen { sleeping: 0, .. }, false) => format!("{deleted}, and no label deletes one"),
        (Unseen { sleeping: 0, .. }, true) => {
            format!("{deleted}, and deleteWithoutActivitySource lets labels delete what is in use")
        }
        (_, false) => format!("{sleep} labels or schedules, in use or not, and no label deletes one"),
        (_, true) => format!(
            "{sleep} labels or schedules, in use or not, and deleteWithoutActivitySource lets labels delete what is in use"
        ),
    };
    format!(
        "Caretaker cannot see who uses a namespace (no activity-status by another program within a week): {fate}; \
         docs/activity.md shows how to see use"
    )
}

/// Keeps the metric up to date, and warns each time that this begins. Never returns.
pub(super) async fn watch(
    context: SourceContext<NamespaceCache>,
    policy: Arc<Policy>,
    metrics: ActivityMetrics,
) -> std::convert::Infallible {
    let mut warned = false;
    loop {
        let found = context.cache.read(|feed| {
            let listed = feed.status(NAMESPACES).synced;
            listed.then(|| unreported(&feed.cache, &policy, context.context.clock.now()))
        });
        let Some(found) = found else {
            tokio::time::sleep(UNTIL_LISTED).await;
            continue;
        };
        metrics.set_unreported(found.is_some());
        if let Some(unseen) = found.filter(|_| !warned) {
            tracing::warn!("{}", warning(unseen, &policy));
        }
        warned = found.is_some();
        tokio::time::sleep(INTERVAL).await;
    }
}
