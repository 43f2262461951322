//! Completion of command lines: of commands and flags, and of keepers, rules, kinds and namespaces, the latter from the
//! cluster. It says nothing where something fails, and never waits long: a person is typing.
//!
//! A shell calls the program with a variable set, as the script of `caretaker completions` has it. kubectl calls
//! `kubectl_complete-caretaker`, which calls `kubectl-caretaker __complete` with the words so far.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use caretaker_core::VerdictKind;
use caretaker_windows::api::KINDS;
use clap::CommandFactory as _;
use clap_complete::engine::{CompletionCandidate, complete};
use clap_complete::env::{CompleteEnv, Shells};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};

use crate::cli::{Cli, ClusterArgs};
use crate::config::Config;
use crate::output::node_report;
use crate::{keepers, live};

/// Set by a shell that asks for completions.
const VARIABLE: &str = "CARETAKER_COMPLETE";
/// The command that kubectl asks for completions with.
const FOR_KUBECTL: &str = "__complete";
/// In kubectl's words: there are no files to complete.
const NO_FILES: &str = ":4";
/// How long the cluster may take.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// More names help nobody who types.
const MAX_NAMES: u32 = 500;

/// Answers a shell or kubectl; `None` if neither asks.
pub(crate) fn answer(args: &[OsString]) -> Option<ExitCode> {
    match CompleteEnv::with_factory(Cli::command).var(VARIABLE).try_complete(args, None) {
        Ok(false) => {}
        Ok(true) => return Some(ExitCode::SUCCESS),
        Err(_) => return Some(ExitCode::FAILURE),
    }
    let (asks, words) = args.get(1..)?.split_first()?;
    (asks == FOR_KUBECTL).then(|| {
        print!("{}", for_kubectl(words));
        ExitCode::SUCCESS
    })
}

/// What kubectl reads: a line for each candidate, and what to do where there is none.
fn for_kubectl(words: &[OsString]) -> String {
    let mut line = vec![OsString::from("caretaker")];
    line.extend_from_slice(words);
    if words.is_empty() {
        line.push(OsString::new());
    }
    let last = line.len() - 1;
    let found = complete(&mut Cli::command(), line, last, None).unwrap_or_default();
    let shown = found.iter().filter(|candidate| !candidate.is_hide_set()).map(|candidate| {
        let value = candidate.get_value().to_string_lossy();
        match candidate.get_help() {
            Some(help) => format!("{value}\t{}\n", help.to_string().lines().next().unwrap_or_default()),
            None => format!("{value}\n"),
        }
    });
    shown.collect::<String>() + NO_FILES + "\n"
}

/// The script that makes a shell ask.
pub(crate) fn script(shell: &str) -> Result<String> {
    let mut text = Vec::new();
    if let Some(shell) = Shells::builtins().completer(shell) {
        shell.write_registration(VARIABLE, "caretaker", "caretaker", "caretaker", &mut text)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn candidates(words: impl IntoIterator<Item = impl Into<OsString>>) -> Vec<CompletionCandidate> {
    words.into_iter().map(CompletionCandidate::new).collect()
}

/// The keepers of `--keepers`.
pub(crate) fn all_keepers() -> Vec<CompletionCandidate> {
    candidates(keepers::names().into_iter().chain([node_report::KEEPER]))
}

/// The keepers that `caretaker` itself runs.
pub(crate) fn own_keepers() -> Vec<CompletionCandidate> {
    candidates(keepers::names())
}

/// The rules of all keepers.
pub(crate) fn rules() -> Vec<CompletionCandidate> {
    let all = keepers::keepers(&Config::default());
    candidates(all.iter().flat_map(|keeper| keeper.rules()).collect::<BTreeSet<_>>())
}

/// What `--next` takes.
pub(crate) fn nexts() -> Vec<CompletionCandidate> {
    let all = keepers::keepers(&Config::default());
    let actions: BTreeSet<&str> = all.iter().flat_map(|keeper| keeper.actions()).chain(["clean"]).collect();
    candidates(VerdictKind::ALL.iter().map(|kind| kind.name()).chain(actions))
}

/// The kinds of Flux, in the plural.
pub(crate) fn flux_kinds() -> Vec<CompletionCandidate> {
    candidates(KINDS.iter().map(|kind| kind.aliases[1]))
}

/// The namespaces of the cluster.
pub(crate) fn namespaces() -> Vec<CompletionCandidate> {
    candidates(from_cluster(async |client| names_of(&client, "Namespace").await))
}

/// `KIND/` and then the names of that kind.
pub(crate) fn subjects(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let kinds: Vec<_> = keepers::keepers(&Config::default()).iter().flat_map(|keeper| keeper.kinds()).collect();
    let words: Vec<String> = match current.split_once('/') {
        None => kinds.iter().map(|kind| format!("{}/", kind.aliases[0])).collect(),
        Some((alias, _)) => {
            let lower = alias.to_lowercase();
            let Some(kind) = kinds.into_iter().find(|kind| kind.aliases.contains(&lower)) else { return Vec::new() };
            let names = from_cluster(async move |client| names_of(&client, &kind.name).await);
            names.iter().map(|name| format!("{alias}/{name}")).collect()
        }
    };
    candidates(words.into_iter().filter(|word| word.starts_with(current)))
}

/// The names of all objects of a kind, of those that a keeper reads.
async fn names_of(client: &Client, kind: &str) -> Result<Vec<String>> {
    let all = keepers::keepers(&Config::default());
    let is_read = |api_version: &str| all.iter().any(|keeper| keeper.reads_kind(api_version, kind));
    let served = live::served_kinds(client).await?;
    let Some(resource) = served.iter().find(|served| served.kind == kind && is_read(&served.api_version)) else {
        return Ok(Vec::new());
    };
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let listed = objects.list_metadata(&ListParams::default().limit(MAX_NAMES)).await?;
    let names: BTreeSet<String> = listed.items.iter().map(kube::ResourceExt::name_any).collect();
    Ok(names.into_iter().collect())
}

/// What the cluster of the command line answers in time; nothing if it does not. In a thread of its own, because a
/// program that a kubeconfig names for credentials may hang as well.
fn from_cluster<F>(ask: impl FnOnce(Client) -> F + Send + 'static) -> Vec<String>
where
    F: Future<Output = Result<Vec<String>>>,
{
    let (answer, answered) = mpsc::channel();
    let cluster = cluster_of(std::env::args_os());
    thread::spawn(move || {
        let names = live::block_on(async { ask(live::client(&cluster).await?).await });
        // Nobody waits any more if it took too long.
        let _ = answer.send(names.unwrap_or_default());
    });
    answered.recv_timeout(PATIENCE).unwrap_or_default()
}

/// The cluster that a command line names so far.
fn cluster_of(args: impl Iterator<Item = OsString>) -> ClusterArgs {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let value = |flag: &str| {
        let with_sign = args.iter().find_map(|arg| arg.strip_prefix(flag)?.strip_prefix('=').map(str::to_owned));
        with_sign.or_else(|| args.iter().skip_while(|arg| *arg != flag).nth(1).cloned())
    };
    ClusterArgs { kubeconfig: value("--kubeconfig").map(Into::into), context: value("--context") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_is_the_one_that_the_words_before_name() {
        let of = |line: &str| cluster_of(line.split(' ').map(OsString::from));

        let named = of("caretaker plan --context=prod --kubeconfig /x/config -n sh");
        assert_eq!((named.context.as_deref(), named.kubeconfig), (Some("prod"), Some("/x/config".into())));
        assert_eq!(of("caretaker plan -n sh").context, None);
    }
}
