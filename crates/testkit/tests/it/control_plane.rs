//! A control plane is isolated, authenticates its users, and reports failures of its processes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use caretaker_testkit::audit::AuditLog;
use caretaker_testkit::faults::{Fault, Faults, Life, mortal};
use caretaker_testkit::make::{mk_binding_to_account, mk_cluster_role, mk_namespace, mk_service_account};
use caretaker_testkit::{Cluster, shared};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn names(client: Client) -> Result<Vec<String>, kube::Error> {
    let found = Api::<Namespace>::all(client).list(&ListParams::default()).await?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_concurrent_control_planes_are_isolated() -> Outcome {
    let (a, b, c) = tokio::join!(Cluster::builder().start(), Cluster::builder().start(), Cluster::builder().start());
    let planes = [("one", a?), ("two", b?), ("three", c?)];

    for (name, plane) in &planes {
        Api::all(plane.client().await?).create(&PostParams::default(), &mk_namespace(name)).await?;
    }

    for (own, plane) in &planes {
        let seen = names(plane.client().await?).await?;
        let created: Vec<&String> = seen.iter().filter(|n| planes.iter().any(|(p, _)| p == n)).collect();
        assert_eq!(created, [own], "{plane:?} sees {seen:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_user_without_permissions_is_forbidden() -> Outcome {
    let cluster = shared();
    let stranger = Client::try_from(cluster.user_config("stranger", None).await?)?;

    let refused = names(stranger).await.expect_err("RBAC denies it");

    let kube::Error::Api(status) = refused else { panic!("not a response of the server: {refused}") };
    assert_eq!(status.code, 403);
    assert!(status.message.contains("\"stranger\""), "{}", status.message);
    Ok(())
}

#[tokio::test]
async fn a_service_account_calls_under_its_own_name() -> Outcome {
    let cluster = shared();
    let admin = cluster.client().await?;
    let post = PostParams::default();
    cluster.namespace("accounts").await?;
    Api::namespaced(admin.clone(), "accounts").create(&post, &mk_service_account("accounts", "reader")).await?;
    Api::all(admin.clone()).create(&post, &mk_cluster_role("reads-namespaces", &[("", "namespaces", "list")])).await?;
    Api::all(admin).create(&post, &mk_binding_to_account("reads-namespaces", "accounts", "reader")).await?;

    let reader = Client::try_from(cluster.account_config("accounts", "reader").await?)?;
    let seen = names(reader).await?;

    assert!(seen.contains(&"accounts".to_owned()));
    assert_eq!(cluster.audit()?.of("system:serviceaccount:accounts:reader").count("list", "namespaces"), 1);
    Ok(())
}

#[tokio::test]
async fn a_client_killed_after_its_third_call_makes_exactly_three() -> Outcome {
    let cluster = shared();
    let config = cluster.user_config("mortal", Some("system:masters")).await?;
    let faults = Faults::none().at(3, Fault::DieAfter);

    let life = mortal(&faults, config, async |client| {
        let namespaces: Api<Namespace> = Api::all(client);
        for i in 1..=5 {
            namespaces.create(&PostParams::default(), &mk_namespace(&format!("mortal-{i}"))).await.unwrap();
        }
    });

    assert_eq!(life, Life::Died);
    let audit: AuditLog = cluster.audit()?.of("mortal");
    assert_eq!((audit.len(), audit.count("create", "namespaces")), (3, 3), "{audit}");
    let made = names(cluster.client().await?).await?;
    assert_eq!(made.iter().filter(|n| n.starts_with("mortal-")).count(), 3, "the server executed the third call");
    Ok(())
}

#[tokio::test]
async fn flags_are_passed_to_the_api_server() -> Outcome {
    let cluster = Cluster::builder().api_server_flag("--runtime-config=batch/v1=false").start().await?;

    let groups = cluster.client().await?.list_api_groups().await?;

    assert!(groups.groups.iter().all(|g| g.name != "batch"));
    assert!(groups.groups.iter().any(|g| g.name == "apps"));
    Ok(())
}

#[tokio::test]
async fn the_error_says_why_the_api_server_did_not_start() {
    let error = Cluster::builder().api_server_flag("--no-such-flag").start().await.expect_err("the flag is unknown");

    let text = error.to_string();
    assert!(text.contains("kube-apiserver") && text.contains("no-such-flag"), "{text}");
}

#[tokio::test]
async fn kubectl_reaches_the_api_server() -> Outcome {
    let cluster = shared();

    let version = cluster.kubectl(&["version", "-o", "json"])?;

    let version: serde_json::Value = serde_json::from_str(&version)?;
    let server = version["serverVersion"]["gitVersion"].as_str().expect("a server version");
    assert_eq!(version["clientVersion"]["gitVersion"], server, "both binaries come from one folder");
    Ok(())
}

#[tokio::test]
async fn objects_survive_an_outage_of_the_api_server() -> Outcome {
    let cluster = Cluster::builder().start().await?;
    let client = cluster.client().await?;
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace("before")).await?;

    cluster.stop("kube-apiserver")?;
    assert!(names(client.clone()).await.is_err(), "the API server is stopped");

    cluster.start_again("kube-apiserver").await?;
    assert!(names(client).await?.contains(&"before".to_owned()));
    Ok(())
}

#[tokio::test]
async fn each_user_gets_a_separate_private_kubeconfig() -> Outcome {
    let cluster = shared();
    let admin = fs::read(cluster.kubeconfig())?;

    let files = ["a:b", "a-b", "a:b", "admin", "kubelet"].map(|user| cluster.user_kubeconfig(user, None));
    let files = files.into_iter().collect::<Result<BTreeSet<PathBuf>, _>>()?;

    assert_eq!(files.len(), 5, "{files:?}");
    assert_eq!(fs::read(cluster.kubeconfig())?, admin);
    let mode = |path: &Path| fs::metadata(path).map(|m| m.permissions().mode() & 0o777);
    for file in files.iter().chain([&cluster.kubeconfig()]) {
        assert_eq!(mode(file)?, 0o600, "{}", file.display());
    }
    assert_eq!(mode(cluster.folder())?, 0o700);
    Ok(())
}

#[tokio::test]
async fn a_wait_fails_if_a_process_of_the_cluster_has_exited() -> Outcome {
    let cluster = Cluster::builder().controllers().start().await?;
    cluster.stop("kube-controller-manager")?;
    fs::write(cluster.folder().join("sa.key"), "no key")?;
    // It exits because its key is invalid, before or after this call returns.
    let _ = cluster.start_again("kube-controller-manager").await;

    let error = cluster.namespace("no-account").await.expect_err("no controller creates the account").to_string();

    assert!(error.contains("kube-controller-manager exited"), "{error}");
    Ok(())
}
