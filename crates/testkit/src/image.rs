//! Container images without a registry: packs a static binary as an OCI layout.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// A container image of one layer with one program.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    /// The name and tag of the image.
    pub name: &'a str,
    /// The path of a statically linked program on this machine.
    pub program: &'a Path,
    /// The path of the program in the image, without the leading slash.
    pub at: &'a str,
    /// Other names of the program: symbolic links in the same folder.
    pub links: &'a [&'a str],
    /// The default command.
    pub command: &'a [&'a str],
}

impl Image<'_> {
    /// Writes the image as an archive for `ctr images import`, and returns its path.
    pub fn write(&self, archive: &Path) -> Result<PathBuf> {
        self.pack(archive).map_err(Error::file(archive))?;
        Ok(archive.to_owned())
    }

    fn pack(&self, archive: &Path) -> std::io::Result<()> {
        let layer = self.layer()?;
        let layer_digest = digest(&layer);
        let (os, architecture) = ("linux", go_arch());
        let config = bytes(&json!({
            "os": os, "architecture": architecture,
            "config": { "Cmd": self.command, "Env": ["PATH=/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [layer_digest] },
        }));
        let manifest = bytes(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        }));
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["annotations"] = json!({ "io.containerd.image.name": self.name });
        entry["platform"] = json!({ "os": os, "architecture": architecture });
        let index = bytes(&json!({ "schemaVersion": 2, "manifests": [entry] }));

        let mut tar = tar::Builder::new(std::fs::File::create(archive)?);
        append(&mut tar, "oci-layout", 0o644, &bytes(&json!({ "imageLayoutVersion": "1.0.0" })))?;
        append(&mut tar, "index.json", 0o644, &index)?;
        for blob in [&layer, &config, &manifest] {
            append(&mut tar, &format!("blobs/sha256/{}", hex(blob)), 0o644, blob)?;
        }
        tar.into_inner()?.sync_all()
    }

    fn layer(&self) -> std::io::Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, self.at, 0o755, &std::fs::read(self.program)?)?;
        let folder = self.at.rsplit_once('/').map_or("", |(parent, _)| parent);
        for link in self.links {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            header.set_mode(0o777);
            tar.append_link(&mut header, format!("{folder}/{link}"), format!("/{}", self.at))?;
        }
        tar.into_inner()
    }
}

fn append<W: std::io::Write>(tar: &mut tar::Builder<W>, path: &str, mode: u32, data: &[u8]) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, path, data)
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn digest(blob: &[u8]) -> String {
    format!("sha256:{}", hex(blob))
}

fn hex(blob: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(blob).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the architecture of this machine under Go's name, which images use.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
