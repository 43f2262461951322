//! What a client and the server see of each fault.

use std::time::Duration;

use caretaker_testkit::faults::{Call, Fault, Faults, Life, Rates, WatchFault, for_every_call, mortal};
use caretaker_testkit::make::{Said, mk_namespace};
use caretaker_testkit::{shared, until};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Creates a client with these faults and a separate user, so that the audit log shows its calls alone.
async fn client(user: &str, faults: &Faults) -> Client {
    let config = shared().user_config(user, Some("system:masters")).await.unwrap();
    faults.client(config).unwrap()
}

async fn exists(name: &str) -> bool {
    let client = shared().client().await.unwrap();
    Api::<Namespace>::all(client).get_opt(name).await.unwrap().is_some()
}

async fn create(client: &Client, name: &str) -> Result<Namespace, kube::Error> {
    Api::all(client.clone()).create(&PostParams::default(), &mk_namespace(name)).await
}

#[tokio::test]
async fn a_call_with_an_injected_status_does_not_reach_the_server() {
    for (code, fault) in [(409, Fault::CONFLICT), (429, Fault::TOO_MANY), (500, Fault::SERVER_ERROR)] {
        let user = format!("answered-{code}");
        let client = client(&user, &Faults::none().at(1, fault)).await;

        let kube::Error::Api(status) = create(&client, &user).await.unwrap_err() else {
            panic!("not an error response")
        };

        assert_eq!(status.code, code);
        assert!(shared().audit().unwrap().of(&user).is_empty());
        assert!(create(&client, &user).await.is_ok(), "only the first call has a fault");
    }
}

#[tokio::test]
async fn a_call_whose_response_is_lost_has_been_executed() {
    for (name, fault, executed) in [
        ("lost-timeout", Fault::Timeout, true),
        ("lost-cut-after", Fault::CutAfter, true),
        ("lost-cut-before", Fault::CutBefore, false),
    ] {
        let client = client(name, &Faults::none().at(1, fault)).await;

        let error = create(&client, name).await.unwrap_err();

        assert!(matches!(error, kube::Error::Service(_)), "{error:?}");
        assert_eq!(exists(name).await, executed, "{fault:?}");
        assert_eq!(shared().audit().unwrap().of(name).len(), usize::from(executed));
    }
}

