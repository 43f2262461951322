//! What an agent is ending itself is left to it, from when the keeper first saw that.

use std::sync::Arc;

use crate::support::memory::InMemory;
use crate::support::table::*;
use caretaker_containers::ending::Sighting;
use caretaker_containers::host::Host;
use caretaker_containers::judge::Rule;
use caretaker_containers::observe::{CONTAINERS, ContainerCache, Row};
use caretaker_containers::subject::{Container, Subject};
use caretaker_containers::{Containers, Settings};
use caretaker_core::{Keeper as _, Next, RuleId, RuleSet as _, Timestamp, VerdictKind};
use caretaker_engine::{Cache as _, Change, ObjectId, SourceRef};
use rstest::rstest;

fn expired() -> Subject {
    with_sandbox(used(), |s| s.phase = "Expired".into())
}

fn moved_to(agent: &str) -> Subject {
    with_sandbox(used(), |s| s.assigned_pod = agent.into())
}

fn finished(phase: &str) -> Subject {
    with_agent(used(), |a| a.phase = phase.into())
}

fn replaced_by(id: &str) -> Subject {
    let weak = with_label(with_label(used(), "claim-uid", None), "id", Some("sb-1"));
    let found = with_sandbox(weak, |s| s.sandbox_id = id.into());
    with_label(found, "id", Some("sb-1"))
}

/// A round at this time: the rule, when it acts at the earliest, and what is known afterwards.
fn judge_at(subject: &mut Subject, at: Timestamp) -> (Rule, VerdictKind, Option<Timestamp>) {
    let verdict = Rule::judge(subject, &world(), at);
    let RuleId::Keeper(rule) = verdict.rule else { panic!("{verdict:?}") };
    subject.sighting = Sighting::after(subject.sighting.take(), rule, subject, at);
    (rule, verdict.next.kind(), verdict.next.deadline())
}

/// What was seen of one state, and another state after that.
fn then(seen: &Subject, mut next: Subject) -> Subject {
    next.sighting.clone_from(&seen.sighting);
    next
}

#[rstest]
#[case::expired(expired())]
#[case::moved(moved_to("agent-2"))]
#[case::failed(finished("Failed"))]
#[case::succeeded(finished("Succeeded"))]
#[case::replaced(replaced_by("sb-2"))]
fn an_agent_has_the_shutdown_grace_from_when_it_was_first_seen(#[case] mut subject: Subject) {
    let until = Some(now() + secs(45));

    for (age, kind) in
        [(0, VerdictKind::Wait), (12, VerdictKind::Wait), (45, VerdictKind::Wait), (46, VerdictKind::Act)]
    {
        let (_, next, deadline) = judge_at(&mut subject, now() + secs(age));
        assert_eq!((next, deadline), (kind, until), "after {age} s");
    }
}

#[rstest]
#[case::moved_once_more(moved_to("agent-2"), moved_to("agent-3"))]
#[case::another_sandbox(expired(), with_label(with_sandbox(used(), |s| { s.uid = "new".into(); s.phase = "Expired".into() }), "claim-uid", None))]
#[case::expired_after_it_moved(moved_to("agent-2"), expired())]
#[case::agent_failed_after_it_expired(expired(), finished("Failed"))]
#[case::another_container(replaced_by("sb-2"), replaced_by("sb-3"))]
fn another_state_begins_the_grace_anew(#[case] mut first: Subject, #[case] second: Subject) {
    judge_at(&mut first, now());
    let mut second = then(&first, second);

    let (_, kind, deadline) = judge_at(&mut second, now() + secs(46));

    assert_eq!((kind, deadline), (VerdictKind::Wait, Some(now() + secs(46 + 45))));
}

/// Nothing of it is written down, so that a process that starts gives the whole grace once more.
#[test]
fn after_a_restart_the_grace_begins_anew() {
    judge_at(&mut expired(), now());

    let (_, kind, deadline) = judge_at(&mut expired(), now() + secs(46));

    assert_eq!((kind, deadline), (VerdictKind::Wait, Some(now() + secs(46 + 45))));
}

#[test]
fn a_state_that_was_over_meanwhile_begins_the_grace_anew() {
    let mut first = moved_to("agent-2");
    judge_at(&mut first, now());
    let mut between = then(&first, used());
    assert_eq!(judge_at(&mut between, now() + secs(20)).0, Rule::InUse);

    let mut again = then(&between, moved_to("agent-2"));

    assert_eq!(judge_at(&mut again, now() + secs(46)).2, Some(now() + secs(46 + 45)));
}

/// The object of a Sandbox that has expired may be deleted at any time, also while its agent ends the container.
#[test]
fn a_sandbox_that_is_deleted_after_it_has_expired_does_not_end_the_grace() {
    let mut first = expired();
    judge_at(&mut first, now());
    let mut missing = then(&first, without_sandbox(used()));

    let seen: Vec<_> = [1, 45, 46].map(|age| judge_at(&mut missing, now() + secs(age))).into();

    let until = Some(now() + secs(45));
    let expected =
        [VerdictKind::Wait, VerdictKind::Wait, VerdictKind::Act].map(|kind| (Rule::SandboxMissing, kind, until));
    assert_eq!(seen, expected);
}

