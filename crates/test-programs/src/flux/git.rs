//! Git repositories on loopback, served by Git's smart HTTP protocol.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as UrlPath, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use caretaker_testkit::{Error, Result};

/// What a fetch asks for first, and the only service here.
const ADVERTISED: &[u8] = b"001e# service=git-upload-pack\n0000";

/// Serves repositories until the process ends; they are removed when this value is dropped.
#[derive(Debug)]
pub struct GitServer {
    folder: TempDir,
    url: String,
}

/// A repository with one branch, `main`.
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
    /// Where it is served.
    pub url: String,
}

impl GitServer {
    /// Starts the server on a thread of its own: the runtime of a test ends before the next test begins.
    ///
    /// # Panics
    /// On that thread, if no Tokio runtime starts.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(Error::Port)?;
        listener.set_nonblocking(true).map_err(Error::Port)?;
        let url = format!("http://{}", listener.local_addr().map_err(Error::Port)?);
        let app = Router::new()
            .route("/{repository}/info/refs", get(advertise))
            .route("/{repository}/git-upload-pack", post(upload_pack))
            .with_state(folder.path().to_owned());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("the Tokio runtime starts").block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener of this runtime");
                axum::serve(listener, app).await
            })
        });
        Ok(Self { folder, url })
    }

    /// Creates an empty repository.
    pub fn repository(&self, name: &str) -> Result<Repository> {
        let repository = Repository { folder: self.folder.path().join(name), url: format!("{}/{name}", self.url) };
        std::fs::create_dir(&repository.folder).map_err(Error::file(&repository.folder))?;
        repository.git(&["init", "--quiet", "--initial-branch=main"])?;
        Ok(repository)
    }
}

impl Repository {
    /// Commits these files, each as a path and its text, and returns the id of the commit. Other files stay.
    pub fn commit(&self, files: &[(&str, &str)]) -> Result<String> {
        for (path, text) in files {
            let path = self.folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(Error::file(&path))?;
            std::fs::write(&path, text).map_err(Error::file(&path))?;
        }
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "--allow-empty", "--message=a test"])?;
        Ok(self.git(&["rev-parse", "HEAD"])?.trim().to_owned())
    }

    /// Commits without this file.
    pub fn remove(&self, path: &str) -> Result<String> {
        self.git(&["rm", "--quiet", path])?;
        self.commit(&[])
    }

    fn git(&self, args: &[&str]) -> Result<String> {
        let failed = |why: String| Error::Command { command: format!("git {}", args.join(" ")), why };
        let output = git(&self.folder).args(args).output().map_err(|e| failed(e.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Git in a folder, without the settings of this machine's users.
fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(folder).stdin(Stdio::null());
    for (key, value) in [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")] {
        git.env(key, value);
    }
    for who in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{who}_NAME"), "test").env(format!("GIT_{who}_EMAIL"), "test@example.org");
    }
    git
}

async fn advertise(State(root): State<PathBuf>, UrlPath(name): UrlPath<String>, RawQuery(query): RawQuery) -> Response {
    if query.as_deref() != Some("service=git-upload-pack") {
        return (StatusCode::FORBIDDEN, "only git-upload-pack is served").into_response();
    }
    match run(&root, &name, &["--advertise-refs"], &[]).await {
        Ok(refs) => answer("application/x-git-upload-pack-advertisement", [ADVERTISED, &refs].concat()),
        Err(why) => (StatusCode::NOT_FOUND, why).into_response(),
    }
}

async fn upload_pack(State(root): State<PathBuf>, UrlPath(name): UrlPath<String>, wanted: Bytes) -> Response {
    match run(&root, &name, &[], &wanted).await {
        Ok(pack) => answer("application/x-git-upload-pack-result", pack),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
    }
}

fn answer(kind: &'static str, body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, kind)], body).into_response()
}

/// What `git upload-pack` answers to this input.
async fn run(root: &Path, name: &str, args: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
    // The name is one segment of a URL; it must not lead elsewhere.
    if name.starts_with('.') || name.contains('/') {
        return Err("no such repository".to_owned());
    }
    let mut command = tokio::process::Command::from(git(root));
    command.args(["upload-pack", "--stateless-rpc"]).args(args).arg(root.join(name));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("git does not run: {e}"))?;
    let mut stdin = child.stdin.take().expect("piped");
    // A client that only wants to know the refs closes early; what Git answers then is said below.
    let _ = stdin.write_all(input).await;
    drop(stdin);
    let output = child.wait_with_output().await.map_err(|e| e.to_string())?;
    if output.status.success() { Ok(output.stdout) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_has_what_was_committed_last() {
        let server = GitServer::start().unwrap();
        let repository = server.repository("fleet").unwrap();
        repository.commit(&[("apps/a.yaml", "one"), ("apps/b.yaml", "two")]).unwrap();
        let last = repository.commit(&[("apps/a.yaml", "three")]).unwrap();
        let folder = tempfile::tempdir().unwrap();

        let cloned =
            git(folder.path()).args(["clone", "--quiet", "--depth=1", &repository.url, "copy"]).output().unwrap();

        assert!(cloned.status.success(), "{}", String::from_utf8_lossy(&cloned.stderr));
        let copy = folder.path().join("copy");
        assert_eq!(std::fs::read_to_string(copy.join("apps/a.yaml")).unwrap(), "three");
        assert_eq!(std::fs::read_to_string(copy.join("apps/b.yaml")).unwrap(), "two");
        let head = git(&copy).args(["rev-parse", "HEAD"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&head.stdout).trim(), last);
    }
}
