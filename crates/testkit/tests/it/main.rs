//! The tests of this crate, one module for each subject.

mod support;

mod audit;
mod binaries;
mod builders;
mod control_plane;
mod faults;
mod first;
mod runner;
mod teardown;
