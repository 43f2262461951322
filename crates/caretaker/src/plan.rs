//! `caretaker plan`: what would happen now, and what comes next.

use anyhow::{Context as _, Result};
use caretaker_core::{Timestamp, VerdictKind};

use crate::cli::{PlanArgs, PlanOutput};
use crate::config::{Config, did_you_mean, suggest};
use crate::failure::usage;
use crate::nodes::{self, Nodes};
use crate::output::plan::{PlanRow, PlanView, show};
use crate::output::{Output, json};
use crate::snapshot::{Snapshot, UseState, Wanted};
use crate::{keepers, live};

/// Runs the command.
pub fn run(args: &PlanArgs, now: Timestamp) -> Result<Output> {
    let at = args.at.unwrap_or(now);
    let of_nodes = nodes::Wanted::by(&args.input)?;
    let mut snapshot = match &of_nodes.others {
        Some(input) => Snapshot::load(input, &Wanted::Selected, UseState::Current, at)?,
        None => Snapshot::default(),
    };
    let namespace = args.scope.namespace.as_deref();
    if let Some(message) = snapshot.missing_namespace(namespace) {
        return Ok(snapshot.not_found(message));
    }
    let mut rows = match &args.selector {
        Some(selector) => {
            let selected = live::block_on(async {
                let client = live::client(&args.input.cluster).await?;
                let found = live::namespaces_with(&client, selector).await;
                found.context("listing namespaces by their labels")
            })?;
            let of = |namespace: &String| rows(&snapshot, Some(namespace), at);
            selected.iter().filter(|name| namespace.is_none_or(|only| only == *name)).flat_map(of).collect()
        }
        None => rows(&snapshot, namespace, at),
    };
    // Containers are in no namespace of Kubernetes.
    let is_whole = namespace.is_none() && args.selector.is_none();
    let nodes = if is_whole { Nodes::read(&args.input, &of_nodes, now)? } else { Nodes::default() };
    rows.extend(nodes.rows());
    snapshot.notes.extend_from_slice(nodes.notes());
    let is_filtered = filter(&mut rows, args)?;
    let unlisted = if is_filtered { 0 } else { nodes.unlisted() };
    let text = match args.output {
        PlanOutput::Json => json(&rows)?,
        PlanOutput::Yaml => serde_saphyr::to_string(&rows)?,
        PlanOutput::Table | PlanOutput::Wide => {
            // Who asks for a rule, or for what has nothing to do, wants to see it.
            let (wide, all) = (args.output == PlanOutput::Wide, args.all || is_filtered);
            let table = show(rows, PlanView { wide, all, no_headers: args.no_headers, unlisted }, at);
            table + &if args.no_headers || is_filtered { String::new() } else { nodes.show(now) }
        }
    };
    Ok(snapshot.output(text))
}

/// Keeps the rows of `--next` and `--rule`; true if one of them was given. A word that no row can have is an error.
fn filter(rows: &mut Vec<PlanRow>, args: &PlanArgs) -> Result<bool> {
    if let Some(next) = &args.next {
        let kinds = VerdictKind::ALL.iter().map(|kind| kind.name());
        let all = keepers::keepers(&Config::default());
        let known: Vec<&str> = kinds.chain(all.iter().flat_map(|keeper| keeper.actions())).chain(["clean"]).collect();
        if !known.contains(&next.as_str()) {
            return Err(usage(format!("--next: nothing is {next:?}{}", suggest(next, &known))));
        }
        rows.retain(|row| row.next.name() == next || row.action.as_deref() == Some(next.as_str()));
    }
    if let Some(rule) = &args.rule {
        let all = keepers::keepers(&Config::default());
        let known: Vec<&str> = all.iter().flat_map(|keeper| keeper.rules()).collect();
        let is_known = known.contains(&rule.as_str()) || rows.iter().any(|row| row.rule == *rule);
        if !is_known {
            let near = did_you_mean(rule, known.into_iter());
            return Err(usage(format!("--rule: there is no rule {rule:?}{near} (caretaker rules lists them)")));
        }
        rows.retain(|row| row.rule == *rule);
    }
    Ok(args.next.is_some() || args.rule.is_some())
}

/// The rows of all keepers.
pub(crate) fn rows(snapshot: &Snapshot, namespace: Option<&str>, at: Timestamp) -> Vec<PlanRow> {
    snapshot.keepers.iter().flat_map(|keeper| keeper.plan(namespace, at)).collect()
}
