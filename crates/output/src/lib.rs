//! What `caretaker` and `caretaker-node` print alike: tables, plans and explanations; and the [report](node_report) by
//! which the plan of a node reaches `caretaker plan`.
//!
//! Standard output has the result and nothing else; notes are on standard error.

pub mod explain;
pub mod node_report;
pub mod plan;
mod table;
pub mod terminal;
pub mod watched;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

pub use table::{Table, align, cut, indented, lines, sanitize_cell, sanitize_line, table, wrap};

/// What a command prints, and its exit code.
#[derive(Debug, Default)]
pub struct Output {
    /// For standard output.
    pub text: String,
    /// For standard error, a line each.
    pub notes: Vec<String>,
    /// The exit code.
    pub code: u8,
}

impl Output {
    /// Text for standard output, and nothing else.
    #[must_use]
    pub fn text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Prints it; notes begin with the name of the program. A reader that has closed the pipe (`| head`) is no error.
    #[must_use]
    pub fn print(self, program: &str) -> ExitCode {
        for note in &self.notes {
            let _ = writeln!(io::stderr(), "{program}: {}", sanitize_line(note));
        }
        let mut out = io::stdout().lock();
        match out.write_all(self.text.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                let _ = writeln!(io::stderr(), "{program}: writing to standard output: {e}");
                ExitCode::from(1)
            }
            _ => ExitCode::from(self.code),
        }
    }
}

/// Indented JSON.
pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
