//! The cache, whatever the order in which its sources deliver.

use std::sync::Arc;

use crate::support::table::{NODE, labels, sandbox};
use caretaker_containers::api::{LabelKeys, sandbox_resource};
use caretaker_containers::observe::{CONTAINERS, ContainerCache, IDENTITY, Row, SANDBOXES};
use caretaker_containers::subject::{Container, NodeIdentity, NodeRef, Sandbox, SandboxState};
use caretaker_core::SourceId;
use caretaker_engine::{Cache as _, Change, ObjectId, SourceRef};

fn list(cache: &mut ContainerCache, id: SourceId, rows: Vec<(&str, Row)>) {
    let source = SourceRef { id, resource: None };
    cache.update(&source, Change::Init);
    for (name, row) in rows {
        let id = ObjectId { namespace: Some("shop".to_owned()), ..ObjectId::named(name) };
        cache.update(&source, Change::apply(id, row));
    }
    cache.update(&source, Change::InitDone);
}

fn on(node: &str, name: &str) -> Row {
    Row::Sandbox(Sandbox { name: name.to_owned(), node: node.to_owned(), ..sandbox() })
}

fn container(sandbox: &str) -> Row {
    let labels = labels(&[("managed", "true"), ("agent-uid", "7"), ("namespace", "shop"), ("sandbox-name", sandbox)]);
    let container = Container { id: format!("of-{sandbox}"), labels, ..Container::default() };
    let node = Arc::new(NodeRef {
        name: NODE.to_owned(),
        sandbox_api_version: sandbox_resource().api_version,
        sandbox_kind: sandbox_resource().kind,
    });
    let owner = container.owner(&LabelKeys::default());
    Row::Container(Box::new((container, owner, node)))
}

/// A Sandbox that is found, by the containers that name it.
fn found(cache: &ContainerCache) -> Vec<bool> {
    cache.subjects().iter().map(|subject| matches!(subject.sandbox, SandboxState::Found(_))).collect()
}

/// Else all containers of a node look orphaned when the keeper starts, and its breaker opens.
#[test]
fn a_sandbox_that_comes_before_the_containers_and_the_node_is_not_missing() {
    let steps: [fn(&mut ContainerCache); 3] = [
        |cache| list(cache, SANDBOXES, vec![("here", on(NODE, "here")), ("there", on("node-b", "there"))]),
        |cache| list(cache, CONTAINERS, vec![("of-here", container("here")), ("of-there", container("there"))]),
        |cache| list(cache, IDENTITY, vec![(NODE, Row::Proven(NodeIdentity::default()))]),
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut cache = ContainerCache::default();

        for step in order {
            steps[step](&mut cache);
        }

        assert_eq!(found(&cache), [true, true], "{order:?}");
    }
}

#[test]
fn sandboxes_of_this_node_are_kept_before_it_has_a_container_and_those_of_others_are_not() {
    let mut cache = ContainerCache::default();
    list(&mut cache, SANDBOXES, vec![("here", on(NODE, "here")), ("there", on("node-b", "there"))]);
    list(&mut cache, CONTAINERS, Vec::new());
    list(&mut cache, IDENTITY, vec![(NODE, Row::Proven(NodeIdentity::default()))]);

    list(&mut cache, CONTAINERS, vec![("of-here", container("here")), ("of-there", container("there"))]);

    assert_eq!(found(&cache), [true, false]);
}
