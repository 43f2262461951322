//! Spans for a tracing system: one for every batch that is confirmed and applied. The calls that it makes are below it.
//! Without a subscriber for [`TARGET`] none is made.

use caretaker_core::Action as _;
use tracing::Span;
use tracing::field::Empty;

use crate::apply::{ActionResult, ApplyError};
use crate::controller::{Batch, Controller};
use crate::journal::Outcome;

/// The target of these spans, which no log line has.
pub const TARGET: &str = "caretaker_traces";

/// The span of a batch. A batch has at least one action, and all of its actions are written to the same object.
pub(crate) fn action<K: Controller>(keeper: &'static str, batch: &Batch<K>) -> Span {
    let first = batch.actions.first();
    let name = first.map_or("nothing", |planned| planned.action.name());
    let rule = first.map_or("", |planned| planned.verdict.rule.name());
    let because = first.map_or("", |planned| planned.verdict.because.as_str());
    let (object, actions) = (&*batch.target.key, i64::try_from(batch.actions.len()).unwrap_or(i64::MAX));
    tracing::info_span!(
        target: TARGET, "action",
        otel.name = format!("{keeper} {name}"), otel.status_code = Empty, otel.status_description = Empty,
        keeper, action = name, object, rule, because, actions, outcome = Empty,
    )
}

/// How it ended; of several actions, the first one that is not done.
pub(crate) fn ended<K: Controller>(results: &[ActionResult<K>]) {
    let span = Span::current();
    let error = results.iter().find_map(|result| result.result.as_ref().err());
    let outcome = error.map_or(Outcome::Done, ApplyError::outcome);
    span.record("outcome", outcome.name());
    // That the live read found something else is no error.
    let failed = matches!(outcome, Outcome::Partial | Outcome::Failed);
    span.record("otel.status_code", if failed { "error" } else { "ok" });
    if let Some(error) = error.filter(|_| failed) {
        span.record("otel.status_description", error.to_string());
    }
}
