//! Names on the wire, and how to read what stands under them.
//!
//! The names are kubefree's, so that a cluster changes nothing but the operator. Where two dialects
//! are in the wild, both are read and the specification's is written.

use std::collections::BTreeMap;
use std::fmt;

use caretaker_core::duration;
use caretaker_core::parsed::{Broken, Parsed};
use caretaker_core::{SignedDuration, Timestamp, time};
use serde_json::{Map, Value, json};

/// The prefix of kubefree's labels and annotations.
pub const KUBEFREE: &str = "sleepmode.kubefree.com/";
/// The prefix of our own annotations.
pub const CARETAKER: &str = "caretaker.dev/";

/// Label: asleep after so much silence.
pub const SLEEP_AFTER: &str = "sleepmode.kubefree.com/sleep-after";
/// Label: deleted after so much silence.
pub const DELETE_AFTER: &str = "sleepmode.kubefree.com/delete-after";
/// Label: one of [`State`].
pub const STATE: &str = "sleepmode.kubefree.com/state";
/// Label on a workload: leave it alone.
pub const EXCLUDE: &str = "sleepmode.kubefree.com/exclude";
/// Annotation: the last activity, as JSON.
pub const ACTIVITY: &str = "sleepmode.kubefree.com/activity-status";
/// Annotation on a workload: the replicas it had.
pub const LEGACY_REPLICAS: &str = "sleepmode.kubefree.com/legacy-replicas";
/// Annotation: asleep since.
pub const ASLEEP_SINCE: &str = "caretaker.dev/asleep-since";
/// Annotation: the deletion was announced then.
pub const ANNOUNCED_AT: &str = "caretaker.dev/announced-at";
/// Annotation: the deletion is due then.
pub const DELETE_AT: &str = "caretaker.dev/delete-at";
/// Annotation: put to sleep by hand until then.
pub const HAND_SLEEP_UNTIL: &str = "caretaker.dev/hand-sleep-until";
/// Annotation: kept awake by hand until then.
pub const HAND_WAKE_UNTIL: &str = "caretaker.dev/hand-wake-until";
/// Annotation: its sleep was ordered by a person, and leads to no deletion.
pub const SLEPT_BY_HAND: &str = "caretaker.dev/slept-by-hand";
/// Annotation: the value that the fallback gave to `sleep-after`.
pub const FALLBACK: &str = "caretaker.dev/fallback";
/// Annotation on a workload: it was laid down by us.
pub const LAID_DOWN: &str = "caretaker.dev/laid-down";
/// Annotation on a CronJob: whether it was suspended.
pub const LEGACY_SUSPEND: &str = "caretaker.dev/legacy-suspend";
/// Annotation on a ScaledObject: the pause it had, empty for none.
pub const LEGACY_PAUSED_REPLICAS: &str = "caretaker.dev/legacy-paused-replicas";
/// Annotation: sessions that are open in it, by the audit's name for each, with its beginning.
pub const SESSIONS: &str = "caretaker.dev/sessions";
/// The `nodeSelector` entry that parks a DaemonSet.
pub const PARKED: &str = "caretaker.dev/asleep";
/// The key of the node-affinity term with which kubefree parks a DaemonSet.
pub const KUBEFREE_PARKED: &str = "sleep.kubefree.com/not-existing-key";
/// KEDA's annotation that pauses a ScaledObject.
pub const PAUSED_REPLICAS: &str = "autoscaling.keda.sh/paused-replicas";

/// An order without an end: later than any time that people mean.
pub const FOREVER: Timestamp = Timestamp::constant(253_370_764_800, 0);

