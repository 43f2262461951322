//! `caretaker plan`: what would happen now, and what comes next.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use caretaker_core::count::counted;
use caretaker_core::{SignedDuration, Timestamp, VerdictKind, time};
use caretaker_engine::permissions::lease_name;
use caretaker_engine::state;
use caretaker_namespaces::Namespaces;
use caretaker_windows::Windows;
use kube::Client;

use crate::cli::{InputArgs, PlanArgs, PlanOutput};
use crate::config::{Config, did_you_mean, suggest};
use crate::failure::usage;
use crate::nodes::{self, Nodes};
use crate::output::plan::{PlanRow, PlanView, WatchedPlan, show};
use crate::output::{Output, json};
use crate::snapshot::{self, Shown, Snapshot, UseState, Wanted};
use crate::{keepers, live};

/// Runs the command.
pub fn run(args: &PlanArgs, now: Timestamp) -> Result<Output> {
    if args.watch {
        return live::block_on(live::watch(watch(args)));
    }
    let at = args.at.unwrap_or(now);
    let of_nodes = nodes::Wanted::by(&args.input)?;
    let mut snapshot = match &of_nodes.others {
        Some(input) => Snapshot::load(input, &Wanted::Selected, UseState::Current, at)?,
        None => Snapshot::default(),
    };
    if let Some(message) = snapshot.missing_namespace(args.scope.namespace.as_deref()) {
        return Ok(snapshot.not_found(message));
    }
    let selected = match &args.selector {
        Some(_) => live::block_on(async { selected(args, &live::client(&args.input.cluster).await?).await })?,
        None => None,
    };
    let mut rows = rows_in(args, &snapshot, selected.as_ref(), at);
    let nodes = if is_whole(args) { Nodes::read(&args.input, &of_nodes, now)? } else { Nodes::default() };
    rows.extend(nodes.rows());
    snapshot.notes.extend_from_slice(nodes.notes());
    if settings_decide(args) && !snapshot.keepers.is_empty() {
        let off = live::block_on(async {
            let client = live::client(&args.input.cluster).await?;
            Ok(keepers_that_are_off(&client, &snapshot).await)
        });
        snapshot.notes.extend(off?);
    }
    if args.input.from.is_none() {
        let stranded = live::block_on(async {
            let client = live::client(&args.input.cluster).await?;
            Ok(without_an_operator(&client, &snapshot, now).await)
        });
        snapshot.notes.splice(0..0, stranded?);
    }
    check_words(args, &rows)?;
    rows.retain(|row| matches(args, row));
    let is_filtered = is_filtered(args);
    let unlisted = if is_filtered { 0 } else { nodes.unlisted() };
    let text = match args.output {
        PlanOutput::Json => json(&rows)?,
        PlanOutput::Yaml => serde_saphyr::to_string(&rows)?,
        PlanOutput::Table | PlanOutput::Wide => {
            let table = show(rows, PlanView { unlisted, ..view(args) }, at);
            table + &if args.no_headers || is_filtered { String::new() } else { nodes.show(now) }
        }
    };
    let mut output = snapshot.output(text);
    output.code = output.code.max(if nodes.is_partly_unread() { 3 } else { 0 });
    Ok(output)
}

fn view(args: &PlanArgs) -> PlanView {
    // Who asks for a rule, or for what has nothing to do, wants to see it.
    let (wide, all) = (args.output == PlanOutput::Wide, args.all || is_filtered(args));
    PlanView { wide, all, no_headers: args.no_headers, unlisted: 0 }
}

/// How often the reports of nodes are read while a plan is watched.
const REPORT_INTERVAL: SignedDuration = SignedDuration::from_secs(30);

/// Shows the plan, and each row again that is not as it was shown.
async fn watch(args: &PlanArgs) -> Result<()> {
    let client = live::client(&args.input.cluster).await?;
    let of_nodes = nodes::Wanted::by(&args.input)?;
    let input =
        of_nodes.others.clone().unwrap_or_else(|| InputArgs { keepers: Some(Vec::new()), ..args.input.clone() });
    let (mut plan, mut nodes) = (WatchedPlan::default(), None::<(Nodes, Timestamp)>);
    let follow = snapshot::follow(&client, &input, &Wanted::Selected, async |snapshot, now| {
        if let Some(message) = snapshot.missing_namespace(args.scope.namespace.as_deref()) {
            bail!(message);
        }
        let (is_first, mut messages) = (nodes.is_none(), Vec::new());
        if nodes.as_ref().is_none_or(|(_, read)| time::duration_between(*read, now) >= REPORT_INTERVAL) {
            let read = if is_whole(args) { Nodes::read_live(&client, &of_nodes, now).await } else { Nodes::default() };
            messages.extend_from_slice(read.notes());
            nodes = Some((read, now));
        }
        let mut rows = rows_in(args, snapshot, selected(args, &client).await?.as_ref(), now);
        rows.extend(nodes.iter().flat_map(|(nodes, _)| nodes.rows()));
        if is_first {
            check_words(args, &rows)?;
            if settings_decide(args) {
                messages.extend(keepers_that_are_off(&client, snapshot).await);
            }
            messages.extend(without_an_operator(&client, snapshot, now).await);
        }
        let deadlines = rows.iter().filter(|row| row.next == VerdictKind::Wait).filter_map(|row| row.at);
        let reports = time::saturating_add(now, REPORT_INTERVAL);
        let next = deadlines.filter(|at| *at >= now).chain(is_whole(args).then_some(reports)).min();
        let view = view(args);
        let changed = plan.changed(rows, view.all, |row| matches(args, row));
        let text = match args.output {
            PlanOutput::Json => {
                changed.iter().map(|row| Ok(serde_json::to_string(row)? + "\n")).collect::<Result<_>>()?
            }
            PlanOutput::Yaml => {
                let documents = changed.iter().map(|row| Ok(format!("---\n{}", serde_saphyr::to_string(row)?)));
                documents.collect::<Result<_>>()?
            }
            PlanOutput::Table | PlanOutput::Wide => plan.show(&changed, view, now),
        };
        Ok(Shown { text, notes: messages, next })
    });
    follow.await
}

