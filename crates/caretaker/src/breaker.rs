//! `caretaker breaker`: shows whether a breaker is open, and closes it.

use anyhow::{Result, bail};
use caretaker_core::limits::{Ledger, OpenBreaker};
use caretaker_core::{Timestamp, time};
use caretaker_engine::state::{StateError, StateStore};
use serde::Serialize;

use crate::cli::{BreakerArgs, BreakerCommand, TextOutput};
use crate::config::Config;
use crate::keepers;
use crate::live::{self, FIELD_MANAGER};
use crate::output::{Output, json, lines};

/// How often a conflict with another writer of the state is tried again.
const MAX_ATTEMPTS: usize = 5;

/// The exit code while a breaker is open.
const OPEN: u8 = 4;

/// A breaker, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    keeper: &'a str,
    open: bool,
    since: Option<Timestamp>,
    because: Option<&'a str>,
    /// When a person closed it last.
    reset_at: Option<Timestamp>,
}

/// Runs the command.
pub fn run(args: &BreakerArgs, now: Timestamp) -> Result<Output> {
    let by_name = |keeper: &str| Ok::<_, anyhow::Error>(keepers::by_name(&Config::default(), keeper)?.name());
    let names = match &args.command {
        Some(BreakerCommand::Reset { keeper }) => {
            let keeper = by_name(keeper)?;
            return live::block_on(async {
                let state = StateStore::config_map(live::client(&args.cluster).await?, FIELD_MANAGER);
                Ok(Output::text(reset(keeper, &state, now).await? + "\n"))
            });
        }
        Some(BreakerCommand::Show { keeper: Some(keeper) }) => vec![by_name(keeper)?],
        None | Some(BreakerCommand::Show { keeper: None }) => keepers::names(),
    };
    live::block_on(async {
        let state = StateStore::config_map(live::client(&args.cluster).await?, FIELD_MANAGER);
        let mut ledgers: Vec<(&str, Ledger)> = Vec::new();
        for keeper in names {
            ledgers.push((keeper, state.read(keeper).await?.value));
        }
        let code = if ledgers.iter().any(|(_, ledger)| ledger.open.is_some()) { OPEN } else { 0 };
        let text = match args.output {
            TextOutput::Text => lines(ledgers.iter().map(|(keeper, ledger)| show(keeper, ledger))),
            TextOutput::Json => json(&ledgers.iter().map(|(keeper, ledger)| row(keeper, ledger)).collect::<Vec<_>>())?,
        };
        Ok(Output { text, notes: Vec::new(), code })
    })
}

fn row<'a>(keeper: &'a str, ledger: &'a Ledger) -> Row<'a> {
    let open = ledger.open.as_ref();
    Row {
        keeper,
        open: open.is_some(),
        since: open.map(|open| open.since),
        because: open.map(|open| open.because.as_str()),
        reset_at: ledger.reset_at,
    }
}

/// False for a keeper that never has one, whatever the settings say.
fn has_breaker(keeper: &str) -> bool {
    keepers::by_name(&Config::default(), keeper).is_ok_and(|keeper| keeper.limits().breaker.is_some())
}

fn show(keeper: &str, ledger: &Ledger) -> String {
    match (&ledger.open, ledger.reset_at) {
        (Some(open), _) => describe(keeper, open),
        (None, Some(reset_at)) => {
            format!("the breaker of {keeper} is closed; a person closed it at {}", time::format(reset_at))
        }
        (None, None) if !has_breaker(keeper) => {
            format!("{keeper} has no breaker: what it does is ordered, by a schedule or by a person")
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
