//! `caretaker audit-config`: everything that an API server needs to send its audit events to the operator.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use caretaker_activity::audit_webhook;
use caretaker_engine::state::NAMESPACE;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::Value;

use crate::cli::AuditConfigArgs;
use crate::live;
use crate::output::Output;

/// The Service of the receiver, and the Secret with its certificate and token.
const NAME: &str = "caretaker-audit";
const PORT: u16 = 9443;

/// One file of the output.
struct Part {
    name: &'static str,
    purpose: &'static str,
    text: String,
    /// Only its owner may read it.
    secret: bool,
}

/// Runs the command: prints the files, or writes them.
pub fn run(args: &AuditConfigArgs) -> Result<Output> {
    let address = match &args.address {
        Some(address) => parse_address(address)?,
        None => service_address(args)?,
    };
    let identity = args.client_cert.as_deref().zip(args.client_key.as_deref());
    audit_webhook::check_files(args.ca.as_deref(), identity, args.token_file.as_deref())?;
    let parts = parts(args, &address)?;
    let mut notes = vec![format!("the API servers will send audit events to https://{address}")];
    if args.ca.is_none() {
        notes.push("the authority and the token are new: the operator and every API server must get these".to_owned());
    }
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).with_context(|| format!("--dir {}", dir.display()))?;
        let mut text = String::new();
        for part in &parts {
            let path = dir.join(part.name);
            write(&path, part, args.force)?;
            writeln!(text, "{}: {}", path.display(), part.purpose)?;
        }
        notes.push(next_steps(&parts).to_owned());
        return Ok(Output { text, notes, code: 0 });
    }
    let mut text = String::new();
    for part in &parts {
        // Flags are comments here, so that all of the output is YAML.
        let body = if part.name == FLAGS { part.text.replace("--", "# --") } else { part.text.clone() };
        write!(text, "---\n# {}: {}\n{body}", part.name, part.purpose)?;
    }
    notes.push(next_steps(&parts).to_owned());
    Ok(Output { text, notes, code: 0 })
}

fn next_steps(parts: &[Part]) -> &'static str {
    if parts.iter().any(|part| part.name == SECRET) {
        "apply secret.yaml to the cluster, put the other files on every control-plane node, add the flags to every kube-apiserver"
    } else {
        "put the files on every control-plane node, and add the flags to every kube-apiserver"
    }
}

const POLICY_FILE: &str = "audit-policy.yaml";
const WEBHOOK: &str = "audit-webhook.kubeconfig";
const FLAGS: &str = "flags.txt";
const SECRET: &str = "secret.yaml";

