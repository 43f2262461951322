//! Which texts are read, and how errors are reported.

use super::*;
use std::sync::{Arc, LazyLock};

use caretaker_engine::Rows;
use caretaker_engine::source::{Change, Observed};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::observe::NamespaceCache;
use proptest::prelude::*;
use rstest::rstest;

use crate::keepers::toy::{Toy, Toys};

/// The sources of the namespaces keeper.
fn namespaces() -> &'static Sources<NamespaceCache> {
    static SOURCES: LazyLock<Arc<Sources<NamespaceCache>>> = LazyLock::new(|| Sources::of(&Namespaces::default()));
    &SOURCES
}

/// What the namespaces keeper finds in files.
struct Decoded {
    found: Vec<Found<'static, Delivered<NamespaceCache>>>,
    operator: OperatorConfigMaps,
    skipped: usize,
    files: usize,
    problems: Vec<Problem>,
}

fn decode(text: &str) -> Decoded {
    let mut files = RawFiles::default();
    files.add("a.yaml".into(), text.as_bytes().to_vec());
    decode_files(files)
}

fn decode_files(files: RawFiles) -> Decoded {
    // What a test leaks is freed when it ends.
    let mut all = ManifestSet::split(Box::leak(Box::new(files)));
    let sources = namespaces();
    let found = all.decode(sources);
    let skipped = all.skipped(|api_version, kind| sources.reads_kind(api_version, kind));
    Decoded { found, skipped, operator: all.operator, files: all.files, problems: all.problems }
}

/// The name of an object, whether or not the keeper needs it.
fn name_of((_, change): &Delivered<NamespaceCache>) -> &str {
    match change {
        Change::Apply(Observed { id, .. }) | Change::Delete(id) => &id.name,
        _ => panic!("a file delivers objects"),
    }
}

fn names(all: &Decoded) -> Vec<String> {
    all.found.iter().map(|f| format!("{}:{}/{}", f.line, f.kind, name_of(&f.object))).collect()
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
#[case::content_behind_the_separator("--- {kind: Namespace, metadata: {name: a}}\n--- # a comment\n{kind: Namespace, metadata: {name: b}}\n", &["1:Namespace/a", "3:Namespace/b"])]
#[case::anchored_kind("kind: &k Namespace\nmetadata:\n  name: a\n", &["1:Namespace/a"])]
#[case::tagged_kind("kind: !!str Namespace\nmetadata:\n  name: a\n", &["1:Namespace/a"])]
#[case::folded_kind("kind: >-\n  Namespace\nmetadata:\n  name: a\n", &["1:Namespace/a"])]
#[case::json_documents_with_yaml_separators(
    "{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}}\n---\n{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"b\"}}\n---\nkind: Namespace\nmetadata: {name: c}\n",
    &["1:Namespace/a", "3:Namespace/b", "5:Namespace/c"]
)]
#[case::directives("%YAML 1.2\n---\nkind: Namespace\nmetadata: {name: a}\n...\n# b\n%YAML 1.2\n---\nkind: Namespace\nmetadata: {name: b}\n", &["3:Namespace/a", "9:Namespace/b"])]
#[case::json_array("[\n{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}},\n{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"b\"}}]", &["2:Namespace/a", "3:Namespace/b"])]
#[case::json_array_of_lists(r#"[{"kind":"List","items":[{"kind":"Namespace","metadata":{"name":"a"}}]}]"#, &["1:Namespace/a"])]
#[case::sequence("# all\n- kind: Namespace\n  metadata: {name: a}\n\n- kind: Namespace\n  metadata: {name: b}\n", &["2:Namespace/a", "5:Namespace/b"])]
#[case::flow_sequence("[{kind: Namespace, metadata: {name: a}}]", &["1:Namespace/a"])]
#[case::list_in_a_list("kind: List\nitems:\n- kind: NamespaceList\n  items:\n  - metadata: {name: a}\n", &["3:Namespace/a"])]
#[case::comment_before_the_items("kind: List\nitems:\n# first\n\n- kind: Namespace\n  metadata: {name: a}\n", &["5:Namespace/a"])]
#[case::json_list_by_line(
    "{\"kind\": \"List\",\n\"items\": [\n{\"kind\": \"Namespace\",\n\"metadata\": {\"name\": \"a\"}},\n{\"kind\": \"Service\",\n\"metadata\": {\"name\": \"s\"}}\n]}",
    &["3:Namespace/a", "5:Service/s"]
)]
#[case::nothing_set("kind: Namespace\nmetadata:\n  name: a\n  labels:\n  annotations: null\nspec: null\nstatus:\n", &["1:Namespace/a"])]
#[case::a_kind_inside_another("kind: Namespace\nmetadata:\n  name: a\n  annotations:\n    x: |\n      kind: Pod\n", &["1:Namespace/a"])]
fn reads(#[case] text: &str, #[case] expected: &[&str]) {
    let all = decode(text);

    assert_eq!(names(&all), expected);
    assert!(all.problems.is_empty(), "{:?}", all.problems);
}

