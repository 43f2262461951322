//! `caretaker runtimes`: the runtime of each task, and the definitions of kdoctor's resources.

use anyhow::{Result, bail};
use caretaker_core::Timestamp;
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::api::crds;
use caretaker_runtimes::report::{ORPHAN, RuntimeLine, lines};

use crate::cli::{RuntimesArgs, RuntimesCommand, TextOutput};
use crate::live;
use crate::output::watched::{GrowingTable, Watched};
use crate::output::{Output, Table, json};
use crate::snapshot::{self, Shown, Snapshot, UseState, Wanted};

/// Runs the command.
pub fn run(args: &RuntimesArgs, now: Timestamp) -> Result<Output> {
    if let Some(RuntimesCommand::Crds) = args.command {
        let texts: Result<Vec<String>, _> = crds().iter().map(serde_saphyr::to_string).collect();
        return Ok(Output::text(texts?.join("---\n")));
    }
    if args.watch {
        return live::block_on(live::watch(watch(args)));
    }
    let at = args.at.unwrap_or(now);
    let snapshot = Snapshot::load(&args.input, &WANTED, UseState::Current, at)?;
    let Some(runtimes) = snapshot.keeper::<Runtimes>() else {
        return Ok(snapshot.not_found("the runtimes keeper is not used".to_owned()));
    };
    let all = lines(&runtimes.subjects, &runtimes.world(at), at);
    let text = match args.output {
        TextOutput::Json => json(&all)?,
        TextOutput::Text => table(&all, at).show(),
    };
    Ok(snapshot.output(text))
}

const WANTED: Wanted<'static> = Wanted::Only(caretaker_runtimes::NAME);

/// Shows the runtimes, and each of them again that is not as it was shown.
async fn watch(args: &RuntimesArgs) -> Result<()> {
    let client = live::client(&args.input.cluster).await?;
    let (mut watched, mut growing) = (Watched::default(), GrowingTable::default());
    let follow = snapshot::follow(&client, &args.input, &WANTED, async |snapshot, now| {
        let Some(runtimes) = snapshot.keeper::<Runtimes>() else { bail!("the runtimes keeper is not used") };
        let all = lines(&runtimes.subjects, &runtimes.world(now), now);
        let next = all.iter().filter_map(|line| line.retires_at).filter(|at| *at >= now).min();
        let row = |line: RuntimeLine| {
            let compared = RuntimeLine { because: String::new(), ..line.clone() };
            // A task has one line; of carriers without a task there may be several.
            let carrier = line.runtime.clone().filter(|_| line.state == ORPHAN);
            ((line.task.clone(), carrier), compared, line)
        };
        let changed = watched.update(all.into_iter().map(row).collect(), |_, _| true, gone);
        let text = match args.output {
            TextOutput::Json => {
                changed.iter().map(|line| Ok(serde_json::to_string(line)? + "\n")).collect::<Result<_>>()?
            }
            TextOutput::Text => growing.show(table(&changed, now)),
        };
        Ok(Shown { text, next, ..Shown::default() })
    });
    follow.await
}

/// The last line of a runtime.
fn gone(line: RuntimeLine) -> RuntimeLine {
    RuntimeLine { state: "gone", ready: 0, desired: 0, retires_at: None, ..line }
}

fn table(all: &[RuntimeLine], at: Timestamp) -> Table {
    let row = |line: &RuntimeLine| {
        let runtime = line.runtime.clone().unwrap_or_else(|| "-".to_owned());
        let pods = format!("{}/{}", line.ready, line.desired);
        [line.task.clone(), runtime, line.state.to_owned(), pods, line.retires_in(at)]
    };
    let titles = ["TASK", "RUNTIME", "STATE", "READY/DESIRED", "RETIRES IN"];
    Table { dispensable: &["RUNTIME"], ..Table::new(titles, all.iter().map(row).collect()) }
}
