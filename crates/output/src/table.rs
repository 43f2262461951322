//! Text in columns, and text from a cluster as a terminal may show it.

/// Maximum length of a cell: a longer one pushes the other columns off the screen.
const MAX_CELL: usize = 400;
/// Maximum length of a line.
const MAX_LINE: usize = 1_000;

/// Text from the cluster as a cell of a table: characters that control a terminal are replaced.
#[must_use]
pub fn sanitize_cell(text: &str) -> String {
    sanitize(text, MAX_CELL)
}

/// The same for a line of its own.
#[must_use]
pub fn sanitize_line(text: &str) -> String {
    sanitize(text, MAX_LINE)
}

fn sanitize(text: &str, max: usize) -> String {
    let mut chars = text.chars().map(|c| if controls_terminal(c) { char::REPLACEMENT_CHARACTER } else { c });
    let mut sanitized: String = chars.by_ref().take(max).collect();
    if chars.next().is_some() {
        sanitized.push('…');
    }
    sanitized
}

/// Control characters, Unicode line separators, and characters that reverse the writing direction.
fn controls_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Rows in aligned columns, a line each without its line end. The cells are sanitized; the last column
/// is not padded.
#[must_use]
pub fn align<const N: usize>(rows: Vec<[String; N]>) -> Vec<String> {
    let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(|text| sanitize_cell(&text))).collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Columns whose number is known at run time. Rows that come later are aligned with the first ones.
#[derive(Debug, Default)]
pub struct Columns(Vec<usize>);

impl Columns {
    /// Makes the columns as wide as the widest cell of these rows.
    pub fn fit(&mut self, rows: &[Vec<String>]) {
        for row in rows {
            self.0.resize(self.0.len().max(row.len()), 0);
            for (width, cell) in self.0.iter_mut().zip(row) {
                *width = sanitize_cell(cell).chars().count().max(*width);
            }
        }
    }

    /// A row without its line end; the cells are sanitized.
    #[must_use]
    pub fn line(&self, row: &[String]) -> String {
        let width = |i: usize| self.0.get(i).copied().unwrap_or(0);
        let cells = row.iter().enumerate().map(|(i, cell)| format!("{:1$}", sanitize_cell(cell), width(i)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

/// Text with a line end after each line.
pub fn lines(lines: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// A table with column titles.
#[must_use]
pub fn table<const N: usize>(titles: [&str; N], mut rows: Vec<[String; N]>) -> String {
    rows.insert(0, titles.map(str::to_owned));
    lines(align(rows).into_iter())
}

/// Aligned rows without titles, each indented.
#[must_use]
pub fn indented<const N: usize>(rows: Vec<[String; N]>) -> String {
    lines(align(rows).into_iter().map(|line| format!("  {line}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("shop-preview …", "shop-preview …")]
    #[case::a_forged_row("a\nNamespace  b", "a\u{fffd}Namespace  b")]
    #[case::an_escape_code("\u{1b}[2Ja", "\u{fffd}[2Ja")]
    #[case::a_reversed_direction("a\u{202e}b", "a\u{fffd}b")]
    fn characters_that_control_a_terminal_are_replaced(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(sanitize_cell(text), shown);
    }

    #[test]
    fn a_long_cell_is_cut() {
        assert_eq!(sanitize_cell(&"a".repeat(MAX_CELL)).chars().count(), MAX_CELL);
        assert_eq!(sanitize_cell(&"a".repeat(MAX_CELL + 1)), "a".repeat(MAX_CELL) + "…");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_have_no_trailing_blanks() {
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];

        assert_eq!(
            table(["NAME", "WHY"], vec![row("über", ""), row("shop-preview", "idle")]),
            "\
NAME          WHY\nüber\nshop-preview  idle\n"
        );
    }
}
