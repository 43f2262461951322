//! When a container is cleaned.
//!
//! The first matching rule decides. What must never be touched comes first, then what cannot be known, then the agent,
//! then the Sandbox. Everything is judged again on what was read live before anything is removed.

use caretaker_core::{RuleMatch, Timestamp, duration, rules, time};

use crate::Containers;
use crate::act::Action;
use crate::api;
use crate::ending::{self, Ending};
use crate::subject::{Agent, SandboxState, Subject, World};

rules! {
    /// Why a container is cleaned or kept.
    pub enum Rule for Containers {
        /// It is not labelled as managed: never touched.
        NotManaged => not_managed,
        /// The kubelet has made it, whatever its labels say: never touched, and not counted by the breaker.
        KubeletContainer => kubelet_container,
        /// Its ID cannot be part of a path: never touched.
        UnsafeId => unsafe_id,
        /// A part of its record is not UTF-8: never touched.
        Unreadable => unreadable,
        /// The API server or the node is not the one that this keeper knows: kept.
        NotOurNode => not_our_node,
        /// It does not name the uid of its agent: kept, and counted.
        NoAgentUid => no_agent_uid,
        /// The time of its creation is not known or still to come: kept.
        CreationUnknown => creation_unknown,
        /// Its agent runs on another node: kept. The name of the node is wrong, or nodes share a containerd.
        AgentElsewhere => agent_elsewhere,
        /// Its agent is gone: cleaned at once.
        AgentGone => agent_gone,
        /// Its agent is Terminating: kept until it is gone.
        AgentTerminating => agent_terminating,
        /// Its agent has failed or succeeded: cleaned once past the window and the shutdown grace.
        AgentFinished => agent_finished,
        /// It names no Sandbox: kept, and counted.
        NoSandboxName => no_sandbox_name,
        /// The definition of Sandboxes is missing or being deleted, so that it means nothing if one is missing: kept.
        NoDefinition => no_definition,
        /// Its Sandbox is missing: cleaned once past the window, and past the shutdown grace if its agent was ending it.
        SandboxMissing => sandbox_missing,
        /// It does not say in which namespace its Sandbox is, and there is one of that name: kept.
        SandboxSomewhere => sandbox_somewhere,
        /// A Sandbox with another uid has the name of its own: cleaned at once, or past the shutdown grace if its agent was ending it.
        SandboxReplaced => sandbox_replaced,
        /// Its Sandbox is assigned to another agent: cleaned once past the window and the shutdown grace.
        SandboxMoved => sandbox_moved,
        /// Its Sandbox has expired: cleaned once past the window and the shutdown grace.
        SandboxExpired => sandbox_expired,
        /// Its Sandbox has another container now: cleaned once past the window and the shutdown grace.
        ContainerReplaced => container_replaced,
        /// Its agent and its Sandbox are there: kept.
        InUse => in_use,
    }
}

type Found = Option<RuleMatch<Action>>;

/// True for rules about what an agent is ending itself: they wait from when the keeper first saw that.
#[must_use]
pub fn is_left_to_agent(rule: Rule) -> bool {
    use Rule::{AgentFinished, ContainerReplaced, SandboxExpired, SandboxMoved};

    matches!(rule, AgentFinished | SandboxMoved | SandboxExpired | ContainerReplaced)
}

fn not_managed(subject: &Subject, _: &World, _: Timestamp) -> Found {
    (!subject.owner.managed).then(|| RuleMatch::nothing("its label managed is not \"true\""))
}

fn kubelet_container(subject: &Subject, _: &World, _: Timestamp) -> Found {
    subject.container.is_of_kubelet().then(|| {
        let because = format!(
            "the kubelet has made it, by its label {}; its other labels are those of its pod or image",
            api::CRI_KIND_LABEL
        );
        // No refusal: whoever may make pods could fill the journal, and the Events of the Node.
        RuleMatch::nothing(because)
    })
}

fn unsafe_id(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let id = &subject.container.id;
    (!api::is_plain_id(id)).then(|| RuleMatch::refuse(None, format!("the ID {id:?} cannot be part of a path")))
}

fn unreadable(subject: &Subject, _: &World, _: Timestamp) -> Found {
    subject.container.unreadable.as_ref().map(|what| RuleMatch::refuse(None, what.clone()))
}

fn not_our_node(_: &Subject, world: &World, _: Timestamp) -> Found {
    world.doubt.as_ref().map(|doubt| RuleMatch::refuse(None, doubt.clone()))
}

fn no_agent_uid(subject: &Subject, _: &World, _: Timestamp) -> Found {
    subject.owner.agent_uid.is_none().then(|| RuleMatch::nothing("its label agent-uid is missing or empty"))
}

fn creation_unknown(subject: &Subject, _: &World, now: Timestamp) -> Found {
    match subject.container.created {
        None => Some(RuleMatch::nothing("containerd does not say when it was created")),
        Some(at) if at > now => {
            Some(RuleMatch::nothing(format!("it was created at {}, which is still to come", time::format(at))))
        }
        Some(_) => None,
    }
}

fn agent_elsewhere(subject: &Subject, world: &World, _: Timestamp) -> Found {
    let Agent::Found(pod) = &subject.agent else { return None };
    (pod.node != world.node).then(|| {
        let node = if pod.node.is_empty() { "no node" } else { &pod.node };
        RuleMatch::refuse(None, format!("its agent {}/{} is on {node}, not on {}", pod.namespace, pod.name, world.node))
    })
}

