//! Where uses are heard of, and which of them count.

use std::net::SocketAddr;
use std::path::PathBuf;

use caretaker_activity::filter::{Filter, Lists};
use caretaker_activity::receive::Files;
use caretaker_core::{SignedDuration, duration};
use caretaker_namespaces::subject::Policy;
use serde::{Deserialize, Deserializer, de};

use super::common::{span, span_or_none};
use crate::cli::Audit;

/// Where activity comes from.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ActivityConfig {
    /// Who tells of it; the rest is for `audit`.
    pub source: ActivitySource,
    /// Where the API server sends audit events to.
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
    /// What the receiver proves itself with.
    pub tls: Option<TlsConfig>,
    /// The authority of the certificates that clients may show.
    pub client_ca: Option<PathBuf>,
    /// The token that clients may show instead.
    pub token_file: Option<PathBuf>,
    /// An audit log to follow.
    pub log: Option<PathBuf>,
    /// Where the place in it is kept.
    pub position: Option<PathBuf>,
    /// What never counts, beside what is built in.
    pub ignore: ListsConfig,
    /// What counts all the same.
    pub count: ListsConfig,
    /// How long the same read on a steady beat counts.
    #[serde(deserialize_with = "span_or_none")]
    pub beat: Option<SignedDuration>,
    /// How long an open session may last.
    #[serde(deserialize_with = "span")]
    pub session: SignedDuration,
    /// How often a request of our own must come back as an audit event.
    #[serde(deserialize_with = "span_or_none")]
    pub canary: Option<SignedDuration>,
    /// How often a namespace that is awake is written.
    #[serde(deserialize_with = "span")]
    pub record: SignedDuration,
}

impl Default for ActivityConfig {
    fn default() -> Self {
        Self {
            source: ActivitySource::default(),
            listen: None,
            tls: None,
            client_ca: None,
            token_file: None,
            log: None,
            position: None,
            ignore: ListsConfig::default(),
            count: ListsConfig::default(),
            beat: Some(SignedDuration::from_mins(30)),
            session: Policy::SESSION,
            canary: Some(SignedDuration::from_mins(1)),
            record: SignedDuration::from_mins(1),
        }
    }
}

/// Who tells of uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ActivitySource {
    /// Somebody else writes the annotation, as with kubefree.
    #[default]
    Annotation,
    /// The API server's audit.
    Audit,
}

/// A certificate and its key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TlsConfig {
    cert: PathBuf,
    key: PathBuf,
}

/// Lists with `*` and `?`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ListsConfig {
    users: Vec<String>,
    groups: Vec<String>,
    user_agents: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<String>,
}

impl ListsConfig {
    fn lists(&self) -> Lists {
        Lists {
            users: self.users.clone(),
            groups: self.groups.clone(),
            agents: self.user_agents.clone(),
            verbs: self.verbs.clone(),
            resources: self.resources.clone(),
        }
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || de::Error::custom(format!("listen is {text:?}: write an address and a port, such as 0.0.0.0:9443"));
    text.parse().map(Some).map_err(|_| wrong())
}

/// Where uses are heard of, all questions answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Where to listen, and who may speak.
    pub listen: Option<(SocketAddr, Files)>,
    /// Which log to follow, and where to keep the place.
    pub log: Option<(PathBuf, PathBuf)>,
}

impl Sources {
    /// Whether nobody listens: somebody else writes the annotation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listen.is_none() && self.log.is_none()
    }
}

/// Shorter, and the canary would not be back before the next is due.
const SHORTEST: SignedDuration = SignedDuration::from_secs(1);

