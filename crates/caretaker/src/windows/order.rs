//! `caretaker suspend`, `caretaker resume` and `caretaker reconcile --once`: what a person orders about Flux objects.
//!
//! Each object is an order of its own: one that fails does not keep the others from being carried out.

use anyhow::{Result, anyhow};
use caretaker_core::window::Window;
use caretaker_core::{Timestamp, time};
use caretaker_windows::api::FluxKind;
use caretaker_windows::manual::{OrderError, Ordered, Orders, Suspension};
use caretaker_windows::state::EffectiveState;

use super::kinds::{Words, check_name};
use super::wait::{Goal, until_reconciled};
use super::{Session, short_revision};
use crate::cli::{ObjectsArgs, ReconcileArgs, ResumeArgs, SuspendArgs};
use crate::config::did_you_mean;
use crate::live;
use crate::output::{Output, sanitize_line};

/// Suspends objects.
pub fn suspend(args: &SuspendArgs) -> Result<Output> {
    let SuspendArgs { objects, during, reason, until } = args;
    let targets = match Targets::parse(objects) {
        Ok(targets) => targets,
        Err(wrong) => return Ok(wrong_command_line(wrong)),
    };
    live::block_on(async {
        let session = Session::open(&objects.session).await?;
        if let Some(during) = during {
            let zone = &session.world.policy.zone;
            let window = Window::parse(during, zone).map_err(|error| anyhow!("--during {during:?}: {error}"))?;
            for warning in window.warnings() {
                progress('!', &format!("the window {warning}"));
            }
        }
        if let Some(until) = until.filter(|until| *until <= session.now) {
            return Err(anyhow!("--until {}: that time is over; write one to come", time::format(until)));
        }
        let runs = live::keeper_runs(&session.client, caretaker_windows::NAME, session.now).await;
        let order = Suspension { during: during.clone(), reason: reason.clone(), until: *until };
        let orders = targets.orders(&session).await?;
        let names = targets.names(&orders).await?;
        let mut failed = names.is_empty();
        for name in &names {
            progress('►', &format!("suspending {} {name} in {} namespace", targets.word(), targets.namespace));
            match orders.suspend(name, &order, runs != Some(false)).await {
                Ok(done) => progress('✔', &suspended(&done, &orders, session.now, targets.word())),
                Err(error) => failed |= targets.report("suspending", name, &error),
            }
        }
        if runs == Some(false) && !failed && (during.is_some() || until.is_some()) {
            let what = if during.is_some() { "suspends them in the window" } else { "ends that" };
            progress('!', &format!("no operator runs with the windows keeper: nothing {what} until one does"));
        }
        Ok(output(session.notes, failed))
    })
}

/// What became of it, and what the user should know.
fn suspended(done: &Ordered, orders: &Orders, now: Timestamp, word: &str) -> String {
    notes(done);
    let state = EffectiveState::of(&done.object, &orders.world, now);
    match (state.is_suspended(), state.next) {
        (true, Some(next)) => format!("{word} suspended until {}", time::format(next.at)),
        (true, None) => format!("{word} suspended"),
        (false, Some(next)) => format!("{word} suspended from {}", time::format(next.at)),
        (false, None) => format!("{word} not suspended: its window does not open any more"),
    }
}

/// Resumes objects.
pub fn resume(args: &ResumeArgs) -> Result<Output> {
    let ResumeArgs { objects, wait, timeout } = args;
    let targets = match Targets::parse(objects) {
        Ok(targets) => targets,
        Err(wrong) => return Ok(wrong_command_line(wrong)),
    };
    live::block_on(async {
        let session = Session::open(&objects.session).await?;
        let orders = targets.orders(&session).await?;
        let names = targets.names(&orders).await?;
        let mut failed = names.is_empty();
        let waits = (*wait || (names.len() == 1 && !objects.all)) && orders.kind.has_status;
        let mut resumed = Vec::new();
        for name in &names {
            progress('►', &format!("resuming {} {name} in {} namespace", targets.word(), targets.namespace));
            match orders.resume(name).await {
                Ok(done) => {
                    notes(&done);
                    progress('✔', &format!("{} resumed", targets.word()));
                    resumed.push((name, done.generation));
                }
                Err(error) => failed |= targets.report("resuming", name, &error),
            }
        }
        for (name, generation) in resumed.into_iter().filter(|_| waits) {
            let kind = orders.kind.kind;
            progress('◎', &format!("waiting for {kind} {name} reconciliation"));
            match until_reconciled(orders.api.clone(), name, generation, Goal::Ready, *timeout).await {
                Ok(message) => reconciled(kind, name, &message),
                Err(why) => failed |= targets.fail("resuming", name, &why),
            }
        }
        Ok(output(session.notes, failed))
    })
}

