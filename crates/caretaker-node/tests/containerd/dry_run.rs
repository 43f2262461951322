//! What a dry run shows is what would happen: an agent that is gone from this node may be on another.

use crate::program;

use std::collections::BTreeMap;

use crate::support::lab::{Lab, Outcome, State, labels};
use crate::support::objects::{NODE, Objects};
use caretaker_testkit::harness::{Need, Trial, test};
use caretaker_testkit::{shared_without_controllers as shared, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use program::{Failable, LIMIT, Running, node_args, program};
use serde_json::Value;

pub fn tests() -> Vec<Trial> {
    vec![test("an_agent_on_another_node_is_not_shown_as_gone", Need::Containerd, on_another_node)]
}

/// The rule of each container, in the report of the node.
async fn reported(objects: &Objects) -> Failable<BTreeMap<String, String>> {
    let maps: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let map = maps.get_opt(&format!("caretaker-node-{NODE}")).await?;
    let text = map.and_then(|map| map.data).and_then(|data| data.into_values().next()).unwrap_or_default();
    Ok(rules(&serde_json::from_str::<Value>(&text).unwrap_or_default()["containers"], "id"))
}

fn rules(containers: &Value, id: &str) -> BTreeMap<String, String> {
    let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    containers.as_array().into_iter().flatten().map(|one| (text(one, id), text(one, "rule"))).collect()
}

/// One container says the name of its agent, one only the uid, and one has an agent that is gone.
async fn on_another_node() -> Outcome {
    let lab = Lab::start().await?;
    let objects = Objects::new(shared(), "other-node").await?;
    let uid = objects.agent("moved", "node-2").await?;
    lab.create("named", &objects.owned("moved", &uid, "box"), State::NoTask).await?;
    let unnamed = labels(&[("managed", "true"), ("agent-uid", &uid), ("sandbox-name", "box")]);
    lab.create("unnamed", &unnamed, State::NoTask).await?;
    lab.create("orphan", &objects.owned("never", "never", "box"), State::NoTask).await?;
    let expected = [("named", "AgentElsewhere"), ("orphan", "AgentGone"), ("unnamed", "AgentElsewhere")];
    let expected: BTreeMap<String, String> =
        expected.into_iter().map(|(id, rule)| (id.to_owned(), rule.to_owned())).collect();

    let namespace = format!("--report={}", objects.namespace);
    let running = Running::start(&lab, "report", &["--dry-run", &namespace])?;
    until("the report to have the three containers", LIMIT, async || {
        let rules = reported(&objects).await.unwrap_or_default();
        Ok(if rules.len() == 3 { Ok(()) } else { Err(format!("{rules:?} {}", running.log())) })
    })
    .await?;
    assert_eq!(reported(&objects).await?, expected);
    drop(running);

    let plan = program()
        .args(["plan", "-o", "json"])
        .args(node_args(&lab, &lab.containerd().folder().join("plan.json")))
        .output()?;
    let rows: Value = serde_json::from_slice(&plan.stdout)?;
    assert_eq!(rules(&rows, "name"), expected, "{rows}");
    Ok(())
}
