//! The reports of nodes in `caretaker plan`, on a real API server.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use caretaker::output::node_report::{KEY, LABEL, NAMESPACE, NodeReport, ReportedContainer, config_map_name};
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_testkit::make::{mk_binding_to_user, mk_cluster_role};
use caretaker_testkit::{Cluster, shared};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn container(id: &str, next: &str, because: &str) -> ReportedContainer {
    ReportedContainer {
        id: id.to_owned(),
        state: None,
        rule: "AgentGone".to_owned(),
        because: because.to_owned(),
        next: next.to_owned(),
        action: Some("clean".to_owned()),
        at: Some("2036-01-01T00:00:00Z".parse().unwrap()),
    }
}

/// Three nodes: one that has just reported, one whose report is three hours old, and one without a report.
async fn populated() -> Result<&'static Cluster, Box<dyn std::error::Error>> {
    static DONE: OnceCell<()> = OnceCell::const_new();
    DONE.get_or_try_init(|| populate(shared(), SignedDuration::ZERO)).await?;
    Ok(shared())
}

async fn populate(cluster: &Cluster, age: SignedDuration) -> Outcome {
    let client = cluster.client().await?;
    cluster.namespace(NAMESPACE).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    for name in ["node-a", "node-b", "node-c"] {
        nodes.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": name } }))?).await?;
    }
    let now = Timestamp::now();
    let fresh = NodeReport {
        node: "node-a".to_owned(),
        at: now - age,
        dry_run: true,
        containers: vec![
            container("sb-1", "act", "no pod has the uid 7"),
            container("sb-2", "later", "unknown verdict"),
        ],
        kept: [("InUse".to_owned(), 8), ("NoAgentUid".to_owned(), 1)].into(),
        residue: 2,
        ..NodeReport::default()
    };
    let old = NodeReport {
        node: "node-b".to_owned(),
        at: now - SignedDuration::from_hours(3),
        containers: vec![container("sb-3", "refuse", "one\nKIND forged")],
        breaker: Some("30 of 40 within ten minutes".to_owned()),
        waiting: vec!["containerd: it does not answer".to_owned()],
        ..NodeReport::default()
    };
    let gone = NodeReport {
        node: "node-x".to_owned(),
        at: now,
        containers: vec![container("sb-4", "act", "a node that does not exist")],
        ..NodeReport::default()
    };
    let stolen =
        NodeReport { node: "node-a".to_owned(), containers: vec![container("sb-5", "act", "")], ..fresh.clone() };
    for (name, report) in [
        (config_map_name("node-a"), &fresh),
        (config_map_name("node-b"), &old),
        (config_map_name("node-x"), &gone),
        ("another".to_owned(), &stolen),
    ] {
        let map = json!({
            "metadata": { "name": name, "labels": { LABEL.0: LABEL.1 } },
            "data": { KEY: serde_json::to_string(report)? },
        });
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    }
    Ok(())
}

fn caretaker(args: &[&str], kubeconfig: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caretaker"));
    command.args(args).env("KUBECONFIG", kubeconfig).env_remove("CARETAKER_CONFIG").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn one_command_shows_the_containers_of_all_nodes_with_the_age_of_each_report() -> Outcome {
    let cluster = populated().await?;

    let output = caretaker(&["plan", "--keepers", "containers"], &cluster.kubeconfig());

    let (shown, notes) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "one report cannot be read: {notes}");
    let line = |start: &str| shown.lines().find(|line| line.starts_with(start)).unwrap_or_default();
    assert!(line("Container  node-a/sb-1").contains("clean") && line("Container  node-a/sb-1").contains("AgentGone"));
    assert!(line("Container  node-b/sb-3").contains("refused"), "{shown}");
    assert!(shown.contains("11 subjects: 1 to act on now, 1 refused, 0 waiting, 9 with nothing to do"), "{shown}");
    assert!(line("node-a").contains("dry run") && line("node-a").contains("8 InUse, 1 NoAgentUid"), "{shown}");
    assert!(line("node-b").contains("3h ago") && line("node-c").contains("never"), "{shown}");
    assert!(!shown.lines().any(|line| line.starts_with("KIND forged")), "a forged line");
    assert!(!shown.contains("sb-4") && !shown.contains("sb-5") && !shown.contains("node-x"), "{shown}");
    for expected in [
        "1 node has not reported its containers: node-c",
        "the report of node-b is 3h old",
        "the breaker of node-b is open: 30 of 40 within ten minutes",
        "node-b waits, and cleans nothing meanwhile: containerd: it does not answer",
        "node-a has 2 traces of containers without a record",
        "ConfigMap caretaker-node/another, key report.json: it is about the node \"node-a\"",
    ] {
        assert!(notes.contains(expected), "{expected}\n{notes}");
    }
    Ok(())
}

