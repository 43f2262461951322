//! Who keeps addresses beyond the life of a pod: what Spiderpool writes on endpoints, and its settings.

use crate::support::objects::*;
use caretaker_addresses::judge::Rule;
use caretaker_addresses::observe::{AddressCache, Key};
use caretaker_core::RuleSet as _;
use caretaker_engine::cache::Cache as _;
use rstest::rstest;
use serde_json::{Value, json};

const IP: &str = "10.0.0.1";
const OTHER_IP: &str = "10.0.0.9";

fn record() -> Value {
    pool("pool", &[(IP, "shop/web-1", &uid(1))])
}

fn recreated(ips: &[&str]) -> Value {
    pod("shop/web-1", &uid(2), ips).in_stateful_set()
}

/// The endpoint of the previous pod.
fn previous() -> Value {
    set_endpoint("shop/web-1", &uid(1), &[IP])
}

fn endpoint_key() -> Key {
    Key::Endpoint("shop/web-1".into())
}

fn said(cache: &AddressCache, key: &Key) -> (&'static str, &'static str) {
    let verdict = judge(cache, key, now());
    (verdict.rule.name(), verdict.next.name())
}

/// The verdict on the record, where the node of its pod is gone: it waits for nothing that is not said here.
fn verdict(objects: &[Value]) -> (&'static str, &'static str) {
    said(&cache_of(&[&[record(), node("node-2", true)], objects].concat()), &address("pool", IP))
}

#[test]
fn a_record_stays_while_an_endpoint_promises_it_and_the_stale_endpoint_goes_first() {
    let mut cache = cache_of(&[record(), set("shop/web", 2), recreated(&[OTHER_IP]), previous(), node("node-2", true)]);
    let (ip, endpoint) = (address("pool", IP), endpoint_key());

    for seconds in [0, 20, 35] {
        let waits = judge_and_record(&mut cache, &ip, at(seconds));
        assert_eq!((waits.rule.name(), waits.next.name()), ("WaitingForEndpoint", "wait"), "{seconds}");
        let suspected = judge_and_record(&mut cache, &endpoint, at(seconds));
        assert_eq!(suspected.rule.name(), "EndpointOutdated", "{seconds}");
        assert_eq!((suspected.next.name(), suspected.next.deadline()), ("wait", Some(at(35))), "{seconds}");
    }
    assert_eq!(judge_and_record(&mut cache, &endpoint, at(36)).next.name(), "act");
    assert_eq!(judge_and_record(&mut cache, &ip, at(36)).next.name(), "wait", "the endpoint is still there");

    delete(&mut cache, &previous());
    let gone = judge_and_record(&mut cache, &ip, at(37));
    assert_eq!((gone.rule.name(), gone.next.name()), ("ReplacementHasOtherIP", "act"));
}

