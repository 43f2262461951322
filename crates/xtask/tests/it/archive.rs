//! The archive of an image: reproducible, and read by containerd and by Docker.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use caretaker_testkit::image::{Image, digest};
use serde_json::{Value, json};

/// The files of an archive, by path.
fn files(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(std::fs::File::open(archive).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut data = Vec::new();
        entry.read_to_end(&mut data).unwrap();
        (entry.path().unwrap().display().to_string(), data)
    });
    entries.collect()
}

fn packed(folder: &Path, program: &Path, file: &str) -> PathBuf {
    packed_as("caretaker:1.2.3", folder, program, file)
}

fn packed_as(name: &str, folder: &Path, program: &Path, file: &str) -> PathBuf {
    let image = Image {
        name,
        program,
        at: "bin/caretaker",
        libraries: &[],
        links: &["other"],
        entrypoint: &["/bin/caretaker"],
        command: &[],
        user: "65532:65532",
        labels: &[("b", "2"), ("a", "1")],
    };
    image.write(&folder.join(file)).unwrap()
}

fn json_in(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
    serde_json::from_slice(&files[path]).unwrap()
}

/// Returns the blob of a descriptor, after its digest and size are compared.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let found = &files[&descriptor["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/")];
    assert_eq!(descriptor["digest"], digest(found));
    assert_eq!(descriptor["size"], found.len());
    found
}

#[test]
fn two_builds_of_one_program_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    for (path, age) in [(&one, 10), (&other, 100_000)] {
        std::fs::write(path, "a program").unwrap();
        let written = std::fs::File::options().write(true).open(path).unwrap();
        written.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }

    let archives = [packed(folder.path(), &one, "one.tar"), packed(folder.path(), &other, "other.tar")];

    let [first, second] = archives.map(|archive| std::fs::read(archive).unwrap());
    assert!(first == second, "the archives differ");
}

#[test]
fn containerd_and_docker_find_the_same_layer_and_config() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, "a program").unwrap();

    let files = files(&packed(folder.path(), &program, "image.tar"));

    let index = json_in(&files, "index.json");
    let entry = &index["manifests"][0];
    assert_eq!(entry["annotations"]["io.containerd.image.name"], "docker.io/library/caretaker:1.2.3");
    let manifest: Value = serde_json::from_slice(blob(&files, entry)).unwrap();
    let (config, layer) = (blob(&files, &manifest["config"]), blob(&files, &manifest["layers"][0]));
    let docker = &json_in(&files, "manifest.json")[0];
    assert_eq!(files[docker["Config"].as_str().unwrap()], config);
    assert_eq!(files[docker["Layers"][0].as_str().unwrap()], layer);
    assert_eq!(docker["RepoTags"], json!(["caretaker:1.2.3"]));
    let config: Value = serde_json::from_slice(config).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"], json!([digest(layer)]));
    assert_eq!(config["config"]["User"], "65532:65532");
}

#[test]
fn a_layer_holds_the_program_owned_by_root_and_without_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, "a program").unwrap();
    let files = files(&packed(folder.path(), &program, "image.tar"));
    let docker = &json_in(&files, "manifest.json")[0];

    let mut layer = tar::Archive::new(files[docker["Layers"][0].as_str().unwrap()].as_slice());

    let found: Vec<(String, [u64; 4])> = layer
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            let numbers =
                [header.mode().unwrap().into(), header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()];
            (entry.path().unwrap().display().to_string(), numbers)
        })
        .collect();
    assert_eq!(found, [("bin/caretaker".to_owned(), [0o755, 0, 0, 0]), ("bin/other".to_owned(), [0o777, 0, 0, 0])]);
}

#[test]
fn a_name_is_completed_as_containerd_does_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, "a program").unwrap();
    for (name, full) in [
        ("caretaker:1", "docker.io/library/caretaker:1"),
        ("team/caretaker:1", "docker.io/team/caretaker:1"),
        ("registry.example/caretaker:1", "registry.example/caretaker:1"),
        ("localhost:5000/caretaker:1", "localhost:5000/caretaker:1"),
    ] {
        let index = json_in(&files(&packed_as(name, folder.path(), &program, "image.tar")), "index.json");

        assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], full);
    }
}
