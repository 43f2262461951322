//! Settings that change while the operator runs, as a ConfigMap's volume changes them: a symlink is swapped.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::support::audit::{AuditedCluster, SETTINGS};
use crate::support::operator::{
    Operator, TIMEOUT, cluster, create_namespace, start_operator, state_of, use_namespace, wait_for_state,
};
use caretaker_testkit::{Cluster, until};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tempfile::TempDir;

/// A volume with a file, which is replaced as the kubelet does it.
struct Volume {
    folder: TempDir,
    versions: usize,
}

impl Volume {
    fn new(text: &str) -> Self {
        let mut volume = Self { folder: tempfile::tempdir().unwrap(), versions: 0 };
        volume.swap(text);
        symlink("..data/config.yaml", volume.path()).unwrap();
        volume
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    fn swap(&mut self, text: &str) {
        self.versions += 1;
        let name = format!("..{}", self.versions);
        let version = self.folder.path().join(&name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("config.yaml"), text).unwrap();
        let next = self.folder.path().join("..next");
        symlink(name, &next).unwrap();
        fs::rename(next, self.folder.path().join("..data")).unwrap();
    }
}

async fn start(kubeconfig: &std::path::Path, volume: &Volume) -> Operator {
    start_operator(kubeconfig, &["--config", volume.path().to_str().unwrap()]).await
}

async fn lease(client: &Client) -> LeaseSpec {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "caretaker-system");
    leases.get("caretaker-namespaces").await.unwrap().spec.unwrap()
}

/// The last entry of the journal about a namespace that has fallen asleep.
const ASLEEP: &str = "SleepAfterElapsed sleep done";