/// Hours ago, so that the text is the same however long the test takes.
#[tokio::test]
async fn on_a_terminal_it_looks_like_this() -> Outcome {
    let cluster = Cluster::builder().start().await?;
    populate(&cluster, SignedDuration::from_hours(2)).await?;
    for columns in [80, 200] {
        let program = env!("CARGO_BIN_EXE_caretaker");
        let command =
            format!("stty cols {columns} rows 24; exec {program} plan --keepers containers --all 2>/dev/null");
        let script = ["--quiet", "--return", "--command", &command, "/dev/null"];
        let mut terminal = Command::new("script");
        terminal.args(script).env("KUBECONFIG", cluster.kubeconfig());
        let output = terminal.env_remove("CARETAKER_CONFIG").env_remove("NO_COLOR").stdin(Stdio::null()).output()?;
        let shown = text(&output.stdout).replace("\r\n", "\n");
        let path = format!("tests/golden/plan-containers-{columns}.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &shown)?;
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(golden == shown, "{path} is out of date: run with UPDATE_GOLDEN=1\n{shown}");
    }
    Ok(())
}

#[tokio::test]
async fn a_plan_of_everything_has_them_in_json_with_their_node_and_one_of_a_namespace_has_not() -> Outcome {
    let cluster = populated().await?;
    let plan = |args: &[&str]| -> Vec<Value> {
        let args = [["plan", "-o", "json"].as_slice(), args].concat();
        let output = caretaker(&args, &cluster.kubeconfig());
        assert!(output.status.success() || output.status.code() == Some(3), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let containers = |rows: &[Value]| rows.iter().filter(|row| row["kind"] == "Container").count();

    let all = plan(&["--keepers", "namespaces,containers"]);

    let row = all.iter().find(|row| row["name"] == "sb-1").ok_or("sb-1")?;
    assert_eq!((&row["node"], &row["namespace"], &row["next"]), (&json!("node-a"), &Value::Null, &json!("act")));
    assert!(all.iter().any(|row| row["kind"] == "Namespace"));
    assert_eq!(containers(&plan(&[])), 2, "without --keepers they are there");
    assert_eq!(containers(&plan(&["-n", "default"])), 0);
    assert_eq!(containers(&plan(&["--keepers", "namespaces"])), 0);
    let files = caretaker(&["plan", "--keepers", "containers", "--from", "/dev/null"], Path::new("/nonexistent"));
    assert!(text(&files.stderr).contains("judged on their node"), "{}", text(&files.stderr));
    Ok(())
}

#[tokio::test]
async fn the_rights_to_list_configmaps_and_nodes_are_enough_and_what_is_missing_is_said() -> Outcome {
    let cluster = populated().await?;
    let client = cluster.client().await?;
    let users = [("full", "configmaps,nodes"), ("half", "configmaps"), ("none", "pods")];
    for (user, resources) in users {
        let role = mk_cluster_role(user, &[("", resources, "list")]);
        Api::all(client.clone()).create(&PostParams::default(), &role).await?;
        Api::all(client.clone()).create(&PostParams::default(), &mk_binding_to_user(user, user)).await?;
    }
    let ask = |user: &str| -> Result<(String, String), Box<dyn std::error::Error>> {
        let kubeconfig = cluster.user_kubeconfig(user, None)?;
        let output = caretaker(&["plan", "--keepers", "containers"], &kubeconfig);
        assert_eq!(output.status.code(), Some(3), "part of it is unread");
        Ok((text(&output.stdout), text(&output.stderr)))
    };

    let (full, half, none) = (ask("full")?, ask("half")?, ask("none")?);

    assert!(full.0.contains("node-a/sb-1") && !full.1.contains("could not be"), "{}", full.1);
    assert!(half.0.contains("node-a/sb-1") && half.1.contains("nodes could not be listed"), "{}", half.1);
    assert!(none.0.starts_with("0 subjects") && none.1.contains("could not be read, so their containers are missing"));
    assert_eq!(cluster.audit()?.of("full").writes(), 0);
    Ok(())
}
