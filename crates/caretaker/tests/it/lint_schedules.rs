//! `caretaker lint` on the schedules of kube-green and kube-downscaler, and on schedules that are rarely meant.

use rstest::rstest;

use crate::support::cli::{caretaker, folder, text};

const SLEEP_INFO: &str = r#"
apiVersion: kube-green.com/v1alpha1
kind: SleepInfo
metadata: {name: working-hours, namespace: shop}
spec: {weekdays: "1-5", sleepAt: "20:00", wakeUpAt: "08:00"}
"#;

const UPTIME: &str = r#"
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00 UTC"}
"#;

const EXCLUDED: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
  annotations: {downscaler/exclude: "true"}
spec: {replicas: 3}
"#;

const SCALED_DOWN: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: StatefulSet
  metadata: {name: db, namespace: shop, annotations: {downscaler/original-replicas: "3"}}
  spec: {replicas: 0}
"#;

const MIXED_ZONES: &str = r#"
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  annotations: {caretaker.dev/sleep-during: "TZ=Europe/Paris * 20-23 * * MON-FRI; * * * * SAT-SUN"}
"#;

const MINUTES: &str = r#"
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  annotations: {caretaker.dev/sleep-during: "0 20-23 * * *"}
"#;

/// They are notes: a cluster may have both tools while it is moved from one to the other.
#[rstest]
#[case::a_sleep_info(
    SLEEP_INFO,
    "SleepInfo shop/working-hours: spec.sleepAt is \"20:00\": only kube-green reads a SleepInfo; write \
     caretaker.dev/sleep-during on the Namespace; docs/migrate-from-kube-green.md has each field"
)]
#[case::an_uptime(
    UPTIME,
    "Namespace shop: annotation downscaler/uptime is \"Mon-Fri 08:00-20:00 UTC\": only kube-downscaler reads it; write \
     caretaker.dev/sleep-during on the Namespace; docs/migrate-from-kube-green.md has each annotation"
)]
#[case::an_exclusion(
    EXCLUDED,
    "Deployment shop/web: annotation downscaler/exclude is \"true\": only kube-downscaler reads it; \
     docs/migrate-from-kube-green.md has what to write instead"
)]
#[case::what_kube_downscaler_scaled_down(
    SCALED_DOWN,
    "StatefulSet shop/db: annotation downscaler/original-replicas is \"3\": kube-downscaler has scaled it down, and \
     nothing else brings back its replicas; let kube-downscaler wake it before you remove its annotations"
)]
#[case::a_part_without_a_zone(
    MIXED_ZONES,
    "Namespace shop: annotation caretaker.dev/sleep-during is \"TZ=Europe/Paris * 20-23 * * MON-FRI; * * * * SAT-SUN\": \
     it has a part without a zone, \"* * * * SAT-SUN\", which is read in UTC; write a zone in each part, such as \
     \"TZ=Europe/Paris * * * * SAT-SUN\""
)]
#[case::single_minutes(
    MINUTES,
    "Namespace shop: annotation caretaker.dev/sleep-during is \"0 20-23 * * *\": it opens for a single minute at a time; \
     for whole hours write \"* 20-23 * * *\""
)]
fn a_schedule_that_does_not_do_what_it_seems_to_is_noted_once(#[case] manifest: &str, #[case] note: &str) {
    let folder = folder(&[("a.yaml", manifest)]);

    let output = caretaker(&["lint", folder.path().to_str().unwrap()]);

    let notes = text(&output.stderr);
    assert_eq!(notes.matches(note).count(), 1, "{notes}");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[rstest]
#[case::a_sleep_info_of_another_group(
    "apiVersion: example.com/v1\nkind: SleepInfo\nmetadata: {name: kube-green.com/}\n"
)]
#[case::a_sound_schedule(
    "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, annotations: {caretaker.dev/sleep-during: '* 20-23 * * *'}}\n"
)]
#[case::the_word_in_a_value(
    "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, annotations: {note: downscaler/uptime}}\n"
)]
fn other_objects_have_no_note(#[case] manifest: &str) {
    let folder = folder(&[("a.yaml", manifest)]);

    let output = caretaker(&["lint", folder.path().to_str().unwrap()]);

    assert_eq!(text(&output.stderr), "");
}

#[test]
fn the_value_of_another_tool_in_our_annotation_is_an_error_with_the_window() {
    let manifest = MINUTES.replace("0 20-23 * * *", "Mon-Fri 20:00-08:00 Europe/Berlin");
    let folder = folder(&[("a.yaml", &manifest)]);

    let output = caretaker(&["lint", folder.path().to_str().unwrap()]);

    let errors = text(&output.stdout);
    let remedy = "for these hours of these days write \"TZ=Europe/Berlin * 0-7,20-23 * * MON-FRI\"";
    assert!(output.status.code() == Some(1) && errors.contains(remedy), "{errors}");
}
