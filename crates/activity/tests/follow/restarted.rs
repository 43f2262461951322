//! The follower ends and another one goes on.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use caretaker_activity::follow::Follower;
use proptest::prelude::*;
use rstest::rstest;

use crate::NONE;
use crate::writer::{Writer, read, read_all, read_out};

#[test]
fn the_first_start_reads_the_log_and_not_what_was_rotated_before() {
    let mut writer = Writer::new();
    writer.write("a\n");
    writer.rotate();
    writer.write("b\n");

    assert_eq!(read_all(&mut writer.follower()), ["b"]);
}

#[rstest]
fn what_is_rotated_after_the_first_start_is_read(#[values(true, false)] was_rotated_before: bool) {
    let mut writer = Writer::new();
    if was_rotated_before {
        writer.write("a\n");
        writer.rotate();
    }
    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), NONE);
    follower.save().unwrap();

    writer.write("b\n");
    writer.rotate();
    writer.write("c\n");

    assert_eq!(read_all(&mut writer.follower()), ["b", "c"]);
}

#[test]
fn a_restart_goes_on_after_the_last_line_that_was_read() {
    let mut writer = Writer::new();
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
fn after_a_crash_what_was_not_saved_comes_again() {
    let mut writer = Writer::new();
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
#[case::lumberjack(|writer: &mut Writer| drop(writer.rotate()))]
#[case::logrotate(Writer::logrotate)]
#[case::copytruncate(Writer::copytruncate)]
fn what_was_rotated_in_between_is_found_again(#[case] rotate: fn(&mut Writer)) {
    let mut writer = Writer::new();
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
    assert_eq!(read_all(&mut writer.follower()), NONE);
}

#[test]
fn the_place_stays_in_a_rotated_log_until_the_next_one_has_a_line() {
    let mut writer = Writer::new();
    let mut follower = writer.started();
    writer.write("a\nb");
    writer.rotate();
    writer.write("c");
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();

    writer.write("d\n");
    writer.rotate();
    writer.write("e\n");

    assert_eq!(read_all(&mut writer.follower()), ["b", "cd", "e"]);
}

#[test]
fn torn_lines_that_look_the_same_are_told_apart() {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.started();
    for _ in 0..2 {
        writer.write("{");
        writer.rotate();
    }
    writer.write("a\n");
    assert_eq!((read(&mut follower, 1).0, read(&mut follower, 1).0), (vec![], vec!["{".to_owned()]));
    follower.save().unwrap();

    assert_eq!(read_all(&mut writer.follower()), ["{", "a"]);
}

#[rstest]
fn what_is_gone_is_lost_and_what_came_after_it_is_read(#[values(true, false)] is_compressed: bool) {
    let mut writer = Writer::with(true, true);
    let mut follower = writer.started();
    writer.write("a\n");
    writer.rotate();
    writer.write("b\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);
    follower.save().unwrap();

    let gone = writer.rotate();
    writer.write("c\n");
    writer.rotate();
    writer.write("d\n");
    if is_compressed {
        writer.compress(&gone);
    } else {
        fs::remove_file(gone).unwrap();
    }

    let mut follower = writer.follower();
    let (lines, lost) = read_out(&mut follower);
    assert_eq!(lines, ["c", "d"], "and nothing that is older than what was read");
    assert!(lost.unwrap().contains("it was deleted, compressed, or truncated without a copy"));
    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NONE, "it is said once");
}

#[test]
fn what_was_written_at_the_same_time_as_what_is_gone_is_read() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    let now = SystemTime::now();
    let set = |name: &Path| File::options().write(true).open(name).unwrap().set_modified(now).unwrap();
    writer.write("a\n");
    set(&writer.path("audit.log"));
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();

    let gone = writer.rotate();
    writer.write("b\n");
    set(&writer.rotate());
    fs::remove_file(gone).unwrap();

    let (lines, lost) = read_out(&mut writer.follower());
    assert_eq!((lines, lost.is_some()), (vec!["b".to_owned()], true));
}

#[rstest]
fn a_log_that_lost_its_end_is_read_again(#[values(true, false)] restarts: bool) {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read_all(&mut follower), ["a", "b"]);
    follower.save().unwrap();

    fs::write(writer.path("audit.log"), "a\n").unwrap();

    if restarts {
        follower = writer.follower();
    }
    let (lines, lost) = read_out(&mut follower);
    assert_eq!((lines, lost.is_some()), (vec!["a".to_owned()], true));
    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NONE);
}

