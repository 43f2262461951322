//! The chart: what it grants, what it refuses, and the manifests that are rendered from it.

mod manifests;
mod monitoring;

use std::collections::BTreeSet;

use crate::support::role_rights::{ByNamespace, Right, by_namespace, required_by, rights};
use caretaker_addresses::Addresses;
use caretaker_addresses::subject::Policy as AddressesPolicy;
use caretaker_engine::permissions::RequiredRight;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::subject::{Deletion, Policy as NamespacesPolicy};
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::subject::Policy as RuntimesPolicy;
use caretaker_test_programs::helm;
use k8s_openapi::api::rbac::v1::PolicyRule;
use rstest::rstest;
use serde_json::{Value, json};

const NAMESPACE: &str = "caretaker-system";

/// The chart with these arguments, as text.
fn template(args: &[&str]) -> Result<String, String> {
    let chart = helm::chart().display().to_string();
    let all = [["template", "caretaker", &chart, "--namespace", NAMESPACE].as_slice(), args].concat();
    helm::run(&all).map_err(|error| error.to_string())
}

/// The objects of the chart with these values.
fn objects(values: &[&str]) -> Vec<Value> {
    let args: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    serde_saphyr::from_multiple(&template(&args).unwrap()).unwrap()
}

fn rules_of(object: &Value) -> Vec<PolicyRule> {
    serde_json::from_value(object["rules"].clone()).unwrap()
}

/// The rights that a role of this kind and name grants; none if there is no such role.
fn granted_by(objects: &[Value], kind: &str, name: &str) -> BTreeSet<Right> {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.map(|role| rights(rules_of(role))).unwrap_or_default()
}

fn namespaces(deletion: Deletion, dry_run: bool) -> Vec<RequiredRight> {
    let policy = NamespacesPolicy { deletion, ..NamespacesPolicy::default() };
    required_by(&Namespaces::new(policy, None), dry_run)
}

#[rstest]
#[case::namespaces("namespaces", &[], |dry| namespaces(Deletion::AsSpecified, dry))]
#[case::namespaces_without_deletions(
    "namespaces", &["keepers.namespaces.settings.deletion=never"], |dry| namespaces(Deletion::Never, dry)
)]
#[case::addresses("addresses", &[], |dry| required_by(&Addresses::new(AddressesPolicy::default()), dry))]
#[case::runtimes("runtimes", &["keepers.runtimes.settings.namespace=tools"], runtimes)]
fn the_roles_grant_exactly_what_these_values_need(
    #[case] keeper: &str,
    #[case] values: &[&str],
    #[case] required: fn(bool) -> Vec<RequiredRight>,
    #[values(true, false)] dry_run: bool,
) {
    let (enabled, dry) = (format!("keepers.{keeper}.enabled=true"), format!("dryRun={dry_run}"));
    let objects = objects(&[values, &[enabled.as_str(), dry.as_str()]].concat());

    let role = format!("caretaker-{keeper}");
    let roles = objects.iter().filter(|object| object["metadata"]["name"] == *role && object["rules"].is_array());
    let namespace = |role: &Value| role["metadata"]["namespace"].as_str().map(str::to_owned);
    let granted: ByNamespace = roles.map(|role| (namespace(role), rights(rules_of(role)))).collect();
    assert_eq!(granted, by_namespace(required(dry_run)));
}

fn runtimes(dry_run: bool) -> Vec<RequiredRight> {
    let policy = RuntimesPolicy { namespace: Some("tools".to_owned()), ..RuntimesPolicy::default() };
    required_by(&Runtimes::new(policy), dry_run)
}

/// Whoever may write a DaemonSet anywhere owns every node.
#[test]
fn of_runtimes_nothing_in_a_namespace_is_granted_outside_of_kdoctors() {
    let values = ["keepers.runtimes.enabled=true", "keepers.runtimes.settings.namespace=tools", "dryRun=false"];
    let objects = objects(&[values.as_slice(), &["rbac.minimal=false"]].concat());

    let granted = granted_by(&objects, "ClusterRole", "caretaker-runtimes");
    let kinds: BTreeSet<String> = granted.iter().map(|(_, resource, ..)| resource.clone()).collect();
    let of_the_cluster = ["apphttphealthies", "netdnses", "netreaches", "nodes", "servicecidrs"];
    let written = ["apphttphealthies/status", "netdnses/status", "netreaches/status", "events"];
    assert_eq!(kinds, of_the_cluster.into_iter().chain(written).map(str::to_owned).collect());
    let writes = granted.iter().filter(|(_, _, verb, _)| !["get", "list", "watch"].contains(&verb.as_str()));
    assert!(writes.clone().all(|(_, resource, ..)| written.contains(&resource.as_str())), "{granted:?}");
    let named = |kind: &str, name: &str| -> BTreeSet<String> {
        let of_kind = objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        of_kind.filter_map(|object| object["metadata"]["namespace"].as_str()).map(str::to_owned).collect()
    };
    let both: BTreeSet<String> = [NAMESPACE, "tools"].map(str::to_owned).into();
    assert_eq!((named("Role", "caretaker-runtimes"), named("RoleBinding", "caretaker-runtimes")), (both.clone(), both));
}

