//! One test for each defect of kubefree that the judge alone can show, named after it.

use crate::support::table::*;
use caretaker_core::Parsed;
use caretaker_namespaces::act::{Action, SleepReason, Step, after_action, steps};
use caretaker_namespaces::api::State;
use caretaker_namespaces::subject::Subject;
use caretaker_namespaces::workload::{KubefreeTerm, Workload, WorkloadKind, WorkloadState};

/// The subject after the action that is due now.
fn acted(ns: Subject) -> Subject {
    let action = *judge(&ns, &world()).next.action().expect("there is something to do");
    after_action(ns, &action, &world(), now()).expect("it is not deleted")
}

fn sleep(ns: Subject) -> Subject {
    after_action(ns, &Action::Sleep(SleepReason::Idle), &world(), now()).unwrap()
}

#[test]
fn sleep_after_1h_delete_after_24h_deletes_at_about_2h() {
    let at_two = asleep("1h").sleep_after("1h").delete_after("24h").idle("2h");

    assert_eq!(verdict(&at_two), "Asleep: wait announce @+19h36m");
}

#[test]
fn a_retried_sleep_overwrites_legacy_replicas_with_0() {
    let ns = awake().sleep_after("1h").idle("2h").with(scaled(3, None));

    let twice = sleep(sleep(ns).in_state(State::Sleeping));

    assert_eq!(twice.workloads, [scaled(0, Some(3))]);
}

#[test]
fn a_failure_leaves_sleeping_for_ever_then_deletes() {
    let interrupted = awake().in_state(State::Sleeping).sleep_after("1h").idle("99d").with(scaled(3, None));
    assert_eq!(verdict(&interrupted), "SleepUnfinished: act sleep @+0s");

    let finished = acted(interrupted.clone());
    assert_eq!((finished.state(), finished.workloads.as_slice()), (State::Sleep, &[scaled(0, Some(3))][..]));
    assert_eq!(verdict(&finished), "Asleep: wait announce @+54m", "its full period asleep is still to come");

    let undone = acted(interrupted.idle("1m"));
    assert_eq!((undone.state(), undone.workloads.as_slice()), (State::Normal, &[scaled(3, None)][..]));
}

#[test]
fn one_workload_without_the_annotation_blocks_the_wake() {
    let created_while_asleep = Workload { name: "new".into(), ..scaled(0, None) };
    let ns = asleep("1h").sleep_after("1h").idle("1m").with(created_while_asleep.clone()).with(scaled(0, Some(3)));

    let woken = acted(ns);

    assert_eq!(woken.workloads, [created_while_asleep, scaled(3, None)]);
    assert_eq!(woken.state(), State::Normal);
}

#[test]
fn node_selector_terms_are_ored_so_a_daemon_set_keeps_running() {
    let daemon_set = |parked, kubefree| workload(WorkloadKind::DaemonSet, WorkloadState::Placed { parked, kubefree });

    let slept = sleep(awake().sleep_after("1h").with(daemon_set(false, KubefreeTerm::Absent)));
    assert_eq!(slept.workloads, [daemon_set(true, KubefreeTerm::Absent)]);

    for term in [KubefreeTerm::Alone, KubefreeTerm::WithOthers] {
        let woken = acted(asleep("1h").sleep_after("1h").idle("1m").with(daemon_set(false, term)));
        assert_eq!(woken.workloads, [daemon_set(false, KubefreeTerm::Absent)], "kubefree's term is recognised");
    }
}

#[test]
fn removing_sleep_after_while_asleep_strands_it_asleep() {
    let ns = asleep("1h").with(scaled(0, Some(3)));
    assert_eq!(verdict(&ns), "SleepAfterRemoved: act wake @+0s");

    let woken = acted(ns);

    assert_eq!(woken.workloads, [scaled(3, None)]);
    assert_eq!(verdict(&woken), "Unmanaged: none");
}

#[test]
fn removing_sleep_after_while_asleep_does_not_delete_at_once_by_the_other_label() {
    let woken = acted(asleep("9d").delete_after("10h"));

    assert_eq!(verdict(&woken), "CountingDown: wait announce @+9h", "idle time counts from now");
}

#[test]
fn the_controller_was_down_for_three_periods_sleeps_and_deletes_in_the_next_pass() {
    let ns = awake().sleep_after("1h").idle("3h");
    assert_eq!(verdict(&ns), "SleepAfterElapsed: act sleep @-2h");

    let slept = acted(ns);

    assert_eq!(slept.asleep_since, Parsed::Valid(now()));
    assert_eq!(verdict(&slept), "Asleep: wait announce @+54m");
}

#[test]
fn delete_writes_its_state_first() {
    let due = asleep("11h").sleep_after("10h").announced("2h", past("1h"));

    let steps = steps(&Action::Delete, &due, &world(), now());

    let [Step::PatchMetadata(patch), Step::Delete] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(patch.state, Some(State::Deleting));
}
