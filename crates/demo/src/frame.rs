//! The picture of the live view, as lines of styled text that fit a terminal.

use k8s_openapi::jiff::Timestamp;

use super::board::{KeeperScene, Next, Said, Speaker, State};

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
    Soon,
    Title,
}

/// A piece of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) style: Style,
    pub(super) text: String,
}

/// A line of the picture.
pub(super) type Line = Vec<Span>;

/// The width of the keepers' names.
const NAME: usize = 12;

/// Draws the state in so many columns and rows, no more and no fewer.
pub(super) fn frame(state: &State, now: Timestamp, width: usize, height: usize) -> Vec<Line> {
    let mut lines = vec![title(state, width)];
    for scene in &state.scenes {
        lines.push(steps(scene));
        lines.push(outlook(scene, now));
    }
    lines.push(vec![span(Style::Dim, rule("what happens", width))]);
    let rows = height.saturating_sub(lines.len() + 1);
    let from = state.said.len().saturating_sub(rows);
    lines.extend(state.said[from..].iter().map(said));
    lines.resize(height.saturating_sub(1), Line::new());
    if height > 0 {
        lines.push(vec![span(Style::Dim, format!(" {}", state.hint))]);
    }
    lines.into_iter().map(|line| fit(line, width)).collect()
}

fn span(style: Style, text: impl Into<String>) -> Span {
    Span { style, text: text.into() }
}

fn title(state: &State, width: usize) -> Line {
    let clock = |seconds: u64| format!("{}:{:02}", seconds / 60, seconds % 60);
    let mut time = clock(state.began.elapsed().as_secs());
    if let Some(limit) = state.limit {
        time = format!("{time} of {}", clock(limit.as_secs()));
    }
    let name = format!(" Caretaker on {}", state.place);
    let gap = width.saturating_sub(name.chars().count() + time.chars().count() + 1);
    vec![span(Style::Title, format!("{name}{}{time} ", " ".repeat(gap)))]
}

/// The steps of a scene, with a mark for each that happened.
fn steps(scene: &KeeperScene) -> Line {
    let name = format!("{:NAME$}", scene.keeper.name());
    let mark = match scene {
        KeeperScene { left_out: Some(_), .. } => span(Style::Dim, " - "),
        KeeperScene { failed: Some(_), .. } => span(Style::Bad, " ✘ "),
        scene if scene.is_complete() => span(Style::Good, " ✔ "),
        _ => span(Style::Soon, " ● "),
    };
    let mut line = vec![mark, span(Style::Bold, name)];
    if let Some(why) = &scene.left_out {
        line.push(span(Style::Dim, format!("left out: {why}")));
        return line;
    }
    for step in &scene.steps {
        match step.happened {
            Some(_) => line.extend([span(Style::Good, "✔ "), span(Style::Plain, format!("{}   ", step.text))]),
            None => line.push(span(Style::Dim, format!("○ {}   ", step.text))),
        }
    }
    line
}

/// What the keeper sees, and what comes next in how long.
fn outlook(scene: &KeeperScene, now: Timestamp) -> Line {
    let mut line = vec![span(Style::Plain, " ".repeat(NAME + 3))];
    match (&scene.failed, &scene.next) {
        (Some(why), _) => line.push(span(Style::Bad, why.lines().next().unwrap_or_default())),
        (None, Some(next)) => {
            line.push(span(Style::Soon, format!("{} {}", next.what, time_to(next, now))));
            line.push(span(Style::Dim, format!("   sees {}", scene.sees)));
        }
        (None, None) if !scene.sees.is_empty() => line.push(span(Style::Dim, format!("sees {}", scene.sees))),
        (None, None) => {}
    }
    line
}

/// `in 7 s`, or `now`.
pub(super) fn time_to(next: &Next, now: Timestamp) -> String {
    let seconds = next.at.as_second() - now.as_second();
    match seconds {
        ..=0 => "now".to_owned(),
        1..120 => format!("in {seconds} s"),
        120..7_200 => format!("in {} min", seconds / 60),
        _ => format!("in {} h", seconds / 3_600),
    }
}

fn said(said: &Said) -> Line {
    let time = span(Style::Dim, format!("{:>6.1}  ", said.at.as_secs_f64()));
    match said.speaker {
        Speaker::Story => vec![time, span(Style::Plain, &*said.text)],
        Speaker::Journal(keeper) => {
            vec![time, span(Style::Bold, format!("{:NAME$}", keeper.name())), span(Style::Plain, &*said.text)]
        }
        Speaker::Trouble => vec![time, span(Style::Bad, &*said.text)],
    }
}