#[test]
fn other_kinds_are_skipped_and_counted_without_being_parsed() {
    let all = decode(
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
#[case::bad_item_after_a_comment(
    "kind: List\nitems:\n# first\n- kind: Namespace\n  metadata: {name: a}\n- kind: Deployment\n  metadata:\n    name: d\n  spec:\n    replicas: three\n",
    "a.yaml:10: Deployment d: "
)]
#[case::bad_item_of_a_flow_list(
    "kind: List\nitems: [{kind: Namespace, metadata: {name: a}}, {kind: Deployment, metadata: {name: d}, spec: {replicas: three}}]\n",
    "a.yaml:1: Deployment d: "
)]
#[case::wrong_type_in_a_json_list(
    "{\"kind\":\"List\",\"items\":[\n{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}},\n{\"kind\":\"Deployment\",\n\"metadata\":{\"name\":\"d\"},\n\"spec\":{\"replicas\":\"three\"}}]}",
    "a.yaml:5: Deployment d: "
)]
#[case::after_a_broken_json_document(
    "{\"kind\":\n}\n---\n{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}}",
    "a.yaml:2: not JSON to its end"
)]
#[case::items_that_are_not_a_list(
    "kind: List\nitems:\n  a: b\n---\nkind: Namespace\nmetadata: {name: a}\n",
    "a.yaml:1: "
)]
#[case::no_kind("kind: Namespace\nmetadata:\n  name: a\n---\nmetadata:\n  name: x\n", "a.yaml:5: ")]
fn what_cannot_be_read_is_reported_and_the_rest_goes_on(#[case] text: &str, #[case] place: &str) {
    let all = decode(text);

    assert_eq!(all.found.len(), 1, "{:?}", all.found);
    let problem = all.problems.first().expect("it is reported").to_string();
    assert!(problem.starts_with(place), "{problem}");
    assert!(!problem.contains(" at line "), "only the file and the line give the position: {problem}");
}

#[test]
fn a_file_that_is_not_text_is_reported() {
    let mut files = RawFiles::default();
    files.add("a.yaml".into(), b"kind: Namespace\n\xff\xfe".to_vec());
    let all = decode_files(files);

    assert_eq!(all.problems[0].to_string(), "a.yaml:2: not UTF-8 text; save it as UTF-8");
}

#[test]
fn the_operators_config_maps_are_found_among_others() {
    let all = decode(
        "kind: ConfigMap\nmetadata:\n  name: caretaker-state\n  namespace: caretaker-system\ndata:\n  namespaces: '{}'\n---\nkind: ConfigMap\nmetadata:\n  name: other\n",
    );

    assert_eq!(all.operator.0["caretaker-state"]["namespaces"], "{}");
    assert_eq!(all.skipped, 1);
}

