//! Audit events as log pipelines forward them, where no API server can be told to send them itself: alone, in an array,
//! one a line, or as text inside of the record of a log service.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::AuditEvent;

/// How many layers a pipeline may wrap around an event: a list, a record, its properties, its text, and one to spare.
const MAX_LAYERS: usize = 6;

/// The fields by which a layer is recognised.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Layer<'a> {
    /// An event has one.
    #[serde(borrow, rename = "auditID")]
    audit_id: Option<&'a RawValue>,
    /// The events of an `EventList`.
    #[serde(borrow)]
    items: Option<&'a RawValue>,
    /// What Azure's diagnostic settings send to an event hub.
    #[serde(borrow)]
    records: Option<&'a RawValue>,
    /// In one of those records.
    #[serde(borrow)]
    properties: Option<&'a RawValue>,
    /// What a subscription of CloudWatch Logs sends.
    #[serde(borrow)]
    log_events: Option<&'a RawValue>,
    /// `CONTROL_MESSAGE` if such a subscription only checks whether somebody is there.
    #[serde(borrow)]
    message_type: Option<Cow<'a, str>>,
    /// The text of a record, by most pipelines.
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    /// The same, by others.
    #[serde(borrow)]
    log: Option<&'a RawValue>,
}

/// Whether anything was recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recognised {
    Yes,
    No,
}

