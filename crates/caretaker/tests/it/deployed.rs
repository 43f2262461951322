//! Every manifest of `deploy`, applied to a real API server, which is then asked what each account may do.

use std::collections::BTreeSet;
use std::time::Duration;

use caretaker_test_programs::workspace;
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_mins(1);

/// A namespace of users, Caretaker's two, kdoctor's, and the one with the addresses of API servers.
const NAMESPACES: [&str; 5] = ["shop", "caretaker-system", "caretaker-node", "kdoctor", "default"];

/// What an account may do beyond reading, in all namespaces or in one: `patch deployments.apps`.
struct Writes {
    manifest: &'static str,
    everywhere: &'static [&'static str],
    local: &'static [(&'static str, &'static [&'static str])],
}

/// What the namespaces keeper writes.
const SLEEP_WAKE_AND_DELETE: &[&str] = &[
    "create events.events.k8s.io",
    "delete deployments.apps",
    "delete namespaces",
    "delete services",
    "patch clonesets.apps.kruise.io",
    "patch cronjobs.batch",
    "patch cronjobs/status.batch",
    "patch daemonsets.apps",
    "patch deployments.apps",
    "patch events.events.k8s.io",
    "patch namespaces",
    "patch replicasets.apps",
    "patch rollouts.argoproj.io",
    "patch scaledobjects.keda.sh",
    "patch services",
    "patch statefulsets.apps",
];

/// Its Lease and its state, in its own namespace.
const LEASE_AND_STATE: &[&str] = &[
    "create configmaps",
    "create leases.coordination.k8s.io",
    "patch configmaps/caretaker-state",
    "update leases.coordination.k8s.io/caretaker-namespaces",
];

