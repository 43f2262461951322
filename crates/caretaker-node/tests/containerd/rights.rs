//! `deploy/containers-live.yaml` on a real API server: it grants exactly the rights that `caretaker-node` uses, and with the
//! report that it writes nothing else in a dry run.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::lab::{Lab, Outcome, State, labels};
use caretaker_containers::api::sandbox_resource;
use caretaker_containers::host::Host;
use caretaker_containers::{Containers, Settings};
use caretaker_engine::permissions::{RequiredRight, required};
use caretaker_engine::sources::Sources;
use caretaker_output::node_report::{KEY, NodeReport, config_map_name};
use caretaker_testkit::audit::AuditLog;
use caretaker_testkit::harness::{Need, Trial, test};
use caretaker_testkit::make::mk_pod;
use caretaker_testkit::{Cluster, Error, shared_with_node, until};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use kube::api::{DynamicObject, ListParams, PostParams};
use serde_json::json;

const LIMIT: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "rights";
const OWN: &str = "caretaker-node";
const ACCOUNT: &str = "system:serviceaccount:caretaker-node:caretaker-node";

type Failable<T> = Result<T, Box<dyn std::error::Error>>;

pub fn tests() -> Vec<Trial> {
    vec![
        test("a_dry_run_writes_its_report_and_nothing_else_and_only_when_it_changes", Need::Node, reported),
        test("with_exactly_the_rights_of_the_manifest_orphans_go", Need::Node, exactly_the_rights),
    ]
}

/// The manifest is applied, Sandboxes are served, and an agent runs.
async fn installed() -> Failable<(&'static Cluster, Lab)> {
    static DONE: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    let cluster = shared_with_node();
    DONE.get_or_try_init(async || -> Outcome {
        let manifest = "../../deploy/containers-live.yaml";
        cluster.kubectl(&["apply", "-f", manifest])?;
        let folder = "../../examples/sandboxes/";
        cluster.kubectl(&["apply", "-f", &format!("{folder}crd.yaml")])?;
        let definition = "crd/sandboxes.sandbox.fast.io";
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", definition])?;
        cluster.namespace(NAMESPACE).await?;
        let client = cluster.client().await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &mk_pod(NAMESPACE, "agent")).await?;
        let sandbox =
            json!({ "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox", "metadata": { "name": "box" } });
        let sandboxes: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &sandbox_resource());
        sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox)?).await?;
        until("the agent to run", LIMIT, async || {
            let agent = pods.get("agent").await.map_err(Error::api("reading the agent"))?;
            let phase = agent.status.and_then(|status| status.phase).unwrap_or_default();
            Ok(if phase == "Running" { Ok(()) } else { Err(phase) })
        })
        .await?;
        Ok(())
    })
    .await?;
    let folder = cluster.folder();
    let host = Host { fifo_root: folder.join("fifo"), state: folder.join("containerd-state"), ..Host::default() };
    let node = cluster.node().ok_or("a node")?;
    Ok((cluster, Lab::attach(node.containerd_socket(), host, "/k8s.io".into()).await?))
}

/// Starts it on the node with the account of the manifest.
async fn start(cluster: &Cluster, lab: &Lab, name: &str, more: &[&str]) -> Outcome {
    let node = cluster.node().ok_or("a node")?;
    let path = |path: &Path| path.display().to_string();
    let mut args = vec![
        "run".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--interval=1s".to_owned(),
        "--window=1s".to_owned(),
        format!("--report={OWN}"),
        format!("--node={}", node.name()),
        format!("--containerd={}", path(node.containerd_socket())),
        format!("--containerd-state={}", path(&lab.host.state)),
        format!("--fifo-root={}", path(&lab.host.fifo_root)),
        format!("--state-file={}", path(&cluster.folder().join(format!("{name}.json")))),
        format!("--kubeconfig={}", path(&cluster.account_kubeconfig(OWN, OWN).await?)),
    ];
    args.extend(more.iter().map(|word| (*word).to_owned()));
    cluster.spawn_on_node(name, Path::new(env!("CARGO_BIN_EXE_caretaker-node")), &args)?;
    Ok(())
}

