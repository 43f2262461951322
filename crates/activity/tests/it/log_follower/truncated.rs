//! The log is copied and truncated in place (copytruncate), or only truncated.

use std::fs;

use rstest::rstest;

use super::NO_LINES;
use super::writer::{LogWriter, read, read_all, read_with_loss};

#[rstest]
fn unread_lines_are_read_from_the_copy(
    #[values(true, false)] appends: bool,
    #[values("", "long after\n")] regrown: &str,
) {
    let mut writer = LogWriter::with_options(appends, false);
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
fn several_copies_between_two_reads_are_read_in_order() {
    let mut writer = LogWriter::new();
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
fn the_first_lines_of_an_empty_log_are_read_from_the_copy() {
    let mut writer = LogWriter::new();
    let mut follower = writer.started_follower();

    writer.write("a\n");
    writer.copytruncate();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["a", "b"]);
}

#[test]
fn a_log_that_was_truncated_and_then_rotated_is_read_from_its_start() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.write("b\n");

    writer.copytruncate();
    writer.write("c\n");
    writer.rotate_lumberjack();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["b", "c", "d"]);
}

#[test]
fn a_line_that_a_truncation_splits_is_read_as_two_lines() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\nb");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.copytruncate();
    writer.write("c\n");

    assert_eq!(read_all(&mut follower), ["b", "c"]);
}

#[test]
fn a_first_line_that_was_incomplete_at_the_last_read_is_read_from_the_copy() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a");
    assert_eq!(read_all(&mut follower), NO_LINES);
    writer.write("b\nc\n");

    writer.copytruncate();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["ab", "c", "d"]);
}

#[test]
fn a_truncation_without_a_copy_is_reported_and_the_log_is_read_from_its_start() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.truncate();
    writer.write("b\n");

    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!(lines, ["b"]);
    assert!(lost.unwrap().ends_with("truncated without a copy"));
    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["c"], "the loss is reported once");
}

#[test]
fn a_later_copy_is_read_after_the_first_one_was_deleted() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.started_follower();
    writer.write("a\n");
    writer.rotate_lumberjack();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.copytruncate();
    writer.write("c\n");
    writer.copytruncate();
    writer.write("d\n");
    fs::remove_file(writer.path("audit.log.2")).unwrap();

    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!(lines, ["c", "d"], "no file that is older than the position is read");
    assert!(lost.is_some());
}

#[test]
fn a_copy_that_ends_before_the_position_is_reported_and_not_read() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    writer.copy();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.truncate();
    writer.write("c\n");

    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!(lines, ["c"]);
    assert!(lost.unwrap().contains("is shorter than the part of it that was read"));
}

#[test]
fn the_log_itself_is_read_while_a_copy_is_made() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read(&mut follower, 2).0, ["a"]);
    writer.rotate_logrotate();
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
fn an_empty_copy_in_progress_is_skipped() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.rotate_logrotate();
    writer.write("b\nc\n");

    writer.start_copy();
    assert_eq!(read(&mut follower, 2).0, ["b"]);
    writer.continue_copy(100);
    writer.truncate();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["c", "d"]);
}

#[test]
fn the_log_itself_is_read_while_a_copy_ends_within_the_first_line_behind_a_hole() {
    let mut writer = LogWriter::with_options(false, false);
    let mut follower = writer.started_follower();
    let long = "x".repeat(998);
    writer.write(&format!("{long}\n"));
    writer.copytruncate();
    writer.write("abc\n");

    writer.start_copy();
    writer.continue_copy(1000);
    assert_eq!(read_all(&mut follower), [&*long, "abc"]);
    writer.continue_copy(2000);
    writer.truncate();
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["d"]);
}

#[test]
fn a_hole_is_not_part_of_a_line() {
    let mut writer = LogWriter::with_options(false, false);
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
