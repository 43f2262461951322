//! When a runtime is created, when its task may start, and when it is retired.
//!
//! The first matching rule decides. What has no task comes first, then the end of tasks, then what hinders a creation,
//! then the creation itself.

use caretaker_core::{Cause, RuleMatch, Timestamp, duration, rules, time};

use crate::Runtimes;
use crate::act::{Action, Record};
use crate::api::{Family, RuntimeStatus};
use crate::subject::{Carrier, Ended, Failure, Named, Subject, Task, TaskRuntime, World};

type Found = Option<RuleMatch<Action>>;

rules! {
    /// Why a runtime is created, retired or left alone.
    pub enum Rule for Runtimes {
        /// Its task is gone, and the cluster's garbage collector did not remove it in time: removed.
        TaskGone => task_gone,
        /// The task is being deleted: its runtime goes with it, by owner references.
        BeingDeleted => being_deleted,
        /// The task asks for no runtime of its own, and has none: it runs on the default agent, which is never deleted.
        DefaultAgent => default_agent,
        /// The runtime is deleted, and so it stays.
        Retired => retired,
        /// The task ended and its runtime is gone: the status says so.
        RuntimeGone => runtime_gone,
        /// The task finished and nothing says when: the time is recorded on the carrier.
        FinishedSeen => finished_seen,
        /// The task is not finished any more: the time at which it was seen so is removed from the carrier.
        FinishWithdrawn => finish_withdrawn,
        /// The task finished: its runtime is retired after the grace period.
        Finished => finished,
        /// The round should be over and has not even started: the runtime is retired after the grace period.
        RoundMissed => round_missed,
        /// The task cannot be read: nothing is created.
        InvalidTask => invalid_task,
        /// There is nothing to create runtimes from, or no namespace is named for them.
        NoPlace => no_place,
        /// Somebody else has an object of a name that the runtime needs: never touched, reported.
        ForeignObject => foreign_object,
        /// What an earlier runtime left behind has a name that the runtime needs: created when it is gone.
        NameNotFree => name_not_free,
        /// The runtime could not be created: tried again after a pause, in which others may take its place.
        CreationFailed => creation_failed,
        /// There are as many runtimes as the settings allow: the task waits for its turn.
        Queued => queued,
        /// The task has no runtime: created.
        NoRuntime => no_runtime,
        /// A part of the runtime is missing, or the status does not show it: completed.
        Incomplete => incomplete,
        /// The runtime is ready: the task may start.
        RuntimeReady => runtime_ready,
        /// The runtime does not get ready: the nodes are named, and what blocks them.
        CreationOverdue => creation_overdue,
        /// The runtime gets ready.
        Creating => creating,
        /// The runtime runs.
        Running => running,
    }
}

fn task_of(subject: &Subject) -> Option<&TaskRuntime> {
    match subject {
        Subject::Task(runtime) => Some(runtime),
        Subject::Orphan(_) => None,
    }
}

fn complete(action: Action, now: Timestamp, because: impl Into<String>) -> RuleMatch<Action> {
    RuleMatch::act(action, now, because).with_cause(Cause::Completion)
}

/// Waits for the deadline; then it is an order.
fn ordered_at(due: Timestamp, action: Action, now: Timestamp, because: impl Into<String>) -> RuleMatch<Action> {
    if now < due {
        RuleMatch::wait(due, action, because)
    } else {
        RuleMatch::act(action, due, because).with_cause(Cause::Ordered)
    }
}

fn task_gone(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let Subject::Orphan(orphan) = subject else { return None };
    let Carrier { task, task_uid, is_deleting, .. } = &orphan.carrier;
    let because = format!("its task {} {} (uid {task_uid}) is gone", task.0, task.1);
    if *is_deleting {
        return Some(RuleMatch::nothing(format!("{because}, and it is being deleted")));
    }
    let due = time::saturating_add(orphan.since.unwrap_or(now), world.policy.sweep_after);
    Some(RuleMatch::act_after(due, Action::Clean, now, because))
}

fn being_deleted(subject: &Subject, _: &World, _: Timestamp) -> Found {
    task_of(subject)?.task.is_deleting.then(|| RuleMatch::nothing("it is being deleted, and its runtime with it"))
}

