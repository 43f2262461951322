//! A thousand random histories on a containerd in memory: containers come, go, come again under the same ID, and the
//! cleaning of what was judged dies at any call. What must be kept is never touched, and what must go leaves nothing.

mod faulty;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::containerd::{Answer, Containerd, ContainerdError, Snapshot, Task, TaskStatus};
use caretaker_containers::host::Host;
use caretaker_containers::subject::Container;
use caretaker_core::Timestamp;
use faulty::Mortal;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use rustix::fs::{CWD, FileType, Mode, mknodat};

#[derive(Debug, Default)]
struct World {
    containers: BTreeMap<String, Container>,
    tasks: BTreeMap<String, Task>,
    snapshots: BTreeSet<String>,
    clock: i64,
}

#[derive(Debug, Default)]
struct Memory(Mutex<World>);

fn missing(what: &str) -> ContainerdError {
    ContainerdError::NotFound(what.to_owned())
}

macro_rules! answers {
    ($($method:ident($world:ident, $($arg:ident: $kind:ty),*) -> $answer:ty $body:block)+) => {
        $(fn $method<'a>(&'a self, $($arg: $kind),*) -> BoxFuture<'a, Answer<$answer>> {
            async move {
                tokio::task::yield_now().await;
                let mut guard = self.0.lock().unwrap();
                let $world = &mut *guard;
                $body
            }
            .boxed()
        })+
    };
}

