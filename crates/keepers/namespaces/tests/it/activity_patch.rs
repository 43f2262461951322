//! When activity is written to a namespace, and what is written: a decision table.

use std::collections::BTreeMap;

use crate::support::table::{SubjectBuilder, asleep, awake, future, now, past, span, with_defaults};
use caretaker_activity::state::{LastActivity, PendingActivity};
use caretaker_core::{Parsed, Timestamp};
use caretaker_engine::writer::conditional;
use caretaker_namespaces::activity::activity_patch::{ActivityWrite, activity_write};
use caretaker_namespaces::api::{self, Activity, State};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::subject::{Policy, Subject};
use rstest::rstest;
use serde_json::Value;

/// Bob lists pods at a time.
fn used(at: Timestamp) -> PendingActivity {
    let last =
        LastActivity { at, what: "ListPods".into(), user: "bob".into(), uid: "u1".into(), agent: "kubectl".into() };
    PendingActivity { last: Some(last), ..PendingActivity::default() }
}

fn decided(ns: &Subject, pending: &PendingActivity, written: Option<&str>) -> ActivityWrite {
    activity_write(ns, &Policy::default(), pending, written.map(past), span("1m"), now())
}

/// What is written, in short.
fn short(recording: &ActivityWrite) -> String {
    match recording {
        ActivityWrite::Nothing => "nothing".to_owned(),
        ActivityWrite::At(at) => {
            format!("in {}", caretaker_core::duration::format(caretaker_core::time::duration_between(now(), *at)))
        }
        ActivityWrite::Now(patch) => {
            format!("now {}", written(patch)["LastActivityTime"].as_str().unwrap_or("no activity"))
        }
    }
}

fn written(patch: &Value) -> Value {
    let text = patch["metadata"]["annotations"][api::ACTIVITY].as_str().unwrap_or("{}");
    serde_json::from_str(text).unwrap()
}

fn sleepy() -> Subject {
    awake().sleep_after("1h").idle("30m")
}

#[rstest]
#[case::the_first_use(sleepy(), used(now()), None, "now 2026-01-10T00:00:00Z")]
#[case::never_used(sleepy().never_seen(), used(now()), None, "now 2026-01-10T00:00:00Z")]
#[case::a_second_one_within_the_minute(sleepy(), used(now()), Some("20s"), "in 40s")]
#[case::another_replica_wrote_a_moment_ago(sleepy().idle("15s"), used(now()), None, "in 45s")]
#[case::we_recorded_its_first_sight_a_moment_ago(
    sleepy().change(|s| s.activity = Parsed::Valid(Activity::recorded(past("15s"), Rule::FirstSeen))),
    used(now()),
    None,
    "now 2026-01-10T00:00:00Z"
)]
#[case::the_minute_is_over(sleepy().idle("2m"), used(now()), Some("61s"), "now 2026-01-10T00:00:00Z")]
#[case::within_the_minute_but_its_period_is_shorter(sleepy().sleep_after("30s").idle("10s"), used(now()), Some("10s"), "in 20s")]
#[case::within_the_minute_but_its_period_is_over(
    sleepy().sleep_after("30s").idle("40s"),
    used(now()),
    Some("10s"),
    "now 2026-01-10T00:00:00Z"
)]
#[case::older_than_what_is_known(sleepy(), used(past("31m")), None, "nothing")]
#[case::what_is_known(sleepy(), used(past("30m")), None, "nothing")]
#[case::before_it_was_created(sleepy().never_seen().created("1m"), used(past("2m")), None, "nothing")]
#[case::this_clock_is_behind_its_creation(
    sleepy().never_seen().change(|s| s.created = Some(now() + span("20m"))),
    used(now()),
    None,
    "now 2026-01-10T00:00:00Z"
)]
#[case::no_label_and_never_used(awake().never_seen(), used(now()), None, "nothing")]
#[case::no_label_any_more(awake().idle("30m"), used(now()), None, "now 2026-01-10T00:00:00Z")]
#[case::protected(sleepy().called("kube-public"), used(now()), None, "nothing")]
#[case::terminating(sleepy().change(|s| s.inactive = Some("Terminating".into())), used(now()), None, "nothing")]
#[case::invalid_activity_stays(sleepy().activity("yesterday"), used(now()), None, "nothing")]
fn awake_it_is_written_once_a_minute(
    #[case] ns: Subject,
    #[case] pending: PendingActivity,
    #[case] before: Option<&str>,
    #[case] expected: &str,
) {
    assert_eq!(short(&decided(&ns, &pending, before)), expected);
}