impl ActivityConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        let key = "keepers.namespaces.activity";
        for (name, value) in [("canary", self.canary), ("beat", self.beat)] {
            if let Some(value) = value.filter(|value| *value < SHORTEST) {
                return Err(format!("{key}.{name} is {}: at least 1s, or none", duration::format(value)));
            }
        }
        for (name, value) in [("record", self.record), ("session", self.session)] {
            if value < SHORTEST {
                return Err(format!("{key}.{name} is {}: at least 1s", duration::format(value)));
            }
        }
        for (list, lists) in [("ignore", self.ignore.lists()), ("count", self.count.lists())] {
            let all = [
                ("users", &lists.users),
                ("groups", &lists.groups),
                ("userAgents", &lists.agents),
                ("verbs", &lists.verbs),
                ("resources", &lists.resources),
            ];
            let empty = |words: &[String]| words.iter().any(|word| word.trim().is_empty());
            if let Some((name, _)) = all.into_iter().find(|(_, words)| empty(words)) {
                return Err(format!("{key}.{list}.{name} has an empty entry: write a name or a pattern"));
            }
            for word in &lists.resources {
                if word.matches('/').count() > 1 {
                    return Err(format!(
                        "{key}.{list}.resources has {word:?}: write pods, pods/log, */status or leases.coordination.k8s.io"
                    ));
                }
            }
        }
        Ok(())
    }

    /// What counts.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter::new(&Lists::never().and(&self.ignore.lists()), &self.count.lists())
    }

    /// Where to listen: a flag comes before its setting.
    pub fn sources(&self, flags: &Audit) -> Result<Sources, String> {
        let asked = flags.audit_listen.is_some() || flags.audit_log.is_some();
        if self.source == ActivitySource::Annotation && !asked {
            let flags_alone = [
                ("--audit-tls-cert", flags.audit_tls_cert.is_some()),
                ("--audit-tls-key", flags.audit_tls_key.is_some()),
                ("--audit-client-ca", flags.audit_client_ca.is_some()),
                ("--audit-token-file", flags.audit_token_file.is_some()),
                ("--audit-position", flags.audit_position.is_some()),
            ];
            if let Some((flag, _)) = flags_alone.into_iter().find(|(_, given)| *given) {
                return Err(format!("{flag} is given, but neither --audit-listen nor --audit-log"));
            }
            let set = [
                ("listen", self.listen.is_some()),
                ("log", self.log.is_some()),
                ("tls", self.tls.is_some()),
                ("clientCa", self.client_ca.is_some()),
                ("tokenFile", self.token_file.is_some()),
                ("position", self.position.is_some()),
                ("ignore", self.ignore != ListsConfig::default()),
                ("count", self.count != ListsConfig::default()),
            ];
            if let Some((name, _)) = set.into_iter().find(|(_, is_set)| *is_set) {
                return Err(format!(
                    "keepers.namespaces.activity.{name} is set, but source is annotation: write source: audit"
                ));
            }
            return Ok(Sources::default());
        }
        let either = |flag: &Option<PathBuf>, setting: Option<&PathBuf>| flag.clone().or_else(|| setting.cloned());
        let cert = either(&flags.audit_tls_cert, self.tls.as_ref().map(|tls| &tls.cert));
        let key = either(&flags.audit_tls_key, self.tls.as_ref().map(|tls| &tls.key));
        let files = Files {
            tls: match (cert, key) {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                (Some(_), None) => return Err("--audit-tls-cert needs --audit-tls-key".to_owned()),
                (None, Some(_)) => return Err("--audit-tls-key needs --audit-tls-cert".to_owned()),
            },
            client_ca: either(&flags.audit_client_ca, self.client_ca.as_ref()),
            token: either(&flags.audit_token_file, self.token_file.as_ref()),
        };
        let listen = match flags.audit_listen.or(self.listen) {
            Some(address) => Some((address, checked(address, files)?)),
            None => None,
        };
        let log = either(&flags.audit_log, self.log.as_ref()).map(|log| {
            let position = either(&flags.audit_position, self.position.as_ref());
            let position = position.unwrap_or_else(|| {
                let mut name = log.file_name().unwrap_or_default().to_owned();
                name.push(".caretaker");
                // Not the log's own beginning, which the log's siblings share.
                log.with_file_name(format!(".{}", name.to_string_lossy()))
            });
            (log, position)
        });
        let sources = Sources { listen, log };
        if sources.is_empty() {
            return Err("keepers.namespaces.activity.source is audit, but nobody says where: \
                 write listen or log, or give --audit-listen or --audit-log"
                .to_owned());
        }
        Ok(sources)
    }
}

/// Whoever could tell of uses could keep every namespace awake.
fn checked(address: SocketAddr, files: Files) -> Result<Files, String> {
    if address.ip().is_loopback() {
        if files.client_ca.is_some() && files.tls.is_none() {
            return Err("--audit-client-ca needs --audit-tls-cert and --audit-tls-key".to_owned());
        }
        return Ok(files);
    }
    if files.tls.is_none() {
        return Err(format!(
            "--audit-listen {address} is no loopback address: give --audit-tls-cert and --audit-tls-key; \
             caretaker audit-config makes them"
        ));
    }
    if files.is_open() {
        return Err(format!(
            "--audit-listen {address} is no loopback address: anybody could tell of uses there. \
             Give --audit-token-file or --audit-client-ca; caretaker audit-config makes them"
        ));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn asked(address: &str, change: impl FnOnce(&mut Audit)) -> Result<Sources, String> {
        let mut flags = Audit { audit_listen: Some(address.parse().unwrap()), ..Audit::default() };
        change(&mut flags);
        ActivityConfig::default().sources(&flags)
    }

    #[test]
    fn a_loopback_address_needs_nothing() {
        let sources = asked("127.0.0.1:9443", |_| {}).unwrap();

        assert!(sources.listen.is_some_and(|(_, files)| files == Files::default()));
    }

    #[rstest]
    #[case::bare(false, false, false, "--audit-tls-cert")]
    #[case::only_a_token(false, true, false, "--audit-tls-cert")]
    #[case::only_tls(true, false, false, "--audit-token-file or --audit-client-ca")]
    fn any_other_address_needs_tls_and_credentials(
        #[case] tls: bool,
        #[case] token: bool,
        #[case] ca: bool,
        #[case] says: &str,
    ) {
        let set = |flags: &mut Audit, tls: bool, token: bool, ca: bool| {
            (flags.audit_tls_cert, flags.audit_tls_key) = (tls.then(|| "c".into()), tls.then(|| "k".into()));
            (flags.audit_token_file, flags.audit_client_ca) = (token.then(|| "t".into()), ca.then(|| "a".into()));
        };
        let error = asked("0.0.0.0:9443", |flags| set(flags, tls, token, ca)).unwrap_err();

        assert!(error.contains(says), "{error}");
        assert!(asked("0.0.0.0:9443", |flags| set(flags, true, true, false)).is_ok());
        assert!(asked("0.0.0.0:9443", |flags| set(flags, true, false, true)).is_ok());
    }

    #[test]
    fn a_source_needs_a_place_and_a_place_needs_the_source() {
        let audit = ActivityConfig { source: ActivitySource::Audit, ..ActivityConfig::default() };
        let log = ActivityConfig { log: Some("/var/log/audit.log".into()), ..ActivityConfig::default() };

        assert!(audit.sources(&Audit::default()).unwrap_err().contains("nobody says where"));
        assert!(log.sources(&Audit::default()).unwrap_err().contains("source: audit"));
    }

    #[test]
    fn the_place_in_a_log_is_kept_beside_it() {
        let flags = Audit { audit_log: Some("/var/log/audit.log".into()), ..Audit::default() };
        let sources = ActivityConfig::default().sources(&flags).unwrap();

        assert_eq!(sources.log.unwrap().1, PathBuf::from("/var/log/.audit.log.caretaker"));
    }
}