#[rstest]
#[case::in_a_list_with_a_comment(
    "kind: List\nitems:\n# ours\n- kind: ConfigMap\n  metadata: {name: caretaker-config, namespace: caretaker-system}\n  data: {config.yaml: x}\n"
)]
#[case::in_a_flow_list(
    "kind: List\nitems: [{kind: ConfigMap, metadata: {name: caretaker-config, namespace: caretaker-system}, data: {config.yaml: x}}]\n"
)]
#[case::in_a_typed_flow_list(
    "kind: ConfigMapList\nitems: [{metadata: {name: caretaker-config, namespace: caretaker-system}, data: {config.yaml: x}}]\n"
)]
#[case::in_an_array(r#"[{"kind": "ConfigMap", "metadata": {"name": "caretaker-config", "namespace": "caretaker-system"}, "data": {"config.yaml": "x"}}]"#)]
fn the_operators_config_maps_are_found(#[case] text: &str) {
    let all = decode(text);

    assert_eq!(all.operator.0["caretaker-config"]["config.yaml"], "x");
    assert!(all.problems.is_empty(), "{:?}", all.problems);
}

#[test]
fn files_are_found_by_their_endings_and_what_cannot_be_read_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.YAML", "b.Yml", "c.JSON", "d.txt"] {
        std::fs::write(folder.path().join(name), "{\"kind\":\"Namespace\",\"metadata\":{\"name\":\"a\"}}").unwrap();
    }
    std::os::unix::fs::symlink("nowhere", folder.path().join("e.yaml")).unwrap();
    std::os::unix::fs::symlink(".", folder.path().join("loop")).unwrap();

    let all = decode_files(RawFiles::read(folder.path()).unwrap());

    assert_eq!((all.files, all.found.len(), all.problems.len()), (3, 3, 1));
    let problem = all.problems[0].to_string();
    assert!(problem.contains("e.yaml: cannot be read"), "{problem}");
    assert!(RawFiles::read(&folder.path().join("nowhere")).is_err(), "a path that is given must exist");
}

#[test]
fn endless_nesting_is_a_problem_and_no_crash() {
    for (open, count) in [("[", 200_000), ("{\"a\":", 200_000), ("[{a: ", 100_000), ("- ", 100_000)] {
        let all = decode(&open.repeat(count));

        assert!(all.found.is_empty() && !all.problems.is_empty(), "{open}");
    }
}

/// A Deployment long enough to be pruned, with the names of fields in the wrong places.
fn long_deployment(replicas: &str) -> String {
    let filler: Vec<String> = (0..60).map(|i| format!("        k{i}: []\n")).collect();
    let filler = filler.concat();
    format!(
        "kind: Deployment\nmetadata:\n  name: d\n  annotations:\n    note: |\n      containers:\n      status:\n      kept\nspec:\n  template:\n    spec:\n      containers:\n      - name: a\n{filler}      nodeSelector:\n        x: \"1\"\n  replicas: {replicas}\nstatus:\n  replicas: 9\n---\n{NAMESPACE}"
    )
}

/// A YAML piece as it is in the middle of a file.
fn piece(text: &str) -> Piece<'_> {
    let (mut pieces, _) = split::pieces(text);
    let first = pieces.swap_remove(0);
    Piece { last: false, ..first }
}

#[test]
fn pruning_changes_nothing_that_is_read() {
    let text = long_deployment("3");
    let deployment = piece(&text);
    let pruned = deployment.prune(namespaces().unread_fields("apps/v1", "Deployment")).expect("it is long");
    let value: Value = Document::Yaml(&pruned).decode().expect("YAML");

    assert!(!pruned.contains("k59:") && !pruned.contains("replicas: 9"), "{pruned}");
    assert_eq!(value["metadata"]["annotations"]["note"], "containers:\nstatus:\nkept\n");
    let all = decode(&text.replace("  name: d\n", "  name: d\n  namespace: a\n"));
    let mut cache = NamespaceCache::default();
    all.found.into_iter().for_each(|found| cache.update(&found.object.0, found.object.1));
    assert_eq!(cache.subjects()[0].workloads[0].to_string(), "Deployment/d: 3 replicas");
}

