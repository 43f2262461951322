//! Over random histories no address in use is ever released, and every leaked one is, in bounded time: with
//! watches that lag, a collector that is interrupted between any two calls and restarted, and an allocator
//! that allocates any free address.

use crate::support::model::{KINDS, MAX_LINGERING, Model, NodeIs};
use caretaker_core::SignedDuration;
use proptest::prelude::*;

/// Something that happens.
#[derive(Debug, Clone)]
enum Event {
    Create(u8),
    Allocate(u8),
    AllocateUnused(u8),
    AllocateAnother(u8),
    Endpoint(u8),
    Report(u8),
    Delete(u8, i64),
    End(u8, bool),
    Remove(u8, i64),
    Finish(u8, i64),
    Node(usize, NodeIs),
    Scale(u8, i64),
    ReconcileSets,
    Advance(i64),
    Deliver(u8, u8),
    Restart,
    SetClock(i64),
    Start(u8),
    DeliverAll,
    Collect,
    Judge,
    Read,
    Look,
    Write,
}

/// Bare pods first, then those of two StatefulSets.
fn key(number: u8) -> String {
    match number {
        0..3 => format!("shop/bare-{}", char::from(b'a' + number)),
        3 => "shop/bare-7".to_owned(),
        4..7 => format!("shop/db-{}", number - 4),
        _ => format!("bank/db-{}", number - 7),
    }
}

fn set(number: u8) -> &'static str {
    if number == 0 { "shop/db" } else { "bank/db" }
}

fn node() -> impl Strategy<Value = NodeIs> {
    let quiet = prop_oneof![Just(NodeIs::Silent), Just(NodeIs::OutOfService), Just(NodeIs::Gone)];
    prop_oneof![Just(NodeIs::Ready), quiet]
}

fn event() -> impl Strategy<Value = Event> {
    let pod = 0..10_u8;
    prop_oneof![
        4 => (0..4_u8).prop_map(Event::Create),
        6 => pod.clone().prop_map(Event::Start),
        3 => pod.clone().prop_map(Event::Allocate),
        1 => pod.clone().prop_map(Event::AllocateUnused),
        2 => pod.clone().prop_map(Event::Endpoint),
        2 => pod.clone().prop_map(Event::Report),
        4 => (pod.clone(), 0..=MAX_LINGERING).prop_map(|(pod, lingers)| Event::Delete(pod, lingers)),
        2 => (4..10_u8).prop_map(Event::AllocateAnother),
        3 => (pod.clone(), any::<bool>()).prop_map(|(pod, releases)| Event::End(pod, releases)),
        3 => (pod.clone(), 0..=MAX_LINGERING).prop_map(|(pod, lingers)| Event::Remove(pod, lingers)),
        1 => (pod, 0..=MAX_LINGERING).prop_map(|(pod, lingers)| Event::Finish(pod, lingers)),
        2 => (0..3_usize, node()).prop_map(|(node, is)| Event::Node(node, is)),
        2 => (0..2_u8, 0..4_i64).prop_map(|(set, replicas)| Event::Scale(set, replicas)),
        4 => Just(Event::ReconcileSets),
        3 => (0..12_i64).prop_map(Event::Advance),
        1 => (12..60_i64).prop_map(Event::Advance),
        5 => Just(Event::DeliverAll),
        4 => (0..5_u8, 1..5_u8).prop_map(|(kind, count)| Event::Deliver(kind, count)),
        1 => Just(Event::Restart),
        1 => (-90..90_i64).prop_map(Event::SetClock),
        8 => Just(Event::Collect),
        3 => Just(Event::Judge),
        3 => Just(Event::Read),
        3 => Just(Event::Look),
        3 => Just(Event::Write),
    ]
}

