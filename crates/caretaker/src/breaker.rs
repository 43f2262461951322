//! `caretaker breaker`: shows whether a breaker is open, and closes it.

use anyhow::{Result, bail};
use caretaker_core::limits::{Ledger, OpenBreaker};
use caretaker_core::{Timestamp, time};
use caretaker_engine::state::{StateError, StateStore};

use crate::cli::{BreakerArgs, BreakerCommand};
use crate::config::Config;
use crate::keepers;
use crate::live::{self, FIELD_MANAGER};
use crate::output::Output;

/// How often a conflict with another writer of the state is tried again.
const MAX_ATTEMPTS: usize = 5;

/// Runs the command.
pub fn run(args: &BreakerArgs, now: Timestamp) -> Result<Output> {
    let names = match &args.command {
        None | Some(BreakerCommand::Show { keeper: None }) => keepers::names(),
        Some(BreakerCommand::Show { keeper: Some(keeper) } | BreakerCommand::Reset { keeper }) => {
            vec![keepers::by_name(&Config::default(), keeper)?.name()]
        }
    };
    live::block_on(async {
        let state = StateStore::config_map(live::client(&args.cluster).await?, FIELD_MANAGER);
        let mut text = String::new();
        for keeper in names {
            let line = match &args.command {
                None | Some(BreakerCommand::Show { .. }) => show(keeper, &state.read(keeper).await?.value),
                Some(BreakerCommand::Reset { .. }) => reset(keeper, &state, now).await?,
            };
            text.push_str(&(line + "\n"));
        }
        Ok(Output::text(text))
    })
}

fn show(keeper: &str, ledger: &Ledger) -> String {
    match (&ledger.open, ledger.reset_at) {
        (Some(open), _) => describe(keeper, open),
        (None, Some(reset_at)) => {
            format!("the breaker of {keeper} is closed; a person closed it at {}", time::format(reset_at))
        }
        (None, None) => format!("the breaker of {keeper} is closed"),
    }
}

async fn reset(keeper: &str, state: &StateStore, now: Timestamp) -> Result<String> {
    for _ in 0..MAX_ATTEMPTS {
        let mut ledger = state.read::<Ledger>(keeper).await?;
        let Some(open) = ledger.value.open.clone() else {
            return Ok(format!("the breaker of {keeper} was not open"));
        };
        ledger.value.reset_breaker(now);
        match state.write(keeper, &mut ledger).await {
            Ok(()) => {
                return Ok(format!(
                    "the breaker of {keeper} is closed; it was open since {}: {}",
                    time::format(open.since),
                    open.because
                ));
            }
            Err(StateError::Conflict { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    bail!("{} is written too often by others; try again", state.place())
}

/// An open breaker as a sentence.
#[must_use]
pub fn describe(keeper: &str, open: &OpenBreaker) -> String {
    format!(
        "the breaker of {keeper} is open since {}: {}; nothing is taken away until it is closed with: caretaker breaker reset {keeper}",
        time::format(open.since),
        open.because
    )
}
