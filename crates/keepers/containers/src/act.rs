//! What can be done, as data, and how it is done.

pub mod clean;
mod left;
pub mod residue;
mod snapshot;

use caretaker_core::{ActionKind, Permission, actions};

use crate::api;
use crate::observe::{PODS, SANDBOXES};
use crate::subject::Subject;

actions! {
    /// What is done to a container.
    #[derive(Eq)]
    pub enum Action {
        /// Ends the task, and removes the container with its snapshot, FIFOs, mounts, bundle and control group.
        Clean => ActionKind::destructive("clean")
            .removes_subject()
            .needs(&[Permission::on(PODS, "get"), Permission::on(SANDBOXES, "get")]),
    }
}

/// What is done, for people.
#[must_use]
pub(crate) fn describe(subject: &Subject) -> Vec<String> {
    let container = &subject.container;
    let id = &container.id;
    let mut steps = vec![
        format!("write the FIFO paths of its task to the labels {}*", api::OWN_PREFIX),
        format!("kill every process of the task {id} with SIGKILL, wait for its end, and delete the task"),
    ];
    if !container.snapshot_key.is_empty() {
        steps.push(format!("remove the snapshot {} of {}", container.snapshot_key, container.snapshotter));
    }
    steps.push("remove its FIFOs in the FIFO folder, and the folders that are empty then".to_owned());
    steps.push("unmount what is mounted in its bundle, and remove the bundle".to_owned());
    steps.push(
        "verify that no task, shim, snapshot, FIFO in that folder, mount, bundle or control group is left".to_owned(),
    );
    steps.push(format!("delete the container {id}"));
    steps
}
