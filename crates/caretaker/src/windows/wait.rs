//! Waits until Flux has reconciled an object.

use caretaker_core::SignedDuration;
use caretaker_engine::format_error;
use futures::StreamExt as _;
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use serde_json::Value;

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal<'a> {
    /// It is ready at this generation.
    Ready,
    /// This request was handled, well or not.
    Handled(&'a str),
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Pending(String),
    Ready(String),
    Failed(String),
}

/// Returns the message of the object once it is ready.
pub(super) async fn until_reconciled(
    api: Api<DynamicObject>,
    name: &str,
    generation: i64,
    goal: Goal<'_>,
    timeout: SignedDuration,
) -> Result<String, String> {
    let mut last = String::new();
    let ended = tokio::time::timeout(timeout.unsigned_abs(), watch(api, name, generation, goal, &mut last)).await;
    ended.unwrap_or_else(|_| {
        let why = if last.is_empty() { String::new() } else { format!(": {last}") };
        Err(format!("it was not reconciled within {}{why}", caretaker_core::duration::format(timeout)))
    })
}

/// Keeps the last message of an object that is not ready.
async fn watch(
    api: Api<DynamicObject>,
    name: &str,
    generation: i64,
    goal: Goal<'_>,
    last: &mut String,
) -> Result<String, String> {
    let mut states = watch_object(api, name).default_backoff().boxed();
    while let Some(state) = states.next().await {
        let progress = match state {
            Ok(Some(object)) => progress(&object.data["status"], generation, goal),
            Ok(None) => Progress::Failed("it was deleted".to_owned()),
            // The watch starts again.
            Err(error) => Progress::Pending(format!("watching it: {}", format_error(&error))),
        };
        match progress {
            Progress::Ready(message) => return Ok(message),
            Progress::Failed(message) => return Err(message),
            Progress::Pending(message) => *last = message,
        }
    }
    Err("the watch has ended; try again".to_owned())
}

fn progress(status: &Value, generation: i64, goal: Goal<'_>) -> Progress {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let find = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind);
    let Some(ready) = find("Ready") else { return Progress::Pending(String::new()) };
    let message = ready["message"].as_str().unwrap_or_default().to_owned();
    let observed = ready["observedGeneration"].as_i64().or(status["observedGeneration"].as_i64());
    let is_handled = match goal {
        Goal::Ready => true,
        Goal::Handled(token) => status["lastHandledReconcileAt"] == token,
    };
    if !is_handled || observed.is_some_and(|observed| observed < generation) {
        return Progress::Pending(message);
    }
    let is_stalled = find("Stalled").is_some_and(|stalled| stalled["status"] == "True");
    match (ready["status"].as_str(), goal) {
        (Some("True"), _) => Progress::Ready(message),
        (Some("False"), Goal::Handled(_)) => Progress::Failed(message),
        _ if is_stalled => Progress::Failed(message),
        _ => Progress::Pending(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn status(ready: &str, observed: i64, handled: &str, stalled: bool) -> Value {
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "observedGeneration": observed, "message": "m" });
        let stalled = if stalled { "True" } else { "False" };
        json!({ "conditions": [condition("Ready", ready), condition("Stalled", stalled)], "lastHandledReconcileAt": handled })
    }

    #[rstest]
    #[case::ready(status("True", 3, "", false), Goal::Ready, "Ready")]
    #[case::of_the_generation_before(status("True", 2, "", false), Goal::Ready, "Pending")]
    #[case::it_tries_again(status("False", 3, "", false), Goal::Ready, "Pending")]
    #[case::it_never_will(status("False", 3, "", true), Goal::Ready, "Failed")]
    #[case::no_condition(json!({}), Goal::Ready, "Pending")]
    #[case::another_request(status("True", 3, "t0", false), Goal::Handled("t1"), "Pending")]
    #[case::this_request(status("True", 3, "t1", false), Goal::Handled("t1"), "Ready")]
    #[case::this_request_failed(status("False", 3, "t1", false), Goal::Handled("t1"), "Failed")]
    #[case::this_request_runs(status("Unknown", 3, "t1", false), Goal::Handled("t1"), "Pending")]
    fn it_has_come_so_far(#[case] status: Value, #[case] goal: Goal<'_>, #[case] expected: &str) {
        let found = progress(&status, 3, goal);

        assert_eq!(format!("{found:?}").split('(').next(), Some(expected));
    }
}
