//! The rights that roles grant, in a form that can be compared with those that a keeper requires.

use std::collections::{BTreeMap, BTreeSet};

use caretaker_engine::Controller;
use caretaker_engine::permissions::{AccessRight, RequiredRight, required};
use caretaker_engine::sources::Sources;
use k8s_openapi::api::rbac::v1::PolicyRule;

/// A right, as a rule of a role: group, resource, verb, object.
pub type Right = (String, String, String, Option<String>);

pub fn required_by<K: Controller>(keeper: &K, dry_run: bool) -> Vec<RequiredRight> {
    required(keeper, &Sources::of(keeper), dry_run)
}

pub fn rights(rules: Vec<PolicyRule>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        let names = rule.resource_names.map_or(vec![None], |names| names.into_iter().map(Some).collect());
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    for name in &names {
                        rights.insert((group.clone(), resource.clone(), verb.clone(), name.clone()));
                    }
                }
            }
        }
    }
    rights
}

/// Rights by the namespace in which they hold; `None`: in all of them.
pub type ByNamespace = BTreeMap<Option<String>, BTreeSet<Right>>;

/// What is required, by the namespace in which it is.
pub fn by_namespace(required: impl IntoIterator<Item = RequiredRight>) -> ByNamespace {
    let mut all = ByNamespace::new();
    for RequiredRight { right: required, .. } in required {
        all.entry(required.namespace.clone()).or_default().insert(right(&required));
    }
    all
}

pub fn right(right: &AccessRight) -> Right {
    (right.group.clone(), right.resource.clone(), right.verb.to_owned(), right.name.clone())
}
