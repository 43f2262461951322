//! The addresses of a pool.

use std::net::IpAddr;

use ipnet::IpNet;

/// The addresses of a pool: `spec.ips`, or the whole subnet where that is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    ips: Vec<(IpAddr, IpAddr)>,
    excluded: Vec<(IpAddr, IpAddr)>,
    subnet: Option<IpNet>,
    /// What cannot be read: then no address is known to be outside.
    pub invalid: Option<String>,
}

impl Ranges {
    /// Reads single addresses, and ranges such as `10.0.0.5-10.0.0.9`.
    #[must_use]
    pub fn parse(subnet: &str, ips: &[String], excluded: &[String]) -> Self {
        let mut ranges = Self { subnet: subnet.parse().ok(), ..Self::default() };
        if ranges.subnet.is_none() {
            ranges.invalid = Some(format!("spec.subnet is {subnet:?}, which is not a subnet such as 10.0.0.0/24"));
        }
        for (texts, all, field) in [(ips, &mut ranges.ips, "ips"), (excluded, &mut ranges.excluded, "excludeIPs")] {
            for text in texts {
                if let Some(range) = parse_range(text) {
                    all.push(range);
                } else {
                    let why = "which is neither an address nor a range such as 10.0.0.5-10.0.0.9";
                    ranges.invalid = Some(format!("spec.{field} has {text:?}, {why}"));
                }
            }
        }
        ranges
    }

    /// True if the pool has this address. One that was excluded later may still be allocated.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        if self.invalid.is_some() {
            return true;
        }
        let inside = self.subnet.is_some_and(|subnet| subnet.contains(&ip));
        inside && (self.ips.is_empty() || self.ips.iter().any(|(from, to)| *from <= ip && ip <= *to))
    }

    /// The number of addresses that can be allocated.
    #[must_use]
    pub fn size(&self) -> u128 {
        let whole = self.subnet.map(|subnet| (subnet.network(), subnet.broadcast()));
        let ips = if self.ips.is_empty() { whole.into_iter().collect() } else { self.ips.clone() };
        count(&merged(ips.clone())) - overlap(&merged(ips), &merged(self.excluded.clone()))
    }
}

fn parse_range(text: &str) -> Option<(IpAddr, IpAddr)> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to): (IpAddr, IpAddr) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
    (from <= to && from.is_ipv4() == to.is_ipv4()).then_some((from, to))
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// As numbers, in order, without overlap.
fn merged(mut ranges: Vec<(IpAddr, IpAddr)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (from, to) in ranges.into_iter().map(|(from, to)| (number(from), number(to))) {
        match merged.last_mut() {
            Some((_, last)) if from <= *last => *last = to.max(*last),
            _ => merged.push((from, to)),
        }
    }
    merged
}

fn count(ranges: &[(u128, u128)]) -> u128 {
    ranges.iter().fold(0, |all, (from, to)| all.saturating_add(to - from).saturating_add(1))
}

fn overlap(a: &[(u128, u128)], b: &[(u128, u128)]) -> u128 {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    count(&pairs.filter(|(from, to)| from <= to).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn ranges(ips: &[&str], excluded: &[&str]) -> Ranges {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        Ranges::parse("10.0.0.0/24", &texts(ips), &texts(excluded))
    }

    #[rstest]
    #[case::in_a_range(&["10.0.0.5-10.0.0.9"], "10.0.0.9", true)]
    #[case::a_single_one(&["10.0.0.5"], "10.0.0.5", true)]
    #[case::next_to_it(&["10.0.0.5-10.0.0.9"], "10.0.0.10", false)]
    #[case::of_another_subnet(&["10.0.1.5"], "10.0.1.5", false)]
    #[case::of_the_other_family(&["10.0.0.5"], "fd00::5", false)]
    #[case::no_ranges_are_the_subnet(&[], "10.0.0.77", true)]
    #[case::unreadable_ranges_exclude_nothing(&["ten"], "10.9.9.9", true)]
    fn an_address_is_in_its_pool(#[case] ips: &[&str], #[case] ip: &str, #[case] inside: bool) {
        assert_eq!(ranges(ips, &[]).contains(ip.parse().unwrap()), inside);
    }

    #[test]
    fn its_size_is_the_number_of_addresses_that_can_be_allocated() {
        assert_eq!(ranges(&["10.0.0.5-10.0.0.9", "10.0.0.8-10.0.0.10"], &["10.0.0.6", "10.0.0.200"]).size(), 5);
        assert_eq!(ranges(&[], &[]).size(), 256);
        assert_eq!(Ranges::parse("fd00::/64", &[], &[]).size(), 1 << 64);
    }

    #[test]
    fn an_unreadable_range_is_named() {
        assert_eq!(
            ranges(&["10.0.0.9-10.0.0.5"], &[]).invalid.unwrap(),
            "spec.ips has \"10.0.0.9-10.0.0.5\", which is neither an address nor a range such as 10.0.0.5-10.0.0.9"
        );
    }
}
