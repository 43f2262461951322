//! The tests of this crate, one module for each subject.

mod schedules;
mod window;
mod window_oracle;
