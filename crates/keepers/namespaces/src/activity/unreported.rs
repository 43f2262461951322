//! Whether anybody reports activity at all, where Caretaker does not record it itself.
//!
//! With `source: annotation` another program writes `activity-status`. If none does, namespaces in constant use look
//! unused since Caretaker first saw them, and are put to sleep on schedule.

use std::sync::Arc;
use std::time::Duration;

use caretaker_core::count::counted;
use caretaker_core::{RuleSet as _, SignedDuration, Timestamp, time};
use caretaker_engine::SourceContext;

use crate::api::Activity;
use crate::judge::{Rule, is_managed};
use crate::metrics::ActivityMetrics;
use crate::observe::NamespaceCache;
use crate::observe::sources::NAMESPACES;
use crate::subject::{Policy, Subject};

/// How often the operator looks.
const INTERVAL: Duration = Duration::from_mins(1);
/// Until the namespaces are listed for the first time.
const UNTIL_LISTED: Duration = Duration::from_secs(1);

/// How long a report proves that somebody reports. In a week somebody uses something in every cluster; an older
/// annotation may be of a program that is gone.
pub const REPORTS_COUNT_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How many namespaces a label or the defaults can put to sleep or delete, if nobody reported activity in any of them for
/// a week; `None` if somebody did, if there is no such namespace, and where Caretaker records activity itself.
#[must_use]
pub fn unreported(cache: &NamespaceCache, policy: &Policy, now: Timestamp) -> Option<usize> {
    let is_recent = |activity: &Activity| time::saturating_add(activity.at, REPORTS_COUNT_FOR) >= now;
    let is_reported = |subject: &Subject| subject.activity.get().is_some_and(|a| by_others(a) && is_recent(a));
    if policy.records_activity || cache.bare_namespaces().any(is_reported) {
        return None;
    }
    let managed = cache.bare_namespaces().filter(|subject| is_managed(subject, policy)).count();
    Some(managed).filter(|managed| *managed > 0)
}

/// True if it was not written by Caretaker, nor by an order of a person.
fn by_others(activity: &Activity) -> bool {
    !activity.is_own_record() && Rule::parse(&activity.by).is_none()
}

/// The warning for people.
#[must_use]
pub fn warning(namespaces: usize) -> String {
    format!(
        "nothing reports activity: no namespace has an activity-status that another program wrote within a week, so \
         each of {} looks unused, whether it is used or not; set \
         keepers.namespaces.activity.source to audit (docs/activity.md), or let a program write the annotation",
        counted(namespaces, "namespace", "namespaces")
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
        if let Some(namespaces) = found.filter(|_| !warned) {
            tracing::warn!("{}", warning(namespaces));
        }
        warned = found.is_some();
        tokio::time::sleep(INTERVAL).await;
    }
}
