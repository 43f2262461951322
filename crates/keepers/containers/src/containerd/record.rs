//! Records of containers, read leniently: containerd 1 stores labels that are not UTF-8, and one such record must not
//! keep the others from being read.

use caretaker_core::Timestamp;
use prost::Message;

use crate::api::CRI_ANNOTATIONS;
use crate::subject::Container;

/// A record, as far as it is read. What the protocol calls a string is read as bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Record {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    /// A map is a list of entries on the wire.
    #[prost(message, repeated, tag = "2")]
    labels: Vec<Label>,
    #[prost(message, optional, tag = "5")]
    spec: Option<Spec>,
    #[prost(bytes = "vec", tag = "6")]
    snapshotter: Vec<u8>,
    #[prost(bytes = "vec", tag = "7")]
    snapshot_key: Vec<u8>,
    #[prost(message, optional, tag = "8")]
    created_at: Option<prost_types::Timestamp>,
}

/// An entry of the map of labels.
#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The OCI spec, as JSON.
#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The answer to `Get`, and a message of `ListStream`: both have the record in the same place.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordMessage {
    #[prost(message, optional, tag = "1")]
    pub(super) container: Option<Record>,
}

/// Reads text; notes what is not UTF-8.
fn text(bytes: Vec<u8>, what: &str, unreadable: &mut Option<String>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let shown = String::from_utf8_lossy(error.as_bytes()).into_owned();
        unreadable.get_or_insert_with(|| format!("{what} is not UTF-8: {shown:?}"));
        shown
    })
}

/// When something was created. Go's zero time is the year 1, and nothing is older than the epoch.
pub(super) fn time_of(at: prost_types::Timestamp) -> Option<Timestamp> {
    if at.seconds > 0 { Timestamp::new(at.seconds, at.nanos).ok() } else { None }
}

impl From<Record> for Container {
    fn from(record: Record) -> Self {
        let mut unreadable = None;
        let created = record.created_at.and_then(time_of);
        let cgroup = record.spec.as_ref().and_then(|spec| cgroup_of(&spec.value)).unwrap_or_default();
        let id = text(record.id, "its ID", &mut unreadable);
        let mut labels = std::collections::BTreeMap::new();
        for label in record.labels {
            let key = text(label.key, "the key of a label", &mut unreadable);
            let value = text(label.value, &format!("the value of the label {key}"), &mut unreadable);
            labels.insert(key, value);
        }
        let snapshotter = text(record.snapshotter, "its snapshotter", &mut unreadable);
        let snapshot_key = text(record.snapshot_key, "the key of its snapshot", &mut unreadable);
        Self { id, created, labels, snapshotter, snapshot_key, cgroup, unreadable }
    }
}

/// The control group that the OCI spec names.
pub(crate) fn cgroup_of(spec: &[u8]) -> Option<String> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Linux {
        cgroups_path: String,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct OciSpec {
        linux: Linux,
    }
    let spec: OciSpec = serde_json::from_slice(spec).ok()?;
    Some(spec.linux.cgroups_path).filter(|path| !path.is_empty())
}

/// True if an annotation of the OCI spec says that the kubelet has made its container.
pub(crate) fn is_spec_of_kubelet(spec: &[u8]) -> bool {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct OciSpec {
        annotations: std::collections::BTreeMap<String, serde_json::Value>,
    }
    let spec: OciSpec = serde_json::from_slice(spec).unwrap_or_default();
    spec.annotations.keys().any(|key| key.starts_with(CRI_ANNOTATIONS))
}

#[cfg(test)]
mod tests {
    use containerd_client::services::v1 as api;

    use super::*;

    /// As it comes over the wire.
    fn read(record: &api::Container) -> Container {
        Record::decode(record.encode_to_vec().as_slice()).unwrap().into()
    }

    #[test]
    fn a_record_without_a_time_has_no_creation() {
        let zero = |seconds| prost_types::Timestamp { seconds, nanos: 0 };
        let read = |created_at| read(&api::Container { created_at, ..Default::default() }).created;

        assert_eq!((read(None), read(Some(zero(-62_135_596_800))), read(Some(zero(0)))), (None, None, None));
        assert!(read(Some(zero(1_800_000_000))).is_some());
    }

    #[test]
    fn everything_that_is_read_of_a_record_is_where_the_protocol_has_it() {
        let spec = br#"{"linux":{"cgroupsPath":"/a/sb-1"}}"#;
        let record = api::Container {
            id: "sb-1".into(),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            image: "image".into(),
            spec: Some(prost_types::Any { type_url: "spec".into(), value: spec.to_vec() }),
            snapshotter: "overlayfs".into(),
            snapshot_key: "sb-1-snapshot".into(),
            created_at: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 7 }),
            ..Default::default()
        };

        let expected = Container {
            id: "sb-1".into(),
            created: Timestamp::new(1_800_000_000, 7).ok(),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            snapshotter: "overlayfs".into(),
            snapshot_key: "sb-1-snapshot".into(),
            cgroup: "/a/sb-1".into(),
            unreadable: None,
        };
        assert_eq!(read(&record), expected);
    }

    #[test]
    fn what_is_not_utf_8_is_named_and_does_not_fail() {
        let label = |key: &[u8], value: &[u8]| Label { key: key.to_vec(), value: value.to_vec() };
        let with = |labels| Container::from(Record { id: b"sb-1".to_vec(), labels, ..Default::default() });

        assert_eq!(with(vec![label(b"a", "ä".as_bytes())]).unreadable, None);
        let value = with(vec![label(b"a", b"x\xff")]).unreadable.unwrap();
        assert!(value.contains("label a"), "{value}");
        assert!(with(vec![label(b"\xc3", b"x")]).unreadable.is_some());
        let key = Record { snapshot_key: b"\xff".to_vec(), ..Default::default() };
        assert!(Container::from(key).unreadable.is_some());
    }
}
