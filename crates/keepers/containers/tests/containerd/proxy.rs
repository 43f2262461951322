//! A socket in front of containerd: it notes what the client sends, and goes away at the n-th answer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

#[derive(Debug, Default)]
struct Seen {
    sent: Mutex<Vec<u8>>,
    answers: AtomicUsize,
}

pub struct Proxy {
    pub socket: PathBuf,
    seen: Arc<Seen>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Passes everything on; the connection breaks instead of the n-th piece that containerd answers, and nobody listens
    /// after that.
    pub fn start(socket: PathBuf, containerd: &Path, last_answer: usize) -> std::io::Result<Self> {
        let listener = UnixListener::bind(&socket)?;
        let (seen, behind): (Arc<Seen>, _) = (Arc::default(), containerd.to_owned());
        let noted = seen.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if pass(client, &behind, &noted, last_answer).await.is_none() {
                    return;
                }
            }
        });
        Ok(Self { socket, seen, serving })
    }

    /// True if the client has sent these bytes in one piece.
    pub fn was_sent(&self, bytes: &[u8]) -> bool {
        self.seen.sent.lock().unwrap().windows(bytes.len()).any(|piece| piece == bytes)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// `None` once containerd has gone away.
async fn pass(client: UnixStream, containerd: &Path, seen: &Seen, last_answer: usize) -> Option<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = UnixStream::connect(containerd).await.ok()?.into_split();
    let forth = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut piece).await {
            seen.sent.lock().unwrap().extend_from_slice(&piece[..length]);
            if to_server.write_all(&piece[..length]).await.is_err() {
                break;
            }
        }
        Some(())
    };
    let back = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut piece).await {
            if seen.answers.fetch_add(1, Ordering::SeqCst) + 1 >= last_answer {
                return None;
            }
            if to_client.write_all(&piece[..length]).await.is_err() {
                break;
            }
        }
        Some(())
    };
    tokio::select! {
        ended = forth => ended,
        ended = back => ended,
    }
}
