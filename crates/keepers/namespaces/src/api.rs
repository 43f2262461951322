//! Names on the wire, and how their values are read.
//!
//! The names are kubefree's, so that a cluster changes nothing but the operator. Where two dialects are in use, both
//! are read and the specification's is written.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use caretaker_core::parsed::{InvalidValue, Parsed};
use caretaker_core::window::Window;
use caretaker_core::{RuleSet as _, SignedDuration, Timestamp, duration, time};
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};

use crate::judge::Rule;

/// The prefix of kubefree's labels and annotations.
pub const KUBEFREE: &str = "sleepmode.kubefree.com/";
/// The prefix of our own labels and annotations.
pub const CARETAKER: &str = "caretaker.dev/";

/// Label: put to sleep after being idle for this long.
pub const SLEEP_AFTER: &str = "sleepmode.kubefree.com/sleep-after";
/// Label: deleted after being idle for this long.
pub const DELETE_AFTER: &str = "sleepmode.kubefree.com/delete-after";
/// Label: one of [`State`].
pub const STATE: &str = "sleepmode.kubefree.com/state";
/// Label: leave this object alone.
pub const EXCLUDE: &str = "sleepmode.kubefree.com/exclude";
/// Annotation: the last activity, as JSON.
pub const ACTIVITY: &str = "sleepmode.kubefree.com/activity-status";
/// Annotation on a workload: the replicas it had before the sleep, as kubefree writes them. Where the label
/// [`SCALED_DOWN`] is set, that counts.
pub const LEGACY_REPLICAS: &str = "sleepmode.kubefree.com/legacy-replicas";
/// Annotation: when the sleep began.
pub const ASLEEP_SINCE: &str = "caretaker.dev/asleep-since";
/// Annotation: since when something is known to run in it although it is asleep.
pub const HALF_AWAKE_SINCE: &str = "caretaker.dev/half-awake-since";
/// Annotation: when it was put back to sleep after that, the last time in this sleep.
pub const PUT_BACK_AT: &str = "caretaker.dev/put-back-at";
/// Annotation: when the deletion was announced.
pub const ANNOUNCED_AT: &str = "caretaker.dev/announced-at";
/// Annotation: the announced date of the deletion.
pub const DELETE_AT: &str = "caretaker.dev/delete-at";
/// Annotation: a person ordered it to sleep until this time.
pub const SLEEP_UNTIL: &str = "caretaker.dev/sleep-until";
/// Annotation: a person ordered it to stay awake until this time.
pub const AWAKE_UNTIL: &str = "caretaker.dev/awake-until";
/// Annotation: a person ordered the sleep, which does not count towards deletion.
pub const MANUAL_SLEEP: &str = "caretaker.dev/manual-sleep";
/// Annotation: the user who gave the last order.
pub const ORDERED_BY: &str = "caretaker.dev/ordered-by";
/// Annotation: the reason that came with it.
pub const ORDER_REASON: &str = "caretaker.dev/order-reason";
/// Annotation of a Namespace: the window of time in which it is asleep.
pub const SLEEP_DURING: &str = "caretaker.dev/sleep-during";
/// Annotation of a Namespace: `true` if a use inside of that window does not wake it.
pub const SLEEP_DURING_STRICT: &str = "caretaker.dev/sleep-during-strict";
/// Annotation: the schedule put it to sleep, which does not count towards deletion.
pub const SCHEDULED_SLEEP: &str = "caretaker.dev/scheduled-sleep";
/// Annotation: the value that the defaults gave to `sleep-after`.
pub const DEFAULT_POLICY: &str = "caretaker.dev/default-policy";
/// Label on a workload: Caretaker scaled it down; the value is the number of replicas it had. A label, because
/// `kubectl rollout undo` replaces the annotations of a Deployment by old ones.
pub const SCALED_DOWN: &str = "caretaker.dev/scaled-down";
/// Label on a subject: when its sleep began to be carried out, which is the name of this sleep. A label, as
/// [`SCALED_DOWN`] is.
pub const SLEEP_STARTED: &str = "caretaker.dev/sleep-started";
/// Annotation on a workload: [`LEGACY_REPLICAS`] is a copy of [`SCALED_DOWN`], made in the sleep that the value names.
/// Where that label is gone, the copy counts if it is of the present sleep; `kubectl rollout undo` brings back those of
/// earlier ones.
pub const LEGACY_REPLICAS_COPY: &str = "caretaker.dev/legacy-replicas-copy";
/// Label on a StatefulSet: the `persistentVolumeClaimRetentionPolicy.whenScaled` it had before the sleep.
pub const LEGACY_WHEN_SCALED: &str = "caretaker.dev/legacy-when-scaled";
/// Label on a single Deployment: the time of its last activity, for `kubectl rollout undo` brings back an old
/// [`ACTIVITY`].
pub const LAST_ACTIVITY: &str = "caretaker.dev/last-activity";
/// Annotation on a CronJob: whether it was suspended before the sleep.
pub const LEGACY_SUSPEND: &str = "caretaker.dev/legacy-suspend";
/// Annotation on a ScaledObject: Caretaker paused it; the value is empty.
pub const LEGACY_PAUSED_REPLICAS: &str = "caretaker.dev/legacy-paused-replicas";
/// Annotation: open sessions (exec, port-forward) by id, each with its start, as JSON.
pub const SESSIONS: &str = "caretaker.dev/sessions";
/// The `nodeSelector` entry that parks a DaemonSet.
pub const PARKED: &str = "caretaker.dev/asleep";
/// The key of the node-affinity term with which kubefree parks a DaemonSet.
pub const KUBEFREE_PARKED: &str = "sleep.kubefree.com/not-existing-key";
/// KEDA's annotation that pauses a ScaledObject.
pub const PAUSED_REPLICAS: &str = "autoscaling.keda.sh/paused-replicas";

