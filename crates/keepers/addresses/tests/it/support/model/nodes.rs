//! The nodes of the model: a node that is silent runs its pods all the same.

use caretaker_addresses::api::Kind;
use caretaker_core::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Model;
use crate::support::objects::{self, PodExt as _};

pub const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeIs {
    Ready,
    /// It does not report, and its pods run.
    Silent,
    /// It is shut down, and a person has said so.
    OutOfService,
    /// It is shut down, and its Node is deleted.
    Gone,
}

impl Model {
    pub(super) fn ready_node(&self) -> Option<&'static str> {
        let ready: Vec<&str> = NAMES.into_iter().filter(|name| self.nodes[name] == NodeIs::Ready).collect();
        (!ready.is_empty()).then(|| ready[self.uids as usize % ready.len()])
    }

    pub(super) fn is_up(&self, name: &str) -> bool {
        matches!(self.nodes[name], NodeIs::Ready | NodeIs::Silent)
    }

    pub(super) fn node_objects(&self) -> Vec<Value> {
        let exist = self.nodes.iter().filter(|(_, is)| **is != NodeIs::Gone);
        exist.map(|(name, is)| self.node_object(name, *is)).collect()
    }

    fn node_object(&self, name: &str, is: NodeIs) -> Value {
        let taint = json!([{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }]);
        let taints = if is == NodeIs::OutOfService { taint } else { json!([]) };
        objects::node(name, is == NodeIs::Ready)
            .with("/spec/taints", taints)
            .with("/metadata/resourceVersion", json!(self.version.to_string()))
    }

    /// A node changes. A machine that is shut down runs nothing.
    pub fn node_becomes(&mut self, number: usize, is: NodeIs) {
        let name = NAMES[number];
        self.nodes.insert(name, is);
        if matches!(is, NodeIs::OutOfService | NodeIs::Gone) {
            let at = &self.at;
            self.live.retain(|uid, _| at.get(uid) != Some(&name));
        }
        let object = self.node_object(name, is);
        self.publish(Kind::Node, is != NodeIs::Gone, object);
    }

    /// The collector's clock is set. Set forward, it shortens what it has counted itself since it missed a pod, unless an
    /// endpoint says when that was: the model has no such pod then.
    pub fn set_clock(&mut self, ahead: SignedDuration) {
        if ahead > self.ahead {
            let mut live = std::mem::take(&mut self.live);
            live.retain(|uid, (key, _)| {
                let exists = self.pods.get(key).is_some_and(|pod| pod.uid == *uid);
                exists || self.deletion_of_endpoint(key, uid).is_some()
            });
            self.live = live;
        }
        self.ahead = ahead;
    }

    fn deletion_of_endpoint(&self, key: &str, uid: &str) -> Option<Timestamp> {
        self.endpoints.get(key).filter(|endpoint| endpoint.pod == uid)?.deletion
    }
}
