//! Typed rules: an ordered table. Judging is its first match, explaining is the trace through it.

use std::fmt::{self, Debug, Write as _};
use std::hash::Hash;

use jiff::Timestamp;

use crate::{Keeper, Next, RuleMatch, Verdict, VerdictOf};

/// The rules of a keeper, written with [`rules!`](crate::rules!): an enum in the order of the table.
/// Never implemented by hand.
pub trait RuleSet: Copy + Ord + Hash + Debug + Send + Sync + 'static {
    /// The keeper whose rules these are.
    type Keeper: Keeper<Rule = Self>;
    /// Every rule; the first that matches wins.
    const ALL: &'static [Self];

    /// The stable name: reason of Events, label of metrics, `rule` in JSON.
    fn name(self) -> &'static str;

    /// What the rule says, for people.
    fn doc(self) -> &'static str;

    /// What the rule decides; `None` if it does not match.
    fn check(
        self,
        subject: &<Self::Keeper as Keeper>::Subject,
        world: &<Self::Keeper as Keeper>::World,
        now: Timestamp,
    ) -> Option<RuleMatch<<Self::Keeper as Keeper>::Action>>;

    /// The verdict on a subject: the first rule that matches. The only place where anything is
    /// decided; it sees neither the keeper's clients nor a clock.
    fn judge(
        subject: &<Self::Keeper as Keeper>::Subject,
        world: &<Self::Keeper as Keeper>::World,
        now: Timestamp,
    ) -> VerdictOf<Self::Keeper> {
        let matched = Self::ALL.iter().find_map(|rule| Some((*rule, rule.check(subject, world, now)?)));
        match matched {
            Some((rule, RuleMatch { next, because })) => Verdict { rule: RuleId::Keeper(rule), next, because },
            None => Verdict {
                rule: RuleId::Engine(EngineRule::NoRuleMatched),
                next: Next::Nothing,
                because: "no rule matches".to_owned(),
            },
        }
    }

    /// The rule of a name, for what was written to an annotation or typed by a person.
    fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.name() == name)
    }

    /// The table in Markdown, for the keeper's page.
    #[must_use]
    fn markdown() -> String {
        let mut text = "| | rule | what it says |\n|---|---|---|\n".to_owned();
        for (i, rule) in Self::ALL.iter().enumerate() {
            let _ = writeln!(text, "| {} | `{}` | {} |", i + 1, rule.name(), rule.doc());
        }
        text
    }
}

/// Rules that hold for every keeper and are applied after its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineRule {
    /// No rule of the keeper matched: a defect of its table; nothing is done.
    NoRuleMatched,
    /// An object next to the subject cannot be read.
    InvalidObject,
    /// A window on its object holds it back: waits until the window closes.
    Suspended,
    /// The window on its object cannot be read, so that nothing is taken away.
    InvalidWindow,
    /// Over its pace: waits its turn.
    Paced,
    /// The breaker is open.
    BreakerOpen,
}

impl EngineRule {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NoRuleMatched,
        Self::InvalidObject,
        Self::Suspended,
        Self::InvalidWindow,
        Self::Paced,
        Self::BreakerOpen,
    ];

    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRuleMatched => "NoRuleMatched",
            Self::InvalidObject => "InvalidObject",
            Self::Suspended => "Suspended",
            Self::InvalidWindow => "InvalidWindow",
            Self::Paced => "Paced",
            Self::BreakerOpen => "BreakerOpen",
        }
    }
}

/// The rule behind a verdict: one of the keeper's, or one that holds for every keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleId<R> {
    /// A rule of the keeper.
    Keeper(R),
    /// A rule of the engine.
    Engine(EngineRule),
}

impl<R: RuleSet> RuleId<R> {
    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Keeper(rule) => rule.name(),
            Self::Engine(rule) => rule.name(),
        }
    }

    /// True for this rule of the engine.
    #[must_use]
    pub fn is_engine(self, rule: EngineRule) -> bool {
        self == Self::Engine(rule)
    }
}

impl<R: RuleSet> fmt::Display for RuleId<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<R> From<EngineRule> for RuleId<R> {
    fn from(rule: EngineRule) -> Self {
        Self::Engine(rule)
    }
}

