//! `caretaker addresses`: what each pool holds, and the definitions of Spiderpool's resources.

use anyhow::Result;
use caretaker_addresses::Addresses;
use caretaker_addresses::api::crds;
use caretaker_addresses::report::{PoolSummary, summarize};
use caretaker_core::Timestamp;
use caretaker_core::count::counted;

use crate::cli::{AddressesArgs, AddressesCommand, ReportArgs, TextOutput};
use crate::output::{Output, json, table};
use crate::snapshot::{Snapshot, UseState, Wanted};

/// Runs the command.
pub fn run(args: &AddressesArgs, now: Timestamp) -> Result<Output> {
    match &args.command {
        AddressesCommand::Report(args) => report(args, now),
        AddressesCommand::Crds => {
            let texts: Result<Vec<String>, _> = crds().iter().map(serde_saphyr::to_string).collect();
            Ok(Output::text(texts?.join("---\n")))
        }
    }
}

fn report(args: &ReportArgs, now: Timestamp) -> Result<Output> {
    let at = args.at.unwrap_or(now);
    let snapshot = Snapshot::load(&args.input, &Wanted::Only(caretaker_addresses::NAME), UseState::Current, at)?;
    let Some(addresses) = snapshot.keeper::<Addresses>() else {
        return Ok(snapshot.not_found("the addresses keeper is not used".to_owned()));
    };
    let pools = summarize(&addresses.subjects, &addresses.raw_verdicts(at));
    let text = match args.output {
        TextOutput::Json => json(&pools)?,
        TextOutput::Text => show(&pools),
    };
    Ok(snapshot.output(text))
}

fn show(pools: &[PoolSummary]) -> String {
    let row = |pool: &PoolSummary| {
        let free = pool.size.saturating_sub(pool.held.try_into().unwrap_or(u128::MAX));
        let drift = if pool.drift == 0 { "-".to_owned() } else { format!("{:+}", pool.drift) };
        let counts = [pool.held, pool.in_use, pool.leaked, pool.suspected, pool.refused].map(|count| count.to_string());
        let [held, in_use, leaked, suspected, refused] = counts;
        let error = pool.error.clone().unwrap_or_else(|| "-".to_owned());
        let (name, size, free) = (pool.pool.clone(), pool.size.to_string(), free.to_string());
        [name, size, held, free, in_use, leaked, suspected, refused, drift, error]
    };
    let titles = ["POOL", "SIZE", "HELD", "FREE", "IN USE", "LEAKED", "SUSPECTED", "REFUSED", "DRIFT", "ERROR"];
    let mut text = table(titles, pools.iter().map(row).collect());
    let sum = |of: fn(&PoolSummary) -> usize| pools.iter().map(of).sum::<usize>();
    text.push_str(&format!(
        "\n{}: {} held, {} leaked, {} suspected, {} refused\n",
        counted(pools.len(), "pool", "pools"),
        counted(sum(|pool| pool.held), "address", "addresses"),
        sum(|pool| pool.leaked),
        sum(|pool| pool.suspected),
        sum(|pool| pool.refused)
    ));
    text
}