async fn agent_uid(cluster: &Cluster) -> Failable<String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, NAMESPACE);
    Ok(pods.get("agent").await?.metadata.uid.unwrap_or_default())
}

fn owned<'a>(
    uid: &'a str,
    sandbox: &'a str,
    more: &[(&'a str, &'a str)],
) -> std::collections::BTreeMap<String, String> {
    let own = [("managed", "true"), ("agent-uid", uid), ("sandbox-name", sandbox)];
    labels(&[own.as_slice(), more].concat())
}

const NAMED: [(&str, &str); 2] = [("namespace", NAMESPACE), ("agent-name", "agent")];

fn log(cluster: &Cluster, name: &str) -> String {
    std::fs::read_to_string(cluster.folder().join(format!("{name}.log"))).unwrap_or_default()
}

async fn report(cluster: &Cluster) -> Failable<Option<NodeReport>> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, OWN);
    let name = config_map_name(cluster.node().ok_or("a node")?.name());
    let Some(map) = maps.get_opt(&name).await? else { return Ok(None) };
    let owners = map.metadata.owner_references.unwrap_or_default();
    assert!(owners.iter().any(|owner| owner.kind == "Node"), "it goes with its Node: {owners:?}");
    Ok(Some(NodeReport::parse(&name, &map.data.unwrap_or_default().remove(KEY).unwrap_or_default())?))
}

/// Waits until the report is like this.
async fn until_reported(cluster: &Cluster, name: &str, wanted: impl Fn(&NodeReport) -> bool) -> Failable<NodeReport> {
    let found = until("the report", LIMIT, async || {
        let found = report(cluster).await.map_err(|error| Error::NoNode(error.to_string()))?;
        Ok(match found {
            Some(report) if wanted(&report) => Ok(report),
            other => Err(format!("{other:?}\n{}", log(cluster, name))),
        })
    })
    .await?;
    Ok(found)
}

fn audit(cluster: &Cluster) -> Failable<AuditLog> {
    Ok(cluster.audit()?.of(ACCOUNT))
}

async fn reported() -> Outcome {
    let (cluster, lab) = installed().await?;
    let uid = agent_uid(cluster).await?;
    lab.create("rep-kept", &owned(&uid, "box", &NAMED), State::Running).await?;
    lab.create("rep-orphan", &owned("gone", "box", &[]), State::NoTask).await?;

    start(cluster, &lab, "reporter", &["--dry-run"]).await?;

    let is_complete = |report: &NodeReport| report.waiting.is_empty() && report.kept.contains_key("InUse");
    let report = until_reported(cluster, "reporter", is_complete).await?;
    let [orphan] = report.containers.as_slice() else { panic!("{report:?}") };
    assert_eq!((&*orphan.id, &*orphan.rule, &*orphan.next), ("rep-orphan", "AgentGone", "act"));
    assert_eq!((report.dry_run, report.kept["InUse"]), (true, 1));

    // It looks at the cluster every second, and writes nothing while nothing changes.
    let figures = || -> Result<(usize, usize), Error> {
        let audit = cluster.audit()?.of(ACCOUNT);
        Ok((audit.count("get", "namespaces"), audit.count("patch", "configmaps")))
    };
    let (mut looks, mut writes) = figures()?;
    until("it to look five times without a write", LIMIT, async || {
        let (looked, written) = figures()?;
        if written != writes {
            (looks, writes) = (looked, written);
        }
        Ok(if looked >= looks + 5 { Ok(()) } else { Err(format!("{written} writes")) })
    })
    .await?;
    let all = audit(cluster)?;
    assert_eq!(all.writes(), all.count("patch", "configmaps"), "{all}");

    // Another orphan is news.
    lab.create("rep-second", &owned("gone", "box", &[]), State::NoTask).await?;
    until_reported(cluster, "reporter", |report| report.containers.len() == 2).await?;
    assert!(lab.is_untouched("rep-kept", State::Running).await && lab.is_untouched("rep-orphan", State::NoTask).await);
    cluster.stop("reporter")?;
    Ok(())
}

/// A right, as a rule of a role: group, resource, verb, object.
type Right = (String, String, String, Option<String>);

