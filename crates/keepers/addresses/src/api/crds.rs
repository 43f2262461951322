//! The schemas of Spiderpool's resources, as far as Caretaker works on them, and the
//! CustomResourceDefinitions made from them: for tests, and for clusters that have none.
//!
//! SpiderReservedIP and SpiderSubnet are not read: neither says which pod has an address.

use kube::core::schema::StructuralSchemaRewriter;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{GROUP, Kind, VERSION};

/// `spec` of a SpiderIPPool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolSpec {
    /// The subnet of its addresses.
    #[schemars(required)]
    pub subnet: String,
    /// 4 or 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_version: Option<i64>,
    /// Its addresses: single ones, and ranges such as `10.0.0.5-10.0.0.9`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Addresses among them that are not allocated.
    #[serde(rename = "excludeIPs", skip_serializing_if = "Vec::is_empty")]
    pub exclude_ips: Vec<String>,
    /// The gateway of that subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Routes that pods get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Which pods may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<Selector>,
    /// The namespaces whose pods may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_affinity: Option<Selector>,
    /// Their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespace_name: Vec<String>,
    /// The nodes whose pods may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<Selector>,
    /// Their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_name: Vec<String>,
    /// Which network attachments may use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub multus_name: Vec<String>,
    /// True if pods that name no pool use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,
    /// True if no more addresses of it are allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable: Option<bool>,
}

/// A route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// The destination.
    pub dst: String,
    /// The gateway.
    pub gw: String,
}

/// A selector. Caretaker does not read it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(pub Map<String, Value>);

impl JsonSchema for Selector {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Selector".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

/// `status` of a SpiderIPPool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PoolStatus {
    /// Which pod has which address: a string that holds JSON, or in the older form a map.
    #[serde(rename = "allocatedIPs", skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "anything")]
    pub allocated_ips: Value,
    /// The number of records in `allocatedIPs`.
    #[serde(rename = "allocatedIPCount", skip_serializing_if = "Option::is_none")]
    pub allocated_ip_count: Option<i64>,
    /// The number of its addresses.
    #[serde(rename = "totalIPCount", skip_serializing_if = "Option::is_none")]
    pub total_ip_count: Option<i64>,
}

fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// `status` of a SpiderEndpoint, which has no `spec` and no status subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointStatus {
    /// The current addresses of the pod.
    pub current: Current,
    /// The kind of the pod's owner.
    pub owner_controller_type: String,
    /// The name of the owner.
    pub owner_controller_name: String,
}

/// The addresses of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Current {
    /// The uid of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// In the older form: the ID of its sandbox.
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Its node.
    pub node: String,
    /// Its addresses, by interface.
    pub ips: Vec<InterfaceIps>,
}

/// The addresses of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct InterfaceIps {
    /// The interface.
    pub interface: String,
    /// The IPv4 address, with its prefix length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// The IPv6 address, with its prefix length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
    /// The pool of the IPv4 address.
    #[serde(rename = "ipv4Pool", skip_serializing_if = "Option::is_none")]
    pub ipv4_pool: Option<String>,
    /// The pool of the IPv6 address.
    #[serde(rename = "ipv6Pool", skip_serializing_if = "Option::is_none")]
    pub ipv6_pool: Option<String>,
    /// The gateway of the IPv4 address.
    #[serde(rename = "ipv4Gateway", skip_serializing_if = "Option::is_none")]
    pub ipv4_gateway: Option<String>,
    /// The gateway of the IPv6 address.
    #[serde(rename = "ipv6Gateway", skip_serializing_if = "Option::is_none")]
    pub ipv6_gateway: Option<String>,
    /// True if no default route is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_gateway: Option<bool>,
    /// Its routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Its VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<i64>,
    /// Its hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// The CustomResourceDefinitions of pools and endpoints.
#[must_use]
pub fn crds() -> [Value; 2] {
    let pool = json!({ "spec": schema::<PoolSpec>(), "status": schema::<PoolStatus>() });
    let columns = json!([
        { "name": "SUBNET", "type": "string", "jsonPath": ".spec.subnet" },
        { "name": "ALLOCATED", "type": "integer", "jsonPath": ".status.allocatedIPCount" },
        { "name": "TOTAL", "type": "integer", "jsonPath": ".status.totalIPCount" },
    ]);
    let endpoint = json!({ "status": schema::<EndpointStatus>() });
    let owners = json!([
        { "name": "NODE", "type": "string", "jsonPath": ".status.current.node" },
        { "name": "IPV4", "type": "string", "jsonPath": ".status.current.ips[0].ipv4" },
        { "name": "IPV6", "type": "string", "jsonPath": ".status.current.ips[0].ipv6" },
    ]);
    [
        crd(Kind::Pool, ["spiderippool", "sp"], &pool, &columns),
        crd(Kind::Endpoint, ["spiderendpoint", "se"], &endpoint, &owners),
    ]
}

fn schema<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.with_transform(StructuralSchemaRewriter).into_generator().into_root_schema_for::<T>()
}

fn crd(kind: Kind, [singular, short]: [&str; 2], properties: &Value, columns: &Value) -> Value {
    let (resource, is_pool) = (kind.resource(), kind == Kind::Pool);
    let mut version = json!({
        "name": VERSION,
        "served": true,
        "storage": true,
        "additionalPrinterColumns": columns,
        "schema": { "openAPIV3Schema": { "type": "object", "properties": properties } },
    });
    // A pool is cluster-scoped and has a status subresource; an endpoint has neither.
    if is_pool {
        version["subresources"] = json!({ "status": {} });
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{GROUP}", resource.plural) },
        "spec": {
            "group": GROUP,
            "scope": if is_pool { "Cluster" } else { "Namespaced" },
            "names": {
                "kind": resource.kind,
                "listKind": format!("{}List", resource.kind),
                "plural": resource.plural,
                "singular": singular,
                "shortNames": [short],
                "categories": ["spiderpool"],
            },
            "versions": [version],
        },
    })
}
