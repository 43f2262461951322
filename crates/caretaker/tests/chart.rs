//! The chart: what it grants, what it refuses, and the manifests that are rendered from it.

#[path = "granted/mod.rs"]
mod granted;
#[path = "chart/monitoring.rs"]
mod monitoring;

use std::collections::BTreeSet;
use std::path::PathBuf;

use caretaker_addresses::Addresses;
use caretaker_addresses::subject::Policy as AddressesPolicy;
use caretaker_engine::permissions::RequiredRight;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::subject::{Deletion, Policy as NamespacesPolicy};
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::subject::Policy as RuntimesPolicy;
use caretaker_testkit::helm;
use caretaker_testkit::release::workspace;
use granted::{ByNamespace, Right, by_namespace, required_by, rights};
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

/// Made when an uninstall begins, and not before.
fn of_the_uninstall(object: &Value) -> bool {
    object["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
}

/// It may have been live before, and what it put to sleep then must not stay asleep.
#[test]
fn an_uninstall_cleans_up_in_a_dry_run_as_well_where_it_was_live() {
    let args = |values: &[&str]| {
        let objects = objects(values);
        let job = objects.iter().find(|object| object["kind"] == "Job" && of_the_uninstall(object));
        job.map(|job| job["spec"]["template"]["spec"]["containers"][0]["args"].clone())
    };

    assert_eq!(args(&["dryRun=true"]), Some(json!(["cleanup", "--all", "--stop", "--if-it-was-live"])));
    assert_eq!(args(&["dryRun=false"]), Some(json!(["cleanup", "--all", "--stop"])));
    assert_eq!(args(&["cleanup.onUninstall=false"]), None);
    assert_eq!(args(&["keepers.namespaces.enabled=false", "keepers.containers.enabled=true"]), None, "no such image");
}

#[test]
fn in_a_dry_run_every_role_allows_reading_alone_and_live_no_role_has_a_wildcard() {
    let dry: BTreeSet<String> = objects(&[ALL_ENABLED.as_slice(), &["rbac.people=false"]].concat())
        .iter()
        .filter(|object| object["rules"].is_array() && !of_the_uninstall(object))
        .flat_map(|role| rights(rules_of(role)))
        .map(|(_, _, verb, _)| verb)
        .collect();
    assert_eq!(dry, ["get", "list", "watch"].map(str::to_owned).into());

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
        .filter(|object| !of_the_uninstall(object))
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

/// A manifest in `deploy`: how it begins, and the arguments that it is rendered with.
struct DeployFile {
    file: &'static str,
    head: &'static str,
    args: &'static [&'static str],
}

/// A manifest can be edited by hand, and applied beside others: it has all rights, and nothing that two of them share.
const ALONE: &str = "namespace.create=true,rbac.minimal=false,rbac.people=false,networkPolicy.enabled=false,\
                     podDisruptionBudget.enabled=false,priorityClass.name=";

const MANIFESTS: [DeployFile; 8] = [
    DeployFile {
        file: "install.yaml",
        head: "What `helm install` with the chart's own values makes, for people without Helm: the namespaces keeper in dry run.\n\
               \n  kubectl apply -f deploy/install.yaml\n  kubectl -n caretaker-system logs deployment/caretaker\n\n\
               When you agree with what it says, remove --dry-run. Before an uninstall, run caretaker cleanup --all --stop.",
        args: &["--set", "namespace.create=true,rbac.minimal=false"],
    },
    DeployFile {
        file: "namespaces.yaml",
        head: "The namespaces keeper alone, in dry run: it writes nothing, and the journal has what it would have done.\n\
               \n  kubectl apply -f deploy/namespaces.yaml\n  kubectl -n caretaker-system logs deployment/caretaker\n\n\
               When you agree with what it says, remove --dry-run. It has exactly the rights below; in dry run only get, list\n\
               and watch are used. With keepers.namespaces.deletion: never in its settings, the verb delete and the rights on\n\
               persistentvolumeclaims and pods can be removed.",
        args: &["--set", ALONE],
    },
    DeployFile {
        file: "addresses.yaml",
        head: "The addresses keeper alone, in dry run: it writes nothing, and the journal has what it would have done.\n\
               \n  kubectl apply -f deploy/addresses.yaml\n  kubectl -n caretaker-system logs deployment/caretaker-addresses\n\n\
               When you agree with what it says, switch Spiderpool's own collector off with its chart's value\n\
               ipam.gc.enabled=false, so that there are not two, and remove --dry-run. It has exactly the rights below; in dry\n\
               run only get, list and watch are used. Its settings can be given as Spiderpool's own variables\n\
               (SPIDERPOOL_GC_ADDITIONAL_GRACE_DELAY and so on): docs/addresses.md.",
        args: &[
            "--set",
            ALONE,
            "--set",
            "config.create=false,keepers.namespaces.enabled=false,keepers.addresses.enabled=true",
        ],
    },
    DeployFile {
        file: "windows.yaml",
        head: "The windows keeper alone, in dry run: it writes nothing, and the journal has what it would have done.\n\
               \n  kubectl apply -f deploy/windows.yaml\n  kubectl -n caretaker-system logs deployment/caretaker-windows\n\n\
               When you agree with what it says, remove --dry-run. It has exactly the rights below; in dry run only list and\n\
               watch are used. Rights on kinds that are not installed do no harm.",
        args: &[
            "--set",
            ALONE,
            "--set",
            "config.create=false,keepers.namespaces.enabled=false,keepers.windows.enabled=true",
        ],
    },
    DeployFile {
        file: "runtimes.yaml",
        head: "The runtimes keeper alone, in dry run: it writes nothing, and the journal has what it would have done.\n\
               \n  kubectl apply -f deploy/runtimes.yaml\n  kubectl -n caretaker-system logs deployment/caretaker-runtimes\n\n\
               kdoctor runs in the namespace kdoctor here, which must exist: where it runs in another, write that instead in\n\
               the Role, its RoleBinding and the variable CARETAKER_RUNTIMES_NAMESPACE. caretaker plan reads that variable, too.\n\
               When you agree with what it says, remove --dry-run. It has exactly the rights below; in dry run only list and\n\
               watch are used.",
        args: &[
            "--set",
            ALONE,
            "--set",
            "config.create=false,keepers.namespaces.enabled=false,keepers.runtimes.enabled=true,\
             keepers.runtimes.settings.namespace=kdoctor",
        ],
    },
    DeployFile {
        file: "containers.yaml",
        head: "The containers keeper, in dry run: it removes nothing. Each node reports what it would do, and the journal has it too.\n\
               \n  kubectl apply -f deploy/containers.yaml\n  caretaker plan\n  kubectl -n caretaker-node logs daemonset/caretaker-node\n\n\
               When you agree with what it says, remove --dry-run. Without --report nothing at all is written in a dry run, and its\n\
               Role and RoleBinding can be removed.",
        args: &[
            "--set",
            ALONE,
            "--set",
            "namespace.create=false,config.create=false,keepers.namespaces.enabled=false,keepers.containers.enabled=true,\
             keepers.containers.report=true",
        ],
    },
    DeployFile {
        file: "people.yaml",
        head: "Roles for people who run the commands, for manifests without Helm; install.yaml has them as well.\n\n  kubectl apply -f deploy/people.yaml",
        args: &["--show-only", "templates/rbac-people.yaml"],
    },
    DeployFile {
        file: "networkpolicy.yaml",
        head: "Who may connect to Caretaker, for manifests without Helm.\n\n  kubectl apply -f deploy/networkpolicy.yaml",
        args: &["--show-only", "templates/networkpolicy.yaml", "--set", "audit.enabled=true"],
    },
];

impl DeployFile {
    fn path(&self) -> PathBuf {
        workspace().join("deploy").join(self.file)
    }

    fn rendered(&self) -> String {
        // What an uninstall by Helm runs would run at once here.
        let rendered = template(&[self.args, &["--set", "cleanup.onUninstall=false"]].concat()).unwrap();
        let body: Vec<&str> = rendered.lines().filter(|line| !line.starts_with("# Source: ")).collect();
        let head = self.head.lines().map(|line| format!("# {line}").trim_end().to_owned());
        let from =
            "# Rendered from charts/caretaker; UPDATE_MANIFESTS=1 cargo test -p caretaker --test chart does it again.";
        let head: Vec<String> = head.chain(["#".to_owned(), from.to_owned()]).collect();
        format!("{}\n{}\n", head.join("\n"), body.join("\n").trim_start_matches("---\n").trim_end())
    }
}

#[test]
fn the_manifests_are_those_that_the_chart_makes() {
    for manifest in MANIFESTS {
        let (path, rendered) = (manifest.path(), manifest.rendered());
        if std::env::var_os("UPDATE_MANIFESTS").is_some() {
            std::fs::write(&path, &rendered).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == rendered,
            "deploy/{} is not what the chart makes; UPDATE_MANIFESTS=1 cargo test -p caretaker --test chart writes it again",
            manifest.file
        );
    }
}
