//! The decision table, row by row.

use crate::support::table::*;
use caretaker_containers::api::{CRI_KIND_LABEL, FIFO_LABELS, LabelKeys};
use caretaker_containers::judge::Rule;
use caretaker_containers::subject::{Agent, SandboxState, Subject, World};
use caretaker_core::{Next, RuleId, RuleSet as _, VerdictKind};
use rstest::rstest;

/// What comes of it: kept, refused aloud, cleaned now, cleaned once past the window, or left to its agent, whatever its age,
/// because nobody has seen before that the agent ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Keep,
    Alarm,
    CleanNow,
    CleanPastWindow,
    LeaveToAgent,
}
use Expected::{Alarm, CleanNow, CleanPastWindow, Keep, LeaveToAgent};

fn judged(subject: &Subject, world: &World) -> (Rule, VerdictKind) {
    let verdict = Rule::judge(subject, world, now());
    let RuleId::Keeper(rule) = verdict.rule else { panic!("{verdict:?}") };
    (rule, verdict.next.kind())
}

fn replaced_agent(mut subject: Subject) -> Subject {
    let mut pod = agent();
    pod.uid = "another".into();
    subject.agent = Agent::Replaced(pod);
    subject
}

fn with_id(mut subject: Subject, id: &str) -> Subject {
    subject.container.id = id.into();
    subject
}

fn not_utf_8(mut subject: Subject) -> Subject {
    subject.container.unreadable = Some("a label is not UTF-8".into());
    subject
}

fn of_kubelet(mut subject: Subject, kind: &str) -> Subject {
    subject.container.labels.insert(CRI_KIND_LABEL.into(), kind.into());
    subject
}

fn created_at_zero(mut subject: Subject) -> Subject {
    subject.container.created = None;
    subject
}

fn somewhere(mut subject: Subject) -> Subject {
    subject.sandbox = SandboxState::Somewhere(vec!["a".into(), "b".into()]);
    subject
}

fn weak(subject: Subject) -> Subject {
    with_label(subject, "claim-uid", None)
}

fn unnamed(subject: Subject) -> Subject {
    let mut subject = with_label(subject, "sandbox-name", Some(""));
    subject.sandbox = SandboxState::Unnamed;
    subject
}

