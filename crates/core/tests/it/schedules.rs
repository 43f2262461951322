//! The pages say truly when a window of time is open.
//!
//! Every window in the README and in `docs/` has a claim in [`claims::CLAIMS`]: the words of the page, and what they
//! mean, written by hand. A window without a claim fails, and so does a claim whose words the page has no more. The
//! windows of the migration tables are compared with a model of the other tool instead. Lines that a command printed
//! are left out: `pages.rs` compares them with what it prints.

mod claims;
mod downscaler;
mod kube_green;
mod scan;
mod week;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use caretaker_core::Timestamp;
use caretaker_core::window::{Window, zone};
use jiff::SignedDuration;

use claims::{CLAIMS, Holds};
use week::Week;

const MIGRATION: &str = "docs/migrate-from-kube-green.md";

/// The pages with their names.
fn pages() -> Vec<(String, String)> {
    let root = Path::new("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let name = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
    let mut pages: Vec<_> = docs.chain([root.join("README.md")]).collect();
    pages.sort();
    pages.into_iter().map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
}

fn page(name: &str) -> String {
    pages().into_iter().find(|(page, _)| page == name).expect("the page").1
}

/// The cells of the rows of tables.
fn rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
    page.lines().filter_map(|line| Some(line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect()))
}

/// True for a row that is compared with a model of the other tool.
fn has_model(page: &str, line: &str) -> bool {
    let peers = ["| `weekdays:", "| `downscaler/"];
    page == MIGRATION && peers.iter().any(|peer| line.starts_with(peer)) && rows(line).any(|row| row.len() == 3)
}

