//! Text in columns, and text from a cluster as a terminal may show it.

use crate::terminal::{self, Style};

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
/// is not padded. On a terminal it is cut.
#[must_use]
pub fn align<const N: usize>(rows: Vec<[String; N]>) -> Vec<String> {
    let rows = rows.into_iter().map(Vec::from).collect();
    Table { rows, ..Table::default() }.lines(terminal::width())
}

/// The last column has at least so much room on a terminal, or columns are left out.
const MIN_LAST: usize = 24;
/// However narrow the terminal is, so much of the last column is shown.
const MIN_SHOWN: usize = 8;

/// A table: rows in aligned columns that fit on the terminal.
#[derive(Debug, Default)]
pub struct Table {
    /// The titles; none are printed if there are none.
    pub titles: Vec<&'static str>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
    /// Columns that are left out where the last one has no room, in this order; the title of the column.
    pub dispensable: &'static [&'static str],
    /// Columns that are left out only where the last one has no room at all.
    pub last_resort: &'static [&'static str],
    /// Cells that stand out: row, column, style.
    pub styles: Vec<(usize, usize, Style)>,
    /// Nothing is cut or left out, whatever the width.
    pub wide: bool,
    /// The titles are not printed.
    pub no_headers: bool,
    /// Columns are at least so wide, whatever is in them.
    pub min_widths: Vec<usize>,
}

