//! What was heard, folded into a few facts about each namespace: when it was last used, by whom and
//! how, who is in it right now, and what else was heard and did not count.
//!
//! All of it is bounded: events are not kept, only what they come to.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use caretaker_core::{SignedDuration, Timestamp, time};
use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::beat::Beats;
use crate::event::{Event, ObjectRef};
use crate::filter::{Filter, Reason, is_read, is_session, timely};

/// One use of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// When.
    pub at: Timestamp,
    /// What was done, such as `ListPods`.
    pub what: String,
    /// Who did it.
    pub user: String,
    /// Which of that name.
    #[serde(default)]
    pub uid: String,
    /// With what program.
    #[serde(default)]
    pub agent: String,
}

/// What is to be written down about a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Note {
    /// Its last use.
    pub last: Option<Use>,
    /// Sessions that have begun, by a name that every replica gives them, and when.
    pub begun: BTreeMap<String, Timestamp>,
    /// Sessions that have ended.
    pub ended: Vec<String>,
}

impl Note {
    /// Takes in what came later.
    pub fn and(&mut self, later: Self) {
        if later.last.as_ref().map(|u| u.at) > self.last.as_ref().map(|u| u.at) {
            self.last = later.last;
        }
        self.begun.extend(later.begun);
        for id in later.ended {
            // Its beginning may have been written without our knowing: its end is kept in any case.
            self.begun.remove(&id);
            if self.ended.len() >= MOST_SESSIONS {
                self.ended.remove(0);
            }
            self.ended.push(id);
        }
    }
}

/// What did not count, by reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignored {
    /// How many.
    pub count: u64,
    /// When the last one was.
    pub at: Timestamp,
    /// Whose it was.
    pub user: String,
    /// What it was.
    pub what: String,
}

#[derive(Debug, Default)]
struct Home {
    last: Option<Use>,
    counted: u64,
    ignored: Vec<(Reason, Ignored)>,
    open: BTreeMap<String, Timestamp>,
    note: Note,
    heard: i64,
}

/// A namespace, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Which one.
    pub namespace: String,
    /// Its last use.
    pub last: Option<Use>,
    /// How many events counted.
    pub counted: u64,
    /// Since when somebody is in it, for each session.
    #[serde(default)]
    pub open: Vec<Timestamp>,
    /// What did not count, by the name of the reason.
    pub ignored: BTreeMap<String, Ignored>,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is a use.
    Counts,
    /// It is not.
    Ignored(Reason),
    /// One of our own that came back.
    Canary,
}

/// Namespaces that are known at most, real ones and those that somebody mistyped.
const MOST: usize = 20_000;
/// Sessions of one namespace that are known at most.
pub const MOST_SESSIONS: usize = 64;
/// Requests that are remembered, so that one that is sent twice counts once.
const REMEMBERED: usize = 1 << 16;
/// Names are kept this far.
const SHOWN: usize = 128;
/// No namespace has a longer one.
const LONGEST_NAME: usize = 63;