fn rights(rules: Vec<PolicyRule>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        let names = rule.resource_names.map_or(vec![None], |names| names.into_iter().map(Some).collect());
        for (group, resource) in rule.api_groups.iter().flatten().zip(rule.resources.iter().flatten()) {
            for verb in &rule.verbs {
                rights.extend(names.iter().map(|name| (group.clone(), resource.clone(), verb.clone(), name.clone())));
            }
        }
    }
    rights
}

/// True if a call of the account needed this right. An apply that creates an object is authorized as both.
fn is_used((_, resource, verb, name): &Right, audit: &AuditLog) -> bool {
    audit.calls().iter().any(|call| {
        let creates = verb == "create" && call.verb == "patch" && call.code == Some(201);
        // Of a list by field selector the audit log has no name.
        let named = name.as_ref().is_none_or(|name| call.name == *name || call.query.contains(name.as_str()));
        call.resource == *resource && (call.verb == *verb || creates) && named
    })
}

async fn exactly_the_rights() -> Outcome {
    let (cluster, lab) = installed().await?;
    let client = cluster.client().await?;
    let uid = agent_uid(cluster).await?;
    let everywhere = Api::<ClusterRole>::all(client.clone()).get(OWN).await?.rules.unwrap_or_default();
    let own = Api::<Role>::namespaced(client.clone(), OWN).get(OWN).await?.rules.unwrap_or_default();
    let granted: BTreeSet<Right> = rights(everywhere).into_iter().chain(rights(own)).collect();

    // The pods of its DaemonSet are admitted: the namespace lets privileged ones in. Their image is nowhere.
    until("the DaemonSet to have a pod", LIMIT, async || {
        let pods: Api<Pod> = Api::namespaced(client.clone(), OWN);
        let found = pods.list(&ListParams::default().labels("app=caretaker-node")).await;
        let found = found.map_err(Error::api("listing pods"))?;
        Ok(if found.items.is_empty() { Err("no pod".to_owned()) } else { Ok(()) })
    })
    .await?;

    // With every label, with the three of the specification alone, and a Sandbox that is missing in either form.
    lab.create("right-kept", &owned(&uid, "box", &NAMED), State::Running).await?;
    lab.create("right-agent", &owned("gone", "box", &NAMED), State::Running).await?;
    lab.create("right-uid", &owned("nobody", "box", &[]), State::Running).await?;
    lab.create("right-sandbox", &owned(&uid, "missing", &NAMED), State::Running).await?;
    lab.create("right-anywhere", &owned(&uid, "nowhere", &[]), State::Running).await?;
    start(cluster, &lab, "cleaner", &[]).await?;
    for id in ["right-agent", "right-uid", "right-sandbox", "right-anywhere"] {
        until(&format!("{id} to be gone"), LIMIT, async || {
            Ok(if lab.get(id).await.is_none() { Ok(()) } else { Err(log(cluster, "cleaner")) })
        })
        .await?;
    }
    until_reported(cluster, "cleaner", |report| !report.dry_run && report.kept.contains_key("InUse")).await?;
    assert!(lab.is_untouched("right-kept", State::Running).await);

    let settings = Settings::new("node", "/nonexistent/state.json");
    let keeper = Containers::new(
        settings,
        Arc::new(caretaker_containers::containerd::GrpcClient::new(Path::new("/nonexistent"), "k8s.io")?),
        Host::default(),
    );
    let required: BTreeSet<Right> = required(&keeper, &Sources::of(&keeper), false)
        .into_iter()
        .map(|RequiredRight { right, .. }| (right.group, right.resource, right.verb.to_owned(), right.name))
        .collect();
    assert!(required.is_subset(&granted), "required and not granted: {:?}", required.difference(&granted));
    until("every right to be used or required", LIMIT, async || {
        let audit = audit(cluster).map_err(|error| Error::NoNode(error.to_string()))?;
        let unused: Vec<&Right> =
            granted.iter().filter(|right| !required.contains(*right) && !is_used(right, &audit)).collect();
        Ok(if unused.is_empty() { Ok(()) } else { Err(format!("{unused:?}\n{audit}")) })
    })
    .await?;
    let refused = audit(cluster)?.only(|call| call.code == Some(403));
    assert!(refused.is_empty(), "{refused}\n{:?}", refused.calls());
    cluster.stop("cleaner")?;
    Ok(())
}
