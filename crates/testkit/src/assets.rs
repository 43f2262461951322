//! Finds the Kubernetes binaries, or builds them.
//!
//! The sources are, in this order: the folder `KUBEBUILDER_ASSETS`; a cache outside the work tree, keyed
//! by version; a build from Go modules into that cache. The Go module that pins the versions
//! (`binaries/go.mod`) is compiled into this library, so a build needs only Go and its modules.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::go_build::{self, GoBuild, GoProgram, no_programs};

const GO_MOD: &str = include_str!("../binaries/go.mod");
const GO_SUM: &str = include_str!("../binaries/go.sum");

/// A Kubernetes binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The database of the API server.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers of Deployments, Jobs, namespaces and so on.
    ControllerManager,
    /// The scheduler.
    Scheduler,
    /// The agent that runs pods on a node.
    Kubelet,
    /// The command-line client.
    Kubectl,
}

impl Program {
    /// All programs, in the order in which they are built.
    pub const ALL: [Self; 6] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubelet, Self::Kubectl];

    /// Returns the file name of the program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::Kubectl => "kubectl",
        }
    }

    fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".to_owned(),
            other => format!("k8s.io/kubernetes/cmd/{}", other.name()),
        }
    }
}

/// A folder that holds every [`Program`].
#[derive(Debug, Clone)]
pub struct Assets {
    folder: PathBuf,
    /// True if the test kit built them, so that their version is known.
    built_here: bool,
}

impl Assets {
    /// Finds the binaries, or builds them; progress goes to standard error.
    pub fn get() -> Result<Self> {
        match given_folder() {
            Some(folder) => Self::given(folder),
            None => Self::cached(&cache_folder(), Path::new("go")),
        }
    }

    /// Returns the folder of the binaries.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the Kubernetes version of the binaries; `None` for those of `KUBEBUILDER_ASSETS`.
    #[must_use]
    pub fn built_version(&self) -> Option<&'static str> {
        self.built_here.then(|| version("k8s.io/kubernetes"))
    }

    /// Returns the path of a program, whether or not the file exists.
    #[must_use]
    pub fn path(&self, program: Program) -> PathBuf {
        self.folder.join(program.name())
    }

    /// Uses the folder of `KUBEBUILDER_ASSETS`. Checks only etcd and kube-apiserver: the archives of envtest
    /// contain no controller-manager, scheduler or kubelet, so [`Assets::need`] reports those on use.
    fn given(folder: PathBuf) -> Result<Self> {
        let assets = Self { folder, built_here: false };
        assets.need(Program::Etcd)?;
        assets.need(Program::ApiServer)?;
        Ok(assets)
    }

    /// Returns the path of a program; an error if the file does not exist.
    pub fn need(&self, program: Program) -> Result<PathBuf> {
        let path = self.path(program);
        if path.is_file() {
            return Ok(path);
        }
        let why = format!("{} has no {}", self.folder.display(), program.name());
        Err(no_programs("Kubernetes binaries", why, GO_MOD, Some(&cache_folder()), Some(&given_remedy())))
    }

    /// Uses the binaries of the cache. Builds those that the cache lacks.
    pub(crate) fn cached(cache: &Path, go: &Path) -> Result<Self> {
        let (kubernetes, etcd) = (version("k8s.io/kubernetes"), version("go.etcd.io/etcd/server/v3"));
        let folder = cache.join(format!("kubernetes-{kubernetes}-etcd-{etcd}"));
        let mut parts = kubernetes.trim_start_matches('v').split('.');
        let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let stamp = "k8s.io/component-base/version";
        let build = GoBuild {
            what: &format!("Kubernetes {kubernetes}"),
            module: (GO_MOD, GO_SUM),
            programs: &Program::ALL.map(|program| -> GoProgram { (program.name(), program.package()) }),
            tags: "",
            link_flags: &format!(
                "-X {stamp}.gitVersion={kubernetes} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
            ),
            also: None,
            given: Some(&given_remedy()),
            folder: &folder,
            go,
        };
        build.run()?;
        Ok(Self { folder, built_here: true })
    }
}