/// The end of an order without an end: later than any time that people mean.
pub const FOREVER: Timestamp = Timestamp::constant(253_370_764_800, 0);

/// True for the end of an order without an end.
#[must_use]
pub fn is_forever(until: Timestamp) -> bool {
    until >= FOREVER
}

/// The names that people set.
pub const SET_BY_PEOPLE: [&str; 7] =
    [SLEEP_AFTER, DELETE_AFTER, EXCLUDE, SLEEP_DURING, SLEEP_DURING_STRICT, SLEEP_UNTIL, AWAKE_UNTIL];

/// Every label and annotation that Caretaker reads; true for a label.
pub const KNOWN: [(&str, bool); 28] = [
    (SLEEP_AFTER, true),
    (DELETE_AFTER, true),
    (STATE, true),
    (EXCLUDE, true),
    (ACTIVITY, false),
    (LEGACY_REPLICAS, false),
    (ASLEEP_SINCE, false),
    (HALF_AWAKE_SINCE, false),
    (PUT_BACK_AT, false),
    (ANNOUNCED_AT, false),
    (DELETE_AT, false),
    (SLEEP_UNTIL, false),
    (AWAKE_UNTIL, false),
    (MANUAL_SLEEP, false),
    (ORDERED_BY, false),
    (ORDER_REASON, false),
    (SLEEP_DURING, false),
    (SLEEP_DURING_STRICT, false),
    (SCHEDULED_SLEEP, false),
    (DEFAULT_POLICY, false),
    (SCALED_DOWN, true),
    (SLEEP_STARTED, true),
    (LEGACY_REPLICAS_COPY, false),
    (LEGACY_WHEN_SCALED, true),
    (LAST_ACTIVITY, true),
    (SESSIONS, false),
    (LEGACY_SUSPEND, false),
    (LEGACY_PAUSED_REPLICAS, false),
];