/// With the uid of its Sandbox on the container, another Sandbox of that name has it cleaned at once; but not while its
/// agent still ends it.
#[rstest]
#[case::made_again_at_once(false)]
#[case::missing_for_a_while(true)]
fn a_sandbox_that_is_deleted_and_made_again_after_it_has_expired_does_not_end_the_grace(#[case] missing: bool) {
    let mut seen = expired();
    judge_at(&mut seen, now());
    if missing {
        seen = then(&seen, without_sandbox(used()));
        judge_at(&mut seen, now() + secs(1));
    }
    let mut made_again = then(&seen, with_sandbox(used(), |s| s.uid = "new".into()));

    let seen: Vec<_> = [2, 45, 46].map(|age| judge_at(&mut made_again, now() + secs(age))).into();

    let until = Some(now() + secs(45));
    let expected =
        [VerdictKind::Wait, VerdictKind::Wait, VerdictKind::Act].map(|kind| (Rule::SandboxReplaced, kind, until));
    assert_eq!(seen, expected);
}

/// No window protects it: its Sandbox is known to be another one.
#[test]
fn a_young_container_whose_sandbox_was_made_again_waits_for_the_grace_alone() {
    let mut young = aged(moved_to("agent-2"), 1);
    judge_at(&mut young, now());
    let mut made_again = then(&young, aged(with_sandbox(used(), |s| s.uid = "new".into()), 1));

    assert_eq!(judge_at(&mut made_again, now() + secs(46)).1, VerdictKind::Act);
}

#[test]
fn a_young_container_is_protected_by_the_window_however_long_the_state_was_seen() {
    let mut young = aged(expired(), 10);
    judge_at(&mut young, now());

    let (_, kind, deadline) = judge_at(&mut young, now() + secs(46));

    assert_eq!((kind, deadline), (VerdictKind::Wait, Some(now() + secs(50))));
    assert_eq!(judge_at(&mut young, now() + secs(51)).1, VerdictKind::Act);
}

#[test]
fn an_agent_that_is_gone_has_no_grace() {
    let mut first = expired();
    judge_at(&mut first, now());

    let mut gone = then(&first, without_agent(expired()));

    assert_eq!(judge_at(&mut gone, now() + secs(1)).1, VerdictKind::Act);
}

#[test]
fn the_plan_says_since_when_and_how_long_it_waits() {
    let mut subject = expired();
    judge_at(&mut subject, now());

    let verdict = Rule::judge(&subject, &world(), now() + secs(12));

    assert_eq!(verdict.because, "Sandbox box has expired; first seen 12s ago, and its agent has 45s to end it");
    let Next::Wait { until, .. } = verdict.next else { panic!("{verdict:?}") };
    assert_eq!(until, now() + secs(45));
    let facts = subject.facts(now() + secs(12));
    assert!(
        facts.iter().any(|(fact, value)| *fact == "left to its agent since" && value.contains("12s ago")),
        "{facts:?}"
    );
}

fn keeper() -> Containers {
    Containers::new(Settings::new(NODE, "none"), Arc::new(InMemory::default()), Host::default())
}

/// An agent sends SIGKILL ten seconds after SIGTERM, whatever the settings say.
#[rstest]
#[case::none(0, 30)]
#[case::too_short(29, 30)]
#[case::the_shortest(30, 30)]
#[case::longer(90, 90)]
fn the_shutdown_grace_is_never_shorter_than_thirty_seconds(#[case] given: i64, #[case] used: i64) {
    let settings = Settings { shutdown_grace: secs(given), ..Settings::new(NODE, "none") };

    let keeper = Containers::new(settings, Arc::new(InMemory::default()), Host::default());

    assert_eq!(keeper.settings().shutdown_grace, secs(used));
}

/// The engine judges what the cache remembers; another container of the same ID is another one.
#[test]
fn the_cache_remembers_it_for_the_same_container_alone() {
    let (keeper, mut cache) = (keeper(), ContainerCache::default());
    let apply = |cache: &mut ContainerCache, container: Container| {
        let (id, owner) = (container.id.clone(), used().owner);
        let row = Row::Container(Box::new((container, owner, used().node)));
        cache.update(&SourceRef { id: CONTAINERS, resource: None }, Change::apply(ObjectId::named(id), row));
    };
    apply(&mut cache, used().container);
    let mut subject = expired();
    let verdict = Rule::judge(&subject, &world(), now());
    assert!(keeper.record_verdict(&mut subject, &verdict, now()), "it was not known before");
    assert!(!keeper.record_verdict(&mut subject, &verdict, now() + secs(1)), "it is known since then");
    let id = subject.container.id.clone();
    cache.remember(&id, &subject);

    let mut labelled = used().container;
    labelled.labels.insert("other".into(), "label".into());
    apply(&mut cache, labelled);
    assert_eq!(cache.subjects_for(&id)[0].sighting, subject.sighting);

    apply(&mut cache, aged(used(), 5).container);
    assert_eq!(cache.subjects_for(&id)[0].sighting, None);
}

/// Whoever may make pods could else open the breaker of a node with twenty of them.
#[test]
fn containers_of_the_kubelet_do_not_count_for_the_breaker() {
    let mut subject = without_agent(used());
    assert!(keeper().membership(&subject).breaker);

    subject.container.labels.insert("io.cri-containerd.kind".into(), "sandbox".into());

    assert!(!keeper().membership(&subject).breaker);
    // What its labels name is no Sandbox of its own.
    assert_eq!(keeper().subject_ref(&with_sandbox(subject, |_| {})).object.kind, "Node");
}
