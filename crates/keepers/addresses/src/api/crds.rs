//! CustomResourceDefinitions of pools and endpoints with the names and types of Spiderpool's: for tests, and for
//! clusters that have none.
//!
//! SpiderReservedIP and SpiderSubnet are not read: neither says which pod has an address.

use serde_json::Value;

/// Returns the CustomResourceDefinitions of pools and endpoints.
///
/// # Panics
/// Never: both files are part of the program, and a test reads them.
#[must_use]
pub fn crds() -> [Value; 2] {
    [include_str!("../../definitions/spiderippools.yaml"), include_str!("../../definitions/spiderendpoints.yaml")]
        .map(|text| serde_saphyr::from_str(text).expect("the file is YAML"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_has_spiderpools_types() {
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
