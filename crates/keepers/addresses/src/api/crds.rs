//! CustomResourceDefinitions of pools and endpoints with the names and types of Spiderpool's: for tests, and for
//! clusters that have none.
//!
//! SpiderReservedIP and SpiderSubnet are not read: neither says which pod has an address.

use serde_json::{Value, json};

use super::{ENDPOINT, GROUP, POOL, VERSION};

/// The CustomResourceDefinitions of pools and endpoints.
#[must_use]
pub fn crds() -> [Value; 2] {
    [pools(), endpoints()]
}

fn pools() -> Value {
    let count = || json!({ "type": "integer", "format": "int64", "minimum": 0 });
    let flag = || json!({ "type": "boolean", "default": false });
    let spec = object(
        &json!({
            "subnet": text(),
            "ipVersion": { "type": "integer", "format": "int64", "enum": [4, 6] },
            "ips": list(&text()),
            "excludeIPs": list(&text()),
            "gateway": text(),
            "routes": list(&route()),
            "podAffinity": selector(),
            "namespaceAffinity": selector(),
            "namespaceName": list(&text()),
            "nodeAffinity": selector(),
            "nodeName": list(&text()),
            "multusName": list(&text()),
            "default": flag(),
            "disable": flag(),
        }),
        &["subnet"],
    );
    // The records are a text that holds JSON.
    let status = object(&json!({ "allocatedIPs": text(), "allocatedIPCount": count(), "totalIPCount": count() }), &[]);
    let columns = [
        column("VERSION", "string", ".spec.ipVersion"),
        column("SUBNET", "string", ".spec.subnet"),
        column("ALLOCATED-IP-COUNT", "integer", ".status.allocatedIPCount"),
        column("TOTAL-IP-COUNT", "integer", ".status.totalIPCount"),
        column("DEFAULT", "boolean", ".spec.default"),
    ];
    let schema = json!({ "spec": spec, "status": status });
    definition(POOL, "sp", "Cluster", &columns, &schema, &json!({ "status": {} }))
}

fn endpoints() -> Value {
    let address = object(
        &json!({
            "interface": text(),
            "ipv4": text(),
            "ipv4Pool": text(),
            "ipv4Gateway": text(),
            "ipv6": text(),
            "ipv6Pool": text(),
            "ipv6Gateway": text(),
            "mac": text(),
            "vlan": { "type": "integer", "format": "int64", "default": 0, "minimum": 0, "maximum": 4094 },
            "cleanGateway": { "type": "boolean" },
            "routes": list(&route()),
        }),
        &["interface"],
    );
    let current = json!({ "uid": text(), "node": text(), "ips": list(&address) });
    let status = object(
        &json!({
            "current": object(&current, &["ips", "node", "uid"]),
            "ownerControllerType": text(),
            "ownerControllerName": text(),
        }),
        &["current", "ownerControllerName", "ownerControllerType"],
    );
    let columns = [
        column("INTERFACE", "string", ".status.current.ips[0].interface"),
        column("IPV4POOL", "string", ".status.current.ips[0].ipv4Pool"),
        column("IPV4", "string", ".status.current.ips[0].ipv4"),
        column("IPV6POOL", "string", ".status.current.ips[0].ipv6Pool"),
        column("IPV6", "string", ".status.current.ips[0].ipv6"),
        column("NODE", "string", ".status.current.node"),
    ];
    // Its status is written with the object.
    definition(ENDPOINT, "se", "Namespaced", &columns, &json!({ "status": status }), &json!({}))
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn object(properties: &Value, required: &[&str]) -> Value {
    let mut object = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn route() -> Value {
    object(&json!({ "dst": text(), "gw": text() }), &["dst", "gw"])
}

/// A label selector.
fn selector() -> Value {
    let requirement =
        object(&json!({ "key": text(), "operator": text(), "values": list(&text()) }), &["key", "operator"]);
    let labels = json!({ "type": "object", "additionalProperties": text() });
    object(&json!({ "matchLabels": labels, "matchExpressions": list(&requirement) }), &[])
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn definition(
    kind: &str,
    short: &str,
    scope: &str,
    columns: &[Value],
    properties: &Value,
    subresources: &Value,
) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular,
                "shortNames": [short], "categories": ["spiderpool"],
            },
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": object(properties, &[]) },
                "subresources": subresources,
                "additionalPrinterColumns": columns,
            }],
        },
    })
}

#[cfg(test)]
mod tests {
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
