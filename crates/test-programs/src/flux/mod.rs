//! Flux's own source-controller and kustomize-controller beside a cluster, and a Git repository for them.
//!
//! They are built from their Go modules, once, into the same cache as Kubernetes, and only where something needs
//! them. Their definitions come out of the same modules and are kept beside the programs.

mod fleet;
mod git;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::net::TcpStream;

pub use fleet::{Fleet, child, shared};
pub use git::{GitServer, Repository};

use caretaker_testkit::assets::cache_folder;
use caretaker_testkit::go_build::{GoBuild, GoProgram, succeeded, version};
use caretaker_testkit::{Cluster, Error, Result, until};

const GO_MOD: &str = include_str!("../../binaries/flux/go.mod");
const GO_SUM: &str = include_str!("../../binaries/flux/go.sum");

const PROGRAMS: [&str; 2] = ["source-controller", "kustomize-controller"];

/// A controller listens a second after it starts; on a busy machine that takes longer.
const START_LIMIT: Duration = Duration::from_mins(1);

/// The ports of each controller, which has an address of its own.
const METRICS: u16 = 8080;
const FILES: u16 = 9090;
const HEALTH: u16 = 9440;

fn package(program: &str) -> String {
    format!("github.com/fluxcd/{program}")
}

/// A folder with the controllers and their definitions.
#[derive(Debug, Clone)]
pub struct FluxAssets {
    folder: PathBuf,
}

impl FluxAssets {
    /// Finds the controllers, or builds them; progress goes to standard error.
    pub fn get() -> Result<Self> {
        Self::cached(&cache_folder(), Path::new("go"))
    }

    /// Finds the controllers if they were built before.
    #[must_use]
    pub fn find() -> Option<Self> {
        Some(Self::in_cache(&cache_folder())).filter(Self::is_complete)
    }

    fn versions() -> [String; 2] {
        PROGRAMS.map(|program| format!("{program}-{}", version(GO_MOD, &package(program))))
    }

    fn in_cache(cache: &Path) -> Self {
        Self { folder: cache.join(format!("flux-{}", Self::versions().join("-"))) }
    }

