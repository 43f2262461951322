//! The state machine of a runtime, as a table: what is observed, and what comes next.

mod ended;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::sample::{at, carrier, complete, named, not_started, runtime, task, world, world_with};
use caretaker_core::parsed::InvalidValue;
use caretaker_core::{Cause, Next, RuleSet as _, SignedDuration, Timestamp, VerdictOf};
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::act::{Action, Record};
use caretaker_runtimes::api::{AgentSpec, CarrierKind, Family, KdoctorSettings, RuntimeStatus};
use caretaker_runtimes::judge::Rule;
use caretaker_runtimes::observe::RuntimeCache;
use caretaker_runtimes::subject::{
    DefaultAgent, Diagnosis, Failure, Orphan, Policy, Round, RoundStatus, Subject, TaskRuntime, World,
};
use rstest::rstest;

use RuntimeStatus::{Created, Creating, Deleted};

fn judge(subject: &Subject, world: &World, now: Timestamp) -> VerdictOf<Runtimes> {
    Rule::judge(subject, world, now)
}

/// What comes next, in one line: `RoundMissed wait retire 12:30`.
fn line(subject: &Subject, world: &World, now: Timestamp) -> String {
    let verdict = judge(subject, world, now);
    let time = |at: &Timestamp| at.to_string()[11..16].to_owned();
    let next = match &verdict.next {
        Next::Nothing => "none".to_owned(),
        Next::Wait { until, then } => format!("wait {} {}", name(then), time(until)),
        Next::Act { action, cause, .. } => format!("{} {}", name(action), cause_name(*cause)),
        Next::Refuse { .. } => "refuse".to_owned(),
    };
    format!("{} {next}", verdict.rule)
}

fn name(action: &Action) -> String {
    match action {
        Action::Record(what) => format!("record {what:?}"),
        other => caretaker_core::Action::name(other).to_owned(),
    }
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Inferred => "inferred",
        Cause::Ordered => "ordered",
        Cause::Completion => "completion",
    }
}

fn with(mut runtime: TaskRuntime, change: impl FnOnce(&mut TaskRuntime)) -> TaskRuntime {
    change(&mut runtime);
    runtime
}

fn finished(runtime: TaskRuntime, minute: i64) -> TaskRuntime {
    with(runtime, |all| (all.task.is_finished, all.task.finish_time) = (true, Some(at(minute))))
}

