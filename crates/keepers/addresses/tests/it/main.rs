//! The tests of this crate, one module for each subject.

mod support;

mod bulk;
mod cache;
mod cache_properties;
mod calls;
mod cases;
mod cases_moving;
mod crash;
mod in_use;
mod judge;
mod judge_ending;
mod judge_gone;
mod judge_sticky;
mod older_spiderpool;
mod pools;
mod properties;
mod regressions;
