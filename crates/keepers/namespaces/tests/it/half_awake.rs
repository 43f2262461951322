//! Somebody scales one workload up in a namespace that is asleep: a state of its own, and what comes of it.

use crate::support::live::{TestNamespace, hours, minutes};
use crate::support::table::{
    SubjectBuilder as _, asleep, awake, excluded, future, judge, now, past, scaled, short, with_policy, world,
};
use caretaker_core::{Parsed, Timestamp};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::{Action, SleepReason, after_action, after_step, steps};
use caretaker_namespaces::api::{self, State};
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::subject::{Defaults, HalfAwake, Kind, Policy, Subject, World};
use caretaker_namespaces::workload::Workload;
use caretaker_testkit::make::{Scaled, mk_deployment};
use caretaker_testkit::shared;
use k8s_openapi::api::apps::v1::Deployment;
use rstest::rstest;

/// Asleep for two of its ten hours; `web` runs again, and `db` sleeps on.
fn half() -> Subject {
    asleep("2h").sleep_after("10h").with(scaled(2, Some(3))).with(named("db", 0))
}

fn named(name: &str, replicas: i32) -> Workload {
    Workload { name: name.to_owned(), ..scaled(replicas, Some(1)) }
}

fn noted(subject: Subject, ago: &str) -> Subject {
    subject.change(|s| s.half_awake_since = Parsed::Valid(past(ago)))
}

fn back_asleep(subject: Subject, ago: &str) -> Subject {
    subject.change(|s| s.put_back_at = Parsed::Valid(past(ago)))
}

fn settings(half_awake: HalfAwake) -> World {
    with_policy(Policy { half_awake, ..Policy::default() })
}

fn by_order(subject: Subject, until: Timestamp) -> Subject {
    subject.ordered_asleep_until(until).change(|s| (s.manual_sleep, s.asleep_since) = (true, Parsed::Missing))
}

#[rstest]
#[case::noticed_at_once(half(), "HalfAwake: refuse record")]
#[case::noticed_where_nothing_is_deleted(half().pvcs(1), "HalfAwake: refuse record")]
#[case::an_announcement_is_withdrawn(noted(half(), "1h").announced("1h", future("8h")), "HalfAwake: refuse record")]
#[case::left_as_it_is(noted(half(), "1h"), "HalfAwake: wait record @+7h")]
#[case::created_since(asleep("2h").sleep_after("10h").with(scaled(1, None)), "HalfAwake: refuse record")]
#[case::being_deleted(noted(half(), "1h").in_state(State::Deleting), "HalfAwake: refuse record")]
#[case::its_deletion_is_near(noted(half(), "1h").asleep_since(past("9h1m")), "RunningAgain: refuse record")]
#[case::over(noted(asleep("2h").sleep_after("10h").with(scaled(0, Some(3))), "1h"), "HalfAwakeOver: act record @+0s")]
#[case::over_before_anything_is_deleted(
    noted(asleep("11h").sleep_after("10h").announced("2h", past("1h")), "9h"), "HalfAwakeOver: act record @+0s"
)]
#[case::used(noted(half().idle("1m"), "1h"), "WokenByActivity: act wake @-1m")]
#[case::excluded(asleep("2h").sleep_after("10h").with(excluded(scaled(1, None))), "Asleep: wait announce @+7h")]
#[case::a_single_deployment(
    asleep("2h").kind(Kind::Deployment).sleep_after("10h").with(scaled(1, Some(1))),
    "Asleep: wait announce @+7h"
)]
#[case::awake(awake().sleep_after("10h").with(scaled(1, None)), "CountingDown: wait sleep @+10h")]
#[case::protected(noted(half(), "1h").called("kube-system"), "Protected: none")]
fn half_awake_is_a_state_of_its_own(#[case] ns: Subject, #[case] expected: &str) {
    assert_eq!(short(&judge(&ns, &world())), expected);
}

