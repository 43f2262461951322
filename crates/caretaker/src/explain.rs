//! `caretaker explain`: every fact about one subject, and every rule tried on it.

use anyhow::{Result, bail};
use caretaker_core::{Action as _, Next, Timestamp, time};
use caretaker_namespaces::act::steps;
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::subject::{Kind, Subject, ago};

use crate::cli::Explain;
use crate::output::Answer;
use crate::plan::follows;
use crate::scene::Scene;

/// Answers it.
pub fn answer(args: &Explain, now: Timestamp) -> Result<Answer> {
    let at = args.at.unwrap_or(now);
    let (kind, name) = parse(&args.subject)?;
    let scene = Scene::read(&args.source)?;
    let place = find(&scene.subjects, kind, name, args.namespace.as_deref())?;
    let text = tell(&scene, place, at);
    Ok(Answer { text, code: scene.code(), notes: scene.notes })
}

fn parse(text: &str) -> Result<(Kind, &str)> {
    let Some((kind, name)) = text.split_once('/').filter(|(_, name)| !name.is_empty()) else {
        bail!("{text:?} is not KIND/NAME; write for instance namespace/shop");
    };
    let kind = match kind.to_ascii_lowercase().as_str() {
        "namespace" | "namespaces" | "ns" => Kind::Namespace,
        "deployment" | "deployments" | "deploy" => Kind::Deployment,
        "service" | "services" | "svc" => Kind::Service,
        _ => bail!("no keeper judges a {kind:?}; the kinds are namespace, deployment and service"),
    };
    Ok((kind, name))
}

fn find(subjects: &[Subject], kind: Kind, name: &str, namespace: Option<&str>) -> Result<usize> {
    let fits = |s: &Subject| {
        s.kind == kind && s.name == name && (kind == Kind::Namespace || namespace.is_none_or(|ns| s.home() == ns))
    };
    let places: Vec<usize> = (0..subjects.len()).filter(|i| fits(&subjects[*i])).collect();
    match places.as_slice() {
        [place] => Ok(*place),
        [] if kind == Kind::Namespace => bail!("there is no namespace {name:?}"),
        [] => bail!("there is no {kind} {name:?} with labels of its own; without them it is judged with its namespace"),
        many => {
            let homes: Vec<&str> = many.iter().map(|i| subjects[*i].home()).collect();
            bail!("{kind} {name:?} is in the namespaces {}; choose one with -n", homes.join(", "))
        }
    }
}

fn tell(scene: &Scene, place: usize, now: Timestamp) -> String {
    let subject = &scene.subjects[place];
    let title = subject.namespace.as_ref().map_or_else(|| subject.name.clone(), |ns| format!("{ns}/{}", subject.name));
    let mut text = format!("{} {title} at {}\n\nFacts\n", subject.kind, time::show(now));
    let facts = subject.facts(now);
    let wide = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        text.push_str(&format!("  {name:wide$}  {value}\n"));
    }

    text.push_str("\nRules\n");
    let tried = RULES.trace(subject, &scene.world, now);
    let wide = RULES.0.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for (i, (rule, found)) in tried.enumerate() {
        let Some(found) = found else {
            text.push_str(&format!("  {:>2}  no   {:wide$}  {}\n", i + 1, rule.name, rule.doc));
            continue;
        };
        text.push_str(&format!("  {:>2}  YES  {:wide$}  {}\n", i + 1, rule.name, rule.doc));
        text.push_str(&format!("           {:wide$}  {}\n", "", found.because));
        let left = RULES.0.len() - i - 1;
        if left > 0 {
            text.push_str(&format!("           {:wide$}  ({left} more rules are not asked)\n", ""));
        }
        break;
    }

    let verdict = &scene.verdicts(now)[place];
    text.push_str(&format!("\nVerdict\n  {}: {}\n", verdict.rule, sentence(&verdict.next, now)));
    if let Next::Act { action, .. } | Next::Refuse { record: Some(action) } = &verdict.next {
        for (i, step) in steps(action, subject, &scene.world, now).iter().enumerate() {
            text.push_str(&format!("    {}. {step}\n", i + 1));
        }
    }
    if let Some(then) = follows(subject, verdict, &scene.world, now) {
        text.push_str(&format!("  then {} at {} ({})\n", then.action, time::show(then.at), ago(then.at, now)));
    }
    text
}

fn sentence(next: &Next<caretaker_namespaces::act::Action>, now: Timestamp) -> String {
    match next {
        Next::Rest => "nothing happens".to_owned(),
        Next::Refuse { record: None } => "refused, nothing happens".to_owned(),
        Next::Refuse { record: Some(action) } => format!("refused; {} notes it", action.name()),
        Next::Act { action, due } => format!("{} now, due {}", action.name(), ago(*due, now)),
        Next::Wait { until, then } => format!("{} at {}, {}", then.name(), time::show(*until), ago(*until, now)),
    }
}
