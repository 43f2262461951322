//! Helpers of several tests.

pub mod events;
