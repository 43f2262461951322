//! The log is renamed and a new one created.

use std::fs::{self, OpenOptions};
use std::io::Write;

use rstest::rstest;

use super::NO_LINES;
use super::writer::{LogWriter, read_all, read_with_loss};

#[rstest]
#[case::lumberjack(|writer: &mut LogWriter| drop(writer.rotate_lumberjack()))]
#[case::rotate_logrotate(LogWriter::rotate_logrotate)]
fn rotated_files_are_read_in_order_and_then_the_log(#[case] rotate: fn(&mut LogWriter)) {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("0\n");
    assert_eq!(read_all(&mut follower), ["0"]);

    // More than nine: numbers must not be sorted as text.
    for line in 1..=12 {
        writer.write(&format!("{line}\n"));
        rotate(&mut writer);
    }
    writer.write("13\n");

    assert_eq!(read_all(&mut follower), (1..=13).map(|line| line.to_string()).collect::<Vec<_>>());
}

#[rstest]
#[case::lumberjack(|writer: &mut LogWriter| drop(writer.rotate_lumberjack()))]
#[case::rotate_logrotate(LogWriter::rotate_logrotate)]
#[case::copytruncate(LogWriter::copytruncate)]
fn a_rotation_during_a_read_loses_no_line(#[case] rotate: fn(&mut LogWriter)) {
    let mut writer = LogWriter::new();
    let mut follower = writer.started_follower();
    writer.write("1\n2\n3\n");

    let mut lines = vec![];
    let progress = follower.read(1000, |line| {
        lines.push(String::from_utf8_lossy(line).into_owned());
        if lines.len() <= 5 {
            writer.write(&format!("{}\n", lines.len() + 3));
            rotate(&mut writer);
        }
    });

    assert_eq!(lines, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert_eq!(progress.unwrap().lines_lost, None);
}

#[test]
fn modification_times_and_not_names_give_the_order() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.rotate_lumberjack();
    writer.write("b\n");
    writer.rotate_logrotate();
    writer.write("c\n");
    writer.rotate_lumberjack();
    writer.write("d\n");
    writer.rotate_logrotate();
    writer.write("e\n");

    assert_eq!(read_all(&mut follower), ["b", "c", "d", "e"]);
}

#[test]
fn the_log_may_be_missing_for_a_moment_during_a_rotation() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.write("b\n");

    writer.rotate_lumberjack();
    fs::remove_file(writer.path("audit.log")).unwrap();
    assert_eq!(read_all(&mut follower), ["b"]);
    assert_eq!(read_all(&mut follower), NO_LINES);

    writer.open();
    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["c"]);
}

#[test]
fn lines_that_are_written_to_a_rotated_file_are_read() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    let old = writer.rotate_lumberjack();
    assert_eq!(read_all(&mut follower), NO_LINES);
    OpenOptions::new().append(true).open(old).unwrap().write_all(b"b\n").unwrap();
    assert_eq!(read_all(&mut follower), ["b"]);

    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["c"]);
}

#[test]
fn a_last_line_without_newline_is_read_once_the_next_file_has_a_line() {
    let mut writer = LogWriter::new();
    let mut follower = writer.started_follower();
    writer.write("a\nb");
    writer.rotate_lumberjack();
    assert_eq!(read_all(&mut follower), ["a"], "the line may still be completed");

    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["b", "c"]);
}

#[test]
fn a_rotated_file_without_lines_is_skipped() {
    let mut writer = LogWriter::new();
    let mut follower = writer.started_follower();
    writer.write("a\n");
    writer.rotate_lumberjack();
    writer.rotate_lumberjack();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["a", "b"]);
}

#[test]
fn a_file_that_is_deleted_while_it_is_read_is_read_to_its_end() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.write("b\n");
    fs::remove_file(writer.rotate_lumberjack()).unwrap();
    writer.write("c\n");
    writer.rotate_lumberjack();
    writer.write("d\n");

    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!(lines, ["b", "c", "d"]);
    assert!(lost.unwrap().contains("may have been deleted or compressed"), "other files may have been deleted with it");
}

#[test]
fn a_file_that_is_compressed_while_it_is_read_is_read_to_its_end() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.write("b\n");
    let old = writer.rotate_lumberjack();
    writer.write("c\n");
    writer.compress(&old);

    assert_eq!(read_all(&mut follower), ["b", "c"]);
}

#[rstest]
fn a_file_that_is_compressed_before_it_is_read_is_reported(#[values(true, false)] is_first_compressed: bool) {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    let first = writer.rotate_lumberjack();
    writer.write("b\n");
    let second = writer.rotate_lumberjack();
    writer.write("c\n");
    writer.compress(&second);
    if is_first_compressed {
        writer.compress(&first);
    }

    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!(lines, ["c"]);
    let log = writer.path("audit.log");
    assert_eq!(
        lost.unwrap(),
        format!("files before {} may have been deleted or compressed before they were read", log.display())
    );
}

#[test]
fn a_file_that_is_being_compressed_is_read_once() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    for line in ["b\n", "c\n"] {
        writer.write(line);
        let old = writer.rotate_lumberjack();
        writer.start_compressing(&old);
    }
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["b", "c", "d"]);
}

#[test]
fn a_file_whose_name_only_starts_like_the_log_is_not_read() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.rotate_lumberjack();
    for name in ["audit-policy.yaml", "audit.log.swp", "auditor-1.log", "audit-webhook.log", "audit.log.bak"] {
        fs::write(writer.path(name), "not a line of the log\n").unwrap();
    }
    fs::create_dir(writer.path("audit.log.1")).unwrap();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["b"]);
}

#[test]
fn a_copy_of_the_log_is_not_read_again() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.copy();
    writer.rotate_lumberjack();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["b"]);
}

#[test]
fn an_incomplete_copy_is_not_read() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.start_copy();
    writer.continue_copy(2);
    writer.rotate_lumberjack();
    writer.write("c\n");

    assert_eq!(read_all(&mut follower), ["c"]);
}