/// The annotations of a subject whose value is a time, and that Caretaker sets and clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeAnnotation {
    /// [`ASLEEP_SINCE`]
    AsleepSince,
    /// [`HALF_AWAKE_SINCE`]
    HalfAwakeSince,
    /// [`PUT_BACK_AT`]
    PutBackAt,
    /// [`ANNOUNCED_AT`]
    AnnouncedAt,
    /// [`DELETE_AT`]
    DeleteAt,
    /// [`SLEEP_UNTIL`]
    SleepUntil,
    /// [`AWAKE_UNTIL`]
    AwakeUntil,
}

impl TimeAnnotation {
    /// The key of the annotation.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::AsleepSince => ASLEEP_SINCE,
            Self::HalfAwakeSince => HALF_AWAKE_SINCE,
            Self::PutBackAt => PUT_BACK_AT,
            Self::AnnouncedAt => ANNOUNCED_AT,
            Self::DeleteAt => DELETE_AT,
            Self::SleepUntil => SLEEP_UNTIL,
            Self::AwakeUntil => AWAKE_UNTIL,
        }
    }
}

/// The key without its prefix, as people read it.
#[must_use]
pub fn short_key(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

/// The state label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// Awake: without the label, or woken before.
    #[default]
    Normal,
    /// Being put to sleep.
    Sleeping,
    /// Asleep.
    Sleep,
    /// Being deleted.
    Deleting,
}

impl State {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Sleeping, Self::Sleep, Self::Deleting];

    /// The value of the label.
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

/// The field of [`ACTIVITY`] with the program that wrote it; only Caretaker sets it.
const RECORDED_BY: &str = "RecordedBy";
/// The field of [`ACTIVITY`] with the time of the last report by another program, which Caretaker's record replaced.
const LAST_REPORT: &str = "LastReport";

/// The last activity: when, what and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// When.
    pub at: Timestamp,
    /// The operation, such as `ListPods`; for a record of our own, the name of the rule.
    pub by: String,
    /// The name of the user.
    pub user: String,
    /// The uid of the user; often empty.
    pub uid: String,
    /// Time of the last activity that another program reported on this object: [`at`](Self::at) in a value that another
    /// program wrote; in one that Caretaker wrote the time of the report that it replaced, if there was one.
    pub reported: Option<Timestamp>,
}

impl Activity {
    /// The user of a record that Caretaker wrote itself.
    pub const CARETAKER: &'static str = "caretaker";

    /// Activity that another program reported, of which only the time is known.
    #[must_use]
    pub fn reported(at: Timestamp) -> Self {
        Self { at, by: String::new(), user: String::new(), uid: String::new(), reported: Some(at) }
    }

    /// A record of Caretaker's own: idle time counts from here, because of this rule.
    #[must_use]
    pub fn recorded(at: Timestamp, rule: Rule) -> Self {
        let (by, user) = (rule.name().to_owned(), Self::CARETAKER.to_owned());
        Self { at, by, user, uid: String::new(), reported: None }
    }

    /// Keeps the time of the last report by another program that was known before.
    #[must_use]
    pub fn replacing(self, before: &Parsed<Self>) -> Self {
        Self { reported: before.get().and_then(|before| before.reported), ..self }
    }

    /// The rule under which Caretaker wrote it; `None` for the activity of a user.
    #[must_use]
    pub fn recorded_under(&self) -> Option<Rule> {
        Rule::parse(&self.by).filter(|_| self.is_own_record())
    }

    /// True if Caretaker wrote it, and not because of a user.
    #[must_use]
    pub fn is_own_record(&self) -> bool {
        self.user == Self::CARETAKER
    }

    /// True if it is no use, but the clock that Caretaker started when it saw the subject first.
    #[must_use]
    pub fn is_first_clock(&self) -> bool {
        self.is_own_record() && self.by == Rule::FirstSeen.name()
    }

    /// True if it is no use: something was found running in a namespace that sleeps.
    #[must_use]
    pub fn is_found_running(&self) -> bool {
        let rules = [Rule::RunningAgain, Rule::PodsRunning, Rule::HalfAwake, Rule::HalfAwakeOver];
        self.is_own_record() && rules.iter().any(|rule| self.by == rule.name())
    }

