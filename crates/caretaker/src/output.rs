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
            let _ = writeln!(io::stderr(), "caretaker: {}", line(note));
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

/// Longer cells hide what stands beside them.
const CELL: usize = 400;
/// Longer lines say no more.
const LINE: usize = 1_000;

/// Text that others wrote, as a cell of a table: what would steer a terminal is replaced.
#[must_use]
pub fn cell(text: &str) -> String {
    plain(text, CELL)
}

/// The same for a line that stands alone.
#[must_use]
pub fn line(text: &str) -> String {
    plain(text, LINE)
}

fn plain(text: &str, most: usize) -> String {
    let mut chars = text.chars().map(|c| if steers(c) { char::REPLACEMENT_CHARACTER } else { c });
    let mut plain: String = chars.by_ref().take(most).collect();
    if chars.next().is_some() {
        plain.push('…');
    }
    plain
}

/// Control characters, line ends that are none, and what turns the direction of writing round.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Rows under a head, in columns; the last one is as long as it is.
#[must_use]
pub fn columns<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(|text| cell(&text))).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("shop-preview …", "shop-preview …")]
    #[case::a_forged_row("a\nNamespace  b", "a\u{fffd}Namespace  b")]
    #[case::an_escape_code("\u{1b}[2Ja", "\u{fffd}[2Ja")]
    #[case::a_turned_direction("a\u{202e}b", "a\u{fffd}b")]
    fn what_steers_a_terminal_is_replaced(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(cell(text), shown);
    }

    #[test]
    fn a_cell_has_an_end() {
        assert_eq!(cell(&"a".repeat(CELL)).chars().count(), CELL);
        assert_eq!(cell(&"a".repeat(CELL + 1)), "a".repeat(CELL) + "…");
    }
}
