//! An object without what no judgement asks for, so that less of it has to be parsed.

use super::cut::{Piece, Shape};
use crate::keepers::Needless;

/// Shorter pieces are not worth a second look.
const LONG: usize = 512;

impl Piece<'_> {
    /// The text without what no judgement asks for; `None` if there is nothing to gain, if the text
    /// may be cut off, which only a full reading tells, or if it is written in a way that leaves a
    /// doubt about where the needless part ends.
    pub(super) fn in_short(&self, needless: &[Needless]) -> Option<String> {
        if needless.is_empty() || self.last || self.text.len() < LONG {
            return None;
        }
        let margin = if self.shape == Shape::Item { self.text.find('-').unwrap_or(0) + 2 } else { 0 };
        let mut short = String::with_capacity(self.text.len());
        let mut skipping: Option<usize> = None;
        let mut in_spec = false;
        for line in self.text.split_inclusive('\n') {
            let bare = line.trim_start_matches(' ');
            let depth = line.len() - bare.len();
            // A remark may stand at any depth and says nothing about where it stands.
            let remark = bare.starts_with('#') || bare.trim_end().is_empty();
            if let Some(at) = skipping {
                if depth > at || remark || (depth == at && bare.starts_with("- ")) {
                    continue;
                }
                if !is_key(bare) {
                    return None;
                }
                skipping = None;
            }
            if depth == margin && !remark {
                in_spec = bare.starts_with("spec:");
            }
            let is_needless =
                |(deep, key): &Needless| depth == margin + deep && bare.trim_end() == *key && (*deep == 0 || in_spec);
            if needless.iter().any(is_needless) {
                skipping = Some(depth);
            } else {
                short.push_str(line);
            }
        }
        Some(short)
    }
}

/// Only a plain key surely ends what stands above it; a tab or a lone quote may belong to it.
fn is_key(bare: &str) -> bool {
    let name = bare.split(':').next().unwrap_or_default();
    name.len() < bare.trim_end().len() && !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric())
}
