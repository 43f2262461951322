//! Following a log, whatever happens to it.

#[path = "follow/interleaved.rs"]
mod interleaved;
#[path = "follow/restarted.rs"]
mod restarted;
#[path = "follow/rotated.rs"]
mod rotated;
#[path = "follow/truncated.rs"]
mod truncated;
#[path = "follow/writer.rs"]
mod writer;

use std::fs;

use caretaker_activity::follow::{Follower, MOST_LINE, Progress};
use writer::{Writer, read, read_all};

const NONE: [&str; 0] = [];

#[test]
fn lines_come_as_they_are_written() {
    let mut writer = Writer::new();
    let mut follower = writer.started();

    writer.write("a\nb\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.write("c\n\nd\n");
    assert_eq!(read_all(&mut follower), ["c", "", "d"]);
    assert_eq!(read_all(&mut follower), NONE);
}

#[test]
fn a_log_that_is_not_there_yet_has_no_lines() {
    let writer = Writer::new();
    let (folder, position) = (writer.path("later"), writer.path("position"));
    let mut follower = Follower::new(folder.join("audit.log"), position);
    assert_eq!(read(&mut follower, 100), (vec![], Progress::default()));

    fs::create_dir(&folder).unwrap();
    assert_eq!(read(&mut follower, 100), (vec![], Progress::default()));

    fs::write(folder.join("audit.log"), "a\n").unwrap();
    assert_eq!(read_all(&mut follower), ["a"]);
}

#[test]
fn an_unended_last_line_waits_for_its_newline() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\nb");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.write("c");
    assert_eq!(read_all(&mut follower), NONE);

    writer.write("d\n");
    assert_eq!(read_all(&mut follower), ["bcd"]);
}

#[test]
fn one_call_reads_no_more_than_it_may() {
    let mut writer = Writer::new();
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
fn to_read_nothing_at_all_is_to_read_a_byte() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");

    assert_eq!(read(&mut follower, 0), (vec![], Progress { more: true, ..Progress::default() }));
    assert_eq!(read(&mut follower, 0).0, ["a"]);
}

#[test]
fn a_line_that_is_too_long_is_skipped_and_counted_once() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    writer.write(&"x".repeat(MOST_LINE));
    writer.write("\n");
    writer.write(&"y".repeat(MOST_LINE + 1));
    writer.write("\nb\n");

    let (mut lengths, mut too_long) = (vec![], 0);
    loop {
        let progress = follower.read(100_000, |line| lengths.push(line.len())).unwrap();
        too_long += progress.too_long;
        if !progress.more {
            break;
        }
    }
    assert_eq!((lengths, too_long), (vec![1, MOST_LINE, 1], 1));
}

#[test]
fn a_restart_amid_a_line_that_is_too_long_counts_it_once() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write(&"x".repeat(MOST_LINE + 100));
    assert_eq!(follower.read(2 * MOST_LINE, |_| {}).unwrap(), Progress::default(), "it may still end anywhere");
    follower.save().unwrap();

    let mut follower = writer.follower();
    writer.write("x\na\n");
    let mut lines = 0;
    let progress = follower.read(2 * MOST_LINE, |_| lines += 1).unwrap();
    assert_eq!((progress.too_long, lines), (1, 1));
}

#[test]
fn the_unended_last_line_of_a_rotated_log_may_be_too_long() {
    let mut writer = Writer::new();
    let mut follower = writer.started();
    writer.write(&"x".repeat(MOST_LINE + 1));
    writer.rotate();
    writer.write("a\n");

    let (lines, progress) = read(&mut follower, 2 * MOST_LINE);
    assert_eq!((lines, progress.too_long), (vec!["a".to_owned()], 1));
}

#[test]
fn a_log_that_is_no_file_is_an_error_that_names_it() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.rotate();
    fs::remove_file(writer.path("audit.log")).unwrap();
    fs::create_dir(writer.path("audit.log")).unwrap();

    let error = follower.read(100, |_| {}).unwrap_err().to_string();

    assert_eq!(error, format!("cannot read {}: it is not a file", writer.path("audit.log").display()));
}

#[test]
fn an_error_takes_no_line_away() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.write("b\nc");
    writer.rotate();
    fs::remove_file(writer.path("audit.log")).unwrap();
    std::os::unix::fs::symlink("audit.log", writer.path("audit.log")).unwrap();

    let mut lines = vec![];
    let error = follower.read(100, |line| lines.push(line.to_owned())).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot look at {}: ", writer.path("audit.log").display())), "{error}");
    follower.save().unwrap();
    assert_eq!(lines, [b"b"]);

    fs::remove_file(writer.path("audit.log")).unwrap();
    writer.open();
    writer.write("d\n");
    let progress = follower.read(100, |line| lines.push(line.to_owned())).unwrap();
    assert_eq!(lines, [b"b", b"c", b"d"]);
    assert_eq!(progress.lines, 3, "the one that came before the error is counted now");
}