#[rstest]
#[case::left(HalfAwake::Leave, half(), "HalfAwake: refuse record")]
#[case::the_rest_wakes(HalfAwake::Wake, half(), "HalfAwake: act wake @+0s")]
#[case::awake_it_would_be_deleted(
    HalfAwake::Wake,
    half().sleep_after("30h").delete_after("30h").idle("5h"),
    "HalfAwake: refuse record"
)]
#[case::awake_it_would_sleep_before_it_is_deleted(
    HalfAwake::Wake,
    half().sleep_after("30h").delete_after("40h").idle("5h"),
    "HalfAwake: act wake @+0s"
)]
#[case::back_asleep(HalfAwake::Sleep, half(), "HalfAwake: act sleep @+0s")]
#[case::put_back_in_this_period(HalfAwake::Sleep, back_asleep(half(), "1h"), "HalfAwake: refuse record")]
#[case::and_noticed(HalfAwake::Sleep, noted(back_asleep(half(), "1h"), "5m"), "HalfAwake: wait sleep @+9h")]
#[case::a_period_later(HalfAwake::Sleep, noted(back_asleep(half(), "10h1s"), "9h"), "HalfAwake: act sleep @+0s")]
#[case::by_order(HalfAwake::Leave, by_order(half(), future("1h")), "ManualSleep: refuse record")]
#[case::by_order_and_noticed(
    HalfAwake::Leave,
    noted(by_order(half(), future("1h")), "5m"),
    "ManualSleep: wait wake @+1h"
)]
#[case::no_order_is_overruled(
    HalfAwake::Wake,
    noted(by_order(half(), future("1h")), "5m"),
    "ManualSleep: wait wake @+1h"
)]
#[case::an_order_is_kept_up(HalfAwake::Sleep, by_order(half(), future("1h")), "ManualSleep: act sleep @+0s")]
#[case::an_order_is_kept_up_once_in_a_period(
    HalfAwake::Sleep,
    noted(back_asleep(by_order(half(), future("9h")), "2h"), "5m"),
    "ManualSleep: wait sleep @+8h"
)]
#[case::an_order_ends_before(
    HalfAwake::Sleep,
    noted(back_asleep(by_order(half(), future("1h")), "2h"), "5m"),
    "ManualSleep: wait wake @+1h"
)]
#[case::over_in_an_ordered_sleep(
    HalfAwake::Leave, noted(by_order(asleep("2h").sleep_after("10h"), future("1h")), "5m"), "ManualSleep: act record @+0s"
)]
#[case::a_new_order_puts_everything_to_sleep(
    HalfAwake::Leave, noted(half(), "5m").ordered_asleep_until(future("1h")), "ManualSleep: act sleep @+0s"
)]
fn what_comes_of_it_is_a_choice_of_the_settings(
    #[case] choice: HalfAwake,
    #[case] ns: Subject,
    #[case] expected: &str,
) {
    assert_eq!(short(&judge(&ns, &settings(choice))), expected);
}

#[rstest]
#[case::left(HalfAwake::Leave, half(), "HalfAwake: refuse record")]
#[case::noticed(HalfAwake::Leave, noted(half(), "20h"), "HalfAwake: none")]
#[case::the_rest_wakes(HalfAwake::Wake, half(), "HalfAwake: act wake @+0s")]
#[case::back_asleep(HalfAwake::Sleep, half(), "HalfAwake: act sleep @+0s")]
fn one_that_is_kept_for_its_claims_is_half_awake_however_long_it_sleeps(
    #[case] half_awake: HalfAwake,
    #[case] ns: Subject,
    #[case] expected: &str,
) {
    let defaults = Some(Defaults { sleep_after: Defaults::SLEEP_AFTER, delete_with_pvcs: false });
    let world = with_policy(Policy { half_awake, defaults, ..Policy::default() });
    let ns = ns.by_defaults().pvcs(1).asleep_since(past("30h")).idle("40h");

    assert_eq!(short(&judge(&ns, &world)), expected);
}

/// The subject after what its verdict asks for.
fn after(ns: Subject, world: &World) -> Subject {
    let action: Action = *judge(&ns, world).next.pending_action().expect("something is due");
    after_action(ns, &action, world, now()).expect("it is still there")
}

#[test]
fn noticed_once_it_rests_and_no_deletion_counts_the_time_before() {
    let left = after(half().announced("1h", future("8h")), &world());

    assert_eq!(left.half_awake_since, Parsed::Valid(now()));
    assert!(!left.has_announcement());
    assert_eq!(short(&judge(&left, &world())), "HalfAwake: wait record @+9h", "ten hours from now, less the notice");
    let because = judge(&left, &world()).because;
    assert!(because.starts_with("half awake: Deployment/web runs although the namespace is asleep"), "{because}");

    let ended = left.change(|s| {
        s.workloads[0] = named("web", 0);
        s.activity = Parsed::Valid(api::Activity::recorded(past("9h"), Rule::HalfAwake));
        s.asleep_since = Parsed::Valid(past("9h"));
    });
    let over = after(ended, &world());
    assert_eq!(over.half_awake_since, Parsed::Missing);
    assert_eq!(short(&judge(&over, &world())), "Asleep: wait announce @+9h", "its sleep counts from its end");
}

