//! Detects which namespaces are in use, from the audit events of the API server.
//!
//! Audit events are the only thing in stock Kubernetes that records reads.
//!
//! ```text
//!  audit_webhook ───────────┐
//!  the API server sends     │
//!                           ├─► collector ──► event ──► filter ──► poll ──► state
//!  audit_log ───────────────┘   shared,       decode    ignore     ignore   per
//!  log_follower reads a file    metrics                 lists      polls    namespace
//! ```
//!
//! The namespaces keeper takes the pending activity from [`collector::ActivityCollector`] and writes it to the
//! cluster. [`canary`] proves that audit events still arrive, and [`gap`] records the times when they may not have:
//! a namespace counts as idle only while audit events arrive.
//!
//! This crate never calls the Kubernetes API. The webhook answers the API server before the activity is written.

pub mod audit_log;
pub mod audit_webhook;
pub mod canary;
pub mod collector;
pub mod event;
pub mod filter;
pub mod gap;
pub mod log_follower;
pub mod poll;
pub mod state;
