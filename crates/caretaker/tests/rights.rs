//! What `deploy/namespaces.yaml` allows is what the operator needs: no more and no less.

#[path = "operator/mod.rs"]
mod operator;

use std::collections::BTreeSet;

use caretaker_engine::access::{Need, missing};
use caretaker_namespaces::run::needs;
use caretaker_testkit::make::{
    Said, Scaled, mk_cron_job, mk_daemon_set, mk_deployment, mk_namespace, mk_replica_set, mk_service, mk_stateful_set,
};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::PostParams;
use kube::{Api, Client};
use operator::{ACTIVITY, DELETE_AFTER, LIMIT, becomes, furnish, look, operate, touch, used};

const ROLE: &str = "caretaker-namespaces";
const HOME: &str = "caretaker-system";
const ACCOUNT: &str = "system:serviceaccount:caretaker-system:caretaker";

/// A control plane with what is shipped in it.
async fn installed(builder: caretaker_testkit::ClusterBuilder) -> (Cluster, Client) {
    let cluster = builder.start().await.unwrap();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/namespaces.yaml");
    cluster.kubectl(&["apply", "-f", shipped]).unwrap();
    let client = cluster.client().await.unwrap();
    (cluster, client)
}

/// A right, as a rule of a role: group, resource, verb, object.
type Right = (String, String, String, Option<String>);

fn rights(rules: Vec<PolicyRule>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        let names = rule.resource_names.map_or(vec![None], |names| names.into_iter().map(Some).collect());
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    for name in &names {
                        rights.insert((group.clone(), resource.clone(), verb.clone(), name.clone()));
                    }
                }
            }
        }
    }
    rights
}

fn rules(rights: &BTreeSet<Right>) -> Vec<PolicyRule> {
    let rule = |(group, resource, verb, name): &Right| PolicyRule {
        api_groups: Some(vec![group.clone()]),
        resources: Some(vec![resource.clone()]),
        verbs: vec![verb.clone()],
        resource_names: name.clone().map(|name| vec![name]),
        ..PolicyRule::default()
    };
    rights.iter().map(rule).collect()
}

/// What the roles allow: everywhere, and at home.
async fn allowed(client: &Client) -> (BTreeSet<Right>, BTreeSet<Right>) {
    let everywhere = Api::<ClusterRole>::all(client.clone()).get(ROLE).await.unwrap();
    let at_home = Api::<Role>::namespaced(client.clone(), HOME).get(ROLE).await.unwrap();
    (rights(everywhere.rules.unwrap()), rights(at_home.rules.unwrap()))
}

async fn allow(client: &Client, everywhere: &BTreeSet<Right>, at_home: &BTreeSet<Right>) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let mut role = roles.get(ROLE).await.unwrap();
    role.rules = Some(rules(everywhere));
    roles.replace(ROLE, &PostParams::default(), &role).await.unwrap();
    let roles: Api<Role> = Api::namespaced(client.clone(), HOME);
    let mut role = roles.get(ROLE).await.unwrap();
    role.rules = Some(rules(at_home));
    roles.replace(ROLE, &PostParams::default(), &role).await.unwrap();
}

fn right(need: &Need) -> Right {
    let text = |text: &str| text.to_owned();
    (text(need.group), text(need.resource), text(need.verb), need.name.map(text))
}

#[tokio::test]
async fn the_roles_allow_what_is_needed_and_nothing_else() {
    let (_cluster, client) = installed(Cluster::builder()).await;

    let (everywhere, at_home) = allowed(&client).await;

    let (local, global): (Vec<_>, Vec<_>) = needs(false).into_iter().partition(|need| need.namespace == Some(HOME));
    assert_eq!(everywhere, global.iter().map(right).collect());
    assert_eq!(at_home, local.iter().map(right).collect());
    let in_dry_run: BTreeSet<&str> = needs(true).iter().map(|need| need.verb).collect();
    assert_eq!(in_dry_run, ["get", "list", "watch"].into());
}