fn default_agent(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let task = &runtime.task;
    // What it had before its spec was removed is used to the end, and retired as any other.
    let had_its_own = task.runtime_status() == Some(RuntimeStatus::Created) && runtime.shows_own();
    let ended_on_its_own = had_its_own && ended(runtime, now) != Ended::No;
    if task.has_agent_spec || runtime.carrier().is_some() || ended_on_its_own {
        return None;
    }
    let because = "it asks for no runtime of its own";
    let has_none = matches!(task.runtime_status(), None | Some(RuntimeStatus::Creating)) || had_its_own;
    Some(match (has_none, &world.policy.default_agent) {
        (true, Some(agent)) => {
            complete(Action::Record(Record::DefaultAgent), now, format!("{because}: it runs on {}", agent.name))
        }
        (true, None) => RuleMatch::refuse(
            None,
            format!(
                "{because}, and no default agent is known; name it in keepers.runtimes.defaultAgent, or write spec.agentSpec"
            ),
        ),
        (false, _) => RuleMatch::nothing(because),
    })
}

fn retired(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let gone = runtime.task.runtime_status() == Some(RuntimeStatus::Deleted) && runtime.carrier().is_none();
    gone.then(|| RuleMatch::nothing("its runtime is deleted"))
}

/// Whether the task ended, by what it says and what its carriers say.
fn ended(runtime: &TaskRuntime, now: Timestamp) -> Ended {
    let seen = runtime.noted_carriers().filter_map(|carrier| carrier.finished_seen_at).min();
    runtime.task.ended(seen, now)
}

fn runtime_gone(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    if ended(runtime, now) == Ended::No || runtime.carrier().is_some() {
        return None;
    }
    Some(match &runtime.task.resource {
        Some(_) => complete(Action::Record(Record::Deleted), now, "it ended, and its runtime is gone"),
        None => RuleMatch::nothing("it ended before it had a runtime"),
    })
}

fn finished_seen(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let is_unknown = ended(runtime, now) == Ended::AtUnknownTime;
    is_unknown.then(|| complete(Action::Record(Record::FinishedSeen), now, "it finished, and nothing says when"))
}

/// If it finishes once more, its grace counts from then.
fn finish_withdrawn(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let noted = runtime.noted_carriers().find_map(|carrier| carrier.finished_seen_at)?;
    let because = || format!("it was seen finished at {}, and is not finished any more", time::format(noted));
    let is_withdrawn = !runtime.task.is_over();
    is_withdrawn.then(|| complete(Action::Record(Record::FinishWithdrawn), now, because()))
}

fn finished(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let Ended::Finished(at) = ended(runtime, now) else { return None };
    Some(retire(&runtime.task, world, at, now, &format!("it finished at {}", time::format(at))))
}

fn round_missed(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let Ended::RoundMissed(at) = ended(runtime, now) else { return None };
    let because = format!("its round should have been over at {} and has not started", time::format(at));
    Some(retire(&runtime.task, world, at, now, &because))
}

fn retire(task: &Task, world: &World, ended: Timestamp, now: Timestamp, because: &str) -> RuleMatch<Action> {
    let grace = match world.grace(task) {
        Ok(grace) => grace,
        Err(invalid) => return RuleMatch::refuse(None, format!("{because}; its runtime stays: {invalid}")),
    };
    let failed = if task.has_failed { ", and its last round failed" } else { "" };
    let grace_words =
        if grace.is_zero() { "no grace".to_owned() } else { format!("{} of grace", duration::format(grace)) };
    let due = time::saturating_add(ended, grace);
    ordered_at(due, Action::Retire, now, format!("{because}{failed}; it has {grace_words}"))
}

fn invalid_task(subject: &Subject, _: &World, _: Timestamp) -> Found {
    let invalid = task_of(subject)?.task.invalid.as_ref()?;
    Some(RuleMatch::refuse(None, invalid.to_string()))
}

/// True if something is to be created: the carrier, or a part beside it.
fn lacks_something(runtime: &TaskRuntime, world: &World) -> bool {
    runtime.carrier().is_none_or(|carrier| !runtime.missing(carrier, world).is_empty())
}

