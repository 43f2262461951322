//! The addresses keeper on files: what the commands print, and which settings they take.

use std::process::{Command, Stdio};

use crate::support::cli::{AT, caretaker, folder, json, root, text};
use rstest::rstest;
use serde_json::{Value, json as value};

const POOLS: [&str; 4] = ["--from", "examples/pools", "--at", AT];

/// The rows of a plan, by kind and name.
fn plan(args: &[&str], variables: &[(&str, &str)]) -> Vec<(String, String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args([&["plan", "-o", "json"], args].concat())
        .current_dir(root())
        .env_remove("CARETAKER_CONFIG")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let word = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    rows.iter().map(|r| (word(&r["name"]), word(&r["rule"]), word(&r["next"]))).collect()
}

fn next_of(name: &str, variables: &[(&str, &str)]) -> String {
    let rows = plan(&POOLS, variables);
    rows.into_iter().find(|(found, ..)| found == name).map(|(_, _, next)| next).unwrap_or_default()
}

#[test]
fn an_address_is_a_row_like_any_other() {
    let rows = json(&[&["plan", "-o", "json"], &POOLS[..]].concat());

    let row = rows.iter().find(|row| row["name"] == "172.18.40.13").unwrap();
    assert_eq!(
        *row,
        value!({
            "keeper": "addresses", "kind": "IP", "namespace": null, "name": "172.18.40.13", "rule": "PodTerminating",
            "because": "pod shop/cart-5c9d8f6b7-mm4dx is Terminating, its deletion timestamp is 2026-03-02T09:02:00Z; \
                        node-b is not Ready and may still run it, so its grace period of 120s counts once more",
            "pool": "office", "state": "terminating", "next": "wait", "action": "release", "at": "2026-03-02T09:04:10Z",
        })
    );
}

#[rstest]
#[case::terminating_off("SPIDERPOOL_GC_TERMINATING_POD_IP_ENABLED", "false", "172.18.40.13", "none")]
#[case::terminating_on("SPIDERPOOL_GC_TERMINATING_POD_IP_ENABLED", "true", "172.18.40.13", "wait")]
#[case::not_ready_off("SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_NOT_READY_NODE_ENABLED", "0", "172.18.40.13", "none")]
#[case::ready_off("SPIDERPOOL_GC_STATELESS_TERMINATING_POD_ON_READY_NODE_ENABLED", "false", "172.18.40.13", "wait")]
#[case::all_off("SPIDERPOOL_GC_IP_ENABLED", "false", "172.18.40.11", "")]
#[case::all_on("SPIDERPOOL_GC_IP_ENABLED", "true", "172.18.40.11", "act")]
fn the_variables_of_spiderpool_apply(
    #[case] variable: &str,
    #[case] value: &str,
    #[case] ip: &str,
    #[case] next: &str,
) {
    assert_eq!(next_of(ip, &[(variable, value)]), next);
}

#[test]
fn a_variable_overrides_the_file_and_a_flag_overrides_both() {
    let files = folder(&[("config.yaml", "keepers: {addresses: {enabled: false, extraGracePeriod: 1m}}")]);
    let config = files.path().join("config.yaml");
    let with = |more: &[&str], variables: &[(&str, &str)]| {
        plan(&[&POOLS[..], &["--config", config.to_str().unwrap()], more].concat(), variables).len()
    };

    assert_eq!(with(&[], &[]), 0);
    assert!(with(&[], &[("SPIDERPOOL_GC_IP_ENABLED", "true")]) > 0);
    assert!(with(&["--keepers", "addresses"], &[("SPIDERPOOL_GC_IP_ENABLED", "false")]) > 0);
}

#[rstest]
#[case::switch("SPIDERPOOL_GC_IP_ENABLED", "maybe", "SPIDERPOOL_GC_IP_ENABLED is \"maybe\": write true or false")]
#[case::delay("SPIDERPOOL_GC_ADDITIONAL_GRACE_DELAY", "-5", "write seconds such as 600, or a duration such as 10m")]
#[case::interval("SPIDERPOOL_GC_DEFAULT_INTERVAL_DURATION", "0", "keepers.addresses.resyncInterval is shorter than 1s")]
fn a_variable_that_cannot_be_read_is_an_error(#[case] variable: &str, #[case] value: &str, #[case] expected: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_caretaker"))
        .args([&["plan"], &POOLS[..]].concat())
        .current_dir(root())
        .env(variable, value)
        .output()
        .unwrap();

    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}

#[rstest]
#[case::in_full("ip/172.18.40.11", "PodGone: release now")]
#[case::with_its_pool("ip/office/172.18.40.11", "PodGone: release now")]
#[case::a_pool("sp/storage", "AllocatedCountWrong: recount now")]
#[case::an_endpoint("se/old-worker", "EndpointAbandoned: delete-endpoint now")]
fn explain_knows_its_kinds(#[case] subject: &str, #[case] verdict: &str) {
    let output = caretaker(&[&["explain", subject], &POOLS[..]].concat());

    assert!(text(&output.stdout).contains(&format!("Verdict\n  {verdict}")), "{}", text(&output.stdout));
}