#[test]
fn an_error_in_a_pruned_object_has_the_line_in_the_file() {
    let text = long_deployment("three");
    let line = text.lines().position(|l| l.contains("three")).unwrap() + 1;

    let all = decode(&text);

    assert!(all.problems[0].to_string().starts_with(&format!("a.yaml:{line}: Deployment d: ")), "{}", all.problems[0]);
}

#[test]
fn a_comment_at_the_margin_does_not_make_the_status_part_of_the_spec() {
    let text =
        long_deployment("3").replace("  replicas: 3\nstatus:\n  replicas: 9", "status:\n# a comment\n  replicas: 0");

    let all = decode(&text);

    // Without a count in the spec it is one, as for the API server.
    assert!(format!("{:?}", all.found[0].object).contains("replicas: 1,"), "{:?}", all.found[0].object);
}

/// A StatefulSet long enough to be pruned, and another one that cannot be read.
fn stateful_sets() -> String {
    let filler = "        - {name: filler, image: filler}\n".repeat(30);
    let set = format!(
        "kind: StatefulSet\nmetadata:\n  name: s\n  namespace: a\nspec:\n  replicas: 2\n  template:\n    spec:\n      containers:\n{filler}status:\n  lit: true\n"
    );
    format!(
        "{set}---\nkind: StatefulSet\nmetadata: 7\n---\nkind: Toy\nmetadata: {{name: t}}\n---\nkind: Pod\nmetadata: 7\n"
    )
}

#[test]
fn each_keeper_decodes_an_object_by_its_own_source_and_an_error_is_reported_once() {
    let mut files = RawFiles::default();
    files.add("a.yaml".into(), stateful_sets().into_bytes());
    let mut all = ManifestSet::split(&files);

    let (namespaces, toys) = (all.decode(namespaces()), all.decode(&Sources::of(&Toys)));

    assert_eq!(namespaces.iter().map(|f| f.kind.as_str()).collect::<Vec<_>>(), ["StatefulSet"]);
    let lit = |(_, change): &Delivered<Rows<Toy>>| matches!(change, Change::Apply(Observed { row, .. }) if row.lit);
    assert_eq!(
        toys.iter().map(|f| (f.kind.as_str(), lit(&f.object))).collect::<Vec<_>>(),
        [("StatefulSet", true), ("Toy", false)]
    );
    assert_eq!(all.problems.len(), 1, "{:?}", all.problems);
    assert_eq!((all.decoded(), all.skipped(|_, kind| kind != "Pod")), (2, 1));
}

#[rstest]
#[case::another_group("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: a\n", 1)]
#[case::another_group_in_json(r#"{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"a"}}"#, 1)]
#[case::another_group_in_a_list(
    "kind: List\nitems:\n- apiVersion: serving.knative.dev/v1\n  kind: Service\n  metadata: {name: a}\n",
    1
)]
#[case::another_group_in_flow_style("{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: a}}", 1)]
#[case::another_group_with_an_anchor("apiVersion: &v serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: a\n", 1)]
#[case::another_version("apiVersion: apps/v1beta1\nkind: Deployment\nmetadata:\n  name: a\n", 0)]
#[case::quoted("apiVersion: \"v1\"\nkind: Service\nmetadata:\n  name: a\n", 0)]
fn an_object_of_another_api_group_is_skipped(#[case] text: &str, #[case] skipped: usize) {
    let all = decode(text);

    assert_eq!((all.skipped, all.found.len(), all.problems.len()), (skipped, 1 - skipped, 0));
}

/// What may be between the lines of a manifest.
fn between() -> impl Strategy<Value = String> {
    let indent = || proptest::sample::select(vec![0_usize, 2, 4, 6, 8]);
    prop_oneof![
        6 => Just(String::new()),
        1 => Just("\n".to_owned()),
        2 => indent().prop_map(|n| format!("{}# replicas: 0\n", " ".repeat(n))),
        1 => indent().prop_map(|n| format!("{}# status:\n", " ".repeat(n))),
    ]
}

