//! `testkit test` runs every test of the workspace. Each module of a test program runs in a process of its own: with a
//! cluster of its own, next to the others, because a test mostly waits for its API server. `cargo test` runs the same
//! programs one after the other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use caretaker_testkit::assets::cache_folder;
use caretaker_testkit::harness::ONLY;
use serde_json::Value;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only what has one of these words in its name: a crate, a module (`engine/lease`) or a test
    filter: Vec<String>,
    /// How many processes run at a time
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Run what failed once more, alone, and list what passes then as unstable instead of failed
    #[arg(long)]
    again: bool,
    /// Only these targets, as for cargo test: --test it, or --test node --test containerd
    #[arg(last = true)]
    targets: Vec<String>,
}

/// Tests that run in one process: those of a module, or the unit tests of a target. Doc tests have no program.
#[derive(Clone, Default)]
struct Group {
    name: String,
    program: Option<PathBuf>,
    folder: PathBuf,
    /// True for a program with the main of the test kit, which takes names from a variable.
    own_main: bool,
    tests: Vec<String>,
}

/// A test that has ended: it passed, or there is a reason why it did not.
struct Ended {
    name: String,
    failed: Option<String>,
    skipped: Option<String>,
    seconds: f64,
}

impl Ended {
    fn failed(group: &str, test: &str, why: String) -> Self {
        Self { name: format!("{group}::{test}"), failed: Some(why), skipped: None, seconds: 0.0 }
    }
}

