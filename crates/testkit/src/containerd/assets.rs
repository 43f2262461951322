//! containerd of the second generation: Debian has the first one, so it is built from its Go module, once, into the same
//! cache as Kubernetes, and only where something needs it.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::assets::cache_folder;
use crate::go_build::{GoBuild, GoProgram, version};

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
        let folder = cache.join(format!("containerd-{version}"));
        let build = GoBuild {
            what: &format!("containerd {version}"),
            module: (GO_MOD, GO_SUM),
            programs: &PROGRAMS.map(|program| -> GoProgram { (program, format!("{MODULE}/cmd/{program}")) }),
            tags: TAGS,
            link_flags: &format!("-X {MODULE}/version.Version={version}"),
            also: None,
            given: None,
            folder: &folder,
            go,
        };
        build.run()?;
        Ok(Self { folder })
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
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
