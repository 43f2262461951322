//! What a program is made of, from cargo's own resolution of its dependencies: a CycloneDX list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use caretaker_test_programs::workspace;
use caretaker_testkit::go_build::succeeded;
use caretaker_testkit::{Error, Result};

use crate::images::cargo;

/// The output of `cargo metadata`, as far as it is used.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    #[serde(rename = "target_directory")]
    pub(crate) target_folder: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// `dev` or `build`; neither is part of the program.
    kind: Option<String>,
}

/// Asks cargo about the workspace, for this target.
pub(crate) fn metadata(target: &str) -> Result<Metadata> {
    let args = ["metadata", "--format-version=1", "--locked", "--filter-platform", target];
    let output = Command::new(cargo()).current_dir(workspace()).args(args).stdin(Stdio::null()).output();
    let output = succeeded("the list of crates", output)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|e| Error::Build { what: "the list of crates".to_owned(), why: e.to_string() })
}

impl Metadata {
    /// Returns the version of a program of the workspace.
    ///
    /// # Panics
    /// If there is no such package.
    pub(crate) fn version_of(&self, program: &str) -> &str {
        &self.own(program).version
    }

    /// A package of the workspace: those have no source.
    fn own(&self, name: &str) -> &Package {
        let found = self.packages.iter().find(|package| package.name == name && package.source.is_none());
        found.unwrap_or_else(|| panic!("the workspace has no package {name}"))
    }

    /// The list for one program as a JSON text; the same for the same sources.
    pub(crate) fn sbom(&self, program: &str) -> String {
        let packages: BTreeMap<&str, &Package> = self.packages.iter().map(|p| (p.id.as_str(), p)).collect();
        let root = self.own(program);
        let linked = self.linked_into(&root.id);
        let parts = linked.keys().filter(|id| **id != root.id).map(|id| component(packages[id], "library"));
        let mut parts: Vec<Value> = parts.collect();
        parts.sort_by_key(|part| part["bom-ref"].to_string());
        let mut edges: Vec<Value> = linked
            .iter()
            .map(|(id, on)| {
                let on: BTreeSet<String> = on.iter().map(|id| package_url(packages[id])).collect();
                json!({ "ref": package_url(packages[id]), "dependsOn": on })
            })
            .collect();
        edges.sort_by_key(|edge| edge["ref"].to_string());
        let list = json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": { "component": component(root, "application") },
            "components": parts, "dependencies": edges,
        });
        format!("{list:#}\n")
    }

    /// The packages that are linked into one, itself included, each with those that it uses itself.
    fn linked_into<'a>(&'a self, root: &'a str) -> BTreeMap<&'a str, Vec<&'a str>> {
        let nodes: BTreeMap<&str, &Node> = self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let (mut linked, mut queue) = (BTreeMap::new(), vec![root]);
        while let Some(id) = queue.pop() {
            if linked.contains_key(id) {
                continue;
            }
            let is_linked = |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
            let on = nodes.get(id).into_iter().flat_map(|node| &node.deps).filter(is_linked);
            let on: Vec<&str> = on.map(|dependency| dependency.pkg.as_str()).collect();
            queue.extend(&on);
            linked.insert(id, on);
        }
        linked
    }
}

/// How lists of software name a crate.
fn package_url(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

fn component(package: &Package, kind: &str) -> Value {
    let url = package_url(package);
    let mut component =
        json!({ "type": kind, "bom-ref": url, "name": package.name, "version": package.version, "purl": url });
    if let Some(license) = &package.license {
        // Older crates write a slash for "or".
        let alternatives: Vec<&str> = license.split('/').map(str::trim).collect();
        component["licenses"] = json!([{ "expression": alternatives.join(" OR ") }]);
    }
    if let Some(description) = &package.description {
        component["description"] = json!(description.trim());
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata_of(text: &Value) -> Metadata {
        serde_json::from_value(text.clone()).unwrap()
    }

    #[test]
    fn the_list_has_what_is_linked_and_not_what_only_builds_or_tests_it() {
        let package = |name: &str, source: Option<&str>| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source });
        let uses = |pkg: &str, kind: Option<&str>| json!({ "pkg": pkg, "dep_kinds": [{ "kind": kind }] });
        let metadata = metadata_of(&json!({
            "packages": [
                package("program", None), package("library", Some("registry")), package("deep", Some("registry")),
                package("builder", Some("registry")), package("tester", Some("registry")),
            ],
            "resolve": { "nodes": [
                { "id": "program", "deps": [
                    uses("library", None), uses("builder", Some("build")), uses("tester", Some("dev")),
                ] },
                { "id": "library", "deps": [uses("deep", None)] },
                { "id": "deep", "deps": [] },
            ] },
            "target_directory": "/nowhere",
        }));

        let list: Value = serde_json::from_str(&metadata.sbom("program")).unwrap();

        let names: Vec<&Value> = list["components"].as_array().unwrap().iter().map(|part| &part["name"]).collect();
        assert_eq!(names, ["deep", "library"]);
        assert_eq!(list["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(list["metadata"]["component"]["purl"], "pkg:cargo/program@1.0.0");
        assert_eq!(list["dependencies"][1]["dependsOn"], json!(["pkg:cargo/deep@1.0.0"]));
    }

    const POLICY: &str = include_str!("../../../deny.toml");

    /// Licences under which a crate may be linked into what is shipped under Apache-2.0.
    fn permitted() -> Vec<&'static str> {
        let list = POLICY.split_once("\nallow = [").and_then(|(_, rest)| rest.split_once("\n]")).unwrap().0;
        list.split('"').skip(1).step_by(2).collect()
    }

    /// True if every licence that an expression names is permitted, so that no choice has to be made.
    fn is_permitted(expression: &str) -> bool {
        let plain = expression.replace('/', " OR ").replace(" AND ", " OR ").replace(['(', ')'], "");
        plain.split(" OR ").all(|licence| permitted().contains(&licence.trim()))
    }

    #[test]
    fn what_is_linked_has_a_permitted_licence_and_comes_from_the_registry_or_this_workspace() {
        let metadata = metadata(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH)).unwrap();
        let packages: BTreeMap<&str, &Package> = metadata.packages.iter().map(|p| (p.id.as_str(), p)).collect();

        for program in ["caretaker", "caretaker-node"] {
            let linked = metadata.linked_into(&metadata.own(program).id);
            assert!(linked.len() > 100, "{program}: {}", linked.len());
            for package in linked.keys().map(|id| packages[id]) {
                let licence = package.license.as_deref().unwrap_or("none");
                assert!(is_permitted(licence), "{} {}: {licence}", package.name, package.version);
                let source = package.source.as_deref().unwrap_or("registry");
                assert!(source.starts_with("registry"), "{} comes from {source}", package.name);
            }
        }
        assert!(
            !is_permitted("GPL-3.0") && !is_permitted("(MIT OR Apache-2.0) AND GPL-3.0") && is_permitted("MIT / ISC")
        );
    }
}
