//! The chart on a real node: installed by Helm, with the images, under Pod Security; made live; and uninstalled.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::foreign_kinds::serve_flux;
use crate::support::operator::{caretaker, create_namespace, state_of, wait_for_state};
use caretaker_test_programs::helm;
use caretaker_testkit::audit::AuditLog;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::{Cluster, make, until};
use kube::Client;
use serde_json::{Value, json};
use xtask::image_for_tests;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const NAMESPACE: &str = "caretaker-system";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const NODE_NAMESPACE: &str = "caretaker-node";
/// The folder with the images that are shipped, as `make images` writes them; without it, images of the programs that
/// the tests use.
const IMAGES: &str = "CARETAKER_IMAGES";
/// The Deployments of the keepers, each with a service account of the same name.
const DEPLOYMENTS: [&str; 4] = ["caretaker", "caretaker-addresses", "caretaker-windows", "caretaker-runtimes"];
/// The pods of a chart start, and on a busy machine that takes a while.
const LIMIT: Duration = Duration::from_mins(3);

pub fn tests() -> Vec<Trial> {
    vec![test(
        "installed_in_dry_run_it_writes_nothing_live_each_keeper_acts_and_a_dry_run_or_an_uninstall_takes_it_back",
        Need::Node,
        installed_made_live_and_uninstalled,
    )]
}

/// A cluster whose pods reach its API server, with the images on its node.
struct Installation {
    cluster: Cluster,
    client: Client,
    server: SocketAddr,
    folder: tempfile::TempDir,
}

