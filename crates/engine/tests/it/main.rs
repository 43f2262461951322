//! The tests of this crate, one module for each subject.

mod support;

mod conditions;
mod creation;
mod discovery;
mod foreign_source;
mod lease;
mod one_kind;
mod per_node;
mod planner;
mod resync;
mod standby;
mod suspension;
mod urgent;
