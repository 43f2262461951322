//! Why a command failed, as one line: what was attempted, the answer of the API server, and what to do about it.

use std::error::Error;
use std::io;

use caretaker_engine::ApplyError;
use caretaker_namespaces::manual::OrderError;

use crate::cli::Command;

/// The ClusterRole for people who look, as the chart and the manifests install it.
pub const READER_ROLE: &str = "caretaker-reader";
/// The ClusterRole for people who put namespaces to sleep and wake them.
pub const SLEEPER_ROLE: &str = "caretaker-sleeper";

/// The command line is wrong: nothing was tried.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

/// An error in the command line.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    UsageError(message.into()).into()
}

/// The exit code of an error: see [`EXIT_CODES`](crate::cli::EXIT_CODES).
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<UsageError>() { 2 } else { 1 }
}

/// What went wrong on the way to the API server or there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Refused,
    UnknownHost,
    Certificate,
    Unauthorized,
    Forbidden,
}

/// An error as one line, with the remedy that fits the failure.
pub(crate) fn describe(error: &anyhow::Error, command: &Command) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let words = own_words(cause);
        if !words.is_empty() && !line.contains(&words) {
            let joint = if line.is_empty() { "" } else { ": " };
            line = format!("{line}{joint}{words}");
        }
        // What is below it only repeats the answer.
        if client_error(cause).is_some() {
            break;
        }
    }
    match error.chain().find_map(classify) {
        Some(cause) => format!("{line}; {}", remedy(cause, command)),
        None => line,
    }
}

/// What an error says itself; an error of the client is said with its causes, which repeat it.
fn own_words(error: &(dyn Error + 'static)) -> String {
    client_error(error).map_or_else(|| error.to_string(), |error| caretaker_engine::format_error(error))
}

fn client_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a kube::Error> {
    error.downcast_ref().or_else(|| error.downcast_ref::<Box<kube::Error>>().map(|error| &**error))
}

fn classify(error: &(dyn Error + 'static)) -> Option<Cause> {
    if let Some(kube::Error::Api(status)) = client_error(error) {
        return match status.code {
            401 => Some(Cause::Unauthorized),
            403 => Some(Cause::Forbidden),
            _ => None,
        };
    }
    if let Some(OrderError::NotWritten { error, .. } | OrderError::NotApplied { error, .. }) = error.downcast_ref() {
        return ApplyError::is_forbidden(error).then_some(Cause::Forbidden);
    }
    if error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused) {
        return Some(Cause::Refused);
    }
    // The resolver's errors have no kind of their own, and those of TLS are wrapped by each layer.
    match error.to_string() {
        words if words.starts_with("failed to lookup address") => Some(Cause::UnknownHost),
        words if words.starts_with("invalid peer certificate") => Some(Cause::Certificate),
        _ => None,
    }
}

fn remedy(cause: Cause, command: &Command) -> String {
    match cause {
        Cause::Refused => "nothing answers at the address of the API server: is it up, and is this the right --context?".into(),
        Cause::UnknownHost => "check the name of the server in the kubeconfig".into(),
        Cause::Certificate => "check the certificate authority in the kubeconfig: is this the right cluster?".into(),
        Cause::Unauthorized => {
            "the API server does not accept these credentials: log in again, or name others with --context or --kubeconfig"
                .into()
        }
        Cause::Forbidden => match role(command) {
            Some(role) => format!("the ClusterRole {role} has the rights that this needs"),
            None => "docs/commands.md lists the rights that this needs".into(),
        },
    }
}

/// The role that allows a command.
fn role(command: &Command) -> Option<&'static str> {
    match command {
        Command::Plan(_)
        | Command::Explain(_)
        | Command::Simulate(_)
        | Command::Activity(_)
        | Command::Addresses(_)
        | Command::Runtimes(_)
        | Command::Get(_)
        | Command::Windows(_)
        | Command::AuditConfig(_) => Some(READER_ROLE),
        Command::Breaker(args) if !args.resets() => Some(READER_ROLE),
        Command::Sleep(_) | Command::Wake(_) => Some(SLEEPER_ROLE),
        _ => None,
    }
}
