//! On a real node, with a CNI plugin whose DEL fails, is lost or comes late: how long the address of a pod is held that
//! the kubelet still has to end.
//!
//! Until its last `deletionTimestamp`, its own grace period once more, and ten seconds. A pod that is removed by force has
//! a `deletionTimestamp` as well, without a grace period in it; so has one that its kubelet has ended.

use crate::lab;

use crate::support::real::seconds;
use caretaker_testkit::harness::Trial;
use caretaker_testkit::harness::{Need, test};
use lab::{Del, Lab, answers};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The extra grace period, and the interval of Spiderpool's collector.
const DELAY: i64 = 10;

pub fn tests() -> Vec<Trial> {
    vec![
        test("an_address_is_held_while_a_cni_del_is_late", Need::Node, del_is_late),
        test("an_address_whose_cni_del_fails_is_held_until_the_deadline", Need::Node, del_fails),
        test("an_address_whose_cni_del_was_lost_is_released_after_the_deadline", Need::Node, del_is_lost),
        test(
            "an_address_of_a_pod_that_was_removed_by_force_is_held_while_its_node_ends_it",
            Need::Node,
            removed_by_force,
        ),
        test("a_pod_of_the_same_name_frees_no_address_of_the_one_before", Need::Node, replaced_by_a_namesake),
    ]
}

async fn del_is_late() -> Outcome {
    let lab = Lab::new("late").await;
    let web = lab.run("web", 3, |_| ()).await;
    lab.endpoint(&web).await;
    lab.allocate(&[&web]).await;
    lab.del(&web, Del::IsLate);
    let (guard, end) = (lab.guard(&[&web]), lab.follow(&web).await);

    let deadline = lab.delete(&web).await + seconds(3 + DELAY);
    lab.del_called(&web).await;
    lab.held_until(deadline, &[&web]).await;
    assert!(answers(&web.ip).await, "its containers have ended, its interface exists");
    lab.del_succeeds(&web);
    let deadline = end.await + seconds(3 + DELAY);
    lab.silent(&web).await;

    lab.released_after(deadline, &[]).await;
    lab.no_endpoint_left().await;
    guard.end().await;
    lab.keeper.stop().await;
    Ok(())
}

/// A DEL that fails for longer than the deadline is the risk that the documentation names.
async fn del_fails() -> Outcome {
    let lab = Lab::new("failing").await;
    let web = lab.run("web", 3, |_| ()).await;
    lab.endpoint(&web).await;
    lab.allocate(&[&web]).await;
    lab.del(&web, Del::Fails);
    let (guard, end) = (lab.guard(&[&web]), lab.follow(&web).await);

    let deadline = lab.delete(&web).await + seconds(3 + DELAY);
    lab.del_called(&web).await;
    lab.containers_ended(&web).await;
    lab.held_until(deadline, &[&web]).await;
    assert!(answers(&web.ip).await, "its containers have ended, its interface exists");
    guard.end().await;

    lab.released_after(deadline, &[]).await;
    lab.no_endpoint_left().await;
    assert_eq!(lab.story(&web), ["PodTerminating done"]);
    assert!(lab.exists(&web).await && answers(&web.ip).await, "nothing leaks, and the node still tries");

    lab.del_succeeds(&web);
    end.await;
    lab.silent(&web).await;
    lab.keeper.stop().await;
    Ok(())
}

async fn del_is_lost() -> Outcome {
    let lab = Lab::new("lost").await;
    let web = lab.run("web", 3, |_| ()).await;
    lab.endpoint(&web).await;
    lab.allocate(&[&web]).await;
    lab.del(&web, Del::IsLost);
    let (guard, end) = (lab.guard(&[&web]), lab.follow(&web).await);

    lab.delete(&web).await;
    let deadline = end.await + seconds(3 + DELAY);
    lab.held_until(deadline, &[&web]).await;

    lab.released_after(deadline, &[]).await;
    lab.no_endpoint_left().await;
    assert_eq!(lab.story(&web), ["PodGone done"]);
    guard.end().await;
    lab.keeper.stop().await;
    Ok(())
}

/// One of the two has no endpoint that says where it was.
async fn removed_by_force() -> Outcome {
    let lab = Lab::new("forced").await;
    let (web, bare) = (lab.run_stubborn("web", 20).await, lab.run_stubborn("bare", 40).await);
    lab.endpoint(&web).await;
    lab.allocate(&[&web, &bare]).await;
    let guard = lab.guard(&[&web, &bare]);
    lab.del(&web, Del::IsLate);
    lab.del(&bare, Del::IsLate);

    let of_web = lab.force_delete(&web).await + seconds(20 + DELAY);
    let of_bare = lab.force_delete(&bare).await + seconds(40 + DELAY);
    for pod in [&web, &bare] {
        lab.del_called(pod).await;
    }
    lab.held_until(of_web, &[&web, &bare]).await;
    for pod in [&web, &bare] {
        assert!(answers(&pod.ip).await, "there is no object of {}, but an interface", pod.name);
        lab.del_succeeds(pod);
        lab.silent(pod).await;
    }

    lab.released_after(of_web, &[&bare]).await;
    lab.no_endpoint_left().await;
    lab.released_after(of_bare, &[]).await;
    assert_eq!([lab.story(&web), lab.story(&bare)], [["PodGone done"], ["PodGone done"]]);
    guard.end().await;
    lab.keeper.stop().await;
    Ok(())
}

async fn replaced_by_a_namesake() -> Outcome {
    let lab = Lab::new("namesake").await;
    let before = lab.run_stubborn("web", 20).await;
    lab.allocate(&[&before]).await;
    lab.del(&before, Del::IsLate);
    // The grace period of the pod that is gone counts, not that of its namesake.
    let deadline = lab.force_delete(&before).await + seconds(20 + DELAY);
    let after = lab.run("web", 3, |_| ()).await;
    assert_ne!(before.ip, after.ip, "the node has not given back the address of the pod before");
    let key = lab.corner.key("web");
    lab.corner.add_records(&[(&after.ip, &key, &after.uid)]).await;
    lab.endpoint(&after).await;
    let guard = lab.guard(&[&before, &after]);

    lab.del_called(&before).await;
    lab.held_until(deadline, &[&before, &after]).await;
    assert!(answers(&before.ip).await && answers(&after.ip).await, "both have their interfaces");
    lab.del_succeeds(&before);
    lab.silent(&before).await;

    lab.released_after(deadline, &[&after]).await;
    assert_eq!(lab.story(&before), ["PodReplaced done"]);
    assert!(answers(&after.ip).await && lab.story(&after).is_empty(), "its namesake is not touched");
    guard.end().await;
    lab.force_delete(&after).await;
    lab.keeper.stop().await;
    Ok(())
}
