//! The log is renamed and made anew.

use std::fs::{self, OpenOptions};
use std::io::Write;

use rstest::rstest;

use crate::NONE;
use crate::writer::{Writer, read_all, read_out};

#[rstest]
#[case::lumberjack(|writer: &mut Writer| drop(writer.rotate()))]
#[case::logrotate(Writer::logrotate)]
fn a_rotated_log_is_read_to_its_end_and_then_what_came_after_it(#[case] rotate: fn(&mut Writer)) {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("0\n");
    assert_eq!(read_all(&mut follower), ["0"]);

    // More than nine: a number is not ordered like a word.
    for line in 1..=12 {
        writer.write(&format!("{line}\n"));
        rotate(&mut writer);
    }
    writer.write("13\n");

    assert_eq!(read_all(&mut follower), (1..=13).map(|line| line.to_string()).collect::<Vec<_>>());
}

#[rstest]
#[case::lumberjack(|writer: &mut Writer| drop(writer.rotate()))]
#[case::logrotate(Writer::logrotate)]
#[case::copytruncate(Writer::copytruncate)]
fn the_log_may_be_rotated_while_lines_are_handed_out(#[case] rotate: fn(&mut Writer)) {
    let mut writer = Writer::new();
    let mut follower = writer.started();
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
    assert_eq!(progress.unwrap().lost, None);
}

#[test]
fn the_times_tell_the_order_whatever_the_names() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.rotate();
    writer.write("b\n");
    writer.logrotate();
    writer.write("c\n");
    writer.rotate();
    writer.write("d\n");
    writer.logrotate();
    writer.write("e\n");

    assert_eq!(read_all(&mut follower), ["b", "c", "d", "e"]);
}

#[test]
fn between_renaming_and_making_anew_there_is_no_log() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.write("b\n");

    writer.rotate();
    fs::remove_file(writer.path("audit.log")).unwrap();
    assert_eq!(read_all(&mut follower), ["b"]);
    assert_eq!(read_all(&mut follower), NONE);

    writer.open();
    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["c"]);
}

#[test]
fn what_is_still_written_to_the_old_file_is_read() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    let old = writer.rotate();
    assert_eq!(read_all(&mut follower), NONE);
    OpenOptions::new().append(true).open(old).unwrap().write_all(b"b\n").unwrap();
    assert_eq!(read_all(&mut follower), ["b"]);

    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["c"]);
}

#[test]
fn an_unended_last_line_is_handed_out_once_another_file_follows() {
    let mut writer = Writer::new();
    let mut follower = writer.started();
    writer.write("a\nb");
    writer.rotate();
    assert_eq!(read_all(&mut follower), ["a"], "somebody may still end it");

    writer.write("c\n");
    assert_eq!(read_all(&mut follower), ["b", "c"]);
}

#[test]
fn a_rotated_log_without_lines_is_passed_over() {
    let mut writer = Writer::new();
    let mut follower = writer.started();
    writer.write("a\n");
    writer.rotate();
    writer.rotate();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["a", "b"]);
}

#[test]
fn what_is_deleted_while_it_is_read_is_read_to_its_end() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.write("b\n");
    fs::remove_file(writer.rotate()).unwrap();
    writer.write("c\n");
    writer.rotate();
    writer.write("d\n");

    let (lines, lost) = read_out(&mut follower);
    assert_eq!(lines, ["b", "c", "d"]);
    assert!(lost.unwrap().contains("may have been deleted or compressed"), "who knows whether it was the only one");
}

#[test]
fn what_is_compressed_while_it_is_read_is_read_to_its_end() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.write("b\n");
    let old = writer.rotate();
    writer.write("c\n");
    writer.compress(&old);

    assert_eq!(read_all(&mut follower), ["b", "c"]);
}

#[rstest]
fn what_is_compressed_before_it_is_read_is_lost(#[values(true, false)] is_first_compressed: bool) {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    let first = writer.rotate();
    writer.write("b\n");
    let second = writer.rotate();
    writer.write("c\n");
    writer.compress(&second);
    if is_first_compressed {
        writer.compress(&first);
    }

    let (lines, lost) = read_out(&mut follower);
    assert_eq!(lines, ["c"]);
    let log = writer.path("audit.log");
    assert_eq!(lost.unwrap(), format!("what came before {} may have been deleted or compressed", log.display()));
}

#[test]
fn while_a_file_is_being_compressed_it_is_there_twice_and_read_once() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    for line in ["b\n", "c\n"] {
        writer.write(line);
        let old = writer.rotate();
        writer.begin_compressing(&old);
    }
    writer.write("d\n");

    assert_eq!(read_all(&mut follower), ["b", "c", "d"]);
}

#[test]
fn what_only_begins_like_the_log_is_not_read() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    writer.rotate();
    for name in ["audit-policy.yaml", "audit.log.swp", "auditor-1.log", "audit-webhook.log", "audit.log.bak"] {
        fs::write(writer.path(name), "no line of the log\n").unwrap();
    }
    fs::create_dir(writer.path("audit.log.1")).unwrap();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["b"]);
}

#[test]
fn a_copy_is_not_read_a_second_time() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);

    writer.copy();
    writer.rotate();
    writer.write("b\n");

    assert_eq!(read_all(&mut follower), ["b"]);
}

#[test]
fn a_copy_that_was_never_finished_is_not_read() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);

    writer.begin_copy();
    writer.go_on_with_copy(2);
    writer.rotate();
    writer.write("c\n");

    assert_eq!(read_all(&mut follower), ["c"]);
}
