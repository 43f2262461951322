//! Counts in sentences.

/// `1 subject`, `2 subjects`.
#[must_use]
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// `is` for one, `are` for more or none.
#[must_use]
pub fn is_or_are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_none_is_plural() {
        let sentence = |count| format!("{} {} due", counted(count, "subject", "subjects"), is_or_are(count));

        assert_eq!([0, 1, 2].map(sentence), ["0 subjects are due", "1 subject is due", "2 subjects are due"]);
    }
}
