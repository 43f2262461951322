//! What is wrong with the labels and annotations of an object, before the keeper reads them.

use caretaker_core::parsed::InvalidValue;
use caretaker_core::suspension::Suspension;
use caretaker_core::{Parsed, SignedDuration, Timestamp, duration, time};
use caretaker_engine::Meta;
use jiff::tz::TimeZone;
use serde::Deserialize as _;
use serde_json::Value;

use crate::api::{self, Activity, Field, State, short_key};
use crate::observe::partial::MetadataObject;

/// Kinds on which the labels of a subject have an effect.
const SUBJECTS: [&str; 3] = ["Namespace", "Deployment", "Service"];
/// Kinds that are scaled down.
const WORKLOADS: [&str; 8] =
    ["Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "CronJob", "ScaledObject", "Rollout", "CloneSet"];
/// A name this similar to a known one is a typing error.
const SIMILAR: f64 = 0.6;
/// A name this similar to one that people set holds back a sleep. Names that other versions may write, such as
/// `awake-since`, are less similar.
const NEARLY_THE_SAME: f64 = 0.75;

/// Everything that is wrong with one object of this kind.
#[must_use]
pub fn lint(kind: &str, object: &Value, now: Timestamp) -> Vec<InvalidValue> {
    let Ok(MetadataObject { metadata, .. }) = MetadataObject::deserialize(object) else { return Vec::new() };
    let mut found = unknown_names(&metadata);
    found.extend(misplaced(kind, &metadata));
    found.extend(values(kind, &metadata, now));
    found
}

/// Notes for the owner of an object with which nothing is wrong: what its labels lead to, and when.
#[must_use]
pub fn notes(kind: &str, object: &Value) -> Vec<InvalidValue> {
    let Ok(MetadataObject { metadata, .. }) = MetadataObject::deserialize(object) else { return Vec::new() };
    if !SUBJECTS.contains(&kind) || api::read_exclude(metadata.label(api::EXCLUDE)) {
        return Vec::new();
    }
    let duration = |key| api::read_duration(Field::Label(key), metadata.label(key)).value();
    let sleep = duration(api::SLEEP_AFTER).filter(|_| kind != "Service");
    let used = api::read_activity(metadata.annotation(api::ACTIVITY));
    let asleep = Asleep::of(&metadata).filter(|_| kind != "Service");
    let (label, reason, remedy) = match (sleep, duration(api::DELETE_AFTER), &used) {
        // A value that cannot be read is reported as such, and nothing happens until it can.
        (None, None, _) | (_, Some(_), Parsed::Valid(_)) | (_, _, Parsed::Invalid(_)) => return Vec::new(),
        (Some(sleep), delete, Parsed::Missing) => match asleep {
            Some(asleep) => (api::SLEEP_AFTER, asleep.unreported(sleep, delete), SEE_USE),
            None => (api::SLEEP_AFTER, unreported_sleep(sleep, delete), SEE_USE),
        },
        (None, Some(delete), Parsed::Missing) => {
            let wakes = asleep.map_or("", |_| "it wakes, as it has no sleep-after; ");
            (api::DELETE_AFTER, format!("{wakes}{}", unreported_deletion(delete)), SEE_USE)
        }
        (Some(sleep), None, _) => (api::SLEEP_AFTER, reported_sleep(sleep, &used), KEEP),
    };
    vec![InvalidValue {
        field: Field::Label(label).to_string(),
        value: metadata.label(label).unwrap_or_default().to_owned(),
        reason,
        remedy: remedy.to_owned(),
    }]
}

const KEEP: &str = "for another time add delete-after; to keep what sleeps, set keepers.namespaces.deletion to \
                    onlyDeleteAfter or never";
const SEE_USE: &str = "docs/activity.md shows how Caretaker sees use";

/// A sleep that the labels of an object show.
struct Asleep {
    /// When it began, if that is recorded.
    since: Option<Timestamp>,
}

impl Asleep {
    fn of(meta: &Meta) -> Option<Self> {
        let state = api::read_state(meta.label(api::STATE)).value().filter(|state| *state == State::Sleep);
        let since = || meta.annotation(api::ASLEEP_SINCE);
        state.map(|_| Self { since: api::read_time(Field::Annotation(api::ASLEEP_SINCE), since()).value() })
    }

    /// Description of its labels without `activity-status`.
    fn unreported(&self, sleep: SignedDuration, delete: Option<SignedDuration>) -> String {
        // Where delete-after comes first, the whole of it counts from the sleep.
        let period = match delete {
            None => sleep,
            Some(delete) if delete > sleep => delete - sleep,
            Some(delete) => delete,
        };
        let after = match self.since {
            Some(since) => format!("not before {}", time::format(time::saturating_add(since, period))),
            None => format!("not before {} after Caretaker first sees it", duration::format(period)),
        };
        format!(
            "it is asleep, and kubefree ignores it, as it has no activity-status; here it stays asleep until it is used or \
             woken, and deleted, {after}, only where its use is recorded or reported"
        )
    }
}

fn twice(period: SignedDuration) -> String {
    period.checked_add(period).map_or_else(|| format!("twice {}", duration::format(period)), duration::format)
}

/// Description of `sleep-after` alone on an object whose use another program has reported.
fn reported_sleep(sleep: SignedDuration, used: &Parsed<Activity>) -> String {
    let at = used.get().map(|used| time::saturating_add(time::saturating_add(used.at, sleep), sleep));
    let at = at.map(|at| format!(", not before {}", time::format(at))).unwrap_or_default();
    let (period, total) = (duration::format(sleep), twice(sleep));
    format!("asleep after {period} without a use, and, if its use is recorded or reported, deleted after {total}{at}")
}

/// Description of a sleep without `activity-status`: kubefree ignores the object, and Caretaker counts from now.
fn unreported_sleep(sleep: SignedDuration, delete: Option<SignedDuration>) -> String {
    let total = delete.map_or_else(|| twice(sleep), duration::format);
    format!(
        "kubefree ignores it, as it has no activity-status; here it is asleep {} after Caretaker first sees it, or up to a \
         tenth later, unless it is used; deleted after {total} only where its use is recorded or reported",
        duration::format(sleep)
    )
}

/// Description of a deletion without `activity-status`.
fn unreported_deletion(delete: SignedDuration) -> String {
    format!(
        "kubefree ignores it, as it has no activity-status; here it is deleted {} after Caretaker first sees it, or up to \
         a tenth later, only where its use is recorded or reported, and is left alone otherwise",
        duration::format(delete)
    )
}

/// Names that nothing reads and whose owner meant one that people set: a typing error in the name, the prefix of
/// another name, or a label in place of an annotation. Other unknown names may be those of another version.
#[must_use]
pub(crate) fn misspelled(meta: &Meta) -> Vec<InvalidValue> {
    let is_meant = |(key, _): &(&str, bool)| {
        let similarity = |known: &str| strsim::normalized_levenshtein(short_key(known), short_key(key));
        api::SET_BY_PEOPLE.iter().any(|known| similarity(known) >= NEARLY_THE_SAME)
    };
    our_names(meta).filter(is_meant).filter_map(|(key, is_label)| unknown(meta, key, is_label)).collect()
}

fn unknown_names(meta: &Meta) -> Vec<InvalidValue> {
    our_names(meta).filter_map(|(key, is_label)| unknown(meta, key, is_label)).collect()
}

/// The names with our prefixes; true for a label.
fn our_names(meta: &Meta) -> impl Iterator<Item = (&str, bool)> {
    let labels = meta.label_keys().map(|key| (key, true));
    let annotations = meta.annotation_keys().map(|key| (key, false));
    labels.chain(annotations).filter(|(key, _)| key.starts_with(api::KUBEFREE) || key.starts_with(api::CARETAKER))
}

fn unknown(meta: &Meta, key: &str, is_label: bool) -> Option<InvalidValue> {
    let (this, value) = if is_label { ("label", meta.label(key)) } else { ("annotation", meta.annotation(key)) };
    let (reason, remedy) = match api::KNOWN.iter().find(|(known, _)| *known == key) {
        Some((_, as_label)) if *as_label == is_label => return None,
        Some((_, as_label)) => {
            let (article, right) = if *as_label { ("an", "label") } else { ("a", "annotation") };
            (format!("{article} {this} of this name has no effect"), format!("make it the {right} {key}"))
        }
        None => {
            let similarity = |known: &str| strsim::normalized_levenshtein(short_key(known), short_key(key));
            let similar = api::KNOWN
                .iter()
                .map(|(known, _)| (similarity(known), *known))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .filter(|(similarity, _)| *similarity >= SIMILAR);
            let remedy = similar.map_or_else(|| "remove it".to_owned(), |(_, known)| format!("did you mean {known}?"));
            ("nothing reads this name".to_owned(), remedy)
        }
    };
    let (field, value) = (format!("{this} {key}"), value.unwrap_or_default().to_owned());
    Some(InvalidValue { field, value, reason, remedy })
}

/// Labels that have no effect on this kind.
fn misplaced(kind: &str, meta: &Meta) -> Vec<InvalidValue> {
    let mut found = Vec::new();
    let mut wrong = |key: &'static str, value: &str, reason: &str, remedy: &str| {
        let field = Field::Label(key).to_string();
        found.push(InvalidValue {
            field,
            value: value.to_owned(),
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
        });
    };
    for key in [api::SLEEP_AFTER, api::DELETE_AFTER] {
        let Some(value) = meta.label(key) else { continue };
        if !SUBJECTS.contains(&kind) {
            let reason = format!("it has no effect on a {kind}");
            wrong(key, value, &reason, "put it on the namespace, or on a Deployment or Service");
        } else if kind == "Service" && key == api::SLEEP_AFTER {
            wrong(key, value, "a Service does not sleep", "use delete-after, or put it on the namespace");
        }
    }
    if let Some(value) = meta.label(api::EXCLUDE) {
        if !WORKLOADS.contains(&kind) && !SUBJECTS.contains(&kind) {
            let reason = format!("it has no effect on a {kind}");
            wrong(api::EXCLUDE, value, &reason, "put it on the workload that is to be left alone");
        } else if value != "true" && value != "false" {
            wrong(api::EXCLUDE, value, "neither true nor false, and counts as true", "write one of them, or remove it");
        }
    }
    found
}

