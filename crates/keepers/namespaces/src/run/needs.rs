//! What it must be allowed to do.

use caretaker_engine::access::Need;
use caretaker_engine::state;

use crate::act::carry_out::MANAGER;
use crate::observe::SOURCES;

/// Everything that it does to a cluster, and therefore must be allowed to.
#[must_use]
pub fn needs(dry_run: bool) -> Vec<Need> {
    let mut needs = Vec::new();
    for source in &SOURCES {
        let (group, _) = source.group_and_version();
        needs.extend(["list", "watch"].map(|verb| Need::to(verb, group, source.plural)));
        if source.kind == "Namespace" || crate::workload::WorkloadKind::named(source.kind).is_some() {
            needs.push(Need::to("get", group, source.plural));
            needs.push(Need::to("patch", group, source.plural));
        }
        if ["Namespace", "Deployment", "Service"].contains(&source.kind) {
            needs.push(Need::to("delete", group, source.plural));
        }
        if source.kind == "Service" {
            needs.push(Need::to("get", group, source.plural));
            needs.push(Need::to("patch", group, source.plural));
        }
    }
    needs.extend(["create", "patch"].map(|verb| Need::to(verb, "events.k8s.io", "events")));
    let state = |verb| Need::to(verb, "", "configmaps").within(state::NAMESPACE);
    needs.extend(["get", "list", "watch", "patch"].map(|verb| state(verb).named(state::NAME)));
    needs.push(state("create"));
    let lease = |verb| Need::to(verb, "coordination.k8s.io", "leases").within(state::NAMESPACE);
    needs.extend(["get", "update"].map(|verb| lease(verb).named(MANAGER)));
    needs.push(lease("create"));
    if dry_run {
        needs.retain(|need| ["list", "watch", "get"].contains(&need.verb) && need.resource != "leases");
    }
    needs
}
