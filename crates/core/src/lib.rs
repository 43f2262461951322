//! The pure half of Caretaker: no kube, no tokio, no clock of its own.
//!
//! A keeper's rules are a [`rules::RuleTable`]; judging a subject at a time gives a [`Verdict`],
//! explaining it gives the trace through the table. [`admit()`] holds what is due against pace and
//! breaker. [`simulate`] runs the clock forward over both. The same code is behind `run`, `plan`,
//! `explain` and `simulate`, so that what was rehearsed is what happens.

pub mod admit;
pub mod deadlines;
pub mod duration;
pub mod keeper;
pub mod rules;
pub mod setting;
pub mod simulate;
pub mod time;
mod verdict;

pub use admit::admit;
pub use jiff::{SignedDuration, Timestamp};
pub use keeper::Keeper;
pub use setting::Setting;
pub use verdict::{Action, Finding, Next, Verdict};
