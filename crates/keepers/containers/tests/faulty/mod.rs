//! A containerd client that dies at the n-th call: the call may be done or not, and nothing comes after it.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caretaker_containers::containerd::{Answer, Containerd, Snapshot, Task};
use caretaker_containers::subject::Container;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// Calls that are counted, and the one that is the last.
pub struct Mortal {
    inner: Arc<dyn Containerd>,
    calls: AtomicUsize,
    last: usize,
    /// The last call is done before the death.
    done: bool,
}

impl Mortal {
    pub fn new(inner: Arc<dyn Containerd>, last: usize, done: bool) -> Self {
        Self { inner, calls: AtomicUsize::new(0), last, done }
    }

    /// How many calls were made.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn pass<T>(&self, call: BoxFuture<'_, Answer<T>>) -> Answer<T> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if number < self.last {
            return call.await;
        }
        if number == self.last && self.done {
            let _ = call.await;
        }
        std::future::pending().await
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
