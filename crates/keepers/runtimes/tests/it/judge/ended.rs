//! When a runtime is retired, of a task that was changed since its runtime was made: what cannot be read of it, a spec that
//! was removed, a finish that was withdrawn.

use caretaker_core::SignedDuration;
use caretaker_runtimes::api::CarrierKind;
use caretaker_runtimes::api::RuntimeStatus::{Created, Creating, Deleted};
use caretaker_runtimes::subject::{Carrier, TaskRuntime};
use rstest::rstest;

use super::{default_agent, finished, invalid, judge, line, with};
use crate::support::sample::{at, carrier, complete, not_started, task, world, world_with};

#[rstest]
#[case::its_own_is_readable(Ok(Some(1440)), "Finished wait retire 11:00")]
#[case::which_is_over(Ok(Some(30)), "Finished retire ordered")]
#[case::it_names_none(Ok(None), "Finished retire ordered")]
#[case::nobody_can_read_it(Err(()), "Finished refuse")]
fn a_task_that_cannot_be_read_has_the_grace_that_it_names(
    #[case] own: Result<Option<i64>, ()>,
    #[case] expected: &str,
) {
    let grace = own.map(|own| own.map(SignedDuration::from_mins)).map_err(|()| invalid().unwrap());
    let ended = with(finished(complete(Created, 1), -60), |r| {
        (r.task.agent, r.task.invalid, r.task.grace) = (None, invalid(), grace.clone());
    });
    let missed = with(complete(Created, 1), |r| {
        (r.task.agent, r.task.invalid, r.task.grace) = (None, invalid(), grace.clone());
        r.task.round = not_started(-60);
    });

    assert_eq!(line(&task(ended.clone()), &world(), at(0)), expected);
    assert_eq!(line(&task(missed), &world(), at(0)), expected.replace("Finished", "RoundMissed"));
    if own.is_err() {
        let because = judge(&task(ended), &world(), at(0)).because;
        assert!(because.contains("its runtime stays: field spec.agentSpec.kind"), "{because}");
    }
}

#[rstest]
#[case::runs_on(complete(Created, 1), "Running none")]
#[case::gets_ready(complete(Creating, 1), "RuntimeReady record Created completion")]
#[case::finished(finished(complete(Created, 1), 1), "Finished wait retire 13:01")]
#[case::its_grace_is_over(finished(complete(Created, 1), -61), "Finished retire ordered")]
#[case::round_missed(with(complete(Created, 1), |r| r.task.round = not_started(-61)), "RoundMissed retire ordered")]
#[case::retired(finished(with(complete(Deleted, 1), |r| r.carriers.clear()), -90), "DefaultAgent none")]
#[case::lost_and_finished(finished(with(complete(Created, 1), |r| r.carriers.clear()), 1), "RuntimeGone record Deleted completion")]
#[case::lost(with(complete(Created, 1), |r| r.carriers.clear()), "DefaultAgent record DefaultAgent completion")]
fn a_task_whose_agent_spec_was_removed_uses_its_runtime_to_the_end(
    #[case] observed: TaskRuntime,
    #[case] expected: &str,
) {
    let removed = with(observed, |r| (r.task.has_agent_spec, r.task.agent) = (false, None));
    let world = world_with(|policy| policy.default_agent = Some(default_agent()));

    assert_eq!(line(&task(removed), &world, at(0)), expected);
}

#[rstest]
#[case::not_finished_any_more(complete(Created, 1), "FinishWithdrawn record FinishWithdrawn completion")]
#[case::for_ever_now(with(complete(Created, 1), |r| r.task.round_number = Some(-1)), "FinishWithdrawn record FinishWithdrawn completion")]
#[case::its_round_is_missed(with(complete(Created, 1), |r| r.task.round = not_started(-90)), "FinishWithdrawn record FinishWithdrawn completion")]
#[case::it_cannot_be_read(with(complete(Created, 1), |r| r.task.invalid = invalid()), "FinishWithdrawn record FinishWithdrawn completion")]
#[case::no_round_at_all(with(complete(Created, 1), |r| r.task.round_number = Some(0)), "Finished retire ordered")]
#[case::finished_still(with(complete(Created, 1), |r| r.task.is_finished = true), "Finished retire ordered")]
#[case::the_task_says_when(finished(complete(Created, 1), 1), "Finished wait retire 13:01")]
fn a_time_at_which_a_task_was_seen_finished_goes_when_it_is_not_finished_any_more(
    #[case] observed: TaskRuntime,
    #[case] expected: &str,
) {
    let seen = with(observed, |r| r.carriers[0].finished_seen_at = Some(at(-61)));

    assert_eq!(line(&task(seen), &world(), at(0)), expected);
}

#[test]
fn a_time_on_a_carrier_that_goes_says_nothing_about_the_next() {
    let dying = Carrier { is_deleting: true, finished_seen_at: Some(at(-61)), ..carrier(1) };
    let next = with(complete(Created, 1), |r| {
        r.task.is_finished = true;
        r.carriers.push(Carrier { kind: CarrierKind::Deployment, uid: "uid-dying".to_owned(), ..dying });
    });

    assert_eq!(line(&task(next), &world(), at(0)), "FinishedSeen record FinishedSeen completion");
}
