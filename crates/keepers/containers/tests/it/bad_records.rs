//! Records and sockets that no containerd has: on a containerd in memory, and on sockets of the test's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::memory::InMemory;
use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::containerd::{Containerd as _, ContainerdError, GrpcClient, Task, TaskStatus};
use caretaker_containers::host::Host;
use caretaker_containers::subject::Container;
use caretaker_core::Timestamp;
use rstest::rstest;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

fn host(folder: &std::path::Path) -> Host {
    std::fs::create_dir_all(folder.join("proc/self")).unwrap();
    std::fs::write(folder.join("proc/self/mountinfo"), "").unwrap();
    let none = folder.join("none");
    let (fifo_root, proc) = (folder.join("fifo"), folder.join("proc"));
    Host { fifo_root, state: none.clone(), proc, cgroups: none, ..Host::default() }
}

fn container(id: &str) -> Container {
    Container { id: id.to_owned(), created: Some(Timestamp::UNIX_EPOCH), ..Container::default() }
}

#[rstest]
#[case::up("../../etc")]
#[case::absolute("/etc")]
#[case::nested("a/b")]
#[case::dots("..")]
#[case::empty("")]
#[case::blank("a b")]
#[tokio::test]
async fn an_id_with_path_characters_is_refused_before_anything_is_changed(#[case] id: &str) {
    let folder = tempfile::tempdir().unwrap();
    let memory = Arc::new(InMemory::default());
    memory.records().containers.insert(id.to_owned(), container(id));
    let touched = Arc::new(AtomicUsize::new(0));
    let count = touched.clone();
    *memory.on_touch.lock().unwrap() = Some(Box::new(move |_, _, _| _ = count.fetch_add(1, Ordering::SeqCst)));
    std::fs::create_dir_all(folder.path().join("etc")).unwrap();

    let refused =
        Cleaner::new(memory.clone(), Arc::new(host(folder.path()))).clean(&container(id), Timestamp::UNIX_EPOCH).await;

    assert!(refused.unwrap_err().to_string().contains("part of a path"));
    assert_eq!((touched.load(Ordering::SeqCst), memory.records().containers.len()), (0, 1));
    assert!(folder.path().join("etc").exists());
}

/// A label may have 4,096 bytes with its key, and a path as many: one that cannot be ours is not written down.
#[tokio::test(start_paused = true)]
async fn a_fifo_path_that_no_label_holds_does_not_stop_the_cleaning() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Arc::new(InMemory::default());
    memory.records().containers.insert("sb-1".to_owned(), container("sb-1"));
    let long = format!("/{}", "x/".repeat(2_047));
    let task = Task { status: TaskStatus::Running, fifos: [long, String::new(), "/outside/sb-1-stderr".to_owned()] };
    memory.records().tasks.insert("sb-1".to_owned(), task);

    let host = Arc::new(host(folder.path()));
    Cleaner::new(memory.clone(), host).clean(&container("sb-1"), Timestamp::UNIX_EPOCH).await.unwrap();

    assert!(memory.records().containers.is_empty() && memory.records().tasks.is_empty());
}

/// What a socket that is not containerd's says to every connection.
#[rstest]
#[case::closes(Some(""))]
#[case::speaks_http_1(Some("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))]
#[case::never_answers(None)]
#[tokio::test(start_paused = true)]
async fn a_socket_that_is_not_containerds_is_an_error_and_nothing_is_missing(#[case] words: Option<&'static str>) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("other.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let serving = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            if let Some(words) = words {
                let _ = stream.write_all(words.as_bytes()).await;
            } else {
                open.push(stream);
            }
        }
    });
    let client = GrpcClient::new(&socket, "k8s.io").unwrap();

    let answers = [
        client.get("a").await.map(drop).unwrap_err(),
        client.list("x").await.map(drop).unwrap_err(),
        client.list_all().await.map(drop).unwrap_err(),
        client.task("a").await.map(drop).unwrap_err(),
        client.snapshot_bytes("overlayfs", "a").await.map(drop).unwrap_err(),
        client.snapshots("overlayfs").await.map(drop).unwrap_err(),
        client.snapshot("overlayfs", "a").await.map(drop).unwrap_err(),
        client.leased_snapshots("overlayfs").await.map(drop).unwrap_err(),
        client.delete_task("a").await.unwrap_err(),
        client.delete_container("a").await.unwrap_err(),
    ];
    serving.abort();

    let missing = answers.iter().filter(|error| matches!(error, ContainerdError::NotFound(_))).count();
    assert_eq!(missing, 0, "{answers:?}");
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let client = GrpcClient::new(&folder.path().join("none.sock"), "k8s.io").unwrap();

    for why in [client.get("a").await.map(drop).unwrap_err(), client.list("x").await.map(drop).unwrap_err()] {
        assert!(matches!(why, ContainerdError::Unavailable(..)), "{why:?}");
        assert!(why.to_string().contains("none.sock"), "{why}");
    }
    assert!(GrpcClient::new(&folder.path().join("none.sock"), "bad\nnamespace").is_err());
}
