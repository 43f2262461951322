//! Reads the API server's audit log as a list of calls.
//!
//! A call is counted at its stage `RequestReceived`. That entry is in the log before the call is answered,
//! so a test can count without waiting. Later entries of the same call add the name of a created object,
//! the impersonated user and the status code. They may be written after the answer, so a test that reads
//! those fields waits for them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use serde::Deserialize;

use crate::{Error, Result};

/// One call that reached the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedCall {
    /// The user: the impersonated one, once a later entry names it.
    pub user: String,
    /// The authenticated user. Differs from `user` if the call impersonates.
    pub caller: String,
    /// The user agent.
    pub agent: String,
    /// `get`, `list`, `patch` and so on.
    pub verb: String,
    /// The API group of the resource; empty for the core group, and if the call is not for a resource.
    pub group: String,
    /// The plural name, with `/subresource` if there is one; the URL path if the call is not for a resource.
    pub resource: String,
    /// The query of the URL: `limit=500`; empty if there is none.
    pub query: String,
    /// The object's namespace; empty if there is none.
    pub namespace: String,
    /// The object's name; empty if there is none, or until a later entry names a created object.
    pub name: String,
    /// The status code of the answer, once a later entry has it.
    pub code: Option<u16>,
    /// The time at which the server received the call: RFC 3339 with microseconds.
    pub received: String,
}

/// Calls, in the order in which the server received them.
#[derive(Debug, Clone, Default)]
pub struct AuditLog {
    calls: Vec<AuditedCall>,
}

impl AuditLog {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
        Self::parse(&text)
    }

    /// Parses the JSON lines that kube-apiserver writes. Ignores a last line without a line break, which is
    /// still being written.
    pub fn parse(text: &str) -> Result<Self> {
        let complete = &text[..text.rfind('\n').map_or(0, |i| i + 1)];
        let mut calls: Vec<AuditedCall> = Vec::new();
        let mut positions = HashMap::new();
        for (i, line) in complete.lines().enumerate() {
            let entry: Entry = serde_json::from_str(line).map_err(|source| Error::Audit { line: i + 1, source })?;
            if entry.stage == "RequestReceived" {
                positions.insert(entry.audit_id.clone(), calls.len());
                calls.push(entry.into());
            } else if let Some(position) = positions.get(&entry.audit_id) {
                calls[*position].merge(entry);
            }
        }
        Ok(Self { calls })
    }

    /// Returns the calls for which `keep` returns true.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&AuditedCall) -> bool) -> Self {
        Self { calls: self.calls.iter().filter(|c| keep(c)).cloned().collect() }
    }

    /// Returns the calls without the first `count`.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        Self { calls: self.calls.iter().skip(count).cloned().collect() }
    }

    /// Returns the calls of this user.
    #[must_use]
    pub fn of(&self, user: &str) -> Self {
        self.only(|c| c.user == user)
    }

    /// Returns the calls as a slice.
    #[must_use]
    pub fn calls(&self) -> &[AuditedCall] {
        &self.calls
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// True if there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the number of calls with this verb and resource.
    #[must_use]
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        self.calls.iter().filter(|c| c.verb == verb && c.resource == resource).count()
    }

    /// Returns the number of lists of this resource with this limit, by their first pages.
    #[must_use]
    pub fn lists(&self, resource: &str, limit: u32) -> usize {
        let wanted = format!("limit={limit}");
        let is_first = |c: &&AuditedCall| {
            let mut parts = c.query.split('&');
            parts.any(|part| part == wanted) && !c.query.contains("continue=")
        };
        self.calls.iter().filter(|c| c.verb == "list" && c.resource == resource).filter(is_first).count()
    }

    /// Returns the number of calls other than get, list and watch.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.calls.iter().filter(|c| !matches!(c.verb.as_str(), "get" | "list" | "watch")).count()
    }

    /// Returns the number of calls for each user, verb and resource.
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
        let width = |length: &dyn Fn(&(String, String, String)) -> usize| table.keys().map(length).max().unwrap_or(0);
        let (user, verb, resource) =
            (width(&|k| k.0.len()).max(4), width(&|k| k.1.len()).max(4), width(&|k| k.2.len()).max(8));
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
    #[serde(rename = "apiGroup")]
    group: String,
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
            group: object.group,
            resource,
            query: entry.request_uri.split_once('?').map_or("", |(_, query)| query).to_owned(),
            namespace: object.namespace,
            name: object.name,
            code: entry.response_status.and_then(|s| s.code),
            received: entry.request_received_timestamp,
        }
    }
}

impl AuditedCall {
    /// Adds the fields that a later entry of the same call has.
    fn merge(&mut self, later: Entry) {
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
