//! Delays that keep apart what starts in one instant.

use jiff::SignedDuration;

use crate::fnv;

/// A delay between nothing and `limit`, in whole seconds. The same key always gets the same one, in every replica and
/// after every restart; different keys get delays that are evenly spread.
#[must_use]
pub fn delay(key: &str, limit: SignedDuration) -> SignedDuration {
    let Ok(seconds) = u64::try_from(limit.as_secs()) else { return SignedDuration::ZERO };
    let scaled = (u128::from(evenly_spread(key)) * (u128::from(seconds) + 1)) >> 64;
    SignedDuration::from_secs(i64::try_from(scaled).unwrap_or_default())
}

/// FNV twice: the last letters of a key reach only the middle of its hash, and names often differ in their last letters
/// alone.
fn evenly_spread(key: &str) -> u64 {
    fnv::hash(fnv::hash(key.bytes()).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    /// Replicas of different versions agree on it.
    #[rstest]
    #[case::a("ns-001", 1_509)]
    #[case::b("ns-002", 523)]
    #[case::c("6f9619ff-8b86-d011-b42d-00c04fc964ff", 3_386)]
    fn a_key_has_its_delay_for_ever(#[case] key: &str, #[case] seconds: i64) {
        assert_eq!(delay(key, HOUR), SignedDuration::from_secs(seconds));
    }

    #[test]
    fn names_that_differ_in_a_number_are_evenly_spread() {
        let mut tenths = [0; 10];
        for i in 0..1_000 {
            let delay = delay(&format!("team-{i}"), HOUR);
            assert!(delay >= SignedDuration::ZERO && delay <= HOUR, "{delay:?}");
            tenths[usize::try_from(delay.as_secs() / 361).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
    }

    #[rstest]
    #[case::nothing(SignedDuration::ZERO)]
    #[case::less_than_a_second(SignedDuration::from_millis(999))]
    #[case::negative(-HOUR)]
    fn without_room_there_is_no_delay(#[case] limit: SignedDuration) {
        assert_eq!(delay("shop", limit), SignedDuration::ZERO);
    }
}
