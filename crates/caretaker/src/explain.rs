//! `caretaker explain`: every fact about one subject, and every rule that was tried on it.

use anyhow::Result;
use caretaker_core::Timestamp;

use crate::cli::{DocumentOutput, ExplainArgs};
use crate::config::Config;
use crate::failure::usage;
use crate::keepers::{self, KindNames};
use crate::output::{Output, json};
use crate::snapshot::{Snapshot, UseState, Wanted};

/// Runs the command.
pub fn run(args: &ExplainArgs, now: Timestamp) -> Result<Output> {
    let at = args.at.unwrap_or(now);
    let (keeper, kind, name) = parse_subject(&args.subject)?;
    let snapshot = Snapshot::load(&args.input, &Wanted::Only(keeper), UseState::Current, at)?;
    let explained = match snapshot.keepers.first() {
        Some(keeper) => keeper.explain(&kind, name, args.namespace.as_deref(), at),
        None => Err(format!("the keeper {keeper} has nothing to judge")),
    };
    let explanation = match explained {
        Ok(explanation) => explanation,
        Err(message) => return Ok(snapshot.not_found(message)),
    };
    let text = match args.output {
        DocumentOutput::Text => explanation.show(args.rules),
        DocumentOutput::Json => json(&explanation)?,
        DocumentOutput::Yaml => serde_saphyr::to_string(&explanation)?,
    };
    Ok(snapshot.output(text))
}

/// The name of the keeper that judges this kind, the kind, and the name of the subject.
fn parse_subject(words: &[String]) -> Result<(&'static str, KindNames, &str)> {
    let given = match words {
        [kind, name] if !kind.contains('/') => Some((kind.as_str(), name.as_str())),
        [word] => word.split_once('/'),
        _ => None,
    };
    let Some((given, name)) = given.filter(|(_, name)| !name.is_empty()) else {
        return Err(usage(format!("{:?} is not KIND/NAME; write for instance namespace/shop", words.join(" "))));
    };
    let alias = given.to_ascii_lowercase();
    let mut known = Vec::new();
    for keeper in keepers::keepers(&Config::default()) {
        for kind in keeper.kinds() {
            if kind.aliases.contains(&alias) {
                return Ok((keeper.name(), kind, name));
            }
            known.extend(kind.aliases.into_iter().next());
        }
    }
    if ["container", "containers"].contains(&alias.as_str()) {
        return Err(usage(format!("containers are judged on their node; run there: caretaker-node explain {name}")));
    }
    Err(usage(format!("no keeper judges a {given:?}; the kinds are {}", listed(&known))))
}

fn listed(kinds: &[String]) -> String {
    match kinds.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => kinds.concat(),
    }
}
