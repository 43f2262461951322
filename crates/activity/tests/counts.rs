//! What counts as use: a decision table, and what it comes to for a namespace.

mod events;

use caretaker_activity::event;
use caretaker_activity::filter::{Filter, Lists, Reason};
use caretaker_activity::fold::{Fold, Heard, MOST_SESSIONS};
use caretaker_core::{SignedDuration, Timestamp};
use events::{Made, event as made};
use proptest::prelude::*;
use rstest::rstest;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const NOW: &str = "2026-03-02T09:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn fold() -> Fold {
    Fold::new(Filter::new(&Lists::never(), &Lists::default()), Some(SignedDuration::from_mins(30)), DAY)
}

fn judged(made: &Made) -> Heard {
    fold().hear(&made.read(), now())
}

#[rstest]
#[case::a_list(made("ann", "list", "pods"))]
#[case::a_get(made("ann", "get", "secrets"))]
#[case::a_watch_begins(made("ann", "watch", "pods").stage("ResponseStarted"))]
#[case::a_write(made("ann", "create", "deployments").group("apps").code(201))]
#[case::the_namespace_itself(made("ann", "get", "namespaces"))]
#[case::an_exec(made("ann", "get", "pods").sub("exec").stage("ResponseStarted").code(101))]
#[case::a_log(made("ann", "get", "pods").sub("log"))]
#[case::an_outside_system(made("system:serviceaccount:ci:deployer", "patch", "deployments"))]
#[case::impersonated_by_a_controller(made("system:serviceaccount:kube-system:proxy", "list", "pods").by("kube-system").acting_as("ann"))]
#[case::a_little_ahead_of_our_clock(made("ann", "list", "pods").at("2026-03-02T09:04:00Z"))]
fn it_counts(#[case] made: Made) {
    assert_eq!(judged(&made), Heard::Counts);
}

#[rstest]
#[case::no_namespace(made("ann", "list", "nodes").elsewhere(), Reason::Elsewhere)]
#[case::all_namespaces(made("ann", "list", "pods").elsewhere(), Reason::Elsewhere)]
#[case::no_object(made("ann", "get", "").without_object(), Reason::Elsewhere)]
#[case::only_just_come(made("ann", "list", "pods").stage("RequestReceived"), Reason::Early)]
#[case::panicked(made("ann", "list", "pods").stage("Panic"), Reason::Failed)]
#[case::not_allowed(made("ann", "list", "pods").code(403), Reason::Failed)]
#[case::not_there(made("ann", "get", "pods").code(404), Reason::Failed)]
#[case::a_server_error(made("ann", "list", "pods").code(500), Reason::Failed)]
#[case::no_answer(made("ann", "list", "pods").code(0), Reason::Failed)]
#[case::far_in_the_future(made("ann", "list", "pods").at("2026-03-02T09:06:00Z"), Reason::Untimely)]
#[case::no_time(made("ann", "list", "pods").at("yesterday"), Reason::Untimely)]
#[case::the_api_server(made("system:apiserver", "list", "resourcequotas"), Reason::Actor)]
#[case::the_controller_manager(made("system:kube-controller-manager", "update", "pods"), Reason::Actor)]
#[case::the_scheduler(made("system:kube-scheduler", "create", "pods").sub("binding"), Reason::Actor)]
#[case::kube_proxy(made("system:kube-proxy", "watch", "services"), Reason::Actor)]
#[case::a_kubelet(made("system:node:n1", "get", "pods").by("system:nodes"), Reason::Actor)]
#[case::a_controller(
    made("system:serviceaccount:kube-system:deployment-controller", "update", "replicasets")
        .by("system:serviceaccounts:kube-system"),
    Reason::Actor
)]
#[case::nobody(made("", "list", "pods"), Reason::Actor)]
#[case::itself(made("system:serviceaccount:caretaker-system:caretaker", "patch", "namespaces").by("system:serviceaccounts:caretaker-system"), Reason::Actor)]
#[case::its_commands(made("ann", "patch", "namespaces").agent("caretaker/0.1.0"), Reason::Agent)]
#[case::a_pod_of_the_namespace(made("system:serviceaccount:shop:leader", "get", "configmaps"), Reason::Resident)]
#[case::leader_election(made("ann", "update", "leases").group("coordination.k8s.io"), Reason::Resource)]
#[case::events(made("ann", "create", "events"), Reason::Resource)]
#[case::events_of_the_new_kind(made("ann", "create", "events").group("events.k8s.io"), Reason::Resource)]
#[case::endpoint_slices(made("ann", "update", "endpointslices").group("discovery.k8s.io"), Reason::Resource)]
#[case::a_status(made("ann", "patch", "deployments").group("apps").sub("status"), Reason::Resource)]
#[case::a_watch_ends(made("ann", "watch", "pods"), Reason::Ended)]
fn it_does_not_count(#[case] made: Made, #[case] reason: Reason) {
    assert_eq!(judged(&made), Heard::Ignored(reason));
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    for reason in Reason::ALL {
        assert_eq!(Reason::named(reason.name()), Some(reason));
    }
}

