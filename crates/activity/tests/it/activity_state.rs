//! Which audit events count as activity, as a decision table, and the state of a namespace afterwards.

use crate::support::events::{TestEvent, mk_event};
use caretaker_activity::canary::ReturnedCanary;
use caretaker_activity::event::{decode_batch, decode_line};
use caretaker_activity::filter::{Filter, GitOpsAccounts, IgnoreReason, PatternLists};
use caretaker_activity::state::{ActivityState, EventOutcome, MAX_SESSIONS};
use caretaker_core::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rstest::rstest;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const NOW: &str = "2026-03-02T09:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn mk_state() -> ActivityState {
    let filter = Filter::new(&PatternLists::ignored_by_default(), &PatternLists::default());
    ActivityState::new(filter, Some(SignedDuration::from_mins(30)), DAY)
}

fn outcome(event: &TestEvent) -> EventOutcome {
    mk_state().record(&event.decode(), now())
}

/// A request of Flux, from its pod.
fn flux(verb: &str, resource: &str) -> TestEvent {
    let event = mk_event("system:serviceaccount:flux-system:kustomize-controller", verb, resource);
    event.user_group("system:serviceaccounts:flux-system").bound_to_pod("kustomize-controller-1")
}

const DRY_RUN: &str = "/apis/apps/v1/namespaces/shop/deployments/web?dryRun=All&fieldManager=kustomize-controller";

#[rstest]
#[case::a_list(mk_event("ann", "list", "pods"))]
#[case::a_get(mk_event("ann", "get", "secrets"))]
#[case::the_start_of_a_watch(mk_event("ann", "watch", "pods").stage("ResponseStarted"))]
#[case::a_write(mk_event("ann", "create", "deployments").api_group("apps").status_code(201))]
#[case::the_namespace_itself(mk_event("ann", "get", "namespaces"))]
#[case::an_exec(mk_event("ann", "get", "pods").subresource("exec").stage("ResponseStarted").status_code(101))]
#[case::a_log(mk_event("ann", "get", "pods").subresource("log"))]
#[case::a_service_account_of_another_namespace(mk_event("system:serviceaccount:ci:deployer", "patch", "deployments"))]
#[case::a_user_impersonated_by_a_controller(
    mk_event("system:serviceaccount:kube-system:proxy", "list", "pods").user_group("kube-system").impersonating("ann")
)]
#[case::a_timestamp_ahead_of_this_clock(mk_event("ann", "list", "pods").at("2026-03-02T09:04:00Z"))]
#[case::a_kubeconfig_with_an_account_of_the_namespace(mk_event("system:serviceaccount:shop:deployer", "list", "pods"))]
#[case::a_person_who_impersonates_an_account_of_the_namespace(
    mk_event("ann", "list", "pods").impersonating("system:serviceaccount:shop:web")
)]
#[case::a_write_of_flux(flux("patch", "deployments"))]
#[case::a_write_of_flux_as_an_account_of_the_namespace(
    flux("patch", "deployments").impersonating("system:serviceaccount:shop:flux")
)]
#[case::a_deployment_by_argo_cd(
    mk_event("system:serviceaccount:argocd:argocd-application-controller", "create", "deployments")
        .user_group("system:serviceaccounts:argocd").status_code(201)
)]
fn an_event_counts(#[case] event: TestEvent) {
    assert_eq!(outcome(&event), EventOutcome::Counted);
}

