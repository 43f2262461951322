//! Death by SIGKILL at the n-th step: a call to containerd, or a change on the host. For a process of its own.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use caretaker_containers::containerd::{Answer, Containerd};
use caretaker_containers::host;
use futures::future::BoxFuture;
use futures::poll;
use rustix::process::{Signal, getpid, kill_process};
use tracing::field::{Field, Visit};
use tracing::span;

/// Where the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Before this step. Reads count once between two changes: to repeat one makes no difference.
    Before(usize),
    /// While containerd works on this call, of those that change something: nobody reads its answer.
    During(usize),
}

/// The steps of this process.
#[derive(Debug)]
pub struct Steps {
    death: Death,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    count: usize,
    reads: BTreeSet<&'static str>,
    /// Control groups: to try again to remove one is no new step.
    groups: BTreeSet<String>,
}

const READS: [&str; 5] = ["get", "task", "snapshot_bytes", "snapshot", "list_all"];
/// So often a call is polled until its request has left this process.
const POLLS: usize = 8;

impl Steps {
    pub fn new(death: Death) -> Arc<Self> {
        Arc::new(Self { death, made: Mutex::default() })
    }

    /// A step, unless it is a read that was made since the last change already.
    fn begin(&self, name: &str, read: Option<&'static str>) {
        let mut made = self.made.lock().unwrap();
        let Death::Before(last) = self.death else { return };
        match read {
            Some(read) if !made.reads.insert(read) => return,
            Some(_) => {}
            None => made.reads.clear(),
        }
        if made.count_one(name) == last {
            die();
        }
    }

    /// A call that changes something. True if it is the one to die in.
    fn is_last_call(&self, name: &str) -> bool {
        matches!(self.death, Death::During(last) if self.made.lock().unwrap().count_one(name) == last)
    }
}

impl Made {
    /// One line for each step, so that its parent knows where it died.
    fn count_one(&mut self, name: &str) -> usize {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{name}").and_then(|()| out.flush()).unwrap();
        self.count += 1;
        self.count
    }
}

fn die() {
    kill_process(getpid(), Signal::KILL).unwrap();
}

/// A client whose calls are steps.
pub struct Deadly {
    pub inner: Arc<dyn Containerd>,
    pub steps: Arc<Steps>,
}

impl Deadly {
    pub(super) async fn pass<T>(&self, name: &'static str, mut call: BoxFuture<'_, Answer<T>>) -> Answer<T> {
        let is_read = READS.contains(&name);
        self.steps.begin(name, is_read.then_some(name));
        if !is_read && self.steps.is_last_call(name) {
            for _ in 0..POLLS {
                if poll!(&mut call).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            die();
        }
        call.await
    }
}

/// Takes what the host is about to change as steps.
pub struct HostSteps(pub Arc<Steps>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        self.0 = format!("{value:?}");
    }
}

impl tracing::Subscriber for HostSteps {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == host::STEPS
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let is_group = text.0.starts_with("removing control group");
        if !is_group || self.0.made.lock().unwrap().groups.insert(text.0.clone()) {
            self.0.begin(&text.0, None);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
