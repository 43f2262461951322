//! `caretaker sleep` and `caretaker wake`: what a person orders.
//!
//! The namespaces keeper writes the order to the namespace, where the operator reads it, and carries it out
//! at once. It does not matter whether the command or the operator comes first. The time is that of the API
//! server, whatever the clock of this machine shows.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use caretaker_core::{SignedDuration, Timestamp, time};
use caretaker_engine::Context;
use caretaker_engine::caller::current_user_and_time;
use caretaker_engine::clock::Clock;
use caretaker_engine::events::{Events, publish_all};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::manual::{Executed, Order, OrderError, OrderedBy, execute};
use kube::Client;
use serde::Serialize;

use crate::cli::{Command, OrderArgs, SleepArgs, TextOutput, WakeArgs};
use crate::failure::{self, SLEEPER_ROLE, usage};
use crate::live::{self, OperatorConfigMaps};
use crate::output::{Output, json, lines, sanitize_cell};
use crate::snapshot::{no_namespace, resolve_config};
use crate::windows::check_name;

/// Puts namespaces to sleep.
pub fn sleep(args: &SleepArgs, command: &Command) -> Result<Output> {
    run(&args.order, args.length, command, |until| {
        let how_long = until
            .map_or_else(|| "until it is woken manually".to_owned(), |until| format!("until {}", time::format(until)));
        (Order::Sleep { until }, format!("asleep {how_long}"))
    })
}

/// Wakes namespaces.
pub fn wake(args: &WakeArgs, command: &Command) -> Result<Output> {
    run(&args.order, args.length, command, |until| {
        let how_long = until.map_or_else(
            || "as long as its labels say".to_owned(),
            |until| format!("at least until {}", time::format(until)),
        );
        (Order::Wake { until }, format!("awake {how_long}"))
    })
}

/// What became of an order for one namespace, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    namespace: &'a str,
    /// The state that was reached; in a dry run the present one. Null if the order failed.
    state: Option<&'static str>,
    until: Option<Timestamp>,
    dry_run: bool,
    steps: &'a [String],
    error: Option<&'a str>,
}

/// Carries out the order of this user, which ends at a time; also given are the words for its result.
fn run(
    args: &OrderArgs,
    length: Option<SignedDuration>,
    command: &Command,
    order: impl FnOnce(Option<Timestamp>) -> (Order, String),
) -> Result<Output> {
    let given = names(&args.namespaces)?;
    live::block_on(async {
        let client = live::client(&args.cluster).await?;
        let (operator, mut notes) = OperatorConfigMaps::read(&client).await;
        let config = resolve_config(args.config.as_deref(), &operator)?;
        let keeper = Arc::new(Namespaces::new(config.namespaces_policy(), None));
        let (user, now) = current_user_and_time(&client, crate::now).await;
        let until = length.map(|length| time::saturating_add(now, length));
        let (order, result) = order(until);
        let clock = Clock::accelerated(now, 1.0).in_zone(config.zone());
        let names = match &args.selector {
            Some(selector) => selected(&client, selector).await?,
            None => given,
        };
        if names.is_empty() {
            notes.push("no namespace has these labels".to_owned());
        }
        let mut context = Context { clock, ..live::command_context(client.clone(), args.dry_run) };
        let (events, mut collected) = Events::collected(context.metrics.clone());
        if !args.dry_run {
            context.events = events;
            context.journal = live::journal(args.journal.as_ref(), std::io::sink())?;
        }
        let by = OrderedBy { user, reason: args.reason.clone() };
        let (mut text, mut rows, mut code) = (String::new(), Vec::new(), u8::from(names.is_empty()));
        let mut only_failure = None;
        for namespace in &names {
            match execute(&keeper, &context, namespace, &order, &by).await {
                Ok(done) => {
                    text.push_str(&show(namespace, &done, &result, &order, args.dry_run));
                    rows.push((namespace, Ok(done)));
                }
                Err(error) if names.len() == 1 => only_failure = Some(explained(error)),
                // One that fails does not keep the others from it.
                Err(error) => {
                    let error = failure::describe(&explained(error), command);
                    notes.push(error.clone());
                    rows.push((namespace, Err(error)));
                    code = 1;
                }
            }
        }
        // Also what failed half way is recorded.
        let unwritten = publish_all(client, live::FIELD_MANAGER, &mut collected).await;
        notes.extend(unwritten.into_iter().map(|why| format!("{why}; the ClusterRole {SLEEPER_ROLE} has the right")));
        if let Err(error) = context.journal.flush_pending() {
            notes.push(format!("the journal could not be written: {error}"));
        }
        if let Some(failure) = only_failure {
            return Err(failure);
        }
        if args.output == TextOutput::Json {
            let row = |(namespace, done): &'_ (&'_ String, Result<Executed, String>)| -> serde_json::Value {
                let (state, steps) = match done {
                    Ok(done) => (Some(done.state), done.steps.as_slice()),
                    Err(_) => (None, [].as_slice()),
                };
                let error = done.as_ref().err().map(String::as_str);
                serde_json::json!(Row { namespace, state, until, dry_run: args.dry_run, steps, error })
            };
            text = json(&rows.iter().map(row).collect::<Vec<_>>())?;
        }
        Ok(Output { text, notes, code })
    })
}

/// The state that was reached, and the steps that led to it here.
fn show(namespace: &str, done: &Executed, result: &str, order: &Order, dry_run: bool) -> String {
    let Executed { steps, state } = done;
    let wanted = if matches!(order, Order::Sleep { .. }) { "asleep" } else { "awake" };
    let head = match dry_run {
        true => format!("namespace {namespace}: would be {result}"),
        false if *state == wanted => format!("namespace {namespace}: {result}"),
        false => format!("namespace {namespace}: {state}; ordered: {result}"),
    };
    format!("{head}\n{}", lines(steps.iter().map(|step| format!("  {}", sanitize_cell(step)))))
}

fn explained(error: OrderError) -> anyhow::Error {
    match error {
        OrderError::NotFound { name, existing } => anyhow!(no_namespace(&name, existing.iter().map(String::as_str))),
        other => other.into(),
    }
}

/// The names that were typed, with or without `ns/`.
pub(crate) fn names(typed: &[String]) -> Result<Vec<String>> {
    let name = |word: &String| {
        let bare = match word.split_once('/') {
            Some(("ns" | "namespace" | "namespaces", name)) => name,
            Some((kind, _)) => {
                return Err(usage(format!("{word:?}: only namespaces can be named here, not a {kind:?}")));
            }
            None => word,
        };
        check_name("the namespace", bare).map_err(usage)?;
        Ok(bare.to_owned())
    };
    typed.iter().map(name).collect()
}

/// The namespaces with these labels.
async fn selected(client: &Client, selector: &str) -> Result<Vec<String>> {
    let found = live::namespaces_with(client, selector).await.context("listing namespaces by their labels")?;
    Ok(found.into_iter().collect())
}
