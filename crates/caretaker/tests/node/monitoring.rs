//! The dashboard and the alerts of the chart: read by promtool, and asked of a real Prometheus that reads the metrics of
//! a running operator.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpStream;

use crate::support::audit::AuditedCluster;
use crate::support::operator::{Operator, TIMEOUT, wait_for_state};
use caretaker_test_programs::helm;
use caretaker_test_programs::prometheus::{self, Prometheus, promtool};
use caretaker_test_programs::workspace;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{Cluster, until};
use serde_json::Value;

type Outcome = Result<(), Box<dyn std::error::Error>>;

pub fn tests() -> Vec<Trial> {
    vec![
        test("every_alert_has_a_runbook_and_a_unit_test", Need::Nothing, async || every_alert_is_documented()),
        test("the_rules_pass_promtool_and_their_unit_tests", Need::Other(prometheus::possible), async || rules_pass()),
        test(
            "every_query_of_the_dashboard_returns_something_of_a_running_operator",
            Need::Other(prometheus::possible),
            queries_return_something,
        ),
    ]
}

fn rules() -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(helm::chart().join("files/rules.yaml"))?;
    let all: Value = serde_saphyr::from_str(&text)?;
    let groups = all["groups"].as_array().ok_or("no groups")?;
    Ok(groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect())
}

fn names_of(rules: &[Value]) -> BTreeSet<String> {
    rules.iter().filter_map(|rule| rule["alert"].as_str()).map(str::to_owned).collect()
}

const UNIT_TESTS: &str = "crates/caretaker/tests/monitoring/rules.test.yaml";

fn every_alert_is_documented() -> Outcome {
    let rules = rules()?;
    let alerts = names_of(&rules);
    assert!(alerts.len() > 5, "{alerts:?}");

    let page = fs::read_to_string(workspace().join("docs/runbooks.md"))?;
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let (titles, texts): (Vec<_>, Vec<_>) = sections.iter().filter_map(|section| section.split_once('\n')).unzip();
    assert_eq!(titles.iter().map(|title| (*title).to_owned()).collect::<BTreeSet<_>>(), alerts);
    for (title, text) in titles.iter().zip(texts) {
        // A runbook without a command to type, or a page to look at, is none.
        assert!(text.contains('`') && text.len() > 150, "the section {title} says too little");
    }
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap_or_default();
        assert_eq!(rule["annotations"]["runbook"], format!("docs/runbooks.md#{}", name.to_lowercase()));
    }

    let unit_tests: Value = serde_saphyr::from_str(&fs::read_to_string(workspace().join(UNIT_TESTS))?)?;
    let cases = unit_tests["tests"].as_array().ok_or("no tests")?.iter();
    let cases = cases.flat_map(|test| test["alert_rule_test"].as_array().cloned().unwrap_or_default());
    let (mut fires, mut is_silent) = (BTreeSet::new(), BTreeSet::new());
    for case in cases {
        let name = case["alertname"].as_str().unwrap_or_default().to_owned();
        let expected = case["exp_alerts"].as_array().is_some_and(|expected| !expected.is_empty());
        if expected { &mut fires } else { &mut is_silent }.insert(name);
    }
    assert_eq!((fires, is_silent), (alerts.clone(), alerts), "each fires once and is silent once");
    Ok(())
}

fn rules_pass() -> Outcome {
    let file = helm::chart().join("files/rules.yaml").display().to_string();
    let said = promtool(&["check", "rules", &file], "")?;
    assert!(said.contains(&format!("{} rules found", rules()?.len())), "{said}");
    let tests = workspace().join(UNIT_TESTS).display().to_string();
    promtool(&["test", "rules", &tests], "")?;
    Ok(())
}

/// The queries of the dashboard, each with the title of its panel.
fn dashboard() -> Result<Vec<(String, String)>, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(helm::chart().join("files/dashboard.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().ok_or("no panels")? {
        let title = panel["title"].as_str().ok_or("no title")?;
        for target in panel["targets"].as_array().ok_or("no targets")? {
            queries.push((title.to_owned(), target["expr"].as_str().ok_or("no expr")?.to_owned()));
        }
    }
    Ok(queries)
}

/// The names of Caretaker's metrics in a query.
fn metric_names(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("caretaker_")).collect()
}

/// The names that Prometheus knows series by.
fn series_names(metrics: &str) -> BTreeSet<&str> {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.split(['{', ' ']).next()).collect()
}

/// What a person would deploy: two namespaces, each of two pods that request something.
const WORKLOADS: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: NAME, labels: { sleepmode.kubefree.com/sleep-after: SLEEP_AFTER, sleepmode.kubefree.com/delete-after: 24h } }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: NAME }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      containers:
        - { name: web, image: web, resources: { requests: { cpu: 250m, memory: 64Mi } } }
";

/// Nobody may scale what is in the namespace `stuck`.
const NO_SCALING: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: no-scaling }
spec:
  matchConstraints:
    namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: stuck } }
    resourceRules: [{ apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments] }]
  validations: [{ expression: "false", message: "this is not scaled" }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: no-scaling }
spec: { policyName: no-scaling, validationActions: [Deny] }
"#;