#[rstest]
#[case::not_held("ip/172.18.40.99", "no pool has a record of 172.18.40.99: it is not held")]
#[case::no_address("ip/web", "\"web\" is not an address; write for instance ip/10.6.0.12")]
#[case::another_pool("ip/storage/172.18.40.11", "no pool has a record of 172.18.40.11")]
#[case::no_pool("sp/storag", "there is no SpiderIPPool \"storag\"; did you mean storage?")]
fn a_subject_that_does_not_exist_is_reported(#[case] subject: &str, #[case] expected: &str) {
    let output = caretaker(&[&["explain", subject], &POOLS[..]].concat());

    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}

#[test]
fn a_report_counts_each_pool() {
    let output = caretaker(&[&["addresses", "report", "-o", "json"], &POOLS[..]].concat());

    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report[0],
        value!({ "pool": "office", "size": 10, "held": 6, "inUse": 2, "leaked": 3, "suspected": 1, "refused": 0, "drift": 0, "error": null })
    );
    assert_eq!((&report[1]["refused"], &report[1]["drift"]), (&value!(1), &value!(3)));
}

#[test]
fn a_suspected_address_is_released_in_a_simulation_as_it_would_be() {
    let args = ["simulate", "--from", "examples/pools", "--start", AT, "--for", "10m", "-o", "json"];

    let rows = json(&args);

    let row = rows.iter().find(|row| row["name"] == "172.18.40.15").expect("it is released");
    assert_eq!((&row["at"], &row["rule"]), (&value!("2026-03-02T09:00:35Z"), &value!("IPNotOnPod")));
}

#[test]
fn pools_without_pods_are_reported() {
    let pools = std::fs::read_to_string(root().join("examples/pools/pools.yaml")).unwrap();
    let only: String =
        pools.split("---\n").filter(|object| object.contains("SpiderIPPool")).collect::<Vec<_>>().join("---\n");
    let files = folder(&[("pools.yaml", &only)]);

    let output = caretaker(&["addresses", "report", "--from", files.path().to_str().unwrap()]);

    assert!(
        text(&output.stderr).contains("there are pools but no Pod: every address looks leaked"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn settings_of_spiderpool_are_read_from_files() {
    let pools = std::fs::read_to_string(root().join("examples/pools/pools.yaml")).unwrap();
    let config = "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: spiderpool-conf\n  namespace: kube-system\ndata:\n  conf.yml: |\n    iaasNetworkProvider:\n      serverUrl: https://iaas.example.com\n";
    let list = "kind: List\nitems: [{kind: ConfigMap, metadata: {name: spiderpool-conf, namespace: kube-system}, data: {conf.yml: 'iaasNetworkProvider: {serverUrl: x}'}}]\n";
    for config in [config, list] {
        let files = folder(&[("pools.yaml", &pools), ("config.yaml", config)]);

        let rows = plan(&["--from", files.path().to_str().unwrap(), "--at", AT], &[]);

        let acts: Vec<_> = rows.iter().filter(|(_, _, next)| next == "act" || next == "wait").collect();
        assert!(acts.is_empty(), "{acts:?}");
        assert!(rows.contains(&("office".to_owned(), "ProviderAddresses".to_owned(), "refuse".to_owned())), "{rows:?}");
    }
}

#[test]
fn an_address_in_two_pools_is_told_apart_by_its_pool() {
    let pool = |name: &str, pod: &str| {
        format!(
            "apiVersion: spiderpool.spidernet.io/v2beta1\nkind: SpiderIPPool\nmetadata: {{name: {name}, uid: {name}}}\nspec: {{subnet: 10.6.0.0/24, ipVersion: 4, ips: [10.6.0.1-10.6.0.20]}}\nstatus:\n  allocatedIPs: '{{\"10.6.0.9\":{{\"pod\":\"shop/{pod}\",\"podUid\":\"{pod}\"}},\"10.6.0.10\":{{\"pod\":\"shop/{pod}-x\",\"podUid\":\"{pod}-x\"}}}}'\n  allocatedIPCount: 2\n---\n"
        )
    };
    let pods = "kind: Pod\nmetadata: {name: other, namespace: shop, uid: other}\n";
    let cluster = folder(&[("a.yaml", &(pool("left", "a") + &pool("right", "b") + pods))]);
    let from = ["--from", cluster.path().to_str().unwrap(), "--at", AT];

    let rows = json(&[&["plan", "-o", "json"], from.as_slice()].concat());
    let pools: Vec<&Value> = rows.iter().filter(|row| row["name"] == "10.6.0.9").map(|row| &row["pool"]).collect();
    assert_eq!(pools, ["left", "right"]);
    let table = text(&caretaker(&[&["plan", "--all"], from.as_slice()].concat()).stdout);
    assert!(table.lines().next().unwrap().contains("POOL"), "{table}");
    let column: Vec<&str> =
        table.lines().filter_map(|line| line.strip_prefix("IP ")?.split_whitespace().next()).collect();
    assert_eq!(column, ["10.6.0.9", "10.6.0.10", "10.6.0.9", "10.6.0.10"], "as numbers, pool by pool: {table}");

    let either = caretaker(&[&["explain", "ip/10.6.0.9"], from.as_slice()].concat());
    assert_eq!(either.status.code(), Some(1));
    let errors = text(&either.stderr);
    assert!(
        errors.contains("is in the pools left, right; choose one: ip/left/10.6.0.9, ip/right/10.6.0.9"),
        "{errors}"
    );
    let right = text(&caretaker(&[&["explain", "ip/right/10.6.0.9"], from.as_slice()].concat()).stdout);
    assert!(right.starts_with("IP 10.6.0.9 in the pool right at "), "{right}");
}