/// Everything in `deploy`. What is in dry run writes nothing, but for the reports of nodes.
const WRITES: [Writes; 15] = [
    Writes { manifest: "addresses.yaml", everywhere: &[], local: &[] },
    Writes {
        manifest: "addresses-live.yaml",
        everywhere: &[
            "create events.events.k8s.io",
            "delete spiderendpoints.spiderpool.spidernet.io",
            "patch events.events.k8s.io",
            "patch spiderendpoints.spiderpool.spidernet.io",
            "patch spiderippools/status.spiderpool.spidernet.io",
        ],
        local: &[(
            "caretaker-system",
            &[
                "create configmaps",
                "create leases.coordination.k8s.io",
                "patch configmaps/caretaker-state",
                "update leases.coordination.k8s.io/caretaker-addresses",
            ],
        )],
    },
    Writes { manifest: "admission.yaml", everywhere: &[], local: &[] },
    Writes {
        manifest: "containers.yaml",
        everywhere: &[],
        local: &[("caretaker-node", &["create configmaps", "patch configmaps"])],
    },
    Writes {
        manifest: "containers-live.yaml",
        everywhere: &["create events.events.k8s.io", "patch events.events.k8s.io"],
        local: &[("caretaker-node", &["create configmaps", "patch configmaps"])],
    },
    Writes { manifest: "install.yaml", everywhere: &[], local: &[] },
    Writes {
        manifest: "install-live.yaml",
        everywhere: SLEEP_WAKE_AND_DELETE,
        local: &[("caretaker-system", LEASE_AND_STATE)],
    },
    Writes { manifest: "namespaces.yaml", everywhere: &[], local: &[] },
    Writes {
        manifest: "namespaces-live.yaml",
        everywhere: SLEEP_WAKE_AND_DELETE,
        local: &[("caretaker-system", LEASE_AND_STATE)],
    },
    Writes { manifest: "networkpolicy.yaml", everywhere: &[], local: &[] },
    Writes { manifest: "people.yaml", everywhere: &[], local: &[] },
    Writes { manifest: "runtimes.yaml", everywhere: &[], local: &[] },
    Writes {
        manifest: "runtimes-live.yaml",
        everywhere: &[
            "create events.events.k8s.io",
            "patch apphttphealthies/status.kdoctor.io",
            "patch events.events.k8s.io",
            "patch netdnses/status.kdoctor.io",
            "patch netreaches/status.kdoctor.io",
        ],
        local: &[
            (
                "caretaker-system",
                &[
                    "create configmaps",
                    "create leases.coordination.k8s.io",
                    "patch configmaps/caretaker-state",
                    "update leases.coordination.k8s.io/caretaker-runtimes",
                ],
            ),
            (
                "kdoctor",
                &[
                    "create daemonsets.apps",
                    "create deployments.apps",
                    "create ingresses.networking.k8s.io",
                    "create services",
                    "delete daemonsets.apps",
                    "delete deployments.apps",
                    "patch daemonsets.apps",
                    "patch deployments.apps",
                ],
            ),
        ],
    },
    Writes { manifest: "windows.yaml", everywhere: &[], local: &[] },
    Writes {
        manifest: "windows-live.yaml",
        everywhere: &[
            "create events.events.k8s.io",
            "patch alerts.notification.toolkit.fluxcd.io",
            "patch artifactgenerators.source.extensions.fluxcd.io",
            "patch artifactgenerators/status.source.extensions.fluxcd.io",
            "patch buckets.source.toolkit.fluxcd.io",
            "patch buckets/status.source.toolkit.fluxcd.io",
            "patch events.events.k8s.io",
            "patch fluxinstances.fluxcd.controlplane.io",
            "patch fluxinstances/status.fluxcd.controlplane.io",
            "patch gitrepositories.source.toolkit.fluxcd.io",
            "patch gitrepositories/status.source.toolkit.fluxcd.io",
            "patch helmcharts.source.toolkit.fluxcd.io",
            "patch helmcharts/status.source.toolkit.fluxcd.io",
            "patch helmreleases.helm.toolkit.fluxcd.io",
            "patch helmreleases/status.helm.toolkit.fluxcd.io",
            "patch helmrepositories.source.toolkit.fluxcd.io",
            "patch helmrepositories/status.source.toolkit.fluxcd.io",
            "patch imagepolicies.image.toolkit.fluxcd.io",
            "patch imagepolicies/status.image.toolkit.fluxcd.io",
            "patch imagerepositories.image.toolkit.fluxcd.io",
            "patch imagerepositories/status.image.toolkit.fluxcd.io",
            "patch imageupdateautomations.image.toolkit.fluxcd.io",
            "patch imageupdateautomations/status.image.toolkit.fluxcd.io",
            "patch kustomizations.kustomize.toolkit.fluxcd.io",
            "patch kustomizations/status.kustomize.toolkit.fluxcd.io",
            "patch ocirepositories.source.toolkit.fluxcd.io",
            "patch ocirepositories/status.source.toolkit.fluxcd.io",
            "patch providers.notification.toolkit.fluxcd.io",
            "patch receivers.notification.toolkit.fluxcd.io",
            "patch receivers/status.notification.toolkit.fluxcd.io",
            "patch resourcesetinputproviders.fluxcd.controlplane.io",
            "patch resourcesetinputproviders/status.fluxcd.controlplane.io",
            "patch resourcesets.fluxcd.controlplane.io",
            "patch resourcesets/status.fluxcd.controlplane.io",
        ],
        local: &[(
            "caretaker-system",
            &["create leases.coordination.k8s.io", "update leases.coordination.k8s.io/caretaker-windows"],
        )],
    },
];

/// The objects of a manifest.
fn objects(manifest: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(workspace().join("deploy").join(manifest)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Everything that rules allow, as `verb resource.group/name`.
fn allowed(rules: &[ResourceRule]) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for rule in rules {
        let names = rule.resource_names.iter().flatten().map(|name| format!("/{name}")).collect::<Vec<_>>();
        let names = if names.is_empty() { vec![String::new()] } else { names };
        for group in rule.api_groups.iter().flatten() {
            let group = if group.is_empty() { String::new() } else { format!(".{group}") };
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    allowed.extend(names.iter().map(|name| format!("{verb} {resource}{group}{name}")));
                }
            }
        }
    }
    allowed
}

/// What an account may do in a namespace, by the API server's own answer.
async fn may(client: &Client, namespace: &str) -> BTreeSet<String> {
    let spec = SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) };
    let review = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await.unwrap();
    let status = answer.status.unwrap();
    assert!(!status.incomplete, "{:?}", status.evaluation_error);
    allowed(&status.resource_rules)
}

