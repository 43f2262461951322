//! What a watch has lost is found without listing everything on a timer. On a real API server.

use std::time::Duration;

use crate::support::box_keeper::{NAMESPACE, Toys, at};
use crate::support::keeper_run::{LIMIT, RunningKeeper};
use caretaker_engine::Resync;
use caretaker_engine::clock::Clock;
use caretaker_testkit::faults::{Faults, WatchFault};
use caretaker_testkit::make::mk_namespace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use rstest::rstest;
use serde_json::json;

const INTERVAL: Duration = Duration::from_millis(300);
/// The limit of a list of whole objects.
const WHOLE: &str = "limit=500";
/// The limit of the question how many there are.
const COUNT: &str = "limit=1";
/// The limit of a list of metadata.
const VERSIONS: &str = "limit=1000";

/// A keeper of boxes, and what it asks the API server.
struct Shop {
    keeper: RunningKeeper,
    faults: Faults,
    boxes: Api<ConfigMap>,
    _cluster: Cluster,
}

impl Shop {
    /// One box is there before the keeper.
    async fn open(toys: Toys, faults: Faults) -> Self {
        let cluster = Cluster::builder().start().await.unwrap();
        let client = cluster.client().await.unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &mk_namespace(NAMESPACE)).await.unwrap();
        let boxes: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        put(&boxes, "box-first", "stays").await;
        let client = faults.client(cluster.admin_config().await.unwrap()).unwrap();
        // The handle of the clock is dropped: it stays at that time.
        let keeper = RunningKeeper::start(toys, &client, Clock::manual(at(1_000)).0, |context| {
            context.resync_interval = INTERVAL;
        });
        keeper.ready().await;
        Self { keeper, faults, boxes, _cluster: cluster }
    }

    /// How often all boxes were asked for with this limit.
    fn asked(&self, limit: &str) -> usize {
        let is_asked = |path: &str| {
            let (resource, query) = path.split_once('?').unwrap_or((path, ""));
            resource == "/api/v1/configmaps" && query.split('&').any(|part| part == limit)
        };
        self.faults.calls().iter().filter(|call| is_asked(&call.path)).count()
    }

    async fn is_asked(&self, limit: &str, times: usize) {
        until(&format!("{times} questions with {limit}"), LIMIT, async || {
            let asked = self.asked(limit);
            Ok(if asked >= times { Ok(()) } else { Err(asked.to_string()) })
        })
        .await
        .unwrap();
    }
}

async fn put(boxes: &Api<ConfigMap>, name: &str, says: &str) {
    let found = json!({ "metadata": { "name": name }, "data": { "ball": says } });
    boxes.create(&PostParams::default(), &serde_json::from_value(found).unwrap()).await.unwrap();
}

fn toys(resync: Resync) -> Toys {
    Toys { resync, ..Toys::new(1, 0) }
}

/// Only boxes, and no ConfigMap of the API server itself.
fn boxes_alone(resync: Resync) -> Toys {
    Toys { fields: Some("metadata.namespace=caretaker-system"), ..toys(resync) }
}

/// So many events after the start never arrive.
fn losing_events(count: usize) -> Faults {
    (1..=count).fold(Faults::none(), |faults, n| faults.on_event(n, WatchFault::Drop))
}

#[rstest]
#[case::counted(Resync::CountDrift, COUNT)]
#[case::by_their_versions(Resync::VersionDrift, VERSIONS)]
#[tokio::test]
async fn what_a_watch_delivers_is_listed_once(#[case] resync: Resync, #[case] question: &str) {
    let shop = Shop::open(toys(resync), Faults::none()).await;

    shop.is_asked(question, 4).await;

    assert_eq!(shop.asked(WHOLE), 1);
    shop.keeper.stop().await;
}

#[tokio::test]
async fn however_much_changes_meanwhile_a_count_is_compared_exactly() {
    let shop = Shop::open(toys(Resync::CountDrift), Faults::none()).await;
    let churn = async {
        for number in 0.. {
            let name = format!("box-{number}");
            put(&shop.boxes, &name, "stays").await;
            if number >= 5 {
                let old = format!("box-{}", number - 5);
                shop.boxes.delete(&old, &DeleteParams::default()).await.unwrap();
            }
        }
    };

    tokio::select! {
        () = churn => {}
        () = shop.is_asked(COUNT, 8) => {}
    }

    assert_eq!(shop.asked(WHOLE), 1);
    shop.keeper.stop().await;
}

// The API server may write a ConfigMap of its own first.
#[rstest]
#[case::counted(toys(Resync::CountDrift), 3)]
#[case::counted_with_a_selector(boxes_alone(Resync::CountDrift), 1)]
#[case::by_its_version(boxes_alone(Resync::VersionDrift), 1)]
#[tokio::test]
async fn an_object_that_a_watch_has_lost_is_found(#[case] toys: Toys, #[case] lost: usize) {
    let shop = Shop::open(toys, losing_events(lost)).await;

    put(&shop.boxes, "box-lost", "!").await;

    shop.keeper.done(&["ball Certain done"]).await;
    assert_eq!(shop.asked(WHOLE), 2, "everything is listed once more");
    shop.keeper.stop().await;
}

#[tokio::test]
async fn a_change_that_a_watch_has_lost_is_found_by_its_version() {
    let shop = Shop::open(boxes_alone(Resync::VersionDrift), losing_events(1)).await;

    let change = Patch::Merge(json!({ "data": { "ball": "!" } }));
    shop.boxes.patch("box-first", &PatchParams::default(), &change).await.unwrap();

    shop.keeper.done(&["ball Certain done"]).await;
    shop.keeper.stop().await;
}

#[tokio::test]
async fn with_a_selector_the_number_is_not_told_and_nothing_is_concluded_from_that() {
    let shop = Shop::open(boxes_alone(Resync::CountDrift), Faults::none()).await;
    put(&shop.boxes, "box-second", "stays").await;

    shop.is_asked(VERSIONS, 4).await;

    assert_eq!((shop.asked(COUNT), shop.asked(WHOLE)), (0, 1), "they are counted by their metadata");
    shop.keeper.stop().await;
}
