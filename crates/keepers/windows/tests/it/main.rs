//! The tests of this crate, one module for each subject.

mod support;

mod crash;
mod judge;
mod live;
mod real_flux;
