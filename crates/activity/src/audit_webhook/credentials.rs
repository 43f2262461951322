//! The receiver's own certificate, and the credentials that clients must present. Changed files are loaded again.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use subtle::ConstantTimeEq;

/// The files with the credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The receiver's certificate and its private key, in PEM. Without them connections are not encrypted.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The CA of the client certificates.
    pub client_ca: Option<PathBuf>,
    /// The bearer token that clients may send instead of a certificate.
    pub token: Option<PathBuf>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct CredentialsError {
    path: PathBuf,
    reason: String,
}

/// Shorter tokens can be guessed.
const MIN_TOKEN_BYTES: usize = 16;
/// Minimum time between two checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
struct Loaded {
    tls: Option<Arc<ServerConfig>>,
    token: Option<Vec<u8>>,
    accepts_certificates: bool,
    /// Modification times of the files when they were loaded.
    modified: Vec<Option<SystemTime>>,
}

/// The credentials, as they are in the files now.
pub struct Credentials {
    files: CredentialFiles,
    /// The loaded credentials, and when the files were last checked for changes.
    loaded: Mutex<(Loaded, Instant)>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("files", &self.files).finish_non_exhaustive()
    }
}

impl CredentialFiles {
    /// Reads the files.
    pub fn load(self) -> Result<Credentials, CredentialsError> {
        let loaded = self.read()?;
        Ok(Credentials { files: self, loaded: Mutex::new((loaded, Instant::now())) })
    }

    /// Returns true if clients need no credentials.
    #[must_use]
    pub fn allows_anonymous(&self) -> bool {
        self.client_ca.is_none() && self.token.is_none()
    }

    fn all(&self) -> impl Iterator<Item = &Path> {
        let tls = self.tls.iter().flat_map(|(cert, key)| [cert, key]);
        tls.chain(&self.client_ca).chain(&self.token).map(PathBuf::as_path)
    }

    /// Returns the modification times. Files in a mounted Secret are symlinks; the times are those of their targets.
    fn modified(&self) -> Vec<Option<SystemTime>> {
        self.all().map(|path| std::fs::metadata(path).and_then(|m| m.modified()).ok()).collect()
    }

    fn read(&self) -> Result<Loaded, CredentialsError> {
        let modified = self.modified();
        let token = self.token.as_deref().map(read_token).transpose()?;
        let tls = match &self.tls {
            Some((cert, key)) => Some(Arc::new(server_config(cert, key, self.client_ca.as_deref())?)),
            None => None,
        };
        Ok(Loaded { tls, token, accepts_certificates: self.client_ca.is_some(), modified })
    }
}

impl Credentials {
    /// Returns the TLS configuration for a new connection; `None` if connections are not encrypted.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.current().tls
    }

    /// Returns true if a client may send events: with a certificate of the client CA, with the token, or without either
    /// if neither is configured. `certified` is true if the TLS handshake verified a client certificate.
    #[must_use]
    pub fn authorize(&self, certified: bool, token: Option<&[u8]>) -> bool {
        let current = self.current();
        if current.token.is_none() && !current.accepts_certificates {
            return true;
        }
        let has_token = token.zip(current.token.as_deref()).is_some_and(|(sent, token)| sent.ct_eq(token).into());
        (current.accepts_certificates && certified) || has_token
    }

    /// Returns the credentials, after loading changed files. If they cannot be loaded, the previous ones stay valid.
    fn current(&self) -> Loaded {
        let mut guard = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let (loaded, checked_at) = &mut *guard;
        if checked_at.elapsed() >= CHECK_INTERVAL {
            *checked_at = Instant::now();
            if self.files.modified() != loaded.modified {
                match self.files.read() {
                    Ok(changed) => {
                        *loaded = changed;
                        tracing::info!("audit webhook: loaded the changed certificate or token");
                    }
                    Err(e) => {
                        tracing::warn!(
                            "audit webhook: cannot load changed credentials, the previous ones stay valid: {e}"
                        );
                    }
                }
            }
        }
        loaded.clone()
    }
}

/// Checks that a CA, a certificate with its key and a token can be used.
pub fn check_files(
    ca: Option<&Path>,
    identity: Option<(&Path, &Path)>,
    token: Option<&Path>,
) -> Result<(), CredentialsError> {
    ca.map(read_certificates).transpose()?;
    token.map(read_token).transpose()?;
    identity.map(|(cert, key)| server_config(cert, key, None)).transpose()?;
    Ok(())
}

fn invalid(path: &Path, reason: impl fmt::Display) -> CredentialsError {
    CredentialsError { path: path.to_owned(), reason: reason.to_string() }
}

fn read_token(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let token = std::fs::read(path).map_err(|e| invalid(path, e))?.trim_ascii().to_vec();
    if token.len() < MIN_TOKEN_BYTES {
        return Err(invalid(path, format!("the token is too short; write at least {MIN_TOKEN_BYTES} characters")));
    }
    Ok(token)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| invalid(path, format!("cannot read a PEM certificate: {e}")))?;
    if all.is_empty() { Err(invalid(path, "there is no certificate in it; write it in PEM")) } else { Ok(all) }
}

fn server_config(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<ServerConfig, CredentialsError> {
    let chain = read_certificates(cert)?;
    let private_key =
        PrivateKeyDer::from_pem_file(key).map_err(|e| invalid(key, format!("cannot read a PEM private key: {e}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| invalid(cert, e))?;
    let builder = match client_ca {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in read_certificates(path)? {
                roots.add(root).map_err(|e| invalid(path, e))?;
            }
            // A client without a certificate may send the token. One without either gets 401 and is counted.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|e| invalid(path, e))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    builder
        .with_single_cert(chain, private_key)
        .map_err(|e| invalid(cert, format!("the certificate does not match its key {}: {e}", key.display())))
}