#[test]
fn lists_are_added_to_and_excepted_from() {
    let list = |text: &str| vec![text.to_owned()];
    let more = Lists {
        users: list("system:serviceaccount:ci-*:*"),
        agents: list("k9s/*"),
        verbs: list("delete*"),
        resources: list("secrets"),
        ..Lists::default()
    };
    let count = Lists { users: list("*:ci-release:*"), resources: list("events"), ..Lists::default() };
    let mut fold = Fold::new(Filter::new(&Lists::never().and(&more), &count), None, DAY);
    let mut judge = |made: Made| fold.hear(&made.read(), now());

    assert_eq!(judge(made("system:serviceaccount:ci-a:b", "get", "pods")), Heard::Ignored(Reason::Actor));
    assert_eq!(judge(made("system:serviceaccount:ci-release:b", "get", "pods")), Heard::Counts);
    assert_eq!(judge(made("ann", "get", "pods").agent("k9s/v1")), Heard::Ignored(Reason::Agent));
    assert_eq!(judge(made("ann", "deletecollection", "pods")), Heard::Ignored(Reason::Verb));
    assert_eq!(judge(made("ann", "get", "secrets")), Heard::Ignored(Reason::Resource));
    assert_eq!(judge(made("ann", "get", "events")), Heard::Counts);
    assert_eq!(judge(made("ann", "update", "leases").group("coordination.k8s.io")), Heard::Ignored(Reason::Resource));
}

#[test]
fn an_event_sent_twice_counts_once() {
    let mut fold = fold();
    let made = made("ann", "list", "pods");

    assert_eq!(fold.hear(&made.read(), now()), Heard::Counts);
    assert_eq!(fold.hear(&made.read(), now()), Heard::Ignored(Reason::Twice));
    assert_eq!(fold.told()[0].counted, 1);
}

#[test]
fn time_only_moves_forward_and_ten_thousand_events_are_one_note() {
    let mut fold = fold();
    for i in 0..10_000 {
        let second = (i * 7) % 3_600;
        let at = format!("2026-03-02T08:{:02}:{:02}Z", second / 60, second % 60);
        fold.hear(&made("ann", "update", "configmaps").at(&at).read(), now());
    }
    let notes = fold.take();

    let [(namespace, note)] = notes.as_slice() else { panic!("{notes:?}") };
    assert_eq!(namespace, "shop");
    let last = note.last.as_ref().unwrap();
    assert_eq!((last.at.to_string().as_str(), last.what.as_str()), ("2026-03-02T08:59:59Z", "UpdateConfigmaps"));
    assert!(fold.take().is_empty());
    fold.hear(&made("bob", "list", "pods").at("2026-03-02T08:00:00Z").read(), now());
    assert!(fold.take().is_empty(), "what came before the last use is no news");
}