#[rstest]
#[case::cluster_scoped(mk_event("ann", "list", "nodes").without_namespace(), IgnoreReason::NoNamespace)]
#[case::all_namespaces(mk_event("ann", "list", "pods").without_namespace(), IgnoreReason::NoNamespace)]
#[case::no_object(mk_event("ann", "get", "").without_object(), IgnoreReason::NoNamespace)]
#[case::only_received(mk_event("ann", "list", "pods").stage("RequestReceived"), IgnoreReason::RequestReceived)]
#[case::panicked(mk_event("ann", "list", "pods").stage("Panic"), IgnoreReason::Failed)]
#[case::forbidden(mk_event("ann", "list", "pods").status_code(403), IgnoreReason::Failed)]
#[case::not_found(mk_event("ann", "get", "pods").status_code(404), IgnoreReason::Failed)]
#[case::a_server_error(mk_event("ann", "list", "pods").status_code(500), IgnoreReason::Failed)]
#[case::no_status(mk_event("ann", "list", "pods").status_code(0), IgnoreReason::Failed)]
#[case::no_timestamp(mk_event("ann", "list", "pods").at("yesterday"), IgnoreReason::BadTimestamp)]
#[case::the_api_server(mk_event("system:apiserver", "list", "resourcequotas"), IgnoreReason::IgnoredUser)]
#[case::the_controller_manager(mk_event("system:kube-controller-manager", "update", "pods"), IgnoreReason::IgnoredUser)]
#[case::the_scheduler(
    mk_event("system:kube-scheduler", "create", "pods").subresource("binding"),
    IgnoreReason::IgnoredUser
)]
#[case::kube_proxy(mk_event("system:kube-proxy", "watch", "services"), IgnoreReason::IgnoredUser)]
#[case::a_kubelet(mk_event("system:node:n1", "get", "pods").user_group("system:nodes"), IgnoreReason::IgnoredUser)]
#[case::a_controller(
    mk_event("system:serviceaccount:kube-system:deployment-controller", "update", "replicasets")
        .user_group("system:serviceaccounts:kube-system"),
    IgnoreReason::IgnoredUser
)]
#[case::no_user(mk_event("", "list", "pods"), IgnoreReason::IgnoredUser)]
#[case::caretaker_itself(
    mk_event("system:serviceaccount:caretaker-system:caretaker", "patch", "namespaces")
        .user_group("system:serviceaccounts:caretaker-system"),
    IgnoreReason::IgnoredUser
)]
#[case::the_caretaker_command(
    mk_event("ann", "patch", "namespaces").agent("caretaker/0.1.0"),
    IgnoreReason::IgnoredAgent
)]
#[case::a_pod_of_the_namespace(
    mk_event("system:serviceaccount:shop:leader", "get", "configmaps").bound_to_pod("leader-0"),
    IgnoreReason::OwnServiceAccount
)]
#[case::a_read_of_flux(flux("list", "deployments"), IgnoreReason::GitOps)]
#[case::a_refresh_of_argo_cd(
    mk_event("system:serviceaccount:argocd:argocd-application-controller", "patch", "applications")
        .user_group("system:serviceaccounts:argocd").api_group("argoproj.io"),
    IgnoreReason::GitOps
)]
#[case::flux_writes_its_own_object(flux("patch", "kustomizations").api_group("kustomize.toolkit.fluxcd.io"), IgnoreReason::GitOps)]
#[case::a_dry_run_of_flux(flux("patch", "deployments").uri(DRY_RUN), IgnoreReason::GitOps)]
#[case::a_dry_run_of_flux_as_an_account_of_the_namespace(
    flux("patch", "deployments").uri(DRY_RUN).impersonating("system:serviceaccount:shop:flux"),
    IgnoreReason::GitOps
)]
#[case::leader_election(
    mk_event("ann", "update", "leases").api_group("coordination.k8s.io"),
    IgnoreReason::Resource
)]
#[case::events(mk_event("ann", "create", "events"), IgnoreReason::Resource)]
#[case::events_of_the_new_group(mk_event("ann", "create", "events").api_group("events.k8s.io"), IgnoreReason::Resource)]
#[case::endpoint_slices(
    mk_event("ann", "update", "endpointslices").api_group("discovery.k8s.io"),
    IgnoreReason::Resource
)]
#[case::a_status(
    mk_event("ann", "patch", "deployments").api_group("apps").subresource("status"),
    IgnoreReason::Resource
)]
#[case::the_end_of_a_watch(mk_event("ann", "watch", "pods"), IgnoreReason::WatchClosed)]
fn an_event_is_ignored(#[case] event: TestEvent, #[case] reason: IgnoreReason) {
    assert_eq!(outcome(&event), EventOutcome::Ignored(reason));
}

