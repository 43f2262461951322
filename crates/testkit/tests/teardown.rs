//! Nothing is left behind, however the process that holds a cluster ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use caretaker_testkit::{Cluster, until};

/// The clean-up takes a second; a machine under load may need more.
const LIMIT: Duration = Duration::from_mins(1);

/// A process that holds a cluster, with a node where the machine can run one.
fn holder(scratch: &Path) -> (Child, PathBuf) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_testkit"))
        .arg("hold")
        .arg(scratch.join("kubeconfig"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the testkit runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says where");
    let folder = PathBuf::from(line.trim());
    assert!(folder.is_dir(), "no cluster: {line}");
    (child, folder)
}

/// What is left of a cluster on this machine: processes, mounts in any process, files, links.
fn traces(folder: &Path) -> Vec<String> {
    let needle = folder.to_str().expect("a folder of ours");
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").expect("procfs").flatten().map(|e| e.path()) {
        let read = |file: &str| fs::read(process.join(file)).map(|b| String::from_utf8_lossy(&b).replace('\0', " "));
        let own = process.ends_with(std::process::id().to_string());
        if !own && read("cmdline").is_ok_and(|line| line.contains(needle)) {
            found.push(format!("process {}: {}", process.display(), read("cmdline").unwrap_or_default()));
        }
        if read("mountinfo").is_ok_and(|table| table.contains(needle)) {
            found.push(format!("a mount seen by {}", process.display()));
        }
    }
    if folder.exists() {
        found.push(format!("the folder {needle}"));
    }
    let id = needle.rsplit('-').next().expect("named so").to_lowercase();
    if Path::new("/sys/class/net").join(format!("ctk{id}")).exists() {
        found.push(format!("the bridge ctk{id}"));
    }
    found
}

async fn nothing_is_left(folder: &Path) {
    until("nothing to be left", LIMIT, async || {
        let left = traces(folder);
        Ok(if left.is_empty() { Ok(()) } else { Err(left.join("\n")) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn killed_with_sigkill_nothing_is_left() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut child, folder) = holder(scratch.path());
    assert!(traces(&folder).len() > 3, "the search itself finds a living cluster: {:?}", traces(&folder));

    child.kill().unwrap();
    child.wait().unwrap();

    nothing_is_left(&folder).await;
}

#[tokio::test]
async fn ended_by_sigterm_nothing_is_left() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut child, folder) = holder(scratch.path());

    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success());

    // It has waited for the clean-up itself.
    assert_eq!(traces(&folder), Vec::<String>::new());
}

#[tokio::test]
async fn a_panic_leaves_nothing() {
    let (tell, told) = std::sync::mpsc::channel();

    let panicked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster::builder().start().await.unwrap();
            tell.send(cluster.folder().to_owned()).unwrap();
            panic!("as a failing test does");
        });
    })
    .join();

    assert!(panicked.is_err());
    assert_eq!(traces(&told.recv().unwrap()), Vec::<String>::new());
}