impl Installation {
    async fn prepare() -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let cluster = Cluster::builder().node().start().await?;
        let operator = Path::new(env!("CARGO_BIN_EXE_caretaker"));
        for program in [operator.to_owned(), operator.with_file_name("caretaker-node")] {
            let name = program.file_name().and_then(|name| name.to_str()).ok_or("no UTF-8")?;
            let file = format!("{name}-{VERSION}.tar");
            let image = if let Some(images) = std::env::var_os(IMAGES) {
                PathBuf::from(images).join(file)
            } else {
                let image = folder.path().join(file);
                image_for_tests(&format!("{name}:{VERSION}"), &program, &image)?;
                image
            };
            cluster.import_image(&image)?;
        }
        let server = cluster.add_api_server_for_pods().await?;
        let client = cluster.client().await?;
        Ok(Self { cluster, client, server, folder })
    }

    fn apply(&self, name: &str, text: &str) -> Outcome {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text)?;
        self.cluster.kubectl(&["apply", "-f", path.to_str().ok_or("no UTF-8")?])?;
        Ok(())
    }

    /// Runs a command of Helm on the chart with these values.
    fn helm(&self, command: &str, values: &Value) -> Result<String, Box<dyn std::error::Error>> {
        let path = self.folder.path().join("values.yaml");
        std::fs::write(&path, values.to_string())?;
        let (path, chart) = (path.display().to_string(), helm::chart().display().to_string());
        let mut args = vec![command, "caretaker", &chart, "--namespace", NAMESPACE, "--values", &path];
        args.extend(["--wait", "--timeout", "3m"]);
        helm::run_on(&self.cluster, &args).map_err(|error| format!("{error}\n{}", self.pods()).into())
    }

    /// What can be said about the pods if something did not work.
    fn pods(&self) -> String {
        let get = |what: &str| self.cluster.kubectl(&["get", what, "-A", "-o", "wide"]).unwrap_or_default();
        let logs = DEPLOYMENTS.map(|deployment| self.logs(deployment)).concat() + &self.logs(NODE_NAMESPACE);
        format!("{}\n{}\n{logs}", get("pods"), get("events"))
    }

    fn logs(&self, name: &str) -> String {
        let (namespace, pods) = if name == NODE_NAMESPACE {
            (name, format!("app={name}"))
        } else {
            (NAMESPACE, format!("app.kubernetes.io/name={name}"))
        };
        self.cluster.kubectl(&["logs", "-n", namespace, "--prefix", "-l", &pods, "--tail=-1"]).unwrap_or_default()
    }

    /// Makes a container that no agent pod owns, with a process and FIFOs.
    fn make_orphan(&self) -> Outcome {
        let fifos = self.containerd().join("fifo").display().to_string();
        let labels = [
            "fast-sandbox.io/managed=true",
            "fast-sandbox.io/agent-uid=0b7e2a52-6c43-4a87-9d58-30c5a7a10002",
            "fast-sandbox.io/sandbox-name=box",
        ];
        let mut words = vec!["run", "--detach", "--fifo-dir", &fifos];
        words.extend(labels.iter().flat_map(|label| ["--label", label]));
        words.extend([make::IMAGE, ORPHAN]);
        Ok(self.cluster.ctr(&words)?)
    }

    fn containerd(&self) -> PathBuf {
        self.cluster.node().map(|node| node.containerd_folder().to_owned()).unwrap_or_default()
    }

    /// What is left of the orphan: its record, its snapshot, its bundle, its FIFOs.
    fn left_of_orphan(&self) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let socket = self.containerd().join("containerd.sock");
        let listed = |words: &[&str]| -> Result<bool, std::io::Error> {
            let mut ctr = Command::new("ctr");
            let output = ctr.arg("--address").arg(&socket).args(["--namespace", "k8s.io"]).args(words).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).contains(ORPHAN))
        };
        let mut left = Vec::new();
        for words in [["containers", "list"], ["tasks", "list"], ["snapshots", "list"]] {
            if listed(&words)? {
                left.push(words[0].to_owned());
            }
        }
        let bundle = self.containerd().join("io.containerd.runtime.v2.task/k8s.io").join(ORPHAN);
        left.extend(bundle.exists().then(|| "bundle".to_owned()));
        let fifos = std::fs::read_dir(self.containerd().join("fifo"))?.count();
        left.extend((fifos > 0).then(|| "FIFOs".to_owned()));
        Ok(left)
    }

    /// Waits until a line of the journals of a Deployment has all of these words.
    async fn journal_has(&self, deployment: &str, words: &[&str]) -> caretaker_testkit::Result<()> {
        until(&format!("the journal of {deployment} to have {words:?}"), LIMIT, async || {
            let journal = self.logs(deployment);
            let found = journal.lines().any(|line| words.iter().all(|word| line.contains(word)));
            Ok(if found { Ok(()) } else { Err(journal) })
        })
        .await
    }

    /// The calls of an account, by the pods themselves.
    fn calls_of(&self, account: &str) -> caretaker_testkit::Result<AuditLog> {
        let namespace = if account == NODE_NAMESPACE { account } else { NAMESPACE };
        Ok(self.cluster.audit_of(self.server)?.of(&format!("system:serviceaccount:{namespace}:{account}")))
    }

    /// A field of an object, as text.
    fn field(&self, object: &str, path: &str) -> caretaker_testkit::Result<String> {
        let path = format!("jsonpath={{{path}}}");
        self.cluster.kubectl(&["get", "-n", "shop", object, "-o", &path])
    }

    /// The names of all objects of these kinds that have to do with Caretaker.
    fn names(&self, kinds: &str) -> Result<BTreeSet<String>, Box<dyn std::error::Error>> {
        let listed = self.cluster.kubectl(&["get", kinds, "-A", "-o", "json"])?;
        let listed: Value = serde_json::from_str(&listed)?;
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        let named = items.iter().map(|item| {
            let metadata = &item["metadata"];
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let place = [word(&metadata["namespace"]), word(&metadata["name"])].join("/");
            format!("{} {}", word(&item["kind"]), place.trim_start_matches('/'))
        });
        Ok(named.filter(|name| name.contains("caretaker")).collect())
    }
}

const LEAKED_RECORD: &str = r#"{"10.6.0.10":{"pod":"shop/old","podUid":"0b7e2a52-6c43-4a87-9d58-30c5a7a10001"}}"#;
const POOL: &str = "
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderIPPool
metadata: { name: office }
spec: { subnet: 10.6.0.0/24, ipVersion: 4, ips: [10.6.0.10-10.6.0.19] }
";

const ORPHAN: &str = "sandbox-orphan";

const FROZEN: &str = r#"
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata:
  name: apps
  namespace: shop
  annotations: { reconcile.fluxcd.io/suspendedDuring: "@always" }
spec: { interval: 10m }
"#;

const TASK: &str = "
apiVersion: kdoctor.io/v1beta1
kind: Netdns
metadata: { name: dns }
spec: { agentSpec: { kind: DaemonSet } }
";

