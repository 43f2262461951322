//! What every keeper runs on, apart from what it decides.
//!
//! [`api`] reads and writes objects of any kind, as little of them as a keeper wants to see.

pub mod api;