fn no_place(subject: &Subject, world: &World, _: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let reason = world.place.as_ref().err()?;
    lacks_something(runtime, world).then(|| RuleMatch::refuse(None, reason.to_string()))
}

/// An object that is in the way of what is to be created.
fn obstacle<'a>(runtime: &'a TaskRuntime, world: &World) -> Option<&'a Named> {
    let namespace = &world.place.as_ref().ok()?.namespace;
    let carrier = runtime.carrier();
    let mut wanted = match carrier {
        Some(carrier) => runtime.missing(carrier, world),
        None => runtime.wanted_parts(world),
    };
    if let (None, Some(agent)) = (carrier, &runtime.task.agent) {
        wanted.push((agent.kind.name(), runtime.carrier_name()));
    }
    let in_the_way = |named: &&Named| {
        let is_wanted = wanted.iter().any(|(kind, name)| (*kind, name) == (named.kind, &named.name));
        is_wanted && named.namespace == *namespace
    };
    runtime.named.iter().find(in_the_way)
}

/// True if the object was a part of an earlier runtime of this task or of one of the same name: it goes by itself.
fn is_left_over(runtime: &TaskRuntime, named: &Named) -> bool {
    let Some(controller) = &named.controller else { return false };
    let of_carrier =
        controller.name == runtime.carrier_name() && ["DaemonSet", "Deployment"].contains(&controller.kind.as_str());
    let of_task = controller.kind == runtime.task.kind.name() && *controller.name == *runtime.task.name;
    of_carrier || of_task
}

fn foreign_object(subject: &Subject, world: &World, _: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let Named { kind, namespace, name, controller, .. } =
        obstacle(runtime, world).filter(|named| !is_left_over(runtime, named))?;
    let owner = controller
        .as_ref()
        .map_or_else(|| "nothing of this task".to_owned(), |owner| format!("{} {}", owner.kind, owner.name));
    Some(RuleMatch::refuse(
        None,
        format!(
            "its runtime needs the name of {kind} {namespace}/{name}, which belongs to {owner}; rename the task, or remove that object"
        ),
    ))
}

fn name_not_free(subject: &Subject, world: &World, _: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    if runtime.carrier().is_none()
        && let Some(carrier) = runtime.carriers.first()
    {
        let name = &carrier.name;
        return Some(RuleMatch::nothing(format!("its {} {name} is being deleted; it gets another", carrier.kind)));
    }
    let Named { kind, namespace, name, .. } = obstacle(runtime, world)?;
    Some(RuleMatch::nothing(format!("{kind} {namespace}/{name} of an earlier runtime is still there")))
}

fn creation_failed(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    if runtime.carrier().is_some() {
        return None;
    }
    let Failure { why, next_attempt, .. } = runtime.failure.as_ref().filter(|failure| failure.next_attempt > now)?;
    Some(RuleMatch::wait(*next_attempt, Action::Create, format!("its runtime could not be created: {why}")))
}

fn queued(subject: &Subject, world: &World, _: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    if runtime.carrier().is_some() {
        return None;
    }
    let place = world.queued(&runtime.task)?;
    let most = world.policy.max_runtimes.unwrap_or_default();
    let because = format!("{} of at most {most} runtimes run; it is number {place} in the queue", world.alive);
    Some(RuleMatch::refuse(None, because))
}

/// What is said about families that were asked for and that the cluster does not have.
fn absent_families(world: &World) -> String {
    let absent: Vec<&str> = world.absent_families().into_iter().map(Family::name).collect();
    if absent.is_empty() {
        return String::new();
    }
    format!("; no Service for {}, which the cluster does not have", absent.join(" and "))
}

fn no_runtime(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    if runtime.carrier().is_some() {
        return None;
    }
    let because = match (runtime.task.runtime_status(), &world.place) {
        (Some(_), Ok(place)) => format!("its runtime is gone: there is none in the namespace {}", place.namespace),
        (Some(_), Err(_)) => "its runtime is gone".to_owned(),
        (None, _) => "it has no runtime".to_owned(),
    };
    let because = format!("{because}{}", absent_families(world));
    Some(RuleMatch::act(Action::Create, now, because).with_cause(Cause::Ordered))
}