#[rstest]
#[case::task_being_deleted(with(complete(Created, 1), |r| r.task.is_deleting = true), "BeingDeleted none")]
#[case::no_runtime(runtime(), "NoRuntime create ordered")]
#[case::killed_after_the_carrier(with(runtime(), |r| r.carriers.push(carrier(0))), "Incomplete create completion")]
#[case::killed_before_the_status(with(complete(Creating, 1), |r| r.task.resource = None), "Incomplete create completion")]
#[case::not_ready_yet(complete(Creating, 0), "Creating wait warn 12:05")]
#[case::ready(complete(Creating, 1), "RuntimeReady record Created completion")]
#[case::zero_of_zero_is_not_ready(with(complete(Creating, 0), |r| r.carriers[0].desired = 0), "Creating wait warn 12:05")]
#[case::ready_of_an_older_spec(with(complete(Creating, 1), |r| r.carriers[0].is_observed = false), "Creating wait warn 12:05")]
#[case::running(complete(Created, 1), "Running none")]
#[case::a_pod_restarts_while_it_runs(complete(Created, 0), "Running none")]
#[case::carrier_lost(with(complete(Created, 1), |r| r.carriers.clear()), "NameNotFree none")]
#[case::carrier_and_service_lost(with(complete(Created, 1), |r| { r.carriers.clear(); r.named.clear(); }), "NoRuntime create ordered")]
#[case::service_lost(with(complete(Created, 1), |r| r.named.clear()), "Incomplete create completion")]
#[case::carrier_being_deleted(with(complete(Created, 1), |r| r.carriers[0].is_deleting = true), "NameNotFree none")]
#[case::finished_before_grace(finished(complete(Created, 1), 1), "Finished wait retire 13:01")]
#[case::finished_and_runtime_gone(finished(with(complete(Created, 1), |r| r.carriers.clear()), 1), "RuntimeGone record Deleted completion")]
#[case::finished_without_ever_a_runtime(finished(runtime(), 1), "RuntimeGone none")]
#[case::finished_while_creating(finished(complete(Creating, 0), 1), "Finished wait retire 13:01")]
#[case::retired(finished(with(complete(Deleted, 1), |r| r.carriers.clear()), 1), "Retired none")]
#[case::deleted_but_the_carrier_is_there(finished(complete(Deleted, 1), -90), "Finished retire ordered")]
#[case::finished_and_nothing_says_when(with(complete(Created, 1), |r| r.task.is_finished = true), "FinishedSeen record FinishedSeen completion")]
#[case::seen_finished_before(with(complete(Created, 1), |r| { r.task.is_finished = true; r.carriers[0].finished_seen_at = Some(at(-1)); }), "Finished wait retire 12:59")]
#[case::no_round_at_all(with(complete(Created, 1), |r| r.task.round_number = Some(0)), "FinishedSeen record FinishedSeen completion")]
#[case::for_ever(finished(with(complete(Created, 1), |r| r.task.round_number = Some(-1)), -90), "Running none")]
#[case::for_ever_with_a_missed_round(with(complete(Created, 1), |r| { r.task.round_number = Some(-1); r.task.round = not_started(-90); }), "Running none")]
#[case::round_not_started_yet(with(complete(Created, 1), |r| r.task.round = not_started(10)), "Running wait retire 13:10")]
#[case::round_missed(with(complete(Created, 1), |r| r.task.round = not_started(-10)), "RoundMissed wait retire 12:50")]
#[case::round_missed_long_ago(with(complete(Created, 1), |r| r.task.round = not_started(-61)), "RoundMissed retire ordered")]
#[case::a_round_that_runs_is_kdoctors(with(complete(Created, 1), |r| r.task.round = Some(Round { status: RoundStatus::Other, deadline: Some(at(-90)) })), "Running none")]
#[case::foreign_carrier(with(runtime(), |r| r.named.push(named("DaemonSet", "kdoctor-netreach-mesh", None))), "ForeignObject refuse")]
#[case::foreign_service(with(runtime(), |r| r.named.push(named("Service", "kdoctor-netreach-mesh-ipv4", None))), "ForeignObject refuse")]
#[case::foreign_service_beside_a_carrier(with(complete(Creating, 1), |r| r.named[0].controller = None), "ForeignObject refuse")]
#[case::the_other_kind_of_that_name_is_not_in_the_way(with(runtime(), |r| r.named.push(named("Deployment", "kdoctor-netreach-mesh", None))), "NoRuntime create ordered")]
#[case::carrier_of_an_earlier_task(with(runtime(), |r| r.named.push(named("DaemonSet", "kdoctor-netreach-mesh", Some(("NetReach", "mesh", "uid-before"))))), "NameNotFree none")]
#[case::service_of_an_earlier_carrier(with(complete(Created, 1), |r| r.named[0].controller.as_mut().unwrap().uid = "uid-before".to_owned()), "NameNotFree none")]
#[case::made_by_kdoctor(with(complete(Created, 1), |r| r.task.has_finish = true), "Running none")]
fn a_runtime_follows_the_state_machine(#[case] observed: TaskRuntime, #[case] expected: &str) {
    assert_eq!(line(&task(observed), &world(), at(0)), expected);
}

#[rstest]
#[case::before(59, "Finished wait retire 13:00")]
#[case::exactly_then(60, "Finished retire ordered")]
#[case::long_after(6000, "Finished retire ordered")]
fn a_finished_task_keeps_its_runtime_until_exactly_the_end_of_its_grace(#[case] now: i64, #[case] expected: &str) {
    let subject = task(finished(complete(Created, 1), 0));

    assert_eq!(line(&subject, &world(), at(now)), expected);
    assert_eq!(judge(&subject, &world(), at(now)).next.deadline(), Some(at(60)));
}

