//! A list that is watched: what is not as it was printed is printed again, below the rows that were printed before.

use std::collections::BTreeMap;

use crate::Table;

/// The rows of a list as they were known last, by what tells one from another.
#[derive(Debug)]
pub struct Watched<K, R> {
    known: BTreeMap<K, Known<R>>,
}

#[derive(Debug)]
struct Known<R> {
    row: R,
    printed: bool,
}

impl<K, R> Default for Watched<K, R> {
    fn default() -> Self {
        Self { known: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, R: Clone + PartialEq> Watched<K, R> {
    /// Takes in the present rows, each as it is compared and as it is printed, and returns those to print: at first all
    /// that are wanted, then what is new and wanted, and what has changed and is wanted or was printed before. `gone`
    /// makes a row of one that was printed and is not there any more.
    pub fn update<P>(
        &mut self,
        rows: Vec<(K, R, P)>,
        wanted: impl Fn(&P, IsNew) -> bool,
        gone: impl Fn(R) -> P,
    ) -> Vec<P> {
        let mut before = std::mem::take(&mut self.known);
        let mut changed = Vec::new();
        for (key, row, shown) in rows {
            let known = before.remove(&key);
            let was_printed = known.as_ref().is_some_and(|known| known.printed);
            let is_same = known.as_ref().is_some_and(|known| known.row == row);
            let print = !is_same && (was_printed || wanted(&shown, IsNew(known.is_none())));
            self.known.insert(key, Known { row, printed: was_printed || print });
            if print {
                changed.push(shown);
            }
        }
        changed.extend(before.into_values().filter(|known| known.printed).map(|known| gone(known.row)));
        changed
    }
}

/// Whether a row was not there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsNew(pub bool);

/// A table that grows: rows that come later are aligned with those before.
#[derive(Debug, Default)]
pub struct GrowingTable {
    titles: Vec<&'static str>,
    widths: Vec<usize>,
}

impl GrowingTable {
    /// The rows as text, with titles if those are not above them yet.
    #[must_use]
    pub fn show(&mut self, table: Table) -> String {
        if table.rows.is_empty() {
            return String::new();
        }
        let no_headers = table.no_headers || self.titles == table.titles;
        if self.titles != table.titles {
            self.widths.clear();
        }
        self.titles.clone_from(&table.titles);
        let mut table = Table { no_headers, ..table };
        self.widths = table.widths(&self.widths);
        table.min_widths.clone_from(&self.widths);
        table.show()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type List = Watched<&'static str, &'static str>;

    fn update(list: &mut List, rows: &[(&'static str, &'static str)]) -> Vec<String> {
        let rows = rows.iter().map(|(name, state)| (*name, *state, format!("{name} {state}"))).collect();
        list.update(rows, |shown, is_new| shown.ends_with("due") || is_new == IsNew(false), |row| format!("gone {row}"))
    }

    #[test]
    fn what_changes_is_printed_again_and_what_is_not_wanted_only_after_a_change() {
        let mut list = List::default();
        assert_eq!(update(&mut list, &[("a", "due"), ("b", "idle")]), ["a due"]);
        assert_eq!(update(&mut list, &[("a", "due"), ("b", "idle")]), Vec::<String>::new());
        assert_eq!(update(&mut list, &[("a", "idle"), ("b", "due"), ("c", "idle")]), ["a idle", "b due"]);
        assert_eq!(update(&mut list, &[("a", "idle")]), ["gone due"], "what was never printed goes unseen");
        assert_eq!(update(&mut list, &[("a", "idle"), ("b", "due")]), ["b due"], "it is there again");
    }

    #[test]
    fn later_rows_are_aligned_with_the_first_and_titles_come_once() {
        let table = |name: &str, state: &str| Table::new(["NAME", "STATE"], vec![[name.to_owned(), state.to_owned()]]);
        let mut growing = GrowingTable::default();

        assert_eq!(growing.show(table("shop-preview", "awake")), "NAME          STATE\nshop-preview  awake\n");
        assert_eq!(growing.show(table("a", "asleep")), "a             asleep\n");
        let other = Table::new(["NAME", "POOL", "STATE"], vec![["a", "b", "c"].map(str::to_owned)]);
        assert_eq!(growing.show(other), "NAME  POOL  STATE\na     b     c\n");
    }
}