#[test]
fn put_back_it_stays_in_the_same_sleep_and_keeps_the_newer_count() {
    let started = past("2h");
    let settings = settings(HalfAwake::Sleep);

    let back = after(half().change(|s| s.sleep_started = Some(started)), &settings);

    assert_eq!(back.workloads[0], scaled(0, Some(2)), "the owner's newer wish is what a wake restores");
    assert_eq!((back.sleep_started, back.put_back_at.value()), (Some(started), Some(now())));
    assert_eq!(back.activity.get().map(|activity| activity.at), Some(now()), "what ran was of use to somebody");
    assert_eq!(short(&judge(&back, &settings)), "Asleep: wait announce @+9h");
    let again = back.change(|s| s.workloads[0] = scaled(2, None));
    assert_eq!(short(&judge(&again, &settings)), "HalfAwake: refuse record", "Git wins for the rest of the period");
    let because = judge(&again, &settings).because;
    assert!(because.contains("not put back before 2026-01-10T10:00:00Z"), "{because}");
}

#[test]
fn put_back_in_part_it_is_completed_and_not_woken() {
    let settings = settings(HalfAwake::Sleep);
    let half = half().change(|s| s.activity = Parsed::Valid(api::Activity::recorded(past("1h"), Rule::HalfAwakeOver)));
    let begun = steps(&Action::Sleep(SleepReason::Idle), &half, &settings, now());

    let broken_off = begun.iter().take(2).try_fold(half, after_step).unwrap();

    assert_eq!(short(&judge(&broken_off, &settings)), "SleepUnfinished: act sleep @+0s");
    assert_eq!(broken_off.put_back_at, Parsed::Valid(now()), "and it is known that it was put back");
}

async fn asleep_with_two(name: &str) -> TestNamespace {
    let home = TestNamespace::new(shared(), name).await;
    for workload in ["web", "db"] {
        home.add(mk_deployment(name, workload).replicas(3)).await;
    }
    home.sleep().await;
    home
}

fn keeper(half_awake: HalfAwake) -> Namespaces {
    Namespaces::new(Policy { half_awake, ..Policy::default() }, None)
}

#[tokio::test]
async fn left_as_it_is_by_default_until_it_is_over() {
    let home = asleep_with_two("half-left").await;
    home.scale::<Deployment>("web", 2).await;

    let noticed = home.reasons(minutes(125)).await;
    assert!(noticed[0].starts_with("HalfAwake: half awake: Deployment/web runs"), "{noticed:?}");
    assert_eq!(home.annotation(api::HALF_AWAKE_SINCE).await, Some(minutes(125).to_string()));
    assert!(home.round(minutes(126)).await.is_empty(), "once");
    assert_eq!((home.count::<Deployment>("web").await.0, home.count::<Deployment>("db").await.0), (2, 0));

    home.scale::<Deployment>("web", 0).await;
    home.round(minutes(130)).await;
    assert_eq!(home.annotation(api::HALF_AWAKE_SINCE).await, None);
    assert_eq!(home.annotation(api::ASLEEP_SINCE).await, Some(minutes(130).to_string()), "its sleep counts from now");
}

#[tokio::test]
async fn the_rest_wakes_with_everything_it_had() {
    let home = asleep_with_two("half-wakes").await.with_keeper(keeper(HalfAwake::Wake));
    home.scale::<Deployment>("web", 1).await;

    home.round(minutes(125)).await;

    assert_eq!(home.state().await, "normal");
    assert_eq!(home.count::<Deployment>("web").await, (1, None), "its owner's wish");
    assert_eq!(home.count::<Deployment>("db").await, (3, None));
}

#[tokio::test]
async fn against_a_tool_that_scales_up_again_it_is_put_back_once_in_a_period() {
    let home = asleep_with_two("half-fights").await.with_keeper(keeper(HalfAwake::Sleep));
    home.scale::<Deployment>("web", 3).await;

    home.round(minutes(125)).await;
    assert_eq!(home.count::<Deployment>("web").await, (0, Some("3".to_owned())));

    // A GitOps tool restores what is in Git, again and again.
    let mut back_asleep = 0;
    for minute in (126..=255).step_by(5) {
        home.scale::<Deployment>("web", 3).await;
        home.round(minutes(minute)).await;
        back_asleep += usize::from(home.count::<Deployment>("web").await.0 == 0);
    }
    assert_eq!(back_asleep, 2, "once in each hour of its sleep-after");
    home.wake_at(hours(5)).await;
    assert_eq!((home.count::<Deployment>("web").await.0, home.count::<Deployment>("db").await.0), (3, 3));
    assert_eq!(home.annotation(api::PUT_BACK_AT).await, None, "nothing of it is left");
}