#[rstest]
#[case::at_once(asleep("5m").sleep_after("1h"), now(), None, "now 2026-01-10T00:00:00Z")]
#[case::however_late_it_was_written_before(asleep("5s").sleep_after("1h"), now(), Some("6s"), "now 2026-01-10T00:00:00Z")]
#[case::falling_asleep(sleepy().idle("2h").in_state(State::Sleeping), now(), Some("10s"), "now 2026-01-10T00:00:00Z")]
#[case::its_wake_is_written_already(asleep("5m").sleep_after("1h").idle("10s"), now(), Some("10s"), "in 50s")]
#[case::not_received_yet_when_it_fell_asleep(asleep("5s").sleep_after("1h"), past("6s"), None, "now 2026-01-09T23:59:55.001Z")]
#[case::late_and_it_would_not_have_been_put_to_sleep(asleep("5m").sleep_after("1h"), past("64m"), None, "now 2026-01-09T23:55:00.001Z")]
#[case::too_long_before_it_fell_asleep(asleep("5m").sleep_after("1h"), past("66m"), None, "now 2026-01-09T22:54:00Z")]
#[case::too_long_before_and_just_written(asleep("5m").sleep_after("1h"), past("66m"), Some("10s"), "in 50s")]
#[case::just_after_something_old_was_written(asleep("5m").sleep_after("1h").idle("66m"), now(), Some("10s"), "now 2026-01-10T00:00:00Z")]
#[case::a_manual_sleep_does_not_wake(asleep("5m").sleep_after("1h").change(|s| (s.manual_sleep, s.asleep_since) = (true, Parsed::Missing)), now(), Some("10s"), "in 50s")]
#[case::protected_since_it_sleeps(asleep("5m").sleep_after("1h").called("kube-public"), now(), None, "now 2026-01-10T00:00:00Z")]
#[case::asleep_since_the_future_of_a_clock_that_is_behind(
    asleep("5m").sleep_after("10m").change(|s| s.asleep_since = Parsed::Valid(future("15m"))), now(), None,
    "now 2026-01-10T00:15:00.001Z"
)]
#[case::on_its_way_and_the_word_is_out(sleepy().in_state(State::Sleeping), now(), Some("10s"), "in 50s")]
fn asleep_it_is_written_at_once(
    #[case] ns: Subject,
    #[case] at: Timestamp,
    #[case] before: Option<&str>,
    #[case] expected: &str,
) {
    assert_eq!(short(&decided(&ns, &used(at), before)), expected);
}

#[test]
fn it_is_written_as_the_specification_says_and_on_condition() {
    let ns = sleepy().change(|s| (s.uid, s.resource_version) = ("id".into(), "7".into()));
    let ActivityWrite::Now(patch) = decided(&ns, &used(now()), None) else { panic!("not now") };
    let patch = conditional(ns.object(), &ns.resource_version, patch);

    assert_eq!((&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]), (&"id".into(), &"7".into()));
    let text = r#"{"ActionBy":"ListPods","LastActivityTime":"2026-01-10T00:00:00Z","LastReport":"2026-01-09T23:30:00Z","RecordedBy":"caretaker","UserInfo":{"name":"bob","uid":"u1"}}"#;
    assert_eq!(patch["metadata"]["annotations"][api::ACTIVITY], text);
    assert!(patch["metadata"]["annotations"].get(api::SESSIONS).is_none());
}

#[test]
fn with_defaults_every_namespace_is_written() {
    let ns = awake().never_seen();
    let policy = with_defaults(false).policy;

    assert_eq!(short(&activity_write(&ns, &policy, &used(now()), None, span("1m"), now())), "now 2026-01-10T00:00:00Z");
}

fn sessions(recording: &ActivityWrite) -> Option<BTreeMap<String, String>> {
    let ActivityWrite::Now(patch) = recording else { panic!("{recording:?}") };
    match &patch["metadata"]["annotations"][api::SESSIONS] {
        Value::String(text) => Some(serde_json::from_str(text).unwrap()),
        Value::Null => None,
        other => panic!("{other}"),
    }
}

#[test]
fn a_session_is_written_when_it_starts_and_removed_when_it_ends() {
    let starts = PendingActivity { started_sessions: [("x2".to_owned(), now())].into(), ..used(now()) };
    let open = sessions(&decided(&sleepy().in_use("5m"), &starts, None)).unwrap();
    assert_eq!(open.keys().collect::<Vec<_>>(), ["x1", "x2"]);

    let ends = PendingActivity { ended_sessions: vec!["x1".to_owned()], ..PendingActivity::default() };
    let closed = decided(&sleepy().in_use("5m"), &ends, None);
    assert_eq!((sessions(&closed), short(&closed)), (None, "now no activity".to_owned()));
    assert_eq!(decided(&sleepy(), &ends, None), ActivityWrite::Nothing, "it was not on the annotation");
}

#[test]
fn a_session_that_lasts_too_long_is_removed_by_the_next_write() {
    let ns = sleepy().in_use("25h");
    let ActivityWrite::Now(patch) = decided(&ns, &used(now()), None) else { panic!("not now") };

    assert!(patch["metadata"]["annotations"].as_object().unwrap()[api::SESSIONS].is_null());
}

#[test]
fn what_is_written_can_be_read() {
    let starts = PendingActivity { started_sessions: [("x2".to_owned(), now())].into(), ..used(now()) };
    let ActivityWrite::Now(patch) = decided(&sleepy(), &starts, None) else { panic!("not now") };
    let text = |key: &str| patch["metadata"]["annotations"][key].as_str();

    assert_eq!(api::read_sessions(text(api::SESSIONS)), Parsed::Valid([("x2".to_owned(), now())].into()));
    let activity = api::read_activity(text(api::ACTIVITY));
    assert_eq!(activity.get().map(|a| (a.at, a.user.as_str(), a.uid.as_str())), Some((now(), "bob", "u1")));
}
