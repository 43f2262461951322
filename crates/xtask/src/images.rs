//! The images of `caretaker` and `caretaker-node`: static programs, each alone in an image from scratch, and a list of
//! what they are made of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use caretaker_test_programs::workspace;
use caretaker_testkit::go_build::succeeded;
use caretaker_testkit::image::{Image, ROOT, digest};
use caretaker_testkit::{Error, Result};

use crate::sbom;

/// The profile in `Cargo.toml`.
const PROFILE: &str = "image";

/// An image is pulled by every node that runs it.
const MAX_BYTES: u64 = 25_000_000;

/// The user of the operator: any but root will do, and this one is no user of a node.
const NOBODY: &str = "65532:65532";

/// A program that is shipped as an image of the same name.
struct Shipped {
    program: &'static str,
    /// What it is, for people who look at the image.
    title: &'static str,
    user: &'static str,
}

const SHIPPED: [Shipped; 2] = [
    Shipped { program: "caretaker", title: "Caretaker, the operator", user: NOBODY },
    // Unmounting in the mount namespace of the node, signals to shims and the control groups that are left behind need
    // root; its pod is privileged for the same reasons.
    Shipped { program: "caretaker-node", title: "Caretaker, the keeper of a node's containers", user: ROOT },
];

/// An image in a file.
#[derive(Debug, Clone)]
pub struct BuiltImage {
    /// The name and tag, such as `caretaker:0.1.0`.
    pub name: String,
    /// The archive.
    pub archive: PathBuf,
    /// The size of the archive.
    pub bytes: u64,
    /// The digest of the archive.
    pub digest: String,
}

/// Builds the programs and writes `PROGRAM-VERSION.tar` and `PROGRAM-VERSION.cdx.json` for each into the folder. The
/// compiler reports to standard error.
pub fn build(folder: &Path) -> Result<Vec<BuiltImage>> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = sbom::metadata(&target)?;
    let packages = SHIPPED.iter().flat_map(|shipped| ["--package", shipped.program]);
    let status = Command::new(cargo())
        .current_dir(workspace())
        .args(["build", "--quiet", "--locked", "--profile", PROFILE, "--target", &target])
        .args(packages)
        .env("RUSTFLAGS", rust_flags(&metadata.target_folder))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null())
        .status();
    let failed = |why: String| Error::Build { what: "the images".to_owned(), why };
    if !status.map_err(|e| failed(e.to_string()))?.success() {
        return Err(failed("cargo says why".to_owned()));
    }
    fs::create_dir_all(folder).map_err(Error::file(folder))?;
    let programs = metadata.target_folder.join(&target).join(PROFILE);
    SHIPPED.iter().map(|shipped| shipped.pack(&programs, &metadata, folder)).collect()
}

impl Shipped {
    fn pack(&self, programs: &Path, metadata: &sbom::Metadata, folder: &Path) -> Result<BuiltImage> {
        let version = metadata.version_of(self.program);
        let path = programs.join(self.program);
        let failed = |why: String| Error::Build { what: format!("the image of {}", self.program), why };
        if needs_libraries(&fs::read(&path).map_err(Error::file(&path))?) {
            return Err(failed(format!(
                "{} is not static, and an image from scratch has no libraries",
                path.display()
            )));
        }
        let name = format!("{}:{version}", self.program);
        let at = format!("bin/{}", self.program);
        let image = Image {
            name: &name,
            program: &path,
            at: &at,
            libraries: &[],
            links: &[],
            entrypoint: &[&format!("/{at}")],
            command: &[],
            user: self.user,
            labels: &[
                ("org.opencontainers.image.title", self.title),
                ("org.opencontainers.image.version", version),
                ("org.opencontainers.image.licenses", "Apache-2.0"),
            ],
        };
        let archive = image.write(&folder.join(format!("{}-{version}.tar", self.program)))?;
        let data = fs::read(&archive).map_err(Error::file(&archive))?;
        let bytes = data.len() as u64;
        if bytes > MAX_BYTES {
            return Err(failed(format!("it has {bytes} bytes, and at most {MAX_BYTES} are allowed")));
        }
        let list = folder.join(format!("{}-{version}.cdx.json", self.program));
        fs::write(&list, metadata.sbom(self.program)).map_err(Error::file(&list))?;
        Ok(BuiltImage { name, archive, bytes, digest: digest(&data) })
    }
}

/// Writes an image of a program for tests of its installation, from one that is linked dynamically, with the libraries
/// that it needs: nothing has to be built again for it. Otherwise it is the image that is shipped.
///
/// # Panics
/// If the program is not one that is shipped.
pub fn image_for_tests(name: &str, program: &Path, archive: &Path) -> Result<()> {
    let file = program.file_name().and_then(|file| file.to_str()).unwrap_or_default();
    let shipped = SHIPPED.iter().find(|shipped| shipped.program == file);
    let user = shipped.unwrap_or_else(|| panic!("{file} is not shipped")).user;
    let listed = Command::new("ldd").arg(program).stdin(Stdio::null()).output();
    let listed = succeeded("the list of libraries", listed)?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    // `libc.so.6 => /lib/libc.so.6 (0x…)`, or the path alone for the loader.
    let words = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let libraries: Vec<PathBuf> = words.map(PathBuf::from).collect();
    let (at, entrypoint) = (format!("bin/{file}"), format!("/bin/{file}"));
    let (at, entrypoint) = (&*at, &[&*entrypoint]);
    let image =
        Image { name, program, at, libraries: &libraries, links: &[], entrypoint, command: &[], user, labels: &[] };
    image.write(archive).map(drop)
}

/// Cargo, as the one that started this process.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// A static program, with no path of this machine in it: the same sources give the same program elsewhere. Code that is
/// generated while it is built has the path of the target folder, which may be inside of the workspace: the last prefix
/// that fits counts.
fn rust_flags(target_folder: &Path) -> String {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut flags = "-Ctarget-feature=+crt-static".to_owned();
    for (from, to) in [(Some(workspace()), "/src"), (home, "/cargo"), (Some(target_folder.to_owned()), "/target")] {
        if let Some(from) = from {
            flags.push_str(&format!(" --remap-path-prefix={}={to}", from.display()));
        }
    }
    flags
}

/// True if an ELF file names an interpreter, which loads its libraries: 64 bits, little endian.
fn needs_libraries(program: &[u8]) -> bool {
    const INTERPRETER: u64 = 3;
    let number = |at: usize, length: usize| -> u64 {
        let bytes = program.get(at..at + length).unwrap_or_default();
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let at = |number: u64| usize::try_from(number).unwrap_or(usize::MAX / 2);
    let (headers, size, count) = (at(number(32, 8)), at(number(54, 2)), at(number(56, 2)));
    (0..count).any(|i| number(headers + i * size, 4) == INTERPRETER)
}

#[cfg(test)]
mod tests {
    use caretaker_testkit::find_program;

    use super::*;

    #[test]
    fn a_program_that_needs_libraries_is_told_from_a_static_one() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needs_libraries(&own), "tests are linked dynamically");

        if let Some(busybox) = find_program("busybox") {
            assert!(!needs_libraries(&fs::read(busybox).unwrap()), "Debian's busybox-static is static");
        }
    }
}
