//! Commands that keep running with `-w`, on a real API server; and what `plan` says about keepers that are off.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::support::foreign_kinds::serve_flux;
use crate::support::operator;
use crate::support::operator::{SLEEP_AFTER, TIMEOUT, caretaker, serve_kinds};
use caretaker_test_programs::operator::signal;
use caretaker_testkit::make::{Said, mk_namespace};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;

/// A cluster with two namespaces, and a kubeconfig of a user with the role of a reader.
async fn reader() -> (Cluster, Client, std::path::PathBuf) {
    let (cluster, client) = operator::cluster().await;
    for name in ["shop", "still"] {
        let namespace = mk_namespace(name).label(SLEEP_AFTER, "500h");
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    }
    let used = operator::used(operator::second() + 1);
    operator::annotate(&client, "still", operator::ACTIVITY, Some(&used)).await;
    let people = "../../deploy/people.yaml";
    cluster.kubectl(&["apply", "-f", people]).unwrap();
    let binding = ["create", "clusterrolebinding", "rita", "--user=rita", "--clusterrole=caretaker-reader"];
    cluster.kubectl(&binding).unwrap();
    let rita = cluster.user_kubeconfig("rita", None).unwrap();
    (cluster, client, rita)
}

/// A command that keeps running, and what it prints.
struct Watching {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
    seen: Vec<String>,
}

fn lines_of(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(from).lines().map_while(Result::ok);
        lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
    });
    receiver
}

