//! The IP range for the pods of one node.
//!
//! All nodes of a machine share its routing table. A range is free if no route covers any part of it.
//! A node claims a range by adding a route: the kernel refuses a second route to the same range, so if
//! two nodes try the same range, one of them gets it and the other tries the next.

use std::fmt;
use std::net::Ipv4Addr;

use crate::supervise::Supervisor;
use crate::{Error, Result};

const LENGTH: u32 = 24;

/// A /24 network, stored as its network address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range(Ipv4Addr);

impl Range {
    /// Creates the bridge, claims a free range for it and assigns the range's first address to it.
    pub(crate) fn claim(supervisor: &Supervisor, bridge: &str) -> Result<Self> {
        let table = std::fs::read_to_string("/proc/net/route").map_err(Error::file("/proc/net/route"))?;
        let taken = routes(&table);
        supervisor.run("ip", ["link", "add", bridge, "type", "bridge"])?;
        supervisor.run("ip", ["link", "set", bridge, "up"])?;
        let mut last = "none".to_owned();
        for range in candidates().filter(|range| !taken.iter().any(|route| route.overlaps(*range))) {
            let gateway = range.gateway().to_string();
            match supervisor.run("ip", ["route", "add", &range.to_string(), "dev", bridge]) {
                Ok(()) => {
                    // `noprefixroute`: the route exists already, so the kernel must not add it again.
                    let address = format!("{gateway}/{LENGTH}");
                    supervisor.run("ip", ["address", "add", &address, "dev", bridge, "noprefixroute"])?;
                    return Ok(range);
                }
                Err(Error::Order { why, .. }) if why.contains("File exists") => last = why,
                Err(other) => return Err(other),
            }
        }
        Err(Error::NoRange(last))
    }

    /// True if the address is in this range.
    pub(crate) fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(LENGTH) == self.0.to_bits()
    }

    /// The first address, which is the machine's own.
    pub(crate) fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0.to_bits() + 1)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{LENGTH}", self.0)
    }
}

/// Returns the ranges to try: 10.244.0.0/16 first, the usual pod network, then up to 10.254.0.0/16 for
/// machines that use 10.244 for something else.
fn candidates() -> impl Iterator<Item = Range> {
    (244..=254).flat_map(|second| (0..=255).map(move |third| Range(Ipv4Addr::new(10, second, third, 0))))
}

#[derive(Debug, PartialEq, Eq)]
struct Route {
    to: u32,
    mask: u32,
}

impl Route {
    /// True if the route covers any address of the range.
    fn overlaps(&self, range: Range) -> bool {
        let shorter = self.mask & mask(LENGTH);
        self.to & shorter == range.0.to_bits() & shorter
    }
}

/// Parses `/proc/net/route`: columns 2 (destination) and 8 (mask), in hexadecimal and in network byte
/// order. Leaves out the default route, which covers every range.
fn routes(table: &str) -> Vec<Route> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    let route = |line: &str| {
        let mut columns = line.split_whitespace();
        Some(Route { to: number(columns.nth(1)?)?, mask: number(columns.nth(5)?)? })
    };
    table.lines().skip(1).filter_map(route).filter(|r| r.mask != 0).collect()
}

fn mask(length: u32) -> u32 {
    u32::MAX << (32 - length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000F40A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
ctk1\t8003F50A\t00000000\t0001\t0\t0\t0\t80FFFFFF\t0\t0\t0
";

    fn range(text: &str) -> Range {
        Range(text.parse().unwrap())
    }

    #[test]
    fn the_routing_table_is_parsed_without_the_default_route() {
        let found = routes(TABLE);

        let expected = [("10.244.0.0", 16), ("10.245.3.128", 25)];
        let expected = expected.map(|(to, n)| Route { to: to.parse::<Ipv4Addr>().unwrap().to_bits(), mask: mask(n) });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_range_is_taken_if_a_route_covers_any_of_its_addresses() {
        let routes = routes(TABLE);
        let taken = |text| routes.iter().any(|r| r.overlaps(range(text)));

        assert!(taken("10.244.0.0") && taken("10.244.255.0"), "a wider route covers them");
        assert!(taken("10.245.3.0"), "a narrower route is inside");
        assert!(!taken("10.245.2.0") && !taken("10.245.4.0"));
    }

    #[test]
    fn a_range_contains_only_its_own_addresses() {
        let range = range("10.244.7.0");

        assert!(range.contains("10.244.7.2".parse().unwrap()) && !range.contains("10.244.8.2".parse().unwrap()));
        assert_eq!((range.to_string().as_str(), range.gateway().to_string().as_str()), ("10.244.7.0/24", "10.244.7.1"));
    }
}