/// Writes the rule enum of a keeper and its table: documentation, name, function.
#[macro_export]
macro_rules! rules {
    ($(#[$attr:meta])* $vis:vis enum $Rule:ident for $Keeper:ty {
        $( $(#[doc = $doc:literal])+ $Variant:ident => $check:path ),+ $(,)?
    }) => {
        $(#[$attr])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $Rule { $( $(#[doc = $doc])+ $Variant ),+ }

        impl $crate::RuleSet for $Rule {
            type Keeper = $Keeper;
            const ALL: &'static [Self] = &[$(Self::$Variant),+];

            fn name(self) -> &'static str {
                match self { $(Self::$Variant => stringify!($Variant)),+ }
            }

            fn doc(self) -> &'static str {
                match self { $(Self::$Variant => $crate::rules::trim(concat!($($doc),+))),+ }
            }

            fn check(
                self,
                subject: &<$Keeper as $crate::Keeper>::Subject,
                world: &<$Keeper as $crate::Keeper>::World,
                now: $crate::Timestamp,
            ) -> Option<$crate::RuleMatch<<$Keeper as $crate::Keeper>::Action>> {
                match self { $(Self::$Variant => $check(subject, world, now)),+ }
            }
        }
    };
}

/// Removes the blank with which a doc comment begins.
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
    use crate::{ActionKind, ObjectRef, SubjectRef};

    type Text = &'static str;

    struct Words;

    crate::actions! { enum Nothing {
        /// Does nothing.
        Nothing => ActionKind::plain("nothing"),
    } }

    crate::rules! { enum Rule for Words {
        /// Below the limit.
        Small => small,
        /// Even, whatever its size.
        Even => even,
    } }

    fn small(text: &Text, limit: &Text, _: Timestamp) -> Option<RuleMatch<Nothing>> {
        (text.len() < limit.len()).then(|| RuleMatch::nothing(format!("{text} < {limit}")))
    }

    fn even(text: &Text, _: &Text, now: Timestamp) -> Option<RuleMatch<Nothing>> {
        text.len().is_multiple_of(2).then(|| RuleMatch::wait(now, Nothing::Nothing, "even"))
    }

    impl Keeper for Words {
        type Subject = Text;
        type World = Text;
        type Action = Nothing;
        type Rule = Rule;

        fn name(&self) -> &'static str {
            "words"
        }

        fn subject_ref<'a>(&self, text: &'a Text) -> SubjectRef<'a> {
            ObjectRef { api_version: "v1", kind: "Text", namespace: None, name: text, uid: "" }.into()
        }

        fn facts(&self, _: &Text, _: Timestamp) -> Vec<(&'static str, String)> {
            Vec::new()
        }

        fn simulate_action(&self, text: Text, _: &Nothing, _: &Text, _: Timestamp) -> Option<Text> {
            Some(text)
        }
    }

    #[test]
    fn the_first_match_wins() {
        let at = |text| Rule::judge(&text, &"abc", Timestamp::UNIX_EPOCH);

        assert_eq!((at("ab").rule, at("ab").because.as_str()), (RuleId::Keeper(Rule::Small), "ab < abc"));
        assert_eq!(at("abcd").rule, RuleId::Keeper(Rule::Even));
        assert_eq!((at("abcde").rule, at("abcde").next), (EngineRule::NoRuleMatched.into(), Next::Nothing));
    }

    #[test]
    fn every_rule_can_be_checked_in_order() {
        let checked: Vec<_> = Rule::ALL
            .iter()
            .map(|rule| (rule.name(), rule.check(&"abcd", &"abc", Timestamp::UNIX_EPOCH).is_some()))
            .collect();

        assert_eq!(checked, [("Small", false), ("Even", true)]);
    }

    #[test]
    fn a_name_is_read_back_and_another_word_is_none() {
        assert_eq!((Rule::parse("Even"), Rule::parse("even"), Rule::parse("Paced")), (Some(Rule::Even), None, None));
    }

    #[test]
    fn the_page_is_made_from_the_table() {
        assert!(Rule::markdown().contains("| 2 | `Even` | Even, whatever its size. |"));
    }
}
