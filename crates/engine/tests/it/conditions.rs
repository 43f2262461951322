//! Conditional writes and honest absences, on a real API server.

use std::sync::Arc;

use crate::support::box_keeper::{Inside, NAMESPACE, Shelf, Toys};
use caretaker_core::{ObjectRef, SignedDuration, SourceId, Timestamp, time};
use caretaker_engine::cache::Cache as _;
use caretaker_engine::caller::current_user_and_time;
use caretaker_engine::projection::get_with_server_time;
use caretaker_engine::source::resource;
use caretaker_engine::sources::Sources;
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, Partial, Source};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::shared_without_controllers as shared;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn boxes() -> Result<(Client, Api<ConfigMap>), Box<dyn std::error::Error>> {
    let client = shared().client().await?;
    let created = Api::all(client.clone()).create(&PostParams::default(), &mk_namespace(NAMESPACE)).await;
    match created {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => _ = other?,
    }
    Ok((client.clone(), Api::namespaced(client, NAMESPACE)))
}

/// A box with one toy; its uid and its version.
async fn create(boxes: &Api<ConfigMap>, name: &str) -> Result<(String, String), Box<dyn std::error::Error>> {
    let found = serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "ball": "stays" } }))?;
    let metadata = boxes.create(&PostParams::default(), &found).await?.metadata;
    Ok((metadata.uid.ok_or("a uid")?, metadata.resource_version.ok_or("a version")?))
}

fn object<'a>(name: &'a str, uid: &'a str) -> ObjectRef<'a> {
    ObjectRef { api_version: "v1", kind: "ConfigMap", namespace: Some(NAMESPACE), name, uid }
}

fn writer(client: &Client) -> Writer<Toys> {
    Writer::new(client.clone(), "test", Sources::of(&Toys::new(1, 0)))
}

fn labelled() -> Value {
    json!({ "metadata": { "labels": { "seen": "yes" } } })
}

#[tokio::test]
async fn a_patch_of_what_was_judged_is_written() -> Outcome {
    let (client, boxes) = boxes().await?;
    let (uid, version) = create(&boxes, "box-judged").await?;

    let answer = writer(&client).merge_patch(object("box-judged", &uid), &version, labelled()).await?;

    let answer = answer.ok_or("the projection keeps it")?;
    assert_eq!(answer.id.uid, uid);
    let now = boxes.get("box-judged").await?.metadata;
    assert_eq!(now.labels.and_then(|labels| labels.get("seen").cloned()).as_deref(), Some("yes"));
    assert_eq!(now.resource_version, Some(answer.id.resource_version), "the answer is what is known from now on");
    Ok(())
}

#[tokio::test]
async fn a_command_takes_the_time_of_the_api_server_whatever_its_own_clock_shows() -> Outcome {
    const WRONG_BY: SignedDuration = SignedDuration::from_hours(24);
    let client = shared().client().await?;
    let clocks: [fn() -> Timestamp; 2] =
        [|| time::saturating_add(Timestamp::now(), WRONG_BY), || time::saturating_add(Timestamp::now(), -WRONG_BY)];
    for clock in clocks {
        let before = Timestamp::now();
        let (user, now) = current_user_and_time(&client, clock).await;

        assert_eq!(user, "admin");
        // The API server says it to the second, and it has this machine's clock.
        let second = SignedDuration::from_secs(1);
        let (earliest, latest) =
            (time::saturating_add(before, -second), time::saturating_add(Timestamp::now(), second));
        assert!(earliest <= now && now <= latest, "{now}");
    }
    Ok(())
}

#[tokio::test]
async fn a_patch_of_another_uid_or_version_is_a_conflict_and_writes_nothing() -> Outcome {
    let (client, boxes) = boxes().await?;
    let (uid, version) = create(&boxes, "box-changed").await?;
    let other = "00000000-0000-0000-0000-000000000000";

    for (uid, version) in [(other, version.as_str()), (&uid, "1")] {
        let refused = writer(&client).merge_patch(object("box-changed", uid), version, labelled()).await.unwrap_err();
        assert!(matches!(refused, ApplyError::Conflict(_)), "{refused}");
    }

    assert_eq!(boxes.get("box-changed").await?.metadata.labels, None);
    Ok(())
}

