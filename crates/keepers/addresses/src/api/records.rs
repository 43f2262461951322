//! `status.allocatedIPs` of a pool: the records of which pod has which address.
//!
//! Today it is a string that holds JSON; the older form is a map. Both are read here. What is left after a
//! release is written back as it was, including fields that Caretaker does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::uid::{Identity, Uid};

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Namespace and name of the pod, `shop/web-1`; the text as it is, if it is something else.
    pub holder: String,
    /// Which pod of that name.
    pub identity: Identity,
}

/// The records of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// Those that can be read, by address.
    pub by_ip: BTreeMap<IpAddr, Record>,
    /// Keys that are no address, or the same address as another key.
    pub invalid_keys: BTreeSet<String>,
}

/// `status.allocatedIPs` as it was read.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Allocated {
    /// Nothing: no address is allocated.
    #[default]
    Nothing,
    /// A string that holds JSON.
    Text(Box<str>),
    /// A map: the older form.
    Map(Value),
    /// Something else, described.
    Invalid(String),
}

impl Allocated {
    /// The records, or why they cannot be read.
    pub fn records(&self) -> Result<Records, String> {
        match self {
            Self::Nothing => Ok(Records::default()),
            // Go writes an empty map as null.
            Self::Text(text) => {
                let records = serde_json::from_str::<Option<Records>>(text);
                records.map(Option::unwrap_or_default).map_err(|error| error.to_string())
            }
            Self::Map(map) => Records::deserialize(map).map_err(|error| error.to_string()),
            Self::Invalid(why) => Err(why.clone()),
        }
    }

    /// The status to write so that these records are gone and the count is right; `None` if the records
    /// cannot be read.
    #[must_use]
    pub fn without(&self, released: &BTreeSet<IpAddr>) -> Option<Value> {
        let is_released = |key: &str| key.parse::<IpAddr>().is_ok_and(|ip| released.contains(&ip));
        match self {
            Self::Nothing => Some(json!({ "allocatedIPCount": 0 })),
            Self::Text(text) => {
                let records: Option<BTreeMap<String, Box<RawValue>>> = serde_json::from_str(text).ok()?;
                let mut records = records.unwrap_or_default();
                records.retain(|key, _| !is_released(key));
                let text = serde_json::to_string(&records).ok()?;
                // Spiderpool removes the field when there are no records.
                let text = if records.is_empty() { Value::Null } else { Value::String(text) };
                Some(json!({ "allocatedIPs": text, "allocatedIPCount": records.len() }))
            }
            Self::Map(map) => {
                let (gone, left): (Vec<&String>, Vec<&String>) =
                    map.as_object()?.keys().partition(|key| is_released(key));
                let nulls: serde_json::Map<String, Value> =
                    gone.into_iter().map(|key| (key.clone(), Value::Null)).collect();
                Some(json!({ "allocatedIPs": nulls, "allocatedIPCount": left.len() }))
            }
            Self::Invalid(_) => None,
        }
    }
}

/// Both forms of a record.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    pod: Option<String>,
    pod_uid: Option<String>,
    namespace: Option<String>,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

impl From<Written> for Record {
    fn from(written: Written) -> Self {
        let Written { pod, pod_uid, namespace, container_id } = written;
        let not_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let identity = match (not_empty(pod_uid), not_empty(container_id)) {
            (Some(uid), _) => Identity::Pod(Uid::parse(&uid)),
            (None, Some(container)) => Identity::Container(container.into()),
            (None, None) => Identity::Unknown,
        };
        // The older form has namespace and name in two fields.
        let pod = pod.unwrap_or_default();
        let holder = match not_empty(namespace) {
            Some(namespace) if !pod.contains('/') => format!("{namespace}/{pod}"),
            _ => pod,
        };
        Self { holder, identity }
    }
}

impl<'de> Deserialize<'de> for Records {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Records;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("addresses with their records")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Records, M::Error> {
                let mut records = Records::default();
                let mut keys: BTreeMap<IpAddr, String> = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let Ok(ip) = key.parse::<IpAddr>() else {
                        map.next_value::<IgnoredAny>()?;
                        records.invalid_keys.insert(key);
                        continue;
                    };
                    let written: Option<Written> = map.next_value()?;
                    records.by_ip.insert(ip, written.unwrap_or_default().into());
                    if let Some(before) = keys.insert(ip, key.clone()) {
                        records.invalid_keys.extend([before, key]);
                    }
                }
                // If an address has two records, nobody knows which one is right.
                let Records { by_ip, invalid_keys } = &mut records;
                by_ip.retain(|ip, _| !invalid_keys.contains(&keys[ip]));
                Ok(records)
            }
        }
        deserializer.deserialize_map(Map)
    }
}

