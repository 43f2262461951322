//! The tests of this crate, one module for each subject.

mod archive;