#[rstest]
#[case::of_the_task_alone(Some(5), None, None, None, false, 5)]
#[case::zero_means_at_once(Some(0), Some(30), None, None, false, 0)]
#[case::absent_is_kdoctors_default(None, Some(30), None, None, false, 30)]
#[case::absent_is_the_setting_first(None, Some(30), Some(7), None, false, 7)]
#[case::absent_everywhere_is_an_hour_and_never_zero(None, None, None, None, false, 60)]
#[case::a_failed_one_can_be_looked_at(Some(5), None, None, Some(120), true, 120)]
#[case::which_is_never_shorter(Some(240), None, None, Some(120), true, 240)]
#[case::one_that_succeeded_is_not_kept(Some(5), None, None, Some(120), false, 5)]
fn the_grace_is(
    #[case] own: Option<i64>,
    #[case] kdoctor: Option<i64>,
    #[case] setting: Option<i64>,
    #[case] after_failure: Option<i64>,
    #[case] failed: bool,
    #[case] expected: i64,
) {
    let minutes = |minutes: Option<i64>| minutes.map(SignedDuration::from_mins);
    let mut world = world_with(|policy| {
        policy.default_grace = minutes(setting);
        policy.grace_after_failure = minutes(after_failure);
    });
    world.kdoctor = Arc::new(KdoctorSettings { default_grace: minutes(kdoctor), ..KdoctorSettings::default() });
    let mut ended = finished(complete(Created, 1), 0);
    ended.task.grace = Ok(minutes(own));
    ended.task.has_failed = failed;

    let due = judge(&task(ended), &world, at(1)).next.deadline();

    assert_eq!(due, Some(at(expected)));
}

fn default_agent() -> DefaultAgent {
    DefaultAgent {
        name: "kdoctor-agent".to_owned(),
        kind: CarrierKind::DaemonSet,
        service_v4: Some("kdoctor-agent-ipv4".to_owned()),
        service_v6: None,
    }
}

#[test]
fn a_task_without_an_agent_of_its_own_runs_on_the_default_agent_which_is_never_deleted() {
    let agent = default_agent();
    let world = world_with(|policy| policy.default_agent = Some(agent.clone()));
    let plain = with(runtime(), |r| (r.task.has_agent_spec, r.task.agent) = (false, None));
    let shown = with(plain.clone(), |r| r.task.resource = Some(agent.resource()));

    assert_eq!(line(&task(plain.clone()), &world, at(0)), "DefaultAgent record DefaultAgent completion");
    assert_eq!(line(&task(shown.clone()), &world, at(0)), "DefaultAgent none");
    assert_eq!(line(&task(finished(shown, -600)), &world, at(0)), "DefaultAgent none");
    assert_eq!(line(&task(plain), &self::world(), at(0)), "DefaultAgent refuse");
}

/// What is said of a spec that cannot be read.
fn invalid() -> Option<Box<InvalidValue>> {
    Some(AgentSpec::read(&serde_json::json!({ "kind": "Job" })).unwrap_err())
}

#[test]
fn what_cannot_be_read_creates_nothing_but_what_there_is_is_still_retired() {
    let bad = with(runtime(), |r| (r.task.agent, r.task.invalid) = (None, invalid()));
    let old = with(finished(complete(Created, 1), -90), |r| (r.task.agent, r.task.invalid) = (None, invalid()));

    let verdict = judge(&task(bad), &world(), at(0));

    assert_eq!(verdict.rule.name(), "InvalidTask");
    assert!(
        verdict.because.contains("spec.agentSpec.kind") && verdict.because.contains("write DaemonSet"),
        "{}",
        verdict.because
    );
    assert_eq!(line(&task(old), &world(), at(0)), "Finished retire ordered");
}

#[test]
fn without_a_place_nothing_is_created_and_what_runs_goes_on() {
    let nowhere = World { place: Err("no template".into()), ..world() };

    assert_eq!(line(&task(runtime()), &nowhere, at(0)), "NoPlace refuse");
    assert_eq!(line(&task(complete(Creating, 1)), &nowhere, at(0)), "RuntimeReady record Created completion");
    assert_eq!(line(&task(finished(complete(Created, 1), -90)), &nowhere, at(0)), "Finished retire ordered");
}

#[test]
fn a_runtime_that_does_not_get_ready_is_looked_into_again_and_again() {
    let stuck = complete(Creating, 0);
    let looked = with(stuck.clone(), |r| {
        let found = "node a: pod x: ImagePullBackOff".to_owned();
        r.diagnosis = Some(Diagnosis { carrier_uid: "uid-carrier".to_owned(), at: at(5), found });
    });
    let other = with(looked.clone(), |r| r.carriers[0].uid = "uid-new".to_owned());

    assert_eq!(line(&task(stuck.clone()), &world(), at(4)), "Creating wait warn 12:05");
    assert_eq!(line(&task(stuck), &world(), at(5)), "CreationOverdue warn ordered");
    assert_eq!(line(&task(looked.clone()), &world(), at(6)), "Creating wait warn 12:10");
    assert!(judge(&task(looked.clone()), &world(), at(6)).because.contains("node a: pod x: ImagePullBackOff"));
    assert_eq!(line(&task(looked), &world(), at(10)), "CreationOverdue warn ordered");
    assert_ne!(line(&task(other), &world(), at(6)), "Creating wait warn 12:10", "what was found of another carrier");
}