impl Watching {
    fn start(kubeconfig: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_caretaker"))
            .args(args)
            .env("KUBECONFIG", kubeconfig)
            .env_remove("CARETAKER_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let errors = lines_of(child.stderr.take().unwrap());
        Self { child, lines, errors, seen: Vec::new() }
    }

    /// Waits for a line of which this holds, and returns it.
    async fn shows(&mut self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        until(&format!("a line: {what}"), TIMEOUT, async || {
            for line in self.lines.try_iter() {
                self.seen.push(line);
                if self.seen.last().is_some_and(|line| holds(line)) {
                    return Ok(Ok(self.seen.last().cloned().unwrap_or_default()));
                }
            }
            Ok(Err(format!("{:?}", self.seen)))
        })
        .await
        .unwrap()
    }

    /// Ends it as Ctrl-C does; its exit status, and everything on standard error.
    fn interrupt(mut self) -> (ExitStatus, Vec<String>) {
        signal("INT", self.child.id());
        let status = self.child.wait().unwrap();
        (status, self.errors.iter().collect())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn plan_names_the_keepers_that_are_off_although_the_cluster_has_what_they_work_on() {
    let (cluster, _client) = operator::cluster().await;
    let (code, _, errors) = caretaker(&cluster, &["plan"]);
    assert_eq!(code, 0);
    assert!(!errors.contains("is off"), "nothing is installed: {errors}");

    serve_kinds(&cluster, "addresses");
    serve_flux(&cluster);
    let (code, _, errors) = caretaker(&cluster, &["plan"]);
    assert_eq!(code, 0);
    assert!(errors.contains("the keeper addresses is off, although the cluster has SpiderIPPool"), "{errors}");
    assert!(errors.contains("--keepers addresses") && errors.contains("keepers.addresses.enabled"), "{errors}");
    assert!(errors.contains("the keeper windows is off") && !errors.contains("keeper runtimes"), "{errors}");

    let (_folder, config) = operator::settings("keepers: {addresses: {enabled: true}, windows: {enabled: true}}");
    for args in [&["plan", "--config", config.to_str().unwrap()][..], &["plan", "--keepers", "namespaces"]] {
        let (_, _, errors) = caretaker(&cluster, args);
        assert!(!errors.contains("is off"), "{args:?}: {errors}");
    }
}

#[tokio::test]
async fn a_watched_plan_shows_a_row_again_when_it_changes_and_no_other() {
    let (cluster, client, rita) = reader().await;
    operator::annotate(&client, "still", operator::ACTIVITY, None).await;
    let mut plan = Watching::start(&rita, &["plan", "-w"]);
    plan.shows("titles", |line| line.starts_with("KIND") && line.contains("STATE")).await;
    // Their order is that of their deadlines, which are spread by their uids.
    for which in ["one namespace", "the other"] {
        plan.shows(which, |line| line.contains("still ") || line.contains("shop ")).await;
    }
    for name in ["still ", "shop "] {
        assert!(plan.seen.iter().any(|line| line.contains(name)), "{:?}", plan.seen);
    }

    let first = plan.seen.len();
    let (code, _, errors) = caretaker(&cluster, &["sleep", "shop"]);
    assert_eq!(code, 0, "{errors}");
    let row = plan.shows("shop asleep", |line| line.contains("shop ") && line.contains("  asleep ")).await;
    let column = |line: &str, word: &str| line.find(word).map(|at| line[..at].chars().count());
    assert_eq!(column(&row, "asleep"), column(&plan.seen[0], "STATE"), "aligned with what is above: {:?}", plan.seen);

    // A change that is none for the plan; and one that shows that it was looked at.
    cluster.kubectl(&["annotate", "namespace", "still", "example.com/a=b"]).unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    plan.shows("shop on its way", |line| line.contains("shop ") && !line.contains(" asleep ")).await;
    assert!(!plan.seen[first..].iter().any(|line| line.contains("still ")), "{:?}", plan.seen);

    let (status, errors) = plan.interrupt();
    assert_eq!(status.code(), Some(0), "{errors:?}");
    assert!(!errors.iter().any(|line| line.contains("trying again")), "everything is watched: {errors:?}");
    let refused = cluster.audit().unwrap().of("rita").only(|call| call.code == Some(403));
    let refused = refused.only(|call| call.namespace != "caretaker-node");
    assert!(refused.is_empty(), "{refused}");
}

#[tokio::test]
async fn a_watched_plan_follows_the_clock_and_the_state_of_the_operator() {
    let (cluster, client, rita) = reader().await;
    // In one namespace the reports of nodes are not read, which would be a reason to judge again.
    let mut plan = Watching::start(&rita, &["plan", "-w", "-o", "json", "--next", "sleep", "-n", "still"]);
    plan.shows("a row", |line| line.contains("\"still\"")).await;
    let row = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    assert!(plan.seen.iter().map(|line| row(line)).all(|row| row["next"] == "wait"), "{:?}", plan.seen);

    // Nothing but the time changes.
    operator::label(&client, "still", operator::second() + 2).await;
    plan.shows("still due", |line| row(line)["name"] == "still" && row(line)["next"] == "act").await;

    // Settings and state are not watched but read from time to time.
    let open = r#"--from-literal=namespaces={"open":{"since":"2026-03-01T00:00:00Z","because":"30 of 40"}}"#;
    cluster.kubectl(&["-n", "caretaker-system", "create", "configmap", "caretaker-state", open]).unwrap();
    let refused = plan.shows("still refused", |line| row(line)["rule"] == "BreakerOpen").await;
    assert_eq!((&row(&refused)["name"], &row(&refused)["next"]), (&"still".into(), &"refuse".into()));
}

#[tokio::test]
async fn a_watch_ends_when_nobody_reads_any_more_although_nothing_changes() {
    let (_cluster, _client, rita) = reader().await;
    for args in [&["plan", "-w"][..], &["activity", "-w"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_caretaker"))
            .args(args)
            .env("KUBECONFIG", &rita)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if args[0] == "plan" {
            let mut first = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
            assert!(first.starts_with("KIND"), "{first}");
        }
        drop(child.stdout.take());

        let ended = until(&format!("{args:?} to end"), TIMEOUT, async || {
            Ok(child.try_wait().unwrap().ok_or_else(|| "it runs".to_owned()))
        })
        .await;
        let _ = child.kill();
        assert_eq!(ended.unwrap().code(), Some(0), "{args:?}");
    }
}

#[tokio::test]
async fn watched_runtimes_show_a_task_that_is_created_and_one_that_is_gone() {
    let (cluster, _client, rita) = reader().await;
    serve_kinds(&cluster, "runtimes");
    let named = "--from-literal=config.yaml=keepers: {runtimes: {namespace: kdoctor}}";
    cluster.kubectl(&["-n", "caretaker-system", "create", "configmap", "caretaker-config", named]).unwrap();
    let mut runtimes = Watching::start(&rita, &["runtimes", "-w"]);
    let example = "tests/watching/netreach.yaml";
    cluster.kubectl(&["apply", "-f", example]).unwrap();

    runtimes.shows("the task", |line| line.starts_with("NetReach/mesh")).await;
    assert!(runtimes.seen[0].starts_with("TASK"), "{:?}", runtimes.seen);
    cluster.kubectl(&["delete", "-f", example]).unwrap();
    runtimes.shows("the task gone", |line| line.starts_with("NetReach/mesh") && line.contains("gone")).await;
    assert_eq!(runtimes.interrupt().0.code(), Some(0));
}
