//! Helm, built from its Go module, once, into the same cache as Kubernetes, and only where something needs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use caretaker_testkit::assets::cache_folder;
use caretaker_testkit::go_build::{GoBuild, version};
use caretaker_testkit::{Cluster, Error, Result};

use crate::workspace;

const GO_MOD: &str = include_str!("../binaries/helm/go.mod");
const GO_SUM: &str = include_str!("../binaries/helm/go.sum");
const MODULE: &str = "helm.sh/helm/v4";

/// Finds helm, or builds it, and returns its path; progress goes to standard error.
pub fn program() -> Result<PathBuf> {
    cached(&cache_folder(), Path::new("go"))
}

fn cached(cache: &Path, go: &Path) -> Result<PathBuf> {
    let version = version(GO_MOD, MODULE);
    let folder = cache.join(format!("helm-{version}"));
    let build = GoBuild {
        what: &format!("Helm {version}"),
        module: (GO_MOD, GO_SUM),
        tags: "",
        also: None,
        programs: &[("helm", format!("{MODULE}/cmd/helm"))],
        link_flags: &format!("-X {MODULE}/internal/version.version={version}"),
        folder: &folder,
        go,
        given: None,
    };
    build.run()?;
    Ok(folder.join("helm"))
}

/// Returns the folder of the chart.
#[must_use]
pub fn chart() -> PathBuf {
    workspace().join("charts/caretaker")
}

/// Runs helm without a cluster, and returns its standard output. A failure carries what it printed.
pub fn run(args: &[&str]) -> Result<String> {
    run_with(args, &[])
}

/// Runs helm on a cluster as the administrator, and returns its standard output. A failure carries what it printed.
pub fn run_on(cluster: &Cluster, args: &[&str]) -> Result<String> {
    run_with(args, &[("KUBECONFIG", &cluster.kubeconfig())])
}

fn run_with(args: &[&str], env: &[(&str, &Path)]) -> Result<String> {
    let failed = |why: String| Error::Command { command: format!("helm {}", args.join(" ")), why };
    // Neither the settings nor the caches of this machine's users.
    let home = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
    let mut command = Command::new(program()?);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    let output = command
        .args(args)
        .env_remove("HELM_NAMESPACE")
        .env_remove("KUBECONFIG")
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(e.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(failed(format!("{said}{}", String::from_utf8_lossy(&output.stderr)).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_go_and_cache_the_error_names_the_remedies() {
        let cache = tempfile::tempdir().unwrap();

        let error = cached(cache.path(), Path::new("no-such-go")).unwrap_err().to_string();

        for remedy in ["no Helm", "install Go", "CARETAKER_CACHE"] {
            assert!(error.contains(remedy), "{remedy} is missing in: {error}");
        }
    }
}