#[test]
fn every_reason_has_a_unique_name() {
    for reason in IgnoreReason::ALL {
        assert_eq!(IgnoreReason::from_name(reason.name()), Some(reason));
    }
}

#[test]
fn settings_extend_the_ignore_lists_and_include_exceptions() {
    let list = |text: &str| vec![text.to_owned()];
    let ignore = PatternLists {
        users: list("system:serviceaccount:ci-*:*"),
        agents: list("k9s/*"),
        verbs: list("delete*"),
        resources: list("secrets"),
        ..PatternLists::default()
    };
    let include = PatternLists { users: list("*:ci-release:*"), resources: list("events"), ..PatternLists::default() };
    let filter = Filter::new(&PatternLists::ignored_by_default().extended_with(&ignore), &include);
    let mut state = ActivityState::new(filter, None, DAY);
    let mut outcome = |event: TestEvent| state.record(&event.decode(), now());
    let ignored = EventOutcome::Ignored;

    let ci = mk_event("system:serviceaccount:ci-a:b", "get", "pods");
    assert_eq!(outcome(ci), ignored(IgnoreReason::IgnoredUser));
    let ci_release = mk_event("system:serviceaccount:ci-release:b", "get", "pods");
    assert_eq!(outcome(ci_release), EventOutcome::Counted);
    assert_eq!(outcome(mk_event("ann", "get", "pods").agent("k9s/v1")), ignored(IgnoreReason::IgnoredAgent));
    assert_eq!(outcome(mk_event("ann", "deletecollection", "pods")), ignored(IgnoreReason::Verb));
    assert_eq!(outcome(mk_event("ann", "get", "secrets")), ignored(IgnoreReason::Resource));
    assert_eq!(outcome(mk_event("ann", "get", "events")), EventOutcome::Counted);
    let lease = mk_event("ann", "update", "leases").api_group("coordination.k8s.io");
    assert_eq!(outcome(lease), ignored(IgnoreReason::Resource));
}

#[test]
fn writes_of_gitops_accounts_count_unless_the_settings_say_otherwise_and_accounts_can_be_added() {
    let accounts = GitOpsAccounts { writes_count: false, ..GitOpsAccounts::default() };
    let accounts = accounts.extended_with(&["deploy-bot".to_owned()], &[]);
    let filter = Filter::new(&PatternLists::default(), &PatternLists::default()).with_gitops(&accounts);
    let mut state = ActivityState::new(filter, None, DAY);
    let mut outcome = |event: TestEvent| state.record(&event.decode(), now());

    for event in [flux("patch", "deployments"), mk_event("deploy-bot", "create", "pods")] {
        assert_eq!(outcome(event), EventOutcome::Ignored(IgnoreReason::GitOps));
    }
}

#[test]
fn a_use_from_the_future_counts_as_now() {
    let mut state = mk_state();
    let outcome = state.record(&mk_event("ann", "list", "pods").at("2026-03-02T19:00:00Z").decode(), now());
    assert_eq!(outcome, EventOutcome::Counted);
    let last = state.take_pending().remove(0).1.last.unwrap();
    assert_eq!((last.at, last.user.as_str()), (now(), "ann"));

    let exec = mk_event("ann", "get", "pods").subresource("exec").id("x1").status_code(101);
    let started = exec.clone().stage("ResponseStarted").at("2026-03-02T19:00:00Z");
    assert_eq!(state.record(&started.decode(), now()), EventOutcome::Counted);
    assert_eq!(state.activity_by_namespace()[0].open, [now()]);
}