/// Every label and annotation that is ours to read, with its place: true for a label.
pub const KNOWN: [(&str, bool); 17] = [
    (SLEEP_AFTER, true),
    (DELETE_AFTER, true),
    (STATE, true),
    (EXCLUDE, true),
    (ACTIVITY, false),
    (LEGACY_REPLICAS, false),
    (ASLEEP_SINCE, false),
    (ANNOUNCED_AT, false),
    (DELETE_AT, false),
    (HAND_SLEEP_UNTIL, false),
    (HAND_WAKE_UNTIL, false),
    (SLEPT_BY_HAND, false),
    (FALLBACK, false),
    (LAID_DOWN, false),
    (SESSIONS, false),
    (LEGACY_SUSPEND, false),
    (LEGACY_PAUSED_REPLICAS, false),
];

/// The state label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// Awake: no label, or woken before.
    #[default]
    Normal,
    /// On its way to sleep.
    Sleeping,
    /// Asleep.
    Sleep,
    /// About to be deleted.
    Deleting,
}

impl State {
    /// As the label says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Sleeping => "sleeping",
            Self::Sleep => "sleep",
            Self::Deleting => "deleting",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a namespace was last used, by whom, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// When.
    pub at: Timestamp,
    /// What was done, such as `ListPods`.
    pub by: String,
    /// Who did it.
    pub user: String,
    /// Which of that name; often nobody knows.
    pub uid: String,
}

impl Activity {
    /// The clock starts because we see this for the first time.
    pub const FIRST_SEEN: &'static str = "FirstSeen";

    /// Whose a note is that is no use.
    pub const US: &'static str = "caretaker";

    /// Activity that is Caretaker's own note.
    #[must_use]
    pub fn noted(at: Timestamp, by: &str) -> Self {
        Self { at, by: by.to_owned(), user: Self::US.to_owned(), uid: String::new() }
    }

    /// In the specification's dialect.
    #[must_use]
    pub fn to_json(&self) -> String {
        json!({
            "LastActivityTime": self.at.to_string(),
            "ActionBy": self.by,
            "UserInfo": { "name": self.user, "uid": self.uid },
        })
        .to_string()
    }
}

/// Where a value stands, for messages.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// A label.
    Label(&'static str),
    /// An annotation.
    Annotation(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label {key}"),
            Self::Annotation(key) => write!(f, "annotation {key}"),
        }
    }
}

fn broken<T>(place: Place, text: &str, why: impl fmt::Display, remedy: &str) -> Parsed<T> {
    let (text, why, remedy) = (text.to_owned(), why.to_string(), remedy.to_owned());
    Parsed::Invalid(Box::new(Broken { field: place.to_string(), text, why, remedy }))
}

/// A duration; zero means that it is not set.
#[must_use]
pub fn read_duration(place: Place, text: Option<&str>) -> Parsed<SignedDuration> {
    let Some(text) = text else { return Parsed::Missing };
    match duration::parse(text) {
        Ok(d) if d.is_zero() => Parsed::Missing,
        Ok(d) => Parsed::Valid(d),
        Err(why) => broken(
            place,
            text,
            format_args!("not a duration, {why}"),
            "write one such as 168h, 1h30m or 7d, or remove it",
        ),
    }
}

/// A time.
#[must_use]
pub fn read_time(place: Place, text: Option<&str>) -> Parsed<Timestamp> {
    let Some(text) = text else { return Parsed::Missing };
    time::parse(text).map_or_else(
        || broken(place, text, "not a time", "write one such as 2026-01-31T12:00:00Z, or remove it"),
        Parsed::Valid,
    )
}

/// A count of replicas.
#[must_use]
pub fn read_count(place: Place, text: Option<&str>) -> Parsed<i32> {
    let Some(text) = text else { return Parsed::Missing };
    match text.trim().parse::<i32>() {
        Ok(count) if count >= 0 => Parsed::Valid(count),
        _ => broken(
            place,
            text,
            "not a count of replicas",
            "write the number it should be woken with, or remove it and scale by hand",
        ),
    }
}