#[tokio::test]
async fn the_server_receives_the_fatal_call_only_with_die_after() -> Outcome {
    for (fault, reached) in [(Fault::DieBefore, 1), (Fault::DieAfter, 2)] {
        let user = format!("dies-{reached}");
        let config = shared().user_config(&user, Some("system:masters")).await?;
        let faults = Faults::none().at(2, fault);

        let life = mortal(&faults, config, async |client| {
            for i in 0..3 {
                create(&client, &format!("{user}-{i}")).await.unwrap();
            }
        });

        assert_eq!(life, Life::Died);
        assert_eq!(shared().audit()?.of(&user).len(), reached, "{fault:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_tasks_of_a_dead_process_are_dropped() -> Outcome {
    let config = shared().user_config("tasks", Some("system:masters")).await?;
    let faults = Faults::none().at(1, Fault::DieAfter);
    let (held, dropped) = tokio::sync::oneshot::channel::<()>();

    let life = mortal(&faults, config, async |client| {
        tokio::spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        create(&client, "tasks-1").await.unwrap();
    });

    assert_eq!(life, Life::Died);
    assert!(dropped.await.is_err(), "the task and what it held are dropped");
    Ok(())
}

#[tokio::test]
async fn for_every_call_injects_the_fault_at_each_call() -> Outcome {
    let config = shared().user_config("every", Some("system:masters")).await?;
    let mut completed = Vec::new();

    let faulty_runs = for_every_call(Fault::DieAfter, 10, |n, faults| {
        let name = format!("every-{n}");
        let life = mortal(faults, config.clone(), async |client| {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            create(&client, &name).await.unwrap();
            let patch = Patch::Merge(json!({ "metadata": { "labels": { "seen": "yes" } } }));
            namespaces.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
        });
        completed.push(matches!(life, Life::Lived(())));
    });

    assert_eq!(faulty_runs, 3);
    assert_eq!(completed, [false, false, false, true]);
    Ok(())
}

#[test]
#[should_panic(expected = "the scenario makes more than 3 calls")]
fn for_every_call_panics_above_its_limit() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = runtime.block_on(shared().admin_config()).unwrap();

    for_every_call(Fault::CONFLICT, 3, |n, faults| {
        mortal(faults, config.clone(), async |client| {
            for _ in 0..n {
                let _ = Api::<Namespace>::all(client.clone()).get_opt("default").await;
            }
        });
    });
}

/// Returns the names of namespaces with this label that are created from now on, as a watch reports them.
async fn watch_names(faults: &Faults, user: &str, label: &str) -> impl futures::Stream<Item = String> + Unpin + use<> {
    let namespaces: Api<Namespace> = Api::all(client(user, faults).await);
    let params = ListParams::default().labels(label);
    let start = namespaces.list(&params).await.unwrap().metadata.resource_version.unwrap();
    let stream = namespaces.watch(&WatchParams::default().labels(label), &start).await.unwrap();
    Box::pin(stream.into_stream().filter_map(|event| async move {
        match event.unwrap() {
            WatchEvent::Added(ns) => Some(ns.name_any()),
            _ => None,
        }
    }))
}

async fn create_labelled(name: &str, label: &str) {
    let client = shared().client().await.unwrap();
    Api::all(client).create(&PostParams::default(), &mk_namespace(name).label(label, "yes")).await.unwrap();
}

#[tokio::test]
async fn the_client_does_not_receive_a_dropped_watch_event() {
    let faults = Faults::none().on_event(1, WatchFault::Drop);
    let mut seen = watch_names(&faults, "drops", "drops").await;

    create_labelled("drops-1", "drops").await;
    create_labelled("drops-2", "drops").await;

    // The namespace controller edits each namespace, so there are more events; the first of type ADDED
    // that passes is that of the second namespace.
    assert_eq!(seen.next().await.as_deref(), Some("drops-2"));
}

#[tokio::test]
async fn a_delayed_watch_event_arrives_after_let_go() {
    let faults = Faults::none().on_event(1, WatchFault::Delay);
    let mut seen = watch_names(&faults, "delays", "delays").await;
    create_labelled("delays-1", "delays").await;

    let mut first = Box::pin(seen.next());
    until("the event to reach the fault layer", Duration::from_secs(10), async || {
        let polled = futures::poll!(&mut first);
        assert!(polled.is_pending(), "the event is delayed");
        Ok(if faults.events() == 1 { Ok(()) } else { Err("no event".to_owned()) })
    })
    .await
    .unwrap();
    faults.let_go();

    assert_eq!(first.await.as_deref(), Some("delays-1"));
}

#[tokio::test]
async fn a_stale_list_returns_the_first_response() {
    let faults = Faults::none().stale_lists_after(1);
    let namespaces: Api<Namespace> = Api::all(client("stale", &faults).await);
    let params = ListParams::default().labels("stale");
    assert_eq!(namespaces.list(&params).await.unwrap().items.len(), 0);

    create_labelled("stale-1", "stale").await;

    assert_eq!(namespaces.list(&params).await.unwrap().items.len(), 0, "the list is stale");
    assert_eq!(faults.stale_served(), 1);
    assert!(namespaces.get_opt("stale-1").await.unwrap().is_some(), "a get is not stale");
}

#[tokio::test]
async fn the_same_seed_gives_the_same_faults() {
    let rates = Rates { calls: 500, faults: Fault::SURVIVABLE.to_vec(), ..Rates::default() };
    let run = async |user: &str, seed| -> Vec<Option<Fault>> {
        let faults = Faults::seeded(seed, rates.clone());
        let client = client(user, &faults).await;
        for _ in 0..20 {
            // The result does not matter: the test compares the faults.
            let _ = Api::<Namespace>::all(client.clone()).get_opt("default").await;
        }
        faults.calls().into_iter().map(|Call { fault, .. }| fault).collect()
    };

    let first = run("seeded-1", 7).await;

    assert_eq!(first, run("seeded-2", 7).await);
    assert_ne!(first, run("seeded-3", 8).await);
    let count = first.iter().flatten().count();
    assert!((5..=15).contains(&count), "about half of 20 calls have a fault: {count}");
}

#[tokio::test]
async fn faults_of_calls_events_and_lists_are_combined() {
    let faults = Faults::none().at(3, Fault::CONFLICT).on_event(1, WatchFault::Drop).stale_lists_after(1);
    let mut seen = watch_names(&faults, "combined", "combined").await;

    create_labelled("combined-1", "combined").await;
    create_labelled("combined-2", "combined").await;

    // The list is the first call, the watch the second.
    assert_eq!(seen.next().await.as_deref(), Some("combined-2"), "the first event is dropped");
    let namespaces: Api<Namespace> = Api::all(client("combined", &faults).await);
    let params = ListParams::default().labels("combined");
    let kube::Error::Api(status) = namespaces.list(&params).await.unwrap_err() else { panic!("not an error response") };
    assert_eq!(status.code, 409, "the third call has the fault");
    assert!(namespaces.list(&params).await.unwrap().items.is_empty(), "the fourth call gets a stale list");
}

#[tokio::test]
async fn seeded_faults_drop_events_at_their_rate() {
    let all = Faults::seeded(1, Rates { dropped_events: 1000, ..Rates::default() });
    let mut lost = watch_names(&all, "seeded-all", "seeded-events").await;
    let half = || Faults::seeded(5, Rates { dropped_events: 500, ..Rates::default() });
    let (faults, again) = (half(), half());
    let mut seen = watch_names(&faults, "seeded-half", "seeded-events").await;
    let mut same = watch_names(&again, "seeded-again", "seeded-events").await;

    for i in 0..10 {
        create_labelled(&format!("seeded-events-{i:02}"), "seeded-events").await;
    }

    // At least ten events, because a controller may edit each namespace. The seed alone decides which are
    // dropped.
    let names = collect_until(&mut seen, &faults, 10).await;
    assert!((1..10).contains(&names.len()), "{names:?}");
    assert_eq!(names, collect_until(&mut same, &again, 10).await);
    assert_eq!(collect_until(&mut lost, &all, 10).await, Vec::<String>::new());
}

/// Collects what passes of the first `events` events. The number of an event is the count right after it.
async fn collect_until(
    seen: &mut (impl futures::Stream<Item = String> + Unpin),
    faults: &Faults,
    events: usize,
) -> Vec<String> {
    let mut names = Vec::new();
    until("the events", Duration::from_secs(20), async || {
        while let std::task::Poll::Ready(Some(name)) = futures::poll!(seen.next()) {
            if faults.events() <= events {
                names.push(name);
            }
        }
        Ok(if faults.events() >= events { Ok(()) } else { Err(format!("{} events", faults.events())) })
    })
    .await
    .unwrap();
    names
}

#[tokio::test]
async fn seeded_faults_make_lists_stale_at_their_rate() {
    let run = async |user: &str, stale_lists| {
        let faults = Faults::seeded(3, Rates { stale_lists, ..Rates::default() });
        let namespaces: Api<Namespace> = Api::all(client(user, &faults).await);
        for _ in 0..20 {
            namespaces.list(&ListParams::default().labels("seeded-lists")).await.unwrap();
        }
        faults.stale_served()
    };

    assert_eq!(run("stale-never", 0).await, 0);
    assert_eq!(run("stale-always", 1000).await, 19, "all lists but the first, which is recorded");
    let half = run("stale-half", 500).await;
    assert!((4..=15).contains(&half), "{half}");
    assert_eq!(run("stale-again", 500).await, half, "the same seed gives the same count");
}

#[tokio::test]
async fn a_bookmark_passes_and_is_not_counted() {
    let faults = Faults::seeded(1, Rates { dropped_events: 1000, ..Rates::default() });
    let namespaces: Api<Namespace> = Api::all(client("bookmarks", &faults).await);
    // A streaming list ends with a bookmark. All events before it are dropped.
    let stream = namespaces.watch(&WatchParams::default().initial_events(), "0").await.unwrap();
    let mut stream = Box::pin(stream.into_stream());

    let first = tokio::time::timeout(Duration::from_secs(20), stream.next()).await.expect("a bookmark arrives");

    assert!(matches!(first, Some(Ok(WatchEvent::Bookmark(_)))), "{first:?}");
    assert!(faults.events() > 0, "the list had namespaces");
}

#[tokio::test]
async fn the_error_response_to_a_watch_is_not_counted_as_an_event() {
    let faults = Faults::none();
    let config = shared().user_config("no-permissions", None).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(faults.client(config).unwrap());

    let refused = namespaces.watch(&WatchParams::default(), "0").await.err().expect("RBAC denies it");

    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));
    assert_eq!(faults.events(), 0);
}
