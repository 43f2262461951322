//! What can be done, as data, and how it is written.
//!
//! What is suspended is one field and one annotation, written together by server-side apply as the keeper's own field
//! manager. An empty apply withdraws both; what somebody else has set as well stays. Every apply names the uid: one
//! about an object that is gone would create an empty one. What suspends names the resourceVersion as well, because it
//! overrides what others have set.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use caretaker_core::{ActionKind, Permission, Timestamp, actions, time};
use caretaker_engine::writer::Writer;
use caretaker_engine::{ApplyError, BatchResult, Confirmed};
use serde_json::{Map, Value, json};

use crate::Windows;
use crate::api::{self, Switch};
use crate::observe::FLUX;
use crate::subject::{Condition, FluxObject, Manager, Order};

/// The end of a window without an end: later than any time that people mean.
pub const FOREVER: Timestamp = Timestamp::constant(253_370_764_800, 0);

const SOURCE: &str = "source.toolkit.fluxcd.io";
const IMAGE: &str = "image.toolkit.fluxcd.io";
const OPERATOR: &str = "fluxcd.controlplane.io";

/// What shows a suspension: the kinds with a status, and reading an object again that Flux wrote meanwhile.
const SHOW: &[Permission] = &[
    Permission::on(FLUX, "get"),
    Permission::resource("patch", "kustomize.toolkit.fluxcd.io", "kustomizations/status"),
    Permission::resource("patch", "helm.toolkit.fluxcd.io", "helmreleases/status"),
    Permission::resource("patch", SOURCE, "gitrepositories/status"),
    Permission::resource("patch", SOURCE, "ocirepositories/status"),
    Permission::resource("patch", SOURCE, "helmrepositories/status"),
    Permission::resource("patch", SOURCE, "helmcharts/status"),
    Permission::resource("patch", SOURCE, "buckets/status"),
    Permission::resource("patch", IMAGE, "imagerepositories/status"),
    Permission::resource("patch", IMAGE, "imagepolicies/status"),
    Permission::resource("patch", IMAGE, "imageupdateautomations/status"),
    Permission::resource("patch", "notification.toolkit.fluxcd.io", "receivers/status"),
    Permission::resource("patch", "source.extensions.fluxcd.io", "artifactgenerators/status"),
    Permission::resource("patch", OPERATOR, "fluxinstances/status"),
    Permission::resource("patch", OPERATOR, "resourcesets/status"),
    Permission::resource("patch", OPERATOR, "resourcesetinputproviders/status"),
];

/// What the status of an object shows about its suspension.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// The condition; `None` if there is none.
    pub condition: Option<Condition>,
    /// `status.suspended`, which most schemas do not keep.
    pub suspended: bool,
}

/// For each kind whether the API server keeps `status.suspended`. Only the answers to writes tell.
#[derive(Debug, Clone, Default)]
pub struct KeptStatus(Arc<Mutex<BTreeMap<&'static str, bool>>>);

impl KeptStatus {
    /// What is known so far.
    pub(crate) fn known(&self) -> BTreeMap<&'static str, bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, kind: &'static str, kept: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(kind, kept);
    }
}

actions! {
    /// What is done to a Flux object.
    #[derive(Eq)]
    pub enum Action {
        /// Sets the field that suspends it, as a field of the keeper's own.
        Suspend(Timestamp) => ActionKind::plain("suspend").priority().kinds_alone().needs(&[Permission::on(FLUX, "patch")]),
        /// Withdraws the keeper's field; what somebody else has suspended stays suspended.
        Resume => ActionKind::plain("resume").priority().kinds_alone().needs(&[Permission::on(FLUX, "patch")]),
        /// Withdraws the keeper's field, and records that it stays resumed until the window ends.
        Yield(Timestamp) => ActionKind::plain("yield").kinds_alone().needs(&[Permission::on(FLUX, "patch")]),
        /// Ends a suspension by `caretaker suspend --until`.
        EndOrder => ActionKind::plain("end-order").kinds_alone().needs(&[Permission::on(FLUX, "patch")]),
        /// Writes what shows the suspension, or removes it.
        Show(Shown) => ActionKind::plain("show").kinds_alone().needs(SHOW),
    }
}

/// Writes one action.
pub(crate) async fn apply(batch: &Confirmed<Windows>, kept: &KeptStatus, writer: &mut Writer<Windows>) -> BatchResult {
    let one = batch.only();
    write(&one.subject, &one.action, kept, batch.now(), writer).await.into()
}

/// Writes an action on an object.
pub(crate) async fn write(
    object: &FluxObject,
    action: &Action,
    kept: &KeptStatus,
    now: Timestamp,
    writer: &mut Writer<Windows>,
) -> Result<(), ApplyError> {
    let target = object.object();
    match action {
        Action::Suspend(until) => {
            // Nobody declares another value: the judge has seen to that, for this version of the object.
            let (version, fields) = (&object.resource_version, held(object.switch, *until));
            writer.forced_apply(target, version, api::FIELD_MANAGER, fields).await?;
        }
        Action::Resume => {
            writer.server_side_apply(target, api::FIELD_MANAGER, json!({})).await?;
        }
        Action::Yield(until) => {
            let yielded = json!({ "metadata": { "annotations": { api::YIELDED_UNTIL: until.to_string() } } });
            writer.server_side_apply(target, api::FIELD_MANAGER, yielded).await?;
        }
        Action::EndOrder => {
            writer.server_side_apply(target, api::CLI_FIELD_MANAGER, json!({})).await?;
        }
        Action::Show(shown) => {
            let answer = writer.patch_status(target, &object.resource_version, status(object, shown, now)).await?;
            if let Some(answer) = answer.filter(|_| shown.suspended) {
                kept.learn(object.kind, answer.row.status_suspended == Some(true));
            }
        }
    }
    Ok(())
}

