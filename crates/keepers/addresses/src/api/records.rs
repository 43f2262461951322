//! What `status.allocatedIPs` of a pool says: which address is whose.
//!
//! Today it is a string that holds JSON; the older form is a map. Both are read here, and what is left
//! of them after a release is written back as it stood: fields that nobody here knows included.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::uid::{Identity, Uid};

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Namespace and name of the pod, `shop/web-1`; as it stands there, if it is something else.
    pub holder: String,
    /// Which pod of that name.
    pub identity: Identity,
}

/// The records of a pool, by address; those whose key is no address by their key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries {
    /// Those that can be read.
    pub by_ip: BTreeMap<IpAddr, Entry>,
    /// Keys that are no address, or the same one as another key.
    pub odd: BTreeSet<String>,
}

/// What stands in `status.allocatedIPs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Allocated {
    /// Nothing: no address is held.
    #[default]
    Nothing,
    /// A string that holds JSON.
    Text(Entries),
    /// A map: the older form.
    Map(Entries),
    /// Something else.
    Broken(String),
}

impl Allocated {
    /// The records; `None` if they cannot be read.
    #[must_use]
    pub fn entries(&self) -> Option<&Entries> {
        static NONE: Entries = Entries { by_ip: BTreeMap::new(), odd: BTreeSet::new() };
        match self {
            Self::Nothing => Some(&NONE),
            Self::Text(entries) | Self::Map(entries) => Some(entries),
            Self::Broken(_) => None,
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

impl From<Written> for Entry {
    fn from(written: Written) -> Self {
        let Written { pod, pod_uid, namespace, container_id } = written;
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        let identity = match (said(pod_uid), said(container_id)) {
            (Some(uid), _) => Identity::Pod(Uid::read(&uid)),
            (None, Some(container)) => Identity::Container(container.into()),
            (None, None) => Identity::Unsaid,
        };
        // The older form has the two in fields of their own.
        let pod = pod.unwrap_or_default();
        let holder = match said(namespace) {
            Some(namespace) if !pod.contains('/') => format!("{namespace}/{pod}"),
            _ => pod,
        };
        Self { holder, identity }
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Entries;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("addresses with their records")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Entries, M::Error> {
                let mut entries = Entries::default();
                let mut keys: BTreeMap<IpAddr, String> = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let Ok(ip) = key.parse::<IpAddr>() else {
                        map.next_value::<IgnoredAny>()?;
                        entries.odd.insert(key);
                        continue;
                    };
                    let written: Option<Written> = map.next_value()?;
                    entries.by_ip.insert(ip, written.unwrap_or_default().into());
                    if let Some(before) = keys.insert(ip, key.clone()) {
                        entries.odd.extend([before, key]);
                    }
                }
                // Of an address that is there twice nobody knows whose it is.
                let Entries { by_ip, odd } = &mut entries;
                by_ip.retain(|ip, _| !odd.contains(&keys[ip]));
                Ok(entries)
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
                // Go writes a map that is nothing as null.
                Ok(match serde_json::from_str::<Option<Entries>>(text) {
                    _ if text.is_empty() => Allocated::Nothing,
                    Ok(entries) => Allocated::Text(entries.unwrap_or_default()),
                    Err(e) => Allocated::Broken(e.to_string()),
                })
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Allocated, M::Error> {
                // One pool that cannot be read must not hide the others of its list.
                let value = Value::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(serde_json::from_value(value).map_or_else(|e| Allocated::Broken(e.to_string()), Allocated::Map))
            }
            fn visit_unit<E: de::Error>(self) -> Result<Allocated, E> {
                Ok(Allocated::Nothing)
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Allocated, E> {
                Ok(Allocated::Broken(format!("it is {value}")))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Allocated, E> {
                Ok(Allocated::Broken(format!("it is {value}")))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Allocated, E> {
                Ok(Allocated::Broken(format!("it is {value}")))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Allocated, E> {
                Ok(Allocated::Broken(format!("it is {value}")))
            }
            fn visit_seq<S: de::SeqAccess<'de>>(self, mut seq: S) -> Result<Allocated, S::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Allocated::Broken("it is a list".to_owned()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// What is to be written to a status so that these records are gone and the count is right; `None` if
/// what stands there cannot be read.
#[must_use]
pub fn without(allocated: &Value, gone: &BTreeSet<IpAddr>) -> Option<Value> {
    let is_gone = |key: &str| key.parse::<IpAddr>().is_ok_and(|ip| gone.contains(&ip));
    match allocated {
        Value::Null => Some(json!({ "allocatedIPCount": 0 })),
        Value::String(text) if text.is_empty() => Some(json!({ "allocatedIPCount": 0 })),
        Value::String(text) => {
            let records: Option<BTreeMap<String, Box<RawValue>>> = serde_json::from_str(text).ok()?;
            let mut records = records.unwrap_or_default();
            records.retain(|key, _| !is_gone(key));
            let text = serde_json::to_string(&records).ok()?;
            // It is absent when there are none.
            let text = if records.is_empty() { Value::Null } else { Value::String(text) };
            Some(json!({ "allocatedIPs": text, "allocatedIPCount": records.len() }))
        }
        Value::Object(records) => {
            let (gone, left): (Vec<&String>, Vec<&String>) = records.keys().partition(|key| is_gone(key));
            let nulls: serde_json::Map<String, Value> =
                gone.into_iter().map(|key| (key.clone(), Value::Null)).collect();
            Some(json!({ "allocatedIPs": nulls, "allocatedIPCount": left.len() }))
        }
        _ => None,
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
        let entry = |a: &Allocated| a.entries().unwrap().by_ip[&ip("10.0.0.1")].clone();
        assert_eq!(entry(&today), Entry { holder: holder(), identity: Identity::Pod(Uid::read(UID)) });
        assert_eq!(entry(&before), Entry { holder: holder(), identity: Identity::Container("c1".into()) });
        assert!(matches!((today, before), (Allocated::Text(_), Allocated::Map(_))));
    }

    #[rstest]
    #[case::cut_off(json!("{\"10.0.0.1\":{"))]
    #[case::another_thing(json!("[]"))]
    #[case::a_number(json!(7))]
    #[case::a_list(json!([1]))]
    #[case::a_negative_number(json!(-7))]
    #[case::a_fraction(json!(0.5))]
    #[case::a_map_of_numbers(json!({ "10.0.0.1": 7 }))]
    #[case::records_that_are_none(json!("{\"10.0.0.1\":7}"))]
    fn what_is_no_record_is_broken(#[case] value: Value) {
        assert!(matches!(read(value.clone()), Allocated::Broken(_)), "{:?}", read(value));
    }

    #[rstest]
    #[case::null(json!(null))]
    #[case::empty(json!(""))]
    #[case::an_empty_map(json!({}))]
    #[case::null_in_a_string(json!("null"))]
    fn no_records_are_no_records(#[case] value: Value) {
        assert_eq!(read(value).entries(), Some(&Entries::default()));
    }

    #[test]
    fn a_key_that_is_no_address_is_told_and_hinders_nobody() {
        let read = read(json!(r#"{"ten":{"pod":"a/b"},"10.0.0.1":{"pod":"a/b"},"fd00::1":{},"fd00:0::1":{}}"#));

        let entries = read.entries().unwrap();
        assert_eq!(
            entries.by_ip.keys().copied().collect::<Vec<_>>(),
            [ip("10.0.0.1")],
            "of fd00::1 nobody knows whose it is"
        );
        assert_eq!(entries.odd, ["fd00:0::1", "fd00::1", "ten"].map(str::to_owned).into());
    }

    #[test]
    fn what_is_left_is_written_as_it_stood() {
        let text = r#"{"10.0.0.1":{"pod":"a/b","podUid":"1","new":[1, 2]},"10.0.0.2":{"pod":"a/c"},"ten":{}}"#;

        let one = without(&json!(text), &[ip("10.0.0.2")].into()).unwrap();
        assert_eq!(one["allocatedIPs"], r#"{"10.0.0.1":{"pod":"a/b","podUid":"1","new":[1, 2]},"ten":{}}"#);
        assert_eq!(one["allocatedIPCount"], 2);

        let none = without(&json!(r#"{"10.0.0.2":{"pod":"a/c"}}"#), &[ip("10.0.0.2")].into()).unwrap();
        assert_eq!(none, json!({ "allocatedIPs": null, "allocatedIPCount": 0 }));
    }

    #[test]
    fn in_the_older_form_only_what_goes_is_written() {
        let map = json!({ "10.0.0.1": { "pod": "b" }, "10.0.0.2": { "pod": "c" } });

        let patch = without(&map, &[ip("10.0.0.2")].into()).unwrap();

        assert_eq!(patch, json!({ "allocatedIPs": { "10.0.0.2": null }, "allocatedIPCount": 1 }));
    }
}
