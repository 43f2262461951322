//! Whether anybody listens: canaries, and what is known of gaps.
//!
//! The leader sends canaries and keeps the gaps. A canary may come back to another replica, which
//! then says so in the state.

use std::sync::Arc;
use std::time::Duration;

use caretaker_activity::canary::{Canary, Gaps, Next};
use caretaker_activity::fold::CANARY;
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::lease::{self, Lead};
use caretaker_engine::state::{self, Kept, State, StateError};
use caretaker_engine::{Engine, told};
use kube::api::Request;
use tokio::sync::{Notify, mpsc, watch};

use super::records::Source;

/// What a leader knows of what was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hearing {
    pub(super) gaps: Gaps,
    /// All was heard that was done until then: a canary of that time came back. None of this lead's
    /// has yet, if there is none.
    pub(super) proven: Option<Timestamp>,
}

/// The key of the gaps in the state, and that of a canary that came back to another replica.
pub const GAPS: &str = "activity";
const ACKNOWLEDGED: &str = "canary";

const PART: &str = "activity";

/// However short, the time without a leader in which an API server holds on to what it could not
/// send: it tries again after ten seconds.
const UNLED: SignedDuration = SignedDuration::from_secs(30);

/// Until the state is tried again that could not be read or written.
const PAUSE: Duration = Duration::from_secs(1);
/// Until gaps are tried again that could not be written.
const UNSAVED: SignedDuration = SignedDuration::from_secs(1);
/// A canary that takes longer to be answered is not sent.
const ANSWER: Duration = Duration::from_secs(10);

/// Its wires to the loop.
pub(super) struct Wires {
    /// Words of canaries that came back here.
    pub(super) words: mpsc::UnboundedSender<String>,
    /// Rung when the state was written.
    pub(super) changed: Arc<Notify>,
    /// Rung when somebody must know whether all is heard up to now.
    pub(super) doubt: Arc<Notify>,
    /// Nothing before the state was read.
    pub(super) hearing: watch::Receiver<Option<Hearing>>,
}

struct Listening {
    source: Source,
    engine: Arc<Engine>,
    lead: Option<Lead>,
    gaps: State,
    acknowledged: State,
    /// For whoever does not lead.
    open: (State, State),
    words: mpsc::UnboundedReceiver<String>,
    changed: Arc<Notify>,
    doubt: Arc<Notify>,
    hearing: watch::Sender<Option<Hearing>>,
    /// Since when this process listens.
    since: Timestamp,
    /// The last canary of this process that came back was sent then.
    proven: Option<Timestamp>,
}

/// Nobody listens here any more, and somebody else vouches for what is written down: gaps of before
/// mean nothing.
pub(super) async fn forget(engine: &Engine) -> Result<(), StateError> {
    let gaps = State::new(engine.writer.clone(), GAPS, crate::act::carry_out::MANAGER);
    if gaps.word().await?.is_some() { gaps.say(None).await } else { Ok(()) }
}

/// Prepares it; the future runs for ever.
pub(super) fn listen(source: Source, engine: Arc<Engine>, manager: &str) -> (Wires, impl Future<Output = ()> + use<>) {
    let (words, heard) = mpsc::unbounded_channel();
    let (sender, hearing) = watch::channel(None);
    let (changed, doubt) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let state = |client: &kube::Client, key| State::new(client.clone(), key, manager);
    let listening = Listening {
        gaps: state(&engine.writer, GAPS),
        acknowledged: state(&engine.writer, ACKNOWLEDGED),
        open: (state(&source.client, GAPS), state(&source.client, ACKNOWLEDGED)),
        source,
        lead: engine.lead.clone(),
        since: engine.clock.now(),
        proven: None,
        engine,
        words: heard,
        changed: changed.clone(),
        doubt: doubt.clone(),
        hearing: sender,
    };
    (Wires { words, changed, doubt, hearing }, listening.go())
}

impl Listening {
    async fn go(mut self) {
        loop {
            self.engine.health.fine(PART);
            // Whoever leads next tells it.
            self.engine.health.note(PART, None);
            self.engine.metrics.gap(false);
            while !self.engine.leads() {
                self.hearing.send_replace(None);
                self.proven = self.proven.filter(|proven| *proven != Timestamp::MAX);
                tokio::select! {
                    () = lease::changed(&mut self.lead) => {}
                    Some(word) = self.words.recv() => self.acknowledge(&word).await,
                    why = self.source.ear.lost() => self.note_loss(&why).await,
                }
            }
            self.engine.health.awaits(PART);
            self.lead().await;
        }
    }