/// The kinds of everything that the chart makes, beside pods.
const KINDS: &str = "deployments,daemonsets,services,serviceaccounts,configmaps,secrets,leases,jobs,roles,rolebindings,\
                     clusterroles,clusterrolebindings,networkpolicies,poddisruptionbudgets,priorityclasses,namespaces";

/// Something to do for each of the five keepers.
async fn make_work(at: &Installation) -> Outcome {
    let cluster = &at.cluster;
    create_namespace(&at.client, "shop", 2).await;
    at.apply("spiderpool.yaml", &caretaker(cluster, &["addresses", "crds"]).1)?;
    at.apply("kdoctor.yaml", &caretaker(cluster, &["runtimes", "crds"]).1)?;
    let sandboxes = "../../examples/sandboxes/crd.yaml";
    cluster.kubectl(&["apply", "-f", sandboxes])?;
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])?;
    serve_flux(cluster);

    at.apply("pool.yaml", POOL)?;
    let status = json!({ "status": { "allocatedIPs": LEAKED_RECORD, "allocatedIPCount": 1 } }).to_string();
    cluster.kubectl(&["patch", "sp", "office", "--subresource=status", "--type=merge", "-p", &status])?;
    at.apply("frozen.yaml", FROZEN)?;
    at.apply("task.yaml", TASK)?;
    at.make_orphan()
}

