//! A containerd client that dies at the n-th call: before it is made, or right after its answer. Nothing comes after that.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caretaker_containers::containerd::{Answer, Containerd, Snapshot, Task};
use caretaker_containers::subject::Container;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::sync::watch;

/// Calls that are counted, and the one that is the last.
pub struct Mortal {
    inner: Arc<dyn Containerd>,
    calls: AtomicUsize,
    last: usize,
    /// The last call is answered before the death.
    done: bool,
    dead: watch::Sender<bool>,
}

impl Mortal {
    pub fn new(inner: Arc<dyn Containerd>, last: usize, done: bool) -> Self {
        Self { inner, calls: AtomicUsize::new(0), last, done, dead: watch::channel(false).0 }
    }

    /// How many calls were made.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Returns at the moment of death: the caller drops what was under way.
    pub async fn death(&self) {
        // The sender lives as long as this.
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// A call that began before the death is made, as on a connection that is still open; its answer comes to nobody.
    async fn pass<T>(&self, call: BoxFuture<'_, Answer<T>>) -> Answer<T> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let is_last = number == self.last;
        if is_last && !self.done {
            self.dead.send_replace(true);
        }
        if *self.dead.borrow() {
            return std::future::pending().await;
        }
        let answer = call.await;
        if is_last {
            self.dead.send_replace(true);
        }
        if *self.dead.borrow() { std::future::pending().await } else { answer }
    }
}

macro_rules! pass {
    ($($method:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)+) => {
        $(#[allow(clippy::elidable_lifetime_names, reason = "the arguments of some methods have it")]
        fn $method<'a>(&'a self, $($arg: $kind),*) -> BoxFuture<'a, Answer<$answer>> {
            self.pass(self.inner.$method($($arg),*)).boxed()
        })+
    };
}

impl Containerd for Mortal {
    pass! {
        list(managed: &'a str) -> Vec<Container>;
        all_ids() -> Vec<String>;
        get(id: &'a str) -> Option<Container>;
        set_labels(id: &'a str, labels: BTreeMap<String, String>) -> ();
        delete_container(id: &'a str) -> ();
        task(id: &'a str) -> Option<Task>;
        kill(id: &'a str) -> ();
        wait(id: &'a str) -> ();
        resume(id: &'a str) -> ();
        delete_task(id: &'a str) -> ();
        snapshot_bytes(snapshotter: &'a str, key: &'a str) -> Option<u64>;
        remove_snapshot(snapshotter: &'a str, key: &'a str) -> ();
        snapshots(snapshotter: &'a str) -> Vec<Snapshot>;
    }

    fn events(&self) -> BoxStream<'static, String> {
        self.inner.events()
    }
}
