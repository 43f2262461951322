//! Conditional writes and honest absences, on a real API server.

use caretaker_engine::api::{Resource, is_conflict};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::shared;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const NAMESPACES: Resource = Resource::new("/api/v1", "namespaces", "Namespace");

async fn create(name: &str) -> Result<(Client, String, String), Box<dyn std::error::Error>> {
    let client = shared().client().await?;
    let made: Namespace = Api::all(client.clone()).create(&PostParams::default(), &mk_namespace(name)).await?;
    let metadata = made.metadata;
    Ok((client, metadata.uid.ok_or("a uid")?, metadata.resource_version.ok_or("a version")?))
}

fn labelled(uid: &str, version: &str) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": version, "labels": { "seen": "yes" } } })
}

#[tokio::test]
async fn a_patch_of_what_was_judged_is_written() -> Outcome {
    let (client, uid, version) = create("judged").await?;

    let written: Value = NAMESPACES.patch(&client, None, "judged", "test", &labelled(&uid, &version)).await?;

    assert_eq!(written["metadata"]["labels"]["seen"], "yes");
    Ok(())
}

#[tokio::test]
async fn a_patch_of_another_uid_or_version_is_a_conflict_and_writes_nothing() -> Outcome {
    let (client, uid, version) = create("changed").await?;
    let other = "00000000-0000-0000-0000-000000000000";

    for patch in [labelled(other, &version), labelled(&uid, "1")] {
        let refused = NAMESPACES.patch::<Value>(&client, None, "changed", "test", &patch).await.unwrap_err();
        assert!(is_conflict(&refused), "{refused}");
    }

    let now: Option<Value> = NAMESPACES.get(&client, None, "changed").await?;
    assert_eq!(now.ok_or("it is there")?["metadata"]["labels"]["seen"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn a_delete_of_another_version_is_a_conflict_and_deletes_nothing() -> Outcome {
    let (client, uid, _) = create("kept").await?;

    let refused = NAMESPACES.delete::<Value>(&client, None, "kept", &uid, "1").await.unwrap_err();

    assert!(is_conflict(&refused), "{refused}");
    let kept: Value = NAMESPACES.get(&client, None, "kept").await?.ok_or("it is there")?;
    assert_eq!(kept["metadata"]["deletionTimestamp"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn only_the_very_objects_absence_is_absence() -> Outcome {
    let client = shared().client().await?;
    let missing = Resource::new("/apis/no.such/v1", "things", "Thing");

    assert!(NAMESPACES.get::<Value>(&client, None, "nobody").await?.is_none());
    assert!(missing.get::<Value>(&client, None, "nobody").await.is_err(), "an API that is not there proves nothing");
    Ok(())
}

#[tokio::test]
async fn a_list_is_read_to_its_end_and_an_optional_one_may_be_missing() -> Outcome {
    let client = shared().client().await?;
    let missing = Resource::new("/apis/no.such/v1", "things", "Thing");
    let mut names = Vec::new();

    NAMESPACES.list(&client, None, |ns: Value| names.push(ns["metadata"]["name"].clone())).await?;

    assert!(names.contains(&"kube-system".into()));
    assert!(missing.list(&client, None, |_: Value| ()).await.is_err());
    missing.optional().list(&client, None, |_: Value| panic!("there is none")).await?;
    Ok(())
}
