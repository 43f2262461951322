//! `caretaker sleep` and `caretaker wake`: what a person orders.
//!
//! The namespaces keeper writes the order to the namespace, where the operator reads it, and carries it out
//! at once. It does not matter whether the command or the operator comes first. The time is that of the API
//! server, whatever the clock of this machine shows.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use caretaker_core::{Timestamp, time};
use caretaker_engine::Context;
use caretaker_engine::caller::current_user_and_time;
use caretaker_engine::clock::Clock;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::manual::{Order, OrderError, execute};

use crate::cli::SleepWakeArgs;
use crate::live::{self, OperatorConfigMaps};
use crate::output::{Output, lines, sanitize_cell};
use crate::snapshot::{no_namespace, resolve_config};

/// Puts a namespace to sleep.
pub fn sleep(args: &SleepWakeArgs) -> Result<Output> {
    run(args, |until, _| {
        let how_long = until
            .map_or_else(|| "until it is woken manually".to_owned(), |until| format!("until {}", time::format(until)));
        (Order::Sleep { until }, format!("asleep {how_long}"))
    })
}

/// Wakes a namespace.
pub fn wake(args: &SleepWakeArgs) -> Result<Output> {
    run(args, |until, user| {
        let how_long = until.map_or_else(
            || "as long as its labels say".to_owned(),
            |until| format!("at least until {}", time::format(until)),
        );
        (Order::Wake { until, user }, format!("awake {how_long}"))
    })
}

/// Carries out the order of this user, which ends at a time; also given is the state of the namespace afterwards.
fn run(args: &SleepWakeArgs, order: impl FnOnce(Option<Timestamp>, String) -> (Order, String)) -> Result<Output> {
    let SleepWakeArgs { namespace, dry_run, .. } = args;
    live::block_on(async {
        let client = live::client(&args.cluster).await?;
        let (operator, notes) = OperatorConfigMaps::read(&client).await;
        let config = resolve_config(args.config.as_deref(), &operator)?;
        let keeper = Arc::new(Namespaces::new(config.namespaces_policy(), None));
        let (user, now) = current_user_and_time(&client, crate::now).await;
        let until = args.length.map(|length| time::saturating_add(now, length));
        let (order, result) = order(until, user);
        let clock = Clock::accelerated(now, 1.0).in_zone(config.zone());
        let context = Context { clock, ..live::command_context(client, *dry_run) };
        let done = execute(&keeper, &context, namespace, &order).await;
        let steps = done.map_err(|error| match error {
            OrderError::NotFound { name, existing } => {
                anyhow!(no_namespace(&name, existing.iter().map(String::as_str)))
            }
            other => other.into(),
        })?;
        let would_be = if *dry_run { "would be " } else { "" };
        let steps = lines(steps.iter().map(|step| format!("  {}", sanitize_cell(step))));
        Ok(Output { text: format!("namespace {namespace}: {would_be}{result}\n{steps}"), notes, code: 0 })
    })
}
