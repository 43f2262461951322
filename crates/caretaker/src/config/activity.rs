//! Where audit events come from, and which of them count as use of a namespace.

use std::net::SocketAddr;
use std::path::PathBuf;

use caretaker_activity::audit_webhook::CredentialFiles;
use caretaker_activity::canary::DEFAULT_MAX_SKEW;
use caretaker_activity::filter::{Filter, GitOpsAccounts, PatternLists};
use caretaker_core::{SignedDuration, duration};
use caretaker_namespaces::subject::Policy;
use serde::{Deserialize, Deserializer, de};

use super::common::{self, duration_or_none};
use crate::cli::AuditArgs;

/// The section `keepers.namespaces.activity`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ActivityConfig {
    /// The source; all other settings are for `audit`.
    pub source: ActivitySource,
    /// The address on which audit events are received.
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
    /// The receiver's certificate.
    pub tls: Option<TlsConfig>,
    /// The authority of the client certificates that are accepted.
    pub client_ca: Option<PathBuf>,
    /// The file with the token that is accepted.
    pub token_file: Option<PathBuf>,
    /// An audit log to follow.
    pub log: Option<PathBuf>,
    /// Where the position in the log is saved.
    pub position_file: Option<PathBuf>,
    /// What never counts, in addition to what is built in.
    pub ignore: PatternListsConfig,
    /// What counts although a list ignores it.
    pub include: PatternListsConfig,
    /// Accounts of which only writes count.
    pub gitops: GitOpsConfig,
    /// How long a periodic poll still counts.
    #[serde(deserialize_with = "duration_or_none")]
    pub poll_grace: Option<SignedDuration>,
    /// How long an open session counts.
    #[serde(deserialize_with = "common::duration")]
    pub max_session: SignedDuration,
    /// How often a request of our own must come back as an audit event.
    #[serde(deserialize_with = "duration_or_none")]
    pub canary_interval: Option<SignedDuration>,
    /// How far the clocks of the API servers and of this machine may differ.
    #[serde(deserialize_with = "common::duration")]
    pub max_clock_skew: SignedDuration,
    /// How often a namespace that is awake is written.
    #[serde(deserialize_with = "common::duration")]
    pub write_interval: SignedDuration,
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
            position_file: None,
            ignore: PatternListsConfig::default(),
            include: PatternListsConfig::default(),
            gitops: GitOpsConfig::default(),
            poll_grace: Some(SignedDuration::from_mins(30)),
            max_session: Policy::MAX_SESSION,
            canary_interval: Some(SignedDuration::from_mins(1)),
            max_clock_skew: DEFAULT_MAX_SKEW,
            write_interval: SignedDuration::from_mins(1),
        }
    }
}

impl ActivityConfig {
    /// Takes over from the command line that audit events are received: what they tell then proves as much as with the
    /// setting.
    pub(crate) fn take_flags(&mut self, flags: &AuditArgs) {
        if flags.audit_listen.is_some() || flags.audit_log.is_some() {
            self.source = ActivitySource::Audit;
        }
    }

    /// True if canaries prove that audit events arrive.
    pub(super) fn proves_use(&self) -> bool {
        self.source == ActivitySource::Audit && self.canary_interval.is_some()
    }
}

/// Where activity comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ActivitySource {
    /// Another program writes the annotation, as with kubefree.
    #[default]
    Annotation,
    /// Audit events of API servers.
    Audit,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TlsConfig {
    cert: PathBuf,
    key: PathBuf,
}

/// Lists of patterns with `*` and `?`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PatternListsConfig {
    users: Vec<String>,
    groups: Vec<String>,
    user_agents: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<String>,
}

impl PatternListsConfig {
    fn lists(&self) -> PatternLists {
        PatternLists {
            users: self.users.clone(),
            groups: self.groups.clone(),
            agents: self.user_agents.clone(),
            verbs: self.verbs.clone(),
            resources: self.resources.clone(),
        }
    }
}

/// GitOps accounts, in addition to those that are built in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct GitOpsConfig {
    users: Vec<String>,
    groups: Vec<String>,
    /// Whether a write that is no dry run counts.
    count_writes: bool,
}

impl Default for GitOpsConfig {
    fn default() -> Self {
        Self { users: Vec::new(), groups: Vec::new(), count_writes: true }
    }
}