#[test]
fn nothing_is_given_up_while_the_folder_is_not_there() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    writer.write("a\nb\n");
    assert_eq!(read(&mut follower, 2).0, ["a"]);
    follower.save().unwrap();
    fs::rename(writer.path("audit.log"), writer.path("elsewhere")).unwrap();

    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), NONE);
    follower.save().unwrap();

    fs::rename(writer.path("elsewhere"), writer.path("audit.log")).unwrap();
    assert_eq!(read_all(&mut follower), ["b"]);
}

#[rstest]
#[case::empty("")]
#[case::cut_off(r#"{"mark":{"start":0,"finger"#)]
#[case::not_its_own("hello")]
#[case::before_the_first_line(r#"{"mark":{"start":9,"fingerprint":1},"offset":3,"modified":[0,0]}"#)]
#[case::beyond_every_file(r#"{"mark":null,"offset":18446744073709551615,"modified":[0,0]}"#)]
fn a_broken_position_is_as_good_as_none_and_is_reported(#[case] text: &str) {
    let mut writer = Writer::new();
    writer.write("a\n");
    writer.rotate();
    writer.write("b\n");
    fs::write(writer.path("position"), text).unwrap();

    let mut follower = writer.follower();
    let (lines, lost) = read_out(&mut follower);
    assert_eq!(lines, ["b"]);
    assert!(lost.unwrap().starts_with(&format!("{} is broken (", writer.path("position").display())));

    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NONE);
}

#[test]
fn a_position_that_cannot_be_read_is_an_error_and_not_a_first_start() {
    let mut writer = Writer::new();
    writer.write("a\n");
    fs::create_dir(writer.path("position")).unwrap();

    let mut follower = writer.follower();
    let error = follower.read(100, |_| {}).unwrap_err().to_string();

    assert!(error.starts_with(&format!("cannot read {}: ", writer.path("position").display())), "{error}");
}

#[test]
fn only_a_new_place_is_written() {
    let mut writer = Writer::new();
    let mut follower = writer.follower();
    let inode = || fs::metadata(writer.path("position")).unwrap().ino();
    follower.save().unwrap();
    assert!(!writer.path("position").exists(), "nothing was looked at");
    assert_eq!(read_all(&mut follower), NONE);

    follower.save().unwrap();
    let first = inode();
    assert_eq!(read_all(&mut follower), NONE);
    follower.save().unwrap();
    assert_eq!(inode(), first);

    let mut follower = writer.follower();
    assert_eq!(read_all(&mut follower), NONE);
    follower.save().unwrap();
    assert_eq!(inode(), first);

    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    follower.save().unwrap();
    assert_eq!(read_all(&mut writer.follower()), NONE);
}

#[test]
fn what_a_crash_left_aside_is_no_place() {
    let mut writer = Writer::new();
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
    assert_eq!(read_all(&mut writer.follower()), NONE);
}

#[test]
fn a_place_that_cannot_be_written_is_written_later() {
    let mut writer = Writer::new();
    let folder = writer.path("later");
    let mut follower = Follower::new(writer.path("audit.log"), folder.join("position"));
    writer.write("a\n");
    assert_eq!(read_all(&mut follower), ["a"]);
    let error = follower.save().unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot create {}: ", folder.join("position.new").display())), "{error}");

    fs::create_dir(&folder).unwrap();
    follower.save().unwrap();

    let mut follower = Follower::new(writer.path("audit.log"), folder.join("position"));
    assert_eq!(read_all(&mut follower), NONE);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_position_and_no_log_make_it_panic(
        mark in prop::option::of((any::<u64>(), any::<u64>())),
        offset in prop_oneof![0..20_u64, any::<u64>()],
        modified in any::<(i64, i64)>(),
        log in prop::collection::vec(prop_oneof![Just(0_u8), Just(b'\n'), any::<u8>()], 0..600),
        most in 0..100_usize,
    ) {
        let writer = Writer::new();
        let mark = mark.map_or("null".to_owned(), |(start, fingerprint)| {
            format!(r#"{{"start":{},"fingerprint":{fingerprint}}}"#, start.min(offset))
        });
        let (seconds, nanoseconds) = modified;
        let text = format!(r#"{{"mark":{mark},"offset":{offset},"modified":[{seconds},{nanoseconds}]}}"#);
        fs::write(writer.path("position"), text).unwrap();
        fs::write(writer.path("audit.log"), &log).unwrap();

        let mut follower = writer.follower();
        while read(&mut follower, most).1.more {}
        follower.save().unwrap();
    }
}