#[test]
fn an_exec_is_open_until_it_ends() {
    let mut fold = fold();
    let exec = || made("ann", "get", "pods").sub("exec").id("x1");
    fold.hear(&exec().stage("ResponseStarted").code(101).at("2026-03-02T08:00:00Z").read(), now());
    let note = fold.take().remove(0).1;
    let begun: Vec<String> = note.begun.into_keys().collect();
    assert_eq!(begun.len(), 1);
    assert_eq!(fold.told()[0].open.len(), 1);

    fold.hear(&exec().code(101).at("2026-03-02T08:00:00Z").reached("2026-03-02T08:50:00Z").read(), now());
    let note = fold.take().remove(0).1;

    assert_eq!((note.begun.len(), note.ended), (0, begun));
    assert_eq!(note.last.unwrap().at.to_string(), "2026-03-02T08:50:00Z", "until its end");
    assert!(fold.told()[0].open.is_empty());
}

#[test]
fn an_exec_that_came_and_went_between_two_notes_leaves_its_time_alone() {
    let mut fold = fold();
    let exec = || made("ann", "get", "pods").sub("exec").id("x1").code(101);
    fold.hear(&exec().stage("ResponseStarted").read(), now());
    fold.hear(&exec().read(), now());
    let note = fold.take().remove(0).1;

    assert!(note.last.is_some() && note.begun.is_empty(), "{note:?}");
}

#[test]
fn an_id_that_a_client_chose_twice_is_two_requests_and_two_sessions() {
    let mut fold = fold();
    for (at, sub) in [("2026-03-02T08:00:00Z", ""), ("2026-03-02T08:10:00Z", "exec"), ("2026-03-02T08:20:00Z", "exec")]
    {
        let event = made("ann", "get", "pods").sub(sub).stage("ResponseStarted").code(101).id("x1").at(at);
        assert_eq!(fold.hear(&event.read(), now()), Heard::Counts);
    }
    let note = fold.take().remove(0).1;

    assert_eq!(note.begun.len(), 2);
    assert!(note.begun.keys().all(|id| id.len() == 16));
}

#[test]
fn a_session_that_ends_after_it_counted_long_enough_wakes_nobody() {
    let mut fold = fold();
    let exec = made("ann", "get", "pods").sub("exec").code(101).at("2026-03-01T06:00:00Z");
    let ended = exec.reached("2026-03-02T08:00:00Z");

    assert_eq!(fold.hear(&ended.read(), now()), Heard::Ignored(Reason::Ended));
    assert_eq!(fold.take().remove(0).1.last, None);
}

#[test]
fn a_program_that_starts_anew_counts_and_one_that_goes_on_does_not() {
    let mut fold = fold();
    let mut judge = |at: &str, query: &str| {
        let watch = made("ann", "watch", "pods").agent("k9s").stage("ResponseStarted").at(at);
        fold.hear(&watch.uri(&format!("/api/v1/namespaces/shop/pods?{query}")).read(), now())
    };

    assert_eq!(judge("2026-03-02T01:00:00Z", "watch=true&sendInitialEvents=true"), Heard::Counts);
    assert_eq!(judge("2026-03-02T01:07:00Z", "watch=true&resourceVersion=7"), Heard::Ignored(Reason::Beat));
    assert_eq!(judge("2026-03-02T01:12:30Z", "watch=true&sendInitialEvents=true"), Heard::Counts);
}

#[test]
fn a_dashboard_left_open_stops_counting_and_whoever_does_something_else_counts() {
    let mut fold = fold();
    let start: Timestamp = "2026-03-02T00:00:00Z".parse().unwrap();
    let mut last = Heard::Counts;
    for i in 0..1_000 {
        let at = start + SignedDuration::from_secs(5 * i);
        last = fold.hear(&made("ann", "list", "pods").agent("dashboard").at(&at.to_string()).read(), now());
    }
    assert_eq!(last, Heard::Ignored(Reason::Beat));
    let told = fold.told().remove(0);
    assert_eq!(told.last.unwrap().at.to_string(), "2026-03-02T00:29:55Z");
    assert!(told.ignored["beat"].count > 600);

    let mut judge = |made: Made| fold.hear(&made.at("2026-03-02T01:30:00Z").read(), now());
    assert_eq!(judge(made("ann", "list", "pods").agent("kubectl")), Heard::Counts);
    assert_eq!(judge(made("ann", "delete", "pods").agent("dashboard")), Heard::Counts);
    assert_eq!(judge(made("ann", "list", "configmaps").agent("dashboard")), Heard::Counts);
}