    /// The value that Caretaker writes: the specification's fields, and who wrote it, so that it is never taken for a
    /// report by another program.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut fields = json!({
            "LastActivityTime": self.at.to_string(),
            "ActionBy": self.by,
            "UserInfo": { "name": self.user, "uid": self.uid },
            RECORDED_BY: Self::CARETAKER,
        });
        if let Some(reported) = self.reported {
            fields[LAST_REPORT] = json!(reported.to_string());
        }
        fields.to_string()
    }
}

/// Where a value is, for messages.
#[derive(Debug, Clone, Copy)]
pub enum Field {
    /// A label.
    Label(&'static str),
    /// An annotation.
    Annotation(&'static str),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label {key}"),
            Self::Annotation(key) => write!(f, "annotation {key}"),
        }
    }
}

fn invalid<T>(field: Field, value: &str, reason: impl fmt::Display, remedy: &str) -> Parsed<T> {
    let (field, value, reason, remedy) = (field.to_string(), value.to_owned(), reason.to_string(), remedy.to_owned());
    Parsed::Invalid(Box::new(InvalidValue { field, value, reason, remedy }))
}

/// A duration; zero means that it is not set.
#[must_use]
pub fn read_duration(field: Field, text: Option<&str>) -> Parsed<SignedDuration> {
    let Some(text) = text else { return Parsed::Missing };
    match duration::parse(text) {
        Ok(d) if d.is_zero() => Parsed::Missing,
        Ok(d) => Parsed::Valid(d),
        Err(why) => invalid(
            field,
            text,
            format_args!("not a duration, {why}"),
            "write one such as 168h, 1h30m or 7d, or remove it",
        ),
    }
}

/// A time.
#[must_use]
pub fn read_time(field: Field, text: Option<&str>) -> Parsed<Timestamp> {
    let Some(text) = text else { return Parsed::Missing };
    time::parse(text).map_or_else(
        || invalid(field, text, "not a time", "write one such as 2026-01-31T12:00:00Z, or remove it"),
        Parsed::Valid,
    )
}

/// A time as the value of a label, which may have no colons: `20260131T120000Z`.
#[must_use]
pub fn label_time(at: Timestamp) -> String {
    at.to_string().replace(['-', ':'], "")
}

/// A time in a label, as [`label_time`] writes it.
#[must_use]
pub fn read_label_time(key: &'static str, text: Option<&str>) -> Parsed<Timestamp> {
    let Some(text) = text else { return Parsed::Missing };
    time::parse(text).map_or_else(
        || invalid(Field::Label(key), text, "not a time", "write one such as 20260131T120000Z, or remove it"),
        Parsed::Valid,
    )
}

/// A window of time. One that names no zone is in this one.
#[must_use]
pub fn read_window(key: &'static str, text: Option<&str>, zone: &TimeZone) -> Parsed<Arc<Window>> {
    let Some(text) = text else { return Parsed::Missing };
    match Window::parse(text, zone) {
        Ok(window) => Parsed::Valid(Arc::new(window)),
        Err(error) => Parsed::Invalid(Box::new(error.in_field(&Field::Annotation(key).to_string(), text))),
    }
}

/// A number of replicas.
#[must_use]
pub fn read_count(field: Field, text: Option<&str>) -> Parsed<i32> {
    let Some(text) = text else { return Parsed::Missing };
    match text.trim().parse::<i32>() {
        Ok(count) if count >= 0 => Parsed::Valid(count),
        _ => invalid(
            field,
            text,
            "not a number of replicas",
            "write the number to restore at the wake, or remove it and scale the workload yourself",
        ),
    }
}

/// `true` or `false`.
#[must_use]
pub fn read_bool(field: Field, text: Option<&str>) -> Parsed<bool> {
    let Some(text) = text else { return Parsed::Missing };
    text.trim().parse().map_or_else(
        |_| invalid(field, text, "neither true nor false", "write one of them, or remove it"),
        Parsed::Valid,
    )
}

