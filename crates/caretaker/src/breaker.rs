//! `caretaker breaker`: whether it is open, and closing it.

use anyhow::{Result, bail};
use caretaker_core::limits::{Ledger, OpenBreaker};
use caretaker_core::{Timestamp, time};
use caretaker_engine::state::{State, StateError};
use kube::Client;

use crate::cli::{Breaker, BreakerVerb};
use crate::keepers::{self, ALL, Listed};
use crate::live;
use crate::output::Answer;

/// The field manager of what a person orders.
pub const MANAGER: &str = "caretaker-cli";

/// Somebody else writes the state now and then; more often than this is something else.
const TRIES: usize = 5;

/// Shows it or closes it.
pub fn answer(args: &Breaker, now: Timestamp) -> Result<Answer> {
    let meant = match &args.verb {
        None | Some(BreakerVerb::Show { keeper: None }) => ALL.to_vec(),
        Some(BreakerVerb::Show { keeper: Some(keeper) } | BreakerVerb::Reset { keeper }) => {
            vec![keepers::named(keeper)?]
        }
    };
    live::block_on(async {
        let client = Client::try_from(live::settings(&args.cluster).await?)?;
        let mut text = String::new();
        for keeper in meant.into_iter().map(Listed::name) {
            let state = State::new(client.clone(), keeper, MANAGER);
            let said = match &args.verb {
                None | Some(BreakerVerb::Show { .. }) => show(keeper, &state.read().await?.value),
                Some(BreakerVerb::Reset { .. }) => reset(keeper, &state, now).await?,
            };
            text.push_str(&(said + "\n"));
        }
        Ok(Answer::text(text))
    })
}

fn show(keeper: &str, ledger: &Ledger) -> String {
    match (&ledger.open, ledger.reset_at) {
        (Some(opened), _) => sentence(keeper, opened),
        (None, Some(looked)) => {
            format!("the breaker of {keeper} is closed; a person closed it at {}", time::format(looked))
        }
        (None, None) => format!("the breaker of {keeper} is closed"),
    }
}

async fn reset(keeper: &str, state: &State, now: Timestamp) -> Result<String> {
    for _ in 0..TRIES {
        let mut kept = state.read::<Ledger>().await?;
        let Some(opened) = kept.value.open.clone() else {
            return Ok(format!("the breaker of {keeper} was not open"));
        };
        kept.value.reset_breaker(now);
        match state.write(&mut kept).await {
            Ok(()) => {
                return Ok(format!(
                    "the breaker of {keeper} is closed; it was open since {}: {}",
                    time::format(opened.since),
                    opened.because
                ));
            }
            Err(StateError::Conflict) => {}
            Err(e) => return Err(e.into()),
        }
    }
    bail!("the state is written faster than it can be closed; try again")
}

/// An open breaker, in a sentence.
#[must_use]
pub fn sentence(keeper: &str, opened: &OpenBreaker) -> String {
    format!(
        "the breaker of {keeper} is open since {}: {}; nothing is taken away until it is closed with: caretaker breaker reset {keeper}",
        time::format(opened.since),
        opened.because
    )
}