#[test]
fn a_stuck_runtime_whose_round_is_missed_is_retired_exactly_then() {
    let stuck = with(complete(Creating, 0), |r| {
        r.task.round = not_started(2);
        r.task.grace = Ok(Some(SignedDuration::from_mins(1)));
    });

    assert_eq!(line(&task(stuck.clone()), &world(), at(1)), "Creating wait retire 12:03");
    assert_eq!(line(&task(stuck), &world(), at(3)), "RoundMissed retire ordered");
}

#[rstest]
#[case::first_sight(None, false, 0, "TaskGone wait clean 12:05")]
#[case::in_the_collectors_time(Some(0), false, 4, "TaskGone wait clean 12:05")]
#[case::after_it(Some(0), false, 6, "TaskGone clean inferred")]
#[case::being_deleted(Some(0), true, 6, "TaskGone none")]
fn a_carrier_without_a_task_is_left_to_the_garbage_collector_first(
    #[case] since: Option<i64>,
    #[case] is_deleting: bool,
    #[case] now: i64,
    #[case] expected: &str,
) {
    let mut carrier = carrier(1);
    carrier.is_deleting = is_deleting;
    let orphan = Subject::Orphan(Box::new(Orphan { carrier, since: since.map(at) }));

    assert_eq!(line(&orphan, &world(), at(now)), expected);
}

#[test]
fn over_the_maximum_the_oldest_go_first_and_the_others_know_their_place() {
    let names = ["a", "b", "c"];
    let key = |name: &str| (caretaker_runtimes::api::TaskKind::NetReach, name.into());
    let queue: BTreeMap<_, _> = names.iter().enumerate().map(|(place, name)| (key(name), place)).collect();
    let mut world = world_with(|policy| policy.max_runtimes = Some(5));
    (world.queue, world.alive) = (Arc::new(queue), 4);
    let of = |name: &str| task(with(runtime(), |r| r.task.name = name.into()));

    assert_eq!(line(&of("a"), &world, at(0)), "NoRuntime create ordered");
    for (name, place) in [("b", 1), ("c", 2)] {
        let verdict = judge(&of(name), &world, at(0));
        assert_eq!(verdict.rule.name(), "Queued");
        assert_eq!(verdict.because, format!("4 of at most 5 runtimes run; it is number {place} in the queue"));
    }
    assert_eq!(line(&task(complete(Creating, 1)), &world, at(0)), "RuntimeReady record Created completion");
}

