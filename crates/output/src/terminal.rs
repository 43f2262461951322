//! The terminal behind standard output: how wide it is, and whether colours help.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

/// When text is coloured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How text stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Something is taken away.
    Alarm,
    /// Something is refused.
    Caution,
}

static COLOR: OnceLock<Color> = OnceLock::new();

/// Says once, before anything is printed, when text is coloured.
pub fn set_color(color: Color) {
    let _ = COLOR.set(color);
}

/// The width of the terminal behind standard output; `None` if it is none, so that nothing is cut.
#[must_use]
pub fn width() -> Option<usize> {
    let (terminal_size::Width(width), _) = terminal_size::terminal_size_of(io::stdout())?;
    (width > 0).then_some(width.into())
}

/// The text, coloured where that is wanted.
#[must_use]
pub fn paint(text: &str, style: Style) -> String {
    let is_wanted = match COLOR.get().copied().unwrap_or_default() {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
    };
    let code = match style {
        Style::Alarm => "1;31",
        Style::Caution => "33",
    };
    if is_wanted { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}