#[test]
fn a_poll_is_detected_by_the_clock_of_the_api_server_even_if_that_is_ahead() {
    let mut state = mk_state();
    let start: Timestamp = "2026-03-02T12:00:00Z".parse().unwrap();
    let mut last = EventOutcome::Counted;
    for i in 0..600 {
        let poll = mk_event("ann", "list", "pods").at(&(start + SignedDuration::from_secs(5 * i)).to_string());
        last = state.record(&poll.decode(), now());
    }
    assert_eq!(last, EventOutcome::Ignored(IgnoreReason::PeriodicPoll));
}

#[test]
fn an_event_that_is_delivered_twice_counts_once() {
    let mut state = mk_state();
    let event = mk_event("ann", "list", "pods");

    assert_eq!(state.record(&event.decode(), now()), EventOutcome::Counted);
    assert_eq!(state.record(&event.decode(), now()), EventOutcome::Ignored(IgnoreReason::Duplicate));
    assert_eq!(state.activity_by_namespace()[0].counted, 1);
}

#[test]
fn ten_thousand_events_are_one_pending_activity_with_the_latest_time() {
    let mut state = mk_state();
    for i in 0..10_000 {
        let second = (i * 7) % 3_600;
        let at = format!("2026-03-02T08:{:02}:{:02}Z", second / 60, second % 60);
        state.record(&mk_event("ann", "update", "configmaps").at(&at).decode(), now());
    }
    let all = state.take_pending();

    let [(namespace, pending)] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(namespace, "shop");
    let last = pending.last.as_ref().unwrap();
    assert_eq!((last.at.to_string().as_str(), last.what.as_str()), ("2026-03-02T08:59:59Z", "UpdateConfigmaps"));
    assert!(state.take_pending().is_empty());
    state.record(&mk_event("bob", "list", "pods").at("2026-03-02T08:00:00Z").decode(), now());
    assert!(state.take_pending().is_empty(), "an event before the last activity changes nothing");
}

#[test]
fn an_exec_session_is_open_until_it_ends() {
    let mut state = mk_state();
    let exec = || mk_event("ann", "get", "pods").subresource("exec").id("x1");
    state.record(&exec().stage("ResponseStarted").status_code(101).at("2026-03-02T08:00:00Z").decode(), now());
    let pending = state.take_pending().remove(0).1;
    let started: Vec<String> = pending.started_sessions.into_keys().collect();
    assert_eq!(started.len(), 1);
    assert_eq!(state.activity_by_namespace()[0].open.len(), 1);

    let end = exec().status_code(101).at("2026-03-02T08:00:00Z").stage_reached_at("2026-03-02T08:50:00Z");
    state.record(&end.decode(), now());
    let pending = state.take_pending().remove(0).1;

    assert_eq!((pending.started_sessions.len(), pending.ended_sessions), (0, started));
    assert_eq!(pending.last.unwrap().at.to_string(), "2026-03-02T08:50:00Z", "the session counts until its end");
    assert!(state.activity_by_namespace()[0].open.is_empty());
}

#[test]
fn an_exec_session_that_ends_before_it_is_written_leaves_only_its_activity() {
    let mut state = mk_state();
    let exec = || mk_event("ann", "get", "pods").subresource("exec").id("x1").status_code(101);
    state.record(&exec().stage("ResponseStarted").decode(), now());
    state.record(&exec().decode(), now());
    let pending = state.take_pending().remove(0).1;

    assert!(pending.last.is_some() && pending.started_sessions.is_empty(), "{pending:?}");
}

