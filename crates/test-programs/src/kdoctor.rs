//! The definitions of kdoctor's kinds, as kdoctor itself ships them: out of its Go module, into the same cache as
//! Kubernetes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use caretaker_testkit::assets::cache_folder;
use caretaker_testkit::go_build::succeeded;
use caretaker_testkit::{Error, Result};

const MODULE: &str = "github.com/kdoctor-io/kdoctor";
const VERSION: &str = "v0.2.0";
/// The public database of checksums does not know this module, so that it is compared here.
const SUM: &str = "h1:X2XHrTZ+RDuAJ+HiKZ1UHzIvFM3/Al6JDyg2nxtziAU=";
const WHAT: &str = "kdoctor's definitions";

/// What `go mod download -json` says of a module.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Downloaded {
    dir: PathBuf,
    sum: String,
}

/// Finds the definitions, or copies them out of the Go module, which takes seconds.
pub fn definitions() -> Result<PathBuf> {
    definitions_in(&cache_folder(), Path::new("go"))
}

fn definitions_in(cache: &Path, go: &Path) -> Result<PathBuf> {
    let folder = cache.join(format!("kdoctor-definitions-{VERSION}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(cache).map_err(Error::file(cache))?;
    let temporary = tempfile::tempdir_in(cache).map_err(Error::file(cache))?;
    let module = format!("{MODULE}@{VERSION}");
    let download = Command::new(go)
        .args(["mod", "download", "-json", &module])
        .env("GONOSUMDB", MODULE)
        .current_dir(temporary.path())
        .output();
    let failed = |why: String| Error::Build { what: WHAT.to_owned(), why };
    let output = succeeded(WHAT, download)?;
    let found: Downloaded = serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
    if found.sum != SUM {
        return Err(failed(format!("{module} has the checksum {} instead of {SUM}", found.sum)));
    }
    let copied = temporary.path().join("definitions");
    fs::create_dir(&copied).map_err(Error::file(&copied))?;
    let shipped = found.dir.join("charts/crds");
    for file in fs::read_dir(&shipped).map_err(Error::file(&shipped))? {
        let file = file.map_err(Error::file(&shipped))?;
        // Files of the module cache are read-only: the text is copied, not the file.
        let text = fs::read(file.path()).map_err(Error::file(file.path()))?;
        fs::write(copied.join(file.file_name()), text).map_err(Error::file(&copied))?;
    }
    match fs::rename(&copied, &folder) {
        // Another process was faster.
        Err(_) if folder.is_dir() => Ok(folder),
        renamed => renamed.map(|()| folder.clone()).map_err(Error::file(folder)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A `go` that answers with this module.
    fn answering(folder: &Path, sum: &str) -> PathBuf {
        let module = folder.join("module");
        fs::create_dir_all(module.join("charts/crds")).unwrap();
        fs::write(module.join("charts/crds/kdoctor.io_netreaches.yaml"), "kind: CustomResourceDefinition\n").unwrap();
        let answer = serde_json::json!({ "Dir": module, "Sum": sum });
        let go = folder.join("go");
        fs::write(&go, format!("#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")).unwrap();
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
        go
    }

    #[test]
    fn definitions_are_copied_once_and_found_again_without_go() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");

        let copied = definitions_in(&cache, &answering(folder.path(), SUM)).unwrap();

        assert!(copied.join("kdoctor.io_netreaches.yaml").is_file());
        assert_eq!(definitions_in(&cache, Path::new("no-go-here")).unwrap(), copied);
    }

    #[test]
    fn a_module_with_another_checksum_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");

        let error = definitions_in(&cache, &answering(folder.path(), "h1:other=")).unwrap_err();

        assert!(error.to_string().contains("h1:other="), "{error}");
        assert!(fs::read_dir(&cache).unwrap().next().is_none(), "nothing is left in the cache");
    }
}
