//! What every keeper runs on, apart from what it decides.
//!
//! [`api`] reads and writes objects of any kind, as little of them as a keeper wants to see.
//! [`lease`] lets one process at a time lead.

pub mod api;
pub mod lease;
