//! The commands about windows and Flux objects as a user types them, and what the windows keeper is allowed to do.

mod files;
mod flux;
mod orders;
mod real_flux;
mod shown;

use std::collections::BTreeSet;

use caretaker_engine::permissions::required;
use caretaker_engine::sources::Sources;
use caretaker_windows::Windows;
use caretaker_windows::api::KINDS;
use serde_json::{Value, json};

use crate::support::cli::{caretaker, root, text};

#[test]
fn as_json_it_has_the_documented_fields() {
    let output = caretaker(&["window", "* 0-4 * * *", "--at", "2026-03-02T02:00:00Z", "--edges", "2", "-o", "json"]);

    let printed: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(
        printed,
        json!({
            "suspended": true,
            "since": "2026-03-02T00:00:00Z",
            "until": "2026-03-02T05:00:00Z",
            "edges": [
                { "at": "2026-03-02T05:00:00Z", "suspended": false },
                { "at": "2026-03-03T00:00:00Z", "suspended": true },
            ],
        })
    );
}

#[test]
fn what_never_ends_has_no_end() {
    let output = caretaker(&["window", "@always", "-o", "json"]);

    let printed: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(printed, json!({ "suspended": true, "since": null, "until": null, "edges": [] }));
}

#[test]
fn a_bad_expression_is_an_error_with_its_remedy_and_nothing_else() {
    let output = caretaker(&["window", "* 22-5 * * *"]);

    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let expected = "caretaker: \"* 22-5 * * *\" is not a window: the hour \"22-5\" runs backwards; write 22-23,0-5\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn a_zone_of_the_command_line_is_for_windows_that_name_none() {
    let at = ["--at", "2026-01-10T23:30:00Z", "--zone", "Europe/Paris", "-o", "json"];
    let suspended = |expression: &str| {
        let output = caretaker(&[["window", expression].as_slice(), &at].concat());
        serde_json::from_str::<Value>(&text(&output.stdout)).unwrap()["suspended"].clone()
    };

    assert_eq!(suspended("* 0-4 * * *"), true);
    assert_eq!(suspended("TZ=UTC * 0-4 * * *"), false);
}

#[test]
fn a_single_minute_is_warned_about_on_standard_error() {
    let output = caretaker(&["window", "0 0-4 * * *", "-o", "json"]);

    let warning = "caretaker: it opens for a single minute at a time; for whole hours write \"* 0-4 * * *\"\n";
    assert_eq!(text(&output.stderr), warning);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_part_without_a_zone_next_to_one_with_a_zone_is_noted() {
    let output = caretaker(&["window", "TZ=Europe/Paris * 20-23 * * MON-FRI; * * * * SAT-SUN", "-o", "json"]);

    let notes = text(&output.stderr);
    assert!(notes.contains("it has a part without a zone, \"* * * * SAT-SUN\", which is read in UTC"), "{notes}");
    assert!(output.status.success());
}

#[test]
fn it_fits_into_80_columns() {
    let output = caretaker(&["window", "TZ=Australia/Lord_Howe 15-44 22-23 * * MON-FRI"]);

    let printed = text(&output.stdout);
    let longest = printed.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 80, "{longest} columns:\n{printed}");
}

/// The rights of the ClusterRole in `deploy/windows-live.yaml`: group, resource and verb.
fn granted() -> BTreeSet<(String, String, String)> {
    let text = std::fs::read_to_string(root().join("deploy/windows-live.yaml")).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let role = documents.iter().find(|document| document["kind"] == "ClusterRole").unwrap();
    let words = |value: &Value| value.as_array().unwrap().iter().map(|w| w.as_str().unwrap().to_owned()).collect();
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let [groups, resources, verbs]: [Vec<String>; 3] =
            ["apiGroups", "resources", "verbs"].map(|key| words(&rule[key]));
        for group in &groups {
            for resource in &resources {
                granted.extend(verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    granted
}

#[test]
fn the_manifest_grants_exactly_what_the_keeper_needs_of_every_kind() {
    let right = |group: &str, resource: &str, verb: &str| (group.to_owned(), resource.to_owned(), verb.to_owned());
    let mut needed = BTreeSet::new();
    for kind in &KINDS {
        needed.extend(["get", "list", "watch", "patch"].map(|verb| right(kind.group, kind.aliases[1], verb)));
        if kind.has_status {
            needed.insert(right(kind.group, &format!("{}/status", kind.aliases[1]), "patch"));
        }
    }
    needed.extend(["create", "patch"].map(|verb| right("events.k8s.io", "events", verb)));

    assert_eq!(granted(), needed);

    // What the keeper asks for without having seen a kind is among them.
    let keeper = Windows::default();
    let asked = required(&keeper, &Sources::of(&keeper), false);
    let everywhere = asked.iter().map(|asked| &asked.right).filter(|asked| asked.namespace.is_none());
    for asked in everywhere {
        assert!(needed.contains(&right(&asked.group, &asked.resource, asked.verb)), "{asked}");
    }
}