/// What an account may do in a namespace beyond what every account may.
async fn granted(cluster: &Cluster, place: &str, account: &str, namespace: &str) -> BTreeSet<String> {
    let client = async |name: &str| Client::try_from(cluster.account_config(place, name).await.unwrap()).unwrap();
    let (account, nobody) = (client(account).await, client("nobody").await);
    may(&account, namespace).await.difference(&may(&nobody, namespace).await).cloned().collect()
}

fn is_reading(right: &str) -> bool {
    ["get ", "list ", "watch "].iter().any(|verb| right.starts_with(verb))
}

/// Of manifests of the same names the one that is applied last counts: what acts must lose its rights when the one that
/// only reads is applied to it.
#[tokio::test]
async fn an_account_may_write_exactly_what_its_manifest_is_for_and_in_dry_run_it_can_only_read() {
    let cluster = Cluster::builder().start().await.unwrap();
    for namespace in NAMESPACES.iter().filter(|name| **name != "default") {
        cluster.namespace(namespace).await.unwrap();
        cluster.kubectl(&["-n", namespace, "create", "serviceaccount", "nobody"]).unwrap();
    }
    let there = std::fs::read_dir(workspace().join("deploy")).unwrap();
    let there: BTreeSet<String> = there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(there, WRITES.iter().map(|writes| writes.manifest.to_owned()).collect());

    // Those that act first, and then what only reads over them.
    let (live, dry): (Vec<&Writes>, Vec<&Writes>) = WRITES.iter().partition(|w| w.manifest.ends_with("-live.yaml"));
    for writes in live.into_iter().chain(dry) {
        let Writes { manifest, everywhere, local } = writes;
        let path = workspace().join("deploy").join(manifest);
        cluster.kubectl(&["apply", "-f", path.to_str().unwrap()]).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let accounts: Vec<(String, String)> = (objects(manifest).iter())
            .filter(|object| object["kind"] == "ServiceAccount")
            .map(|object| (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"])))
            .collect();
        let is_for_accounts = !["admission.yaml", "networkpolicy.yaml", "people.yaml"].contains(manifest);
        assert_eq!(accounts.len(), usize::from(is_for_accounts), "{manifest}: {accounts:?}");

        for (place, account) in &accounts {
            for namespace in NAMESPACES {
                let own = local.iter().filter(|(at, _)| *at == namespace).flat_map(|(_, rights)| *rights);
                let expected: BTreeSet<String> =
                    everywhere.iter().chain(own).map(|right| (*right).to_owned()).collect();
                // The API server learns of a role by a watch.
                until(&format!("the rights of {manifest} in {namespace}"), TIMEOUT, async || {
                    let granted = granted(&cluster, place, account, namespace).await;
                    let writes: BTreeSet<String> = granted.iter().filter(|right| !is_reading(right)).cloned().collect();
                    Ok(if writes == expected { Ok(()) } else { Err(format!("{writes:#?} instead of {expected:#?}")) })
                })
                .await
                .unwrap();
                let granted = granted(&cluster, place, account, namespace).await;
                assert!(!granted.is_empty(), "{manifest} grants nothing in {namespace}");
                let secret = granted.iter().find(|right| right.contains("secrets") || right.contains('*'));
                assert_eq!(secret, None, "{manifest} in {namespace}");
            }
        }
    }
}

/// `--dry-run` and the rights go together: neither a rehearsal that could write nor an operator without its rights.
#[test]
fn what_is_live_says_so_in_its_name_and_nothing_else_acts() {
    for Writes { manifest, .. } in WRITES {
        let pods = objects(manifest);
        let pods = pods.iter().filter(|object| object["kind"] == "Deployment" || object["kind"] == "DaemonSet");
        for pod in pods {
            let args = pod["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
            let is_dry = args.iter().any(|arg| arg == "--dry-run");
            assert_ne!(is_dry, manifest.ends_with("-live.yaml"), "{manifest}: {args:?}");
        }
    }
}
