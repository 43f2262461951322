//! Clocks that Caretaker itself starts, all in one instant, do not end in one instant, and never early.

use std::collections::BTreeSet;

use crate::support::live::{TestNamespace, hours, minutes, start};
use crate::support::table::{SubjectBuilder as _, awake, judge, now, past, span, with_defaults, world};
use caretaker_core::{Next, Parsed, RuleSet as _, SignedDuration, Timestamp, duration, spread, time};
use caretaker_namespaces::act::{Action, Bookkeeping, after_action};
use caretaker_namespaces::api::{self, Activity};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::subject::{Subject, World};
use caretaker_testkit::make::{Said, mk_namespace};
use caretaker_testkit::shared;
use rstest::rstest;

/// This many subjects are seen in one instant.
const MANY: usize = 500;

fn with_uid(subject: Subject, number: usize) -> Subject {
    subject.change(|s| s.uid = format!("6f9619ff-8b86-d011-b42d-{number:012x}"))
}

/// The same with its clock started by a rule just now.
fn recorded(subject: Subject, rule: Rule) -> Subject {
    subject.change(|s| s.activity = Parsed::Valid(Activity::recorded(now(), rule)))
}

/// When the next thing happens to it.
fn next(subject: &Subject) -> Timestamp {
    next_in(&world(), subject)
}

fn next_in(world: &World, subject: &Subject) -> Timestamp {
    match judge(subject, world).next {
        Next::Wait { until, .. } => until,
        other => panic!("it waits for nothing: {other:?}"),
    }
}

#[rstest]
#[case::sleep(awake().sleep_after("100h"), "100h", "10h")]
#[case::sleep_before_a_deletion(awake().sleep_after("100h").delete_after("500h"), "100h", "10h")]
#[case::deletion_less_its_notice(awake().delete_after("100h"), "90h", "10h")]
#[case::a_short_one(awake().sleep_after("30s"), "30s", "3s")]
fn first_clocks_are_spread_over_a_tenth_of_their_period(
    #[case] subject: Subject,
    #[case] period: &str,
    #[case] tenth: &str,
) {
    let (earliest, latest) = (now() + span(period), now() + span(period) + span(tenth));

    let all = (0..MANY).map(|i| next(&recorded(with_uid(subject.clone(), i), Rule::FirstSeen)));
    let all: BTreeSet<Timestamp> = all.collect();

    let (first, last) = (*all.first().unwrap(), *all.last().unwrap());
    assert!(first >= earliest && last <= latest, "never early: {first}, and not later than a tenth: {last}");
    let width = time::duration_between(first, last).as_secs_f64() / span(tenth).as_secs_f64();
    assert!(width > 0.95, "over the whole tenth: {width}");
}

#[test]
fn a_use_and_a_wake_have_their_exact_period() {
    let namespace = with_uid(awake().sleep_after("100h"), 7);
    assert!(next(&recorded(namespace.clone(), Rule::FirstSeen)) > now() + span("100h"), "this one is delayed");

    let used_again = recorded(namespace.clone(), Rule::FirstSeen).used_at(now());
    let named_alike = namespace.clone().change(|s| {
        s.activity = Parsed::Valid(Activity { user: "ann".to_owned(), ..Activity::recorded(now(), Rule::FirstSeen) });
    });

    for exact in [used_again, named_alike, recorded(namespace.clone(), Rule::ManualSleepExpired)] {
        assert_eq!(next(&exact), now() + span("100h"));
    }
}

#[test]
fn the_defaults_start_first_clocks_too() {
    let world = with_defaults(false);
    let labelled = |i| after_action(with_uid(awake(), i), &Action::Record(defaults(&world, i)), &world, now()).unwrap();

    let all: BTreeSet<Timestamp> = (0..MANY).map(|i| next_in(&world, &labelled(i))).collect();

    assert!(all.len() > MANY / 2 && *all.first().unwrap() >= now() + span("168h"), "{} times", all.len());
}

/// What the defaults record on a namespace.
fn defaults(world: &World, i: usize) -> Bookkeeping {
    match Rule::judge(&with_uid(awake(), i), world, now()).next {
        Next::Act { action: Action::Record(record), .. } => record,
        other => panic!("the defaults do not apply: {other:?}"),
    }
}

#[test]
fn without_a_uid_the_name_tells_files_apart() {
    let clock = |name: &str| next(&recorded(awake().sleep_after("100h").called(name), Rule::FirstSeen));

    assert_ne!(clock("shop"), clock("shop-2"));
    assert_eq!(clock("shop"), clock("shop"));
}

#[test]
fn a_reason_says_how_much_is_added() {
    let subject = with_uid(awake().sleep_after("100h"), 7);
    let seen = subject.change(|s| s.activity = Parsed::Valid(Activity::recorded(past("1h"), Rule::FirstSeen)));

    let because = judge(&seen, &world()).because;

    let added = time::duration_between(past("1h") + span("100h"), next(&seen));
    let added = format!(", and {} more, as first clocks are spread", duration::format(added));
    assert!(because.contains("first seen 1h ago") && because.contains(&added), "{because}");
}

#[tokio::test]
async fn a_first_clock_is_written_once_and_every_process_knows_its_end() {
    let namespace = mk_namespace("first-clock").label(api::SLEEP_AFTER, "10h");
    let home = TestNamespace::of(shared(), namespace).await;
    home.round(start()).await;
    let written = home.annotation(api::ACTIVITY).await.expect("its clock has started");
    let uid = home.namespace().await.and_then(|ns| ns.metadata.uid).unwrap();
    let end = hours(10) + spread::delay(&uid, span("1h"));

    // Each round is a process of its own, which knows nothing but the cluster.
    for at in [minutes(5), hours(10), end] {
        assert!(home.round(at).await.is_empty(), "nothing is written at {at}");
    }
    assert_eq!(home.annotation(api::ACTIVITY).await, Some(written));

    home.sleep_at(end + SignedDuration::from_secs(1)).await;
}