/// The blocks of an object in any order, with something before each line.
fn shuffled(blocks: Vec<String>) -> impl Strategy<Value = String> {
    Just(blocks).prop_shuffle().prop_flat_map(|blocks| {
        let lines: Vec<String> = blocks.concat().lines().map(str::to_owned).collect();
        let count = lines.len();
        (Just(lines), proptest::collection::vec(between(), count)).prop_map(|(lines, between)| {
            // Inside of a block scalar a comment would be text, or the end of it.
            let in_scalar = |line: &str| line.contains("TEXT");
            lines
                .iter()
                .zip(between)
                .map(|(line, before)| if in_scalar(line) { format!("{line}\n") } else { format!("{before}{line}\n") })
                .collect()
        })
    })
}

fn workload() -> impl Strategy<Value = String> {
    let lists = |name: &str, dash: &str| {
        format!("      {name}:\n{dash}- name: x\n{dash}  replicas: 0\n{dash}  nodeSelector:\n{dash}    y: z\n")
    };
    let pod = prop_oneof![Just("      "), Just("        ")].prop_flat_map(move |dash| {
        shuffled(vec![
            lists("containers", dash),
            lists("initContainers", dash),
            lists("volumes", dash),
            "      nodeSelector:\n        caretaker.dev/asleep: \"true\"\n".to_owned(),
            "      note: |\n        containers: TEXT\n         status: TEXT\n".to_owned(),
        ])
    });
    let spec = (pod, any::<bool>()).prop_flat_map(|(pod, replicas)| {
        let replicas = if replicas { "  replicas: 3\n" } else { "  paused: true\n" };
        Just(vec![replicas.to_owned(), format!("  template:\n    spec:\n{pod}")]).prop_shuffle()
    });
    spec.prop_flat_map(|spec| {
        shuffled(vec![
            "kind: Deployment\n".to_owned(),
            "metadata:\n  name: d\n  annotations:\n    note: |-\n      status: TEXT\n      spec: TEXT\n".to_owned(),
            format!("spec:\n{}", spec.concat()),
            "status:\n  replicas: 0\n  conditions:\n  - type: x\n    message: >\n      spec: TEXT\n  spec:\n    replicas: 0\n"
                .to_owned(),
        ])
    })
}

/// The object as an item of a list, as `kubectl get -o yaml` prints it.
fn as_item(text: &str) -> String {
    let lines = text.lines().map(|l| if l.is_empty() || l.starts_with('#') { l.to_owned() } else { format!("  {l}") });
    let text = lines.collect::<Vec<_>>().join("\n");
    let first = text.find("  ").unwrap_or(0);
    format!("kind: List\nitems:\n{}- {}\n", &text[..first], &text[first + 2..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_pruned_object_is_decoded_like_the_whole_object(object in workload(), as_an_item in any::<bool>()) {
        let text = if as_an_item { as_item(&object) } else { object };
        let (sources, piece) = (namespaces(), piece(&text));

        let pruned = piece.prune(sources.unread_fields("", "Deployment"));
        let pruned = pruned.as_deref().unwrap_or(&piece.text);

        prop_assert!(pruned.len() < piece.text.len(), "nothing was left out of\n{}", piece.text);
        let decode = |text: &str| {
            let row = sources.decode("", "Deployment", piece.document(text)).expect("a source");
            let metadata = piece.document(text).decode::<Value>().map(|value| value["metadata"].to_string());
            (row.map_err(|e| e.reason), metadata.map_err(|e| e.reason))
        };
        let full = decode(&piece.text);
        prop_assert!(matches!(full, (Ok((_, Change::Apply(_))), Ok(_))), "{full:?}\n{}", piece.text);
        prop_assert_eq!(decode(pruned), full, "{}\nbecame\n{}", &piece.text, pruned);
    }

    #[test]
    fn no_manifest_causes_a_panic(text in "(kind: (Namespace|List|Deployment)\n|items:\n|- |  |metadata:\n|name: a\n|---\n|\\{|\\}|\"|[a-z\u{e9}:\\[ \n]){0,40}") {
        decode(&text);
    }

    #[test]
    fn no_text_causes_a_panic(text in any::<String>()) {
        decode(&text);
    }
}
