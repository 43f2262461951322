//! The pure half of Caretaker: no kube, no tokio, no clock of its own.
//!
//! A keeper's decisions are a table of rules ([`rules!`]), what it does is a table of actions
//! ([`actions!`]). [`RuleSet::judge`] applies the first table, [`suspension`] and [`limits::enforce`]
//! hold what is due against windows on objects, pace and breaker, [`simulate::Simulation`] runs all of
//! them forward in time. The same code is behind `run`, `plan`, `explain` and `simulate`, so that what was rehearsed is what happens.

pub mod action;
pub mod count;
pub mod deadlines;
pub mod duration;
pub mod fnv;
pub mod keeper;
pub mod limits;
pub mod parsed;
pub mod rules;
pub mod simulate;
pub mod spread;
pub mod suspension;
pub mod time;
mod verdict;
pub mod window;

pub use action::{Action, ActionKind, Permission, SourceId};
pub use jiff::{SignedDuration, Timestamp};
pub use keeper::{Keeper, Membership, ObjectRef, SubjectRef, VerdictOf};
pub use parsed::Parsed;
pub use rules::{EngineRule, RuleId, RuleSet};
pub use verdict::{Cause, Next, RuleMatch, Verdict, VerdictKind};
