//! A picture of the view as SVG, for pages.

use super::frame::{Line, Span, Style};

/// The cell of a character in the font's own units.
const WIDTH: f64 = 8.43;
const HEIGHT: f64 = 18.0;
const MARGIN: f64 = 14.0;

/// Draws the lines in a monospaced font on a dark ground. Each piece is stretched to its cells, so that columns stay
/// straight in any font.
pub(super) fn svg(lines: &[Line], columns: usize) -> String {
    let (width, height) = (cells(columns) + 2.0 * MARGIN, rows(lines.len()) + 2.0 * MARGIN);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16181d\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let mut column = 0;
        for Span { style, text: piece } in line {
            let count = piece.chars().count();
            text.push_str(&piece_at(*style, piece, column, row, count));
            column += count;
        }
    }
    text.push_str("</svg>\n");
    text
}

fn piece_at(style: Style, piece: &str, column: usize, row: usize, count: usize) -> String {
    let (x, y) = (MARGIN + cells(column), MARGIN + rows(row));
    let mut text = String::new();
    if style == Style::Title {
        let width = cells(count);
        text.push_str(&format!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{HEIGHT}\" fill=\"#9ecbff\"/>\n"
        ));
    }
    if piece.trim().is_empty() {
        return text;
    }
    let look = match style {
        Style::Plain => "fill=\"#d7dae0\"",
        Style::Bold => "fill=\"#ffffff\" font-weight=\"bold\"",
        Style::Dim => "fill=\"#8b919c\"",
        Style::Good => "fill=\"#7ee787\"",
        Style::Bad => "fill=\"#ff7b72\"",
        Style::Soon => "fill=\"#f2cc60\"",
        Style::Title => "fill=\"#16181d\" font-weight=\"bold\"",
    };
    let escaped = piece.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.push_str(&format!(
        "<text x=\"{x:.2}\" y=\"{:.2}\" textLength=\"{:.2}\" xml:space=\"preserve\" {look}>{escaped}</text>\n",
        y + HEIGHT * 0.76,
        cells(count),
    ));
    text
}

#[expect(clippy::cast_precision_loss, reason = "a terminal has some hundred cells")]
fn cells(count: usize) -> f64 {
    count as f64 * WIDTH
}

#[expect(clippy::cast_precision_loss, reason = "a terminal has some hundred cells")]
fn rows(count: usize) -> f64 {
    count as f64 * HEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_xml_is_escaped() {
        let line = vec![Span { style: Style::Plain, text: "a < b & c > d".to_owned() }];

        let picture = svg(&[line], 80);

        assert!(picture.contains(">a &lt; b &amp; c &gt; d</text>"), "{picture}");
    }
}
