//! A small allocator that works as Spiderpool's agent: it reads a pool, writes it on condition of its
//! resourceVersion, and tries again after a conflict.

use std::collections::BTreeMap;

use caretaker_addresses::api;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

use super::Corner;
use crate::support::objects;

/// The addresses that are really in use, by the uid of the pod.
#[derive(Debug, Default)]
pub struct Cni {
    /// Name and address of each running pod.
    pub live: BTreeMap<String, (String, String)>,
    pub conflicts: usize,
    /// The node that endpoints name, if it is not the one that does not exist.
    pub node: Option<String>,
}

impl Cni {
    /// Allocates an address to a pod; `None` if there is none. As Spiderpool does it, a pod of a StatefulSet
    /// gets what its endpoint reserves, and its record is updated if there is one. Any other pod gets a free
    /// address.
    pub async fn add(&mut self, corner: &Corner, key: &str, uid: &str, free: &[String]) -> Option<String> {
        let in_set = api::ordinal(key).is_some();
        loop {
            let endpoint = self.endpoint(corner, key).await;
            let reserved = endpoint.as_ref().filter(|_| in_set).and_then(|e| {
                let ip = e.data["status"]["current"]["ips"][0]["ipv4"].as_str()?;
                Some(ip.split('/').next()?.to_owned())
            });
            let ip = self.write(corner, |records| {
                let own = || records.iter().find(|(_, record)| record["podUid"] == uid).map(|(ip, _)| ip.clone());
                let any = || free.iter().find(|ip| !records.contains_key(*ip)).cloned();
                // Where no address is free, it finds a record of its own.
                let ip = reserved.clone().or_else(any).or_else(own)?;
                if reserved.is_none() || records.contains_key(&ip) {
                    records.insert(ip.clone(), json!({ "pod": key, "podUid": uid }));
                }
                Some(ip)
            });
            let ip = ip.await?;
            if !self.write_endpoint(corner, key, uid, &ip, endpoint).await {
                continue;
            }
            let taken = self.live.values().find(|(_, theirs)| *theirs == ip);
            assert_eq!(taken, None, "{key} gets {ip}, which a running pod has");
            self.live.insert(uid.to_owned(), (key.to_owned(), ip.clone()));
            return Some(ip);
        }
    }

    async fn endpoint(&self, corner: &Corner, key: &str) -> Option<DynamicObject> {
        let (namespace, name) = key.split_once('/').unwrap();
        corner.endpoints_in(namespace).get_opt(name).await.unwrap()
    }

    /// Writes the endpoint after the record, if it is still what was read; false if everything must be done
    /// again, because a collector deletes the previous endpoint.
    async fn write_endpoint(
        &mut self,
        corner: &Corner,
        key: &str,
        uid: &str,
        ip: &str,
        before: Option<DynamicObject>,
    ) -> bool {
        let (namespace, name) = key.split_once('/').unwrap();
        let endpoints = corner.endpoints_in(namespace);
        let object = if api::ordinal(key).is_some() { objects::set_endpoint } else { objects::endpoint };
        let mut object = super::bare(object(key, uid, &[ip]));
        if let Some(node) = &self.node {
            object["status"]["current"]["node"] = json!(node);
        }
        let written = if let Some(before) = before {
            let condition = json!({ "uid": before.uid(), "resourceVersion": before.resource_version() });
            let patch = Patch::Merge(json!({ "metadata": condition, "status": object["status"] }));
            endpoints.patch(name, &PatchParams::default(), &patch).await
        } else {
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            endpoints.create(&PostParams::default(), &object).await
        };
        match written {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if [404, 409, 422].contains(&status.code) => {
                self.conflicts += 1;
                false
            }
            Err(e) => panic!("{e}"),
        }
    }

    /// The pod is gone, and its node has released nothing.
    pub fn lose(&mut self, uid: &str) {
        self.live.remove(uid);
    }

    /// The node of a pod releases its addresses.
    pub async fn del(&mut self, corner: &Corner, key: &str, uid: &str) {
        self.lose(uid);
        self.write(corner, |records| {
            records.retain(|_, record| record["podUid"] != uid);
            Some(())
        })
        .await;
        let (namespace, name) = key.split_once('/').unwrap();
        let endpoints = corner.endpoints_in(namespace);
        if self.endpoint(corner, key).await.is_some_and(|e| e.data["status"]["current"]["uid"] == uid) {
            // The collector may have been faster.
            let _ = endpoints.delete(name, &DeleteParams::default()).await;
            let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            let _ = endpoints.patch(name, &PatchParams::default(), &patch).await;
        }
    }

    /// Changes the records on condition of the resourceVersion, until there is no conflict.
    async fn write<T>(
        &mut self,
        corner: &Corner,
        mut change: impl FnMut(&mut Map<String, Value>) -> Option<T>,
    ) -> Option<T> {
        loop {
            let pool = corner.pools().get(&corner.name).await.unwrap();
            let text = pool.data["status"]["allocatedIPs"].as_str().unwrap_or("{}");
            let mut records: Map<String, Value> = serde_json::from_str(text).unwrap();
            let value = change(&mut records)?;
            let count = records.len();
            let allocated = if records.is_empty() { Value::Null } else { json!(Value::Object(records).to_string()) };
            let patch = json!({
                "metadata": { "resourceVersion": pool.resource_version() },
                "status": { "allocatedIPs": allocated, "allocatedIPCount": count },
            });
            match corner.pools().patch_status(&corner.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => return Some(value),
                Err(kube::Error::Api(status)) if status.code == 409 => self.conflicts += 1,
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Checks that every running pod has a record of its address.
    pub async fn check(&self, corner: &Corner) {
        let records = corner.records().await;
        for (uid, (key, ip)) in &self.live {
            let record = records.get(ip).unwrap_or_else(|| panic!("{ip} of {key} was released"));
            assert_eq!((record["pod"].as_str(), record["podUid"].as_str()), (Some(key.as_str()), Some(uid.as_str())));
        }
    }
}