/// The state; a missing label is `normal`.
#[must_use]
pub fn read_state(text: Option<&str>) -> Parsed<State> {
    let Some(text) = text.filter(|t| !t.is_empty()) else { return Parsed::Valid(State::Normal) };
    [State::Normal, State::Sleeping, State::Sleep, State::Deleting].into_iter().find(|s| s.name() == text).map_or_else(
        || {
            invalid(
                Field::Label(STATE),
                text,
                "not a known state",
                "write normal, sleeping, sleep or deleting, or remove it",
            )
        },
        Parsed::Valid,
    )
}

/// The activity, in either dialect; the case of field names does not matter.
#[must_use]
pub fn read_activity(text: Option<&str>) -> Parsed<Activity> {
    let Some(text) = text else { return Parsed::Missing };
    let wrong = |why: String| {
        let remedy = r#"write {"LastActivityTime":"2026-01-31T12:00:00Z","ActionBy":"…","UserInfo":{"name":"…","uid":""}}, or remove it, and idle time counts from now"#;
        invalid(Field::Annotation(ACTIVITY), text, why, remedy)
    };
    let fields = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return wrong("not a JSON object".to_owned()),
        Err(e) => return wrong(format!("not JSON ({e})")),
    };
    let Some(at) = field(&fields, "LastActivityTime") else { return wrong("without LastActivityTime".to_owned()) };
    let Some(at) = at.as_str().and_then(time::parse) else {
        return wrong("with a LastActivityTime that is not a time".to_owned());
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
    let by_caretaker = word(RECORDED_BY) == Activity::CARETAKER
        || user == Activity::CARETAKER
        || Rule::parse(&by).is_some()
        || is_unsigned_record(text, at, &fields);
    let reported = if by_caretaker { time::parse(word(LAST_REPORT)) } else { Some(at) };
    Parsed::Valid(Activity { at, by: plain(&by), user, uid, reported })
}

/// True for a value to the letter as Caretaker wrote it before its records named their author. Files rarely have the
/// managers of fields, so that the form is all there is to tell a record of its own from a report by another program; a
/// program that happens to write this form proves nothing, which keeps an object longer and never shorter.
fn is_unsigned_record(text: &str, at: Timestamp, fields: &Map<String, Value>) -> bool {
    let user = &fields.get("UserInfo").unwrap_or(&Value::Null);
    let form = json!({
        "LastActivityTime": at.to_string(),
        "ActionBy": fields.get("ActionBy"),
        "UserInfo": { "name": user["name"], "uid": user["uid"] },
    });
    *text == *form.to_string()
}

/// The open sessions by id.
#[must_use]
pub fn read_sessions(text: Option<&str>) -> Parsed<BTreeMap<String, Timestamp>> {
    let Some(text) = text else { return Parsed::Missing };
    let parsed = serde_json::from_str::<BTreeMap<String, String>>(text).ok().and_then(|all| {
        all.into_iter().map(|(id, since)| Some((id, time::parse(&since)?))).collect::<Option<BTreeMap<_, _>>>()
    });
    match parsed {
        Some(sessions) if sessions.is_empty() => Parsed::Missing,
        Some(sessions) => Parsed::Valid(sessions),
        None => invalid(
            Field::Annotation(SESSIONS),
            text,
            "not a JSON object of times by session id",
            "remove it; a session that is still open does not count any more then",
        ),
    }
}

/// A name for people to read: short, and without control characters.
fn plain(text: &str) -> String {
    const MOST: usize = 80;
    text.chars().filter(|c| !c.is_control()).take(MOST).collect()
}

/// True if an object is to be left alone. Every value but `false` excludes it.
#[must_use]
pub fn read_exclude(text: Option<&str>) -> bool {
    text.is_some_and(|t| !t.eq_ignore_ascii_case("false"))
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).or_else(|| fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}
