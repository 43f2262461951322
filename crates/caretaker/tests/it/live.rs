//! The commands on a real API server: they give the same plan as a dump of it, and only read.

use std::path::Path;
use std::process::{Command, Output};

use caretaker_testkit::assets::Program;
use caretaker_testkit::make::{
    Said, Scaled, mk_binding_to_user, mk_cluster_role, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace,
    mk_replica_set, mk_service, mk_stateful_set,
};
use caretaker_testkit::{Cluster, Error, shared};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Later than the creation of every namespace here: an earlier time of activity does not count.
const AT: &str = "2036-03-02T09:00:00Z";
const SLEEP_AFTER: &str = "sleepmode.kubefree.com/sleep-after";
const ACTIVITY: &str = "sleepmode.kubefree.com/activity-status";

/// Exactly the rights that the documentation lists.
const RIGHTS: [(&str, &str, &str); 9] = [
    ("", "namespaces,services,persistentvolumeclaims,pods", "list"),
    ("", "configmaps", "get,list"),
    ("apps", "deployments,statefulsets,replicasets,daemonsets", "list"),
    ("batch", "cronjobs", "list"),
    ("keda.sh", "scaledobjects", "list"),
    ("argoproj.io,apps.kruise.io", "rollouts,clonesets", "list"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "list"),
    ("apiregistration.k8s.io,apiextensions.k8s.io", "apiservices,customresourcedefinitions", "list"),
    ("", "nodes", "list"),
];

/// The control plane of this test binary, with a few objects in it.
async fn populated() -> Result<&'static Cluster, Box<dyn std::error::Error>> {
    static DONE: OnceCell<()> = OnceCell::const_new();
    DONE.get_or_try_init(populate).await?;
    Ok(shared())
}

async fn populate() -> Outcome {
    let client = shared().client().await?;
    let post = PostParams::default();
    let used =
        r#"{"LastActivityTime":"2036-03-01T07:00:00Z","ActionBy":"ListPods","UserInfo":{"name":"ann","uid":""}}"#;
    for name in ["shop", "policy", "quiet"] {
        let namespace = mk_namespace(name).label(SLEEP_AFTER, "24h").annotation(ACTIVITY, used);
        Api::all(client.clone()).create(&post, &namespace).await?;
    }
    let home = "shop";
    Api::namespaced(client.clone(), home).create(&post, &mk_deployment(home, "web").replicas(3)).await?;
    Api::namespaced(client.clone(), home).create(&post, &mk_stateful_set(home, "db")).await?;
    Api::namespaced(client.clone(), home).create(&post, &mk_replica_set(home, "old")).await?;
    Api::namespaced(client.clone(), home).create(&post, &mk_daemon_set(home, "agent")).await?;
    Api::namespaced(client.clone(), home).create(&post, &mk_cron_job(home, "nightly")).await?;
    let single =
        mk_service(home, "pr-42").label("sleepmode.kubefree.com/delete-after", "144h").annotation(ACTIVITY, used);
    Api::namespaced(client.clone(), home).create(&post, &single).await?;
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": { "name": "checks" },
        "webhooks": [{
            "name": "checks.policy.example",
            "clientConfig": { "service": { "namespace": "policy", "name": "checks" } },
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
            "rules": [{ "apiGroups": ["example.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"] }],
        }],
    }))?;
    Api::all(client).create(&post, &webhook).await?;
    Ok(())
}

async fn allow(cluster: &Cluster, user: &str, rights: &[(&str, &str, &str)]) -> Outcome {
    let client = cluster.client().await?;
    Api::all(client.clone()).create(&PostParams::default(), &mk_cluster_role(user, rights)).await?;
    Api::all(client).create(&PostParams::default(), &mk_binding_to_user(user, user)).await?;
    Ok(())
}

