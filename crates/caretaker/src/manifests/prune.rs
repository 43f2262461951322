//! The text of an object without the fields that its source does not read, so that less is parsed.

use caretaker_engine::source::SkippableField;

use super::split::{Piece, Shape};

/// Shorter pieces are not worth it.
const MIN_LENGTH: usize = 512;

impl Piece<'_> {
    /// The text without these fields. `None` if nothing is gained, if the text may be cut off (which
    /// only a full parse finds), or if it is not certain where a field ends.
    pub(super) fn prune(&self, fields: &[SkippableField]) -> Option<String> {
        if fields.is_empty() || self.shape == Shape::Json || self.last || self.text.len() < MIN_LENGTH {
            return None;
        }
        let margin = if self.shape == Shape::Item { self.text.find('-').unwrap_or(0) + 2 } else { 0 };
        let mut pruned = String::with_capacity(self.text.len());
        let mut skipping: Option<usize> = None;
        let mut in_spec = false;
        for line in self.text.split_inclusive('\n') {
            let bare = line.trim_start_matches(' ');
            let depth = line.len() - bare.len();
            // A comment may have any indentation.
            let comment = bare.starts_with('#') || bare.trim_end().is_empty();
            if let Some(at) = skipping {
                if depth > at || comment || (depth == at && bare.starts_with("- ")) {
                    continue;
                }
                if !is_key(bare) {
                    return None;
                }
                skipping = None;
            }
            if depth == margin && !comment {
                in_spec = bare.starts_with("spec:");
            }
            let is_unread = |(deep, key): &SkippableField| {
                depth == margin + deep && bare.trim_end() == *key && (*deep == 0 || in_spec)
            };
            if fields.iter().any(is_unread) {
                skipping = Some(depth);
            } else {
                pruned.push_str(line);
            }
        }
        Some(pruned)
    }
}

/// Only a plain key ends the field above it for certain; a tab or a single quote may be part of it.
fn is_key(bare: &str) -> bool {
    let name = bare.split(':').next().unwrap_or_default();
    name.len() < bare.trim_end().len() && !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric())
}
