//! The manifests in `deploy`: what their roles allow, and which of it was used.

use std::collections::BTreeSet;

use caretaker_addresses::Addresses;
use caretaker_addresses::subject::Policy as AddressesPolicy;
use caretaker_engine::permissions::RequiredRight;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::subject::Policy as NamespacesPolicy;
use caretaker_runtimes::Runtimes;
use caretaker_runtimes::subject::Policy as RuntimesPolicy;
use caretaker_testkit::audit::{AuditLog, AuditedCall};
use caretaker_testkit::{Cluster, until};
use caretaker_windows::Windows;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};

use crate::support::operator::TIMEOUT;
use crate::support::role_rights::{ByNamespace, Right, required_by, rights};

pub const NAMESPACE: &str = "caretaker-system";
/// The namespace of kdoctor in `deploy/runtimes.yaml`.
pub const KDOCTOR: &str = "kdoctor";

/// A manifest that is shipped.
pub struct Shipped {
    pub file: &'static str,
    /// The name of both its roles.
    pub role: &'static str,
    pub account: &'static str,
    /// The namespaces that must exist before it is applied.
    pub namespaces: &'static [&'static str],
    /// The rights that its keeper needs, for a dry run or not.
    pub required: fn(bool) -> Vec<RequiredRight>,
}

pub const NAMESPACES: Shipped = Shipped {
    file: "namespaces-live.yaml",
    role: "caretaker-namespaces",
    account: "caretaker",
    namespaces: &[],
    required: |dry_run| required_by(&Namespaces::new(NamespacesPolicy::default(), None), dry_run),
};

pub const ADDRESSES: Shipped = Shipped {
    file: "addresses-live.yaml",
    role: "caretaker-addresses",
    account: "caretaker-addresses",
    namespaces: &[],
    required: |dry_run| required_by(&Addresses::new(AddressesPolicy::default()), dry_run),
};

pub const WINDOWS: Shipped = Shipped {
    file: "windows-live.yaml",
    role: "caretaker-windows",
    account: "caretaker-windows",
    namespaces: &[],
    required: |dry_run| required_by(&Windows::default(), dry_run),
};

pub const RUNTIMES: Shipped = Shipped {
    file: "runtimes-live.yaml",
    role: "caretaker-runtimes",
    account: "caretaker-runtimes",
    namespaces: &[KDOCTOR],
    required: |dry_run| required_by(&Runtimes::new(in_kdoctors_namespace()), dry_run),
};

/// The Job that the chart runs at an uninstall; no manifest has it.
pub const CLEANUP: Shipped = Shipped {
    file: "",
    role: "caretaker-cleanup",
    account: "caretaker-cleanup",
    namespaces: &[],
    required: |_| Vec::new(),
};

fn in_kdoctors_namespace() -> RuntimesPolicy {
    RuntimesPolicy { namespace: Some(KDOCTOR.to_owned()), ..RuntimesPolicy::default() }
}

impl Shipped {
    /// A control plane with the manifest applied.
    pub async fn installed(&self, builder: caretaker_testkit::ClusterBuilder) -> (Cluster, Client) {
        let cluster = builder.start().await.unwrap();
        for namespace in self.namespaces {
            cluster.namespace(namespace).await.unwrap();
        }
        let folder = "../../deploy/";
        cluster.kubectl(&["apply", "-f", &format!("{folder}{}", self.file)]).unwrap();
        let client = cluster.client().await.unwrap();
        (cluster, client)
    }

    /// The rights of its roles: in all namespaces, and in the operator's own.
    pub async fn allowed(&self, client: &Client) -> (BTreeSet<Right>, BTreeSet<Right>) {
        let everywhere = Api::<ClusterRole>::all(client.clone()).get(self.role).await.unwrap();
        let own = Api::<Role>::namespaced(client.clone(), NAMESPACE).get(self.role).await.unwrap();
        (rights(everywhere.rules.unwrap()), rights(own.rules.unwrap()))
    }