    fn cached(cache: &Path, go: &Path) -> Result<Self> {
        let assets = Self::in_cache(cache);
        let build = GoBuild {
            what: &format!("Flux ({})", Self::versions().join(", ")),
            module: (GO_MOD, GO_SUM),
            programs: &PROGRAMS.map(|program| -> GoProgram { (program, package(program)) }),
            tags: "",
            link_flags: "",
            also: Some(("definitions", &|module| assets.copy_definitions(go, module))),
            folder: &assets.folder,
            go,
            given: None,
        };
        build.run()?;
        Ok(assets)
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the definitions of Flux's kinds.
    #[must_use]
    pub fn definitions(&self) -> PathBuf {
        self.folder.join("definitions")
    }

    fn is_complete(&self) -> bool {
        self.definitions().is_dir() && PROGRAMS.iter().all(|program| self.folder.join(program).is_file())
    }

    /// Copies the definitions out of the modules under a temporary name, and renames it.
    fn copy_definitions(&self, go: &Path, module: &Path) -> Result<()> {
        let copied = module.join("definitions");
        fs::create_dir(&copied).map_err(Error::file(&copied))?;
        for program in PROGRAMS {
            let args = ["list", "-m", "-f", "{{.Dir}}", &package(program)];
            let listed = succeeded("the definitions", Command::new(go).args(args).current_dir(module).output())?;
            let folder = PathBuf::from(String::from_utf8_lossy(&listed.stdout).trim()).join("config/crd/bases");
            for file in fs::read_dir(&folder).map_err(Error::file(&folder))? {
                let file = file.map_err(Error::file(&folder))?;
                // Files of the module cache are read-only: the text is copied, not the file.
                let text = fs::read(file.path()).map_err(Error::file(file.path()))?;
                fs::write(copied.join(file.file_name()), text).map_err(Error::file(&copied))?;
            }
        }
        fs::rename(&copied, self.definitions()).map_err(Error::file(self.definitions()))
    }
}

/// Finds the definitions of Flux's kinds, or copies them out of the Go modules. That takes seconds, where a build of the
/// controllers takes minutes.
pub fn definitions() -> Result<PathBuf> {
    definitions_in(&cache_folder(), Path::new("go"))
}

fn definitions_in(cache: &Path, go: &Path) -> Result<PathBuf> {
    let built = FluxAssets::in_cache(cache);
    let alone = FluxAssets { folder: cache.join(format!("flux-definitions-{}", FluxAssets::versions().join("-"))) };
    for assets in [&built, &alone] {
        if assets.definitions().is_dir() {
            return Ok(assets.definitions());
        }
    }
    fs::create_dir_all(&alone.folder).map_err(Error::file(&alone.folder))?;
    let module = tempfile::tempdir_in(&alone.folder).map_err(Error::file(&alone.folder))?;
    for (name, text) in [("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
        let path = module.path().join(name);
        fs::write(&path, text).map_err(Error::file(path))?;
    }
    let packages = PROGRAMS.map(package);
    let download = Command::new(go).args(["mod", "download"]).args(packages).current_dir(module.path()).output();
    succeeded("the definitions of Flux", download)?;
    match alone.copy_definitions(go, module.path()) {
        // Another process was faster.
        Err(_) if alone.definitions().is_dir() => {}
        copied => copied?,
    }
    Ok(alone.definitions())
}

/// Serves Flux's kinds, starts its controllers for all namespaces, and returns when they listen. They end with the
/// cluster.
///
/// # Panics
/// If the search for the controllers panics, which is a bug of this crate.
pub async fn start(cluster: &Cluster) -> Result<()> {
    let assets = tokio::task::spawn_blocking(FluxAssets::get).await.expect("the search does not panic")?;
    let definitions = assets.definitions().display().to_string();
    cluster.kubectl(&["create", "-f", &definitions])?;
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &definitions])?;
    for program in PROGRAMS {
        // All of 127.0.0.0/8 is this machine: with an address of its own a program may have any port.
        let [a, b, c] = [fastrand::u8(1..=254), fastrand::u8(..), fastrand::u8(1..=254)];
        let address = Ipv4Addr::new(127, a, b, c);
        let files = cluster.folder().join(format!("{program}-files"));
        fs::create_dir(&files).map_err(Error::file(&files))?;
        let mut args = vec![
            format!("KUBECONFIG={}", cluster.kubeconfig().display()),
            format!("TMPDIR={}", files.display()),
            "RUNTIME_NAMESPACE=flux-system".to_owned(),
            assets.folder.join(program).display().to_string(),
            "--watch-all-namespaces".to_owned(),
            "--enable-leader-election=false".to_owned(),
            "--events-addr=".to_owned(),
            format!("--metrics-addr={address}:{METRICS}"),
            format!("--health-addr={address}:{HEALTH}"),
            // What failed is tried again soon: a test waits for it.
            "--min-retry-delay=200ms".to_owned(),
            "--max-retry-delay=2s".to_owned(),
        ];
        if program == "source-controller" {
            args.push(format!("--storage-path={}", files.display()));
            args.push(format!("--storage-addr={address}:{FILES}"));
            args.push(format!("--storage-adv-addr={address}:{FILES}"));
        }
        cluster.spawn(program, Path::new("/usr/bin/env"), &args)?;
        until(&format!("{program} to listen"), START_LIMIT, async || {
            cluster.check_processes()?;
            Ok(TcpStream::connect((address, HEALTH)).await.map(drop).map_err(|e| e.to_string()))
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A Go command that knows both modules and builds by these words of a shell; and the folder of the modules.
    fn fake_go(folder: &Path, build: &str) -> (PathBuf, PathBuf) {
        let (go, modules) = (folder.join("go"), folder.join("modules"));
        for program in PROGRAMS {
            let folder = modules.join(package(program)).join("config/crd/bases");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("{program}.yaml")), "kind: CustomResourceDefinition\n").unwrap();
        }
        let known = format!("version|env|mod) exit 0;; list) echo {}/$5; exit 0;;", modules.display());
        fs::write(&go, format!("#!/bin/sh\ncase $1 in {known} esac\n{build}\n")).unwrap();
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
        (go, modules)
    }

    #[test]
    fn without_go_and_cache_the_error_names_the_remedies() {
        let cache = tempfile::tempdir().unwrap();

        let error = FluxAssets::cached(cache.path(), Path::new("no-such-go")).unwrap_err().to_string();

        for remedy in ["install Go", "CARETAKER_CACHE"] {
            assert!(error.contains(remedy), "{remedy} is missing in: {error}");
        }
    }

    #[test]
    fn the_definitions_alone_need_no_build() {
        let cache = tempfile::tempdir().unwrap();
        let (go, modules) = fake_go(cache.path(), "exit 1");

        let folder = definitions_in(cache.path(), &go).unwrap();

        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kustomize-controller.yaml", "source-controller.yaml"]);
        fs::remove_dir_all(modules).unwrap();
        assert_eq!(definitions_in(cache.path(), Path::new("no-such-go")).unwrap(), folder);
    }

    #[test]
    fn the_programs_and_the_definitions_of_both_modules_are_kept_together() {
        let cache = tempfile::tempdir().unwrap();
        let (go, _) =
            fake_go(cache.path(), "while [ $# -gt 1 ]; do [ \"$1\" = -o ] && out=$2; shift; done; echo x > $out");

        let built = FluxAssets::cached(cache.path(), &go).unwrap();
        let found = FluxAssets::cached(cache.path(), Path::new("no-such-go")).unwrap();

        assert_eq!(found.folder(), built.folder());
        for program in PROGRAMS {
            assert!(
                found.folder().join(program).is_file() && found.definitions().join(format!("{program}.yaml")).is_file()
            );
        }
    }
}