/// Lets one reconciliation through.
pub fn reconcile(args: &ReconcileArgs) -> Result<Output> {
    let ReconcileArgs { objects, timeout, once: _ } = args;
    let targets = match Targets::parse(objects) {
        Ok(targets) if targets.names.len() == 1 && !objects.all => targets,
        Ok(_) => return Ok(wrong_command_line("name one object: one reconciliation is let through".to_owned())),
        Err(wrong) => return Ok(wrong_command_line(wrong)),
    };
    let name = &targets.names[0];
    live::block_on(async {
        let session = Session::open(&objects.session).await?;
        let orders = targets.orders(&session).await?;
        if !orders.kind.has_status {
            return Err(anyhow!("{} {name}: Flux does not reconcile objects of this kind", targets.word()));
        }
        // Distinct for each command, as two of them within a second are two requests.
        let token = session.now.to_string();
        let deadline = time::saturating_add(session.now, *timeout);
        progress('►', &format!("reconciling {} {name} in {} namespace once", targets.word(), targets.namespace));
        let (done, is_inside) = match orders.let_through(name, &token, deadline).await {
            Ok(done) => done,
            Err(error) => return Ok(output(session.notes, targets.report("reconciling", name, &error))),
        };
        progress('✔', if is_inside { "let through inside its window" } else { "no window suspends it" });
        let kind = orders.kind.kind;
        progress('◎', &format!("waiting for {kind} {name} reconciliation"));
        let wait = until_reconciled(orders.api.clone(), name, done.generation, Goal::Handled(&token), *timeout);
        let ended = tokio::select! {
            ended = wait => ended,
            _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
        };
        let mut failed = false;
        match ended {
            Ok(message) => reconciled(kind, name, &message),
            Err(why) => failed = targets.fail("reconciling", name, &why),
        }
        if is_inside {
            match orders.hold_again(name, session.time()).await {
                Ok(done) => {
                    notes(&done);
                    let word = if done.object.is_held() { "suspended again" } else { "resumed: its window is over" };
                    progress('✔', &format!("{} {word}", targets.word()));
                }
                Err(error) => failed |= targets.report("suspending", name, &error),
            }
        }
        Ok(output(session.notes, failed))
    })
}

/// Objects of one kind in one namespace.
struct Targets {
    kind: &'static FluxKind,
    names: Vec<String>,
    namespace: String,
}

impl Targets {
    fn parse(args: &ObjectsArgs) -> Result<Self, String> {
        let (kind, names) = Words::parse_one(&args.words)?;
        let word = kind.aliases[0];
        match (names.is_empty(), args.all) {
            (true, false) => return Err(format!("which {word}? Name it, or use --all")),
            (false, true) => return Err("names and --all exclude each other; leave one out".to_owned()),
            _ => {}
        }
        check_name("the namespace", &args.namespace)?;
        Ok(Self { kind, names, namespace: args.namespace.clone() })
    }

    /// The kind in lower case.
    fn word(&self) -> &'static str {
        self.kind.aliases[0]
    }

    async fn orders(&self, session: &Session) -> Result<Orders> {
        let resource = session.served_kind(self.kind).await?;
        Ok(Orders {
            api: session.api(&resource, Some(&self.namespace)),
            resource,
            kind: self.kind,
            world: session.world.clone(),
            by: session.user.clone(),
            now: session.now,
        })
    }

    /// The names of the command line, or all names.
    async fn names(&self, orders: &Orders) -> Result<Vec<String>> {
        if !self.names.is_empty() {
            return Ok(self.names.clone());
        }
        let names = orders.names().await.map_err(|error| anyhow!("{} in {}: {error}", self.word(), self.namespace))?;
        if names.is_empty() {
            progress('✗', &format!("no {} in {} namespace; choose another with -n", self.word(), self.namespace));
        }
        Ok(names)
    }

    /// Prints why an order failed. Returns true: it failed.
    fn report(&self, verb: &str, name: &str, error: &OrderError) -> bool {
        let hint = match error {
            OrderError::NotFound { existing } => {
                let near = did_you_mean(name, existing.iter().map(String::as_str));
                if near.is_empty() { "; is it in another namespace? Choose one with -n".to_owned() } else { near }
            }
            _ => String::new(),
        };
        self.fail(verb, name, &format!("{error}{hint}"))
    }

    fn fail(&self, verb: &str, name: &str, why: &str) -> bool {
        progress('✗', &format!("{verb} {} {name} in {} namespace: {why}", self.word(), self.namespace));
        true
    }
}

fn reconciled(kind: &str, name: &str, message: &str) {
    progress('✔', &format!("{kind} {name} reconciliation completed"));
    if !message.is_empty() {
        let words: Vec<String> = message.split(' ').map(short_revision).collect();
        progress('✔', &words.join(" "));
    }
}

fn notes(done: &Ordered) {
    for note in &done.notes {
        progress('!', note);
    }
}

/// A line as flux prints it, on standard error.
fn progress(mark: char, text: &str) {
    eprintln!("{mark} {}", sanitize_line(text));
}

fn output(notes: Vec<String>, failed: bool) -> Output {
    Output { text: String::new(), notes, code: u8::from(failed) }
}

fn wrong_command_line(why: String) -> Output {
    const WRONG: u8 = 2;
    Output { text: String::new(), notes: vec![why], code: WRONG }
}
