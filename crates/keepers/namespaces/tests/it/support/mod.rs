//! Helpers of several tests.

pub mod claims;
pub mod context;
pub mod custom;
pub mod generators;
pub mod in_process;
pub mod live;
pub mod objects;
pub mod sample;
pub mod scheduled_nights;
pub mod table;
