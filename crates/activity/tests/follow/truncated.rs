//! The log is copied and truncated in place, or only truncated.

use std::fs;

use rstest::rstest;

use crate::NONE;
use crate::writer::{Writer, read, read_all, read_out};

#[rstest]
fn the_rest_is_read_from_the_copy(#[values(true, false)] appends: bool, #[values("", "long after\n")] regrown: &str) {
    let mut writer = Writer::with(appends, false);
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read(&mut follower, 2).0, ["a"]);
    writer.write("c\n");

    writer.copytruncate();
    writer.write("d\n");
    writer.write(regrown);

    assert_eq!(read_all(&mut follower).join("\n"), format!("b\nc\nd\n{regrown}").trim_end());
}

#[test]
fn copies_that_were_made_between_two_looks_are_read_in_order() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    for line in ["b\n", "c\n", "d\n"] {
        writer.write(line);
        writer.copytruncate();
    }
    writer.write("e\n");

    assert_eq!(read_all(&mut follower), ["b", "c", "d", "e"]);
}

#[test]
fn what_was_written_and_copied_away_between_two_looks_at_an_empty_log_is_read() {
    let mut writer = Writer::new();
    let mut follower = writer.started();

    writer.write("a\n");
    writer.copytruncate();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["a", "b"]);
}

#[test]
fn a_log_that_was_truncated_and_then_rotated_is_read_from_its_beginning() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.write("b\n");

    writer.copytruncate();
    writer.write("c\n");
    writer.rotate();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["b", "c", "d"]);
}

#[test]
fn a_torn_line_is_handed_out_in_two_parts() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\nb");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.copytruncate();
    writer.write("c\n");

    assert_eq!(read_all(&mut follower), ["b", "c"]);
}

#[test]
fn a_first_line_that_was_never_whole_is_read_from_the_copy() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a");
    assert_eq!(read_all(&mut follower), NONE);
    writer.write("b\nc\n");

    writer.copytruncate();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["ab", "c", "d"]);
}

#[test]
fn without_a_copy_lines_are_lost_and_it_goes_on_from_the_beginning() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.truncate();
    writer.write("b\n");

    let (lines, lost) = read_out(&mut follower);
    assert_eq!(lines, ["b"]);
    assert!(lost.unwrap().ends_with("truncated without a copy"));
    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["c"], "it is said once");
}

#[test]
fn a_later_copy_is_read_even_if_the_first_one_is_gone() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.started();
    writer.write("a\n");
    writer.rotate();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.copytruncate();
    writer.write("c\n");
    writer.copytruncate();
    writer.write("d\n");
    fs::remove_file(writer.path("audit.log.2")).unwrap();

    let (lines, lost) = read_out(&mut follower);
    assert_eq!(lines, ["c", "d"], "and nothing that is older than what was read");
    assert!(lost.is_some());
}

#[test]
fn a_copy_that_ends_before_the_place_has_nothing_new() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    writer.copy();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.truncate();
    writer.write("c\n");

    let (lines, lost) = read_out(&mut follower);
    assert_eq!(lines, ["c"]);
    assert!(lost.unwrap().contains("is shorter than what was read of it"));
}

#[test]
fn a_copy_that_is_being_made_is_left_for_the_log_itself() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read(&mut follower, 2).0, ["a"]);
    writer.logrotate();
    writer.write("c\nd");

    writer.copy();
    assert_eq!(read_all(&mut follower), ["b", "c"]);
    writer.write("e\n");
    assert_eq!(read_all(&mut follower), ["de"]);

    writer.copy();
    writer.truncate();
    writer.write("f\n");
    assert_eq!(read_all(&mut follower), ["f"]);
}

#[test]
fn a_copy_that_has_only_just_been_begun_is_passed_over() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.logrotate();
    writer.write("b\nc\n");

    writer.begin_copy();
    assert_eq!(read(&mut follower, 2).0, ["b"]);
    writer.go_on_with_copy(100);
    writer.truncate();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["c", "d"]);
}

#[test]
fn a_copy_that_has_come_to_the_middle_of_the_first_line_after_a_hole_is_left_for_the_log_itself() {
    let mut writer = Writer::with(false, false);
    let mut follower = writer.started();
    let long = "x".repeat(998);
    writer.write(&format!("{long}\n"));
    writer.copytruncate();
    writer.write("abc\n");

    writer.begin_copy();
    writer.go_on_with_copy(1000);
    assert_eq!(read_all(&mut follower), [&*long, "abc"]);
    writer.go_on_with_copy(2000);
    writer.truncate();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["d"]);
}

#[test]
fn a_hole_is_no_part_of_a_line() {
    let mut writer = Writer::with(false, false);
    let mut follower = writer.follower();
    let long = "x".repeat(200_000);
    writer.write(&format!("{long}\n"));
    assert_eq!(read_all(&mut follower), [&*long]);

    writer.copytruncate();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();

    let mut follower = writer.follower();
    writer.write("b\n");
    writer.copytruncate();
    writer.write("c\n\0\0d\n");
    assert_eq!(read_all(&mut follower), ["b", "c", "d"]);
}