#[rstest]
#[case::in_use(used(), Rule::InUse, Keep)]
#[case::agent_gone(without_agent(used()), Rule::AgentGone, CleanNow)]
#[case::agent_gone_and_sandbox_missing(without_sandbox(without_agent(used())), Rule::AgentGone, CleanNow)]
#[case::same_name_with_another_uid(replaced_agent(used()), Rule::AgentGone, CleanNow)]
#[case::sandbox_missing(without_sandbox(used()), Rule::SandboxMissing, CleanPastWindow)]
#[case::sandbox_with_another_uid(with_sandbox(used(), |s| s.uid = "new".into()), Rule::SandboxReplaced, CleanNow)]
#[case::running_elsewhere(with_sandbox(used(), |s| s.assigned_pod = "agent-2".into()), Rule::SandboxMoved, LeaveToAgent)]
#[case::bound_elsewhere(with_sandbox(used(), |s| { s.phase = "Bound".into(); s.assigned_pod = "agent-2".into() }), Rule::SandboxMoved, LeaveToAgent)]
#[case::pending_elsewhere(with_sandbox(used(), |s| { s.phase = "Pending".into(); s.assigned_pod = "agent-2".into() }), Rule::InUse, Keep)]
#[case::assigned_to_nobody(with_sandbox(used(), |s| s.assigned_pod = String::new()), Rule::InUse, Keep)]
#[case::moved_but_no_agent_name(with_sandbox(with_label(used(), "agent-name", None), |s| s.assigned_pod = "agent-2".into()), Rule::InUse, Keep)]
#[case::expired(with_sandbox(used(), |s| s.phase = "Expired".into()), Rule::SandboxExpired, LeaveToAgent)]
#[case::no_sandbox_name(unnamed(used()), Rule::NoSandboxName, Keep)]
#[case::no_sandbox_name_and_no_agent(unnamed(without_agent(used())), Rule::AgentGone, CleanNow)]
#[case::no_definition_says_nothing_of_agents(without_agent(used()), Rule::AgentGone, CleanNow)]
#[case::agent_terminating(with_agent(used(), |a| a.deleting = true), Rule::AgentTerminating, Keep)]
#[case::agent_terminating_without_sandbox(with_agent(without_sandbox(used()), |a| a.deleting = true), Rule::AgentTerminating, Keep)]
#[case::agent_failed(with_agent(used(), |a| a.phase = "Failed".into()), Rule::AgentFinished, LeaveToAgent)]
#[case::agent_succeeded(with_agent(used(), |a| a.phase = "Succeeded".into()), Rule::AgentFinished, LeaveToAgent)]
#[case::agent_on_another_node(with_agent(used(), |a| a.node = "node-2".into()), Rule::AgentElsewhere, Alarm)]
#[case::agent_on_no_node(with_agent(used(), |a| a.node = String::new()), Rule::AgentElsewhere, Alarm)]
#[case::not_managed(without_agent(with_label(used(), "managed", None)), Rule::NotManaged, Keep)]
#[case::managed_false(without_agent(with_label(used(), "managed", Some("false"))), Rule::NotManaged, Keep)]
#[case::managed_in_capitals(without_agent(with_label(used(), "managed", Some("True"))), Rule::NotManaged, Keep)]
#[case::pause_container_of_a_pod_with_its_labels(
    of_kubelet(without_agent(used()), "sandbox"),
    Rule::KubeletContainer,
    Keep
)]
#[case::image_with_the_labels(of_kubelet(without_sandbox(used()), "container"), Rule::KubeletContainer, Keep)]
#[case::of_the_kubelet_without_a_kind(of_kubelet(without_agent(used()), ""), Rule::KubeletContainer, Keep)]
#[case::of_the_kubelet_and_not_managed(
    of_kubelet(with_label(used(), "managed", None), "container"),
    Rule::NotManaged,
    Keep
)]
#[case::no_agent_uid(without_agent(with_label(used(), "agent-uid", None)), Rule::NoAgentUid, Keep)]
#[case::empty_agent_uid(without_agent(with_label(used(), "agent-uid", Some(""))), Rule::NoAgentUid, Keep)]
#[case::weak_and_another_uid(weak(with_sandbox(used(), |s| s.uid = "new".into())), Rule::InUse, Keep)]
#[case::empty_claim_uid(with_label(with_sandbox(used(), |s| s.uid = "new".into()), "claim-uid", Some("")), Rule::InUse, Keep)]
#[case::weak_and_another_id(with_label(weak(with_sandbox(used(), |s| s.sandbox_id = "sb-2".into())), "id", Some("sb-1")), Rule::ContainerReplaced, LeaveToAgent)]
#[case::another_id_while_it_is_deleted(with_label(weak(with_sandbox(used(), |s| { s.sandbox_id = "sb-2".into(); s.deleting = true })), "id", Some("sb-1")), Rule::InUse, Keep)]
#[case::another_id_not_set_there(with_label(weak(with_sandbox(used(), |s| s.sandbox_id = String::new())), "id", Some("sb-1")), Rule::InUse, Keep)]
#[case::another_id_not_set_here(weak(with_sandbox(used(), |s| s.sandbox_id = "sb-2".into())), Rule::InUse, Keep)]
#[case::another_id_but_the_uid_is_equal(with_label(with_sandbox(used(), |s| s.sandbox_id = "sb-2".into()), "id", Some("sb-1")), Rule::InUse, Keep)]
#[case::some_namespace_has_it(somewhere(with_label(used(), "namespace", None)), Rule::SandboxSomewhere, Keep)]
#[case::created_at_zero(created_at_zero(without_agent(used())), Rule::CreationUnknown, Keep)]
#[case::created_in_the_future(aged(without_agent(used()), -1), Rule::CreationUnknown, Keep)]
#[case::id_with_path(with_id(without_agent(used()), "../../etc"), Rule::UnsafeId, Alarm)]
#[case::not_utf_8(not_utf_8(without_agent(used())), Rule::Unreadable, Alarm)]
fn a_row(#[case] subject: Subject, #[case] rule: Rule, #[case] expected: Expected) {
    let at = |age| judged(&aged_if_known(&subject, age), &world());

    let by_age = |young, old| [(59, young), (60, young), (61, old), (3600, old)];
    let rows = match expected {
        Keep => by_age(VerdictKind::Nothing, VerdictKind::Nothing),
        Alarm => by_age(VerdictKind::Refuse, VerdictKind::Refuse),
        CleanNow => by_age(VerdictKind::Act, VerdictKind::Act),
        CleanPastWindow => by_age(VerdictKind::Wait, VerdictKind::Act),
        LeaveToAgent => by_age(VerdictKind::Wait, VerdictKind::Wait),
    };
    for (age, kind) in rows {
        assert_eq!(at(age), (rule, kind), "{age} s old");
    }
}