fn rule(text: &str, width: usize) -> String {
    let begin = format!("── {text} ");
    let rest = width.saturating_sub(begin.chars().count());
    format!("{begin}{}", "─".repeat(rest))
}

/// Cuts a line to a width, with a mark where something is missing. Control characters would move the cursor.
fn fit(line: Line, width: usize) -> Line {
    let length: usize = line.iter().map(|span| span.text.chars().count()).sum();
    let mut room = if length > width { width.saturating_sub(1) } else { width };
    let mut cut = Line::new();
    let mut style = Style::Plain;
    for Span { style: own, text } in line {
        let text: String = text.chars().take(room).map(|c| if c.is_control() { '�' } else { c }).collect();
        room -= text.chars().count();
        if !text.is_empty() {
            style = own;
            cut.push(Span { style: own, text });
        }
    }
    if length > width && width > 0 {
        cut.push(span(style, "…"));
    }
    cut
}

/// The lines with the codes of a terminal, from its top left corner.
pub(super) fn ansi(lines: &[Line]) -> String {
    let mut text = "\x1b[H".to_owned();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            text.push_str("\r\n");
        }
        for Span { style, text: piece } in line {
            let code = match style {
                Style::Plain => "0",
                Style::Bold => "0;1",
                Style::Dim => "0;2",
                Style::Good => "0;32",
                Style::Bad => "0;31",
                Style::Soon => "0;33",
                Style::Title => "0;7",
            };
            text.push_str(&format!("\x1b[{code}m{piece}"));
        }
        text.push_str("\x1b[0m\x1b[K");
    }
    text.push_str("\x1b[J");
    text
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::super::board::{Board, Keeper};
    use super::*;

    fn text(line: &Line) -> String {
        line.iter().map(|span| span.text.as_str()).collect()
    }

    fn busy() -> Board {
        let board = Board::new(None);
        board.state().place = "a throwaway Kubernetes with a name that is longer than any terminal is wide".to_owned();
        for i in 0..40 {
            board.journal(Keeper::Addresses, format!("release 10.6.0.{i}: PodGone there is no pod {}", "x".repeat(90)));
        }
        board
            .leave_out(Keeper::Containers, "they need a node, and a node needs root, which this process does not have");
        board
    }

    #[test]
    fn a_picture_has_the_size_of_the_terminal_whatever_is_shown() {
        for (width, height) in [(80, 24), (200, 60), (40, 24), (20, 5), (1, 1), (0, 0)] {
            let lines = frame(&busy().state(), Timestamp::now(), width, height);

            assert_eq!(lines.len(), height, "{width}×{height}");
            for line in &lines {
                assert!(text(line).chars().count() <= width, "{width}×{height}: {:?}", text(line));
            }
        }
    }

    #[test]
    fn eighty_by_twenty_four_shows_all_keepers_and_the_last_lines() {
        let lines = frame(&busy().state(), Timestamp::now(), 80, 24);
        let picture: Vec<String> = lines.iter().map(text).collect();

        assert_eq!(picture.len(), 24);
        for keeper in Keeper::ALL {
            assert!(picture[..11].iter().any(|line| line.contains(keeper.name())), "{picture:#?}");
        }
        assert!(picture[21].contains("10.6.0.39") && picture[22].contains("left out"), "{picture:#?}");
        assert!(picture[23].contains("Ctrl-C"), "{picture:#?}");
    }

    #[test]
    fn what_comes_next_is_counted_down() {
        let now = Timestamp::UNIX_EPOCH;
        let shown = |seconds| {
            let next = Next { what: String::new(), at: now + SignedDuration::from_secs(seconds) };
            time_to(&next, now)
        };

        assert_eq!(
            [-1, 0, 1, 119, 120, 7_199, 7_200].map(shown),
            ["now", "now", "in 1 s", "in 119 s", "in 2 min", "in 119 min", "in 2 h"]
        );
    }

    #[test]
    fn a_line_break_in_a_reason_does_not_move_the_cursor() {
        let board = Board::new(None);
        board.say("one\x1b[2Jtwo\nthree");

        let lines = frame(&board.state(), Timestamp::now(), 80, 24);

        assert!(lines.iter().any(|line| text(line).contains("one�[2Jtwo�three")));
    }
}
