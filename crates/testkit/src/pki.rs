//! Certificates of a throwaway cluster: one certificate authority, and the servers and users it signs.

use std::io::Write;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::{Error, Result};

/// The cluster's certificate authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key, as PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its private key (PKCS #8).
    pub key: String,
}

impl Authority {
    /// Creates a self-signed authority.
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "caretaker-testkit");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// Returns the authority's own certificate.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate for a server with these DNS names and IP addresses.
    pub(crate) fn server(&self, names: &[&str]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        self.sign(CertificateParams::new(names)?, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Issues a client certificate: the common name is the user, the organization is the group.
    pub(crate) fn user(&self, name: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}

/// Creates the key pair that signs ServiceAccount tokens, and returns the private and the public key.
pub(crate) fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

impl Identity {
    /// Writes `NAME.crt` and `NAME.key`, and returns their paths.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
        Ok((
            write(folder, &format!("{name}.crt"), &self.certificate)?,
            write(folder, &format!("{name}.key"), &self.key)?,
        ))
    }
}

/// Writes a file that only its owner can read, because most of these files hold keys. The file appears
/// under its name only when it is complete.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let write = || -> std::io::Result<()> {
        let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
        temporary.write_all(text.as_bytes())?;
        temporary.persist(&path)?;
        Ok(())
    };
    write().map_err(Error::file(&path))?;
    Ok(path)
}
