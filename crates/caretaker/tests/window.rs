//! `caretaker window` as a user types it.

mod cli;

use serde_json::{Value, json};

use cli::{caretaker, text};

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
fn it_fits_into_80_columns() {
    let output = caretaker(&["window", "TZ=Australia/Lord_Howe 15-44 22-23 * * MON-FRI"]);

    let printed = text(&output.stdout);
    let longest = printed.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 80, "{longest} columns:\n{printed}");
}