#[rstest]
#[case::no_addresses_yet(recreated(&[]), "EndpointInUse")]
#[case::one_of_its_addresses(recreated(&[IP]), "EndpointInUse")]
#[case::only_another_family(recreated(&["fd00::9"]), "EndpointInUse")]
#[case::multus_is_unreadable(recreated(&[OTHER_IP]).with("/metadata/annotations", json!({ "k8s.v1.cni.cncf.io/network-status": "{" })), "EndpointInUse")]
#[case::multus_reports_it(
    recreated(&[OTHER_IP]).with("/metadata/annotations", json!({ "k8s.v1.cni.cncf.io/network-status": r#"[{"ips":["10.0.0.1"]}]"# })),
    "EndpointInUse")]
#[case::it_is_terminating(recreated(&[OTHER_IP]).terminating(at(-600)), "EndpointInUse")]
#[case::other_addresses(recreated(&[OTHER_IP]), "EndpointOutdated")]
#[case::not_of_the_set(pod("shop/web-1", &uid(2), &[OTHER_IP]), "EndpointInUse")]
fn an_endpoint_is_outdated_if_its_pod_certainly_has_other_addresses(#[case] pod: Value, #[case] rule: &str) {
    let cache = cache_of(&[record(), set("shop/web", 2), pod, previous()]);

    assert_eq!(said(&cache, &endpoint_key()).0, rule);
}

#[test]
fn an_address_that_an_endpoint_promises_is_not_suspected_either() {
    let running = pod("shop/web-1", &uid(1), &[OTHER_IP]).in_stateful_set();
    let endpoint = set_endpoint("shop/web-1", &uid(7), &[IP]);

    assert_eq!(verdict(&[set("shop/web", 2), running, endpoint]), ("WaitingForEndpoint", "wait"));
}

#[test]
fn only_the_leader_waits_for_an_endpoint() {
    let cache = cache_of(&[record(), previous()]);
    let standby = caretaker_addresses::subject::World { leads: false, ..world(&cache) };

    let verdict = Rule::judge(&subject(&cache, &address("pool", IP)), &standby, now());

    assert_eq!((verdict.rule.name(), verdict.next.name()), ("WaitingForEndpoint", "none"));
}

/// An endpoint of a StatefulSet of OpenKruise: the same kind, and an ownerReference to the Pod.
fn kruise() -> Value {
    endpoint("shop/web-1", &uid(1), &[IP]).with("/status/ownerControllerType", json!("StatefulSet"))
}

fn kruise_pod(number: u32, ips: &[&str]) -> Value {
    let owner = json!([{ "apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "web", "uid": uid(98), "controller": true }]);
    pod("shop/web-1", &uid(number), ips).with("/metadata/ownerReferences", owner)
}

#[rstest]
#[case::gone(&[kruise()], "PodGone", "act")]
#[case::gone_next_to_a_set_of_that_name(&[kruise(), set("shop/web", 2)], "PodGone", "act")]
#[case::replaced(&[kruise(), kruise_pod(2, &[])], "PodReplaced", "act")]
#[case::replaced_without_an_endpoint(&[kruise_pod(2, &[OTHER_IP])], "PodReplaced", "act")]
#[case::terminating(&[kruise(), kruise_pod(1, &[IP]).terminating(at(-60))], "PodTerminating", "act")]
#[case::the_same_without_an_owner_is_sticky(&[kruise().with("/metadata/ownerReferences", json!([]))], "WaitingForEndpoint", "wait")]
fn sticky_is_what_has_no_owner_reference_to_its_pod(#[case] objects: &[Value], #[case] rule: &str, #[case] next: &str) {
    assert_eq!(verdict(objects), (rule, next));
}

#[rstest]
#[case::absent_and_wanted(&[set("shop/web", 2)], "PodGone", "act")]
#[case::terminating_and_wanted(&[set("shop/web", 2), pod("shop/web-1", &uid(1), &[IP]).in_stateful_set().terminating(at(-60))], "PodTerminating", "act")]
#[case::recreated(&[set("shop/web", 2), recreated(&[])], "PodReplaced", "act")]
#[case::its_endpoint_is_from_before(&[set("shop/web", 2), previous()], "WaitingForEndpoint", "wait")]
fn without_enable_stateful_set_nothing_is_retained_for_sets(
    #[case] objects: &[Value],
    #[case] rule: &str,
    #[case] next: &str,
) {
    let off = config("enableStatefulSet: false");

    assert_eq!(verdict(&[objects, &[off]].concat()), (rule, next));
}

#[test]
fn without_enable_stateful_set_an_endpoint_of_the_previous_pod_is_abandoned() {
    let cache = cache_of(&[
        record(),
        set("shop/web", 2),
        recreated(&[]),
        previous(),
        config("enableStatefulSet: false"),
        node("node-2", true),
    ]);

    assert_eq!(said(&cache, &endpoint_key()), ("EndpointAbandoned", "act"), "it would block the new pod");
}

#[test]
fn without_enable_kubevirt_static_ip_a_virtual_machine_retains_only_what_its_endpoint_has() {
    let (vm, off) = (vm_instance("shop/web-1"), config("enableKubevirtStaticIP: false"));
    let before = previous().with("/status/ownerControllerType", json!("VirtualMachineInstance"));

    assert_eq!(verdict(std::slice::from_ref(&vm)), ("RetainedByVM", "none"));
    assert_eq!(verdict(&[vm.clone(), off.clone()]), ("PodGone", "act"));
    assert_eq!(verdict(&[vm, off, before]), ("RetainedByVM", "none"), "the guest may run since before the switch");
}

#[rstest]
#[case::a_provider(
    "iaasNetworkProvider: {serverUrl: https://iaas.example.com}",
    "ProviderAddresses",
    "iaasNetworkProvider.serverUrl"
)]
#[case::unreadable("enableStatefulSet: [", "UnreadableConfig", "conf.yml")]
fn under_some_settings_nothing_is_released_and_the_pool_says_why(
    #[case] text: &str,
    #[case] rule: &str,
    #[case] field: &str,
) {
    let cache = cache_of(&[record(), endpoint("bank/gone", &uid(3), &[OTHER_IP]), config(text)]);

    assert_eq!(said(&cache, &address("pool", IP)), (rule, "none"));
    assert_eq!(said(&cache, &Key::Endpoint("bank/gone".into())), (rule, "none"));
    let pool = judge(&cache, &Key::Pool("pool".into()), now());
    assert_eq!((pool.rule.name(), pool.next.name()), (rule, "refuse"));
    assert!(pool.because.contains(field) && pool.because.contains("kube-system/spiderpool-conf"), "{}", pool.because);
}

#[test]
fn a_change_of_the_settings_is_about_everything() {
    let mut cache = cache_of(&[record(), previous()]);
    cache.take_dirty();

    apply(&mut cache, &[config("iaasNetworkProvider: {serverUrl: x}")]);
    assert_eq!(cache.take_dirty().into_iter().collect::<Vec<_>>(), {
        let mut all = cache.keys();
        all.sort_unstable();
        all
    });
    assert_eq!(said(&cache, &address("pool", IP)).0, "ProviderAddresses");

    delete(&mut cache, &config(""));
    assert_eq!(cache.take_dirty().len(), 3);
    assert_eq!(said(&cache, &address("pool", IP)).0, "WaitingForEndpoint");
    apply(&mut cache, &[config("enableIPv4: true")]);
    assert_eq!(cache.take_dirty().len(), 0, "nothing that decides has changed");
}
