//! Shims: the processes that look after tasks. One serves a container, or a whole group of them: then it has the ID of the
//! first, and lives as long as one of them has a task.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::holders::has_ended;
use super::life::living_parent;
use super::{Host, announce};

/// The file in a bundle with the socket of its shim, by containerd 1 and the runtimes of its time.
const ADDRESS: &str = "address";
/// The same by containerd 2, as JSON.
const BOOTSTRAP: &str = "bootstrap.json";
/// The flag of a socket that listens, in `/proc/net/unix`.
const LISTENS: &str = "00010000";

/// A shim process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shim {
    /// The container it was started for.
    pub id: String,
    /// Its process.
    pub pid: u32,
}

/// Whom a shim serves beside the container it was started for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShimUse {
    /// Nobody.
    Alone,
    /// This container too: it belongs to a group.
    Shared(String),
    /// Nobody that is known, but it may: why.
    Unknown(String),
}

impl Host {
    /// Every shim of the namespace. What ends while this reads is left out.
    #[must_use]
    pub fn shims(&self) -> Vec<Shim> {
        let all = self.shim_programs().into_iter();
        all.filter_map(|(pid, program)| (program.task == ShimTask::Serve).then_some(Shim { id: program.id, pid }))
            .collect()
    }

    /// The containers that a shim serves or deletes. `delete` is a command that containerd runs when a shim is gone; it ends
    /// by itself, and until then it works in the bundle.
    #[must_use]
    pub fn shim_ids(&self) -> BTreeSet<String> {
        let all = self.shim_programs().into_iter();
        all.filter_map(|(_, program)| (program.task != ShimTask::Start).then_some(program.id)).collect()
    }

    /// True if containerd has a shim delete this container at this moment. Whoever may start processes of the node can show
    /// one that never ends, so that no caller waits for it without a limit.
    #[must_use]
    pub fn is_being_deleted(&self, id: &str) -> bool {
        self.shim_programs().iter().any(|(_, program)| program.task == ShimTask::Delete && program.id == id)
    }

    fn shim_programs(&self) -> Vec<(u32, ShimProgram)> {
        let pids = self.pids().into_iter();
        pids.filter_map(|pid| Some((pid, self.shim_program_of(pid)?))).collect()
    }

    /// The program of a runtime that a process runs. A process of a container may have any command line; but it is in a PID
    /// namespace of its own, in which no shim of this node is.
    fn shim_program_of(&self, pid: u32) -> Option<ShimProgram> {
        let program = self.shim_program(&self.command_line(pid))?;
        let namespace = |pid: &str| std::fs::read_link(self.proc.join(pid).join("ns/pid")).ok();
        // What cannot be read counts as a shim: it keeps what it may serve.
        let is_elsewhere = namespace(&pid.to_string()).zip(namespace("self")).is_some_and(|(its, own)| its != own);
        (!is_elsewhere).then_some(program)
    }

    /// The command line of a process; empty if it has ended.
    fn command_line(&self, pid: u32) -> Vec<u8> {
        std::fs::read(self.proc.join(pid.to_string()).join("cmdline")).unwrap_or_default()
    }

    /// True if the process still is a shim of that container.
    #[must_use]
    pub fn is_shim(&self, shim: &Shim) -> bool {
        let program = self.shim_program_of(shim.pid);
        program.is_some_and(|program| program.task == ShimTask::Serve && program.id == shim.id)
    }

    /// Whom a shim serves beside its own container, which has no task. The bundle of every container that it serves names
    /// the socket that it listens on.
    #[must_use]
    pub fn shim_use(&self, shim: &Shim) -> ShimUse {
        let sockets = match self.listening(shim.pid) {
            Ok(sockets) => sockets,
            Err(error) => return ShimUse::Unknown(format!("the sockets of its shim cannot be read: {error}")),
        };
        for id in self.bundle_ids().into_iter().filter(|id| *id != shim.id) {
            if self.shim_socket(&id).is_some_and(|socket| sockets.contains(&socket)) {
                return ShimUse::Shared(id);
            }
        }
        let is_child = |pid: &u32| {
            let stat = std::fs::read_to_string(self.proc.join(pid.to_string()).join("stat")).unwrap_or_default();
            living_parent(&stat) == Some(shim.pid)
        };
        match self.pids().into_iter().find(is_child) {
            Some(pid) => ShimUse::Unknown(format!("process {pid} is a child of its shim")),
            None => ShimUse::Alone,
        }
    }

