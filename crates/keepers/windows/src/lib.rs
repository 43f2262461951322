//! The windows keeper: Flux objects are suspended while an expression says so.
//!
//! # What it does
//!
//! The annotation `reconcile.fluxcd.io/suspendedDuring` has a [window](caretaker_core::window) of time. While it is
//! open, the object is suspended: for stock Flux by `spec.suspend: true`, for kinds without that field by the
//! annotation with which their controller is switched off. Both are written by server-side apply as one field of a
//! field manager of our own, and withdrawn at the end, so that a suspension by somebody else stays what it is. Rules in
//! the settings give one window to many objects.
//!
//! # Modules
//!
//! [`api`] has the names on the wire. [`observe`] turns API objects into [`subject`]s, and [`cache`] keeps them. [`judge`]
//! has the rules. [`act`] has the actions and their writes, [`cleanup`] what takes all of it back, [`warnings`] what
//! people should know beforehand, [`metrics`] what dashboards show. [`manual`] has what a person orders, [`state`] what
//! users see, [`report`] whether a freeze held. `controller` connects all of that to the engine.
//!
//! # What it never does
//!
//! - It never resumes what a person or Git suspended.
//! - It never fights: a field that Git declares as `false` is reported and left alone.
//! - It never suspends for an expression that it cannot read.
//! - It never creates an object: every write names the uid.

pub mod act;
pub mod api;
pub mod cache;
pub mod cleanup;
mod controller;
pub mod judge;
pub mod manual;
pub mod metrics;
pub mod observe;
pub mod report;
pub mod state;
pub mod subject;
pub mod warnings;

use std::sync::Arc;

use caretaker_core::limits::Limits;
use caretaker_core::{Keeper, SubjectRef, Timestamp};
use serde_json::{Value, json};

use act::Action;
use judge::Rule;
use subject::{FluxObject, Policy, World};

/// The keeper's name.
pub const NAME: &str = "windows";

/// The keeper: its settings, and what it has learned about the API server.
#[derive(Debug, Clone, Default)]
pub struct Windows {
    /// The settings.
    pub policy: Arc<Policy>,
    /// Where suspensions are shown.
    pub(crate) kept_status: act::KeptStatus,
    /// What dashboards show.
    pub metrics: metrics::Metrics,
}

impl Windows {
    /// A keeper with these settings.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy: Arc::new(policy), ..Self::default() }
    }
}

impl Keeper for Windows {
    type Subject = FluxObject;
    type World = World;
    type Action = Action;
    type Rule = Rule;

    fn name(&self) -> &'static str {
        NAME
    }

    fn subject_ref<'a>(&self, object: &'a FluxObject) -> SubjectRef<'a> {
        object.object().into()
    }

    fn facts(&self, object: &FluxObject, now: Timestamp) -> Vec<(&'static str, String)> {
        object.facts(now)
    }

    fn state(&self, object: &FluxObject, _: Timestamp) -> Option<&'static str> {
        Some(if object.is_suspended() { "suspended" } else { "running" })
    }

    fn simulate_action(&self, object: FluxObject, action: &Action, _: &World, _: Timestamp) -> Option<FluxObject> {
        Some(act::simulate(object, action))
    }

    fn describe_steps(&self, object: &FluxObject, action: &Action, _: &World, _: Timestamp) -> Vec<String> {
        act::describe(object, action)
    }

    fn snapshot(&self, object: &FluxObject, _: Timestamp) -> Value {
        json!({ "suspended": object.is_suspended(), "held": object.is_held(), "revision": object.revision })
    }

    /// A schedule is an order: it is neither paced nor stopped by a breaker.
    fn default_limits(&self) -> Limits {
        Limits::default()
    }
}
