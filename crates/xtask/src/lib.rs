//! The images that are shipped, and the lists of what is in them. `make` calls the program; tests use the library.

mod images;
mod sbom;

pub use images::{BuiltImage, build, image_for_tests};