/// Returns the time of the first line of the log with these words.
fn logged_at(operator: &Operator, words: &str) -> Timestamp {
    let log = operator.log();
    let line = log.lines().find(|line| line.contains(words)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Waits until the log has this line so many times.
async fn logged(operator: &Operator, words: &str, times: usize) {
    until(&format!("{times} times {words:?}"), TIMEOUT, async || {
        let log = operator.log();
        Ok(if log.matches(words).count() == times { Ok(()) } else { Err(log) })
    })
    .await
    .unwrap();
}

const AGAIN: &str = "has changed: the keepers start again with it";
const CURRENT: &str = "caretaker_settings_current";

#[tokio::test]
async fn new_settings_are_used_and_the_lease_is_kept() {
    let (cluster, client) = cluster().await;
    let mut volume = Volume::new("keepers: {namespaces: {protected: [shop]}}");
    let operator = start(&cluster.kubeconfig(), &volume).await;
    create_namespace(&client, "shop", 3).await;
    create_namespace(&client, "other", 1).await;
    wait_for_state(&client, "other", "sleep", 0).await;
    assert_eq!(state_of(&client, "shop").await, (String::new(), 3), "protected: {:?}", operator.story("shop"));
    let before = lease(&client).await;

    volume.swap("keepers: {namespaces: {protected: [other]}}");
    wait_for_state(&client, "shop", "sleep", 0).await;
    logged(&operator, AGAIN, 1).await;
    let after = lease(&client).await;
    assert_eq!(
        (&after.holder_identity, &after.acquire_time, after.lease_transitions),
        (&before.holder_identity, &before.acquire_time, before.lease_transitions),
        "it led all the time"
    );
    operator.ready().await;
    assert_eq!(operator.metric(CURRENT), Some(1.0));
    assert_eq!(operator.metric(r#"caretaker_leader{keeper="namespaces"}"#), Some(1.0));
    let done = r#"caretaker_actions_total{keeper="namespaces",action="sleep",rule="SleepAfterElapsed",outcome="done"}"#;
    assert_eq!(operator.metric(done), Some(2.0), "what was counted before counts on");

    // A file that says the same in other words is no reason to start again.
    volume.swap("# For the other team.\nkeepers:\n  namespaces:\n    protected: [other]\n");
    logged(&operator, "has changed, and says what is in use", 1).await;
    assert_eq!(operator.log().matches(AGAIN).count(), 1);
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_is_reported_until_it_is_right() {
    let (cluster, client) = cluster().await;
    let mut volume = Volume::new("keepers: {namespaces: {protected: [shop]}}");
    let operator = start(&cluster.kubeconfig(), &volume).await;
    operator.ready().await;

    for (text, words) in [
        ("keepers: {namespaces: {protectd: [shop]}}", "unknown key protectd; did you mean protected?"),
        ("", "it is empty; for the built-in settings write {}"),
        ("keepers: {namespaces: {enabled: false}}", "no keeper is enabled"),
    ] {
        volume.swap(text);
        until(&format!("a note: {words}"), TIMEOUT, async || {
            let (code, text) = operator.ask("/readyz");
            assert_eq!(code, 200, "it works on with the settings before: {text}");
            let note = text.lines().find(|line| line.starts_with("note     settings: ") && line.contains(words));
            Ok(if note.is_some() { Ok(()) } else { Err(format!("{text}\n{}", operator.log())) })
        })
        .await
        .unwrap();
        assert_eq!(operator.metric(CURRENT), Some(0.0));
        logged(&operator, words, 1).await;
    }
    create_namespace(&client, "shop", 3).await;
    create_namespace(&client, "other", 1).await;
    wait_for_state(&client, "other", "sleep", 0).await;
    assert_eq!(state_of(&client, "shop").await, (String::new(), 3), "still protected");
    assert!(!operator.log().contains(AGAIN), "{}", operator.log());

    volume.swap("leaseDuration: 40s\nkeepers: {namespaces: {protected: [other]}}");
    wait_for_state(&client, "shop", "sleep", 0).await;
    let (code, text) = operator.ask("/readyz");
    let fixed = "leaseDuration is 15s and not 40s until a restart";
    assert!(code == 200 && text.contains(fixed) && operator.log().contains(fixed), "{text}");
    assert_eq!(operator.metric(CURRENT), Some(0.0), "not all of the file is in use");
    assert_eq!(lease(&client).await.lease_duration_seconds, Some(15));

    volume.swap("keepers: {namespaces: {protected: [other]}}");
    until("all of the file to be in use", TIMEOUT, async || {
        let (current, (_, text)) = (operator.metric(CURRENT), operator.ask("/readyz"));
        Ok(if current == Some(1.0) && !text.contains("settings") { Ok(()) } else { Err(text) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn settings_that_change_while_namespaces_fall_asleep_lose_nothing() {
    let (cluster, client) = cluster().await;
    let names: Vec<String> = (0..12).map(|i| format!("team-{i}")).collect();
    for name in &names {
        create_namespace(&client, name, 4).await;
    }
    // Slow enough that the settings change in the middle.
    let slow = |calls| format!("keepers: {{namespaces: {{callsPerSecond: {calls}, concurrency: 2, breaker: none}}}}");
    let mut volume = Volume::new(&slow(4));
    let operator = start(&cluster.kubeconfig(), &volume).await;
    until("the first one to sleep", TIMEOUT, async || {
        let asleep = operator.journal().iter().filter(|line| line["outcome"] == "done").count();
        Ok(if asleep > 0 { Ok(()) } else { Err(operator.log()) })
    })
    .await
    .unwrap();
    volume.swap(&slow(50));
    logged(&operator, AGAIN, 1).await;

    for name in &names {
        wait_for_state(&client, name, "sleep", 0).await;
        until(&format!("the journal to have {name} asleep"), TIMEOUT, async || {
            let story = operator.story(name);
            Ok(if story.iter().any(|line| line == ASLEEP) { Ok(()) } else { Err(format!("{story:?}")) })
        })
        .await
        .unwrap();
        let story = operator.story(name);
        // On a busy machine a call may take too long: that is tried again.
        let done: Vec<&String> = story.iter().filter(|line| !line.ends_with(" failed")).collect();
        assert_eq!(done, [ASLEEP], "once, whichever settings did it: {story:?}");
    }
    let (changed, journal) = (logged_at(&operator, AGAIN), operator.journal());
    let after = journal.iter().filter(|line| line["at"].as_str().unwrap().parse::<Timestamp>().unwrap() > changed);
    assert!(after.count() > 0, "the settings changed in the middle: at {changed}, {journal:?}");
    for name in &names {
        use_namespace(&client, name).await;
        wait_for_state(&client, name, "normal", 4).await;
    }
}

#[tokio::test]
async fn a_keeper_that_is_switched_on_starts_and_one_that_is_switched_off_gives_up_its_lease() {
    let (cluster, client) = cluster().await;
    let mut volume = Volume::new("keepers: {namespaces: {enabled: true}}");
    let operator = start(&cluster.kubeconfig(), &volume).await;
    operator.ready().await;

    volume.swap("keepers: {namespaces: {enabled: false}, windows: {enabled: true}}");

    let leads = |keeper: &str| operator.metric(&format!("caretaker_leader{{keeper={keeper:?}}}"));
    until("the windows keeper to lead, and the other not to", TIMEOUT, async || {
        let found = (leads("windows"), leads("namespaces"));
        Ok(if found == (Some(1.0), Some(0.0)) { Ok(()) } else { Err(format!("{found:?} {}", operator.log())) })
    })
    .await
    .unwrap();
    let runs = |keeper: &str| operator.metric(&format!("caretaker_keeper_running{{keeper={keeper:?}}}"));
    assert_eq!((runs("windows"), runs("namespaces")), (Some(1.0), None));
    until("the Lease to be free", TIMEOUT, async || {
        let holder = lease(&client).await.holder_identity;
        Ok(if holder.as_deref() == Some("") { Ok(()) } else { Err(format!("{holder:?}")) })
    })
    .await
    .unwrap();
}

/// The gaps in what was received, as they are saved.
async fn gaps(client: &Client) -> String {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "caretaker-system");
    maps.get("caretaker-state").await.unwrap().data.unwrap_or_default().remove("activity").unwrap_or_default()
}

#[tokio::test]
async fn activity_is_received_on_and_nothing_counts_as_missed_when_settings_change() {
    let audited = AuditedCluster::new(Cluster::builder()).await;
    let (operator, client) = (audited.operator().await, &audited.client);
    let ann = audited.user("ann").await;
    audited.create_namespace("shop", "5s").await;
    wait_for_state(client, "shop", "sleep", 0).await;
    let before = gaps(client).await;
    assert!(before.contains("no audit events were collected before"), "{before}");

    let config = audited.args().pop().unwrap();
    fs::write(&config, format!("{SETTINGS}    protected: [office]\n")).unwrap();
    logged(&operator, AGAIN, 1).await;

    audited.set_sleep_after("shop", "20s").await;
    ann.kubectl(&["get", "pods", "-n", "shop"]);
    wait_for_state(client, "shop", "normal", 2).await;
    // It sleeps only after a canary has shown that nothing was missed.
    wait_for_state(client, "shop", "sleep", 0).await;
    assert_eq!(gaps(client).await, before, "{}", operator.log());
}
