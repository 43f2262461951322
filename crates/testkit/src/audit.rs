//! The API server's audit log, as a table of calls.
//!
//! A call is counted when the server has received it: that entry is in the log before the call is
//! answered, so a count needs no waiting. Later entries on the same call tell more (the name of
//! what was created, the impersonated user, the answer); they may come after the answer, so a test
//! that looks at those waits for them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use serde::Deserialize;

use crate::{Error, Result};

/// One call that reached the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedCall {
    /// Who: the impersonated user, once that is known.
    pub user: String,
    /// Who proved who they are; another than `user` where that one is impersonated.
    pub caller: String,
    /// With what program.
    pub agent: String,
    /// `get`, `list`, `patch` and so on.
    pub verb: String,
    /// Plural, with the subresource behind a slash; the path for what is no resource.
    pub resource: String,
    /// Its namespace, if any.
    pub namespace: String,
    /// Its name, if any; of what is created, once that is known.
    pub name: String,
    /// The status of the answer, once there is one.
    pub code: Option<u16>,
    /// When it arrived, RFC 3339 with microseconds.
    pub received: String,
}

/// Calls, in the order of their arrival.
#[derive(Debug, Clone, Default)]
pub struct AuditLog {
    calls: Vec<AuditedCall>,
}

impl AuditLog {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
        Self::parse(&text)
    }

    /// Reads JSON lines as kube-apiserver writes them; a last line still being written is left out.
    pub fn parse(text: &str) -> Result<Self> {
        let whole = &text[..text.rfind('\n').map_or(0, |i| i + 1)];
        let mut calls: Vec<AuditedCall> = Vec::new();
        let mut places = HashMap::new();
        for (i, line) in whole.lines().enumerate() {
            let entry: Entry = serde_json::from_str(line).map_err(|source| Error::Audit { line: i + 1, source })?;
            if entry.stage == "RequestReceived" {
                places.insert(entry.audit_id.clone(), calls.len());
                calls.push(entry.into());
            } else if let Some(place) = places.get(&entry.audit_id) {
                calls[*place].learn(entry);
            }
        }
        Ok(Self { calls })
    }

    /// Only the calls for which `keep` is true.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&AuditedCall) -> bool) -> Self {
        Self { calls: self.calls.iter().filter(|c| keep(c)).cloned().collect() }
    }

    /// Without the first so many.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        Self { calls: self.calls.iter().skip(count).cloned().collect() }
    }

    /// Only this user's.
    #[must_use]
    pub fn of(&self, user: &str) -> Self {
        self.only(|c| c.user == user)
    }

    /// The calls themselves.
    #[must_use]
    pub fn calls(&self) -> &[AuditedCall] {
        &self.calls
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many of this verb on this resource.
    #[must_use]
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        self.calls.iter().filter(|c| c.verb == verb && c.resource == resource).count()
    }

    /// How many that change something.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.calls.iter().filter(|c| !matches!(c.verb.as_str(), "get" | "list" | "watch")).count()
    }

    /// Counts by user, verb and resource.
    #[must_use]
    pub fn table(&self) -> BTreeMap<(String, String, String), usize> {
        let mut table = BTreeMap::new();
        for call in &self.calls {
            *table.entry((call.user.clone(), call.verb.clone(), call.resource.clone())).or_insert(0) += 1;
        }
        table
    }
}

impl fmt::Display for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        let wide = |text: &dyn Fn(&(String, String, String)) -> usize| table.keys().map(text).max().unwrap_or(0);
        let (user, verb, resource) =
            (wide(&|k| k.0.len()).max(4), wide(&|k| k.1.len()).max(4), wide(&|k| k.2.len()).max(8));
        writeln!(f, "{:user$}  {:verb$}  {:resource$}  CALLS", "USER", "VERB", "RESOURCE")?;
        for ((who, what, on), count) in &table {
            writeln!(f, "{who:user$}  {what:verb$}  {on:resource$}  {count:>5}")?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
    #[serde(default)]
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    code: Option<u16>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    namespace: String,
    name: String,
    subresource: String,
}

impl From<Entry> for AuditedCall {
    fn from(entry: Entry) -> Self {
        let object = entry.object_ref.unwrap_or_default();
        let resource = match (object.resource.as_str(), object.subresource.as_str()) {
            ("", _) => entry.request_uri.split('?').next().unwrap_or_default().to_owned(),
            (resource, "") => resource.to_owned(),
            (resource, sub) => format!("{resource}/{sub}"),
        };
        Self {
            caller: entry.user.username.clone(),
            user: entry.impersonated_user.unwrap_or(entry.user).username,
            agent: entry.user_agent,
            verb: entry.verb,
            resource,
            namespace: object.namespace,
            name: object.name,
            code: entry.response_status.and_then(|s| s.code),
            received: entry.request_received_timestamp,
        }
    }
}

impl AuditedCall {
    /// Takes over what a later entry on the same call tells.
    fn learn(&mut self, later: Entry) {
        let later = Self::from(later);
        self.user = later.user;
        self.code = later.code.or(self.code);
        if self.name.is_empty() {
            self.name = later.name;
        }
        if self.namespace.is_empty() {
            self.namespace = later.namespace;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVED: &str = r#"{"auditID":"1","stage":"RequestReceived","verb":"create","requestURI":"/api/v1/namespaces","user":{"username":"admin"},"objectRef":{"resource":"namespaces"}}"#;
    const COMPLETE: &str = r#"{"auditID":"1","stage":"ResponseComplete","verb":"create","requestURI":"/api/v1/namespaces","user":{"username":"admin"},"impersonatedUser":{"username":"guest"},"objectRef":{"resource":"namespaces","name":"made"},"responseStatus":{"code":201}}"#;

    #[test]
    fn a_call_is_counted_once_and_later_stages_tell_more() {
        let early = AuditLog::parse(&format!("{RECEIVED}\n")).unwrap();
        let late = AuditLog::parse(&format!("{RECEIVED}\n{COMPLETE}\n")).unwrap();

        let [before] = early.calls() else { panic!("{early}") };
        assert_eq!((before.user.as_str(), before.name.as_str(), before.code), ("admin", "", None));
        let [after] = late.calls() else { panic!("{late}") };
        assert_eq!((after.user.as_str(), after.caller.as_str()), ("guest", "admin"));
        assert_eq!((after.name.as_str(), after.code), ("made", Some(201)));
    }

    #[test]
    fn a_line_still_being_written_is_left_out() {
        let log = AuditLog::parse(&format!("{RECEIVED}\n{}", &COMPLETE[..40])).unwrap();

        assert_eq!(log.len(), 1);
    }
}
