//! The chart on a real node: installed by Helm, with the images, under Pod Security; made live; and uninstalled.

#[path = "operator/mod.rs"]
mod operator;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use caretaker_testkit::audit::AuditLog;
use caretaker_testkit::harness::{Need, main as run, test};
use caretaker_testkit::release::image_for_tests;
use caretaker_testkit::{Cluster, helm, until};
use kube::Client;
use operator::{caretaker, create_namespace, state_of, wait_for_state};
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const NAMESPACE: &str = "caretaker-system";
/// The archive of the image that is shipped, as `make images` writes it; without it, an image of the program that the
/// tests use.
const IMAGE: &str = "CARETAKER_IMAGE";
/// The pods of a chart start, and on a busy machine that takes a while.
const LIMIT: Duration = Duration::from_mins(3);

fn main() -> ExitCode {
    run(vec![test(
        "installed_in_dry_run_it_writes_nothing_live_each_keeper_acts_and_an_uninstall_takes_it_back",
        Need::Node,
        installed_made_live_and_uninstalled,
    )])
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
        let image = if let Some(image) = std::env::var_os(IMAGE) {
            PathBuf::from(image)
        } else {
            let image = folder.path().join("caretaker.tar");
            let name = concat!("caretaker:", env!("CARGO_PKG_VERSION"));
            image_for_tests(name, Path::new(env!("CARGO_BIN_EXE_caretaker")), &image)?;
            image
        };
        cluster.import_image(&image)?;
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
        self.cluster.helm(&args).map_err(|error| format!("{error}\n{}", self.pods()).into())
    }

    /// What can be said about the pods if something did not work.
    fn pods(&self) -> String {
        let get = |what: &str| self.cluster.kubectl(&["get", what, "-A", "-o", "wide"]).unwrap_or_default();
        let logs = self.logs("caretaker") + &self.logs("caretaker-addresses");
        let events = self.cluster.kubectl(&["get", "events", "-n", NAMESPACE]).unwrap_or_default();
        format!("{}\n{events}\n{logs}", get("pods"))
    }

    fn logs(&self, deployment: &str) -> String {
        let deployment = format!("app.kubernetes.io/name={deployment}");
        self.cluster.kubectl(&["logs", "-n", NAMESPACE, "--prefix", "-l", &deployment, "--tail=-1"]).unwrap_or_default()
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
        Ok(self.cluster.audit_of(self.server)?.of(&format!("system:serviceaccount:{NAMESPACE}:{account}")))
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

/// The kinds of everything that the chart makes, beside pods.
const KINDS: &str = "deployments,services,serviceaccounts,configmaps,secrets,leases,jobs,roles,rolebindings,clusterroles,\
                     clusterrolebindings,networkpolicies,poddisruptionbudgets,priorityclasses,namespaces";

async fn installed_made_live_and_uninstalled() -> Outcome {
    let at = Installation::prepare().await?;
    let cluster = &at.cluster;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    });
    at.apply("namespace.json", &namespace.to_string())?;
    at.apply("crds.yaml", &caretaker(cluster, &["addresses", "crds"]).1)?;
    let crds = ["crd/spiderippools.spiderpool.spidernet.io", "crd/spiderendpoints.spiderpool.spidernet.io"];
    cluster.kubectl(&[["wait", "--for=condition=Established"].as_slice(), &crds].concat())?;
    at.apply("pool.yaml", POOL)?;
    let status = json!({ "status": { "allocatedIPs": LEAKED_RECORD, "allocatedIPCount": 1 } }).to_string();
    cluster.kubectl(&["patch", "sp", "office", "--subresource=status", "--type=merge", "-p", &status])?;
    create_namespace(&at.client, "shop", 2).await;

    let server = json!([
        { "name": "KUBERNETES_SERVICE_HOST", "value": at.server.ip().to_string() },
        { "name": "KUBERNETES_SERVICE_PORT", "value": at.server.port().to_string() },
    ]);
    let values = |dry_run: bool| {
        let image = json!({ "repository": "caretaker", "pullPolicy": "Never" });
        let keepers = json!({ "addresses": { "enabled": true, "settings": { "extraGracePeriod": "0s" } } });
        json!({ "dryRun": dry_run, "image": image, "env": server, "keepers": keepers })
    };
    let notes = at.helm("install", &values(true))?;
    assert!(notes.contains("in dry run") && notes.contains("--set dryRun=false"), "{notes}");

    // In dry run the journal has what would be done, and nothing is written.
    at.journal_has("caretaker", &[r#""name":"shop""#, r#""outcome":"dry-run""#, r#""action":"sleep""#]).await?;
    at.journal_has("caretaker-addresses", &["10.6.0.10", r#""outcome":"dry-run""#]).await?;
    assert_eq!(state_of(&at.client, "shop").await, (String::new(), 2));
    for account in ["caretaker", "caretaker-addresses"] {
        let calls = at.calls_of(account)?;
        let written = calls.only(|call| !["get", "list", "watch"].contains(&call.verb.as_str()));
        let written = written.only(|call| call.resource != "selfsubjectaccessreviews");
        assert!(!calls.is_empty() && written.is_empty(), "{account} wrote:\n{written}");
    }

    // One value makes it live: each keeper acts with its own rights.
    at.helm("upgrade", &values(false))?;
    wait_for_state(&at.client, "shop", "sleep", 0).await;
    at.journal_has("caretaker-addresses", &["10.6.0.10", r#""outcome":"done""#, r#""action":"release""#]).await?;
    for account in ["caretaker", "caretaker-addresses"] {
        let calls = at.calls_of(account)?;
        let refused = calls.only(|call| call.code == Some(403));
        assert!(calls.writes() > 0 && refused.is_empty(), "{account} was refused:\n{refused}");
    }
    let installed = at.names(KINDS)?;
    assert!(installed.contains("Lease caretaker-system/caretaker-namespaces"), "{installed:?}");

    // An uninstall wakes what sleeps, and leaves the namespace with what Kubernetes itself puts into it.
    cluster
        .helm(&["uninstall", "caretaker", "--namespace", NAMESPACE, "--wait", "--timeout", "3m"])
        .map_err(|error| format!("{error}\n{}\n{}", at.pods(), at.logs("caretaker-cleanup")))?;
    assert_eq!(state_of(&at.client, "shop").await, (String::new(), 2));
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