    /// The sockets that a process listens on; none if it has ended.
    fn listening(&self, pid: u32) -> std::io::Result<BTreeSet<PathBuf>> {
        let folder = self.proc.join(pid.to_string());
        let gone = |error: std::io::Error| {
            let is_gone = error.kind() == ErrorKind::NotFound || has_ended(&error);
            if is_gone { Ok(()) } else { Err(error) }
        };
        let mut own = BTreeSet::new();
        match std::fs::read_dir(folder.join("fd")) {
            Ok(entries) => {
                let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
                own.extend(links.filter_map(|link| {
                    let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
                    Some(inode.to_owned())
                }));
            }
            Err(error) => gone(error)?,
        }
        match std::fs::read_to_string(folder.join("net/unix")) {
            Ok(table) => Ok(table.lines().filter_map(|line| listening_path(line, &own)).collect()),
            Err(error) => gone(error).map(|()| BTreeSet::new()),
        }
    }

    /// The socket of the shim that serves a container, by its bundle.
    fn shim_socket(&self, id: &str) -> Option<PathBuf> {
        #[derive(serde::Deserialize)]
        struct Bootstrap {
            address: String,
        }
        let read = |file| std::fs::read_to_string(self.bundle(id).join(file)).ok();
        let bootstrap = || serde_json::from_str(&read(BOOTSTRAP)?).ok().map(|found: Bootstrap| found.address);
        let address = bootstrap().or_else(|| read(ADDRESS))?;
        let path = address.trim();
        Some(path.strip_prefix("unix://").unwrap_or(path).into())
    }

    /// Ends a shim that has no task any more. The process is held by a descriptor before it is looked at, so that no other
    /// process can get its number meanwhile. False if it is not a shim of that container any more.
    pub fn end_shim(&self, shim: &Shim) -> std::io::Result<bool> {
        let pid = i32::try_from(shim.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { return Ok(false) };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if !self.is_shim(shim) {
            return Ok(false);
        }
        announce("ending shim", format_args!("{} of {}", shim.pid, shim.id));
        match pidfd_send_signal(process, Signal::KILL) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The path of a socket that listens, if the process has it open: `…: 00000002 00000000 00010000 0001 01 107575 /run/s`.
fn listening_path(line: &str, own: &BTreeSet<String>) -> Option<PathBuf> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [_, _, _, LISTENS, _, _, inode, path] if own.contains(*inode) => Some(path.into()),
        _ => None,
    }
}

/// What a program of a runtime was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShimTask {
    /// To look after tasks, until the last of them is deleted.
    Serve,
    /// To start a shim; it ends by itself.
    Start,
    /// To remove what a shim that is gone has left behind; it ends by itself.
    Delete,
}

/// A process that runs the program of a runtime.
#[derive(Debug, PartialEq, Eq)]
struct ShimProgram {
    /// The container it was started for.
    id: String,
    task: ShimTask,
}

/// The flags of a shim without a value.
const SWITCHES: [&str; 4] = ["debug", "info", "v", "version"];

impl Host {
    /// By its command line: `containerd-shim-runc-v2 -namespace k8s.io -id sb-1 …`. `None` for any other program, for one of
    /// another containerd namespace, and for one that deletes what is not the bundle of its container.
    fn shim_program(&self, command_line: &[u8]) -> Option<ShimProgram> {
        let line = command_line.strip_suffix(b"\0").unwrap_or(command_line);
        let mut words = line.split(|b| *b == 0).map(|word| std::str::from_utf8(word).unwrap_or_default());
        let program = Path::new(words.next()?).file_name()?.to_str()?;
        if !program.starts_with("containerd-shim") {
            return None;
        }
        let (flags, command) = flags_and_command(words);
        let value = |flag: &str| flags.get(flag).copied().filter(|value| !value.is_empty());
        if value("namespace") != Some(&self.namespace) {
            return None;
        }
        let id = value("id")?.to_owned();
        let task = match command {
            Some("delete") if value("bundle").map(Path::new) == Some(&self.bundle(&id)) => ShimTask::Delete,
            Some("delete") => return None,
            Some("start") => ShimTask::Start,
            _ => ShimTask::Serve,
        };
        Some(ShimProgram { id, task })
    }
}

