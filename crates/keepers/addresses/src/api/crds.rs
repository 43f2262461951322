//! The CustomResourceDefinitions of pools and endpoints, as Spiderpool's chart has them: for tests, and for
//! clusters that have none.
//!
//! SpiderReservedIP and SpiderSubnet are not read: neither says which pod has an address.

use serde_json::Value;

const DEFINITIONS: [&str; 2] = [include_str!("crds/spiderippools.yaml"), include_str!("crds/spiderendpoints.yaml")];

/// The CustomResourceDefinitions of pools and endpoints.
///
/// # Panics
///
/// Never: the definitions are part of the program, and a test reads them.
#[must_use]
pub fn crds() -> [Value; 2] {
    DEFINITIONS.map(|text| serde_saphyr::from_str(text).unwrap_or_else(|error| unreachable!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_schema_is_spiderpools() {
        let [pool, endpoint] = crds();

        let schema = |crd: &Value| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone();
        let status = schema(&pool)["status"]["properties"].clone();
        assert_eq!(status["allocatedIPs"], json!({ "type": "string" }));
        assert_eq!(status["allocatedIPCount"], json!({ "format": "int64", "minimum": 0, "type": "integer" }));
        assert_eq!(pool["spec"]["versions"][0]["subresources"], json!({ "status": {} }));
        assert_eq!(endpoint["spec"]["versions"][0]["subresources"], json!({}), "its status is written with the object");
        let current = schema(&endpoint)["status"]["properties"]["current"].clone();
        assert_eq!(current["required"], json!(["ips", "node", "uid"]));
    }
}