fn short(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// The same in every replica, and of no length that a client could choose.
fn session_id(event: &Event<'_>) -> String {
    let bytes = event.id.bytes().chain(event.request_received_timestamp.bytes());
    // FNV-1a.
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// A canary asks for the ConfigMap of Caretaker's state: few others may.
fn is_canary(event: &Event<'_>) -> bool {
    let asked = event.object_ref.as_ref().is_some_and(|o| o.resource == "configmaps" && o.namespace == HOME);
    // At the start there is no such ConfigMap yet.
    asked && event.response_status.is_some_and(|answer| [200, 404].contains(&answer.code))
}

/// The namespace of everything that is Caretaker's own.
const HOME: &str = "caretaker-system";

/// The user agent of a canary: this, and a word that nobody else knows.
pub const CANARY: &str = "caretaker-canary/";

/// Everything that was heard.
#[derive(Debug)]
pub struct Fold {
    filter: Filter,
    beats: Beats,
    homes: HashMap<String, Home>,
    /// Namespaces with something to write down.
    news: HashSet<String>,
    remembered: HashSet<u64>,
    order: VecDeque<u64>,
    hasher: RandomState,
    canaries: VecDeque<String>,
    /// How long a session counts.
    session: SignedDuration,
    /// Whether something had to be forgotten that was to be written down.
    overflown: bool,
}

impl Fold {
    /// Nothing heard yet; a steady beat counts for `beat`, or for ever, and a session for `session`.
    #[must_use]
    pub fn new(filter: Filter, beat: Option<SignedDuration>, session: SignedDuration) -> Self {
        Self {
            session,
            overflown: false,
            filter,
            beats: Beats::new(beat),
            homes: HashMap::new(),
            news: HashSet::new(),
            remembered: HashSet::with_capacity(REMEMBERED),
            order: VecDeque::with_capacity(REMEMBERED),
            hasher: RandomState::new(),
            canaries: VecDeque::new(),
        }
    }

    /// Takes in an event.
    pub fn hear(&mut self, event: &Event<'_>, now: Timestamp) -> Heard {
        if let Some(word) = event.user_agent.strip_prefix(CANARY).filter(|_| is_canary(event)) {
            self.note_canary(word);
            return Heard::Canary;
        }
        let named = |object: &&ObjectRef<'_>| (1..=LONGEST_NAME).contains(&object.namespace.len());
        let Some(object) = event.object_ref.as_ref().filter(named) else {
            return Heard::Ignored(Reason::Elsewhere);
        };
        let outcome = self.weigh(event, object, now);
        match outcome {
            // These are not about anything that was done.
            Heard::Ignored(Reason::Early | Reason::Twice) | Heard::Canary | Heard::Counts => {}
            Heard::Ignored(reason) => self.note_ignored(event, object, reason, now),
        }
        outcome
    }

    fn weigh(&mut self, event: &Event<'_>, object: &ObjectRef<'_>, now: Timestamp) -> Heard {
        if let Some(reason) = self.filter.ignores(event, object) {
            return Heard::Ignored(reason);
        }
        if event.id.is_empty() || self.is_known(event) {
            return Heard::Ignored(Reason::Twice);
        }
        let complete = event.stage == "ResponseComplete";
        let Some(received) = timely(event.received(), now) else { return Heard::Ignored(Reason::Untimely) };
        if is_session(object) {
            let Some(reached) = timely(event.reached(), now) else { return Heard::Ignored(Reason::Untimely) };
            // What ends after it has counted long enough may have ended because its namespace sleeps.
            let stale = complete && time::duration_between(received, reached) >= self.session;
            if !stale {
                self.note_use(event, object, reached, now);
            }
            self.note_session(event, object, reached, complete);
            return if stale { Heard::Ignored(Reason::Ended) } else { Heard::Counts };
        }
        if is_read(&event.verb) {
            let actor = event.actor();
            let agent = event.user_agent.as_ref();
            let kind = (object.resource.as_ref(), object.api_group.as_ref(), object.subresource.as_ref());
            let look = (object.namespace.as_ref(), actor.username.as_ref(), agent, event.verb.as_ref(), kind);
            let look = self.hasher.hash_one(look);
            if event.verb == "watch" {
                if complete {
                    let end = event.reached().unwrap_or(received);
                    self.beats.ended(look, end.as_millisecond());
                    return Heard::Ignored(Reason::Ended);
                }
                // A program that starts anew asks for all there is; one that goes on does not.
                let goes_on = if event.uri.contains("sendInitialEvents=true") {
                    self.beats.is_machine(look, received.as_millisecond())
                } else {
                    self.beats.goes_on(look, received.as_millisecond())
                };
                if goes_on {
                    return Heard::Ignored(Reason::Beat);
                }
            } else if self.beats.is_machine(look, received.as_millisecond()) {
                return Heard::Ignored(Reason::Beat);
            }
        }
        self.note_use(event, object, received, now);
        Heard::Counts
    }

    /// Whether this stage of this request was heard before.
    fn is_known(&mut self, event: &Event<'_>) -> bool {
        // Clients may choose the id, and some choose the same one again.
        let key = (event.id.as_ref(), event.stage.as_ref(), event.stage_timestamp.as_ref());
        let key = self.hasher.hash_one(key);
        if !self.remembered.insert(key) {
            return true;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.remembered.remove(&oldest);
        }
        false
    }

    fn note_use(&mut self, event: &Event<'_>, object: &ObjectRef<'_>, at: Timestamp, now: Timestamp) {
        let actor = event.actor();
        let home = self.home(&object.namespace, now);
        home.counted += 1;
        // Time only ever moves forward.
        if home.last.as_ref().is_some_and(|last| last.at >= at) {
            return;
        }
        let last = Use {
            at,
            what: short(&event.what()),
            user: short(&actor.username),
            uid: short(&actor.uid),
            agent: short(&event.user_agent),
        };
        home.note.last = Some(last.clone());
        home.last = Some(last);
        self.tell(&object.namespace);
    }

    fn note_session(&mut self, event: &Event<'_>, object: &ObjectRef<'_>, at: Timestamp, complete: bool) {
        let session = self.session;
        let home = self.home(&object.namespace, at);
        let id = session_id(event);
        if complete {
            home.open.remove(&id);
            home.note.and(Note { ended: vec![id], ..Note::default() });
        } else {
            // Ends may be heard of by another replica, or by nobody.
            home.open.retain(|_, since| time::duration_between(*since, at) < session);
            if home.open.len() >= MOST_SESSIONS
                && let Some(oldest) = home.open.iter().min_by_key(|(_, since)| **since).map(|(id, _)| id.clone())
            {
                home.open.remove(&oldest);
            }
            home.open.insert(id.clone(), at);
            if home.note.begun.len() < MOST_SESSIONS {
                home.note.begun.insert(id, at);
            }
        }
        self.tell(&object.namespace);
    }

    fn tell(&mut self, namespace: &str) {
        if !self.news.contains(namespace) {
            self.news.insert(namespace.to_owned());
        }
    }

    fn note_ignored(&mut self, event: &Event<'_>, object: &ObjectRef<'_>, reason: Reason, now: Timestamp) {
        let home = self.home(&object.namespace, now);
        let user = event.actor().username.as_ref();
        let at = timely(event.received(), now).unwrap_or(now);
        let Some((_, ignored)) = home.ignored.iter_mut().find(|(known, _)| *known == reason) else {
            let (user, what) = (short(user), short(&event.what()));
            home.ignored.push((reason, Ignored { count: 1, at, user, what }));
            return;
        };
        ignored.count += 1;
        ignored.at = ignored.at.max(at);
        if ignored.user != user {
            ignored.user = short(user);
            ignored.what = short(&event.what());
        }
    }

    fn home(&mut self, namespace: &str, now: Timestamp) -> &mut Home {
        if self.homes.len() >= MOST && !self.homes.contains_key(namespace) {
            self.forget();
        }
        let home = self.homes.entry_ref(namespace).or_default();
        home.heard = now.as_second();
        home
    }

    /// Half of the namespaces, those that were silent longest; what is to be written down stays, as
    /// long as there is not too much of that alone.
    fn forget(&mut self) {
        let mut times: Vec<i64> = self.homes.values().map(|home| home.heard).collect();
        let middle = times.len() / 2;
        let (_, limit, _) = times.select_nth_unstable(middle);
        let limit = *limit;
        let news = &self.news;
        self.homes.retain(|name, home| home.heard > limit || news.contains(name));
        if self.homes.len() >= MOST {
            self.homes.clear();
            self.news.clear();
            self.overflown = true;
        }
    }

    /// Whether uses had to be forgotten since this was asked last, because there were too many at once.
    pub fn take_overflown(&mut self) -> bool {
        std::mem::take(&mut self.overflown)
    }

    fn note_canary(&mut self, word: &str) {
        const FEW: usize = 16;
        const LONGEST: usize = 64;
        if word.len() <= LONGEST && !self.canaries.iter().any(|known| known == word) {
            self.canaries.push_back(word.to_owned());
            if self.canaries.len() > FEW {
                self.canaries.pop_front();
            }
        }
    }

    /// The canaries that came back since this was asked last.
    pub fn take_canaries(&mut self) -> Vec<String> {
        self.canaries.drain(..).collect()
    }

    /// Whether there is anything to write down, or a canary to be told of.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty() || !self.canaries.is_empty()
    }

    /// What is to be written down since this was asked last, by namespace.
    pub fn take(&mut self) -> Vec<(String, Note)> {
        let homes = &mut self.homes;
        let taken = self.news.drain();
        taken.filter_map(|name| homes.get_mut(&name).map(|home| (name, std::mem::take(&mut home.note)))).collect()
    }

    /// All that is known, by namespace, for people.
    #[must_use]
    pub fn told(&self) -> Vec<Told> {
        let mut told: Vec<Told> = self
            .homes
            .iter()
            .map(|(name, home)| Told {
                namespace: name.clone(),
                last: home.last.clone(),
                counted: home.counted,
                open: home.open.values().copied().collect(),
                ignored: home.ignored.iter().map(|(reason, i)| (reason.name().to_owned(), i.clone())).collect(),
            })
            .collect();
        told.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        told
    }
}
