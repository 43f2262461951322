//! CustomResourceDefinitions of tasks with the names and types of kdoctor's: for tests, and for clusters that have none.
//!
//! What a kind requests, expects and targets is kdoctor's own business and is accepted as it is.

use serde_json::Value;

use super::TaskKind;

/// Returns the CustomResourceDefinitions of all kinds of tasks.
///
/// # Panics
/// Never: the files are part of the program, and a test reads them.
#[must_use]
pub fn crds() -> [Value; 3] {
    TaskKind::ALL.map(|kind| {
        let text = match kind {
            TaskKind::AppHttpHealthy => include_str!("../../definitions/apphttphealthies.yaml"),
            TaskKind::Netdns => include_str!("../../definitions/netdnses.yaml"),
            TaskKind::NetReach => include_str!("../../definitions/netreaches.yaml"),
        };
        serde_saphyr::from_str(text).expect("the file is YAML")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_definition() {
        for (kind, definition) in TaskKind::ALL.into_iter().zip(crds()) {
            assert_eq!(definition["spec"]["names"]["kind"], kind.name());
            assert_eq!(definition["spec"]["names"]["plural"], kind.plural());
        }
    }
}