fn values(kind: &str, meta: &Meta, now: Timestamp) -> Vec<InvalidValue> {
    let mut found = Vec::new();
    if SUBJECTS.contains(&kind) {
        for key in [api::SLEEP_AFTER, api::DELETE_AFTER] {
            found.extend(invalid(api::read_duration(Field::Label(key), meta.label(key))));
        }
        found.extend(invalid(api::read_state(meta.label(api::STATE))));
        let activity = api::read_activity(meta.annotation(api::ACTIVITY));
        if let Some(ahead) = activity.get().filter(|a| a.at > time::saturating_add(now, time::SKEW)) {
            found.push(InvalidValue {
                field: Field::Annotation(api::ACTIVITY).to_string(),
                value: meta.annotation(api::ACTIVITY).unwrap_or_default().to_owned(),
                reason: format!("{} is in the future", time::format(ahead.at)),
                remedy: "set the time of the last activity, or remove it, and idle time counts from now".to_owned(),
            });
        }
        found.extend(invalid(activity));
        found.extend(invalid(api::read_label_time(api::LAST_ACTIVITY, meta.label(api::LAST_ACTIVITY))));
        found.extend(invalid(api::read_sessions(meta.annotation(api::SESSIONS))));
        let since = api::read_time(Field::Annotation(api::ASLEEP_SINCE), meta.annotation(api::ASLEEP_SINCE));
        if let Some(ahead) = since.value().filter(|t| *t > time::saturating_add(now, time::SKEW)) {
            found.push(InvalidValue {
                field: Field::Annotation(api::ASLEEP_SINCE).to_string(),
                value: time::format(ahead),
                reason: "it is in the future".to_owned(),
                remedy: "remove it, and the sleep counts from now".to_owned(),
            });
        }
        let slept = [api::ASLEEP_SINCE, api::HALF_AWAKE_SINCE, api::PUT_BACK_AT];
        let announced = [api::ANNOUNCED_AT, api::DELETE_AT, api::SLEEP_UNTIL, api::AWAKE_UNTIL];
        for key in slept.into_iter().chain(announced) {
            found.extend(invalid(api::read_time(Field::Annotation(key), meta.annotation(key))));
        }
    }
    if kind == "Namespace" {
        let window = meta.annotation(api::SLEEP_DURING);
        found.extend(invalid(api::read_window(api::SLEEP_DURING, window, &TimeZone::UTC)));
        let strict = Field::Annotation(api::SLEEP_DURING_STRICT);
        found.extend(invalid(api::read_bool(strict, meta.annotation(api::SLEEP_DURING_STRICT))));
    } else if let Some(value) = meta.annotation(api::SLEEP_DURING) {
        found.push(InvalidValue {
            field: Field::Annotation(api::SLEEP_DURING).to_string(),
            value: value.to_owned(),
            reason: format!("it has no effect on a {kind}"),
            remedy: "put it on the namespace".to_owned(),
        });
    }
    if SUBJECTS.contains(&kind)
        && let Some(window) = meta.window()
    {
        found.extend(Suspension::parse(window, &TimeZone::UTC).invalid().cloned());
    }
    if WORKLOADS.contains(&kind) {
        found.extend(invalid(api::read_count(Field::Label(api::SCALED_DOWN), meta.label(api::SCALED_DOWN))));
        let (replicas, suspend) = (Field::Annotation(api::LEGACY_REPLICAS), Field::Annotation(api::LEGACY_SUSPEND));
        found.extend(invalid(api::read_count(replicas, meta.annotation(api::LEGACY_REPLICAS))));
        found.extend(invalid(api::read_bool(suspend, meta.annotation(api::LEGACY_SUSPEND))));
    }
    found
}

fn invalid<T>(parsed: Parsed<T>) -> Option<InvalidValue> {
    match parsed {
        Parsed::Invalid(invalid) => Some(*invalid),
        Parsed::Missing | Parsed::Valid(_) => None,
    }
}
