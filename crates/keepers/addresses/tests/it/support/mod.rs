//! Helpers of several tests.

pub mod model;
pub mod objects;
pub mod real;
