//! A containerd client that dies at the n-th call: before it is made, or right after its answer. Nothing comes after that.
//! Or something happens before the n-th call, and it goes on.

pub mod deadly;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
    names: Mutex<Vec<&'static str>>,
    /// Those that succeeded.
    answered: Mutex<Vec<&'static str>>,
    last: usize,
    /// Instead of its death the last call waits for this to be true, and others follow.
    goes_on: Option<watch::Sender<bool>>,
    /// The last call is answered before the death.
    done: bool,
    dead: watch::Sender<bool>,
}

impl Mortal {
    pub fn new(inner: Arc<dyn Containerd>, last: usize, done: bool) -> Self {
        let (calls, dead) = (AtomicUsize::new(0), watch::channel(false).0);
        let (names, answered) = (Mutex::default(), Mutex::default());
        Self { inner, calls, names, answered, last, goes_on: None, done, dead }
    }

    /// Dies at no call.
    pub fn immortal(inner: Arc<dyn Containerd>) -> Self {
        Self::new(inner, usize::MAX, true)
    }

    /// Dies at no call: the n-th waits for [`go_on`](Self::go_on).
    pub fn interrupted(inner: Arc<dyn Containerd>, call: usize) -> Self {
        Self { goes_on: Some(watch::channel(false).0), ..Self::new(inner, call, false) }
    }

    /// After [`death`](Self::death), which is an interruption then.
    pub fn go_on(&self) {
        if let Some(goes_on) = &self.goes_on {
            goes_on.send_replace(true);
        }
    }

    /// How many calls were made.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// The names of the calls that were made, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.names.lock().unwrap().clone()
    }

    /// How often this was called with success.
    pub fn count(&self, name: &str) -> usize {
        self.answered.lock().unwrap().iter().filter(|one| **one == name).count()
    }

    /// Returns at the moment of death: the caller drops what was under way.
    pub async fn death(&self) {
        // The sender lives as long as this.
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// A call that began before the death is made, as on a connection that is still open; its answer comes to nobody.
    async fn pass<T>(&self, name: &'static str, call: BoxFuture<'_, Answer<T>>) -> Answer<T> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if self.goes_on.is_some() || !*self.dead.borrow() {
            self.names.lock().unwrap().push(name);
        }
        let is_last = number == self.last;
        if let Some(goes_on) = &self.goes_on {
            if is_last {
                self.dead.send_replace(true);
                // The sender lives as long as this.
                let _ = goes_on.subscribe().wait_for(|goes_on| *goes_on).await;
            }
            return call.await;
        }
        if is_last && !self.done {
            self.dead.send_replace(true);
        }
        if *self.dead.borrow() {
            return std::future::pending().await;
        }
        let answer = call.await;
        if answer.is_ok() {
            self.answered.lock().unwrap().push(name);
        }
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
            self.pass(stringify!($method), self.inner.$method($($arg),*)).boxed()
        })+
    };
}

/// A client that has every call go through its own `pass`.
macro_rules! passes {
    ($client:ty) => {
        impl Containerd for $client {
            pass! {
                list(managed: &'a str) -> Vec<Container>;
                list_all() -> Vec<Container>;
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
                snapshot(snapshotter: &'a str, key: &'a str) -> Option<Snapshot>;
                leased_snapshots(snapshotter: &'a str) -> BTreeSet<String>;
            }

            fn events(&self) -> BoxStream<'static, String> {
                self.inner.events()
            }
        }
    };
}

passes!(Mortal);
passes!(deadly::Deadly);