/// The texts in code quotes.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn parsed(text: &str, zone_name: &str) -> Window {
    Window::parse(text, &zone(zone_name).unwrap()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_window_in_the_pages_has_a_claim() {
    let mut found = 0;
    for (page, text) in pages() {
        for line in scan::written_lines(&text).filter(|line| !has_model(&page, line)) {
            for window in scan::windows(line) {
                found += 1;
                let has_claim = |c: &claims::Claim| c.page == page && c.window == window && line.contains(c.words);
                assert!(
                    CLAIMS.iter().any(has_claim),
                    "{page} has the window {window:?}, and no claim in these words says when it is open:\n{line}"
                );
            }
        }
    }
    assert!(found >= CLAIMS.len(), "the pages have {found} windows");
}

#[test]
fn every_claim_stands_in_its_page() {
    for claim in CLAIMS {
        let text = page(claim.page);
        let stands = |line: &str| line.contains(claim.words) && scan::windows(line).any(|found| found == claim.window);
        assert!(
            scan::written_lines(&text).any(stands),
            "no line of {} has {:?} with {:?}",
            claim.page,
            claim.window,
            claim.words
        );
    }
}

#[test]
fn a_window_is_open_when_its_page_says() {
    for claim in CLAIMS {
        let about = format!("{}: {}", claim.page, claim.window);
        match claim.holds {
            Holds::Weekly(zone_name, week) => {
                let window = parsed(claim.window, "UTC");
                for monday in week::MONDAYS {
                    week().assert_is(&Week::of(&window, zone_name, monday), &about);
                }
            }
            Holds::Once(from, until) => assert_open_once(&parsed(claim.window, "UTC"), from, until, &about),
            Holds::Next(expected) => {
                let from = "2026-01-12T00:00:00Z".parse().expect("a time");
                let window = parsed(claim.window, "UTC");
                let edges: Vec<String> =
                    window.edges(from).take(expected.len()).map(|edge| edge.at.to_string()).collect();
                assert!(!window.is_open(from) && edges == expected, "{about}: {edges:?}");
            }
            Holds::Unreadable(words) => {
                let error = Window::parse(claim.window, &jiff::tz::TimeZone::UTC).expect_err(claim.window).to_string();
                assert!(error.contains(words), "{about}: {error}");
            }
        }
    }
}

/// Asserts that a window opens and closes once.
fn assert_open_once(window: &Window, from: &str, until: &str, about: &str) {
    let [from, until]: [Timestamp; 2] = [from, until].map(|at| at.parse().expect("a time"));
    let long_before = from - SignedDuration::from_hours(10_000);
    let edges: Vec<_> = window.edges(long_before).map(|edge| (edge.at, edge.opens)).collect();
    assert_eq!(edges, [(from, true), (until, false)], "{about}");
}

/// Windows that the scan does not recognise would go unchecked.
#[test]
fn what_follows_the_name_of_a_window_is_a_window() {
    for (page, text) in pages() {
        for line in scan::written_lines(&text) {
            let windows: Vec<&str> = scan::windows(line).collect();
            for value in scan::named(line) {
                let is_placeholder = ["EXPR", "EXPRESSION"].contains(&value);
                assert!(is_placeholder || windows.contains(&value), "{page}: {value:?} is not recognised in:\n{line}");
            }
        }
    }
}

/// Rows of the migration tables: the fields of the other tool, the window, and the hours of a week.
fn migration_rows(first: &str) -> Vec<(String, String, String)> {
    let text = page(MIGRATION);
    let rows = rows(&text).filter(|row| row[0].starts_with(first) && row.len() == 3);
    let row = |row: Vec<&str>| {
        let windows: BTreeSet<&str> = scan::windows(row[1]).collect();
        assert_eq!(windows.len(), 1, "one window in {row:?}");
        (row[0].to_owned(), windows.into_iter().next().unwrap_or_default().to_owned(), row[2].to_owned())
    };
    rows.map(row).collect()
}

/// The claim of a row, such as `106 h 45 min`, as minutes.
fn claimed(cell: &str) -> usize {
    let number = |text: &str| text.trim().parse::<usize>().unwrap_or_else(|_| panic!("no hours in {cell:?}"));
    let (hours, rest) = cell.split_once(" h").expect("hours");
    let minutes = rest.split_once(" min").map_or(0, |(minutes, _)| number(minutes));
    number(hours) * 60 + minutes
}

#[test]
fn a_sleep_info_sleeps_as_its_window_does() {
    let rows = migration_rows("`weekdays:");

    assert!(rows.len() >= 6, "{rows:?}");
    for (fields, text, hours) in rows {
        let (model, zone_name) = kube_green::week(code(&fields));
        assert_eq!(model.minutes(), claimed(&hours), "{fields}: the hours of kube-green");
        for monday in week::MONDAYS {
            model.assert_is(&Week::of(&parsed(&text, "Asia/Tokyo"), &zone_name, monday), &format!("{fields}: {text}"));
        }
    }
}

#[test]
fn annotations_of_kube_downscaler_scale_down_as_their_window_does() {
    let rows = migration_rows("`downscaler/");

    assert!(rows.len() >= 8, "{rows:?}");
    for (fields, text, hours) in rows {
        let about = format!("{fields}: {text}");
        // The zone of the settings must not matter.
        let window = parsed(&text, "Asia/Tokyo");
        match downscaler::read(code(&fields)) {
            downscaler::Scaled::Weekly(model, zone_name) => {
                assert_eq!(model.minutes(), claimed(&hours), "{fields}: the hours of kube-downscaler");
                for monday in week::MONDAYS {
                    model.assert_is(&Week::of(&window, &zone_name, monday), &about);
                }
            }
            downscaler::Scaled::Once(from, until) => assert_open_once(&window, &from, &until, &about),
        }
    }
}

/// Of kube-green 0.7 and GoKubeDownscaler 1.3; py-kube-downscaler has another name for one of them.
#[test]
fn every_field_of_the_other_tools_is_on_the_migration_page() {
    let sleep_info = [
        "weekdays",
        "sleepAt",
        "wakeUpAt",
        "timeZone",
        "excludeRef",
        "includeRef",
        "matchLabels",
        "suspendCronJobs",
        "suspendDeployments",
        "suspendStatefulSets",
        "patches",
    ];
    let annotations = [
        "downtime",
        "uptime",
        "downscale-period",
        "upscale-period",
        "exclude",
        "exclude-until",
        "force-uptime",
        "force-downtime",
        "downscale-replicas",
        "downtime-replicas",
        "grace-period",
        "scale-children",
        "upscale-excluded",
    ];
    let names = sleep_info.into_iter().map(str::to_owned);
    let names = names.chain(annotations.iter().map(|name| format!("downscaler/{name}")));

    let text = page(MIGRATION);
    let cells: Vec<&str> = rows(&text).map(|row| row[0]).collect();
    for name in names {
        let stands = |cell: &&str| code(cell).any(|code| code.split(':').next() == Some(&*name));
        assert!(cells.iter().any(stands), "{name} is in no first cell of {MIGRATION}");
    }
}