/// Flags with their values, as Go reads them, and the last word if it is a command: neither a flag nor the value of one.
fn flags_and_command<'w>(mut words: impl Iterator<Item = &'w str>) -> (BTreeMap<&'w str, &'w str>, Option<&'w str>) {
    let (mut flags, mut command) = (BTreeMap::new(), None);
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            command = Some(word);
            continue;
        };
        command = None;
        match flag.split_once('=') {
            Some((name, value)) => _ = flags.insert(name, value),
            None if SWITCHES.contains(&flag) => {}
            None => _ = flags.insert(flag, words.next().unwrap_or_default()),
        }
    }
    (flags, command)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SHIM: &str = "containerd-shim-runc-v2 -namespace k8s.io -id sb-1";

    #[rstest::rstest]
    #[case::serves("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id sb-1 -address /s", Some(ShimTask::Serve))]
    #[case::serves_with_logs(
        "containerd-shim-runc-v2 -namespace k8s.io -id sb-1 -address /s -debug",
        Some(ShimTask::Serve)
    )]
    #[case::in_other_forms("containerd-shim-runc-v2 --namespace=k8s.io --debug --id sb-1", Some(ShimTask::Serve))]
    #[case::of_another_namespace("containerd-shim-runc-v2 -namespace moby -id sb-1", None)]
    #[case::another_program("sleep -namespace k8s.io -id sb-1", None)]
    #[case::without_an_id("containerd-shim -namespace k8s.io", None)]
    #[case::with_an_empty_id("containerd-shim -namespace k8s.io -id", None)]
    #[case::nothing("", None)]
    #[case::starts("containerd-shim -namespace k8s.io -id sb-1 start", Some(ShimTask::Start))]
    #[case::starts_with_logs("containerd-shim -namespace k8s.io -id sb-1 -debug start", Some(ShimTask::Start))]
    #[case::deletes("containerd-shim -namespace k8s.io -id sb-1 -bundle BUNDLES/sb-1 delete", Some(ShimTask::Delete))]
    #[case::deletes_with_logs(
        "containerd-shim -namespace k8s.io -id sb-1 -bundle BUNDLES/sb-1 -debug delete",
        Some(ShimTask::Delete)
    )]
    #[case::delete_is_a_value(
        "containerd-shim -namespace k8s.io -id sb-1 -bundle BUNDLES/sb-1 -address delete",
        Some(ShimTask::Serve)
    )]
    #[case::delete_is_not_the_last_word(
        "containerd-shim -namespace k8s.io -id sb-1 delete -bundle BUNDLES/sb-1",
        Some(ShimTask::Serve)
    )]
    #[case::deletes_without_a_bundle("containerd-shim -namespace k8s.io -id sb-1 delete", None)]
    #[case::deletes_the_bundle_of_another(
        "containerd-shim -namespace k8s.io -id sb-1 -bundle BUNDLES/sb-10 delete",
        None
    )]
    #[case::deletes_a_bundle_elsewhere("containerd-shim -namespace k8s.io -id sb-1 -bundle /tmp/sb-1 delete", None)]
    fn a_shim_is_known_by_its_flags_and_its_last_word(#[case] line: &str, #[case] task: Option<ShimTask>) {
        let host = Host::default();
        let line = line.replace("BUNDLES", host.bundles().to_str().unwrap()).replace(' ', "\0");

        // The kernel ends every word with a zero.
        for line in [line.clone(), line + "\0"] {
            let found = host.shim_program(line.as_bytes());
            assert_eq!(found, task.map(|task| ShimProgram { id: "sb-1".to_owned(), task }), "{line:?}");
        }
    }

    #[test]
    fn a_container_may_be_named_like_a_command() {
        for id in ["delete", "start"] {
            let line = format!("containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0{id}\0");

            let found = Host::default().shim_program(line.as_bytes());

            assert_eq!(found, Some(ShimProgram { id: id.to_owned(), task: ShimTask::Serve }));
        }
    }

    #[test]
    fn a_container_that_containerd_deletes_has_a_shim_that_nobody_ends() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { proc: folder.path().to_owned(), ..Host::default() };
        let delete = format!(" -bundle {} delete", host.bundle("sb-1").display());
        for (pid, id, rest) in [(7, "sb-1", delete.as_str()), (8, "sb-2", ""), (9, "sb-3", " start")] {
            let line = SHIM.replace("sb-1", id) + rest;
            fs::create_dir_all(host.proc.join(pid.to_string())).unwrap();
            fs::write(host.proc.join(pid.to_string()).join("cmdline"), line.replace(' ', "\0")).unwrap();
        }

        assert_eq!(host.shims(), [Shim { id: "sb-2".into(), pid: 8 }]);
        assert_eq!(host.shim_ids(), ["sb-1", "sb-2"].map(str::to_owned).into());
        assert_eq!(["sb-1", "sb-2", "sb-3"].map(|id| host.is_being_deleted(id)), [true, false, false]);
        assert!(!host.is_shim(&Shim { id: "sb-1".into(), pid: 7 }));
    }

    #[test]
    fn a_process_of_a_container_is_no_shim_whatever_its_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { proc: folder.path().to_owned(), ..Host::default() };
        for (pid, namespace) in [("self", Some("pid:[1]")), ("7", Some("pid:[1]")), ("8", Some("pid:[2]")), ("9", None)]
        {
            fs::create_dir_all(host.proc.join(pid).join("ns")).unwrap();
            fs::write(host.proc.join(pid).join("cmdline"), SHIM.replace(' ', "\0")).unwrap();
            if let Some(namespace) = namespace {
                std::os::unix::fs::symlink(namespace, host.proc.join(pid).join("ns/pid")).unwrap();
            }
        }

        let mut found: Vec<u32> = host.shims().iter().map(|shim| shim.pid).collect();
        found.sort_unstable();

        assert_eq!(found, [7, 9], "9 has ended, or nobody knows");
        assert!(!host.is_shim(&Shim { id: "sb-1".into(), pid: 8 }), "nobody ends it");
    }

    /// The shim of `sb-1` listens on `/run/s/1`, and another process on `/run/s/2`.
    #[rstest::rstest]
    #[case::no_other_container(&[], "Alone")]
    #[case::its_own_bundle(&[("bundle/sb-1/address", "unix:///run/s/1")], "Alone")]
    #[case::containerd_1(&[("bundle/sb-2/address", "unix:///run/s/1")], "Shared(\"sb-2\")")]
    #[case::containerd_2(&[("bundle/sb-2/bootstrap.json", r#"{"version":3,"address":"unix:///run/s/1"}"#)], "Shared(\"sb-2\")")]
    #[case::another_shim(&[("bundle/sb-2/address", "unix:///run/s/2")], "Alone")]
    #[case::a_bundle_without_an_address(&[("bundle/sb-2/config.json", "{}")], "Alone")]
    #[case::a_child(&[("proc/8/stat", "8 (sleep) S 7 8")], "Unknown(\"process 8 is a child of its shim\")")]
    #[case::a_child_that_has_ended(&[("proc/8/stat", "8 (sleep) Z 7 8")], "Alone")]
    fn a_shim_serves(#[case] files: &[(&str, &str)], #[case] expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { proc: folder.path().join("proc"), state: folder.path().join("state"), ..Host::default() };
        let table = "Num RefCount Protocol Flags Type St Inode Path
            0: 00000002 00000000 00010000 0001 01 11 /run/s/1
            0: 00000003 00000000 00000000 0001 03 12 /run/s/3
            0: 00000002 00000000 00010000 0001 01 13 /run/s/2";
        for (file, text) in [("proc/7/net/unix", table)].iter().chain(files) {
            let path = match file.strip_prefix("bundle/") {
                Some(rest) => host.bundles().join(rest),
                None => folder.path().join(file),
            };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(host.proc.join("7/fd")).unwrap();
        for (number, inode) in [("3", "socket:[11]"), ("4", "socket:[12]"), ("5", "pipe:[13]")] {
            std::os::unix::fs::symlink(inode, host.proc.join("7/fd").join(number)).unwrap();
        }

        let found = host.shim_use(&Shim { id: "sb-1".into(), pid: 7 });

        assert_eq!(format!("{found:?}"), expected);
    }
}
