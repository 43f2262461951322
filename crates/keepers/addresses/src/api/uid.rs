//! What distinguishes a pod from another one of the same name.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// The uid of an object. Nearly all are UUIDs, and there are hundreds of thousands of them: a UUID is kept
/// as sixteen bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uid {
    /// The bytes of a UUID in its usual form.
    Uuid([u8; 16]),
    /// Anything else.
    Other(Box<str>),
}

/// The positions of the dashes in a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];

impl Uid {
    /// Parses any text; [`fmt::Display`] writes the same text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::uuid(text).map_or_else(|| Self::Other(text.into()), Self::Uuid)
    }

    fn uuid(text: &str) -> Option<[u8; 16]> {
        let text = text.as_bytes();
        if text.len() != 36 || DASHES.iter().any(|at| text[*at] != b'-') {
            return None;
        }
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let mut digits = text.iter().enumerate().filter(|(at, _)| !DASHES.contains(at)).map(|(_, b)| digit(*b));
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = digits.next()?? << 4 | digits.next()??;
        }
        Some(bytes)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEX: [u8; 16] = *b"0123456789abcdef";
        let bytes = match self {
            Self::Other(text) => return f.write_str(text),
            Self::Uuid(bytes) => bytes,
        };
        let mut text = [b'-'; 36];
        let mut at = 0;
        for byte in bytes {
            // A dash is only where the digits of a byte would begin.
            at += usize::from(DASHES.contains(&at));
            text[at] = HEX[usize::from(byte >> 4)];
            text[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Uid;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a uid")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Uid, E> {
                Ok(Uid::parse(text))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self::Other(Box::default())
    }
}

/// Which pod of that name a record belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The pod with this uid.
    Pod(Uid),
    /// The pod whose sandbox has this ID: the older form, which has no uid.
    Container(Box<str>),
    /// The record does not say.
    Unknown,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(uid) => uid.fmt(f),
            Self::Container(id) => f.write_str(id),
            Self::Unknown => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_parsed_is_written_back(text in any::<String>(), bytes in any::<[u8; 16]>()) {
            prop_assert_eq!(Uid::parse(&text).to_string(), text);
            let uuid = Uid::Uuid(bytes).to_string();
            prop_assert_eq!(Uid::parse(&uuid), Uid::Uuid(bytes));
        }

        #[test]
        fn two_uids_that_differ_in_case_stay_different(text in "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-fA-F]{12}") {
            prop_assert_eq!(Uid::parse(&text).to_string(), text);
        }
    }
}