impl<'de> Deserialize<'de> for Allocated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Allocated;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string that holds JSON, or a map")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Allocated, E> {
                Ok(if text.is_empty() { Allocated::Nothing } else { Allocated::Text(text.into()) })
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Allocated, M::Error> {
                // A pool that cannot be read must not hide the others of its list: nothing here fails.
                Value::deserialize(de::value::MapAccessDeserializer::new(map)).map(Allocated::Map)
            }
            fn visit_unit<E: de::Error>(self) -> Result<Allocated, E> {
                Ok(Allocated::Nothing)
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Allocated, E> {
                Ok(Allocated::Invalid(format!("it is {value}")))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Allocated, E> {
                Ok(Allocated::Invalid(format!("it is {value}")))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Allocated, E> {
                Ok(Allocated::Invalid(format!("it is {value}")))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Allocated, E> {
                Ok(Allocated::Invalid(format!("it is {value}")))
            }
            fn visit_seq<S: de::SeqAccess<'de>>(self, mut seq: S) -> Result<Allocated, S::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Allocated::Invalid("it is a list".to_owned()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const UID: &str = "9a1b6bb2-3d8a-4f0b-8b1d-5b1b6f2f9f11";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn read(value: Value) -> Allocated {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn both_forms_are_read() {
        let today = read(json!(format!(r#"{{"10.0.0.1":{{"pod":"shop/web-1","podUid":"{UID}"}}}}"#)));
        let before = read(json!({ "10.0.0.1": { "containerID": "c1", "interface": "eth0", "node": "n1",
            "namespace": "shop", "pod": "web-1", "ownerControllerType": "Deployment" } }));

        let holder = || "shop/web-1".to_owned();
        let record = |a: &Allocated| a.records().unwrap().by_ip[&ip("10.0.0.1")].clone();
        assert_eq!(record(&today), Record { holder: holder(), identity: Identity::Pod(Uid::parse(UID)) });
        assert_eq!(record(&before), Record { holder: holder(), identity: Identity::Container("c1".into()) });
        assert!(matches!((today, before), (Allocated::Text(_), Allocated::Map(_))));
    }

    #[rstest]
    #[case::cut_off(json!("{\"10.0.0.1\":{"))]
    #[case::another_type(json!("[]"))]
    #[case::a_number(json!(7))]
    #[case::a_list(json!([1]))]
    #[case::a_negative_number(json!(-7))]
    #[case::a_fraction(json!(0.5))]
    #[case::a_map_of_numbers(json!({ "10.0.0.1": 7 }))]
    #[case::numbers_instead_of_records(json!("{\"10.0.0.1\":7}"))]
    fn anything_else_is_invalid(#[case] value: Value) {
        assert!(read(value.clone()).records().is_err(), "{:?}", read(value));
    }

    #[rstest]
    #[case::null(json!(null))]
    #[case::empty(json!(""))]
    #[case::an_empty_map(json!({}))]
    #[case::null_in_a_string(json!("null"))]
    fn nothing_is_no_records(#[case] value: Value) {
        assert_eq!(read(value).records(), Ok(Records::default()));
    }

    #[test]
    fn a_key_that_is_no_address_is_reported_and_blocks_no_other() {
        let read = read(json!(r#"{"ten":{"pod":"a/b"},"10.0.0.1":{"pod":"a/b"},"fd00::1":{},"fd00:0::1":{}}"#));

        let records = read.records().unwrap();
        assert_eq!(
            records.by_ip.keys().copied().collect::<Vec<_>>(),
            [ip("10.0.0.1")],
            "fd00::1 has two records, and nobody knows which one is right"
        );
        assert_eq!(records.invalid_keys, ["fd00:0::1", "fd00::1", "ten"].map(str::to_owned).into());
    }

    #[test]
    fn what_is_left_is_written_as_it_was() {
        let text = r#"{"10.0.0.1":{"pod":"a/b","podUid":"1","new":[1, 2]},"10.0.0.2":{"pod":"a/c"},"ten":{}}"#;

        let one = read(json!(text)).without(&[ip("10.0.0.2")].into()).unwrap();
        assert_eq!(one["allocatedIPs"], r#"{"10.0.0.1":{"pod":"a/b","podUid":"1","new":[1, 2]},"ten":{}}"#);
        assert_eq!(one["allocatedIPCount"], 2);

        let none = read(json!(r#"{"10.0.0.2":{"pod":"a/c"}}"#)).without(&[ip("10.0.0.2")].into()).unwrap();
        assert_eq!(none, json!({ "allocatedIPs": null, "allocatedIPCount": 0 }));
    }

    #[test]
    fn in_the_older_form_only_the_released_keys_are_written() {
        let map = json!({ "10.0.0.1": { "pod": "b" }, "10.0.0.2": { "pod": "c" } });

        let patch = read(map).without(&[ip("10.0.0.2")].into()).unwrap();

        assert_eq!(patch, json!({ "allocatedIPs": { "10.0.0.2": null }, "allocatedIPCount": 1 }));
    }
}