fn parts(args: &AuditConfigArgs, address: &str) -> Result<Vec<Part>> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    let created = if args.ca.is_none() { Some(create_certificate(host(address))?) } else { None };
    let authority = match (&args.ca, &created) {
        (Some(path), _) => read(path)?,
        (None, created) => created.as_ref().map(|created| created.authority.clone()).unwrap_or_default(),
    };
    let (user, token) = match (&args.token_file, &args.client_cert, &args.client_key) {
        (Some(path), ..) => {
            let token = read(path)?.trim().to_owned();
            (format!("    token: {}\n", serde_json::to_string(&token)?), Some(token))
        }
        (None, Some(cert), Some(key)) => {
            let data = |path: &Path| -> Result<String> { Ok(base64(read(path)?.as_bytes())) };
            let (cert, key) = (data(cert)?, data(key)?);
            (format!("    client-certificate-data: {cert}\n    client-key-data: {key}\n"), None)
        }
        _ if args.ca.is_some() => {
            bail!("--ca needs --token-file, or --client-cert and --client-key: the API server must authenticate itself")
        }
        _ => {
            let token = new_token()?;
            (format!("    token: {token}\n"), Some(token))
        }
    };
    let mut parts = vec![
        Part { name: POLICY_FILE, purpose: "for --audit-policy-file", text: POLICY.to_owned(), secret: false },
        Part {
            name: WEBHOOK,
            purpose: "for --audit-webhook-config-file",
            text: format!(
                "apiVersion: v1\nkind: Config\nclusters:\n- name: caretaker\n  cluster:\n    server: https://{address}/audit\n    \
                 certificate-authority-data: {}\nusers:\n- name: kube-apiserver\n  user:\n{user}contexts:\n- name: caretaker\n  \
                 context:\n    cluster: caretaker\n    user: kube-apiserver\ncurrent-context: caretaker\n",
                base64(authority.as_bytes())
            ),
            secret: true,
        },
        Part { name: FLAGS, purpose: "for every kube-apiserver", text: flags(&args.host_dir), secret: false },
    ];
    if let Some(created) = created {
        let mut data = vec![("tls.crt", &created.certificate), ("tls.key", &created.key)];
        data.extend(token.as_ref().map(|token| ("token", token)));
        let mut text = format!(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {NAME}\n  namespace: {NAMESPACE}\ntype: Opaque\ndata:\n"
        );
        for (name, value) in data {
            writeln!(text, "  {name}: {}", base64(value.as_bytes()))?;
        }
        parts.push(Part {
            name: SECRET,
            purpose: "the certificate and the token of the receiver, for kubectl apply",
            text,
            secret: true,
        });
    }
    Ok(parts)
}