/// The patch of a status. Conditions are a list that can only be written as a whole.
fn status(object: &FluxObject, shown: &Shown, now: Timestamp) -> Value {
    let mut status = Map::new();
    if object.condition != shown.condition {
        let conditions = with_condition(&object.conditions, shown.condition.as_ref(), now);
        status.insert("conditions".to_owned(), json!(conditions));
    }
    if shown.suspended || object.status_suspended.is_some() {
        status.insert("suspended".to_owned(), if shown.suspended { json!(true) } else { Value::Null });
    }
    json!({ "status": status })
}

/// What the keeper declares while it suspends an object.
pub(crate) fn held(switch: Switch, until: Timestamp) -> Value {
    let mut annotations = Map::from_iter([(api::HELD_UNTIL.to_owned(), json!(until.to_string()))]);
    match switch {
        Switch::Field => json!({ "metadata": { "annotations": annotations }, "spec": { "suspend": true } }),
        Switch::Annotation(key) => {
            annotations.insert(key.to_owned(), json!(api::DISABLED));
            json!({ "metadata": { "annotations": annotations } })
        }
    }
}

/// All conditions, with ours as it should be.
pub(crate) fn with_condition(conditions: &str, ours: Option<&Condition>, now: Timestamp) -> Vec<Value> {
    let mut all: Vec<Value> = serde_json::from_str(conditions).unwrap_or_default();
    let before = all.iter().find(|condition| condition["type"] == api::CONDITION).cloned().unwrap_or_default();
    all.retain(|condition| condition["type"] != api::CONDITION);
    all.extend(ours.map(|Condition { status, reason, message }| {
        let unchanged = before["status"] == status.as_str();
        let since = before["lastTransitionTime"].as_str().filter(|_| unchanged);
        let since = since.map_or_else(|| time::format(now), str::to_owned);
        let kind = api::CONDITION;
        json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since })
    }));
    all
}

/// The object after an action.
#[must_use]
pub(crate) fn simulate(mut object: FluxObject, action: &Action) -> FluxObject {
    let ours = || Manager { name: api::FIELD_MANAGER.to_owned(), applies: true };
    match action {
        Action::Suspend(until) => {
            object.suspended = Some(true);
            object.managers.retain(|manager| manager.name != api::FIELD_MANAGER);
            object.managers.push(ours());
            object.held_until = Some(*until);
        }
        Action::Resume | Action::Yield(_) => {
            withdraw(&mut object, api::FIELD_MANAGER);
            object.held_until = None;
            if std::mem::take(&mut object.is_own_yield) {
                object.yielded_until = None.into();
            }
            if let Action::Yield(until) = action {
                (object.yielded_until, object.is_own_yield) = (Some(*until).into(), true);
            }
        }
        Action::EndOrder => {
            withdraw(&mut object, api::CLI_FIELD_MANAGER);
            if object.order_has_window() {
                object.during = None.into();
            }
            object.order = Order::None;
            object.suspended_until = None.into();
            (object.reason, object.by) = (None, None);
        }
        Action::Show(Shown { condition, suspended }) => {
            let all = with_condition(&object.conditions, condition.as_ref(), Timestamp::UNIX_EPOCH);
            object.conditions = serde_json::to_string(&all).unwrap_or_default().into();
            object.condition.clone_from(condition);
            // Stock Flux does not keep it; where it was kept before, it is again.
            object.status_suspended = object.status_suspended.map(|_| *suspended);
        }
    }
    object
}

/// A field that nobody declares any more is gone.
fn withdraw(object: &mut FluxObject, manager: &str) {
    let was_set = object.is_managed_by(manager);
    object.managers.retain(|known| known.name != manager);
    if was_set && object.managers.is_empty() {
        object.suspended = None;
    }
}

/// What is written, for people.
#[must_use]
pub(crate) fn describe(object: &FluxObject, action: &Action) -> Vec<String> {
    let field = object.switch.describe();
    let until = |at: &Timestamp| if *at == FOREVER { "for ever".to_owned() } else { time::format(*at) };
    vec![match action {
        Action::Suspend(at) => format!("apply {field} as {}, held-until={}", api::FIELD_MANAGER, until(at)),
        Action::Resume => format!("withdraw what {} applied", api::FIELD_MANAGER),
        Action::Yield(at) => format!("withdraw what {} applied, yielded-until={}", api::FIELD_MANAGER, until(at)),
        Action::EndOrder => format!("withdraw what {} applied", api::CLI_FIELD_MANAGER),
        Action::Show(Shown { condition: Some(condition), .. }) => {
            format!("write the condition Suspended={}", condition.status)
        }
        Action::Show(Shown { condition: None, suspended: true }) => "write status.suspended: true".to_owned(),
        Action::Show(Shown { condition: None, suspended: false }) => {
            "remove what shows a suspension from its status".to_owned()
        }
    }]
}
