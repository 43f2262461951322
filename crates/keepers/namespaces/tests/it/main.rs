//! The tests of this crate, one module for each subject.

mod support;

mod activity;
mod activity_patch;
mod cache;
mod cases;
mod cases_controllers;
mod cases_custom;
mod clocks;
mod concurrent_writes;
mod crash;
mod defects;
mod etcd_restore;
mod first_clocks;
mod half_awake;
mod judge;
mod judge_limits;
mod judge_policy;
mod lost_events;
mod observe;
mod other_controllers;
mod planner;
mod policy;
mod properties;
mod regressions;
mod rejected_writes;
mod run;
mod scheduled;
mod scheduled_crash;
mod scheduled_days;
mod simulation_matches_reality;
mod stale_rows;
mod unproven;
mod wake_with_few_rights;
mod workloads;
