//! Helpers of several tests.

pub mod addresses;
pub mod audit;
pub mod cli;
pub mod foreign_kinds;
pub mod operator;
pub mod role_rights;
