//! Shows the board: as a live view in a terminal, as plain lines elsewhere.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;

use super::board::{Board, Said, Speaker, State};
use super::frame::{ansi, frame, time_to};
use super::svg::svg;

/// Often enough for seconds that are counted down.
const REDRAW: Duration = Duration::from_millis(200);
/// How often a picture is recorded.
const RECORD: Duration = Duration::from_secs(1);
/// The size of recorded pictures, and of a terminal that does not say its own.
const SIZE: (usize, usize) = (80, 24);

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A thread that shows the board until it is stopped or dropped.
///
/// It is a thread and not a task: it goes on while a scene waits for a program.
pub(super) struct Screen {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Screen {
    /// Starts to show. With `record`, a picture a second goes into that folder as well.
    pub(super) fn start(board: Arc<Board>, record: Option<PathBuf>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let live = std::io::stdout().is_terminal();
        let thread = std::thread::spawn(move || {
            let mut shown = Shown { live, record, ..Shown::default() };
            if live {
                put(ENTER);
            }
            while !seen.load(Ordering::Relaxed) {
                shown.show(&board);
                std::thread::sleep(REDRAW);
            }
            shown.show(&board);
            if live {
                put(LEAVE);
            }
        });
        Self { ended, thread: Some(thread) }
    }

    /// Shows the last state and gives the terminal back. Called twice it does nothing.
    pub(super) fn stop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Default)]
struct Shown {
    live: bool,
    record: Option<PathBuf>,
    /// How many lines were printed.
    lines: usize,
    /// What was announced last, for each scene.
    announced: Vec<String>,
    pictures: usize,
    pictured: Option<Instant>,
    size: Option<((usize, usize), Instant)>,
}

impl Shown {
    fn show(&mut self, board: &Board) {
        let state = board.state().clone();
        let now = Timestamp::now();
        if self.live {
            let (width, height) = self.size();
            put(&ansi(&frame(&state, now, width, height)));
        } else {
            self.print(&state, now);
        }
        if self.record.is_some() && self.pictured.is_none_or(|at| at.elapsed() >= RECORD) {
            self.pictured = Some(Instant::now());
            self.picture(&state, now);
        }
    }

    /// Prints what is new.
    fn print(&mut self, state: &State, now: Timestamp) {
        for said in &state.said[self.lines..] {
            put(&plain(said));
        }
        self.lines = state.said.len();
        self.announced.resize(state.scenes.len(), String::new());
        for (scene, announced) in state.scenes.iter().zip(&mut self.announced) {
            let Some(next) = scene.next.as_ref().filter(|next| next.at > now) else { continue };
            if *announced != next.what {
                announced.clone_from(&next.what);
                let (name, in_time) = (scene.keeper.name(), time_to(next, now));
                let at = state.began.elapsed().as_secs_f64();
                put(&format!("{at:>6.1} s  {name}: next is {} {in_time}; it sees {}\n", next.what, scene.sees));
            }
        }
    }

    fn picture(&mut self, state: &State, now: Timestamp) {
        let Some(folder) = &self.record else { return };
        let path = folder.join(format!("{:03}.svg", self.pictures));
        self.pictures += 1;
        let (width, height) = SIZE;
        let written =
            fs::create_dir_all(folder).and_then(|()| fs::write(&path, svg(&frame(state, now, width, height), width)));
        if let Err(error) = written {
            eprintln!("testkit: {}: {error}", path.display());
            self.record = None;
        }
    }

    /// The size of the terminal. It is asked for once a second, as people change it.
    fn size(&mut self) -> (usize, usize) {
        if let Some((size, at)) = self.size
            && at.elapsed() < Duration::from_secs(1)
        {
            return size;
        }
        let size = terminal_size().unwrap_or(SIZE);
        self.size = Some((size, Instant::now()));
        size
    }
}

/// Columns and rows, as `stty` says: it looks at the terminal on standard input.
fn terminal_size() -> Option<(usize, usize)> {
    let output = Command::new("stty").arg("size").stdin(Stdio::inherit()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (rows, columns) = text.trim().split_once(' ')?;
    let size = (columns.parse().ok()?, rows.parse().ok()?);
    (size != (0, 0)).then_some(size)
}

/// A line for people who read a log.
pub(super) fn plain(said: &Said) -> String {
    let at = said.at.as_secs_f64();
    match said.speaker {
        Speaker::Story => format!("{at:>6.1} s  {}\n", said.text),
        Speaker::Journal(keeper) => format!("{at:>6.1} s  {}: {}\n", keeper.name(), said.text),
        Speaker::Trouble => format!("{at:>6.1} s  trouble: {}\n", said.text),
    }
}

/// Writes to standard output. A reader that has gone away is no reason to leave a cluster behind.
fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
