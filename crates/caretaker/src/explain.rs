//! `caretaker explain`: every fact about one subject, and every rule tried on it.

use anyhow::{Result, bail};
use caretaker_core::limits::{BREAKER_OPEN, PACED};
use caretaker_core::{Action, Keeper, Next, Timestamp, Verdict, time};
use caretaker_namespaces::subject::ago;
use serde::Serialize;

use crate::cli::{Explain, TextOutput};
use crate::keepers::{ALL, Kind, Listed};
use crate::output::{Answer, cell, json};
use crate::plan::{Then, follows};
use crate::scene::Scene;

/// Everything there is to say about a subject.
#[derive(Debug, Serialize)]
pub struct Story {
    keeper: &'static str,
    kind: &'static str,
    namespace: Option<String>,
    name: String,
    at: Timestamp,
    facts: Vec<Fact>,
    rules: Vec<Tried>,
    verdict: Outcome,
    /// What would be written, in order.
    steps: Vec<String>,
    /// How many rules were not asked any more.
    #[serde(skip)]
    left: usize,
    /// How long the longest name of a rule is.
    #[serde(skip)]
    widest: usize,
    #[serde(skip)]
    sentence: String,
}

#[derive(Debug, Serialize)]
struct Fact {
    name: &'static str,
    value: String,
}

#[derive(Debug, Serialize)]
struct Tried {
    rule: &'static str,
    says: &'static str,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    rule: &'static str,
    because: String,
    next: &'static str,
    action: Option<&'static str>,
    at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    then: Option<Then>,
}

/// Answers it.
pub fn answer(args: &Explain, now: Timestamp) -> Result<Answer> {
    let at = args.at.unwrap_or(now);
    let (keeper, kind, name) = parse(&args.subject)?;
    let scene = Scene::read_for(keeper, &args.source)?;
    let story = match scene.stages.first() {
        Some(stage) => stage.explain(kind, name, args.namespace.as_deref(), at),
        None => Err(format!("the keeper {} has nothing to look at", keeper.name())),
    };
    let story = match story {
        Ok(story) => story,
        Err(why) => return Ok(scene.refused(why)),
    };
    let text = match args.output {
        TextOutput::Text => story.tell(),
        TextOutput::Json => json(&story)?,
    };
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

/// The keeper that judges such a kind, the kind, and the name.
fn parse(words: &[String]) -> Result<(&'static dyn Listed, &'static Kind, &str)> {
    let said = match words {
        [kind, name] if !kind.contains('/') => Some((kind.as_str(), name.as_str())),
        [word] => word.split_once('/'),
        _ => None,
    };
    let Some((kind, name)) = said.filter(|(_, name)| !name.is_empty()) else {
        bail!("{:?} is not KIND/NAME; write for instance namespace/shop", words.join(" "));
    };
    let word = kind.to_ascii_lowercase();
    let mut kinds = ALL.iter().flat_map(|keeper| keeper.kinds().iter().map(|kind| (*keeper, kind)));
    match kinds.find(|(_, kind)| kind.words.contains(&word.as_str())) {
        Some((keeper, kind)) => Ok((keeper, kind, name)),
        None => bail!("no keeper judges a {kind:?}; the kinds are {}", all_kinds()),
    }
}

fn all_kinds() -> String {
    let kinds: Vec<&str> = ALL.iter().flat_map(|k| k.kinds()).filter_map(|kind| kind.words.first().copied()).collect();
    match kinds.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => kinds.concat(),
    }
}

impl Story {
    /// What there is to say about a subject.
    pub(crate) fn of<K: Keeper>(
        subject: &K::Subject,
        verdict: Verdict<K::Action>,
        world: &K::World,
        now: Timestamp,
    ) -> Self {
        let all = K::rules();
        let mut rules = Vec::new();
        for (rule, found) in all.trace(subject, world, now) {
            let fits = found.is_some();
            rules.push(Tried { rule: rule.name, says: rule.doc, fits, because: found.map(|f| f.because) });
            if fits {
                break;
            }
        }
        let name = K::name(subject);
        Self {
            keeper: K::NAME,
            kind: name.kind,
            namespace: name.namespace.map(str::to_owned),
            name: name.name.to_owned(),
            at: now,
            facts: K::facts(subject, now).into_iter().map(|(name, value)| Fact { name, value }).collect(),
            left: all.0.len() - rules.len(),
            widest: all.0.iter().map(|r| r.name.len()).max().unwrap_or(0),
            rules,
            steps: verdict.next.pending_action().map(|action| K::steps(subject, action, world, now)).unwrap_or_default(),
            sentence: sentence(&verdict, now),
            verdict: Outcome {
                rule: verdict.rule,
                next: verdict.next.name(),
                action: verdict.next.action().map(K::Action::name),
                at: verdict.next.deadline(),
                then: follows::<K>(subject, &verdict, world, now),
                because: verdict.because,
            },
        }
    }

    fn tell(&self) -> String {
        let title = self.namespace.as_ref().map_or_else(|| self.name.clone(), |ns| format!("{ns}/{}", self.name));
        let mut text = format!("{} {} at {}\n\nFacts\n", self.kind, cell(&title), time::format(self.at));
        let wide = self.facts.iter().map(|f| f.name.len()).max().unwrap_or(0);
        for Fact { name, value } in &self.facts {
            text.push_str(&format!("  {name:wide$}  {}\n", cell(value)));
        }

        text.push_str("\nRules\n");
        let wide = self.widest;
        for (i, Tried { rule, says, fits, because }) in self.rules.iter().enumerate() {
            let fits = if *fits { "YES" } else { "no" };
            text.push_str(&format!("  {:>2}  {fits:3}  {rule:wide$}  {says}\n", i + 1));
            if let Some(because) = because {
                text.push_str(&format!("           {:wide$}  {}\n", "", cell(because)));
            }
        }
        if self.left > 0 {
            text.push_str(&format!("           {:wide$}  ({} more rules are not asked)\n", "", self.left));
        }

        text.push_str(&format!("\nVerdict\n  {}: {}\n", self.verdict.rule, self.sentence));
        // These two are no rules of the table, where their reason would stand.
        if [PACED, BREAKER_OPEN].contains(&self.verdict.rule) {
            text.push_str(&format!("  {}\n", cell(&self.verdict.because)));
        }
        for (i, step) in self.steps.iter().enumerate() {
            text.push_str(&format!("    {}. {}\n", i + 1, cell(step)));
        }
        if let Some(then) = &self.verdict.then {
            let when = ago(then.at, self.at);
            text.push_str(&format!("  then {} at {} ({when})\n", then.action, time::format(then.at)));
        }
        text
    }
}

fn sentence(verdict: &Verdict<impl Action>, now: Timestamp) -> String {
    match &verdict.next {
        Next::Nothing => "nothing happens".to_owned(),
        Next::Refuse { bookkeeping: None } => "refused, nothing happens".to_owned(),
        Next::Refuse { bookkeeping: Some(action) } => format!("refused; {} notes it", action.name()),
        Next::Act { action, due } if *due >= now => format!("{} now", action.name()),
        Next::Act { action, due } => format!("{} now, due {}", action.name(), ago(*due, now)),
        Next::Wait { until, then } => format!("{} at {}, {}", then.name(), time::format(*until), ago(*until, now)),
    }
}
