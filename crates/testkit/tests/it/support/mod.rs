//! Helpers of several tests.

pub mod traces;