#[test]
fn a_runtime_that_could_not_be_created_is_tried_again_after_longer_and_longer_pauses() {
    let mut refused = runtime();
    let mut now = at(0);
    let mut pauses = Vec::new();
    for _ in 0..10 {
        refused.failure = Some(Failure::next(&refused, "no (422)".to_owned(), now));
        let verdict = judge(&task(refused.clone()), &world(), now);
        assert_eq!((verdict.rule.name(), verdict.next.name()), ("CreationFailed", "wait"));
        assert!(verdict.because.ends_with("no (422)"), "{}", verdict.because);
        let next = verdict.next.deadline().unwrap();
        pauses.push(next.duration_since(now).as_secs());
        now = next;
        assert_eq!(line(&task(refused.clone()), &world(), now), "NoRuntime create ordered");
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);

    // What the task says now may be accepted.
    let corrected = with(refused, |r| r.task.agent.as_mut().unwrap().json = r#"{"env":[]}"#.into());
    assert_eq!(Failure::next(&corrected, String::new(), now).count, 1);
}

#[test]
fn a_family_that_the_cluster_does_not_have_is_said_and_hinders_nothing() {
    let mut world = world();
    world.kdoctor =
        Arc::new(KdoctorSettings { enable_ipv4: Some(true), enable_ipv6: Some(true), ..KdoctorSettings::default() });

    let verdict = judge(&task(runtime()), &world, at(0));

    assert_eq!(world.families(), [Family::V4]);
    assert_eq!(verdict.next.pending_action(), Some(&Action::Create));
    assert!(verdict.because.contains("no Service for IPv6"), "{}", verdict.because);
    assert_eq!(line(&task(complete(Creating, 1)), &world, at(0)), "RuntimeReady record Created completion");
    assert_eq!(line(&task(complete(Created, 1)), &world, at(0)), "Running none");
    let _ = Record::Created;
}

/// kdoctor's two ConfigMaps are read by two sources: a list of one must not remove the other.
#[test]
fn a_list_of_the_settings_says_nothing_about_the_templates() {
    use caretaker_engine::source::resource;
    use caretaker_engine::{Cache as _, Change, ObjectId, Observed, SourceRef};
    use caretaker_runtimes::api::Templates;
    use caretaker_runtimes::observe::{Row, SETTINGS, TEMPLATES};
    let config_maps = || Some(Arc::new(resource("", "v1", "ConfigMap", "configmaps")));
    let (templates, settings) =
        (SourceRef { id: TEMPLATES, resource: config_maps() }, SourceRef { id: SETTINGS, resource: config_maps() });
    let named = |name: &str| ObjectId { namespace: Some("kdoctor".to_owned()), ..ObjectId::named(name) };
    let mut cache = RuntimeCache::default();
    let read = Row::Templates(Ok(Arc::new(Templates::default())));
    cache.update(&templates, Change::Init);
    cache.update(&templates, Change::Apply(Observed::new(named("kdoctor-app-config-template"), read)));
    cache.update(&templates, Change::InitDone);

    cache.update(&settings, Change::Init);
    let read = KdoctorSettings { enable_ipv6: Some(true), ..KdoctorSettings::default() };
    cache.update(&settings, Change::Apply(Observed::new(named("kdoctor"), Row::Settings(Arc::new(read)))));
    cache.update(&settings, Change::InitDone);

    let policy = Arc::new(Policy { namespace: Some("kdoctor".to_owned()), ..Policy::default() });
    assert!(cache.has_templates());
    assert_eq!(cache.world(&policy, at(0)).kdoctor.enable_ipv6, Some(true));

    cache.update(&settings, Change::Delete(named("kdoctor")));
    assert!(cache.has_templates());
    assert_eq!(cache.world(&policy, at(0)).kdoctor.enable_ipv6, None);
    cache.update(&templates, Change::Delete(named("kdoctor-app-config-template")));
    assert!(!cache.has_templates());
}

#[test]
fn without_a_setting_that_names_a_namespace_nothing_is_created_and_the_key_is_named() {
    let mut world = world();
    world.place = RuntimeCache::default().world(&Arc::default(), at(0)).place;

    let verdict = judge(&task(runtime()), &world, at(0));

    assert_eq!((verdict.rule.to_string().as_str(), verdict.next.pending_action()), ("NoPlace", None));
    assert!(verdict.because.contains("keepers.runtimes.namespace is not set"), "{}", verdict.because);
}

/// kdoctor's cache keeps deleted tasks, and is full at 5,000.
#[test]
fn nothing_of_a_deleted_task_stays_in_the_cache() {
    use caretaker_engine::source::resource;
    use caretaker_engine::{Cache as _, Change, ObjectId, Observed, SourceRef};
    use caretaker_runtimes::observe::{DIAGNOSES, NETREACHES, Row};
    let kind = resource("kdoctor.io", "v1beta1", "NetReach", "netreaches");
    let tasks = SourceRef { id: NETREACHES, resource: Some(Arc::new(kind)) };
    let looks = SourceRef { id: DIAGNOSES, resource: None };
    let mut cache = RuntimeCache::default();
    for i in 0..6_000 {
        let name = format!("t{i}");
        let mut all = runtime();
        (all.task.name, all.task.uid) = (name.as_str().into(), name.clone());
        let found = Diagnosis { carrier_uid: String::new(), at: at(0), found: "nothing".to_owned() };
        let row = Row::Diagnosis(all.task.key(), found);
        cache
            .update(&tasks, Change::Apply(Observed::new(ObjectId::named(name.clone()), Row::Task(Box::new(all.task)))));
        cache.update(&looks, Change::Apply(Observed::new(ObjectId::named(name.clone()), row)));
        assert_eq!(cache.keys().len(), 1, "{name} is accepted");
        cache.update(&tasks, Change::Delete(ObjectId::named(name)));
    }
    cache.take_dirty();

    assert!(cache.keys().is_empty());
    let left = format!("{cache:?}");
    assert!(left.len() < 2_000, "{left}");
}
