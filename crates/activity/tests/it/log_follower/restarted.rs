//! The follower stops, and another one continues.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use caretaker_activity::log_follower::LogFollower;
use proptest::prelude::*;
use rstest::rstest;

use super::NO_LINES;
use super::writer::{LogWriter, read, read_all, read_with_loss};

#[test]
fn the_first_start_reads_the_log_and_skips_files_that_were_rotated_before() {
    let mut writer = LogWriter::new();
    writer.write("a\n");
    writer.rotate_lumberjack();
    writer.write("b\n");

    assert_eq!(read_all(&mut writer.follower()), ["b"]);
}

#[rstest]
fn a_file_that_is_rotated_after_the_first_start_is_read(#[values(true, false)] was_rotated_before: bool) {
    let mut writer = LogWriter::new();
    if was_rotated_before {
        writer.write("a\n");
        writer.rotate_lumberjack();
    }
    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), NO_LINES);
    follower.save().unwrap();

    writer.write("b\n");
    writer.rotate_lumberjack();
    writer.write("c\n");

    assert_eq!(read_all(&mut writer.follower()), ["b", "c"]);
}

#[test]
fn a_restart_continues_after_the_last_line_that_was_read() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\nb\nc");
    assert_eq!(read(&mut follower, 3).0, ["a"]);
    follower.save().unwrap();

    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), ["b"]);
    follower.save().unwrap();

    writer.write("d\n");
    assert_eq!(read_all(&mut writer.follower()), ["cd"]);
}

#[test]
fn after_a_crash_lines_after_the_saved_position_are_read_again() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["b"]);

    writer.write("c\n");

    assert_eq!(read_all(&mut writer.follower()), ["b", "c"]);
}

#[rstest]
#[case::lumberjack(|writer: &mut LogWriter| drop(writer.rotate_lumberjack()))]
#[case::rotate_logrotate(LogWriter::rotate_logrotate)]
#[case::copytruncate(LogWriter::copytruncate)]
fn files_that_are_rotated_between_stop_and_start_are_read(#[case] rotate: fn(&mut LogWriter)) {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read(&mut follower, 2).0, ["a"]);
    follower.save().unwrap();

    for line in ["c\n", "d\n", "e"] {
        writer.write(line);
        rotate(&mut writer);
    }
    writer.write("f\n");

    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), ["b", "c", "d", "e", "f"]);
    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NO_LINES);
}

#[test]
fn the_position_stays_in_a_rotated_file_until_its_successor_has_a_line() {
    let mut writer = LogWriter::new();
    let mut follower = writer.started_follower();
    writer.write("a\nb");
    writer.rotate_lumberjack();
    writer.write("c");
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();

    writer.write("d\n");
    writer.rotate_lumberjack();
    writer.write("e\n");

    assert_eq!(read_all(&mut writer.follower()), ["b", "cd", "e"]);
}

#[test]
fn files_with_the_same_incomplete_first_line_are_distinguished() {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.started_follower();
    for _ in 0..2 {
        writer.write("{");
        writer.rotate_lumberjack();
    }
    writer.write("a\n");
    assert_eq!((read(&mut follower, 1).0, read(&mut follower, 1).0), (vec![], vec!["{".to_owned()]));
    follower.save().unwrap();

    assert_eq!(read_all(&mut writer.follower()), ["{", "a"]);
}

#[rstest]
fn a_deleted_or_compressed_file_is_reported_and_later_files_are_read(#[values(true, false)] is_compressed: bool) {
    let mut writer = LogWriter::with_options(true, true);
    let mut follower = writer.started_follower();
    writer.write("a\n");
    writer.rotate_lumberjack();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);
    follower.save().unwrap();

    let removed = writer.rotate_lumberjack();
    writer.write("c\n");
    writer.rotate_lumberjack();
    writer.write("d\n");
    if is_compressed {
        writer.compress(&removed);
    } else {
        fs::remove_file(removed).unwrap();
    }

    let mut follower = writer.follower();
    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!(lines, ["c", "d"], "no file that is older than the position is read");
    assert!(lost.unwrap().contains("it was deleted, compressed, or truncated without a copy"));
    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NO_LINES, "the loss is reported once");
}

#[test]
fn a_file_with_the_same_modification_time_as_the_deleted_one_is_read() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    let now = SystemTime::now();
    let set = |name: &Path| File::options().write(true).open(name).unwrap().set_modified(now).unwrap();
    writer.write("a\n");
    set(&writer.path("audit.log"));
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();

    let removed = writer.rotate_lumberjack();
    writer.write("b\n");
    set(&writer.rotate_lumberjack());
    fs::remove_file(removed).unwrap();

    let (lines, lost) = read_with_loss(&mut writer.follower());
    assert_eq!((lines, lost.is_some()), (vec!["b".to_owned()], true));
}