/// Returns the folder that `KUBEBUILDER_ASSETS` names.
fn given_folder() -> Option<PathBuf> {
    std::env::var_os("KUBEBUILDER_ASSETS").filter(|f| !f.is_empty()).map(PathBuf::from)
}

/// Returns the first of these programs that the folder `KUBEBUILDER_ASSETS` lacks; `None` if the variable
/// is not set. Builds nothing.
pub(crate) fn missing_in_given_folder(programs: &[Program]) -> Option<String> {
    let folder = given_folder()?;
    let program = programs.iter().find(|p| !folder.join(p.name()).is_file())?;
    Some(format!("{} in KUBEBUILDER_ASSETS ({})", program.name(), folder.display()))
}

fn given_remedy() -> String {
    format!("set KUBEBUILDER_ASSETS to a folder that contains {}", Program::ALL.map(Program::name).join(", "))
}

/// Returns the folder of the cache: `CARETAKER_CACHE`, else `caretaker` in the user's cache folder.
#[must_use]
pub fn cache_folder() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    from("CARETAKER_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|c| c.join("caretaker")))
        .or_else(|| from("HOME").map(|h| h.join(".cache/caretaker")))
        .unwrap_or_else(|| std::env::temp_dir().join("caretaker-cache"))
}

/// Returns the version of a Go module in `binaries/go.mod`.
///
/// # Panics
/// If `go.mod` does not require the module.
#[must_use]
pub fn version(module: &str) -> &'static str {
    go_build::version(GO_MOD, module)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn versions_come_from_the_go_module() {
        assert!(version("k8s.io/kubernetes").starts_with("v1."));
        assert!(version("go.etcd.io/etcd/server/v3").starts_with("v3."));
    }

    #[test]
    fn without_go_and_cache_the_error_names_three_remedies() {
        let cache = tempfile::tempdir().unwrap();
        let error = Assets::cached(cache.path(), Path::new("no-such-go")).unwrap_err().to_string();
        for remedy in ["install Go", "KUBEBUILDER_ASSETS", "CARETAKER_CACHE"] {
            assert!(error.contains(remedy), "{remedy} is missing in: {error}");
        }
    }

    #[test]
    fn a_full_cache_needs_no_go() {
        let cache = tempfile::tempdir().unwrap();
        let go = fake_go(cache.path(), "exit 0");
        let built = Assets::cached(cache.path(), &go).unwrap();
        assert_eq!(built.built_version(), Some(version("k8s.io/kubernetes")));

        let found = Assets::cached(cache.path(), Path::new("no-such-go")).unwrap();

        assert_eq!(found.folder(), built.folder());
    }

    #[test]
    fn the_error_says_if_go_is_too_old() {
        let cache = tempfile::tempdir().unwrap();
        let go = fake_go(cache.path(), "echo 'go.mod requires go >= 1.99' >&2; exit 1");

        let error = Assets::cached(cache.path(), &go).unwrap_err().to_string();

        assert!(error.contains("requires go >= 1.99") && error.contains("KUBEBUILDER_ASSETS"), "{error}");
    }

    #[test]
    fn two_concurrent_builds_build_each_program_once() {
        let cache = tempfile::tempdir().unwrap();
        let go = fake_go(cache.path(), "exit 0");

        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| Assets::cached(cache.path(), &go).unwrap());
            }
        });

        let built = fs::read_to_string(cache.path().join("built")).unwrap();
        let expected: Vec<String> = Program::ALL.map(Program::package).to_vec();
        assert_eq!(built.lines().collect::<Vec<_>>(), expected);
    }

    /// Writes a fake `go` that runs `env` as `go env`. A build appends its package to the file `built`,
    /// waits a moment, and writes the output file.
    fn fake_go(folder: &Path, env: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let go = folder.join("go");
        let built = folder.join("built");
        let script = format!(
            "#!/bin/sh\n\
             case $1 in version) exit 0;; env) {env};; esac\n\
             while [ $# -gt 1 ]; do [ \"$1\" = -o ] && out=$2; shift; done\n\
             echo $1 >> {}\nsleep 0.05\necho x > $out\n",
            built.display()
        );
        fs::write(&go, script).unwrap();
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
        go
    }
}
