//! Helpers of several tests.

pub mod kdoctor;
pub mod sample;