/// Nothing wakes in a dry run. So an upgrade that ends in one, and a rollback, wake and resume everything first; then the
/// operator runs as before, and it can be made live again.
async fn back_to_a_dry_run(at: &Installation, dry: &Value, live: &Value) -> Outcome {
    type GoBack<'a> = &'a dyn Fn() -> Result<String, Box<dyn std::error::Error>>;
    let lease = "Lease caretaker-system/caretaker-namespaces";
    let back: [(&str, GoBack<'_>); 2] = [
        ("an upgrade", &|| at.helm("upgrade", dry)),
        // To the first revision, which was a dry run as well.
        ("a rollback", &|| {
            let args = ["rollback", "caretaker", "1", "--namespace", NAMESPACE, "--wait", "--timeout", "3m"];
            let rolled_back = helm::run_on(&at.cluster, &args);
            rolled_back.map_err(|error| format!("{error}\n{}\n{}", at.pods(), at.logs("caretaker-cleanup")).into())
        }),
    ];
    for (what, go_back) in back {
        assert_eq!(state_of(&at.client, "shop").await, ("sleep".to_owned(), 0), "before {what}");
        go_back()?;
        assert_eq!(state_of(&at.client, "shop").await, (String::new(), 2), "after {what}");
        assert_eq!(at.field("kustomization/apps", ".spec.suspend")?, "", "after {what}");
        assert!(!at.names(KINDS)?.contains(lease), "after {what} nobody leads");
        // It rehearses again, with all its replicas and rights to read alone.
        let path = "jsonpath={.status.readyReplicas}";
        let ready = at.cluster.kubectl(&["get", "-n", NAMESPACE, "deployment/caretaker", "-o", path])?;
        assert_eq!(ready, "2", "after {what}");
        // What Caretaker recorded of its use went with the cleanup, so that its clock would start now.
        at.journal_has("caretaker", &[r#""name":"shop""#, r#""outcome":"dry-run""#, r#""rule":"FirstSeen""#]).await?;
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:caretaker");
        let may = at.cluster.kubectl(&["auth", "can-i", "patch", "deployments.apps", "-n", "shop", &account]);
        assert!(may.is_err(), "after {what}: {may:?}");

        at.helm("upgrade", live)?;
        wait_for_state(&at.client, "shop", "sleep", 0).await;
    }
    Ok(())
}

async fn installed_made_live_and_uninstalled() -> Outcome {
    let at = Installation::prepare().await?;
    let cluster = &at.cluster;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    });
    at.apply("namespace.json", &namespace.to_string())?;
    make_work(&at).await?;

    let server = json!([
        { "name": "KUBERNETES_SERVICE_HOST", "value": at.server.ip().to_string() },
        { "name": "KUBERNETES_SERVICE_PORT", "value": at.server.port().to_string() },
    ]);
    let values = |dry_run: bool| {
        let image = |repository: &str| json!({ "repository": repository, "pullPolicy": "Never" });
        let keepers = json!({
            "addresses": { "enabled": true, "settings": { "extraGracePeriod": "0s" } },
            "windows": { "enabled": true },
            "runtimes": { "enabled": true, "settings": { "namespace": "shop" } },
            "containers": {
                "enabled": true, "image": image("caretaker-node"), "args": ["--interval=1s", "--window=1s"],
                "containerd": { "folder": at.containerd() },
            },
        });
        json!({ "dryRun": dry_run, "image": image("caretaker"), "env": server, "keepers": keepers })
    };
    // Helm waits until all pods are Ready.
    let notes = at.helm("install", &values(true))?;
    assert!(notes.contains("in dry run") && notes.contains("--set dryRun=false"), "{notes}");

    // In dry run the journal has what would be done, and nothing is written.
    let dry_run = r#""outcome":"dry-run""#;
    at.journal_has("caretaker", &[r#""name":"shop""#, dry_run, r#""action":"sleep""#]).await?;
    at.journal_has("caretaker-addresses", &["10.6.0.10", dry_run]).await?;
    at.journal_has("caretaker-windows", &[r#""name":"apps""#, dry_run, r#""action":"suspend""#]).await?;
    at.journal_has("caretaker-runtimes", &[r#""name":"dns""#, dry_run]).await?;
    at.journal_has(NODE_NAMESPACE, &[ORPHAN, dry_run]).await?;
    assert_eq!(state_of(&at.client, "shop").await, (String::new(), 2));
    let parts = ["containers", "tasks", "snapshots", "bundle", "FIFOs"];
    assert_eq!(at.left_of_orphan()?, parts);
    for account in DEPLOYMENTS.into_iter().chain([NODE_NAMESPACE]) {
        let calls = at.calls_of(account)?;
        let written = calls.only(|call| !["get", "list", "watch"].contains(&call.verb.as_str()));
        let written = written.only(|call| call.resource != "selfsubjectaccessreviews");
        assert!(!calls.is_empty() && written.is_empty(), "{account} wrote:\n{written}");
    }

    // One value makes it live: each keeper acts with its own rights.
    at.helm("upgrade", &values(false))?;
    wait_for_state(&at.client, "shop", "sleep", 0).await;
    let done = r#""outcome":"done""#;
    at.journal_has("caretaker-addresses", &["10.6.0.10", done, r#""action":"release""#]).await?;
    at.journal_has("caretaker-windows", &[r#""name":"apps""#, done, r#""action":"suspend""#]).await?;
    assert_eq!(at.field("kustomization/apps", ".spec.suspend")?, "true");
    at.journal_has("caretaker-runtimes", &[r#""name":"dns""#, done]).await?;
    at.journal_has(NODE_NAMESPACE, &[ORPHAN, done]).await?;
    assert_eq!(at.left_of_orphan()?, Vec::<String>::new());
    for account in DEPLOYMENTS.into_iter().chain([NODE_NAMESPACE]) {
        let calls = at.calls_of(account)?;
        let refused = calls.only(|call| call.code == Some(403));
        assert!(calls.writes() > 0 && refused.is_empty(), "{account} was refused:\n{refused}");
    }
    let installed = at.names(KINDS)?;
    assert!(installed.contains("Lease caretaker-system/caretaker-namespaces"), "{installed:?}");

    back_to_a_dry_run(&at, &values(true), &values(false)).await?;

    // An uninstall wakes what sleeps, releases what is suspended, and leaves the namespace with what Kubernetes itself
    // puts into it.
    helm::run_on(cluster, &["uninstall", "caretaker", "--namespace", NAMESPACE, "--wait", "--timeout", "3m"])
        .map_err(|error| format!("{error}\n{}\n{}", at.pods(), at.logs("caretaker-cleanup")))?;
    assert_eq!(state_of(&at.client, "shop").await, (String::new(), 2));
    assert_eq!(at.field("kustomization/apps", ".spec.suspend")?, "");
    let left = at.names(KINDS)?;
    let expected = [
        "ConfigMap caretaker-system/kube-root-ca.crt",
        "Namespace caretaker-system",
        "ServiceAccount caretaker-system/default",
    ];
    assert_eq!(left, expected.map(str::to_owned).into());
    let cleanup = at.calls_of("caretaker-cleanup")?;
    let refused = cleanup.only(|call| call.code == Some(403));
    assert!(!cleanup.is_empty() && refused.is_empty(), "{refused}");
    Ok(())
}