#[test]
fn requests_with_the_same_audit_id_at_different_times_are_different_requests_and_sessions() {
    let mut state = mk_state();
    let requests = [("2026-03-02T08:00:00Z", ""), ("2026-03-02T08:10:00Z", "exec"), ("2026-03-02T08:20:00Z", "exec")];
    for (at, subresource) in requests {
        let event = mk_event("ann", "get", "pods").subresource(subresource).stage("ResponseStarted");
        let event = event.status_code(101).id("x1").at(at);
        assert_eq!(state.record(&event.decode(), now()), EventOutcome::Counted);
    }
    let pending = state.take_pending().remove(0).1;

    assert_eq!(pending.started_sessions.len(), 2);
    assert!(pending.started_sessions.keys().all(|id| id.len() == 16));
}

#[test]
fn the_end_of_a_session_longer_than_max_session_is_not_activity() {
    let mut state = mk_state();
    let exec = mk_event("ann", "get", "pods").subresource("exec").status_code(101).at("2026-03-01T06:00:00Z");
    let end = exec.stage_reached_at("2026-03-02T08:00:00Z");

    assert_eq!(state.record(&end.decode(), now()), EventOutcome::Ignored(IgnoreReason::WatchClosed));
    assert_eq!(state.take_pending().remove(0).1.last, None);
}

#[test]
fn a_watch_with_initial_events_counts_and_the_renewal_of_a_watch_does_not() {
    let mut state = mk_state();
    let mut outcome = |at: &str, query: &str| {
        let watch = mk_event("ann", "watch", "pods").agent("k9s").stage("ResponseStarted").at(at);
        state.record(&watch.uri(&format!("/api/v1/namespaces/shop/pods?{query}")).decode(), now())
    };

    let started = outcome("2026-03-02T01:00:00Z", "watch=true&sendInitialEvents=true");
    assert_eq!(started, EventOutcome::Counted);
    let renewed = outcome("2026-03-02T01:07:00Z", "watch=true&resourceVersion=7");
    assert_eq!(renewed, EventOutcome::Ignored(IgnoreReason::PeriodicPoll));
    let restarted = outcome("2026-03-02T01:12:30Z", "watch=true&sendInitialEvents=true");
    assert_eq!(restarted, EventOutcome::Counted);
}

#[test]
fn a_dashboard_left_open_stops_counting_and_other_requests_of_its_user_count() {
    let mut state = mk_state();
    let start: Timestamp = "2026-03-02T00:00:00Z".parse().unwrap();
    let mut last = EventOutcome::Counted;
    for i in 0..1_000 {
        let at = start + SignedDuration::from_secs(5 * i);
        let poll = mk_event("ann", "list", "pods").agent("dashboard").at(&at.to_string());
        last = state.record(&poll.decode(), now());
    }
    assert_eq!(last, EventOutcome::Ignored(IgnoreReason::PeriodicPoll));
    let namespace = state.activity_by_namespace().remove(0);
    assert_eq!(namespace.last.unwrap().at.to_string(), "2026-03-02T00:29:55Z");
    assert!(namespace.ignored["periodic-poll"].count > 600);

    let mut outcome = |event: TestEvent| state.record(&event.at("2026-03-02T01:30:00Z").decode(), now());
    assert_eq!(outcome(mk_event("ann", "list", "pods").agent("kubectl")), EventOutcome::Counted);
    assert_eq!(outcome(mk_event("ann", "delete", "pods").agent("dashboard")), EventOutcome::Counted);
    assert_eq!(outcome(mk_event("ann", "list", "configmaps").agent("dashboard")), EventOutcome::Counted);
}

#[test]
fn ignored_events_are_counted_by_reason_and_are_not_pending() {
    let mut state = mk_state();
    for _ in 0..3 {
        let event = mk_event("system:serviceaccount:shop:web", "get", "configmaps").bound_to_pod("web-0");
        state.record(&event.decode(), now());
    }
    let namespace = state.activity_by_namespace().remove(0);

    assert_eq!((namespace.last, namespace.counted), (None, 0));
    let ignored = &namespace.ignored["own-serviceaccount"];
    assert_eq!((ignored.count, ignored.what.as_str()), (3, "GetConfigmaps"));
    assert_eq!(ignored.user, "system:serviceaccount:shop:web");
    assert!(state.take_pending().is_empty());
}