const ALL_ENABLED: [&str; 6] = [
    "keepers.addresses.enabled=true",
    "keepers.windows.enabled=true",
    "keepers.runtimes.enabled=true",
    "keepers.runtimes.settings.namespace=kdoctor",
    "keepers.containers.enabled=true",
    "audit.enabled=true",
];

/// Made by a hook of Helm, for as long as its Job runs.
fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"]["helm.sh/hook"].is_string()
}

/// What sleeps must not stay asleep where nothing wakes it any more: after an uninstall, and in a dry run that follows a
/// live run. `helm rollback` renders nothing, so that the release it goes back to must have the hook.
#[rstest]
#[case::live(&["dryRun=false"], Some(("pre-delete", json!(["cleanup", "--all", "--stop"]))))]
#[case::in_dry_run(
    &["dryRun=true"],
    Some(("pre-delete,pre-upgrade,pre-rollback", json!(["cleanup", "--all", "--stop", "--if-it-was-live"])))
)]
#[case::not_before_a_dry_run(
    &["cleanup.beforeDryRun=false"], Some(("pre-delete", json!(["cleanup", "--all", "--stop", "--if-it-was-live"])))
)]
#[case::not_at_an_uninstall(
    &["cleanup.onUninstall=false"],
    Some(("pre-upgrade,pre-rollback", json!(["cleanup", "--all", "--stop", "--if-it-was-live"])))
)]
#[case::neither(&["cleanup.onUninstall=false", "cleanup.beforeDryRun=false"], None)]
#[case::live_and_not_at_an_uninstall(&["dryRun=false", "cleanup.onUninstall=false"], None)]
#[case::without_its_image(&["keepers.namespaces.enabled=false", "keepers.containers.enabled=true"], None)]
fn everything_wakes_before_an_uninstall_and_before_a_dry_run(
    #[case] values: &[&str],
    #[case] expected: Option<(&str, Value)>,
) {
    let objects = objects(values);

    let hooks: Vec<&Value> = objects.iter().filter(|object| is_hook(object)).collect();
    let job = hooks.iter().find(|object| object["kind"] == "Job");
    let found = job.map(|job| job["spec"]["template"]["spec"]["containers"][0]["args"].clone());
    assert_eq!(found, expected.as_ref().map(|(_, args)| args.clone()));
    let moments: BTreeSet<&str> =
        hooks.iter().filter_map(|object| object["metadata"]["annotations"]["helm.sh/hook"].as_str()).collect();
    assert_eq!(moments, expected.iter().map(|(moments, _)| *moments).collect(), "of the Job and of all its rights");
}