/// `true` or `false`.
#[must_use]
pub fn read_bool(place: Place, text: Option<&str>) -> Parsed<bool> {
    let Some(text) = text else { return Parsed::Missing };
    text.trim()
        .parse()
        .map_or_else(|_| broken(place, text, "neither true nor false", "write one of them, or remove it"), Parsed::Valid)
}

/// The state; a missing label is `normal`.
#[must_use]
pub fn read_state(text: Option<&str>) -> Parsed<State> {
    let Some(text) = text.filter(|t| !t.is_empty()) else { return Parsed::Valid(State::Normal) };
    [State::Normal, State::Sleeping, State::Sleep, State::Deleting].into_iter().find(|s| s.name() == text).map_or_else(
        || {
            broken(
                Place::Label(STATE),
                text,
                "no known state",
                "write normal, sleeping, sleep or deleting, or remove it",
            )
        },
        Parsed::Valid,
    )
}

/// The activity, in either dialect, names in any case.
#[must_use]
pub fn read_activity(text: Option<&str>) -> Parsed<Activity> {
    let Some(text) = text else { return Parsed::Missing };
    let wrong = |why: String| {
        let remedy = r#"write {"LastActivityTime":"2026-01-31T12:00:00Z","ActionBy":"…","UserInfo":{"name":"…","uid":""}}, or remove it and the clock starts anew"#;
        broken(Place::Annotation(ACTIVITY), text, why, remedy)
    };
    let fields = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return wrong("not a JSON object".to_owned()),
        Err(e) => return wrong(format!("not JSON ({e})")),
    };
    let Some(at) = field(&fields, "LastActivityTime") else { return wrong("without LastActivityTime".to_owned()) };
    let Some(at) = at.as_str().and_then(time::parse) else {
        return wrong("with a LastActivityTime that is no time".to_owned());
    };
    let word = |name: &str| field(&fields, name).and_then(Value::as_str).unwrap_or_default();
    let by = match (word("ActionBy"), word("Action"), word("Resource")) {
        ("", action, resource) => format!("{action} {resource}").trim().to_owned(),
        (by, ..) => by.to_owned(),
    };
    let info = |names: &[&str]| match field(&fields, "UserInfo") {
        Some(Value::Object(user)) => {
            let known = names.iter().filter_map(|name| field(user, name)?.as_str());
            plain(known.into_iter().find(|name| !name.is_empty()).unwrap_or_default())
        }
        _ => String::new(),
    };
    let (user, uid) = (info(&["Impersonate", "RancherName", "Name"]), info(&["uid"]));
    Parsed::Valid(Activity { at, by: plain(&by), user, uid })
}

/// The sessions that are open, by name.
#[must_use]
pub fn read_sessions(text: Option<&str>) -> Parsed<BTreeMap<String, Timestamp>> {
    let Some(text) = text else { return Parsed::Missing };
    let parsed = serde_json::from_str::<BTreeMap<String, String>>(text).ok().and_then(|all| {
        all.into_iter().map(|(id, since)| Some((id, time::parse(&since)?))).collect::<Option<BTreeMap<_, _>>>()
    });
    match parsed {
        Some(sessions) if sessions.is_empty() => Parsed::Missing,
        Some(sessions) => Parsed::Valid(sessions),
        None => broken(
            Place::Annotation(SESSIONS),
            text,
            "not a JSON object of times by name",
            "remove it; a session that is still open then counts no more",
        ),
    }
}

/// A name is a word for people: short, and without anything that would move a cursor.
fn plain(text: &str) -> String {
    const MOST: usize = 80;
    text.chars().filter(|c| !c.is_control()).take(MOST).collect()
}

/// Whether a workload, or a subject, is to be left alone. Only a clear `false` is no: whoever wrote
/// anything else meant to be left alone.
#[must_use]
pub fn read_exclude(text: Option<&str>) -> bool {
    text.is_some_and(|t| !t.eq_ignore_ascii_case("false"))
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).or_else(|| fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}
