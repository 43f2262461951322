//! Finds windows of time in a page.

/// The lines that people wrote: those that a command printed are left out.
pub fn written_lines(page: &str) -> impl Iterator<Item = &str> {
    let mut in_console = false;
    page.lines().filter(move |line| {
        if line.starts_with("```") {
            in_console = *line == "```console";
        }
        !in_console || line.starts_with("$ ")
    })
}

/// The windows of a line, each with all of its parts.
pub fn windows(line: &str) -> impl Iterator<Item = &str> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let starts = line[from..].char_indices().map(|(at, _)| from + at).filter(|at| begins_word(line, *at));
        let (start, end) = starts.into_iter().find_map(|start| Some((start, window(line, start)?)))?;
        from = end;
        Some(&line[start..end])
    })
}

/// What is written behind a name of a window, such as `sleep-during: `.
pub fn named(line: &str) -> impl Iterator<Item = &str> {
    let names = ["sleep-during: ", "suspendedDuring: ", "suspendDuring: ", " during: ", "`during: "];
    let commands = ["caretaker window ", "--during "];
    let values = names.into_iter().chain(commands).flat_map(move |name| {
        line.match_indices(name).map(move |(at, _)| (commands.contains(&name), &line[at + name.len()..]))
    });
    values.filter_map(|(is_command, value)| {
        let quote = value.chars().next().filter(|first| ['"', '\''].contains(first));
        match quote {
            Some(quote) => value[1..].split(quote).next(),
            None if is_command => None,
            None => value.split(['`', '|']).next().map(str::trim),
        }
    })
}

fn begins_word(line: &str, at: usize) -> bool {
    let before = line[..at].chars().next_back();
    before.is_none_or(|before| before.is_whitespace() || "`\"'(:".contains(before))
}

/// The end of the window that begins here.
fn window(line: &str, start: usize) -> Option<usize> {
    let mut end = part(line, start)?;
    while let Some(rest) = line[end..].trim_start().strip_prefix(';') {
        let next = line.len() - rest.trim_start().len();
        let Some(next_end) = part(line, next) else { break };
        end = next_end;
    }
    Some(end)
}

/// The end of one part, which may begin with a zone.
fn part(line: &str, start: usize) -> Option<usize> {
    let rest = &line[start..];
    let zone = ["TZ=", "CRON_TZ="].iter().any(|prefix| rest.starts_with(prefix));
    let start = if zone { start + rest.find(' ')? + 1 } else { start };
    let rest = &line[start..];
    let length = tag(rest).or_else(|| dates(rest)).or_else(|| cron(rest))?;
    Some(start + length)
}

fn tag(text: &str) -> Option<usize> {
    let tags =
        ["always", "hourly", "daily", "midnight", "weekly", "monthly", "yearly", "annually", "reboot", "every 5m"];
    let tag = tags.iter().find(|tag| text.strip_prefix('@').is_some_and(|rest| rest.starts_with(*tag)))?;
    Some(1 + tag.len())
}

fn dates(text: &str) -> Option<usize> {
    let is_time = |c: char| c.is_ascii_digit() || "-:TZ+/".contains(c);
    let length = text.find(|c| !is_time(c)).unwrap_or(text.len());
    let is_year = |text: &str| text.len() >= 10 && text[..4].chars().all(|c| c.is_ascii_digit());
    let (from, until) = text[..length].split_once('/')?;
    (is_year(from) && is_year(until)).then_some(length)
}

/// Five fields, of which one has a star.
fn cron(text: &str) -> Option<usize> {
    let mut end = 0;
    let mut has_star = false;
    for number in 0..5 {
        let field = text[end..].strip_prefix(if number == 0 { "" } else { " " })?;
        let length = field.find(|c: char| !c.is_ascii_alphanumeric() && !"*?,/-".contains(c)).unwrap_or(field.len());
        let is_field =
            field[..length].starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase() || "*?".contains(c));
        let has_word = field[..length].contains(|c: char| c.is_ascii_lowercase());
        if !is_field || has_word {
            return None;
        }
        has_star |= field.starts_with('*');
        end = text.len() - field.len() + length;
    }
    has_star.then_some(end)
}

#[test]
fn windows_are_found_in_prose_tables_and_commands() {
    for (line, expected) in [
        (
            "write `* 0-4 * * *; TZ=UTC * 5 * * MON-FRI` or `@always`.",
            &["* 0-4 * * *; TZ=UTC * 5 * * MON-FRI", "@always"][..],
        ),
        ("    x.io/during: \"TZ=Europe/Paris 0-29 7 ? JAN MON\"", &[]),
        ("    x.io/during: \"TZ=Europe/Paris 0-29 7 * JAN MON\"", &["TZ=Europe/Paris 0-29 7 * JAN MON"]),
        ("$ caretaker window '* 22-5 * * *' 2>&1", &["* 22-5 * * *"]),
        ("`during: 2026-12-20/2027-01-03`, with", &["2026-12-20/2027-01-03"]),
        ("2026-12-20T18:00+01:00/2027-01-03T06:00Z", &["2026-12-20T18:00+01:00/2027-01-03T06:00Z"]),
        ("  Europe/Paris    0     3     6     9     12    15", &[]),
        ("main@sha1:450796dd and 2026-03-02T05:00:00Z  4 5 6 7", &[]),
        ("* this is an item of a list", &[]),
    ] {
        assert_eq!(windows(line).collect::<Vec<_>>(), expected, "{line}");
    }
}