    /// Another replica waits for this one.
    async fn acknowledge(&self, word: &str) {
        if let Err(e) = self.open.1.say(Some(word)).await {
            tracing::warn!("a canary of the leader could not be acknowledged: {e}");
        }
    }

    /// Lines of a log were lost here, and the leader must know.
    async fn note_loss(&self, why: &str) {
        let now = self.engine.clock.now();
        loop {
            let noted = async {
                let mut kept: Kept<Gaps> = self.open.0.read().await?;
                kept.value.note(now, why);
                self.open.0.write(&mut kept).await
            };
            match noted.await {
                Ok(()) => return,
                Err(e) => tracing::warn!("lines of the audit log were lost, and it could not be noted: {e}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// As long as this replica leads.
    async fn lead(&mut self) {
        let Some(mut kept) = self.read().await else { return };
        let mut saved = kept.value.clone();
        let now = self.engine.clock.now();
        let proven = self.take_over(&mut kept.value, now);
        let Some(every) = self.source.canary else { return self.trust(kept, now).await };
        let mut canary = Canary::new(every, proven, now);
        let mut settled = false;
        while self.engine.leads() {
            let now = self.engine.clock.now();
            let next = canary.next(&mut kept.value, now);
            if kept.value != saved && self.save(&mut kept).await {
                saved = kept.value.clone();
            }
            if !settled && kept.value == saved {
                settled = true;
                self.settle();
            }
            self.tell(&kept.value);
            match next {
                Next::Send => self.send(&mut canary).await,
                Next::Wait(until) => {
                    // What is not written yet is tried again soon.
                    let again = if kept.value == saved { until } else { time::saturating_add(now, UNSAVED) };
                    self.wait(until.min(again), &mut canary, &mut kept).await;
                }
            }
        }
    }

    /// What the time before this lead means is written down.
    fn settle(&self) {
        if let Some(lead) = &self.engine.lead {
            lead.settle();
        }
    }

    /// Without canaries, everything is taken for heard from now on, but for what is known to be lost.
    async fn trust(&mut self, mut kept: Kept<Gaps>, now: Timestamp) {
        tracing::warn!("canary is none: whether anything is heard of uses is not checked before a sleep or a deletion");
        self.proven = Some(Timestamp::MAX);
        kept.value.end(now);
        let mut unsaved = true;
        while self.engine.leads() {
            let (trouble, now) = (self.source.ear.trouble(), self.engine.clock.now());
            if trouble.is_some() != kept.value.open().is_some() {
                unsaved = true;
                match trouble {
                    Some(why) => kept.value.begin(now, why),
                    None => kept.value.end(now),
                }
            }
            if unsaved && self.save(&mut kept).await {
                unsaved = false;
                self.settle();
            }
            self.tell(&kept.value);
            if kept.value.open().is_none() {
                self.engine.health.note(PART, Some("nobody checks whether audit events come".to_owned()));
            }
            tokio::select! {
                () = lease::changed(&mut self.lead) => {}
                Some(_) = self.words.recv() => {}
                why = self.source.ear.lost() => {
                    kept.value.note(self.engine.clock.now(), why);
                    unsaved = true;
                }
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn read(&self) -> Option<Kept<Gaps>> {
        while self.engine.leads() {
            match self.gaps.read().await {
                Ok(kept) => {
                    self.engine.health.fine(PART);
                    return Some(kept);
                }
                Err(e) => self.engine.health.waits(PART, e.to_string()),
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }

    /// What the time before this lead means; returns when somebody was last known to listen.
    fn take_over(&self, gaps: &mut Gaps, now: Timestamp) -> Timestamp {
        // A dry run has no predecessor and writes nothing: it begins as if all had been heard.
        if self.engine.dry_run {
            return now;
        }
        let before = self.engine.lead.as_ref().and_then(Lead::before);
        match before {
            _ if gaps.is_empty() => gaps.begin(now, "nobody has listened before"),
            None => gaps.begin(now, "nobody knows whether anybody has listened before"),
            // It was here all the time, and only did not lead.
            Some(before) if before >= self.since => return self.proven.unwrap_or(before),
            // A log is read on where it was left.
            Some(before) if self.source.resumes => return before,
            Some(before) if time::duration_between(before, now) > UNLED => {
                gaps.begin(before, "no replica was there to listen");
                return before;
            }
            Some(before) => return before,
        }
        now
    }

    /// True if it is written; it is tried again otherwise.
    async fn save(&self, kept: &mut Kept<Gaps>) -> bool {
        if self.engine.dry_run {
            return true;
        }
        let Err(e) = self.gaps.write(kept).await else { return true };
        if let Ok(there) = self.gaps.read::<Gaps>().await {
            adopt(kept, there);
            if self.gaps.write(kept).await.is_ok() {
                return true;
            }
        }
        tracing::warn!("what is known of gaps could not be written: {e}");
        false
    }

    fn tell(&self, gaps: &Gaps) {
        let Engine { metrics, health, .. } = &*self.engine;
        metrics.gap(gaps.open().is_some());
        let note = match (gaps.open(), gaps.all().iter().max_by_key(|gap| gap.to)) {
            (Some(gap), _) => {
                let trouble = self.source.ear.trouble().map(|why| format!("; {why}")).unwrap_or_default();
                let (from, because) = (time::format(gap.from), &gap.because);
                Some(format!("activity may be missed since {from}, so that no silence counts: {because}{trouble}"))
            }
            (None, Some(gap)) => gap.to.map(|to| {
                format!(
                    "silence counts from {} on; the last gap began at {}: {}",
                    time::format(to),
                    time::format(gap.from),
                    gap.because
                )
            }),
            (None, None) => None,
        };
        health.note(PART, note);
        let proven = self.proven;
        self.hearing.send_if_modified(|known| {
            let before = known.as_ref().is_some_and(|known| known.gaps.open().is_some());
            match gaps.open() {
                Some(gap) if !before => tracing::warn!("activity may be missed: {}", gap.because),
                None if before => tracing::info!("activity is heard of again"),
                _ => {}
            }
            let told = Some(Hearing { gaps: gaps.clone(), proven });
            let news = *known != told;
            *known = told;
            news
        });
    }

    async fn send(&self, canary: &mut Canary) {
        let word = format!("{:016x}", fastrand::u64(..));
        let asked = async {
            let client = (self.source.fresh)(&format!("{CANARY}{word}"))?;
            let path = format!("/api/v1/namespaces/{}/configmaps", state::NAMESPACE);
            let request = Request::new(path).get(state::NAME, &kube::api::GetParams::default());
            let request = request.map_err(|e| e.to_string())?;
            match client.request_text(request).await {
                Ok(_) => Ok(()),
                // At the start there is no such ConfigMap yet; anything else is no answer to this.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                Err(e) => Err(told(&e)),
            }
        };
        // It may come back before it is answered.
        let now = self.engine.clock.now();
        canary.sent(word.clone(), now);
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => canary.unsent(why, now),
            Err(_) => canary.unsent("the API server does not answer".to_owned(), now),
        }
    }

    async fn wait(&mut self, until: Timestamp, canary: &mut Canary, kept: &mut Kept<Gaps>) {
        let clock = self.engine.clock.clone();
        tokio::select! {
            Some(word) = self.words.recv() => self.back(&word, canary, kept),
            why = self.source.ear.lost() => kept.value.note(clock.now(), why),
            () = self.doubt.notified() => canary.hurry(clock.now()),
            () = self.changed.notified() => self.look(canary, kept).await,
            // A comparison with a deadline is strict, and one that is due now is due.
            () = clock.over(Some(until)) => {}
            () = lease::changed(&mut self.lead) => {}
        }
    }

    /// Another replica may have heard the canary, or lost lines of its log.
    async fn look(&mut self, canary: &mut Canary, kept: &mut Kept<Gaps>) {
        if let Ok(there) = self.gaps.read::<Gaps>().await {
            adopt(kept, there);
        }
        if canary.waits()
            && let Ok(Some(word)) = self.acknowledged.word().await
        {
            self.back(&word, canary, kept);
        }
    }

    fn back(&mut self, word: &str, canary: &mut Canary, kept: &mut Kept<Gaps>) {
        if canary.back(word, &mut kept.value) {
            self.proven = Some(canary.proven());
        }
    }
}

/// What others wrote meanwhile is taken in; what is known here of the same gap is newer.
fn adopt(kept: &mut Kept<Gaps>, there: Kept<Gaps>) {
    let ours = std::mem::replace(kept, there);
    let theirs = std::mem::replace(&mut kept.value, ours.value);
    kept.value.and(theirs);
}