impl Table {
    /// A table with column titles.
    #[must_use]
    pub fn new<const N: usize>(titles: [&'static str; N], rows: Vec<[String; N]>) -> Self {
        Self { titles: titles.to_vec(), rows: rows.into_iter().map(Vec::from).collect(), ..Self::default() }
    }

    /// The text for standard output.
    #[must_use]
    pub fn show(self) -> String {
        let width = terminal::width().filter(|_| !self.wide);
        lines(self.lines(width).into_iter())
    }

    /// How wide each column is, with its title, and at least as wide as these.
    pub(crate) fn widths(&self, min_width: &[usize]) -> Vec<usize> {
        let title = |i: usize| self.titles.get(i).map_or(0, |title| title.chars().count());
        let cells = |i: usize| {
            self.rows.iter().filter_map(move |row| row.get(i)).map(|cell| sanitize_cell(cell).chars().count())
        };
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |i: usize| cells(i).chain([title(i), min_width.get(i).copied().unwrap_or(0)]).max().unwrap_or(0);
        (0..columns).map(width).collect()
    }

    /// The lines on a terminal of this width; `None`: in a pipe.
    #[must_use]
    pub fn lines(mut self, width: Option<usize>) -> Vec<String> {
        for cell in self.rows.iter_mut().flatten() {
            *cell = sanitize_cell(cell);
        }
        if !self.titles.is_empty() && !self.no_headers {
            self.rows.insert(0, self.titles.iter().map(|title| (*title).to_owned()).collect());
            self.styles.iter_mut().for_each(|(row, _, _)| *row += 1);
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width_of = |i: usize| self.rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
        let min_width = |i: usize| self.min_widths.get(i).copied().unwrap_or(0);
        let mut widths: Vec<Option<usize>> =
            (0..columns).map(|i| width_of(i).map(|width| width.max(min_width(i)))).collect();
        let last = columns.saturating_sub(1);
        let room = |widths: &[Option<usize>]| {
            let before: usize = widths[..last].iter().flatten().map(|width| width + GAP.len()).sum();
            width.map(|width| width.saturating_sub(before))
        };
        let wanted = widths.last().copied().flatten().unwrap_or(0).min(MIN_LAST);
        let dispensable = self.dispensable.iter().map(|title| (title, wanted));
        let last_resort = self.last_resort.iter().map(|title| (title, wanted.min(MIN_SHOWN)));
        for (title, wanted) in dispensable.chain(last_resort) {
            if room(&widths).is_some_and(|room| room < wanted)
                && let Some(column) = self.titles.iter().position(|known| known == title)
            {
                widths[column] = None;
            }
        }
        let room = room(&widths).map(|room| room.max(MIN_SHOWN));
        let style_of =
            |row, column| self.styles.iter().find(|(r, c, _)| (*r, *c) == (row, column)).map(|found| found.2);
        let line = |(r, row): (usize, &Vec<String>)| {
            let shown = row.iter().enumerate().filter_map(|(i, cell)| Some((i, cell, widths[i]?)));
            let cells: Vec<String> = shown
                .map(|(i, cell, width)| {
                    let cell = if i == last {
                        room.map_or_else(|| cell.clone(), |room| cut(cell, room))
                    } else {
                        cell.clone()
                    };
                    let padding = if i == last { 0 } else { width.saturating_sub(cell.chars().count()) };
                    let painted = style_of(r, i).map_or_else(|| cell.clone(), |style| terminal::paint(&cell, style));
                    format!("{painted}{:padding$}", "")
                })
                .collect();
            cells.join(GAP).trim_end().to_owned()
        };
        self.rows.iter().enumerate().map(line).collect()
    }
}

/// Between columns.
const GAP: &str = "  ";

/// Text of at most so many characters; what is cut ends in `…`.
#[must_use]
pub fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let kept: String = text.chars().take(room.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Text in lines of at most so many characters, broken at blanks; a longer word has a line of its own.
#[must_use]
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut wrapped: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match wrapped.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => wrapped.push(word.to_owned()),
        }
    }
    wrapped
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
pub fn table<const N: usize>(titles: [&'static str; N], rows: Vec<[String; N]>) -> String {
    Table::new(titles, rows).show()
}

/// Aligned rows without titles, each indented. On a terminal the last column is broken into lines.
#[must_use]
pub fn indented<const N: usize>(rows: Vec<[String; N]>) -> String {
    indented_to(rows, terminal::width())
}

fn indented_to<const N: usize>(rows: Vec<[String; N]>, width: Option<usize>) -> String {
    const INDENT: &str = "  ";
    let rows = match width {
        Some(width) => wrapped(rows, width.saturating_sub(INDENT.len())),
        None => rows,
    };
    let rows = rows.into_iter().map(Vec::from).collect();
    let all = Table { rows, ..Table::default() }.lines(None);
    lines(all.into_iter().map(|line| format!("{INDENT}{line}").trim_end().to_owned()))
}

/// The rows with the last column broken into lines that fit; further lines have empty cells before them.
fn wrapped<const N: usize>(rows: Vec<[String; N]>, width: usize) -> Vec<[String; N]> {
    let others = 0..N.saturating_sub(1);
    let width_of = |i: usize| rows.iter().map(|row| sanitize_cell(&row[i]).chars().count()).max().unwrap_or(0);
    let before: usize = others.map(|i| width_of(i) + GAP.len()).sum();
    let room = width.saturating_sub(before).max(MIN_LAST);
    let mut all = Vec::new();
    for mut row in rows {
        let Some(last) = row.last_mut() else { continue };
        let mut parts = wrap(&sanitize_cell(last), room).into_iter();
        *last = parts.next().unwrap_or_default();
        all.push(row);
        all.extend(parts.map(|part| {
            let mut more = [const { String::new() }; N];
            more[N - 1] = part;
            more
        }));
    }
    all
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

    fn subjects() -> Table {
        let row = |cells: [&str; 4]| cells.map(str::to_owned);
        let because = "last used 1d2h ago at 2026-03-01T07:00:00Z";
        Table::new(
            ["NAME", "NEXT", "RULE", "BECAUSE"],
            vec![row(["shop-preview", "sleep", "SleepAfterElapsed", because])],
        )
    }

    #[test]
    fn the_last_column_is_cut_at_the_width_of_the_terminal_and_never_in_a_pipe() {
        let shown = subjects().lines(Some(60));
        assert_eq!(shown[1], "shop-preview  sleep  SleepAfterElapsed  last used 1d2h ago…");
        assert_eq!(shown[1].chars().count(), 59, "a blank before the end is cut as well");
        assert!(subjects().lines(None)[1].ends_with("2026-03-01T07:00:00Z"));
    }

    #[test]
    fn a_column_is_left_out_before_the_last_one_has_no_room() {
        let narrow = |width| Table { dispensable: &["RULE"], ..subjects() }.lines(Some(width));
        assert_eq!(narrow(60)[1], "shop-preview  sleep  last used 1d2h ago at 2026-03-01T07:00…");
        assert!(!narrow(63)[1].contains("SleepAfterElapsed"), "23 characters of the last one would have room");
        assert!(narrow(64)[1].contains("SleepAfterElapsed"), "24 characters of the last one have room");
    }

    #[test]
    fn what_is_wrapped_loses_nothing() {
        let rows = vec![["state".to_owned(), "asleep since the second of March".to_owned()]];
        assert_eq!(indented_to(rows, Some(34)), "  state  asleep since the second\n         of March\n");
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