#[tokio::test]
async fn an_apply_about_an_object_that_is_gone_or_is_another_one_is_a_conflict_and_creates_nothing() -> Outcome {
    let (client, boxes) = boxes().await?;
    let (uid, version) = create(&boxes, "box-gone").await?;
    boxes.delete("box-gone", &DeleteParams::default()).await?;
    let applied = async || {
        let mut writer = writer(&client);
        let plain = writer.server_side_apply(object("box-gone", &uid), "test", labelled()).await;
        let forced = writer.forced_apply(object("box-gone", &uid), &version, "test", labelled()).await;
        [plain, forced].map(|answer| answer.map(drop).unwrap_err())
    };

    for refused in applied().await {
        assert!(matches!(refused, ApplyError::Conflict(_)), "{refused}");
    }
    assert!(boxes.get_opt("box-gone").await?.is_none(), "nothing is created");

    let (new, _) = create(&boxes, "box-gone").await?;
    assert_ne!(new, uid);
    for refused in applied().await {
        assert!(matches!(refused, ApplyError::Conflict(_)), "{refused}");
    }
    assert_eq!(boxes.get("box-gone").await?.metadata.labels, None, "another object of that name");
    Ok(())
}

#[tokio::test]
async fn a_forced_apply_overrides_what_was_judged_and_not_what_was_written_since() -> Outcome {
    let (client, boxes) = boxes().await?;
    let (uid, version) = create(&boxes, "box-forced").await?;
    let ball = |value: &str| json!({ "data": { "ball": value } });
    let unforced = writer(&client).server_side_apply(object("box-forced", &uid), "test", ball("goes")).await;
    assert!(matches!(unforced.map(drop).unwrap_err(), ApplyError::Conflict(_)), "somebody else has set it");

    let stale = writer(&client).forced_apply(object("box-forced", &uid), "1", "test", ball("goes")).await;
    assert!(matches!(stale.map(drop).unwrap_err(), ApplyError::Conflict(_)), "it was written since");
    writer(&client).forced_apply(object("box-forced", &uid), &version, "test", ball("goes")).await?;
    assert_eq!(boxes.get("box-forced").await?.data.ok_or("data")?["ball"], "goes");
    Ok(())
}

#[tokio::test]
async fn a_delete_of_another_version_is_a_conflict_and_deletes_nothing() -> Outcome {
    let (client, boxes) = boxes().await?;
    let (uid, _) = create(&boxes, "box-kept").await?;

    let refused = writer(&client).delete(object("box-kept", &uid), "1").await.unwrap_err();

    assert!(matches!(refused, ApplyError::Conflict(_)), "{refused}");
    assert_eq!(boxes.get("box-kept").await?.metadata.deletion_timestamp, None);
    Ok(())
}

#[tokio::test]
async fn only_a_404_about_the_very_object_means_that_it_is_gone() -> Outcome {
    let (client, _) = boxes().await?;
    let missing = resource("no.such", "v1", "Thing", "things");
    let config_maps = ApiResource::erase::<ConfigMap>(&());
    let read = async |resource: &ApiResource| {
        get_with_server_time::<Partial>(&client, resource, Some(NAMESPACE), "nobody").await
    };

    let (found, date) = read(&config_maps).await?;
    assert!(found.is_none() && date.is_some(), "absent, and the time at which it was");
    assert!(read(&missing).await.is_err(), "an API that is not served proves nothing");
    Ok(())
}

#[tokio::test]
async fn everything_is_listed_and_only_an_optional_kind_may_be_missing() -> Outcome {
    fn required() -> Vec<Source<Shelf>> {
        vec![Source::watch(SourceId("things"), resource("no.such", "v1", "Thing", "things"), Inside::project)]
    }
    fn optional() -> Vec<Source<Shelf>> {
        required().into_iter().map(Source::optional).collect()
    }
    let (client, boxes) = boxes().await?;
    create(&boxes, "box-listed").await?;
    let list = async |more| {
        let sources: Arc<Sources<Shelf>> = Sources::of(&Toys { more, ..Toys::new(1, 0) });
        sources.list_all(&client, 4).await
    };

    let key = ("box-listed".to_owned(), "ball".to_owned());
    assert!(list(optional).await?.cache.keys().contains(&key));
    let refused = list(required).await.unwrap_err();
    assert!(refused.to_string().contains("/apis/no.such/v1/things"), "{refused}");
    Ok(())
}
