//! What the reader takes, and how it speaks of what it cannot take.

use super::*;
use rstest::rstest;

fn take(text: &str) -> Manifests {
    let mut all = Manifests::default();
    all.take(Path::new("a.yaml"), text.as_bytes());
    all
}

fn names(all: &Manifests) -> Vec<String> {
    all.found.iter().map(|f| format!("{}:{}/{}", f.line, f.kind, f.object.metadata.name)).collect()
}

const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n";

#[rstest]
#[case::one(NAMESPACE, &["1:Namespace/a"])]
#[case::many(&format!("---\n{NAMESPACE}---\n# nothing\n---\n{NAMESPACE}"), &["2:Namespace/a", "9:Namespace/a"])]
#[case::windows_line_ends(&NAMESPACE.replace('\n', "\r\n"), &["1:Namespace/a"])]
#[case::kubectl_list(
    "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata:\n    name: a\n- kind: Namespace\n  metadata: {name: b}\nkind: List\nmetadata:\n  resourceVersion: \"\"\n",
    &["3:Namespace/a", "7:Namespace/b"]
)]
#[case::indented_list(
    "kind: List\napiVersion: v1\nitems:\n  - kind: Namespace\n    metadata:\n      name: a\n  - kind: Service\n    metadata:\n      name: s\n",
    &["4:Namespace/a", "7:Service/s"]
)]
#[case::typed_list_without_kinds("kind: NamespaceList\nitems:\n- metadata:\n    name: a\n", &["3:Namespace/a"])]
#[case::flow_style("{kind: Namespace, metadata: {name: a}}", &["1:Namespace/a"])]
#[case::flow_list("kind: List\nitems: [{kind: Namespace, metadata: {name: a}}]\n", &["1:Namespace/a"])]
#[case::quoted_kind("\"kind\": \"Namespace\"\nmetadata:\n  name: a\n", &["1:Namespace/a"])]
#[case::json(r#"{"kind":"Namespace","metadata":{"name":"a"}}"#, &["1:Namespace/a"])]
#[case::json_documents("{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"b\"}}", &["1:Namespace/a", "2:Namespace/b"])]
#[case::json_list(r#"{"kind":"List","items":[{"kind":"Namespace","metadata":{"name":"a"}}]}"#, &["1:Namespace/a"])]
#[case::json_typed_list(r#"{"items":[{"metadata":{"name":"a"}}],"kind":"NamespaceList"}"#, &["1:Namespace/a"])]
#[case::nothing_set("kind: Namespace\nmetadata:\n  name: a\n  labels:\n  annotations: null\nspec: null\nstatus:\n", &["1:Namespace/a"])]
#[case::a_kind_inside_another("kind: Namespace\nmetadata:\n  name: a\n  annotations:\n    x: |\n      kind: Pod\n", &["1:Namespace/a"])]
fn reads(#[case] text: &str, #[case] expected: &[&str]) {
    let all = take(text);

    assert_eq!(names(&all), expected);
    assert!(all.problems.is_empty(), "{:?}", all.problems);
}

#[test]
fn other_kinds_are_skipped_and_counted_without_being_parsed() {
    let all = take(
        "kind: Pod\nmetadata: [this is no metadata\n---\nkind: Secret\n---\nkind: Namespace\nmetadata:\n  name: a\n",
    );

    assert_eq!((names(&all).len(), all.skipped, all.problems.len()), (1, 2, 0));
}

#[rstest]
#[case::cut_in_a_document(
    "kind: Namespace\nmetadata:\n  name: a\n---\nkind: Namespace\nmetadata:\n  name: \"b",
    "a.yaml:7: Namespace b: "
)]
#[case::cut_in_a_list(
    "kind: List\nitems:\n- kind: Namespace\n  metadata:\n    name: a\n- kind: Namespace\n  metadata:\n    name: \"b",
    "a.yaml:8: Namespace b: "
)]
#[case::cut_in_json("{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"Names", "a.yaml:2: ")]
#[case::wrong_type(
    "kind: Namespace\nmetadata:\n  name: a\n---\nkind: Deployment\nmetadata:\n  name: d\nspec:\n  replicas: three\n",
    "a.yaml:9: Deployment d: "
)]
#[case::no_kind("kind: Namespace\nmetadata:\n  name: a\n---\nmetadata:\n  name: x\n", "a.yaml:5: ")]
fn what_cannot_be_read_is_named_and_the_rest_goes_on(#[case] text: &str, #[case] place: &str) {
    let all = take(text);

    assert_eq!(all.found.len(), 1, "{:?}", all.found);
    let problem = all.problems.first().expect("it is named").to_string();
    assert!(problem.starts_with(place), "{problem}");
}

#[test]
fn what_is_not_text_is_named() {
    let mut all = Manifests::default();
    all.take(Path::new("a.yaml"), b"kind: Namespace\n\xff\xfe");

    assert_eq!(all.problems[0].to_string(), "a.yaml:2: not UTF-8 text; save it as UTF-8");
}

#[test]
fn our_own_config_maps_are_found_among_others() {
    let all = take(
        "kind: ConfigMap\nmetadata:\n  name: caretaker-state\n  namespace: caretaker-system\ndata:\n  namespaces: '{}'\n---\nkind: ConfigMap\nmetadata:\n  name: other\n",
    );

    assert_eq!(all.settings["caretaker-state"]["namespaces"], "{}");
    assert_eq!(all.skipped, 1);
}

/// A Deployment long enough to be read in short, with words of its own in all the wrong places.
fn long_deployment(replicas: &str) -> String {
    let filler: Vec<String> = (0..60).map(|i| format!("        k{i}: []\n")).collect();
    let filler = filler.concat();
    format!(
        "kind: Deployment\nmetadata:\n  name: d\n  annotations:\n    note: |\n      containers:\n      status:\n      kept\nspec:\n  template:\n    spec:\n      containers:\n      - name: a\n{filler}      nodeSelector:\n        x: \"1\"\n  replicas: {replicas}\nstatus:\n  replicas: 9\n---\n{NAMESPACE}"
    )
}

#[test]
fn what_is_left_out_before_parsing_changes_nothing_that_matters() {
    let all = take(&long_deployment("3"));

    let found = &all.found[0];
    assert_eq!(found.object.metadata.annotation("note"), Some("containers:\nstatus:\nkept\n"));
    let mut observation = observe::Observation::default();
    all.found.iter().for_each(|f| observation.add(&f.kind, &f.object));
    let mut deployment = found.object.clone();
    deployment.metadata.namespace = "a".to_owned();
    observation.add("Deployment", &deployment);
    assert_eq!(observation.subjects()[0].workloads[0].to_string(), "Deployment/d: 3 replicas");
}

#[test]
fn what_fails_in_short_is_named_by_its_place_in_full() {
    let text = long_deployment("three");
    let line = text.lines().position(|l| l.contains("three")).unwrap() + 1;

    let all = take(&text);

    assert!(all.problems[0].to_string().starts_with(&format!("a.yaml:{line}: Deployment d: ")), "{}", all.problems[0]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_text_makes_it_panic(text in "(kind: (Namespace|List|Deployment)\n|items:\n|- |  |metadata:\n|name: a\n|---\n|\\{|\\}|\"|[a-z\u{e9}:\\[ \n]){0,40}") {
        take(&text);
    }

    #[test]
    fn nor_any_other(text in proptest::prelude::any::<String>()) {
        take(&text);
    }
}
