//! Decodes audit events as the API server sends them. Only the fields that matter are decoded, and they borrow from
//! the text.

mod forwarded;

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use caretaker_core::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use forwarded::Recognised;

/// One stage of one request: `Event` of `audit.k8s.io/v1`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AuditEvent<'a> {
    /// Identifies the request; the same in all of its stages. Clients may choose it.
    #[serde(borrow, rename = "auditID")]
    pub audit_id: Cow<'a, str>,
    /// `RequestReceived`, `ResponseStarted`, `ResponseComplete` or `Panic`.
    #[serde(borrow)]
    pub stage: Cow<'a, str>,
    /// The path and the query of the request.
    #[serde(borrow, rename = "requestURI")]
    pub request_uri: Cow<'a, str>,
    /// `get`, `list`, `watch`, `create` and so on.
    #[serde(borrow)]
    pub verb: Cow<'a, str>,
    /// The authenticated user.
    #[serde(borrow)]
    pub user: UserInfo<'a>,
    /// The user that `user` impersonates, if any.
    #[serde(borrow)]
    pub impersonated_user: Option<UserInfo<'a>>,
    /// The client program.
    #[serde(borrow)]
    pub user_agent: Cow<'a, str>,
    /// The object of the request; `None` for a path that is not a resource.
    #[serde(borrow)]
    pub object_ref: Option<ObjectRef<'a>>,
    /// The response; `None` until there is one.
    pub response_status: Option<ResponseStatus>,
    /// When the API server received the request.
    #[serde(borrow)]
    pub request_received_timestamp: Cow<'a, str>,
    /// When the request reached this stage.
    #[serde(borrow)]
    pub stage_timestamp: Cow<'a, str>,
}

/// A user, as the API server authenticated or impersonated it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct UserInfo<'a> {
    /// The name.
    #[serde(borrow)]
    pub username: Cow<'a, str>,
    /// Distinguishes users that had the same name at different times.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// The groups of the user.
    #[serde(borrow)]
    pub groups: Vec<CowStr<'a>>,
    /// Further facts from the authenticator.
    #[serde(borrow)]
    pub extra: Option<UserExtra<'a>>,
}

impl UserInfo<'_> {
    /// Returns true if the user's token is bound to a pod, as the tokens are that the kubelet mounts into pods. A token
    /// that a person or a CI system has requested for a service account is not.
    #[must_use]
    pub fn is_bound_to_a_pod(&self) -> bool {
        self.extra.as_ref().and_then(|extra| extra.pod_name.as_ref()).is_some_and(|names| !names.is_empty())
    }
}

/// Facts about a user from the authenticator. Only one of them matters here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct UserExtra<'a> {
    /// The pod that the token of a service account is bound to.
    #[serde(borrow, rename = "authentication.kubernetes.io/pod-name")]
    pub pod_name: Option<Vec<CowStr<'a>>>,
}

/// A string in a list. It borrows from the text unless it has escapes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct CowStr<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// The object of a request, or all objects of a kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectRef<'a> {
    /// The plural resource name, such as `pods`.
    #[serde(borrow)]
    pub resource: Cow<'a, str>,
    /// The namespace; empty for cluster-scoped requests.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// The object's name; empty for a request on all objects of the kind.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// The API group; empty for the core group.
    #[serde(borrow)]
    pub api_group: Cow<'a, str>,
    /// The subresource, such as `exec`; empty if there is none.
    #[serde(borrow)]
    pub subresource: Cow<'a, str>,
}

/// The response of the API server.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct ResponseStatus {
    /// The HTTP status code.
    pub code: u16,
}

