//! An explanation: every fact about one subject, and every rule that was tried on it.

use caretaker_core::{Action, Keeper, Next, RuleId, RuleSet, Timestamp, Verdict, VerdictKind, VerdictOf, time};
use serde::Serialize;

use crate::plan::{FollowUp, next_after, verdict_name};
use crate::{indented, sanitize_cell};

/// Everything about a subject.
#[derive(Debug, Serialize)]
pub struct Explanation {
    keeper: &'static str,
    kind: String,
    namespace: Option<String>,
    name: String,
    at: Timestamp,
    facts: Vec<Fact>,
    rules: Vec<TriedRule>,
    verdict: Outcome,
    /// What would be written, in order.
    steps: Vec<String>,
    /// The number of rules that were not tried.
    #[serde(skip)]
    untried: usize,
    /// The length of the longest name of a rule.
    #[serde(skip)]
    name_width: usize,
    /// The verdict as a sentence.
    #[serde(skip)]
    sentence: String,
    /// True if a window, pace or breaker decided: the evidence is then not among the rules.
    #[serde(skip)]
    limited: bool,
}

#[derive(Debug, Serialize)]
struct Fact {
    name: &'static str,
    value: String,
}

#[derive(Debug, Serialize)]
struct TriedRule {
    rule: &'static str,
    description: &'static str,
    matched: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    rule: &'static str,
    because: String,
    #[serde(serialize_with = "verdict_name")]
    next: VerdictKind,
    action: Option<&'static str>,
    at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    then: Option<FollowUp>,
}

impl Explanation {
    /// Everything about a subject; the verdict is the one after windows, pace and breaker.
    pub fn new<K: Keeper>(
        keeper: &K,
        subject: &K::Subject,
        verdict: VerdictOf<K>,
        world: &K::World,
        now: Timestamp,
    ) -> Self {
        let mut rules = Vec::new();
        for rule in K::Rule::ALL {
            let found = rule.check(subject, world, now);
            let matched = found.is_some();
            let (rule, description, because) = (rule.name(), rule.doc(), found.map(|found| found.because));
            rules.push(TriedRule { rule, description, matched, because });
            if matched {
                break;
            }
        }
        let shown = keeper.subject_ref(subject);
        let pending = verdict.next.pending_action();
        let steps = pending.map(|action| keeper.describe_steps(subject, action, world, now)).unwrap_or_default();
        Self {
            keeper: keeper.name(),
            kind: shown.kind.to_owned(),
            namespace: shown.namespace.map(str::to_owned),
            name: shown.name.to_owned(),
            at: now,
            facts: keeper.facts(subject, now).into_iter().map(|(name, value)| Fact { name, value }).collect(),
            untried: K::Rule::ALL.len() - rules.len(),
            name_width: K::Rule::ALL.iter().map(|rule| rule.name().len()).max().unwrap_or(0),
            rules,
            steps,
            sentence: sentence(&verdict, now),
            limited: matches!(verdict.rule, RuleId::Engine(_)),
            verdict: Outcome {
                rule: verdict.rule.name(),
                next: verdict.next.kind(),
                action: verdict.next.action().map(Action::name),
                at: verdict.next.deadline(),
                then: next_after(keeper, subject, &verdict, world, now),
                because: verdict.because,
            },
        }
    }

    /// With the window on its object among the facts.
    #[must_use]
    pub fn with_window(mut self, window: Option<String>) -> Self {
        self.facts.extend(window.map(|value| Fact { name: "suspended during", value }));
        self
    }

    /// For people.
    #[must_use]
    pub fn show(&self) -> String {
        let title = self.namespace.as_ref().map_or_else(|| self.name.clone(), |ns| format!("{ns}/{}", self.name));
        let mut text = format!("{} {} at {}\n\nFacts\n", self.kind, sanitize_cell(&title), time::format(self.at));
        let facts = self.facts.iter().map(|fact| [fact.name.to_owned(), fact.value.clone()]);
        text.push_str(&indented(facts.collect()));

        text.push_str("\nRules\n");
        let width = self.name_width;
        let row = |number: String, answer: &str, rule: &str, description: String| {
            [format!("{number:>2}"), format!("{answer:3}"), format!("{rule:width$}"), description]
        };
        let mut rows = Vec::new();
        for (i, TriedRule { rule, description, matched, because }) in self.rules.iter().enumerate() {
            let answer = if *matched { "YES" } else { "no" };
            rows.push(row((i + 1).to_string(), answer, rule, (*description).to_owned()));
            rows.extend(because.iter().map(|because| row(String::new(), "", "", because.clone())));
        }
        if self.untried > 0 {
            rows.push(row(String::new(), "", "", format!("({} more rules are not tried)", self.untried)));
        }
        text.push_str(&indented(rows));

        text.push_str(&format!("\nVerdict\n  {}: {}\n", self.verdict.rule, self.sentence));
        if self.limited {
            text.push_str(&format!("  {}\n", sanitize_cell(&self.verdict.because)));
        }
        for (i, step) in self.steps.iter().enumerate() {
            text.push_str(&format!("    {}. {}\n", i + 1, sanitize_cell(step)));
        }
        if let Some(then) = &self.verdict.then {
            let when = time::ago(then.at, self.at);
            text.push_str(&format!("  then {} at {} ({when})\n", then.action, time::format(then.at)));
        }
        text
    }
}

fn sentence<R: RuleSet>(verdict: &Verdict<R, impl Action>, now: Timestamp) -> String {
    match &verdict.next {
        Next::Nothing => "nothing happens".to_owned(),
        Next::Refuse { bookkeeping: None } => "refused, nothing happens".to_owned(),
        Next::Refuse { bookkeeping: Some(action) } => format!("refused; {} writes that down", action.name()),
        Next::Act { action, due, .. } if *due >= now => format!("{} now", action.name()),
        Next::Act { action, due, .. } => format!("{} now, due {}", action.name(), time::ago(*due, now)),
        Next::Wait { until, then } => {
            format!("{} at {}, {}", then.name(), time::format(*until), time::ago(*until, now))
        }
    }
}