#[rstest]
fn a_log_that_became_shorter_is_reported_and_read_from_its_start(#[values(true, false)] restarts: bool) {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);
    follower.save().unwrap();

    fs::write(writer.path("audit.log"), "a\n").unwrap();

    if restarts {
        follower = writer.follower();
    }
    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!((lines, lost.is_some()), (vec!["a".to_owned()], true));
    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NO_LINES);
}

#[test]
fn a_missing_log_does_not_reset_the_position() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read(&mut follower, 2).0, ["a"]);
    follower.save().unwrap();
    fs::rename(writer.path("audit.log"), writer.path("moved")).unwrap();

    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), NO_LINES);
    follower.save().unwrap();

    fs::rename(writer.path("moved"), writer.path("audit.log")).unwrap();
    assert_eq!(read_all(&mut follower), ["b"]);
}

#[rstest]
#[case::empty("")]
#[case::truncated(r#"{"mark":{"start":0,"finger"#)]
#[case::another_file("hello")]
#[case::before_the_first_line(r#"{"mark":{"start":9,"fingerprint":1},"offset":3,"modified":[0,0]}"#)]
#[case::beyond_every_file(r#"{"mark":null,"offset":18446744073709551615,"modified":[0,0]}"#)]
fn an_invalid_position_file_is_reported_and_treated_as_missing(#[case] text: &str) {
    let mut writer = LogWriter::new();
    writer.write("a\n");
    writer.rotate_lumberjack();
    writer.write("b\n");
    fs::write(writer.path("position"), text).unwrap();

    let mut follower = writer.follower();
    let (lines, lost) = read_with_loss(&mut follower);
    assert_eq!(lines, ["b"]);
    assert!(lost.unwrap().starts_with(&format!("position file {} is invalid (", writer.path("position").display())));

    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NO_LINES);
}

#[test]
fn a_position_file_that_cannot_be_read_is_an_error_and_not_a_first_start() {
    let mut writer = LogWriter::new();
    writer.write("a\n");
    fs::create_dir(writer.path("position")).unwrap();

    let mut follower = writer.follower();
    let error = follower.read(100, |_| {}).unwrap_err().to_string();

    assert!(error.starts_with(&format!("cannot read {}: ", writer.path("position").display())), "{error}");
}

#[test]
fn an_unchanged_position_is_not_written() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    let inode = || fs::metadata(writer.path("position")).unwrap().ino();
    follower.save().unwrap();
    assert!(!writer.path("position").exists(), "nothing was read yet");
    assert_eq!(read_all(&mut follower), NO_LINES);

    follower.save().unwrap();
    let first = inode();
    assert_eq!(read_all(&mut follower), NO_LINES);
    follower.save().unwrap();
    assert_eq!(inode(), first);

    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), NO_LINES);
    follower.save().unwrap();
    assert_eq!(inode(), first);

    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NO_LINES);
}

#[test]
fn a_new_position_file_that_a_crash_left_behind_is_replaced() {
    let mut writer = LogWriter::new();
    let mut follower = writer.follower();
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();
    fs::write(writer.path("position.new"), r#"{"mark":nu"#).unwrap();

    let mut follower = writer.follower();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["b"]);
    follower.save().unwrap();
    assert!(!writer.path("position.new").exists());
    assert_eq!(read_all(&mut writer.follower()), NO_LINES);
}

#[test]
fn a_position_that_cannot_be_written_is_written_later() {
    let mut writer = LogWriter::new();
    let folder = writer.path("later");
    let mut follower = LogFollower::new(writer.path("audit.log"), folder.join("position"));
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    let error = follower.save().unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot create {}: ", folder.join("position.new").display())), "{error}");

    fs::create_dir(&folder).unwrap();
    follower.save().unwrap();

    let mut follower = LogFollower::new(writer.path("audit.log"), folder.join("position"));
    assert_eq!(read_all(&mut follower), NO_LINES);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_position_file_and_no_log_panics(
        mark in prop::option::of((any::<u64>(), any::<u64>())),
        offset in prop_oneof![0..20_u64, any::<u64>()],
        modified in any::<(i64, i64)>(),
        log in prop::collection::vec(prop_oneof![Just(0_u8), Just(b'\n'), any::<u8>()], 0..600),
        max_bytes in 0..100_usize,
    ) {
        let writer = LogWriter::new();
        let mark = mark.map_or("null".to_owned(), |(start, fingerprint)| {
            format!(r#"{{"start":{},"fingerprint":{fingerprint}}}"#, start.min(offset))
        });
        let (seconds, nanoseconds) = modified;
        let text = format!(r#"{{"mark":{mark},"offset":{offset},"modified":[{seconds},{nanoseconds}]}}"#);
        fs::write(writer.path("position"), text).unwrap();
        fs::write(writer.path("audit.log"), &log).unwrap();

        let mut follower = writer.follower();
        while read(&mut follower, max_bytes).1.more {}
        follower.save().unwrap();
    }
}
