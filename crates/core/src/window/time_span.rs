//! Spans of time as kube-downscaler writes them: `Mon-Fri 20:00-08:00 Europe/Berlin`.
//!
//! They are not windows. An error about one shows the window that is open in the same hours.

use super::zone;

/// The window that is open in the span, or `None` for other text and for times that are no whole hours.
pub(super) fn as_window(fields: &[&str]) -> Option<String> {
    let (days, times, zone_name) = match fields {
        [days, times] => (days, times, None),
        [days, times, zone_name] => (days, times, Some(*zone_name)),
        _ => return None,
    };
    if zone_name.is_some_and(|name| zone(name).is_err()) {
        return None;
    }
    let (from, until) = times.split_once('-')?;
    let hours = match (hour(from)?, hour(until)?) {
        (from, until) if from == until => return None,
        (0, 24) => "*".to_owned(),
        (from, until) if from < until => range(from, until - 1),
        // The end of each named day, and its beginning.
        (from, 0) => range(from, 23),
        (24, until) => range(0, until - 1),
        (from, until) => format!("{},{}", range(0, until - 1), range(from, 23)),
    };
    let zone = zone_name.map(|name| format!("TZ={name} ")).unwrap_or_default();
    let text = format!("* {hours} * * {}", days.to_ascii_uppercase());
    super::cron::parse(&text).ok()?;
    Some(zone + &text)
}

/// The hour of `08:00`, from 0 to 24.
fn hour(text: &str) -> Option<u32> {
    let hour = text.strip_suffix(":00")?;
    hour.parse().ok().filter(|hour| *hour <= 24)
}

fn range(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
