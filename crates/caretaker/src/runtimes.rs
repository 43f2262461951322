//! `caretaker runtimes`: the runtime of each task, and the definitions of kdoctor's resources.

use anyhow::Result;
use caretaker_core::Timestamp;
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::api::crds;
use caretaker_runtimes::report::{RuntimeLine, lines};

use crate::cli::{RuntimesArgs, RuntimesCommand, TextOutput};
use crate::output::{Output, Table, json};
use crate::snapshot::{Snapshot, UseState, Wanted};

/// Runs the command.
pub fn run(args: &RuntimesArgs, now: Timestamp) -> Result<Output> {
    if let Some(RuntimesCommand::Crds) = args.command {
        let texts: Result<Vec<String>, _> = crds().iter().map(serde_saphyr::to_string).collect();
        return Ok(Output::text(texts?.join("---\n")));
    }
    let at = args.at.unwrap_or(now);
    let snapshot = Snapshot::load(&args.input, &Wanted::Only(caretaker_runtimes::NAME), UseState::Current, at)?;
    let Some(runtimes) = snapshot.keeper::<Runtimes>() else {
        return Ok(snapshot.not_found("the runtimes keeper is not used".to_owned()));
    };
    let all = lines(&runtimes.subjects, &runtimes.world(at), at);
    let text = match args.output {
        TextOutput::Json => json(&all)?,
        TextOutput::Text => show(&all, at),
    };
    Ok(snapshot.output(text))
}

fn show(all: &[RuntimeLine], at: Timestamp) -> String {
    let row = |line: &RuntimeLine| {
        let runtime = line.runtime.clone().unwrap_or_else(|| "-".to_owned());
        let pods = format!("{}/{}", line.ready, line.desired);
        [line.task.clone(), runtime, line.state.to_owned(), pods, line.retires_in(at)]
    };
    let titles = ["TASK", "RUNTIME", "STATE", "READY/DESIRED", "RETIRES IN"];
    Table { dispensable: &["RUNTIME"], ..Table::new(titles, all.iter().map(row).collect()) }.show()
}