impl<'a> AuditEvent<'a> {
    /// Returns the user whose activity this is: the impersonated user if there is one.
    #[must_use]
    pub fn actor(&self) -> &UserInfo<'a> {
        self.impersonated_user.as_ref().unwrap_or(&self.user)
    }

    /// Returns when the API server received the request; `None` if the timestamp is missing or invalid.
    #[must_use]
    pub fn received_at(&self) -> Option<Timestamp> {
        self.request_received_timestamp.parse().ok()
    }

    /// Returns when the request reached this stage; `None` if the timestamp is missing or invalid.
    #[must_use]
    pub fn stage_reached_at(&self) -> Option<Timestamp> {
        self.stage_timestamp.parse().ok()
    }

    /// Returns true if the request asks the API server to change nothing: the query has the parameter `dryRun`.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        let is_dry_run = |parameter: &str| parameter.strip_prefix("dryRun=").is_some_and(|value| !value.is_empty());
        self.request_uri.split_once('?').is_some_and(|(_, query)| query.split('&').any(is_dry_run))
    }

    /// Returns the operation in the form of the annotation `activity-status`, such as `ListPods`.
    #[must_use]
    pub fn what(&self) -> String {
        let mut what = String::with_capacity(32);
        let object = self.object_ref.as_ref();
        let words = [Some(&self.verb), object.map(|o| &o.resource), object.map(|o| &o.subresource)];
        for word in words.into_iter().flatten() {
            let mut letters = word.chars();
            what.extend(letters.next().map(|first| first.to_ascii_uppercase()));
            what.push_str(letters.as_str());
        }
        what
    }
}

/// Why a request body is not a batch of audit events.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The body is not JSON, or does not have the fields of a list.
    #[error("the body is not an EventList in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The body is an object of another kind or version.
    #[error(
        "the body is {0:?}, not an EventList of audit.k8s.io/v1: check the address in the file of the API server's \
         --audit-webhook-config-file"
    )]
    WrongKind(String),
}

/// The kind and version of a body.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
}

/// Decodes a batch and calls `each` with one event after the other, or with `None` for an item that cannot be decoded.
/// An undecodable item does not affect the others. At most one event of an API server's batch is in memory at a time.
/// Also decodes what log pipelines send.
pub fn decode_batch(body: &[u8], mut each: impl FnMut(Option<&AuditEvent<'_>>)) -> Result<(), DecodeError> {
    const MAX_SHOWN: usize = 80;
    let is_array = body.trim_ascii_start().starts_with(b"[");
    let meta = match serde_json::from_slice::<TypeMeta<'_>>(body) {
        Ok(meta) if !is_array => meta,
        Err(error) if !is_array && !follows_a_value(body, &error) => return Err(error.into()),
        _ => return decode_values(body, &mut each),
    };
    if meta.kind != "EventList" || meta.api_version != "audit.k8s.io/v1" {
        let is_event = meta.api_version.is_empty() || (meta.kind == "Event" && meta.api_version == "audit.k8s.io/v1");
        if is_event && forwarded::decode(str_of(body)?, &mut each) == Recognised::Yes {
            return Ok(());
        }
        let kind = format!("{}, {}", meta.api_version, meta.kind);
        return Err(DecodeError::WrongKind(kind.chars().take(MAX_SHOWN).collect()));
    }
    let mut decoded = 0_usize;
    let all_decoded = for_each_item(body, &mut |event: AuditEvent<'_>| {
        decoded += 1;
        each(Some(&event));
    });
    if all_decoded.is_err() {
        // The first pass stops at an undecodable item. The second pass decodes each of the remaining items alone.
        let mut number = 0;
        for_each_item(body, &mut |text: &RawValue| {
            number += 1;
            if number > decoded {
                each(serde_json::from_str(text.get()).ok().as_ref());
            }
        })?;
    }
    Ok(())
}

/// True if a JSON value is complete, and something follows it.
fn follows_a_value(body: &[u8], error: &serde_json::Error) -> bool {
    error.is_syntax()
        && serde_json::Deserializer::from_slice(body).into_iter::<IgnoredAny>().next().is_some_and(|v| v.is_ok())
}

fn str_of(body: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(body).map_err(|error| DecodeError::Json(serde::de::Error::custom(error)))
}

