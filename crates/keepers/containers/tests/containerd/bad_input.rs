//! What must not come from containerd or its clients, and comes: on a real containerd.

use crate::lab;
use crate::objects;
use crate::proxy;
use crate::raw;

use std::os::unix::fs::symlink;
use std::sync::Arc;

use caretaker_containers::act::clean::Cleaner;
use caretaker_containers::containerd::{Containerd as _, GrpcClient};
use caretaker_containers::host::Host;
use caretaker_core::{SignedDuration, Timestamp};
use caretaker_engine::clock::Clock;
use caretaker_testkit::containerd::test_on_both;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use caretaker_testkit::shared_without_controllers as shared;
use lab::{Lab, Outcome, State, exists, now, orphan};
use objects::{Objects, start};
use proxy::Proxy;

const MANAGED: &str = "fast-sandbox.io/managed";

pub fn tests() -> Vec<Trial> {
    let on_both = [
        test_on_both("labels_may_be_as_large_as_containerd_allows", huge_labels),
        test_on_both("containerd_may_go_away_instead_of_any_answer", goes_away),
        test_on_both("a_fifo_root_that_is_a_symlink_is_refused_and_nothing_outside_is_removed", linked_root),
        test_on_both("fifos_that_a_task_names_outside_of_the_root_stay", fifos_elsewhere),
    ];
    let once = [
        // containerd 2 refuses such a label.
        test("a_label_that_is_not_utf_8_keeps_its_container_and_no_other", Need::Containerd, not_utf_8),
        test("more_containers_than_one_message_holds_are_all_read", Need::Containerd, many),
    ];
    on_both.into_iter().flatten().chain(once).collect()
}

async fn not_utf_8() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "bytes").await?;
    let owned = objects.owned("never", "never", "box");
    for id in ["good-1", "good-2"] {
        lab.create(id, &owned, State::Running).await?;
    }
    raw::record_with_bytes(&lab, "bytes", &owned, (b"example.com/note", b"caf\xe9")).await?;

    let all = lab.client.list(MANAGED).await?;
    let broken: Vec<&str> = all.iter().filter(|one| one.unreadable.is_some()).map(|one| one.id.as_str()).collect();
    assert_eq!((all.len(), broken), (3, vec!["bytes"]));
    let clock = Clock::manual(Timestamp::now() + SignedDuration::from_hours(1)).0;
    let keeper = start(&lab, &objects.client, &lab.containerd().folder().join("state.json"), clock);
    let limit = caretaker_keeper_testkit::LIMIT;
    caretaker_testkit::until("the others to be gone", limit, async || {
        let outcomes = keeper.journal.outcomes();
        let said = |line: &str| outcomes.iter().any(|outcome| outcome == line);
        let done = said("good-1 AgentGone done") && said("good-2 AgentGone done") && said("bytes Unreadable refused");
        Ok(if done { Ok(()) } else { Err(format!("{outcomes:?} {:?}", keeper.health.blockers())) })
    })
    .await?;
    keeper.stop().await;

    let bytes = lab.get("bytes").await.unwrap();
    assert!(!bytes.labels.keys().any(|key| key.starts_with("caretaker.dev/")));
    assert!(lab.cleaner().clean(&bytes, now()).await.is_err());
    assert!(lab.get("bytes").await.is_some());
    assert!(lab.client.list_all().await?.iter().any(|one| one.id == "bytes"));
    Ok(())
}

async fn huge_labels() -> Outcome {
    let lab = Lab::start().await?;
    let mut huge = orphan();
    for n in 0..50 {
        let key = format!("example.com/{n:03}");
        huge.insert(key.clone(), "x".repeat(4096 - key.len()));
    }
    lab.create("huge", &huge, State::Running).await?;
    let container = lab.get("huge").await.unwrap();
    assert_eq!(container.labels.len(), 53);

    lab.cleaner().clean(&container, now()).await?;

    assert_eq!(lab.traces(&container).await, [""; 0]);
    Ok(())
}

async fn many() -> Outcome {
    let lab = Lab::start().await?;
    let mut large = orphan();
    large.insert("example.com/large".to_owned(), "x".repeat(4_000));
    for n in 0..1_100 {
        lab.record(&format!("many-{n}"), &large, &["sleep", "1"]).await?;
    }
    let whole = raw::list_in_one_message(&lab).await;
    assert!(whole.is_err_and(|why| why.contains("too large")), "one message does not hold them");

    assert_eq!(lab.client.list(MANAGED).await?.len(), 1_100);
    assert_eq!(lab.client.list_all().await?.len(), 1_100);
    Ok(())
}

async fn goes_away() -> Outcome {
    let lab = Lab::start().await?;
    let mut failed = 0;
    for answer in (2..40).step_by(4) {
        let id = format!("away-{answer}");
        lab.create(&id, &orphan(), State::Running).await?;
        let container = lab.get(&id).await.unwrap();
        let socket = lab.containerd().folder().join(format!("proxy-{answer}.sock"));
        let proxy = Proxy::start(socket, &lab.containerd().socket(), answer)?;
        let client = Arc::new(GrpcClient::new(&proxy.socket, "k8s.io")?);

        let cleaned = Cleaner::new(client, Arc::new(lab.host.clone())).clean(&container, now()).await;

        if cleaned.is_ok() {
            assert_eq!(lab.traces(&container).await, [""; 0], "answer {answer}");
            continue;
        }
        failed += 1;
        if let Some(left) = lab.get(&id).await {
            lab.cleaner().clean(&left, now()).await?;
        }
        assert_eq!(lab.traces(&container).await, [""; 0], "answer {answer}");
    }
    assert!(failed > 3, "containerd went away in {failed} of 10");
    Ok(())
}

async fn linked_root() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("linked", &orphan(), State::Running).await?;
    let container = lab.get("linked").await.unwrap();
    let link = lab.containerd().folder().join("link");
    symlink(&lab.host.fifo_root, &link)?;
    let host = Host { fifo_root: link, ..lab.host.clone() };

    let refused = Cleaner::new(lab.client.clone(), Arc::new(host)).clean(&container, now()).await.unwrap_err();

    assert!(refused.to_string().contains("--fifo-root"), "{refused}");
    assert!(lab.get("linked").await.is_some(), "its record stays");
    assert_eq!(lab.host.fifos("linked")?.len(), 3, "its FIFOs stay");
    lab.cleaner().clean(&container, now()).await?;
    assert_eq!(lab.traces(&container).await, [""; 0]);
    Ok(())
}

async fn fifos_elsewhere() -> Outcome {
    let lab = Lab::start().await?;
    lab.create("named", &orphan(), State::Running).await?;
    let container = lab.get("named").await.unwrap();
    // The keeper is told another root than the agent uses; a folder in it leads out.
    let root = lab.containerd().folder().join("other-root");
    std::fs::create_dir(&root)?;
    let folder = std::fs::read_dir(&lab.host.fifo_root)?.next().ok_or("it has FIFOs")??.path();
    symlink(&folder, root.join("out"))?;
    let host = Host { fifo_root: root.clone(), ..lab.host.clone() };

    Cleaner::new(lab.client.clone(), Arc::new(host)).clean(&container, now()).await?;

    assert_eq!(lab.host.fifos("named")?.len(), 3, "nothing outside of the root is removed");
    assert!(exists(&root.join("out")));
    Ok(())
}
