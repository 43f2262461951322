//! containerd of the second generation: Debian has the first one, so it is built from its Go module, once, into the same
//! cache as Kubernetes, and only where something needs it.

use std::path::{Path, PathBuf};

use crate::assets::cache_folder;
use crate::go_build::{GoBuild, GoProgram, go_version, version};
use crate::{Error, Result};

const GO_MOD: &str = include_str!("../../binaries/containerd/go.mod");
const GO_SUM: &str = include_str!("../../binaries/containerd/go.sum");

const MODULE: &str = "github.com/containerd/containerd/v2";
const PROGRAMS: [&str; 2] = ["containerd", "containerd-shim-runc-v2"];
/// What no test uses is left out, so that the build is shorter.
const TAGS: &str = "no_btrfs,no_devmapper,no_zfs,no_cri,no_tracing";

/// A folder with containerd and its shim.
#[derive(Debug, Clone)]
pub struct ContainerdAssets {
    folder: PathBuf,
}

impl ContainerdAssets {
    /// Finds the programs, or builds them; progress goes to standard error.
    pub fn get() -> Result<Self> {
        Self::cached(&cache_folder(), Path::new("go"))
    }

    fn cached(cache: &Path, go: &Path) -> Result<Self> {
        let version = version(GO_MOD, MODULE);
        let assets = Self { folder: cache.join(format!("containerd-{version}")) };
        if assets.missing().is_empty() {
            return Ok(assets);
        }
        let build = GoBuild {
            what: &format!("containerd {version}"),
            module: (GO_MOD, GO_SUM),
            tags: TAGS,
            link_flags: &format!("-X {MODULE}/version.Version={version}"),
            folder: &assets.folder,
            go,
            cannot_build: &|why| {
                let (go, cache) = (go_version(GO_MOD).to_owned(), cache.to_owned());
                Error::NoContainerd { why, go, cache }
            },
        };
        build.run(|| assets.missing(), |_| Ok(()))?;
        Ok(assets)
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn missing(&self) -> Vec<GoProgram> {
        let is_missing = |program: &&str| !self.folder.join(program).is_file();
        PROGRAMS.into_iter().filter(is_missing).map(|program| (program, format!("{MODULE}/cmd/{program}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_go_and_cache_the_error_names_the_remedies() {
        let cache = tempfile::tempdir().unwrap();

        let error = ContainerdAssets::cached(cache.path(), Path::new("no-such-go")).unwrap_err().to_string();

        for remedy in ["install Go", "CARETAKER_CACHE"] {
            assert!(error.contains(remedy), "{remedy} is missing in: {error}");
        }
    }
}