fn caretaker(args: &[&str], kubeconfig: &Path) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env_remove("CARETAKER_CONFIG")
        .output()
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test]
async fn a_live_cluster_is_read_and_never_written() -> Outcome {
    let cluster = populated().await?;
    allow(cluster, "reader", &RIGHTS).await?;
    let kubeconfig = cluster.user_kubeconfig("reader", None)?;

    let live = rows(&caretaker(&["plan", "--at", AT, "-o", "json"], &kubeconfig)?);
    for args in [vec!["explain", "ns/shop", "--at", AT], vec!["simulate", "--start", AT, "--for", "30d"]] {
        assert!(caretaker(&args, &kubeconfig)?.status.success());
    }

    let rule = |name: &str| live.iter().find(|r| r["name"] == name).map(|r| r["rule"].clone());
    assert_eq!(rule("shop"), Some("SleepAfterElapsed".into()));
    assert_eq!(rule("policy"), Some("Protected".into()), "a webhook is in it");
    assert_eq!(rule("pr-42"), Some("CountingDown".into()));
    let audit = cluster.audit()?.of("reader");
    assert!(!audit.is_empty());
    assert_eq!(audit.writes(), 0, "{audit}");
    Ok(())
}

#[tokio::test]
async fn a_dump_of_the_cluster_gives_the_same_plan() -> Outcome {
    let cluster = populated().await?;
    let live = rows(&caretaker(&["plan", "--at", AT, "-o", "json"], &cluster.kubeconfig())?);
    // The same kinds as in docs/tour.md.
    let kinds = "ns,deploy,sts,rs,ds,cronjob,svc,pvc,\
                 validatingwebhookconfigurations,mutatingwebhookconfigurations,apiservices,crd";

    for format in ["yaml", "json"] {
        let dump = tempfile::tempdir()?;
        let text = cluster.kubectl(&["get", kinds, "-A", "-o", format])?;
        std::fs::write(dump.path().join(format!("dump.{format}")), text)?;
        let from = dump.path().to_str().ok_or("a path")?;

        let dumped = rows(&caretaker(&["plan", "--from", from, "--at", AT, "-o", "json"], Path::new("/nonexistent"))?);

        assert_eq!(dumped, live, "{format}");
    }
    Ok(())
}

#[tokio::test]
async fn it_works_as_a_kubectl_plugin() -> Outcome {
    let cluster = populated().await?;
    let folder = tempfile::tempdir()?;
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_caretaker"), folder.path().join("kubectl-caretaker"))?;
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH")?);
    let kubectl = |args: &[&str]| -> Result<Output, Box<dyn std::error::Error>> {
        let mut command = Command::new(cluster.program(Program::Kubectl)?);
        Ok(command.args(args).env("PATH", &path).env("KUBECONFIG", cluster.kubeconfig()).output()?)
    };

    let plan = rows(&kubectl(&["caretaker", "plan", "-n", "quiet", "--at", AT, "-o", "json"])?);
    let help = String::from_utf8(kubectl(&["caretaker", "plan", "--help"])?.stdout)?;

    assert_eq!(plan.len(), 1);
    assert!(help.contains("Usage: kubectl caretaker plan"), "{help}");
    Ok(())
}

#[tokio::test]
async fn a_missing_right_is_reported() -> Outcome {
    let cluster = shared();
    allow(cluster, "half", &RIGHTS[..2]).await?;
    let kubeconfig = cluster.user_kubeconfig("half", None)?;

    let output = caretaker(&["plan"], &kubeconfig)?;

    let errors = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("/apis/apps/v1/deployments") && errors.contains("half"), "{errors}");
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_an_error_and_not_an_empty_plan() -> Outcome {
    let cluster = Cluster::builder().start().await?;
    let kubeconfig = cluster.kubeconfig();
    let copy = tempfile::tempdir()?;
    let kept = copy.path().join("kubeconfig");
    std::fs::copy(kubeconfig, &kept)?;
    cluster.stop("kube-apiserver").map_err(|e: Error| e.to_string())?;

    let output =
        caretaker(&["plan", "-o", "json", "--kubeconfig", kept.to_str().ok_or("a path")?], Path::new("/nonexistent"))?;

    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    Ok(())
}
