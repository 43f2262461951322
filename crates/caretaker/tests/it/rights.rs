//! The manifests in `deploy` grant exactly the rights that the operator needs.

mod shipped;
mod used_by_cleanup;
mod used_by_namespaces;
mod used_by_others;
mod used_by_windows;

use std::collections::BTreeSet;

use crate::support::operator::{
    TIMEOUT, create_namespace, settings, start_operator, state_of, use_namespace, wait_for_state,
};
use crate::support::role_rights::{Right, by_namespace, required_by, right};
use caretaker_engine::permissions::{AccessRight, RequiredRight, denied};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::subject::{Deletion, Policy as NamespacesPolicy};
use caretaker_testkit::{Cluster, until};
use kube::Client;
use rstest::rstest;
use serde_json::Value;
use shipped::{ADDRESSES, NAMESPACE, NAMESPACES, RUNTIMES, Shipped, WINDOWS};

#[rstest]
#[case::of_namespaces(NAMESPACES)]
#[case::of_addresses(ADDRESSES)]
#[case::of_runtimes(RUNTIMES)]
#[tokio::test]
async fn the_roles_grant_what_is_required_and_nothing_else(#[case] shipped: Shipped) {
    let (_cluster, client) = shipped.installed(Cluster::builder()).await;

    assert_eq!(shipped.granted(&client).await, by_namespace((shipped.required)(false)));
    let in_dry_run: BTreeSet<&str> = (shipped.required)(true).iter().map(|required| required.right.verb).collect();
    assert_eq!(in_dry_run, ["get", "list", "watch"].into());
}

/// All manifests can be applied to one cluster.
#[test]
fn the_manifests_share_nothing_but_the_namespace() {
    let things = |shipped: &Shipped| -> BTreeSet<String> {
        let path = format!("../../deploy/{}", shipped.file);
        let text = std::fs::read_to_string(path).unwrap();
        let objects: Vec<Value> = text.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect();
        objects.iter().map(|o| format!("{} {}", o["kind"], o["metadata"]["name"])).collect()
    };

    for [one, other] in [[NAMESPACES, ADDRESSES], [NAMESPACES, WINDOWS], [ADDRESSES, WINDOWS]] {
        let both: Vec<String> = things(&one).intersection(&things(&other)).cloned().collect();
        assert_eq!(both, [r#""Namespace" "caretaker-system""#]);
    }
}

/// What only deletions need: the verb, the claims that hold one back, and the pods.
fn only_for_deletions((_, resource, verb, _): &Right) -> bool {
    verb == "delete" || resource == "persistentvolumeclaims" || resource == "pods"
}

#[tokio::test]
async fn where_nothing_is_deleted_no_right_of_a_deletion_is_needed_and_namespaces_sleep_and_wake() {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder()).await;
    let (mut everywhere, own) = NAMESPACES.allowed(&client).await;
    everywhere.retain(|right| !only_for_deletions(right));
    NAMESPACES.allow(&client, &everywhere, &own).await;
    create_namespace(&client, "shop", 2).await;
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();
    let (_folder, config) = settings("keepers: {namespaces: {deletion: never}}");

    let operator = start_operator(&kubeconfig, &["--config", config.to_str().unwrap()]).await;

    operator.ready().await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    use_namespace(&client, "shop").await;
    wait_for_state(&client, "shop", "normal", 2).await;
    let policy = NamespacesPolicy { deletion: Deletion::Never, ..NamespacesPolicy::default() };
    let required = required_by(&Namespaces::new(policy, None), false);
    assert!(!required.iter().any(|required| only_for_deletions(&right(&required.right))), "{required:?}");
}

#[tokio::test]
async fn a_missing_verb_is_noticed_and_nothing_starts() {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder()).await;
    let (mut everywhere, own) = NAMESPACES.allowed(&client).await;
    let removed = ("apps".to_owned(), "statefulsets".to_owned(), "patch".to_owned(), None);
    assert!(everywhere.remove(&removed));
    NAMESPACES.allow(&client, &everywhere, &own).await;
    create_namespace(&client, "shop", 2).await;
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();

    let operator = start_operator(&kubeconfig, &[]).await;
    operator.waits_for("permissions: not allowed: patch statefulsets.apps").await;
    assert_eq!(state_of(&client, "shop").await, (String::new(), 2), "half a sleep is worse than none");

    everywhere.insert(removed);
    NAMESPACES.allow(&client, &everywhere, &own).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    operator.ready().await;
}

#[rstest]
#[case::claims("", "persistentvolumeclaims", "list")]
#[case::events("events.k8s.io", "events", "create")]
#[case::services("", "services", "watch")]
#[tokio::test]
async fn a_wake_waits_for_no_right_that_it_does_not_need(
    #[case] group: &str,
    #[case] resource: &str,
    #[case] verb: &'static str,
) {
    let (cluster, client) = NAMESPACES.installed(Cluster::builder()).await;
    create_namespace(&client, "shop", 2).await;
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, NAMESPACES.account).await.unwrap();
    let operator = start_operator(&kubeconfig, &[]).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    drop(operator);
    let (mut everywhere, own) = NAMESPACES.allowed(&client).await;
    assert!(everywhere.remove(&(group.to_owned(), resource.to_owned(), verb.to_owned(), None)));
    NAMESPACES.allow(&client, &everywhere, &own).await;

    let operator = start_operator(&kubeconfig, &[]).await;
    let missing = AccessRight::new(verb, group, resource);
    operator.waits_for(&format!("permissions: not allowed: {missing}")).await;
    use_namespace(&client, "shop").await;

    wait_for_state(&client, "shop", "normal", 2).await;
}

#[rstest]
#[case::of_namespaces(NAMESPACES)]
#[case::of_addresses(ADDRESSES)]
#[tokio::test]
async fn each_missing_verb_is_reported(#[case] shipped: Shipped) {
    let (cluster, client) = shipped.installed(Cluster::builder()).await;
    let (everywhere, own) = shipped.allowed(&client).await;
    let account = Client::try_from(cluster.account_config(NAMESPACE, shipped.account).await.unwrap()).unwrap();
    let required = (shipped.required)(false);

    for RequiredRight { right: missing, .. } in &required {
        let (mut less, mut less_own) = (everywhere.clone(), own.clone());
        let role = if missing.namespace.is_some() { &mut less_own } else { &mut less };
        assert!(role.remove(&right(missing)), "{missing}");
        shipped.allow(&client, &less, &less_own).await;

        until(&format!("{missing} to be reported"), TIMEOUT, async || {
            let found = denied(&account, required.clone()).await.unwrap();
            let only = matches!(found.as_slice(), [only] if only.right == *missing);
            Ok(if only { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
        .unwrap();
    }
}