/// Decodes values that follow each other, one a line or not.
fn decode_values(body: &[u8], each: &mut impl FnMut(Option<&AuditEvent<'_>>)) -> Result<(), DecodeError> {
    for value in serde_json::Deserializer::from_str(str_of(body)?).into_iter::<&RawValue>() {
        if forwarded::decode(value?.get(), each) == Recognised::No {
            each(None);
        }
    }
    Ok(())
}

/// Calls `each` with the elements of the field `items` while the body is parsed.
fn for_each_item<'de, T: Deserialize<'de>>(body: &'de [u8], each: &mut impl FnMut(T)) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer.deserialize_map(ListVisitor { each, item: PhantomData })?;
    deserializer.end()
}

struct ListVisitor<'e, T, F> {
    each: &'e mut F,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for ListVisitor<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<CowStr<'de>>()? {
            if key.0 == "items" {
                map.next_value_seed(ItemsVisitor { each: &mut *self.each, item: PhantomData })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct ItemsVisitor<'e, T, F> {
    each: &'e mut F,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for ItemsVisitor<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for ItemsVisitor<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        while let Some(item) = items.next_element()? {
            (self.each)(item);
        }
        Ok(())
    }
}

/// Decodes one line of an audit log. Any JSON object decodes, with empty fields: the caller must check that
/// [`audit_id`](AuditEvent::audit_id) is not empty.
pub fn decode_line(line: &[u8]) -> Result<AuditEvent<'_>, serde_json::Error> {
    serde_json::from_slice(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const LIST: &str = r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[ITEMS]}"#;
    const EVENT: &str = r#"{"level":"Metadata","auditID":"a1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods?limit=500","verb":"list","user":{"username":"ann","uid":"u1","groups":["dev","system:authenticated"],"extra":{"a":["b"]}},"sourceIPs":["10.0.0.1"],"userAgent":"kubectl/v1.36.3","objectRef":{"resource":"pods","namespace":"shop","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-03-02T09:00:00.123456Z","stageTimestamp":"2026-03-02T09:00:00.133456Z","annotations":{"authorization.k8s.io/decision":"allow"}}"#;

    #[test]
    fn a_batch_of_the_api_server_is_decoded_without_copying() {
        let body = LIST.replace("ITEMS", EVENT);
        let mut count = 0;
        decode_batch(body.as_bytes(), |event| {
            let event = event.unwrap();
            assert_eq!((event.what().as_str(), event.actor().username.as_ref()), ("ListPods", "ann"));
            assert_eq!(event.received_at(), "2026-03-02T09:00:00.123456Z".parse().ok());
            assert!(matches!(event.user.groups[0].0, Cow::Borrowed("dev")), "nothing is copied");
            count += 1;
        })
        .unwrap();
        assert_eq!(count, 1);
    }

    #[test]
    fn an_undecodable_event_does_not_affect_the_others() {
        let body = LIST.replace("ITEMS", &format!(r#"{EVENT},{{"auditID":7}},"x",null,{EVENT}"#));
        let mut decoded = Vec::new();
        decode_batch(body.as_bytes(), |event| decoded.push(event.is_some())).unwrap();

        assert_eq!(decoded, [true, false, false, false, true]);
    }

    #[rstest]
    #[case::not_json("hello", "not an EventList in JSON")]
    #[case::truncated(r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[{"#, "not an EventList in JSON")]
    #[case::another_kind(r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#, "v1, PodList")]
    #[case::another_version(r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1beta1","items":[]}"#, "v1beta1")]
    #[case::an_empty_object("{}", "not an EventList of audit.k8s.io/v1")]
    #[case::items_that_are_not_a_list(
        r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":7}"#,
        "not an EventList in JSON"
    )]
    #[case::text_after_the_list(
        r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[]} x"#,
        "not an EventList in JSON"
    )]
    fn a_body_that_is_not_an_event_list_is_rejected(#[case] body: &str, #[case] reason: &str) {
        let error = decode_batch(body.as_bytes(), |_| {}).unwrap_err().to_string();

        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn an_impersonated_request_is_activity_of_the_impersonated_user() {
        let event = EVENT.replace(r#""sourceIPs""#, r#""impersonatedUser":{"username":"bob"},"sourceIPs""#);

        assert_eq!(decode_line(event.as_bytes()).unwrap().actor().username, "bob");
    }
}