/// Containers are in no namespace of Kubernetes: they are shown where nothing is selected.
fn is_whole(args: &PlanArgs) -> bool {
    args.scope.namespace.is_none() && args.selector.is_none()
}

/// The namespaces with the labels of the command line; `None` if it asks for none.
async fn selected(args: &PlanArgs, client: &Client) -> Result<Option<BTreeSet<String>>> {
    let Some(selector) = &args.selector else { return Ok(None) };
    let found = live::namespaces_with(client, selector).await;
    Ok(Some(found.context("listing namespaces by their labels")?))
}

/// The rows of the namespaces that are asked for.
fn rows_in(args: &PlanArgs, snapshot: &Snapshot, selected: Option<&BTreeSet<String>>, at: Timestamp) -> Vec<PlanRow> {
    let namespace = args.scope.namespace.as_deref();
    let Some(selected) = selected else { return rows(snapshot, namespace, at) };
    let wanted = selected.iter().filter(|name| namespace.is_none_or(|only| only == *name));
    wanted.flat_map(|namespace| rows(snapshot, Some(namespace), at)).collect()
}

fn is_filtered(args: &PlanArgs) -> bool {
    args.next.is_some() || args.rule.is_some()
}

/// True for the rows of `--next` and `--rule`. A record counts as itself and as what it leads to.
fn matches(args: &PlanArgs, row: &PlanRow) -> bool {
    let leads_to = row.then.as_ref().filter(|_| row.action.as_deref() == Some("record")).map(|then| then.action);
    let is_next = |next: &String| {
        row.next.name() == next || row.action.as_deref() == Some(next.as_str()) || leads_to == Some(next.as_str())
    };
    args.next.as_ref().is_none_or(is_next) && args.rule.as_ref().is_none_or(|rule| row.rule == *rule)
}

/// A word of `--next` and `--rule` that no row can have is an error.
fn check_words(args: &PlanArgs, rows: &[PlanRow]) -> Result<()> {
    if let Some(next) = &args.next {
        let kinds = VerdictKind::ALL.iter().map(|kind| kind.name());
        let all = keepers::keepers(&Config::default());
        let known: Vec<&str> = kinds.chain(all.iter().flat_map(|keeper| keeper.actions())).chain(["clean"]).collect();
        if !known.contains(&next.as_str()) {
            return Err(usage(format!("--next: nothing is {next:?}{}", suggest(next, &known))));
        }
    }
    if let Some(rule) = &args.rule {
        let all = keepers::keepers(&Config::default());
        let known: Vec<&str> = all.iter().flat_map(|keeper| keeper.rules()).collect();
        let is_known = known.contains(&rule.as_str()) || rows.iter().any(|row| row.rule == *rule);
        if !is_known {
            let near = did_you_mean(rule, known.into_iter());
            return Err(usage(format!("--rule: there is no rule {rule:?}{near} (caretaker rules lists them)")));
        }
    }
    Ok(())
}

/// True if the settings decide which keepers are used. Among files, a keeper is used if there is something for it.
fn settings_decide(args: &PlanArgs) -> bool {
    args.input.from.is_none() && args.input.keepers.is_none()
}

/// A note for each keeper that is off although the cluster serves what it works on.
async fn keepers_that_are_off(client: &Client, snapshot: &Snapshot) -> Vec<String> {
    // What was read before is shown in any case.
    let served = live::served_kinds(client).await.unwrap_or_default();
    keepers::off_although_served(&snapshot.config, &served)
}

/// Returns a note for each keeper whose sleep or suspension no operator ends, because none is live: it was removed, or
/// has gone back to a dry run. The Lease is read only where something sleeps.
async fn without_an_operator(client: &Client, snapshot: &Snapshot, now: Timestamp) -> Vec<String> {
    let asleep = snapshot
        .keeper::<Namespaces>()
        .map_or(0, |keeper| keeper.subjects.iter().filter(|subject| subject.is_asleep_in_part()).count());
    let held = snapshot
        .keeper::<Windows>()
        .map_or(0, |keeper| keeper.subjects.iter().filter(|object| object.is_held()).count());
    let asleep = (caretaker_namespaces::NAME, asleep, counted(asleep, "subject sleeps", "subjects sleep"), "wakes");
    let objects = counted(held, "object of Flux is suspended", "objects of Flux are suspended");
    let held = (caretaker_windows::NAME, held, objects, "resumes");
    let mut notes = Vec::new();
    for (keeper, count, what, ends) in [asleep, held] {
        if count > 0 && live::keeper_runs(client, keeper, now).await == Some(false) {
            let them = if count == 1 { "it" } else { "them" };
            notes.push(format!(
                "{what}, and no live operator {ends} {them}: no one holds the Lease {}/{}; docs/going-back.md shows how \
                 to undo it",
                state::NAMESPACE,
                lease_name(keeper)
            ));
        }
    }
    notes
}

/// The rows of all keepers.
pub(crate) fn rows(snapshot: &Snapshot, namespace: Option<&str>, at: Timestamp) -> Vec<PlanRow> {
    snapshot.keepers.iter().flat_map(|keeper| keeper.plan(namespace, at)).collect()
}
