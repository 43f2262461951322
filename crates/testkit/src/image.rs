//! Container images without a registry and without an engine: packs a static binary as an archive that `ctr images
//! import`, `kind load image-archive` and `docker load` read.
//!
//! The same program gives the same bytes, whenever and wherever it is packed: every file has the owner 0 and the time 0.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The time of everything in an image.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// The busybox commands that test pods may run.
const BUSYBOX_COMMANDS: [&str; 10] = ["sh", "sleep", "cat", "echo", "ls", "wget", "httpd", "nc", "true", "false"];

/// A container image of one layer with one program.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    /// The name and tag of the image.
    pub name: &'a str,
    /// The path of the program on this machine.
    pub program: &'a Path,
    /// The path of the program in the image, without the leading slash.
    pub at: &'a str,
    /// Libraries that the program needs, which get the paths that they have on this machine; none for a static program.
    pub libraries: &'a [PathBuf],
    /// Other names of the program: symbolic links in the same folder.
    pub links: &'a [&'a str],
    /// The program that a container runs, with the command as its arguments; may be empty.
    pub entrypoint: &'a [&'a str],
    /// The default command.
    pub command: &'a [&'a str],
    /// The user that a container runs as, as `UID:GID`.
    pub user: &'a str,
    /// Labels of the image, by key.
    pub labels: &'a [(&'a str, &'a str)],
}

/// The user with all rights, which an image has if it names none.
pub const ROOT: &str = "0:0";

impl<'a> Image<'a> {
    /// The image of test pods: busybox under the names of some of its commands.
    pub(crate) fn busybox(name: &'a str, program: &'a Path, command: &'a [&'a str]) -> Self {
        let (at, links) = ("bin/busybox", &BUSYBOX_COMMANDS);
        Self { name, program, at, libraries: &[], links, entrypoint: &[], command, user: ROOT, labels: &[] }
    }

    /// Writes the image as an archive for `ctr images import`, and returns its path.
    pub fn write(&self, archive: &Path) -> Result<PathBuf> {
        self.pack(archive).map_err(Error::file(archive))?;
        Ok(archive.to_owned())
    }

    fn pack(&self, archive: &Path) -> std::io::Result<()> {
        let layer = self.layer()?;
        let (os, architecture) = ("linux", go_arch());
        let labels: Map<String, Value> = self.labels.iter().map(|(key, value)| ((*key).into(), json!(value))).collect();
        let config = bytes(&json!({
            "created": EPOCH, "os": os, "architecture": architecture,
            "config": {
                "Entrypoint": self.entrypoint, "Cmd": self.command, "Env": ["PATH=/bin"], "User": self.user,
                "WorkingDir": "/", "Labels": labels,
            },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
            "history": [{ "created": EPOCH, "created_by": self.at }],
        }));
        let manifest = bytes(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        }));
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        let tag = self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        entry["annotations"] =
            json!({ "io.containerd.image.name": full_name(self.name), "org.opencontainers.image.ref.name": tag });
        entry["platform"] = json!({ "os": os, "architecture": architecture });
        let index = bytes(&json!({ "schemaVersion": 2, "manifests": [entry] }));
        // Docker before 25 reads this instead of the index.
        let docker =
            bytes(&json!([{ "Config": blob_path(&config), "RepoTags": [self.name], "Layers": [blob_path(&layer)] }]));

        let mut tar = tar::Builder::new(std::fs::File::create(archive)?);
        append(&mut tar, "oci-layout", 0o644, &bytes(&json!({ "imageLayoutVersion": "1.0.0" })))?;
        append(&mut tar, "index.json", 0o644, &index)?;
        append(&mut tar, "manifest.json", 0o644, &docker)?;
        for blob in [&layer, &config, &manifest] {
            append(&mut tar, &blob_path(blob), 0o644, blob)?;
        }
        tar.into_inner()?.sync_all()
    }

    fn layer(&self) -> std::io::Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, self.at, 0o755, &std::fs::read(self.program)?)?;
        for library in self.libraries {
            let path = library.to_string_lossy();
            append(&mut tar, path.trim_start_matches('/'), 0o755, &std::fs::read(library)?)?;
        }
        let folder = self.at.rsplit_once('/').map_or("", |(parent, _)| parent);
        for link in self.links {
            let mut header = header(0o777, 0);
            header.set_entry_type(tar::EntryType::Symlink);
            tar.append_link(&mut header, format!("{folder}/{link}"), format!("/{}", self.at))?;
        }
        tar.into_inner()
    }
}

fn append<W: std::io::Write>(tar: &mut tar::Builder<W>, path: &str, mode: u32, data: &[u8]) -> std::io::Result<()> {
    tar.append_data(&mut header(mode, data.len()), path, data)
}

/// Root's, and without a time: the same files always give the same digest.
fn header(mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

fn blob_path(blob: &[u8]) -> String {
    format!("blobs/sha256/{}", hex(blob))
}

/// Returns the name as containerd and the kubelet know it: `caretaker:1` is `docker.io/library/caretaker:1` there.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Returns the digest of a blob, as `sha256:…`.
#[must_use]
pub fn digest(blob: &[u8]) -> String {
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