fn agent_gone(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let because = match &subject.agent {
        Agent::Gone => format!("no pod has the uid {}", agent_uid(subject)),
        Agent::Replaced(pod) => {
            format!("{}/{} has the uid {} now, not {}", pod.namespace, pod.name, pod.uid, agent_uid(subject))
        }
        Agent::Found(_) => return None,
    };
    Some(RuleMatch::act(Action::Clean, subject.gone_since.unwrap_or(now), because))
}

fn agent_uid(subject: &Subject) -> &str {
    subject.owner.agent_uid.as_deref().unwrap_or_default()
}

fn agent_terminating(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let Agent::Found(pod) = &subject.agent else { return None };
    pod.deleting.then(|| RuleMatch::nothing(format!("its agent {}/{} is Terminating", pod.namespace, pod.name)))
}

fn agent_finished(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let ending = ending::finished(subject)?;
    let Agent::Found(pod) = &subject.agent else { return None };
    Some(past_grace(subject, world, now, &ending, &format!("its agent {} is {}", pod.name, pod.phase)))
}

fn no_sandbox_name(subject: &Subject, _: &World, _: Timestamp) -> Found {
    (subject.sandbox == SandboxState::Unnamed)
        .then(|| RuleMatch::nothing("its label sandbox-name is missing or empty, and its agent is there"))
}

fn no_definition(_: &Subject, world: &World, _: Timestamp) -> Found {
    (!world.sandboxes_served)
        .then(|| RuleMatch::refuse(None, "the definition of Sandboxes is missing or being deleted"))
}

fn sandbox_missing(subject: &Subject, world: &World, now: Timestamp) -> Found {
    if subject.sandbox != SandboxState::Missing {
        return None;
    }
    let name = subject.owner.sandbox_name.as_deref().unwrap_or_default();
    let place = subject.owner.namespace.as_ref().map_or_else(|| "any namespace".to_owned(), Clone::clone);
    let because = format!("there is no Sandbox {name} in {place}");
    Some(match &subject.sighting {
        Some(sighting) => past_both(subject, world, now, sighting.since, &because),
        None => past_window(subject, world, now, &because),
    })
}

fn sandbox_somewhere(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let SandboxState::Somewhere(namespaces) = &subject.sandbox else { return None };
    Some(RuleMatch::nothing(format!("a Sandbox of that name is in {}", namespaces.join(", "))))
}

fn sandbox_replaced(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let (sandbox, claim) = (ending::sandbox(subject)?, subject.owner.claim_uid.as_ref()?);
    (sandbox.uid != *claim).then(|| {
        let because = format!("Sandbox {} has the uid {}, not {claim}", sandbox.name, sandbox.uid);
        match &subject.sighting {
            Some(sighting) => past_grace_since(sighting.since, world, now, &because),
            None => RuleMatch::act(Action::Clean, subject.gone_since.unwrap_or(now), because),
        }
    })
}

fn sandbox_moved(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let (ending, sandbox) = (ending::moved(subject)?, ending::sandbox(subject)?);
    let agent = subject.owner.agent_name.as_deref().unwrap_or_default();
    let because = format!("Sandbox {} is assigned to {}, not to {agent}", sandbox.name, sandbox.assigned_pod);
    Some(past_grace(subject, world, now, &ending, &because))
}

fn sandbox_expired(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let (ending, sandbox) = (ending::expired(subject)?, ending::sandbox(subject)?);
    Some(past_grace(subject, world, now, &ending, &format!("Sandbox {} has expired", sandbox.name)))
}

fn container_replaced(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let (ending, sandbox) = (ending::replaced(subject)?, ending::sandbox(subject)?);
    let id = subject.owner.sandbox_id.as_deref().unwrap_or_default();
    let because = format!("Sandbox {} has the container {}, not {id}", sandbox.name, sandbox.sandbox_id);
    Some(past_grace(subject, world, now, &ending, &because))
}

fn in_use(_: &Subject, _: &World, _: Timestamp) -> Found {
    Some(RuleMatch::nothing("its agent and its Sandbox are there"))
}

/// Cleaned once the container is older than the window.
fn past_window(subject: &Subject, world: &World, now: Timestamp, because: &str) -> RuleMatch<Action> {
    let created = subject.container.created.unwrap_or(now);
    let because =
        format!("{because}; it was created {}, the window is {}", time::ago(created, now), world.window_text());
    RuleMatch::act_after(time::saturating_add(created, world.window), Action::Clean, now, because)
}

/// Cleaned once the container is older than the window, and this state was seen for as long as an agent has to end it.
fn past_grace(subject: &Subject, world: &World, now: Timestamp, ending: &Ending, because: &str) -> RuleMatch<Action> {
    let since = subject.sighting.as_ref().filter(|sighting| sighting.ending == *ending).map(|sighting| sighting.since);
    past_both(subject, world, now, since.unwrap_or(now), because)
}

fn past_both(subject: &Subject, world: &World, now: Timestamp, since: Timestamp, because: &str) -> RuleMatch<Action> {
    let created = subject.container.created.unwrap_or(now);
    if time::saturating_add(created, world.window) > time::saturating_add(since, world.shutdown_grace) {
        return past_window(subject, world, now, because);
    }
    past_grace_since(since, world, now, because)
}

fn past_grace_since(since: Timestamp, world: &World, now: Timestamp, because: &str) -> RuleMatch<Action> {
    let until = time::saturating_add(since, world.shutdown_grace);
    let (ago, grace) = (time::ago(since, now), duration::format(world.shutdown_grace));
    let because = format!("{because}; first seen {ago}, and its agent has {grace} to end it");
    RuleMatch::act_after(until, Action::Clean, now, because)
}
