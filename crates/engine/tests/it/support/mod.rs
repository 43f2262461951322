//! Helpers of several tests.

pub mod box_keeper;
pub mod keeper_run;