/// Calls `each` with every event in a JSON value. Of a list, `each` is called with `None` for each element without one.
pub(super) fn decode(text: &str, each: &mut impl FnMut(Option<&AuditEvent<'_>>)) -> Recognised {
    decode_layer(text, MAX_LAYERS, each)
}

fn decode_layer(text: &str, layers: usize, each: &mut impl FnMut(Option<&AuditEvent<'_>>)) -> Recognised {
    let Some(layers) = layers.checked_sub(1) else { return Recognised::No };
    match text.trim_start().as_bytes().first() {
        Some(b'[') => decode_list(text, layers, each),
        Some(b'{') => decode_object(text, layers, each),
        // The record of a log service has the event as text.
        Some(b'"') => match serde_json::from_str::<Cow<'_, str>>(text) {
            Ok(inner) if inner.trim_start().starts_with(['{', '[']) => decode_layer(&inner, layers, each),
            _ => Recognised::No,
        },
        _ => Recognised::No,
    }
}

fn decode_list(text: &str, layers: usize, each: &mut impl FnMut(Option<&AuditEvent<'_>>)) -> Recognised {
    let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(text) else { return Recognised::No };
    for element in elements {
        if decode_layer(element.get(), layers, each) == Recognised::No {
            each(None);
        }
    }
    Recognised::Yes
}

fn decode_object(text: &str, layers: usize, each: &mut impl FnMut(Option<&AuditEvent<'_>>)) -> Recognised {
    let Ok(layer) = serde_json::from_str::<Layer<'_>>(text) else { return Recognised::No };
    if layer.audit_id.is_some() {
        let event = serde_json::from_str::<AuditEvent<'_>>(text).ok().filter(|event| !event.audit_id.is_empty());
        each(event.as_ref());
        return Recognised::Yes;
    }
    if layer.message_type.as_deref() == Some("CONTROL_MESSAGE") {
        return Recognised::Yes;
    }
    let lists = [layer.items, layer.records, layer.log_events];
    if let Some(list) = lists.into_iter().flatten().next() {
        return decode_layer(list.get(), layers, each);
    }
    let inner = [layer.properties, layer.message, layer.log].into_iter().flatten();
    for inner in inner {
        if decode_layer(inner.get(), layers, each) == Recognised::Yes {
            return Recognised::Yes;
        }
    }
    Recognised::No
}

#[cfg(test)]
mod tests {
    use super::super::decode_batch;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn event(id: &str) -> Value {
        json!({ "kind": "Event", "apiVersion": "audit.k8s.io/v1", "auditID": id, "stage": "ResponseComplete", "verb": "get" })
    }

    /// The ids of the events in a body, `-` for one that cannot be decoded.
    fn ids(body: &str) -> Result<Vec<String>, String> {
        let mut ids = Vec::new();
        let decoded = decode_batch(body.as_bytes(), |event| {
            ids.push(event.map_or_else(|| "-".to_owned(), |event| event.audit_id.clone().into_owned()));
        });
        decoded.map(|()| ids).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case::one_event(event("a").to_string(), &["a"])]
    #[case::an_array(json!([event("a"), event("b")]).to_string(), &["a", "b"])]
    #[case::an_empty_array("[]".to_owned(), &[])]
    #[case::one_a_line(format!("{}\n{}\n", event("a"), event("b")), &["a", "b"])]
    #[case::one_after_the_other(format!("{}{}", event("a"), event("b")), &["a", "b"])]
    #[case::with_a_date_of_the_pipeline(
        json!([{ "date": 1_772_442_000.5, "auditID": "a", "kind": "Event", "verb": "get" }]).to_string(), &["a"]
    )]
    #[case::text_of_a_record(json!([{ "timestamp": "x", "message": event("a").to_string() }]).to_string(), &["a"])]
    #[case::text_of_a_record_by_another_name(json!([{ "date": 1.5, "log": event("a").to_string() }]).to_string(), &["a"])]
    #[case::a_parsed_record(json!([{ "message": event("a") }]).to_string(), &["a"])]
    #[case::a_subscription_of_cloudwatch(
        json!({
            "messageType": "DATA_MESSAGE", "owner": "1", "logGroup": "/aws/eks/prod/cluster",
            "logStream": "kube-apiserver-audit-1", "subscriptionFilters": ["f"],
            "logEvents": [
                { "id": "1", "timestamp": 1, "message": event("a").to_string() },
                { "id": "2", "timestamp": 2, "message": event("b").to_string() },
            ],
        })
        .to_string(),
        &["a", "b"]
    )]
    #[case::a_subscription_that_only_checks(
        json!({ "messageType": "CONTROL_MESSAGE", "logEvents": [{ "message": "CWL CONTROL MESSAGE: health" }] }).to_string(),
        &[]
    )]
    #[case::records_of_an_event_hub(
        json!({ "records": [{
            "time": "x", "category": "kube-audit", "operationName": "Microsoft.ContainerService/managedClusters/diagnosticLogs/Read",
            "properties": { "log": format!("{}\n", event("a")), "stream": "stdout", "pod": "kube-apiserver-1" },
        }] })
        .to_string(),
        &["a"]
    )]
    #[case::a_list_among_others(
        format!("{}\n{}", event("a"), json!({ "kind": "EventList", "items": [event("b")] })), &["a", "b"]
    )]
    #[case::a_record_that_is_no_event(json!([{ "message": "I0302 started" }, event("a")]).to_string(), &["-", "a"])]
    #[case::an_event_with_a_wrong_field(json!([{ "auditID": 7 }, event("a")]).to_string(), &["-", "a"])]
    fn an_event_is_found_in_the_form_in_which_a_pipeline_sends_it(#[case] body: String, #[case] expected: &[&str]) {
        assert_eq!(ids(&body).unwrap(), expected);
    }

    #[rstest]
    #[case::a_log_line(json!({ "message": "I0302 started" }).to_string())]
    #[case::too_many_layers(format!("{}{}{}", "[".repeat(9), event("a"), "]".repeat(9)))]
    #[case::half_of_the_second_line(format!("{}\n{{\"kind\":", event("a")))]
    fn what_holds_no_event_is_not_taken_for_an_empty_batch(#[case] body: String) {
        let found = ids(&body);

        let is_taken = matches!(&found, Ok(ids) if !ids.contains(&"-".to_owned()));
        assert!(!is_taken, "{found:?}");
    }
}
