//! Audit events as the API server sends them, as little of each as matters, borrowed from the text.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use caretaker_core::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// One stage of one request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Event<'a> {
    /// The request: the same in all of its stages.
    #[serde(borrow, rename = "auditID")]
    pub id: Cow<'a, str>,
    /// `RequestReceived`, `ResponseStarted`, `ResponseComplete` or `Panic`.
    #[serde(borrow)]
    pub stage: Cow<'a, str>,
    /// The path and its query.
    #[serde(borrow, rename = "requestURI")]
    pub uri: Cow<'a, str>,
    /// `get`, `list`, `watch`, `create` and so on.
    #[serde(borrow)]
    pub verb: Cow<'a, str>,
    /// Who proved who they are.
    #[serde(borrow)]
    pub user: User<'a>,
    /// As whom they act, if it is somebody else.
    #[serde(borrow)]
    pub impersonated_user: Option<User<'a>>,
    /// With what program.
    #[serde(borrow)]
    pub user_agent: Cow<'a, str>,
    /// On what; nothing for a path that is no resource.
    #[serde(borrow)]
    pub object_ref: Option<ObjectRef<'a>>,
    /// The answer, once there is one.
    pub response_status: Option<Answer>,
    /// When the request came.
    #[serde(borrow)]
    pub request_received_timestamp: Cow<'a, str>,
    /// When this stage was reached.
    #[serde(borrow)]
    pub stage_timestamp: Cow<'a, str>,
}

/// Somebody.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct User<'a> {
    /// The name.
    #[serde(borrow)]
    pub username: Cow<'a, str>,
    /// What tells two of the same name apart.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// The groups.
    #[serde(borrow)]
    pub groups: Vec<Text<'a>>,
}

/// A text in a list, borrowed where it can be.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// An object, or all of a kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectRef<'a> {
    /// Plural, such as `pods`.
    #[serde(borrow)]
    pub resource: Cow<'a, str>,
    /// Where it is.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Its name, if one was meant.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// Its group, empty for the core's.
    #[serde(borrow)]
    pub api_group: Cow<'a, str>,
    /// Such as `exec`.
    #[serde(borrow)]
    pub subresource: Cow<'a, str>,
}

/// What the API server answered.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
}

impl<'a> Event<'a> {
    /// Who it counts for.
    #[must_use]
    pub fn actor(&self) -> &User<'a> {
        self.impersonated_user.as_ref().unwrap_or(&self.user)
    }

    /// When the request came.
    #[must_use]
    pub fn received(&self) -> Option<Timestamp> {
        self.request_received_timestamp.parse().ok()
    }

    /// When this stage was reached.
    #[must_use]
    pub fn reached(&self) -> Option<Timestamp> {
        self.stage_timestamp.parse().ok()
    }

    /// What was done, as the specification of `activity-status` writes it: `ListPods`.
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

/// Why a text is no batch of events.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It is not JSON, or not of that shape.
    #[error("not an EventList in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is something else.
    #[error("{0:?} is no EventList of audit.k8s.io/v1: is another webhook's address in the API server's settings?")]
    Kind(String),
}

/// What is not read yet: only whether it is a batch at all.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
}

/// Reads a batch and hands out one event after the other, or nothing for one that cannot be read: it
/// does not spoil the others. No more than one is held at a time.
pub fn batch(body: &[u8], mut each: impl FnMut(Option<&Event<'_>>)) -> Result<(), Malformed> {
    const SHOWN: usize = 80;
    let head: Head<'_> = serde_json::from_slice(body)?;
    if head.kind != "EventList" || head.api_version != "audit.k8s.io/v1" {
        let kind = format!("{}, {}", head.api_version, head.kind);
        return Err(Malformed::Kind(kind.chars().take(SHOWN).collect()));
    }
    let mut taken = 0_usize;
    let whole = items(body, &mut |event: Event<'_>| {
        taken += 1;
        each(Some(&event));
    });
    if whole.is_err() {
        let mut place = 0;
        items(body, &mut |text: &RawValue| {
            place += 1;
            if place > taken {
                each(serde_json::from_str(text.get()).ok().as_ref());
            }
        })?;
    }
    Ok(())
}

/// Hands out the items of a list as they are read.
fn items<'de, T: Deserialize<'de>>(body: &'de [u8], each: &mut impl FnMut(T)) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer.deserialize_map(List { each, what: PhantomData })?;
    deserializer.end()
}

struct List<'e, T, F> {
    each: &'e mut F,
    what: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for List<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<Text<'de>>()? {
            if key.0 == "items" {
                map.next_value_seed(Items { each: &mut *self.each, what: PhantomData })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Items<'e, T, F> {
    each: &'e mut F,
    what: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for Items<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Items<'_, T, F> {
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

/// Reads one line of an audit log.
pub fn line(line: &[u8]) -> Result<Event<'_>, serde_json::Error> {
    serde_json::from_slice(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const LIST: &str = r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[ITEMS]}"#;
    const EVENT: &str = r#"{"level":"Metadata","auditID":"a1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/shop/pods?limit=500","verb":"list","user":{"username":"ann","uid":"u1","groups":["dev","system:authenticated"],"extra":{"a":["b"]}},"sourceIPs":["10.0.0.1"],"userAgent":"kubectl/v1.36.3","objectRef":{"resource":"pods","namespace":"shop","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-03-02T09:00:00.123456Z","stageTimestamp":"2026-03-02T09:00:00.133456Z","annotations":{"authorization.k8s.io/decision":"allow"}}"#;

    #[test]
    fn a_batch_is_read_as_the_api_server_sends_it() {
        let body = LIST.replace("ITEMS", EVENT);
        let mut count = 0;
        batch(body.as_bytes(), |event| {
            let event = event.unwrap();
            assert_eq!((event.what().as_str(), event.actor().username.as_ref()), ("ListPods", "ann"));
            assert_eq!(event.received(), "2026-03-02T09:00:00.123456Z".parse().ok());
            assert!(matches!(event.user.groups[0].0, Cow::Borrowed("dev")), "nothing is copied");
            count += 1;
        })
        .unwrap();
        assert_eq!(count, 1);
    }

    #[test]
    fn one_odd_event_does_not_spoil_the_others() {
        let body = LIST.replace("ITEMS", &format!(r#"{EVENT},{{"auditID":7}},"x",null,{EVENT}"#));
        let mut told = Vec::new();
        batch(body.as_bytes(), |event| told.push(event.is_some())).unwrap();

        assert_eq!(told, [true, false, false, false, true]);
    }

    #[rstest]
    #[case::not_json("hello", "not an EventList in JSON")]
    #[case::cut_off(r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[{"#, "not an EventList in JSON")]
    #[case::another_kind(r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#, "v1, PodList")]
    #[case::another_version(r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1beta1","items":[]}"#, "v1beta1")]
    #[case::nothing("{}", "is no EventList")]
    #[case::an_array("[]", "is no EventList")]
    #[case::items_that_are_none(
        r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":7}"#,
        "not an EventList in JSON"
    )]
    #[case::something_behind_it(
        r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[]} x"#,
        "not an EventList in JSON"
    )]
    fn anything_else_is_refused(#[case] body: &str, #[case] why: &str) {
        let error = batch(body.as_bytes(), |_| {}).unwrap_err().to_string();

        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn impersonation_counts_for_the_impersonated() {
        let event = EVENT.replace(r#""sourceIPs""#, r#""impersonatedUser":{"username":"bob"},"sourceIPs""#);

        assert_eq!(line(event.as_bytes()).unwrap().actor().username, "bob");
    }
}
