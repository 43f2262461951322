//! The tests of this crate, one module for each subject.

mod support;

mod build;
mod crash;
mod judge;
mod live;
mod properties;
