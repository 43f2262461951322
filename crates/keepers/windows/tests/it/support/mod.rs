//! Helpers of several tests.

pub mod fleet;
pub mod flux;
