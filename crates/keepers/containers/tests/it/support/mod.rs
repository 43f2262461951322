//! Helpers of several tests.

#[allow(dead_code, reason = "the other program of this crate uses the rest")]
pub mod faulty;
pub mod memory;
pub mod model;
pub mod once;
pub mod table;