/// Ages a container, unless the time of its creation is what the row is about.
fn aged_if_known(subject: &Subject, age: i64) -> Subject {
    let special = subject.container.created.is_none_or(|at| at > now());
    if special { subject.clone() } else { aged(subject.clone(), age) }
}

#[rstest]
#[case::in_use(used())]
#[case::agent_gone(without_agent(used()))]
#[case::sandbox_missing(without_sandbox(used()))]
#[case::replaced(with_sandbox(used(), |s| s.uid = "new".into()))]
#[case::expired(with_sandbox(used(), |s| s.phase = "Expired".into()))]
fn in_doubt_about_cluster_or_node_everything_is_kept_aloud(#[case] subject: Subject) {
    let doubt = World { doubt: Some("this is another cluster than before".into()), ..world() };

    assert_eq!(judged(&subject, &doubt), (Rule::NotOurNode, VerdictKind::Refuse));
}

#[test]
fn without_the_definition_a_missing_sandbox_means_nothing() {
    let uninstalled = World { sandboxes_served: false, ..world() };

    assert_eq!(judged(&without_sandbox(used()), &uninstalled), (Rule::NoDefinition, VerdictKind::Refuse));
    assert_eq!(judged(&without_agent(used()), &uninstalled), (Rule::AgentGone, VerdictKind::Act));
}

#[test]
fn a_young_container_is_judged_again_when_its_window_ends() {
    let verdict = Rule::judge(&aged(without_sandbox(used()), 12), &world(), now());

    let Next::Wait { until, .. } = verdict.next else { panic!("{verdict:?}") };
    assert_eq!(until, now() + secs(48));
}

#[test]
fn other_label_keys_are_read_as_told() {
    let keys = LabelKeys { agent_uid: "fast-sandbox.io/fastlet-uid".into(), ..LabelKeys::default() };
    let mut container = used().container;
    container.labels.insert("fast-sandbox.io/fastlet-uid".into(), "f-1".into());

    assert_eq!(container.owner(&keys).agent_uid.as_deref(), Some("f-1"));
}

#[test]
fn the_fence_ignores_what_the_keeper_wrote_and_nothing_else() {
    let judged = used().container;
    let changed = |change: fn(&mut caretaker_containers::subject::Container)| {
        let mut other = judged.clone();
        change(&mut other);
        judged.is_same(&other)
    };

    assert!(changed(|c| _ = c.labels.insert("caretaker.dev/fifo-stdin".into(), c.seal("/x").unwrap())));
    assert!(!changed(|c| _ = c.labels.insert("caretaker.dev/fifo-stdin".into(), "/x".into())));
    assert!(!changed(|c| _ = c.labels.insert("fast-sandbox.io/id".into(), c.seal("/x").unwrap())));
    assert!(!changed(|c| _ = c.labels.insert("fast-sandbox.io/id".into(), "x".into())));
    assert!(!changed(|c| _ = c.labels.remove("fast-sandbox.io/claim-uid")));
    assert!(!changed(|c| c.created = Some(now())));
    assert!(!changed(|c| c.id = "sb-10".into()));
    assert!(!changed(|c| c.unreadable = Some("a label is not UTF-8".into())));
}

/// A label that a container inherits was written before the container was there.
#[test]
fn a_label_of_the_keeper_counts_only_on_the_container_that_it_was_written_on() {
    let mut container = used().container;
    let [stdin, stdout, stderr] = FIFO_LABELS;
    let (own, mut before) = (container.seal("/fifo/a").unwrap(), container.clone());
    before.created = Some(now() - secs(3601));
    container.labels.insert(stdin.into(), own);
    container.labels.insert(stdout.into(), "/fifo/b".into());
    container.labels.insert(stderr.into(), before.seal("/fifo/c").unwrap());

    assert_eq!(FIFO_LABELS.map(|key| container.own(key)), [Some("/fifo/a"), None, None]);
    container.created = None;
    assert_eq!(FIFO_LABELS.map(|key| container.own(key)), [None; 3]);
}

#[test]
fn the_page_has_the_rules_as_they_are() {
    let page = include_str!("../../../../../docs/containers.md");
    let written =
        page.split("<!-- caretaker-node rules -->\n").nth(1).and_then(|rest| rest.split("<!-- end -->").next());

    assert_eq!(written, Some(Rule::markdown().as_str()));
}