#[tokio::test]
async fn with_exactly_these_it_does_all_its_work() {
    let (cluster, client) = installed(Cluster::builder().controllers()).await;
    let post = PostParams::default();
    furnish(&client, "shop", 2).await;
    let of = |name| Api::namespaced(client.clone(), name);
    of("shop").create(&post, &mk_stateful_set("shop", "db")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_replica_set("shop", "old")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_daemon_set("shop", "agent")).await.unwrap();
    Api::namespaced(client.clone(), "shop").create(&post, &mk_cron_job("shop", "nightly")).await.unwrap();
    Api::all(client.clone()).create(&post, &mk_namespace("previews")).await.unwrap();
    let service = mk_service("previews", "pr-1").label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "previews").create(&post, &service).await.unwrap();
    let single = mk_deployment("previews", "pr-1").replicas(1).label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::namespaced(client.clone(), "previews").create(&post, &single).await.unwrap();
    let gone = mk_namespace("gone").label(DELETE_AFTER, "1s").annotation(ACTIVITY, &used(0));
    Api::all(client.clone()).create(&post, &gone).await.unwrap();
    let kubeconfig = cluster.account_kubeconfig(HOME, "caretaker").await.unwrap();

    let operator = operate(&kubeconfig, &[]).await;
    operator.ready().await;
    becomes(&client, "shop", "sleep", 0).await;
    touch(&client, "shop").await;
    becomes(&client, "shop", "normal", 2).await;
    until("what is abandoned to be gone", LIMIT, async || {
        let namespace = Api::<Namespace>::all(client.clone()).get_opt("gone").await.unwrap();
        let service = Api::<Service>::namespaced(client.clone(), "previews").get_opt("pr-1").await.unwrap();
        let left = (namespace.map(|ns| ns.status), service.map(|s| s.metadata), operator.story("pr-1"));
        Ok(if left.0.is_none() && left.1.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
    .unwrap();
    operator.tells("pr-1", "DeleteAfterElapsed delete done").await;

    let audit = cluster.audit().unwrap().of(ACCOUNT);
    let refused = audit.only(|call| call.code == Some(403));
    assert!(audit.writes() > 20, "{audit}");
    assert!(refused.is_empty(), "{refused}");
}

#[tokio::test]
async fn one_verb_less_is_noticed_and_nothing_is_begun() {
    let (cluster, client) = installed(Cluster::builder()).await;
    let (mut everywhere, at_home) = allowed(&client).await;
    let lost = ("apps".to_owned(), "statefulsets".to_owned(), "patch".to_owned(), None);
    assert!(everywhere.remove(&lost));
    allow(&client, &everywhere, &at_home).await;
    furnish(&client, "shop", 2).await;
    let kubeconfig = cluster.account_kubeconfig(HOME, "caretaker").await.unwrap();

    let operator = operate(&kubeconfig, &[]).await;
    operator.waits_for("permissions: not allowed: patch statefulsets.apps").await;
    assert_eq!(look(&client, "shop").await, (String::new(), 2), "half a sleep is worse than none");

    everywhere.insert(lost);
    allow(&client, &everywhere, &at_home).await;
    becomes(&client, "shop", "sleep", 0).await;
    operator.ready().await;
}

#[tokio::test]
async fn whichever_verb_is_missing_it_is_named() {
    let (cluster, client) = installed(Cluster::builder()).await;
    let (everywhere, at_home) = allowed(&client).await;
    let account = Client::try_from(cluster.account_config(HOME, "caretaker").await.unwrap()).unwrap();
    let needs = needs(false);

    for need in &needs {
        let (mut less, mut less_at_home) = (everywhere.clone(), at_home.clone());
        let role = if need.namespace.is_some() { &mut less_at_home } else { &mut less };
        assert!(role.remove(&right(need)), "{need}");
        allow(&client, &less, &less_at_home).await;

        until(&format!("{need} to be missed"), LIMIT, async || {
            let found = missing(&account, &needs).await.unwrap();
            Ok(if found == [*need] { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
        .unwrap();
    }
}