fn apply(cluster: &Cluster, text: &str) -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("objects.yaml");
    fs::write(&path, text)?;
    cluster.kubectl(&["apply", "-f", path.to_str().ok_or("no UTF-8")?])?;
    Ok(())
}

fn workloads(name: &str, sleep_after: &str) -> String {
    WORKLOADS.replace("NAME", name).replace("SLEEP_AFTER", sleep_after)
}

async fn queries_return_something() -> Outcome {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    let operator = audited.operator().await;
    let prometheus = Prometheus::start(operator.address()).await?;
    apply(audited.cluster(), NO_SCALING)?;
    apply(audited.cluster(), &workloads("shop", "1s"))?;
    wait_for_state(&audited.client, "shop", "sleep", 0).await;
    // A client without a certificate of its own authority.
    let args = audited.args();
    let listen = args.iter().position(|arg| arg == "--audit-listen").ok_or("no receiver")?;
    TcpStream::connect(&args[listen + 1])?.write_all(b"GET / HTTP/1.1\r\n\r\n")?;

    // What sleep saves is what was asleep requested.
    for (query, expected) in [
        ("max(caretaker_sleep_saved_cpu_cores)", 0.5),
        ("max(caretaker_sleep_saved_memory_bytes)", 134_217_728.0),
        (r#"max(caretaker_namespaces{state="sleep"})"#, 1.0),
        (r#"max(caretaker_deadlines_ahead{keeper="namespaces",within="7d"})"#, 1.0),
        (r#"max(caretaker_deadlines_ahead{keeper="namespaces",within="10m"})"#, 0.0),
        (r#"sum(caretaker_deadline_lag_seconds_count{keeper="namespaces"}) > bool 0"#, 1.0),
    ] {
        holds(&prometheus, &operator, query, &|value| (value - expected).abs() < 1e-9).await?;
    }

    // A second action, so that rates have something to show; and one that cannot be done, which grows old.
    apply(audited.cluster(), &workloads("stuck", "1s"))?;
    apply(audited.cluster(), &workloads("later", "1s"))?;
    wait_for_state(&audited.client, "later", "sleep", 0).await;
    operator.tells("stuck", "SleepAfterElapsed sleep partial").await;
    holds(&prometheus, &operator, r#"max(caretaker_oldest_due_age_seconds{keeper="namespaces"})"#, &|age| age > 1.0)
        .await?;
    let dashboard = dashboard()?;
    assert!(dashboard.len() > 10, "{dashboard:?}");
    for (title, query) in &dashboard {
        let shown = holds(&prometheus, &operator, query, &f64::is_finite).await;
        shown.map_err(|error| format!("the panel {title:?}: {error}"))?;
    }

    let metrics = operator.ask("/metrics").1;
    let known = series_names(&metrics);
    let rules = rules()?;
    let alerts = rules.iter().filter_map(|rule| rule["expr"].as_str());
    for query in dashboard.iter().map(|(_, query)| query.as_str()).chain(alerts) {
        prometheus.query(query)?;
        let asked = metric_names(query);
        assert!(!asked.is_empty() && asked.is_subset(&known), "{query} asks for what is not among {known:?}");
    }
    names_are_good(&metrics)?;
    names_are_documented(&metrics)
}

/// Waits until a query has a sample with a value of which this holds.
async fn holds(prometheus: &Prometheus, operator: &Operator, query: &str, is_good: &dyn Fn(f64) -> bool) -> Outcome {
    until(&format!("the query {query} to return something"), TIMEOUT, async || {
        let samples = prometheus.query(query)?;
        let mut values = samples.iter().filter_map(|sample| sample["value"][1].as_str()?.parse::<f64>().ok());
        let found = values.any(is_good);
        Ok(if found { Ok(()) } else { Err(format!("{samples:?}\n{}", operator.ask("/metrics").1)) })
    })
    .await?;
    Ok(())
}

/// The names and types, in the format that promtool reads: it knows nothing of OpenMetrics.
fn names_are_good(metrics: &str) -> Outcome {
    let mut classic = String::new();
    let mut counters = BTreeSet::new();
    for line in metrics.lines().filter(|line| line.starts_with("# TYPE ")) {
        if let Some(name) = line.strip_suffix(" counter").and_then(|line| line.strip_prefix("# TYPE ")) {
            counters.insert(name);
        }
    }
    for line in metrics.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let line = match words[..] {
            ["#", what, name, text] if counters.contains(name) => format!("# {what} {name}_total {text}"),
            ["#", what, "caretaker_build", text] => {
                format!("# {what} caretaker_build_info {}", text.replace("info", "gauge"))
            }
            _ => line.to_owned(),
        };
        classic += &format!("{line}\n");
    }
    promtool(&["check", "metrics"], &classic)?;
    Ok(())
}

/// Every metric is on a page, by its full name.
fn names_are_documented(metrics: &str) -> Outcome {
    let mut pages = String::new();
    for entry in fs::read_dir(workspace().join("docs"))? {
        pages += &fs::read_to_string(entry?.path())?;
    }
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names = families.map(|(name, kind)| match kind {
        "counter" => format!("{name}_total"),
        "info" => format!("{name}_info"),
        _ => name.to_owned(),
    });
    let missing: Vec<String> = names.filter(|name| !pages.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty(), "no page has {missing:?}");
    Ok(())
}
