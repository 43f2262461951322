//! The tests of this crate, one module for each subject.

mod support;

mod activity_state;
mod audit_log;
mod audit_webhook;
mod log_follower;