/// The audit policy: only what can be activity. What the control plane itself does is left out at the
/// source.
const POLICY: &str = "\
# The policy of an API server is one for all of its audit, logs included. Where there is one already,
# keep it: it is enough if it has the level Metadata or a higher one, for reads as well, and the
# stages ResponseStarted and ResponseComplete.
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
# By this Caretaker checks whether audit events arrive.
- level: Metadata
  namespaces: [caretaker-system]
  resources: [{group: \"\", resources: [configmaps]}]
- level: None
  users: [system:apiserver, system:kube-controller-manager, system:kube-scheduler, system:kube-proxy]
- level: None
  userGroups: [system:nodes, \"system:serviceaccounts:kube-system\"]
- level: None
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: \"\", resources: [events, endpoints]}
  - {group: events.k8s.io, resources: [events]}
  - {group: discovery.k8s.io, resources: [endpointslices]}
# Requests outside of namespaces are not activity.
- level: None
  nonResourceURLs: [\"*\"]
- level: None
  namespaces: [\"\"]
- level: Metadata
";

fn flags(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "\
--audit-policy-file={dir}/{POLICY_FILE}
--audit-webhook-config-file={dir}/{WEBHOOK}
--audit-webhook-mode=batch
--audit-webhook-batch-max-wait=1s
--audit-webhook-batch-max-size=400
--audit-webhook-batch-buffer-size=20000
--audit-webhook-batch-throttle-qps=50
--audit-webhook-batch-throttle-burst=100
"
    )
}

/// A new authority, and a certificate that it has signed.
struct NewCertificate {
    authority: String,
    certificate: String,
    key: String,
}

/// Creates an authority and a certificate for the receiver. The authority's key is discarded, so that it
/// cannot sign another certificate.
fn create_certificate(host: &str) -> Result<NewCertificate> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let names = [host, "localhost", "127.0.0.1", "caretaker-audit.caretaker-system.svc"];
    let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    names.sort();
    names.dedup();
    let mut params = CertificateParams::new(names).context("--address")?;
    // A name that differs from the authority's; otherwise both look like the same certificate.
    params.distinguished_name.push(DnType::CommonName, "caretaker-audit-receiver");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(NewCertificate { authority: issuer.pem(), certificate, key: key.serialize_pem() })
}

fn new_token() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("no randomness: {e}"))?;
    let mut token = String::new();
    for byte in bytes {
        write!(token, "{byte:02x}")?;
    }
    Ok(token)
}

fn base64(bytes: &[u8]) -> String {
    // Kubernetes writes bytes as base64.
    match serde_json::to_value(ByteString(bytes.to_vec())) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}

/// The address with its port; an error if it is not one. A pasted URL is accepted.
fn parse_address(given: &str) -> Result<String> {
    let bare = given.strip_prefix("https://").unwrap_or(given).trim_end_matches('/');
    let address = with_port(bare.strip_suffix("/audit").unwrap_or(bare));
    let name = host(&address);
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port > 0);
    let label = |label: &str| {
        !label.is_empty() && label.len() <= 63 && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let known = name.parse::<IpAddr>().is_ok() || name.trim_end_matches('.').split('.').all(label);
    if !known || port.is_none() {
        bail!(
            "--address {given:?}: write a host name or an IP address, and a port if it is not {PORT}, such as 10.96.3.4:{PORT}"
        );
    }
    Ok(address)
}

fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn with_port(address: &str) -> String {
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')));
    match has_port {
        true => address.to_owned(),
        false if address.contains(':') && !address.starts_with('[') => format!("[{address}]:{PORT}"),
        false => format!("{address}:{PORT}"),
    }
}

/// The IP address of the Service: API servers rarely know the cluster's own DNS.
fn service_address(args: &AuditConfigArgs) -> Result<String> {
    live::block_on(async {
        let services: Api<Service> = Api::namespaced(live::client(&args.cluster).await?, NAMESPACE);
        let found = services.get_opt(NAME).await;
        let found = found.with_context(|| format!("reading Service {NAMESPACE}/{NAME}"))?;
        let Some(spec) = found.map(|service| service.spec.unwrap_or_default()) else {
            bail!(
                "there is no Service {NAMESPACE}/{NAME}: install the chart or deploy/install.yaml first, or give the address of the receiver with --address"
            );
        };
        let port = spec.ports.iter().flatten().next().map_or(PORT.into(), |port| port.port);
        match spec.cluster_ip.as_deref() {
            None | Some("" | "None") => {
                bail!("Service {NAMESPACE}/{NAME} has no cluster IP: give the address of the receiver with --address")
            }
            Some(ip) if ip.contains(':') => Ok(format!("[{ip}]:{port}")),
            Some(ip) => Ok(format!("{ip}:{port}")),
        }
    })
}

fn write(path: &PathBuf, part: &Part, force: bool) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).mode(if part.secret { 0o600 } else { 0o644 });
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    let mut file = options.open(path).with_context(|| format!("{}: use --force to replace it", path.display()))?;
    file.write_all(part.text.as_bytes()).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::pasted("https://10.1.1.1:9443/audit", Some("10.1.1.1:9443"))]
    #[case::a_name("audit.example.com", Some("audit.example.com:9443"))]
    #[case::six("fd00::1", Some("[fd00::1]:9443"))]
    #[case::no_such_port("10.1.1.1:99999", None)]
    #[case::no_port("10.1.1.1:abc", None)]
    #[case::zero("10.1.1.1:0", None)]
    #[case::two_words("bad host", None)]
    #[case::a_path("host/path", None)]
    #[case::nothing("", None)]
    fn an_address_is_checked(#[case] given: &str, #[case] whole: Option<&str>) {
        assert_eq!(parse_address(given).ok().as_deref(), whole);
    }

    #[rstest]
    #[case("10.96.3.4", "10.96.3.4:9443", "10.96.3.4")]
    #[case("10.96.3.4:443", "10.96.3.4:443", "10.96.3.4")]
    #[case("audit.example.com", "audit.example.com:9443", "audit.example.com")]
    #[case("fd00::1", "[fd00::1]:9443", "fd00::1")]
    #[case("[fd00::1]:443", "[fd00::1]:443", "fd00::1")]
    fn an_address_has_a_port(#[case] given: &str, #[case] whole: &str, #[case] name: &str) {
        assert_eq!((with_port(given).as_str(), host(&with_port(given))), (whole, name));
    }
}
