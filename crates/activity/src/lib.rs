//! Who uses which namespace: what the API server's audit events tell of it.
//!
//! # The story
//!
//! Of all that stock Kubernetes offers, only its audit sees that somebody looks. The API server
//! sends what it has audited to [`receive`], or writes it to a log that [`follow`] reads. [`event`]
//! reads as little of each event as matters; [`filter`] says whether it counts, [`beat`] whether a
//! machine only repeats itself; [`fold`] keeps what it comes to for each namespace. [`canary`] finds
//! out whether anything is heard at all: silence counts only while somebody listens.
//!
//! Nothing here speaks to a Kubernetes API. Whoever writes down what was heard asks [`ear::Ear`] for
//! it and may take their time: the API server is answered before.

pub mod beat;
pub mod canary;
pub mod ear;
pub mod event;
pub mod filter;
pub mod fold;
pub mod follow;
pub mod receive;
pub mod tail;
