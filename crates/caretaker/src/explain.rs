//! `caretaker explain`: every fact about one subject, and every rule tried on it.

use anyhow::{Result, bail};
use caretaker_core::admit::{BREAKER_OPEN, PACED};
use caretaker_core::{Action as _, Next, Timestamp, Verdict, time};
use caretaker_namespaces::act::{Action, steps};
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::subject::{Kind, Subject, ago};
use serde::Serialize;

use crate::cli::{Explain, TextOutput};
use crate::output::{Answer, cell, json};
use crate::plan::{Then, follows};
use crate::scene::{Scene, missing};

/// Everything there is to say about a subject.
#[derive(Debug, Serialize)]
struct Story {
    keeper: &'static str,
    kind: String,
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
    let (kind, name) = parse(&args.subject)?;
    let scene = Scene::read(&args.source)?;
    let place = match find(&scene.subjects, kind, name, args.namespace.as_deref()) {
        Ok(place) => place,
        Err(why) => return Ok(scene.refused(why)),
    };
    let story = Story::of(&scene, place, at);
    let text = match args.output {
        TextOutput::Text => story.tell(),
        TextOutput::Json => json(&story)?,
    };
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

fn parse(words: &[String]) -> Result<(Kind, &str)> {
    let said = match words {
        [kind, name] if !kind.contains('/') => Some((kind.as_str(), name.as_str())),
        [word] => word.split_once('/'),
        _ => None,
    };
    let Some((kind, name)) = said.filter(|(_, name)| !name.is_empty()) else {
        bail!("{:?} is not KIND/NAME; write for instance namespace/shop", words.join(" "));
    };
    let kind = match kind.to_ascii_lowercase().as_str() {
        "namespace" | "namespaces" | "ns" => Kind::Namespace,
        "deployment" | "deployments" | "deploy" => Kind::Deployment,
        "service" | "services" | "svc" => Kind::Service,
        _ => bail!("no keeper judges a {kind:?}; the kinds are namespace, deployment and service"),
    };
    Ok((kind, name))
}

fn find(subjects: &[Subject], kind: Kind, name: &str, namespace: Option<&str>) -> Result<usize, String> {
    let fits = |s: &Subject| {
        s.kind == kind && s.name == name && (kind == Kind::Namespace || namespace.is_none_or(|ns| s.home() == ns))
    };
    let places: Vec<usize> = (0..subjects.len()).filter(|i| fits(&subjects[*i])).collect();
    match places.as_slice() {
        [place] => Ok(*place),
        [] if kind == Kind::Namespace => {
            let namespaces = subjects.iter().filter(|s| s.kind == Kind::Namespace);
            Err(missing(name, namespaces.map(|s| s.name.as_str())))
        }
        [] => Err(format!(
            "there is no {kind} {name:?} with labels of its own; without them it is judged with its namespace"
        )),
        many => {
            let homes: Vec<&str> = many.iter().map(|i| subjects[*i].home()).collect();
            Err(format!("{kind} {name:?} is in the namespaces {}; choose one with -n", homes.join(", ")))
        }
    }
}

impl Story {
    fn of(scene: &Scene, place: usize, now: Timestamp) -> Self {
        let (subject, world) = (&scene.subjects[place], scene.world_at(now));
        let mut rules = Vec::new();
        for (rule, found) in RULES.trace(subject, &world, now) {
            let fits = found.is_some();
            rules.push(Tried { rule: rule.name, says: rule.doc, fits, because: found.map(|f| f.because) });
            if fits {
                break;
            }
        }
        let verdict = &scene.verdicts(now)[place];
        let to_do = verdict.next.to_do().map(|action| steps(action, subject, &world, now));
        let steps = to_do.unwrap_or_default().iter().map(ToString::to_string).collect();
        Self {
            keeper: caretaker_namespaces::NAME,
            kind: subject.kind.to_string(),
            namespace: subject.namespace.clone(),
            name: subject.name.clone(),
            at: now,
            facts: subject.facts(now).into_iter().map(|(name, value)| Fact { name, value }).collect(),
            left: RULES.0.len() - rules.len(),
            rules,
            verdict: Outcome {
                rule: verdict.rule,
                because: verdict.because.clone(),
                next: verdict.next.name(),
                action: verdict.next.action().map(Action::name),
                at: verdict.next.at(),
                then: follows(subject, verdict, &world, now),
            },
            steps,
            sentence: sentence(verdict, now),
        }
    }

    fn tell(&self) -> String {
        let title = self.namespace.as_ref().map_or_else(|| self.name.clone(), |ns| format!("{ns}/{}", self.name));
        let mut text = format!("{} {} at {}\n\nFacts\n", self.kind, cell(&title), time::show(self.at));
        let wide = self.facts.iter().map(|f| f.name.len()).max().unwrap_or(0);
        for Fact { name, value } in &self.facts {
            text.push_str(&format!("  {name:wide$}  {}\n", cell(value)));
        }

        text.push_str("\nRules\n");
        let wide = RULES.0.iter().map(|r| r.name.len()).max().unwrap_or(0);
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
            text.push_str(&format!("  then {} at {} ({when})\n", then.action, time::show(then.at)));
        }
        text
    }
}

fn sentence(verdict: &Verdict<Action>, now: Timestamp) -> String {
    match &verdict.next {
        Next::Rest => "nothing happens".to_owned(),
        Next::Refuse { record: None } => "refused, nothing happens".to_owned(),
        Next::Refuse { record: Some(action) } => format!("refused; {} notes it", action.name()),
        Next::Act { action, due } => format!("{} now, due {}", action.name(), ago(*due, now)),
        Next::Wait { until, then } => format!("{} at {}, {}", then.name(), time::show(*until), ago(*until, now)),
    }
}
