//! Following a log through appends, long lines and errors. The submodules rotate, truncate and restart it.

mod interleaved;
mod restarted;
mod rotated;
mod truncated;
mod writer;

use std::fs;

use caretaker_activity::log_follower::{LogFollower, MAX_LINE_BYTES, ReadProgress};
use writer::{LogWriter, read, read_all};

const NO_LINES: [&str; 0] = [];

#[test]
fn lines_are_read_as_they_are_written() {
    let mut writer = LogWriter::new();
    let mut follower = writer.started_follower();

    writer.write("a\nb\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.write("c\n\nd\n");
    assert_eq!(read_all(&mut follower), ["c", "", "d"]);
    assert_eq!(read_all(&mut follower), NO_LINES);
}

#[test]
fn a_log_that_does_not_exist_yet_has_no_lines() {
    let writer = LogWriter::new();
    let (folder, position) = (writer.path("later"), writer.path("position"));
    let mut follower = LogFollower::new(folder.join("audit.log"), position);
    assert_eq!(read(&mut follower, 100), (vec![], ReadProgress::default()));

    fs::create_dir(&folder).unwrap();
    assert_eq!(read(&mut follower, 100), (vec![], ReadProgress::default()));

    fs::write(folder.join("audit.log"), "a\n").unwrap();
    assert_eq!(read_all(&mut follower), ["a"]);
}

#[test]
fn a_line_is_read_when_its_newline_is_written() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\nb");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.write("c");
    assert_eq!(read_all(&mut follower), NO_LINES);

    writer.write("d\n");
    assert_eq!(read_all(&mut follower), ["bcd"]);
}

#[test]
fn one_call_reads_at_most_max_bytes() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("ab\nabcdefghi\nc\n");

    let mut calls = vec![];
    loop {
        let (lines, progress) = read(&mut follower, 4);
        calls.push(lines.join(","));
        if !progress.more {
            break;
        }
    }
    assert_eq!(calls, ["ab", "", "", "abcdefghi,c"], "4, 4, 4 and 3 bytes");
}

#[test]
fn max_bytes_of_zero_reads_one_byte() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");

    assert_eq!(read(&mut follower, 0), (vec![], ReadProgress { more: true, ..ReadProgress::default() }));
    assert_eq!(read(&mut follower, 0).0, ["a"]);
}

#[test]
fn a_line_that_is_too_long_is_skipped_and_counted_once() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    writer.write(&"x".repeat(MAX_LINE_BYTES));
    writer.write("\n");
    writer.write(&"y".repeat(MAX_LINE_BYTES + 1));
    writer.write("\nb\n");

    let (mut lengths, mut too_long) = (vec![], 0);
    loop {
        let progress = follower.read(100_000, |line| lengths.push(line.len())).unwrap();
        too_long += progress.too_long;
        if !progress.more {
            break;
        }
    }
    assert_eq!((lengths, too_long), (vec![1, MAX_LINE_BYTES, 1], 1));
}

#[test]
fn a_line_that_is_too_long_is_counted_once_across_a_restart() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write(&"x".repeat(MAX_LINE_BYTES + 100));
    assert_eq!(follower.read(2 * MAX_LINE_BYTES, |_| {}).unwrap(), ReadProgress::default(), "the line is not complete");
    follower.save().unwrap();

    let mut follower = writer.follower();
    writer.write("x\na\n");
    let mut lines = 0;
    let progress = follower.read(2 * MAX_LINE_BYTES, |_| lines += 1).unwrap();
    assert_eq!((progress.too_long, lines), (1, 1));
}

#[test]
fn a_last_line_without_newline_that_is_too_long_is_counted_after_a_rotation() {
    let mut writer = LogWriter::new();
    let mut follower = writer.started_follower();
    writer.write(&"x".repeat(MAX_LINE_BYTES + 1));
    writer.rotate_lumberjack();
    writer.write("a\n");

    let (lines, progress) = read(&mut follower, 2 * MAX_LINE_BYTES);
    assert_eq!((lines, progress.too_long), (vec!["a".to_owned()], 1));
}

#[test]
fn a_log_that_is_a_folder_is_an_error_that_names_it() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.rotate_lumberjack();
    fs::remove_file(writer.path("audit.log")).unwrap();
    fs::create_dir(writer.path("audit.log")).unwrap();

    let error = follower.read(100, |_| {}).unwrap_err().to_string();

    assert_eq!(error, format!("cannot read {}: it is not a regular file", writer.path("audit.log").display()));
}

#[test]
fn an_error_loses_no_line() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.write("b\nc");
    writer.rotate_lumberjack();
    fs::remove_file(writer.path("audit.log")).unwrap();
    std::os::unix::fs::symlink("audit.log", writer.path("audit.log")).unwrap();

    let mut lines = vec![];
    let error = follower.read(100, |line| lines.push(line.to_owned())).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot stat {}: ", writer.path("audit.log").display())), "{error}");
    follower.save().unwrap();
    assert_eq!(lines, [b"b"]);

    fs::remove_file(writer.path("audit.log")).unwrap();
    writer.open();
    writer.write("d\n");
    let progress = follower.read(100, |line| lines.push(line.to_owned())).unwrap();
    assert_eq!(lines, [b"b", b"c", b"d"]);
    assert_eq!(progress.lines, 3, "the line that was read before the error is counted now");
}
