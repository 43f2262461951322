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
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    state: Option<&'static str>,
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
            pool: keeper.pool(subject).map(str::to_owned),
            state: keeper.state(subject, now),
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

    /// For people: the verdict first, then the facts, then the rule that matched or, with `rules`, all that were tried.
    #[must_use]
    pub fn show(&self, rules: bool) -> String {
        let title = self.namespace.as_ref().map_or_else(|| self.name.clone(), |ns| format!("{ns}/{}", self.name));
        let pool = self.pool.as_ref().map(|pool| format!(" in the pool {}", sanitize_cell(pool))).unwrap_or_default();
        let at = time::format(self.at);
        let mut text = format!("{} {}{pool} at {at}\n\nVerdict\n", self.kind, sanitize_cell(&title));
        text.push_str(&self.show_verdict(rules));

        text.push_str("\nFacts\n");
        let facts = self.facts.iter().map(|fact| [fact.name.to_owned(), fact.value.clone()]);
        text.push_str(&indented(facts.collect()));
        if rules {
            text.push_str("\nRules\n");
            text.push_str(&self.show_rules());
        }
        text
    }

    fn show_verdict(&self, rules: bool) -> String {
        let mut rows = vec![[format!("{}: {}", self.verdict.rule, self.sentence)]];
        rows.push([self.verdict.because.clone()]);
        rows.extend(self.steps.iter().enumerate().map(|(i, step)| [format!("  {}. {step}", i + 1)]));
        rows.extend(self.verdict.then.as_ref().map(|then| {
            [format!("then {} at {} ({})", then.action, time::format(then.at), time::ago(then.at, self.at))]
        }));
        // What a window, pace or breaker holds back, a rule asked for.
        let held = self.rules.last().filter(|_| self.limited);
        rows.extend(held.map(|TriedRule { rule, because, .. }| {
            [format!("{rule} asked for it: {}", because.as_deref().unwrap_or_default())]
        }));
        let before = self.rules.len().saturating_sub(1);
        if before > 0 && !rules {
            let others = if before == 1 { "1 rule before it does" } else { "rules before it do" };
            let others = if before == 1 { others.to_owned() } else { format!("{before} {others}") };
            rows.push([format!("{others} not match; --rules shows them")]);
        }
        indented(rows)
    }

    fn show_rules(&self) -> String {
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
        indented(rows)
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