/// Runs the tests. The exit code is 1 if one failed or none ran.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let times_file = cache_folder().join("test-times.json");
    let known = std::fs::read_to_string(&times_file).unwrap_or_default();
    let mut times: BTreeMap<String, u64> = serde_json::from_str(&known).unwrap_or_default();
    let mut groups = groups(&options.filter, &options.targets)?;
    // One that never ran goes first, because it may be long.
    groups.sort_by_key(|group| Reverse(times.get(&group.name).copied().unwrap_or(u64::MAX)));

    let (began, queue, results) = (Instant::now(), Mutex::new(VecDeque::from(groups)), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(group) = next() {
                    let (began, ended) = (Instant::now(), group.run());
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    report(&group.name, &ended, began);
                    results.push((group, ended, began.elapsed().as_secs()));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if options.filter.is_empty() && options.targets.is_empty() {
        times.extend(results.iter().map(|(group, _, seconds)| (group.name.clone(), *seconds)));
        // It decides on the order alone.
        let _ = std::fs::write(&times_file, serde_json::to_vec_pretty(&times)?);
    }
    let mut unstable = Vec::new();
    for (group, ended, _) in results.iter_mut().filter(|_| options.again) {
        for one in ended.iter_mut().filter(|one| one.failed.is_some()) {
            println!("\nOnce more, alone: {}", one.name);
            let name = one.name.strip_prefix(&format!("{}::", group.name)).unwrap_or_default().to_owned();
            let (began, again) = (Instant::now(), Group { tests: vec![name], ..group.clone() }.run());
            report(&group.name, &again, began);
            if again.iter().all(|again| again.failed.is_none()) && one.failed.take().is_some() {
                unstable.push(one.name.clone());
            }
        }
    }

    let mut all: Vec<Ended> = results.into_iter().flat_map(|(_, ended, _)| ended).collect();
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let slowest = all.iter().take(10).map(|one| format!("{:>6.1} s  {}", one.seconds, one.name)).collect();
    let lost: Vec<String> = all.iter().filter(|one| one.failed.is_some()).map(|one| one.name.clone()).collect();
    let (passed, failed, skipped) = counts(&all);
    let unstable_title = "Unstable: failed above, and passed when run once more, alone. Each is a defect to mend";
    for (title, lines) in [("The slowest tests", slowest), (unstable_title, unstable), ("Failed", lost)] {
        if !lines.is_empty() {
            println!("\n{title}:\n  {}", lines.join("\n  "));
        }
    }
    println!("\nThe tests took {:.0?}, {} processes at a time.", began.elapsed(), options.jobs);
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(if passed > 0 && failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the tests of the workspace in the present folder, and returns those with one of these words in their names.
fn groups(words: &[String], targets: &[String]) -> Result<Vec<Group>> {
    let arguments = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let built = cargo().args(arguments).args(targets).stderr(Stdio::inherit()).output().context("starting cargo")?;
    ensure!(built.status.success(), "the tests do not compile");
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let mut groups = BTreeMap::new();
    let doc = Group { name: "doc".to_owned(), folder: ".".into(), ..Group::default() };
    groups.extend((targets.is_empty() && is_wanted("doc")).then(|| (doc.name.clone(), doc)));
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (program, kind, target) = (text("/executable"), text("/target/kind/0"), text("/target/name"));
        if program.is_empty() || message["profile"]["test"] != true {
            continue;
        }
        let folder = Path::new(text("/manifest_path")).parent().unwrap_or(Path::new("."));
        // `path+file:///folder#name@1.0.0`, or without the name where the folder has it.
        let (path, version) = text("/package_id").rsplit_once('#').unwrap_or_default();
        let package = version.split_once('@').map_or(path.rsplit('/').next().unwrap_or(path), |(name, _)| name);
        let listed = Command::new(program).args(["--list", "--format", "terse"]).current_dir(folder).output()?;
        ensure!(listed.status.success(), "{program} does not list its tests");
        for test in String::from_utf8_lossy(&listed.stdout).lines().filter_map(|line| line.strip_suffix(": test")) {
            let name = match (kind, test.split_once("::")) {
                ("test", Some((module, _))) if target == "it" => format!("{package}/{module}"),
                ("test", Some((module, _))) => format!("{package}/{target}/{module}"),
                ("test", None) => format!("{package}/{target}"),
                ("bin", _) => format!("{package}/bin-{target}"),
                (kind, _) => format!("{package}/{kind}"),
            };
            if is_wanted(&format!("{name}::{test}")) {
                let group = groups.entry(name.clone()).or_insert_with(|| Group { name, ..Group::default() });
                (group.program, group.folder) = (Some(program.into()), folder.into());
                group.own_main = ["node", "containerd"].contains(&target);
                group.tests.push(test.to_owned());
            }
        }
    }
    ensure!(!groups.is_empty(), "no test has {} in its name", words.join(" or "));
    Ok(groups.into_values().collect())
}

/// The cargo that started this program, or the one on the path.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

impl Group {
    fn run(&self) -> Vec<Ended> {
        self.try_run().unwrap_or_else(|error| vec![Ended::failed(&self.name, "(the program)", format!("{error:#}"))])
    }

    fn try_run(&self) -> Result<Vec<Ended>> {
        let mut command = self.program.as_ref().map_or_else(cargo, Command::new);
        match (&self.program, self.own_main) {
            (None, _) => command.args(["test", "--workspace", "--doc"]),
            (_, true) => command.env(ONLY, self.tests.join("\n")),
            (_, false) => command.arg("--exact").args(&self.tests),
        };
        if self.program.is_some() {
            // JSON is unstable in Rust's test harness. The variable lets a stable one print it.
            command.args(["-Z", "unstable-options", "--format", "json"]).env("RUSTC_BOOTSTRAP", "1");
            command.env("CARGO_MANIFEST_DIR", &self.folder);
        }
        let mut errors = tempfile::tempfile()?;
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        let mut child = command.spawn().with_context(|| format!("starting {}", self.name))?;
        let (mut ended, mut began, mut output) = (Vec::new(), BTreeMap::new(), String::new());
        for line in BufReader::new(child.stdout.take().context("piped")?).lines().map_while(Result::ok) {
            // A test may have printed something on the same line.
            let (text, json) = line.split_at(line.find(r#"{ "type": "#).unwrap_or(line.len()));
            match serde_json::from_str::<Value>(json) {
                Ok(event) if event["type"] == "test" => ended.extend(self.event(&event, &mut began)),
                Ok(_) => {}
                Err(_) => ended.extend(self.doc_test(text)),
            }
            output += &format!("{text}{}", if text.is_empty() { "" } else { "\n" });
        }
        let (status, mut bytes) = (child.wait()?, Vec::new());
        errors.rewind()?;
        errors.read_to_end(&mut bytes)?;
        output += &String::from_utf8_lossy(&bytes);
        let has_ended = |test: &str| ended.iter().any(|one: &Ended| one.name == format!("{}::{test}", self.name));
        let mut lost: Vec<&str> = self.tests.iter().map(|test| &**test).filter(|test| !has_ended(test)).collect();
        if !status.success() && lost.is_empty() && ended.iter().all(|one| one.failed.is_none()) {
            lost.push("(the program)");
        }
        let why = format!("the program ended with {status}, and this test has not\n{output}");
        ended.extend(lost.into_iter().map(|test| Ended::failed(&self.name, test, why.clone())));
        Ok(ended)
    }

    /// The test that an event ends. The test kit gives the reason of a skipped test in an event of its own.
    fn event(&self, event: &Value, began: &mut BTreeMap<String, (Instant, String)>) -> Option<Ended> {
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let (name, what, message) = (text("name"), text("event"), text("message"));
        if !["ok", "failed", "ignored"].contains(&what.as_str()) {
            // It starts, has a reason to be skipped, or takes longer than a minute.
            let started = began.entry(name).or_insert_with(|| (Instant::now(), String::new()));
            started.1 += &message;
            return None;
        }
        let (at, reason) = began.remove(&name).unwrap_or_else(|| (Instant::now(), String::new()));
        let failed = (what == "failed").then(|| format!("{}{message}", text("stdout")));
        let skipped = (what == "ignored").then_some(if message.is_empty() { reason } else { message });
        Some(Ended { name: format!("{}::{name}", self.name), failed, skipped, seconds: at.elapsed().as_secs_f64() })
    }

    /// The doc test that a line for people is about.
    fn doc_test(&self, line: &str) -> Option<Ended> {
        let (test, outcome) = line.strip_prefix("test ").filter(|_| self.program.is_none())?.rsplit_once(" ... ")?;
        let failed = (outcome == "FAILED").then(|| "cargo test --doc shows why".to_owned());
        Some(Ended { failed, ..Ended::failed(&self.name, test, String::new()) })
    }
}

fn counts(ended: &[Ended]) -> (usize, usize, usize) {
    let failed = ended.iter().filter(|one| one.failed.is_some()).count();
    let skipped = ended.iter().filter(|one| one.skipped.is_some()).count();
    (ended.len() - failed - skipped, failed, skipped)
}

/// Prints a line for a process that has ended, and what failed or was skipped in it.
fn report(group: &str, ended: &[Ended], began: Instant) {
    let (passed, failed, skipped) = counts(ended);
    let (mark, seconds) = (if failed == 0 { "ok" } else { "FAILED" }, began.elapsed().as_secs_f64());
    println!("{mark:<6}  {seconds:>6.1} s  {group}: {passed} passed, {failed} failed, {skipped} skipped");
    for Ended { name, failed, skipped, .. } in ended {
        if let Some(why) = failed.as_ref().or(skipped.as_ref()) {
            let what = if failed.is_some() { "FAILED" } else { "skipped" };
            println!("---- {what} {name}: {}", why.trim_end());
        }
    }
}
