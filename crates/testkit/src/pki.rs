//! Certificates of a throwaway cluster: one authority, and whoever it vouches for.

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
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "caretaker-testkit");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// For a server under these names and addresses.
    pub(crate) fn server(&self, names: &[&str]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        self.sign(CertificateParams::new(names)?, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a user: the common name is who, the organization the group.
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

/// A key pair for service-account tokens: the private and the public half.
pub(crate) fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

impl Identity {
    /// Writes `NAME.crt` and `NAME.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
        Ok((
            write(folder, &format!("{name}.crt"), &self.certificate)?,
            write(folder, &format!("{name}.key"), &self.key)?,
        ))
    }
}

/// Whole under its name at once, and for nobody else to read: most of what is written is a key.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let write = || -> std::io::Result<()> {
        let mut aside = tempfile::NamedTempFile::new_in(folder)?;
        aside.write_all(text.as_bytes())?;
        aside.persist(&path)?;
        Ok(())
    };
    write().map_err(Error::file(&path))?;
    Ok(path)
}