#[test]
fn a_returned_canary_is_handed_out_once_and_is_not_activity() {
    let mut state = mk_state();
    let wrong_namespace = mk_event("ann", "get", "configmaps").agent("caretaker-canary/abc");
    let canary = wrong_namespace.clone().namespace("caretaker-system");
    let forbidden = canary.clone().status_code(403);
    let untimed = canary.clone().at("soon");
    let ignored = EventOutcome::Ignored;

    let outcome = state.record(&wrong_namespace.decode(), now());
    assert_eq!(outcome, ignored(IgnoreReason::IgnoredAgent), "canaries are in Caretaker's own namespace");
    assert_eq!(state.record(&forbidden.decode(), now()), ignored(IgnoreReason::Failed));
    assert_eq!(state.record(&untimed.decode(), now()), ignored(IgnoreReason::BadTimestamp));
    assert_eq!(state.record(&canary.decode(), now()), EventOutcome::Canary);
    let taken = (state.take_returned_canaries(), state.take_returned_canaries());
    let received_at = "2026-03-02T08:59:00.123456Z".parse().unwrap();
    assert_eq!(taken, (vec![ReturnedCanary { id: "abc".to_owned(), received_at }], Vec::new()));
    assert!(state.activity_by_namespace().iter().all(|namespace| namespace.counted == 0));
}

#[test]
fn the_number_of_namespaces_and_sessions_in_memory_is_bounded() {
    let mut state = mk_state();
    let exec = mk_event("ann", "get", "pods").subresource("exec").stage("ResponseStarted");
    let exec = exec.status_code(101).id("AUDIT");
    for i in 0..50_000 {
        let (namespace, id) = (format!("typo-{i}"), format!("id-{i}"));
        for namespace in ["shop", &namespace] {
            let text = exec.text().replace("\"shop\"", &format!("{namespace:?}")).replace("AUDIT", &id);
            state.record(&decode_line(text.as_bytes()).unwrap(), now());
        }
    }
    let namespaces = state.activity_by_namespace();

    assert!(namespaces.len() <= 20_000, "{}", namespaces.len());
    assert!(namespaces.iter().all(|namespace| namespace.open.len() <= MAX_SESSIONS));
}

proptest! {
    #[test]
    fn the_last_activity_does_not_depend_on_the_order_of_events(
        (times, shuffled) in proptest::collection::vec(0..3_600_i64, 1..50)
            .prop_flat_map(|t| (Just(t.clone()), Just(t).prop_shuffle())),
        twice in any::<bool>(),
    ) {
        let start: Timestamp = "2026-03-02T08:00:00Z".parse().unwrap();
        let last_activity = |times: &[i64]| {
            let mut state = mk_state();
            for t in times {
                let at = start + SignedDuration::from_secs(*t);
                let event = mk_event("ann", "update", "pods").at(&at.to_string());
                state.record(&event.decode(), now());
                if twice {
                    state.record(&event.decode(), now());
                }
            }
            state.take_pending().remove(0).1.last.unwrap().at
        };

        prop_assert_eq!(last_activity(&times), last_activity(&shuffled));
    }

    #[test]
    fn no_text_panics_or_counts(text in any::<String>(), part in "[\\{\\}\\[\\]\",:a-zA-Z0-9 .-]{0,200}") {
        let mut state = mk_state();
        let list = format!("{{\"kind\":\"EventList\",\"apiVersion\":\"audit.k8s.io/v1\",\"items\":[{part}]}}");
        for text in [text, part, list] {
            let mut counted = false;
            let _ = decode_batch(text.as_bytes(), |event| {
                counted |= event.is_some_and(|event| state.record(event, now()) == EventOutcome::Counted);
            });
            prop_assert!(!counted);
        }
    }
}
