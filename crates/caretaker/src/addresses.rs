//! `caretaker addresses`: what each pool holds, and the definitions of Spiderpool's resources.

use anyhow::Result;
use caretaker_addresses::api::crds;
use caretaker_addresses::report::{Line, lines};
use caretaker_core::Timestamp;

use crate::cli::{Addresses, AddressesVerb, Report, TextOutput};
use crate::keepers;
use crate::output::{Answer, cell, columns, json};
use crate::scene::Scene;

/// Answers it.
pub fn answer(args: &Addresses, now: Timestamp) -> Result<Answer> {
    match &args.verb {
        AddressesVerb::Report(args) => report(args, now),
        AddressesVerb::Crds => {
            let texts: Result<Vec<String>, _> = crds().iter().map(serde_saphyr::to_string).collect();
            Ok(Answer::text(texts?.join("---\n")))
        }
    }
}

fn report(args: &Report, now: Timestamp) -> Result<Answer> {
    let at = args.at.unwrap_or(now);
    let scene = Scene::read_for(keepers::named(caretaker_addresses::NAME)?, &args.source)?;
    let Some(stage) = scene.stage::<caretaker_addresses::Addresses>() else {
        return Ok(scene.refused("the addresses keeper was not asked".to_owned()));
    };
    let lines = lines(&stage.subjects, &stage.judged(at));
    let text = match args.output {
        TextOutput::Json => json(&lines)?,
        TextOutput::Text => table(&lines),
    };
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

fn table(lines: &[Line]) -> String {
    let row = |line: &Line| {
        let free = line.size.saturating_sub(line.held.try_into().unwrap_or(u128::MAX));
        let drift = if line.drift == 0 { "-".to_owned() } else { format!("{:+}", line.drift) };
        let counts = [line.held, line.in_use, line.leaked, line.suspected, line.refused].map(|count| count.to_string());
        let [held, in_use, leaked, suspected, refused] = counts;
        let trouble = line.trouble.as_deref().map_or_else(|| "-".to_owned(), cell);
        let (pool, size, free) = (line.pool.clone(), line.size.to_string(), free.to_string());
        [pool, size, held, free, in_use, leaked, suspected, refused, drift, trouble]
    };
    let head = ["POOL", "SIZE", "HELD", "FREE", "IN USE", "LEAKED", "SUSPECTED", "REFUSED", "COUNT DRIFT", "TROUBLE"];
    let mut text = columns(head, lines.iter().map(row).collect());
    let sum = |of: fn(&Line) -> usize| lines.iter().map(of).sum::<usize>();
    text.push_str(&format!(
        "\n{} {}: {} addresses held, {} leaked, {} suspected, {} refused\n",
        lines.len(),
        if lines.len() == 1 { "pool" } else { "pools" },
        sum(|line| line.held),
        sum(|line| line.leaked),
        sum(|line| line.suspected),
        sum(|line| line.refused)
    ));
    text
}
