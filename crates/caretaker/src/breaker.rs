//! `caretaker breaker`: whether it is open, and closing it.

use anyhow::{Result, bail};
use caretaker_core::admit::{Ledger, Opened};
use caretaker_core::{Timestamp, time};
use caretaker_engine::state::{State, StateError};
use kube::Client;

use crate::cli::{Breaker, BreakerVerb};
use crate::live;
use crate::output::Answer;
use crate::scene;

/// The field manager of what a person orders.
pub const MANAGER: &str = "caretaker-cli";

/// Somebody else writes the state now and then; more often than this is something else.
const TRIES: usize = 5;

/// Shows it or closes it.
pub fn answer(args: &Breaker, now: Timestamp) -> Result<Answer> {
    if let Some(BreakerVerb::Reset { keeper }) = &args.verb {
        scene::keepers(Some(std::slice::from_ref(keeper)))?;
    }
    live::block_on(async {
        let client = Client::try_from(live::settings(&args.cluster).await?)?;
        let state = State::new(client, caretaker_namespaces::NAME, MANAGER);
        match &args.verb {
            None | Some(BreakerVerb::Show) => show(&state).await,
            Some(BreakerVerb::Reset { .. }) => reset(&state, now).await,
        }
    })
}

async fn show(state: &State) -> Result<Answer> {
    let ledger: Ledger = state.read().await?.value;
    let text = match (&ledger.open, ledger.looked) {
        (Some(opened), _) => format!("{}\n", sentence(opened)),
        (None, Some(looked)) => {
            format!("the breaker of namespaces is closed; a person closed it at {}\n", time::show(looked))
        }
        (None, None) => "the breaker of namespaces is closed\n".to_owned(),
    };
    Ok(Answer::text(text))
}

async fn reset(state: &State, now: Timestamp) -> Result<Answer> {
    for _ in 0..TRIES {
        let mut kept = state.read::<Ledger>().await?;
        let Some(opened) = kept.value.open.clone() else {
            return Ok(Answer::text("the breaker of namespaces was not open\n".to_owned()));
        };
        kept.value.close(now);
        match state.write(&mut kept).await {
            Ok(()) => {
                return Ok(Answer::text(format!(
                    "the breaker of namespaces is closed; it was open since {}: {}\n",
                    time::show(opened.since),
                    opened.because
                )));
            }
            Err(StateError::Conflict) => {}
            Err(e) => return Err(e.into()),
        }
    }
    bail!("the state is written faster than it can be closed; try again")
}

/// An open breaker, in a sentence.
#[must_use]
pub fn sentence(opened: &Opened) -> String {
    format!(
        "the breaker of namespaces is open since {}: {}; nothing is put to sleep or destroyed until it is closed with: caretaker breaker reset namespaces",
        time::show(opened.since),
        opened.because
    )
}
