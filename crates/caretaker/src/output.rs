//! How an answer is given: on standard output alone, and quietly where nobody listens.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

/// What a command has to say.
#[derive(Debug, Default)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// For standard error, a line each.
    pub notes: Vec<String>,
    /// The exit code.
    pub code: u8,
}

impl Answer {
    /// Only text.
    #[must_use]
    pub fn text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Prints it. A reader that went away (`| head`) is no error.
    #[must_use]
    pub fn give(self) -> ExitCode {
        for note in &self.notes {
            let _ = writeln!(io::stderr(), "caretaker: {note}");
        }
        let mut out = io::stdout().lock();
        match out.write_all(self.text.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                let _ = writeln!(io::stderr(), "caretaker: writing the answer: {e}");
                ExitCode::from(1)
            }
            _ => ExitCode::from(self.code),
        }
    }
}

/// JSON, as everything else on this machine would print it.
pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Rows under a head, in columns; the last one is as long as it is.
#[must_use]
pub fn columns<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let width =
        |i: usize| rows.iter().map(|r| r[i].chars().count()).chain([head[i].chars().count()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(head.map(str::to_owned)).chain(rows.iter().cloned()) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
