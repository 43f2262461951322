//! An ordered table of rules: judging is its first match, explaining is the trace through it.

use jiff::Timestamp;

use crate::{Finding, Verdict};

/// A question to a subject in its world at a time: `None` if the rule does not fit.
pub type Judge<S, W, A> = fn(&S, &W, Timestamp) -> Option<Finding<A>>;

/// One rule.
#[derive(Debug)]
pub struct Rule<S: 'static, W: 'static, A: 'static> {
    /// Its stable name, in PascalCase.
    pub name: &'static str,
    /// What it says, for people.
    pub doc: &'static str,
    /// What decides it.
    pub judge: Judge<S, W, A>,
}

/// The rules of a keeper, the first that fits wins.
#[derive(Debug)]
pub struct RuleTable<S: 'static, W: 'static, A: 'static>(pub &'static [Rule<S, W, A>]);

/// Where no rule fits: a defect of the table, under which nothing is done.
pub const NO_RULE: &str = "NoRuleFits";

impl<S, W, A> RuleTable<S, W, A> {
    /// The verdict on a subject.
    pub fn judge(&self, subject: &S, world: &W, now: Timestamp) -> Verdict<A> {
        self.trace(subject, world, now).find_map(|(rule, found)| Some((rule, found?))).map_or_else(
            || Verdict { rule: NO_RULE, next: crate::Next::Rest, because: "no rule fits".to_owned() },
            |(rule, Finding { next, because })| Verdict { rule: rule.name, next, because },
        )
    }

    /// Every rule with what it finds, in order; lazily, so that judging asks no rule in vain.
    pub fn trace<'a>(
        &'a self,
        subject: &'a S,
        world: &'a W,
        now: Timestamp,
    ) -> impl Iterator<Item = (&'static Rule<S, W, A>, Option<Finding<A>>)> + 'a {
        self.0.iter().map(move |rule| (rule, (rule.judge)(subject, world, now)))
    }

    /// The rules as a table in Markdown, for the page that documents them.
    #[must_use]
    pub fn markdown(&self) -> String {
        let rows = self.0.iter().enumerate().map(|(i, r)| format!("| {} | `{}` | {} |\n", i + 1, r.name, r.doc));
        format!("| | rule | what it says |\n|---|---|---|\n{}", rows.collect::<String>())
    }
}

/// Writes a [`RuleTable`] as it reads: the documentation, the name, the function.
#[macro_export]
macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $name:ident => $judge:path,)+) => {
        $crate::rules::RuleTable(&[$(
            $crate::rules::Rule { name: stringify!($name), doc: $crate::rules::trim(concat!($($doc),+)), judge: $judge },
        )+])
    };
}

/// Takes off the blank with which a doc comment begins.
#[must_use]
pub const fn trim(doc: &'static str) -> &'static str {
    match doc.as_bytes() {
        [b' ', ..] => doc.split_at(1).1,
        _ => doc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Next;

    type Text = &'static str;

    const TABLE: RuleTable<Text, Text, ()> = crate::rules![
        /// Below the limit.
        Small => small,
        /// Even, whatever its size.
        Even => even,
    ];

    fn small(text: &Text, limit: &Text, _: Timestamp) -> Option<Finding<()>> {
        (text.len() < limit.len()).then(|| Finding::rest(format!("{text} < {limit}")))
    }

    fn even(text: &Text, _: &Text, now: Timestamp) -> Option<Finding<()>> {
        text.len().is_multiple_of(2).then(|| Finding::wait(now, (), "even"))
    }

    #[test]
    fn the_first_match_wins() {
        let at = |text| TABLE.judge(&text, &"abc", Timestamp::UNIX_EPOCH);

        assert_eq!((at("ab").rule, at("ab").because.as_str()), ("Small", "ab < abc"));
        assert_eq!(at("abcd").rule, "Even");
        assert_eq!((at("abcde").rule, at("abcde").next), (NO_RULE, Next::Rest));
    }

    #[test]
    fn the_trace_names_every_rule_in_order() {
        let tried: Vec<_> =
            TABLE.trace(&"abcd", &"abc", Timestamp::UNIX_EPOCH).map(|(r, f)| (r.name, f.is_some())).collect();

        assert_eq!(tried, [("Small", false), ("Even", true)]);
    }

    #[test]
    fn the_page_is_made_from_the_table() {
        assert!(TABLE.markdown().contains("| 2 | `Even` | Even, whatever its size. |"));
    }
}