    /// The rights of its roles in every namespace.
    pub async fn granted(&self, client: &Client) -> ByNamespace {
        let mut all = ByNamespace::new();
        let everywhere = Api::<ClusterRole>::all(client.clone()).get(self.role).await.unwrap();
        all.insert(None, rights(everywhere.rules.unwrap()));
        let named = ListParams::default().fields(&format!("metadata.name={}", self.role));
        for role in Api::<Role>::all(client.clone()).list(&named).await.unwrap() {
            all.insert(role.metadata.namespace, rights(role.rules.unwrap()));
        }
        all
    }

    pub async fn allow(&self, client: &Client, everywhere: &BTreeSet<Right>, own: &BTreeSet<Right>) {
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let mut role = roles.get(self.role).await.unwrap();
        role.rules = Some(rules(everywhere));
        roles.replace(self.role, &PostParams::default(), &role).await.unwrap();
        let roles: Api<Role> = Api::namespaced(client.clone(), NAMESPACE);
        let mut role = roles.get(self.role).await.unwrap();
        role.rules = Some(rules(own));
        roles.replace(self.role, &PostParams::default(), &role).await.unwrap();
    }

    /// What its account called.
    pub fn calls(&self, cluster: &Cluster) -> AuditLog {
        cluster.audit().unwrap().of(&format!("system:serviceaccount:{NAMESPACE}:{}", self.account))
    }

    /// Waits until each right of its roles was used by a call, without those that the test cannot make it use; no call
    /// was refused.
    pub async fn uses_every_right(&self, cluster: &Cluster, client: &Client, is_excepted: impl Fn(&Right) -> bool) {
        let granted = self.granted(client).await;
        until("every right to be used", TIMEOUT, async || {
            let calls = self.calls(cluster);
            let is_used = |namespace: &Option<String>, right: &Right| {
                let is_there = |call: &AuditedCall| namespace.as_ref().is_none_or(|name| call.namespace == *name);
                calls.calls().iter().any(|call| is_there(call) && is_use_of(call, right))
            };
            let all = granted.iter().flat_map(|(namespace, rights)| rights.iter().map(move |right| (namespace, right)));
            let unused: Vec<_> =
                all.filter(|(namespace, right)| !is_used(namespace, right) && !is_excepted(right)).collect();
            Ok(if unused.is_empty() { Ok(()) } else { Err(format!("never used: {unused:#?}")) })
        })
        .await
        .unwrap();
        let refused = self.calls(cluster).only(|call| call.code == Some(403));
        assert!(refused.is_empty(), "{refused}");
    }
}

/// The right to read a workload again that somebody wrote in between. The keeper's own test
/// `a_concurrent_edit_of_a_workload_is_kept_and_the_write_retried_in_the_same_round` uses it.
pub fn reads_workload_again((_, resource, verb, _): &Right) -> bool {
    let kinds = ["statefulsets", "replicasets", "daemonsets", "cronjobs", "scaledobjects", "rollouts", "clonesets"];
    kinds.contains(&resource.as_str()) && verb == "get"
}

/// The right to count an Event again that was there before. The engine does that for every keeper in the same way; the
/// test of namespaces sees it.
pub fn is_repeated_event((group, _, verb, _): &Right) -> bool {
    group == "events.k8s.io" && verb == "patch"
}

/// True if a call was allowed by this right. The status code is that of a later entry of the audit log.
fn is_use_of(call: &AuditedCall, (group, resource, verb, name): &Right) -> bool {
    let is_named = name.as_ref().is_none_or(|name| call.name == *name);
    let was_allowed = call.code.is_some_and(|code| code != 403);
    (&call.group, &call.resource, &call.verb) == (group, resource, verb) && is_named && was_allowed
}

pub fn rules(rights: &BTreeSet<Right>) -> Vec<PolicyRule> {
    let rule = |(group, resource, verb, name): &Right| PolicyRule {
        api_groups: Some(vec![group.clone()]),
        resources: Some(vec![resource.clone()]),
        verbs: vec![verb.clone()],
        resource_names: name.clone().map(|name| vec![name]),
        ..PolicyRule::default()
    };
    rights.iter().map(rule).collect()
}
