//! Who may send audit events, and what the receiver proves itself with. The files are looked at
//! again as they are renewed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use subtle::ConstantTimeEq;

/// Where the secrets are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// The receiver's certificate and its key, as PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The authority of the certificates that clients may show.
    pub client_ca: Option<PathBuf>,
    /// The token that clients may show instead.
    pub token: Option<PathBuf>,
}

/// Why secrets cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct SecretsError {
    path: PathBuf,
    why: String,
}

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;
/// How often the files are looked at, at most.
const LOOK: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
struct Loaded {
    tls: Option<Arc<ServerConfig>>,
    token: Option<Vec<u8>>,
    by_certificate: bool,
    stamps: Vec<Option<SystemTime>>,
}

/// The secrets as they are now.
pub struct Secrets {
    files: Files,
    now: Mutex<(Loaded, Instant)>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Files {
    /// Reads them.
    pub fn load(self) -> Result<Secrets, SecretsError> {
        let loaded = self.read()?;
        Ok(Secrets { files: self, now: Mutex::new((loaded, Instant::now())) })
    }

    /// Whether nobody needs to prove anything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.client_ca.is_none() && self.token.is_none()
    }

    fn all(&self) -> impl Iterator<Item = &Path> {
        let tls = self.tls.iter().flat_map(|(cert, key)| [cert, key]);
        tls.chain(&self.client_ca).chain(&self.token).map(PathBuf::as_path)
    }

    /// A file that is replaced has another time; those in a mounted Secret are links.
    fn stamps(&self) -> Vec<Option<SystemTime>> {
        self.all().map(|path| std::fs::metadata(path).and_then(|m| m.modified()).ok()).collect()
    }

    fn read(&self) -> Result<Loaded, SecretsError> {
        let stamps = self.stamps();
        let token = self.token.as_deref().map(read_token).transpose()?;
        let tls = match &self.tls {
            Some((cert, key)) => Some(Arc::new(server(cert, key, self.client_ca.as_deref())?)),
            None => None,
        };
        Ok(Loaded { tls, token, by_certificate: self.client_ca.is_some(), stamps })
    }
}

impl Secrets {
    /// How connections are secured; not at all where nothing was given.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.look().tls
    }

    /// Whether somebody may send events: with a certificate that was checked, or with the token.
    #[must_use]
    pub fn enforce(&self, certified: bool, token: Option<&[u8]>) -> bool {
        let now = self.look();
        if now.token.is_none() && !now.by_certificate {
            return true;
        }
        let shown = token.zip(now.token.as_deref()).is_some_and(|(shown, token)| shown.ct_eq(token).into());
        (now.by_certificate && certified) || shown
    }

    /// What holds now. If the new files cannot be used, the old secrets hold.
    fn look(&self) -> Loaded {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.1.elapsed() >= LOOK {
            now.1 = Instant::now();
            if self.files.stamps() != now.0.stamps {
                match self.files.read() {
                    Ok(loaded) => {
                        now.0 = loaded;
                        tracing::info!("audit receiver: its certificate or token was renewed");
                    }
                    Err(e) => tracing::warn!("audit receiver: {e}; what was there before goes on"),
                }
            }
        }
        now.0.clone()
    }
}

/// Whether these can be used at all: an authority, a certificate with its key, a token.
pub fn check(
    authority: Option<&Path>,
    identity: Option<(&Path, &Path)>,
    token: Option<&Path>,
) -> Result<(), SecretsError> {
    authority.map(certificates).transpose()?;
    token.map(read_token).transpose()?;
    identity.map(|(cert, key)| server(cert, key, None)).transpose()?;
    Ok(())
}

fn failed(path: &Path, why: impl fmt::Display) -> SecretsError {
    SecretsError { path: path.to_owned(), why: why.to_string() }
}

fn read_token(path: &Path) -> Result<Vec<u8>, SecretsError> {
    let token = std::fs::read(path).map_err(|e| failed(path, e))?.trim_ascii().to_vec();
    if token.len() < SHORTEST {
        return Err(failed(path, format!("a token has at least {SHORTEST} characters")));
    }
    Ok(token)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecretsError> {
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| failed(path, format!("no certificate in PEM: {e}")))?;
    if all.is_empty() { Err(failed(path, "there is no certificate in it")) } else { Ok(all) }
}

fn server(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<ServerConfig, SecretsError> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| failed(key, format!("no key in PEM: {e}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| failed(cert, e))?;
    let builder = match client_ca {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|e| failed(path, e))?;
            }
            // Who shows none may still have the token; who has neither is answered, and counted.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|e| failed(path, e))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    builder.with_single_cert(chain, private).map_err(|e| failed(cert, format!("it does not fit its key: {e}")))
}