fn play(model: &mut Model, event: &Event) {
    match event {
        Event::Create(pod) => model.create(&key(*pod), false),
        Event::Allocate(pod) => model.allocate(&key(*pod)),
        Event::AllocateUnused(pod) => model.allocate_unused(&key(*pod)),
        Event::AllocateAnother(pod) => model.allocate_another(&key(*pod)),
        Event::Endpoint(pod) => model.write_endpoint(&key(*pod)),
        Event::Report(pod) => model.report(&key(*pod)),
        Event::Delete(pod, lingers) => model.delete(&key(*pod), *lingers),
        Event::End(pod, releases) => model.end(&key(*pod), *releases),
        Event::Remove(pod, lingers) => model.remove(&key(*pod), *lingers),
        Event::Finish(pod, lingers) => model.finish(&key(*pod), *lingers),
        Event::Node(node, is) => model.node_becomes(*node, *is),
        Event::Scale(number, replicas) => model.scale(set(*number), *replicas),
        Event::ReconcileSets => model.reconcile_sets(),
        Event::Advance(seconds) => model.advance(*seconds),
        Event::Deliver(kind, count) => model.deliver(KINDS[usize::from(*kind)], usize::from(*count)),
        Event::Restart => model.restart(),
        Event::SetClock(seconds) => model.set_clock(SignedDuration::from_secs(*seconds)),
        Event::Start(pod) => model.start(&key(*pod)),
        Event::DeliverAll => model.deliver_all(),
        Event::Collect => model.collect(),
        Event::Judge => model.judge(),
        Event::Read => model.read(),
        Event::Look => model.look(),
        Event::Write => model.write(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_address_in_use_is_released_and_every_leaked_one_is(events in proptest::collection::vec(event(), 1..120)) {
        let mut model = Model::new(6);
        for (i, event) in events.iter().enumerate() {
            play(&mut model, event);
            prop_assert_eq!(model.wrong(), None, "after {} {:?}", i, event);
        }

        prop_assert_eq!(model.settle(), None);
        prop_assert_eq!(model.leaked(), Vec::<String>::new());
    }
}

/// A recreated pod runs with another address than its endpoint promises: the endpoint goes first, and the next
/// pod does not get what somebody else has by then.
#[test]
fn an_address_that_an_endpoint_promises_is_not_released_before_the_endpoint_is_deleted() {
    let mut model = Model::new(3);
    model.scale("shop/db", 1);
    model.reconcile_sets();
    model.start("shop/db-0");
    model.end("shop/db-0", false);
    model.reconcile_sets();
    model.allocate_another("shop/db-0");
    assert_eq!(model.records.len(), 2, "the promised address, and the one that it has");

    assert_eq!(model.settle(), None);
    assert_eq!((model.leaked(), model.records.len()), (Vec::new(), 1));

    model.create("shop/bare-a", false);
    model.start("shop/bare-a");
    model.end("shop/db-0", true);
    model.reconcile_sets();
    model.start("shop/db-0");
    assert_eq!(model.settle(), None);
    assert_eq!(model.live.len(), 2);
}

/// A recreated pod ran with another address than its endpoint promises, and is Terminating: the next pod of its name
/// gets what the endpoint promises, so that address is no leak.
#[test]
fn an_address_that_an_endpoint_promises_is_kept_for_the_pod_after_a_terminating_one() {
    let mut model = Model::new(3);
    model.scale("shop/db", 1);
    model.reconcile_sets();
    model.start("shop/db-0");
    let promised: Vec<_> = model.records.keys().copied().collect();
    model.end("shop/db-0", false);
    model.reconcile_sets();
    model.allocate_another("shop/db-0");
    model.delete("shop/db-0", 0);
    assert_eq!((model.settle(), model.leaked()), (None, Vec::new()));
    assert!(model.records.contains_key(&promised[0]), "{:?}", model.records);

    model.end("shop/db-0", true);
    model.reconcile_sets();
    model.start("shop/db-0");
    assert_eq!(model.settle(), None);
    assert_eq!((model.leaked(), model.live.values().next().unwrap().1.clone()), (Vec::new(), promised));
}

/// G11: two StatefulSets share five addresses and scale in turns: 5, 0, 5, …
#[test]
fn g11_a_thousand_turns_of_two_sets_never_allocate_one_address_twice() {
    let mut model = Model::new(5);
    let mut turns = fastrand::Rng::with_seed(11);
    let (mut given, mut stuck) = (0, 0);
    for turn in 0..1_000 {
        let (up, down) = if turn % 2 == 0 { ("shop/db", "bank/db") } else { ("bank/db", "shop/db") };
        model.scale(down, 0);
        model.scale(up, 5);
        for _ in 0..15 {
            model.reconcile_sets();
            for ordinal in 0..5 {
                let key = format!("{up}-{ordinal}");
                model.allocate(&key);
                if turns.bool() {
                    model.write_endpoint(&key);
                    model.report(&key);
                }
                // Half of the pods that end release their addresses.
                if turns.u8(..4) == 0 {
                    model.end(&format!("{down}-{ordinal}"), turns.bool());
                }
            }
            model.deliver(KINDS[turns.usize(..5)], turns.usize(..20));
            if turns.u8(..3) == 0 {
                model.collect();
            }
            if turns.u8(..50) == 0 {
                model.restart();
            }
            model.advance(turns.i64(0..9));
            assert_eq!(model.wrong(), None, "turn {turn}");
        }
        model.deliver_all();
        let up_and_running = model.live.values().filter(|(key, _)| key.starts_with(up)).count();
        given += up_and_running;
        stuck += 5 - up_and_running;
    }

    assert!(
        model.released > 500,
        "the collector had work: {}, {given} of {} got an address",
        model.released,
        given + stuck
    );
    assert!(given > stuck, "most got their addresses: {given} of {}", given + stuck);
}
