//! `testkit images`: builds the images and says how large they are.

use std::path::PathBuf;

use anyhow::Result;
use caretaker_testkit::release::build;

/// What `testkit images` is asked for.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the archives and the lists of what is in them go
    #[arg(long, default_value = "target/images")]
    folder: PathBuf,
}

/// Builds the images and prints each with its size and digest.
pub(crate) fn run(options: &Options) -> Result<()> {
    for image in build(&options.folder)? {
        println!("{}  {} bytes  {}  {}", image.name, image.bytes, image.digest, image.archive.display());
    }
    Ok(())
}
