//! `caretaker plan`: what would happen now, and what comes next.

use anyhow::Result;
use caretaker_core::Timestamp;

use crate::cli::{PlanArgs, PlanOutput};
use crate::nodes::{self, Nodes};
use crate::output::plan::{PlanRow, show};
use crate::output::{Output, json};
use crate::snapshot::{Snapshot, UseState, Wanted};

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
    let mut rows = rows(&snapshot, namespace, at);
    // Containers are in no namespace of Kubernetes.
    let nodes = if namespace.is_none() { Nodes::read(&args.input, &of_nodes, now)? } else { Nodes::default() };
    rows.extend(nodes.rows());
    snapshot.notes.extend_from_slice(nodes.notes());
    let text = match args.output {
        PlanOutput::Json => json(&rows)?,
        PlanOutput::Yaml => serde_saphyr::to_string(&rows)?,
        PlanOutput::Table | PlanOutput::Wide => {
            show(rows, nodes.unlisted(), args.output == PlanOutput::Wide, at) + &nodes.show(now)
        }
    };
    Ok(snapshot.output(text))
}

/// The rows of all keepers.
pub(crate) fn rows(snapshot: &Snapshot, namespace: Option<&str>, at: Timestamp) -> Vec<PlanRow> {
    snapshot.keepers.iter().flat_map(|keeper| keeper.plan(namespace, at)).collect()
}
