//! States in which an agent ends a container itself, and since when the keeper has seen one.
//!
//! Fast Sandbox writes that a Sandbox has expired, or resets it to another agent, while the agent before has only begun to
//! end the container: SIGTERM, some seconds, then SIGKILL. Nothing in the API says when that began or is over, so that it
//! is counted from when the keeper first saw the state. That is kept in memory: after a restart the time starts anew.

use caretaker_core::Timestamp;

use crate::api;
use crate::judge::Rule;
use crate::subject::{Agent, Sandbox, SandboxState, Subject};

/// A state in which an agent ends a container, with what it rests on: another Sandbox, agent or container is another state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The agent pod is in this phase.
    AgentFinished(String),
    /// The Sandbox of this uid is assigned to this agent.
    Moved(String, String),
    /// The Sandbox of this uid has expired.
    Expired(String),
    /// The Sandbox of this uid has this container.
    Replaced(String, String),
}

/// A state that was seen without a break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The state.
    pub ending: Ending,
    /// When it was first seen.
    pub since: Timestamp,
}

impl Sighting {
    /// What is known after a rule has decided. A Sandbox that is deleted after it has expired, or deleted and made again,
    /// does not shorten the time of its agent.
    #[must_use]
    pub fn after(before: Option<Self>, rule: Rule, subject: &Subject, now: Timestamp) -> Option<Self> {
        let ending = match rule {
            Rule::AgentFinished => finished(subject)?,
            Rule::SandboxMoved => moved(subject)?,
            Rule::SandboxExpired => expired(subject)?,
            Rule::ContainerReplaced => replaced(subject)?,
            Rule::SandboxMissing | Rule::SandboxReplaced => return before,
            _ => return None,
        };
        let same = before.filter(|before| before.ending == ending);
        Some(same.unwrap_or(Self { ending, since: now }))
    }
}

pub(crate) fn sandbox(subject: &Subject) -> Option<&Sandbox> {
    if let SandboxState::Found(sandbox) = &subject.sandbox { Some(sandbox) } else { None }
}

/// Its agent has failed or succeeded.
pub(crate) fn finished(subject: &Subject) -> Option<Ending> {
    let Agent::Found(pod) = &subject.agent else { return None };
    api::FINISHED_PHASES.contains(&pod.phase.as_str()).then(|| Ending::AgentFinished(pod.phase.clone()))
}

/// Its Sandbox is assigned to another agent.
pub(crate) fn moved(subject: &Subject) -> Option<Ending> {
    let (sandbox, agent) = (sandbox(subject)?, subject.owner.agent_name.as_ref()?);
    let assigned = api::ASSIGNED_PHASES.contains(&sandbox.phase.as_str()) && !sandbox.assigned_pod.is_empty();
    (assigned && sandbox.assigned_pod != *agent)
        .then(|| Ending::Moved(sandbox.uid.clone(), sandbox.assigned_pod.clone()))
}

/// Its Sandbox has expired.
pub(crate) fn expired(subject: &Subject) -> Option<Ending> {
    let sandbox = sandbox(subject)?;
    (sandbox.phase == api::EXPIRED).then(|| Ending::Expired(sandbox.uid.clone()))
}

/// Its Sandbox has another container now. The fast path makes the container first and the object later: a Sandbox that is
/// being deleted may be the one before.
pub(crate) fn replaced(subject: &Subject) -> Option<Ending> {
    let (sandbox, id) = (sandbox(subject)?, subject.owner.sandbox_id.as_ref()?);
    let tested = subject.owner.claim_uid.is_none() && !sandbox.deleting && !sandbox.sandbox_id.is_empty();
    (tested && sandbox.sandbox_id != *id).then(|| Ending::Replaced(sandbox.uid.clone(), sandbox.sandbox_id.clone()))
}
