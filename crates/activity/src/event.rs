//! Audit events as the API server sends them, as little of each as matters, borrowed from the text.

use std::borrow::Cow;

use caretaker_core::Timestamp;
use serde::Deserialize;
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

/// What a batch holds.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// The events that could be read.
    pub events: Vec<Event<'a>>,
    /// How many could not.
    pub broken: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<'a, T> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

impl<T> List<'_, T> {
    fn checked(self) -> Result<Vec<T>, Malformed> {
        const SHOWN: usize = 80;
        if self.kind == "EventList" && self.api_version == "audit.k8s.io/v1" {
            return Ok(self.items);
        }
        Err(Malformed::Kind(format!("{}, {}", self.api_version, self.kind).chars().take(SHOWN).collect()))
    }
}

/// Reads a batch. One odd event does not spoil the others.
pub fn batch(body: &[u8]) -> Result<Batch<'_>, Malformed> {
    if let Ok(list) = serde_json::from_slice::<List<'_, Event<'_>>>(body) {
        return list.checked().map(|events| Batch { events, broken: 0 });
    }
    let items = serde_json::from_slice::<List<'_, &RawValue>>(body)?.checked()?;
    let mut batch = Batch::default();
    for item in items {
        match serde_json::from_str(item.get()) {
            Ok(event) => batch.events.push(event),
            Err(_) => batch.broken += 1,
        }
    }
    Ok(batch)
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
        let batch = batch(body.as_bytes()).unwrap();

        let [event] = batch.events.as_slice() else { panic!("{batch:?}") };
        assert_eq!((event.what().as_str(), event.actor().username.as_ref()), ("ListPods", "ann"));
        assert_eq!(event.received(), "2026-03-02T09:00:00.123456Z".parse().ok());
        assert!(matches!(event.user.groups[0].0, Cow::Borrowed("dev")), "nothing is copied");
    }

    #[test]
    fn one_odd_event_does_not_spoil_the_others() {
        let body = LIST.replace("ITEMS", &format!(r#"{EVENT},{{"auditID":7}},"x",null,{EVENT}"#));
        let batch = batch(body.as_bytes()).unwrap();

        assert_eq!((batch.events.len(), batch.broken), (2, 3));
    }

    #[rstest]
    #[case::not_json("hello", "not an EventList in JSON")]
    #[case::cut_off(r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[{"#, "not an EventList in JSON")]
    #[case::another_kind(r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#, "v1, PodList")]
    #[case::another_version(r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1beta1","items":[]}"#, "v1beta1")]
    #[case::nothing("{}", "is no EventList")]
    #[case::an_array("[]", "is no EventList")]
    fn anything_else_is_refused(#[case] body: &str, #[case] why: &str) {
        let error = batch(body.as_bytes()).unwrap_err().to_string();

        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn impersonation_counts_for_the_impersonated() {
        let event = EVENT.replace(r#""sourceIPs""#, r#""impersonatedUser":{"username":"bob"},"sourceIPs""#);

        assert_eq!(line(event.as_bytes()).unwrap().actor().username, "bob");
    }
}