impl Containerd for Memory {
    answers! {
        list(world, _managed: &'a str) -> Vec<Container> { Ok(world.containers.values().cloned().collect()) }
        all_ids(world,) -> Vec<String> { Ok(world.containers.keys().cloned().collect()) }
        get(world, id: &'a str) -> Option<Container> { Ok(world.containers.get(id).cloned()) }
        set_labels(world, id: &'a str, labels: BTreeMap<String, String>) -> () {
            world.containers.get_mut(id).ok_or_else(|| missing(id))?.labels.extend(labels);
            Ok(())
        }
        delete_container(world, id: &'a str) -> () { world.containers.remove(id).map(drop).ok_or_else(|| missing(id)) }
        task(world, id: &'a str) -> Option<Task> { Ok(world.tasks.get(id).cloned()) }
        kill(world, id: &'a str) -> () {
            world.tasks.get_mut(id).ok_or_else(|| missing(id))?.status = TaskStatus::Stopped;
            Ok(())
        }
        wait(world, id: &'a str) -> () { world.tasks.get(id).map(drop).ok_or_else(|| missing(id)) }
        resume(world, _id: &'a str) -> () { let _ = world; Ok(()) }
        delete_task(world, id: &'a str) -> () {
            match world.tasks.get(id).map(|task| task.status) {
                None => Err(missing(id)),
                Some(TaskStatus::Stopped) => { world.tasks.remove(id); Ok(()) }
                Some(_) => Err(ContainerdError::Failed(id.to_owned(), "it runs".to_owned())),
            }
        }
        snapshot_bytes(world, _snapshotter: &'a str, key: &'a str) -> Option<u64> {
            Ok(world.snapshots.contains(key).then_some(7))
        }
        remove_snapshot(world, _snapshotter: &'a str, key: &'a str) -> () {
            if world.snapshots.remove(key) { Ok(()) } else { Err(missing(key)) }
        }
        snapshots(world, snapshotter: &'a str) -> Vec<Snapshot> {
            let one = |key: &String| Snapshot { snapshotter: snapshotter.to_owned(), key: key.clone() };
            Ok(world.snapshots.iter().map(one).collect())
        }
    }

    fn events(&self) -> BoxStream<'static, String> {
        futures::stream::pending().boxed()
    }
}

/// A small generator: the same history for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

struct History {
    memory: Arc<Memory>,
    host: Arc<Host>,
    dice: Dice,
}

const IDS: [&str; 4] = ["sb-1", "sb-10", "sb-100", "sb-2"];

impl History {
    fn create(&mut self, id: &str) {
        let folder = self.host.fifo_root.join(format!("r{}", self.dice.roll(1 << 30)));
        let fifos = ["-stdin", "-stdout", "-stderr"].map(|suffix| {
            let path = folder.join(format!("{id}{suffix}"));
            std::fs::create_dir_all(&folder).unwrap();
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
            path.display().to_string()
        });
        let mut world = self.memory.0.lock().unwrap();
        world.clock += 1;
        let container = Container {
            id: id.to_owned(),
            created: Some(Timestamp::from_second(2_000_000_000 + world.clock).unwrap()),
            labels: [("fast-sandbox.io/managed".to_owned(), "true".to_owned())].into(),
            snapshotter: "memory".to_owned(),
            snapshot_key: format!("{id}-snapshot"),
            cgroup: format!("/none/{id}"),
        };
        world.containers.insert(id.to_owned(), container);
        world.snapshots.insert(format!("{id}-snapshot"));
        let status = [TaskStatus::Running, TaskStatus::Paused, TaskStatus::Stopped, TaskStatus::Created];
        if let Some(status) = status.get(usize::try_from(self.dice.roll(5)).unwrap()) {
            world.tasks.insert(id.to_owned(), Task { status: *status, fifos });
        }
    }

    /// Everything that a container has, as one value.
    fn picture(&self, id: &str) -> String {
        let world = self.memory.0.lock().unwrap();
        let parts =
            (world.containers.get(id), world.tasks.get(id), world.snapshots.contains(&format!("{id}-snapshot")));
        format!("{parts:?} {:?}", self.host.fifos(id).unwrap().len())
    }

    /// Cleans what was judged; it may die at any call.
    async fn clean(&mut self, judged: &Container) {
        let last = usize::try_from(self.dice.roll(30)).unwrap() + 1;
        let mortal = Arc::new(Mortal::new(self.memory.clone(), last, self.dice.roll(2) == 0));
        let cleaner = Cleaner::new(mortal, self.host.clone());
        // A call that never answers is a death; time stands still otherwise.
        let _ = tokio::time::timeout(Duration::from_mins(5), cleaner.clean(judged, Timestamp::UNIX_EPOCH)).await;
    }
}

async fn play(seed: u64, folder: &Path) {
    let none = folder.join("none");
    let host = Host {
        fifo_root: folder.join(format!("fifo-{seed}")),
        state: none.clone(),
        proc: folder.join("proc"),
        cgroups: none,
        ..Host::default()
    };
    let mut history = History { memory: Arc::default(), host: Arc::new(host), dice: Dice(seed) };
    let mut judged: BTreeMap<&str, Container> = BTreeMap::new();
    for _ in 0..12 {
        let id = IDS[usize::try_from(history.dice.roll(4)).unwrap()];
        let found = history.memory.0.lock().unwrap().containers.get(id).cloned();
        match (found, history.dice.roll(3)) {
            (None, _) => history.create(id),
            (Some(container), 0) => _ = judged.insert(id, container),
            (Some(container), _) => {
                let Some(meant) = judged.get(id).cloned() else { continue };
                let others: Vec<String> =
                    IDS.iter().filter(|other| **other != id).map(|id| history.picture(id)).collect();
                let before = history.picture(id);

                history.clean(&meant).await;

                let after: Vec<String> =
                    IDS.iter().filter(|other| **other != id).map(|id| history.picture(id)).collect();
                assert_eq!(others, after, "seed {seed}: cleaning {id} touched another one");
                if !container.is_same(&meant) {
                    assert_eq!(before, history.picture(id), "seed {seed}: {id} is not the one that was judged");
                }
            }
        }
    }
    // The last run lives: everything that was judged and is still the same goes, without a trace.
    for (id, meant) in &judged {
        let found = history.memory.0.lock().unwrap().containers.get(*id).cloned();
        if found.as_ref().is_some_and(|found| found.is_same(meant)) {
            Cleaner::new(history.memory.clone(), history.host.clone())
                .clean(meant, Timestamp::UNIX_EPOCH)
                .await
                .unwrap();
            assert_eq!(history.picture(id), "(None, None, false) 0", "seed {seed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_must_be_kept_is_never_touched_and_what_goes_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("proc/self")).unwrap();
    std::fs::write(folder.path().join("proc/self/mountinfo"), "").unwrap();
    for seed in 0..1_000 {
        play(seed, folder.path()).await;
    }
}
