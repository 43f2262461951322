//! Whether a watch has lost something: a cheap question to the API server is compared with what the watch has
//! delivered. Plain data and a timer; no client.
//!
//! The answer has a version, and a watch delivers changes in the order of their versions. So the comparison is exact
//! however much changes meanwhile: it is made when the watch has delivered everything up to that version, which is
//! so before the first later change, or if nothing more comes for a moment. While the API server is asked, nothing
//! is taken from the watch.

use caretaker_core::count::counted;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use crate::source::Resync;
use crate::watch::jittered;

/// How long a watch may take to deliver what the API server has counted.
const SETTLE: Duration = Duration::from_secs(5);
/// How soon after an answer that differs the API server is asked a second time.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What the API server says about all objects of a kind.
#[derive(Debug)]
pub(crate) struct Inventory {
    /// The version at which that was so.
    pub(crate) version: u64,
    pub(crate) objects: Objects,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Objects {
    Count(usize),
    /// The version of each, by [`object_key`].
    Versions(HashMap<u64, u64>),
}

/// An object in eight bytes: there are hundreds of thousands. Two that have the same would only look like a loss.
pub(crate) fn object_key(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

/// A resourceVersion as a number; zero where it is none.
pub(crate) fn version(resource_version: &str) -> u64 {
    resource_version.parse().unwrap_or(0)
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResyncStep {
    /// List everything again.
    List,
    /// Ask the API server for an [`Inventory`].
    Ask,
    /// Compare the last answer.
    Compare,
}

/// What a watch has delivered, and when that is compared with what exists.
#[derive(Debug)]
pub(crate) struct Drift {
    resync: Resync,
    interval: Duration,
    /// The version of each object. Empty where everything is listed every interval.
    known: HashMap<u64, u64>,
    /// The latest version that was delivered.
    latest: u64,
    /// When it is time for the next step; `None` while a list is under way.
    next: Option<Instant>,
    /// An answer that is not compared yet.
    answer: Option<Inventory>,
    /// The last answer differed.
    doubted: bool,
}

impl Drift {
    pub(crate) fn new(resync: Resync, interval: Duration) -> Self {
        Self { resync, interval, known: HashMap::new(), latest: 0, next: None, answer: None, doubted: false }
    }

    pub(crate) fn resync(&self) -> Resync {
        self.resync
    }

    /// A list starts.
    pub(crate) fn list_started(&mut self) {
        *self = Self { known: std::mem::take(&mut self.known), ..Self::new(self.resync, self.interval) };
        self.known.clear();
    }

    /// A list is complete.
    pub(crate) fn list_done(&mut self) {
        self.next = Some(jittered(self.interval));
    }

    /// An object exists in this version.
    pub(crate) fn applied(&mut self, uid: &str, resource_version: &str) {
        self.latest = self.latest.max(version(resource_version));
        if self.resync != Resync::Interval {
            self.known.insert(object_key(uid), version(resource_version));
        }
    }

    /// An object was deleted at this version.
    pub(crate) fn deleted(&mut self, uid: &str, resource_version: &str) {
        self.latest = self.latest.max(version(resource_version));
        self.known.remove(&object_key(uid));
    }

    /// When there is something to do.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// What there is to do at that time.
    pub(crate) fn step(&self) -> ResyncStep {
        match (self.resync, &self.answer) {
            (Resync::Interval, _) => ResyncStep::List,
            (_, Some(_)) => ResyncStep::Compare,
            (_, None) => ResyncStep::Ask,
        }
    }

    /// True if the last answer must be compared before a change of this version is taken in.
    pub(crate) fn is_answer_older_than(&self, resource_version: &str) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.version < version(resource_version))
    }

    /// The API server has answered. Returns why everything must be listed at once, if it must.
    pub(crate) fn answered(&mut self, answer: Inventory) -> Option<String> {
        if answer.version < self.latest {
            let (now, before) = (answer.version, self.latest);
            return Some(format!("its resourceVersion is {now} after {before}: etcd was restored"));
        }
        self.answer = Some(answer);
        self.next = Some(Instant::now() + SETTLE.min(self.interval));
        None
    }

    /// The API server could not be asked; the watch itself reports what is wrong.
    pub(crate) fn unanswered(&mut self) {
        self.next = Some(jittered(self.interval));
    }

    /// Compares the last answer. Returns why everything must be listed again, if it has differed twice.
    pub(crate) fn compare(&mut self) -> Option<String> {
        let answer = self.answer.take()?;
        let difference = match &answer.objects {
            Objects::Count(count) if *count == self.known.len() => None,
            Objects::Count(count) => Some(format!(
                "its watch has delivered {} of {}",
                self.known.len(),
                counted(*count, "object", "objects")
            )),
            Objects::Versions(versions) if *versions == self.known => None,
            Objects::Versions(_) => Some("its watch has not delivered the last change of every object".to_owned()),
        };
        let was_doubted = std::mem::replace(&mut self.doubted, difference.is_some());
        let pause = ASK_AGAIN.min(self.interval);
        self.next = Some(if difference.is_some() { Instant::now() + pause } else { jittered(self.interval) });
        difference.filter(|_| was_doubted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_mins(10);

    /// Three objects were listed at version 10.
    fn watched(resync: Resync) -> Drift {
        let mut drift = Drift::new(resync, INTERVAL);
        drift.list_started();
        for (uid, version) in [("a", "3"), ("b", "10"), ("c", "7")] {
            drift.applied(uid, version);
        }
        drift.list_done();
        drift
    }

    fn count(version: u64, count: usize) -> Inventory {
        Inventory { version, objects: Objects::Count(count) }
    }

    fn versions(version: u64, all: &[(&str, u64)]) -> Inventory {
        let all = all.iter().map(|(uid, version)| (object_key(uid), *version)).collect();
        Inventory { version, objects: Objects::Versions(all) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_listed_every_interval_is_not_remembered() {
        let drift = watched(Resync::Interval);

        assert_eq!((drift.step(), drift.known.len()), (ResyncStep::List, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_differs_twice_is_a_loss() {
        let mut drift = watched(Resync::CountDrift);
        for (differs, expected) in [(4, None), (3, None), (4, None)] {
            assert_eq!(drift.step(), ResyncStep::Ask);
            assert_eq!(drift.answered(count(12, differs)), None);
            assert_eq!((drift.step(), drift.compare()), (ResyncStep::Compare, expected), "once is no proof");
        }

        assert_eq!(drift.answered(count(12, 4)), None);
        assert_eq!(drift.compare().as_deref(), Some("its watch has delivered 3 of 4 objects"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_is_compared_with_what_was_delivered_up_to_its_version() {
        let mut drift = watched(Resync::CountDrift);

        for answer in [count(12, 4), count(20, 4)] {
            let late = answer.version;
            assert_eq!(drift.answered(answer), None);
            assert!(!drift.is_answer_older_than(&late.to_string()), "it is in the count, and comes late");
            drift.applied("d", &late.to_string());
            assert!(drift.is_answer_older_than(&(late + 1).to_string()), "it is not in the count");
            assert_eq!(drift.compare(), None);
            drift.applied("e", &(late + 1).to_string());
            drift.deleted("e", &(late + 2).to_string());
        }

        assert!(!drift.doubted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_was_lost_is_seen_by_its_version() {
        let mut drift = watched(Resync::VersionDrift);
        drift.answered(versions(12, &[("a", 3), ("b", 10), ("c", 7)]));
        assert_eq!((drift.compare(), drift.doubted), (None, false));

        for doubts in [false, true] {
            drift.answered(versions(15, &[("a", 3), ("b", 14), ("c", 7)]));
            assert_eq!(drift.compare().is_some(), doubts);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_goes_back_is_a_restore_of_etcd() {
        let mut drift = watched(Resync::CountDrift);

        let why = drift.answered(count(9, 3));

        assert_eq!(why.as_deref(), Some("its resourceVersion is 9 after 10: etcd was restored"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_starts_forgets_what_was_known() {
        let mut drift = watched(Resync::CountDrift);
        drift.answered(count(12, 4));

        drift.list_started();

        assert_eq!((drift.next(), drift.step(), drift.known.len(), drift.latest), (None, ResyncStep::Ask, 0, 0));
    }
}
