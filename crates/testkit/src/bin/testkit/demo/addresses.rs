//! The second part: a pool of addresses, some of which have leaked.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use caretaker_testkit::operator::Operator;
use caretaker_testkit::{Cluster, until};
use serde_json::{Value, json};

use super::{LIMIT, print, show};

/// No scheduler handles these pods: what a node would write is written by the demo.
const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: { namespace: shop, name: web }
spec: SPEC
---
apiVersion: v1
kind: Pod
metadata: { namespace: shop, name: import }
spec: SPEC
---
apiVersion: v1
kind: Pod
metadata: { namespace: shop, name: cart }
spec: { nodeName: node-that-died, containers: [{ name: main, image: caretaker.test/busybox }] }
---
apiVersion: apps/v1
kind: StatefulSet
metadata: { namespace: shop, name: db }
spec:
  replicas: 1
  selector: { matchLabels: { app: db } }
  template: { metadata: { labels: { app: db } }, spec: SPEC }
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderIPPool
metadata: { name: office }
spec: { subnet: 10.6.0.0/24, ipVersion: 4, ips: [10.6.0.10-10.6.0.19] }
---
apiVersion: spiderpool.spidernet.io/v2beta1
kind: SpiderEndpoint
metadata: { namespace: shop, name: db-0, finalizers: [spiderpool.spidernet.io] }
status:
  current:
    uid: 9d0f5f3e-4f0a-4c43-9a1a-1d9c6a0b0001
    node: node-that-died
    ips: [{ interface: eth0, ipv4: 10.6.0.11/24, ipv4Pool: office }]
  ownerControllerType: StatefulSet
  ownerControllerName: db
";
const SPEC: &str = "{ schedulerName: nobody, containers: [{ name: main, image: caretaker.test/busybox }] }";

/// Leaked addresses return to their pool, at once or after their deadline; used and retained ones stay.
pub(super) async fn leaked_addresses_return(cluster: &Cluster, program: &Path, say: &impl Fn(&str)) -> Result<()> {
    cluster.namespace("shop").await?;
    furnish(cluster, program)?;
    say("a pool has given out six addresses: to a pod that runs, one that has finished, one that is Terminating on a");
    println!(
        "          node that died, one of a StatefulSet whose pod was recreated, and two that are not there any more"
    );
    show(cluster, &["get", "spiderippools"])?;
    ask(cluster, program, &["addresses", "report"])?;
    ask(cluster, program, &["explain", "ip/10.6.0.13"])?;

    let operator = Operator::start(program, &cluster.kubeconfig(), &["--keepers", "addresses"]).await?;
    say("caretaker run --keepers addresses is started");
    for ip in ["10.6.0.12", "10.6.0.14", "10.6.0.15", "10.6.0.13"] {
        let line = until(&format!("{ip} to be released"), LIMIT, async || {
            let released = operator.journal().into_iter().find(|line| line["name"] == ip && line["outcome"] == "done");
            Ok(released.ok_or_else(|| operator.log()))
        })
        .await?;
        let word = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        say(&format!("{} {ip}: {} {}", word("action"), word("rule"), word("because")));
    }
    show(cluster, &["get", "spiderippools"])?;
    ask(cluster, program, &["plan", "--keepers", "addresses"])
}

/// Creates the pool with its records, and the pods as a node would have left them.
fn furnish(cluster: &Cluster, program: &Path) -> Result<()> {
    let crds = Command::new(program).args(["addresses", "crds"]).output()?;
    apply(cluster, "crds.yaml", &String::from_utf8_lossy(&crds.stdout))?;
    let established = ["spiderippools", "spiderendpoints"].map(|name| format!("crd/{name}.spiderpool.spidernet.io"));
    let [pools, endpoints] = &established;
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", pools, endpoints])?;
    apply(cluster, "pods.yaml", &PODS.replace("SPEC", SPEC))?;
    let status = |kind: &str, name: &str, status: Value| {
        let patch = json!({ "status": status }).to_string();
        let args = ["patch", kind, name, "-n", "shop", "--subresource=status", "--type=merge", "-p", &patch];
        cluster.kubectl(&args).map(drop)
    };
    let has = |phase: &str, ip: &str| json!({ "phase": phase, "podIP": ip, "podIPs": [{ "ip": ip }] });
    status("pod", "web", has("Running", "10.6.0.10"))?;
    status("pod", "cart", has("Running", "10.6.0.13"))?;
    status("pod", "import", over("10.6.0.12"))?;
    let uid = |pod: &str| cluster.kubectl(&["get", "pod", pod, "-n", "shop", "-o", "jsonpath={.metadata.uid}"]);
    let gone = |pod: &str| Ok(format!("00000000-0000-4000-8000-0000000000{pod}"));
    let mut records = serde_json::Map::new();
    for (ip, pod, uid) in [
        ("10.6.0.10", "web", uid("web")),
        ("10.6.0.11", "db-0", gone("11")),
        ("10.6.0.12", "import", uid("import")),
        ("10.6.0.13", "cart", uid("cart")),
        ("10.6.0.14", "web-before", gone("14")),
        ("10.6.0.15", "probe", gone("15")),
    ] {
        records.insert(ip.to_owned(), json!({ "pod": format!("shop/{pod}"), "podUid": uid? }));
    }
    let allocated = Value::Object(records).to_string();
    status("spiderippool", "office", json!({ "allocatedIPs": allocated, "allocatedIPCount": 6, "totalIPCount": 10 }))?;
    cluster.kubectl(&["delete", "pod", "cart", "-n", "shop", "--grace-period=1", "--wait=false"])?;
    Ok(())
}

/// A pod that finished long ago.
fn over(ip: &str) -> Value {
    let ended = json!({ "terminated": { "exitCode": 0, "finishedAt": "2020-01-01T00:00:00Z" } });
    let container =
        json!({ "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": ended });
    json!({ "phase": "Succeeded", "podIP": ip, "podIPs": [{ "ip": ip }], "containerStatuses": [container] })
}

pub(super) fn apply(cluster: &Cluster, name: &str, text: &str) -> Result<()> {
    let path = cluster.folder().join(name);
    std::fs::write(&path, text)?;
    cluster.kubectl(&["apply", "-f", &path.display().to_string()])?;
    Ok(())
}

/// Prints what a command prints; of an explanation everything but the rules.
pub(super) fn ask(cluster: &Cluster, program: &Path, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).env("KUBECONFIG", cluster.kubeconfig()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8_lossy(&output.stdout);
    let parts = text.split_once("\nRules\n").zip(text.split_once("\nVerdict\n"));
    let (cut, text) = match parts {
        Some(((facts, _), (_, verdict))) => (" | sed '/^Rules/,/^$/d'", format!("{facts}\nVerdict\n{verdict}")),
        None => ("", text.to_string()),
    };
    println!("          $ caretaker {}{cut}", args.join(" "));
    print(&text);
    Ok(())
}