fn incomplete(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let carrier = runtime.carrier()?;
    let missing = runtime.missing(carrier, world);
    let because = if let Some((kind, name)) = missing.first() {
        format!("its runtime lacks {kind} {name}")
    } else if is_shown(runtime, carrier) {
        return None;
    } else {
        format!("its status does not show its runtime{}", absent_families(world))
    };
    Some(complete(Action::Create, now, because))
}

/// True if the status names the carrier and says what state it is in.
fn is_shown(runtime: &TaskRuntime, carrier: &Carrier) -> bool {
    let shows = |status: RuntimeStatus| status != RuntimeStatus::Deleted;
    runtime.task.resource.as_ref().is_some_and(|resource| {
        let is_named = resource.name == carrier.name && resource.kind == carrier.kind.name();
        is_named && resource.status.is_some_and(shows)
    })
}

fn runtime_ready(subject: &Subject, _: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let carrier = runtime.carrier().filter(|carrier| carrier.is_ready())?;
    let is_creating = runtime.task.runtime_status() == Some(RuntimeStatus::Creating);
    let because = ready_pods(carrier);
    is_creating.then(|| complete(Action::Record(Record::Created), now, because))
}

/// When a runtime that is being created is looked into next.
fn next_look(runtime: &TaskRuntime, carrier: &Carrier, world: &World, now: Timestamp) -> Timestamp {
    let looked = runtime.diagnosis.as_ref().filter(|diagnosis| diagnosis.carrier_uid == carrier.uid);
    let since = looked.map(|diagnosis| diagnosis.at).or(carrier.created).unwrap_or(now);
    time::saturating_add(since, world.policy.creation_timeout)
}

fn creation_overdue(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    if runtime.task.runtime_status() != Some(RuntimeStatus::Creating) {
        return None;
    }
    let carrier = runtime.carrier()?;
    let due = next_look(runtime, carrier, world, now);
    (now >= due).then(|| ordered_at(due, Action::Warn, now, unready(runtime, carrier, now)))
}

fn unready(runtime: &TaskRuntime, carrier: &Carrier, now: Timestamp) -> String {
    let since = carrier.created.map_or_else(String::new, |at| format!(", created {}", time::ago(at, now)));
    let found = runtime.diagnosis.as_ref().filter(|diagnosis| diagnosis.carrier_uid == carrier.uid);
    let found = found.map_or_else(String::new, |diagnosis| format!(": {}", diagnosis.found));
    format!("{}{since}{found}", ready_pods(carrier))
}

fn ready_pods(carrier: &Carrier) -> String {
    let Carrier { ready, desired, .. } = carrier;
    let (pods, are) = (if *desired == 1 { "pod" } else { "pods" }, if *ready == 1 { "is" } else { "are" });
    format!("{ready} of {desired} {pods} of its runtime {are} ready")
}

fn creating(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    if runtime.task.runtime_status() != Some(RuntimeStatus::Creating) {
        return None;
    }
    let carrier = runtime.carrier()?;
    let look = next_look(runtime, carrier, world, now);
    let because = unready(runtime, carrier, now);
    Some(match retirement(runtime, world) {
        Some(due) if due < look => RuleMatch::wait(due, Action::Retire, because),
        _ => RuleMatch::wait(look, Action::Warn, because),
    })
}

/// When the runtime is retired if its round never starts.
fn retirement(runtime: &TaskRuntime, world: &World) -> Option<Timestamp> {
    Some(time::saturating_add(runtime.task.missed_deadline()?, world.grace(&runtime.task).ok()?))
}

fn running(subject: &Subject, world: &World, now: Timestamp) -> Found {
    let runtime = task_of(subject)?;
    let because = match runtime.carrier() {
        Some(carrier) => format!("its runtime {} runs", carrier.name),
        None => "it has no runtime".to_owned(),
    };
    Some(match retirement(runtime, world).filter(|due| *due > now) {
        Some(due) => RuleMatch::wait(due, Action::Retire, format!("{because}; its round has not started")),
        None => RuleMatch::nothing(because),
    })
}