/// Nobody should learn from a namespace that fell asleep that nothing could see its use.
#[test]
fn the_notes_say_what_the_lack_of_a_source_of_activity_means_and_how_to_go_back() {
    let notes = |values: &[&str]| {
        let chart = helm::chart().display().to_string();
        let sets: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
        let install = ["install", "caretaker", &chart, "--namespace", NAMESPACE, "--dry-run=client"];
        let said = helm::run(&[install.as_slice(), &sets].concat()).unwrap();
        said.split_once("NOTES:").expect("notes").1.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let blind = "Caretaker cannot see who uses a namespace";

    let dry = notes(&[]);
    assert!(dry.contains(blind) && dry.contains("no use wakes it, and nothing is deleted"), "{dry}");
    assert!(dry.contains("it will, once it is live, put") && dry.contains("docs/activity.md"), "{dry}");
    let live = notes(&["dryRun=false"]);
    assert!(live.contains("it puts a namespace to sleep by its schedule, by an order, and by its label"), "{live}");
    assert!(live.contains("--set dryRun=true") && live.contains("docs/going-back.md"), "{live}");
    let deleting = notes(&["keepers.namespaces.settings.deleteWithoutActivitySource=true"]);
    assert!(
        deleting.contains("labels delete what is in use") && !deleting.contains("nothing is deleted"),
        "{deleting}"
    );
    let seeing = [
        &["audit.enabled=true"][..],
        &["keepers.namespaces.settings.activity.source=audit"],
        &["keepers.namespaces.enabled=false", "keepers.windows.enabled=true"],
    ];
    for values in seeing {
        assert!(!notes(values).contains(blind), "{values:?}");
    }
}

#[test]
fn in_a_dry_run_every_role_allows_reading_alone_and_live_no_role_has_a_wildcard() {
    for minimal in ["rbac.minimal=true", "rbac.minimal=false"] {
        let dry: BTreeSet<String> = objects(&[ALL_ENABLED.as_slice(), &["rbac.people=false", minimal]].concat())
            .iter()
            .filter(|object| object["rules"].is_array() && !is_hook(object))
            .flat_map(|role| rights(rules_of(role)))
            .map(|(_, _, verb, _)| verb)
            .collect();
        assert_eq!(dry, ["get", "list", "watch"].map(str::to_owned).into(), "{minimal}");
    }

    let live = objects(&[ALL_ENABLED.as_slice(), &["dryRun=false"]].concat());
    let roles: Vec<&Value> = live.iter().filter(|object| object["rules"].is_array()).collect();
    assert!(roles.len() > 10, "{} roles", roles.len());
    for role in roles {
        for (group, resource, verb, _) in rights(rules_of(role)) {
            let words = [group, resource, verb];
            assert!(!words.iter().any(|word| word.contains('*')), "{} has {words:?}", role["metadata"]["name"]);
        }
    }
}

#[test]
fn nodes_report_only_where_that_is_asked_for() {
    let report = |values: &[&str]| {
        let objects =
            objects(&[&["keepers.containers.enabled=true", "keepers.namespaces.enabled=false"], values].concat());
        let pod = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
        let args = pod["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        (args.contains("--report=caretaker-node"), granted_by(&objects, "Role", "caretaker-node").len())
    };

    assert_eq!(report(&[]), (false, 0));
    assert_eq!(report(&["keepers.containers.report=true"]), (true, 2), "create and patch of configmaps");
}

#[test]
fn what_is_not_enabled_gets_no_role_and_no_pod() {
    let objects = objects(&["keepers.namespaces.enabled=false", "keepers.windows.enabled=true", "rbac.people=false"]);

    let names: BTreeSet<&str> = objects
        .iter()
        .filter(|object| ["ClusterRole", "Role", "Deployment", "DaemonSet"].iter().any(|kind| object["kind"] == *kind))
        .filter(|object| !is_hook(object))
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["caretaker-windows"].into());
}

#[rstest]
#[case::not_a_boolean(&["--set-string", "dryRun=yes"], &["dryRun", "boolean"])]
#[case::a_key_that_does_not_exist(&["--set", "dryrun=false"], &["dryrun"])]
#[case::no_replicas(&["--set", "replicas=0"], &["replicas", "1"])]
#[case::a_wildcard(
    &["--set-json", r#"keepers.namespaces.extraRules=[{"apiGroups":["x"],"resources":["y"],"verbs":["*"]}]"#],
    &["extraRules/0/verbs/0"]
)]
#[case::a_wildcard_of_resources(
    &["--set-json", r#"keepers.namespaces.extraRules=[{"apiGroups":["x"],"resources":["*"],"verbs":["get"]}]"#],
    &["extraRules/0/resources/0"]
)]
#[case::a_wildcard_of_groups(
    &["--set-json", r#"keepers.namespaces.extraRules=[{"apiGroups":["*"],"resources":["y"],"verbs":["get"]}]"#],
    &["extraRules/0/apiGroups/0"]
)]
#[case::a_setting_that_does_not_exist(&["--set", "keepers.namespaces.settings.deletions=never"], &["settings", "deletions"])]
#[case::a_setting_of_another_keeper(&["--set", "keepers.windows.settings.breaker=none"], &["settings", "breaker"])]
#[case::a_value_that_decides_about_rights(
    &["--set", "keepers.namespaces.settings.deletion=nevver"], &["settings/deletion", "never"]
)]
#[case::no_keeper(&["--set", "keepers.namespaces.enabled=false"], &["no keeper is enabled: set keepers.NAME.enabled"])]
#[case::audit_without_its_keeper(
    &["--set", "audit.enabled=true,keepers.namespaces.enabled=false,keepers.windows.enabled=true"],
    &["audit.enabled needs keepers.namespaces.enabled"]
)]
#[case::runtimes_without_kdoctors_namespace(
    &["--set", "keepers.runtimes.enabled=true"],
    &["keepers.runtimes.settings.namespace is not set", "write the namespace that kdoctor-controller runs in"]
)]
#[case::runtimes_in_caretakers_own_namespace(
    &["--set", "keepers.runtimes.enabled=true,keepers.runtimes.settings.namespace=caretaker-system"],
    &["keepers.runtimes.settings.namespace is caretaker-system"]
)]
#[case::another_namespace(&["--namespace", "other-place"], &["--namespace caretaker-system", "not in other-place"])]
fn bad_values_fail_with_a_message_that_names_them(#[case] args: &[&str], #[case] said: &[&str]) {
    let error = template(args).unwrap_err();

    for words in said {
        assert!(error.contains(words), "{words:?} is missing in: {error}");
    }
}

#[test]
fn helm_lint_has_no_complaint() {
    let chart = helm::chart().display().to_string();

    let said = helm::run(&["lint", "--strict", "--namespace", NAMESPACE, &chart]).unwrap();

    assert!(said.contains("0 chart(s) failed") && !said.contains("[WARNING]"), "{said}");
}