impl GitOpsConfig {
    fn accounts(&self) -> GitOpsAccounts {
        let accounts = GitOpsAccounts::default().extended_with(&self.users, &self.groups);
        GitOpsAccounts { writes_count: self.count_writes, ..accounts }
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let invalid =
        || de::Error::custom(format!("listen is {text:?}: write an address and a port, such as 0.0.0.0:9443"));
    text.parse().map(Some).map_err(|_| invalid())
}

/// Where audit events come from, with flags and settings combined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditSources {
    /// The address of the receiver, and the clients that it accepts.
    pub listen: Option<(SocketAddr, CredentialFiles)>,
    /// The log to follow, and the file for the position in it.
    pub log: Option<(PathBuf, PathBuf)>,
}

impl AuditSources {
    /// True if no audit events come in: another program writes the annotation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listen.is_none() && self.log.is_none()
    }
}

/// The shortest interval. With a shorter one, the next canary would be due before the last one is back.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

impl ActivityConfig {
    pub(super) fn validate(&self) -> Result<(), String> {
        let key = "keepers.namespaces.activity";
        for (name, value) in [("canaryInterval", self.canary_interval), ("pollGrace", self.poll_grace)] {
            if let Some(value) = value.filter(|value| *value < MIN_INTERVAL) {
                return Err(format!("{key}.{name} is {}: at least 1s, or none", duration::format(value)));
            }
        }
        let at_least_a_second = [
            ("writeInterval", self.write_interval),
            ("maxSession", self.max_session),
            ("maxClockSkew", self.max_clock_skew),
        ];
        for (name, value) in at_least_a_second {
            if value < MIN_INTERVAL {
                return Err(format!("{key}.{name} is {}: at least 1s", duration::format(value)));
            }
        }
        let GitOpsConfig { users, groups, .. } = self.gitops.clone();
        let gitops = PatternLists { users, groups, ..PatternLists::default() };
        for (list, lists) in [("ignore", self.ignore.lists()), ("include", self.include.lists()), ("gitops", gitops)] {
            let all = [
                ("users", &lists.users),
                ("groups", &lists.groups),
                ("userAgents", &lists.agents),
                ("verbs", &lists.verbs),
                ("resources", &lists.resources),
            ];
            let has_empty = |patterns: &[String]| patterns.iter().any(|pattern| pattern.trim().is_empty());
            if let Some((name, _)) = all.into_iter().find(|(_, patterns)| has_empty(patterns)) {
                return Err(format!("{key}.{list}.{name} has an empty entry: write a name or a pattern"));
            }
            for pattern in &lists.resources {
                if pattern.matches('/').count() > 1 {
                    return Err(format!(
                        "{key}.{list}.resources has {pattern:?}: write pods, pods/log, */status or leases.coordination.k8s.io"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The filter of audit events.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter::new(&PatternLists::ignored_by_default().extended_with(&self.ignore.lists()), &self.include.lists())
            .with_gitops(&self.gitops.accounts())
    }

    /// Where audit events come from: a flag overrides its setting.
    pub fn sources(&self, flags: &AuditArgs) -> Result<AuditSources, String> {
        if self.source == ActivitySource::Annotation && flags.audit_listen.is_none() && flags.audit_log.is_none() {
            return self.check_nothing_else_is_set(flags).map(|()| AuditSources::default());
        }
        let either = |flag: &Option<PathBuf>, setting: Option<&PathBuf>| flag.clone().or_else(|| setting.cloned());
        let cert = either(&flags.audit_tls_cert, self.tls.as_ref().map(|tls| &tls.cert));
        let key = either(&flags.audit_tls_key, self.tls.as_ref().map(|tls| &tls.key));
        let files = CredentialFiles {
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
            Some(address) => {
                check_credentials(address, &files)?;
                Some((address, files))
            }
            None => None,
        };
        let log = either(&flags.audit_log, self.log.as_ref()).map(|log| {
            let position_file = either(&flags.audit_position, self.position_file.as_ref());
            let position_file = position_file.unwrap_or_else(|| {
                let name = log.file_name().unwrap_or_default().to_string_lossy();
                // Rotated logs start with the name of the log; this file must not look like one of them.
                log.with_file_name(format!(".{name}.caretaker"))
            });
            (log, position_file)
        });
        let sources = AuditSources { listen, log };
        if sources.is_empty() {
            return Err("keepers.namespaces.activity.source is audit, but there is nothing to receive events from: \
                 write listen or log, or give --audit-listen or --audit-log"
                .to_owned());
        }
        Ok(sources)
    }

    /// An error if something is set that has no effect without audit events.
    fn check_nothing_else_is_set(&self, flags: &AuditArgs) -> Result<(), String> {
        let given = [
            ("--audit-tls-cert", flags.audit_tls_cert.is_some()),
            ("--audit-tls-key", flags.audit_tls_key.is_some()),
            ("--audit-client-ca", flags.audit_client_ca.is_some()),
            ("--audit-token-file", flags.audit_token_file.is_some()),
            ("--audit-position", flags.audit_position.is_some()),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
            return Err(format!("{flag} is given, but neither --audit-listen nor --audit-log"));
        }
        let set = [
            ("listen", self.listen.is_some()),
            ("log", self.log.is_some()),
            ("tls", self.tls.is_some()),
            ("clientCa", self.client_ca.is_some()),
            ("tokenFile", self.token_file.is_some()),
            ("positionFile", self.position_file.is_some()),
            ("ignore", self.ignore != PatternListsConfig::default()),
            ("include", self.include != PatternListsConfig::default()),
            ("gitops", self.gitops != GitOpsConfig::default()),
        ];
        match set.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => {
                Err(format!("keepers.namespaces.activity.{name} is set, but source is annotation: write source: audit"))
            }
            None => Ok(()),
        }
    }
}

/// An error if any client could send audit events: it could keep every namespace awake.
fn check_credentials(address: SocketAddr, files: &CredentialFiles) -> Result<(), String> {
    if address.ip().is_loopback() {
        if files.client_ca.is_some() && files.tls.is_none() {
            return Err("--audit-client-ca needs --audit-tls-cert and --audit-tls-key".to_owned());
        }
        return Ok(());
    }
    if files.tls.is_none() {
        return Err(format!(
            "--audit-listen {address} is not a loopback address: give --audit-tls-cert and --audit-tls-key; \
             caretaker audit-config creates them"
        ));
    }
    if files.allows_anonymous() {
        return Err(format!(
            "--audit-listen {address} is not a loopback address: any client could send audit events there. \
             Give --audit-token-file or --audit-client-ca; caretaker audit-config creates them"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn sources_with(address: &str, change: impl FnOnce(&mut AuditArgs)) -> Result<AuditSources, String> {
        let mut flags = AuditArgs { audit_listen: Some(address.parse().unwrap()), ..AuditArgs::default() };
        change(&mut flags);
        ActivityConfig::default().sources(&flags)
    }

    #[test]
    fn a_loopback_address_needs_nothing() {
        let sources = sources_with("127.0.0.1:9443", |_| {}).unwrap();

        assert!(sources.listen.is_some_and(|(_, files)| files == CredentialFiles::default()));
    }

    #[rstest]
    #[case::bare(false, false, false, "--audit-tls-cert")]
    #[case::only_a_token(false, true, false, "--audit-tls-cert")]
    #[case::only_tls(true, false, false, "--audit-token-file or --audit-client-ca")]
    fn any_other_address_needs_tls_and_credentials(
        #[case] tls: bool,
        #[case] token: bool,
        #[case] ca: bool,
        #[case] message: &str,
    ) {
        let set = |flags: &mut AuditArgs, tls: bool, token: bool, ca: bool| {
            (flags.audit_tls_cert, flags.audit_tls_key) = (tls.then(|| "c".into()), tls.then(|| "k".into()));
            (flags.audit_token_file, flags.audit_client_ca) = (token.then(|| "t".into()), ca.then(|| "a".into()));
        };
        let error = sources_with("0.0.0.0:9443", |flags| set(flags, tls, token, ca)).unwrap_err();

        assert!(error.contains(message), "{error}");
        assert!(sources_with("0.0.0.0:9443", |flags| set(flags, true, true, false)).is_ok());
        assert!(sources_with("0.0.0.0:9443", |flags| set(flags, true, false, true)).is_ok());
    }

    #[test]
    fn audit_needs_a_log_or_an_address_and_these_need_audit() {
        let audit = ActivityConfig { source: ActivitySource::Audit, ..ActivityConfig::default() };
        let log = ActivityConfig { log: Some("/var/log/audit.log".into()), ..ActivityConfig::default() };

        assert!(audit.sources(&AuditArgs::default()).unwrap_err().contains("nothing to receive events from"));
        assert!(log.sources(&AuditArgs::default()).unwrap_err().contains("source: audit"));
    }

    #[test]
    fn the_position_in_a_log_is_saved_in_its_folder() {
        let flags = AuditArgs { audit_log: Some("/var/log/audit.log".into()), ..AuditArgs::default() };
        let sources = ActivityConfig::default().sources(&flags).unwrap();

        assert_eq!(sources.log.unwrap().1, PathBuf::from("/var/log/.audit.log.caretaker"));
    }
}