#[test]
fn what_was_ignored_is_told_with_its_reason() {
    let mut fold = fold();
    for _ in 0..3 {
        fold.hear(&made("system:serviceaccount:shop:web", "get", "configmaps").read(), now());
    }
    let told = fold.told().remove(0);

    assert_eq!((told.last, told.counted), (None, 0));
    let ignored = &told.ignored["resident"];
    assert_eq!((ignored.count, ignored.what.as_str()), (3, "GetConfigmaps"));
    assert_eq!(ignored.user, "system:serviceaccount:shop:web");
    assert!(fold.take().is_empty());
}

#[test]
fn a_canary_is_told_of_and_is_no_use() {
    let mut fold = fold();
    let canary = made("ann", "get", "configmaps").agent("caretaker-canary/abc");
    let own = canary.clone().namespace("caretaker-system");

    assert_eq!(fold.hear(&canary.read(), now()), Heard::Ignored(Reason::Agent), "in another namespace it is none");
    assert_eq!(fold.hear(&own.clone().code(403).read(), now()), Heard::Ignored(Reason::Failed));
    assert_eq!(fold.hear(&own.read(), now()), Heard::Canary);
    assert_eq!((fold.take_canaries(), fold.take_canaries()), (vec!["abc".to_owned()], Vec::new()));
    assert!(fold.told().iter().all(|told| told.counted == 0));
}

#[test]
fn what_it_remembers_is_bounded_whatever_is_sent() {
    let mut fold = fold();
    let exec = made("ann", "get", "pods").sub("exec").stage("ResponseStarted").code(101).id("AUDIT");
    for i in 0..50_000 {
        let (namespace, id) = (format!("typo-{i}"), format!("id-{i}"));
        for namespace in ["shop", &namespace] {
            let text = exec.text().replace("\"shop\"", &format!("{namespace:?}")).replace("AUDIT", &id);
            fold.hear(&event::line(text.as_bytes()).unwrap(), now());
        }
    }
    let told = fold.told();

    assert!(told.len() <= 20_000, "{}", told.len());
    assert!(told.iter().all(|t| t.open.len() <= MOST_SESSIONS));
}

proptest! {
    #[test]
    fn whatever_order_events_come_in_the_last_use_is_the_same(
        (times, shuffled) in proptest::collection::vec(0..3_600_i64, 1..50)
            .prop_flat_map(|t| (Just(t.clone()), Just(t).prop_shuffle())),
        twice in any::<bool>(),
    ) {
        let start: Timestamp = "2026-03-02T08:00:00Z".parse().unwrap();
        let told = |times: &[i64]| {
            let mut fold = fold();
            for t in times {
                let made = made("ann", "update", "pods").at(&(start + SignedDuration::from_secs(*t)).to_string());
                fold.hear(&made.read(), now());
                if twice {
                    fold.hear(&made.read(), now());
                }
            }
            fold.take().remove(0).1.last.unwrap().at
        };

        prop_assert_eq!(told(&times), told(&shuffled));
    }

    #[test]
    fn no_text_makes_it_panic(text in any::<String>(), part in "[\\{\\}\\[\\]\",:a-zA-Z0-9 .-]{0,200}") {
        let mut fold = fold();
        for text in [text, part.clone(), format!("{{\"kind\":\"EventList\",\"apiVersion\":\"audit.k8s.io/v1\",\"items\":[{part}]}}")] {
            let mut counted = false;
            let _ = event::batch(text.as_bytes(), |event| {
                counted |= event.is_some_and(|event| fold.hear(event, now()) == Heard::Counts);
            });
            prop_assert!(!counted);
        }
    }
}
