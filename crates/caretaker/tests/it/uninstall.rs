//! `caretaker cleanup` for an uninstall: what it finds by the settings, and where there is nothing to take back.

use crate::support::operator;
use crate::support::operator::{
    LEGACY_REPLICAS, STATE, caretaker, cluster, create_namespace, settings, start_operator, state_of, wait_for_state,
};
use caretaker_engine::source::resource;
use caretaker_testkit::make::{Said, Scaled, mk_deployment, mk_namespace};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

const SETTINGS: &str = "keepers: {namespaces: {scalableKinds: [{group: games.example.com, kind: Arena}]}}";

/// Serves a kind that sleeps only where the settings name it, and creates one with three replicas.
async fn create_arena(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": { "name": "arenas.games.example.com" },
        "spec": {
            "group": "games.example.com", "scope": "Namespaced", "names": { "kind": "Arena", "plural": "arenas" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                "subresources": { "scale": { "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas" } },
            }],
        },
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &definition).await.unwrap();
    let kind = resource("games.example.com", "v1", "Arena", "arenas");
    let arenas: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let arena: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "games.example.com/v1", "kind": "Arena", "metadata": { "name": "arena" },
        "spec": { "replicas": 3 },
    }))
    .unwrap();
    caretaker_testkit::until("the kind to be served", operator::TIMEOUT, async || {
        Ok(arenas.create(&PostParams::default(), &arena).await.map(drop).map_err(|error| error.to_string()))
    })
    .await
    .unwrap();
    arenas
}

async fn replicas(arenas: &Api<DynamicObject>) -> Value {
    arenas.get("arena").await.unwrap().data["spec"]["replicas"].clone()
}

/// The settings of the operator, where the commands find them.
async fn install_settings(client: &Client, text: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    let _ = maps.delete("caretaker-config", &DeleteParams::default()).await;
    let map = serde_json::from_value(json!({
        "metadata": { "name": "caretaker-config" }, "data": { "config.yaml": text },
    }));
    maps.create(&PostParams::default(), &map.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_kind_that_only_the_settings_name_is_woken_and_without_readable_settings_nothing_is_cleaned_up() {
    let (cluster, client) = cluster().await;
    create_namespace(&client, "shop", 2).await;
    let arenas = create_arena(&client, "shop").await;
    let (_folder, config) = settings(SETTINGS);
    let mut operator = start_operator(&cluster.kubeconfig(), &["--config", config.to_str().unwrap()]).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    assert_eq!(replicas(&arenas).await, json!(0));
    assert!(operator.stop().success());

    install_settings(&client, "keepers: {namespaces: {scalableKind: []}}").await;
    let (code, output, errors) = caretaker(&cluster, &["cleanup", "--all"]);
    assert_eq!((code, output.as_str()), (1, ""), "{errors}");
    assert!(
        errors.contains("ConfigMap caretaker-system/caretaker-config") && errors.contains("scalableKind"),
        "{errors}"
    );
    assert_eq!((state_of(&client, "shop").await, replicas(&arenas).await), (("sleep".to_owned(), 0), json!(0)));

    install_settings(&client, SETTINGS).await;
    let (code, output, errors) = caretaker(&cluster, &["cleanup", "--all"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert_eq!((state_of(&client, "shop").await, replicas(&arenas).await), ((String::new(), 2), json!(3)));
    let arena = arenas.get("arena").await.unwrap();
    assert!(arena.labels().is_empty() && arena.annotations().is_empty(), "{:?}", arena.metadata);
}

/// A namespace as kubefree leaves it.
async fn create_sleeper(client: &Client, name: &str) {
    let namespace = mk_namespace(name).label(STATE, "sleep");
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let web = mk_deployment(name, "web").replicas(0).annotation(LEGACY_REPLICAS, "2");
    Api::namespaced(client.clone(), name).create(&PostParams::default(), &web).await.unwrap();
}

#[tokio::test]
async fn where_it_was_never_live_an_uninstall_leaves_the_sleepers_of_another_tool() {
    let (cluster, client) = cluster().await;
    create_sleeper(&client, "legacy").await;
    let cleanup = || caretaker(&cluster, &["cleanup", "--all", "--if-it-was-live"]);

    let (code, output, errors) = cleanup();
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(output, "Caretaker was never live here: it has no Lease and no state in caretaker-system\n");
    assert_eq!(state_of(&client, "legacy").await, ("sleep".to_owned(), 0));

    let mut operator = start_operator(&cluster.kubeconfig(), &[]).await;
    operator.ready().await;
    assert!(operator.stop().success());
    let (code, output, errors) = cleanup();
    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert_eq!(state_of(&client, "legacy").await, (String::new(), 2));
}

#[tokio::test]
async fn names_are_read_as_those_of_sleep_and_wake_are() {
    let (cluster, client) = cluster().await;
    create_sleeper(&client, "legacy").await;

    for (name, why) in [("legacy?x=1", "the namespace"), ("deploy/web", "only namespaces")] {
        let (code, _, errors) = caretaker(&cluster, &["cleanup", name]);
        assert!(code == 2 && errors.contains(why), "{code} {errors}");
    }
    let (code, output, errors) = caretaker(&cluster, &["cleanup", "ns/legacy"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert_eq!(state_of(&client, "legacy").await, (String::new(), 2));
}
