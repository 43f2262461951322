//! The tests of this crate, one module for each subject.

mod support;

mod bad_records;
mod cache;
mod confirmation;
mod ending;
mod histories;
mod judge;
mod meanwhile;
mod order;
mod shims_without_a_record;
mod snapshots;
