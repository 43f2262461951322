//! What a person orders: `caretaker suspend`, `caretaker resume` and `caretaker reconcile --once`.
//!
//! A suspension is declared by server-side apply as the field manager of the commands: the field or a window, with its
//! reason, its author and its end. So the keeper can end it as a whole, and nobody takes it for the keeper's own. What
//! the keeper itself would write, a yield or the end of one, is written as the keeper's field manager: the keeper finds
//! its own state and goes on from there, also if a command dies between two calls.

use caretaker_core::{Timestamp, time};
use caretaker_engine::projection::is_conflict;
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Map, Value, json};

use crate::act::{self, Action, FOREVER};
use crate::api::{self, FluxKind, Switch};
use crate::judge::wanted;
use crate::observe;
use crate::subject::{Effective, FluxObject, World};

/// The operator may write the same object at the same time: it is read again this often.
const ATTEMPTS: usize = 8;

/// The annotation with which Flux is asked to reconcile an object.
pub const REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";

/// Why an order was not carried out, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// There is no such object.
    #[error("it does not exist")]
    NotFound {
        /// The names of the objects that exist, for a suggestion; empty if they cannot be listed.
        existing: Vec<String>,
    },
    /// It must not or cannot be done, and why.
    #[error("{0}")]
    Refused(String),
    /// Others write the object all the time.
    #[error("it was written by somebody else {ATTEMPTS} times in a row; try again")]
    Unsettled,
    /// The API server could not be asked, or refused.
    #[error("{what}: {}", caretaker_engine::format_error(.error.as_ref()))]
    Api {
        /// What was attempted.
        what: &'static str,
        /// The answer.
        error: Box<kube::Error>,
    },
}

/// A suspension by a person.
#[derive(Debug, Clone, Default)]
pub struct Suspension {
    /// The window; without one, the object is suspended now.
    pub during: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// When it ends.
    pub until: Option<Timestamp>,
}

/// What an order did.
#[derive(Debug)]
pub struct Ordered {
    /// The object as it is now.
    pub object: FluxObject,
    /// Its generation.
    pub generation: i64,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Carries out orders on the objects of one kind in one namespace.
pub struct Orders {
    /// The objects.
    pub api: Api<DynamicObject>,
    /// Their kind, as the API server serves it.
    pub resource: ApiResource,
    /// Their kind.
    pub kind: &'static FluxKind,
    /// The settings of the operator.
    pub world: World,
    /// The user who gives the orders; empty if the API server does not say.
    pub by: String,
    /// The time of the API server.
    pub now: Timestamp,
}

/// An object as it was read.
struct Live {
    raw: Value,
    object: FluxObject,
}

impl Live {
    /// Who declares an annotation by server-side apply, apart from the keeper and the commands.
    fn declared_by(&self, key: &str) -> Option<&str> {
        let own = [api::FIELD_MANAGER, api::CLI_FIELD_MANAGER];
        let applied = |fields: &&Value| {
            fields["operation"] == "Apply"
                && !own.iter().any(|own| fields["manager"] == *own)
                && !fields["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{key}")].is_null()
        };
        self.raw["metadata"]["managedFields"].as_array()?.iter().find(applied)?["manager"].as_str()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.raw["metadata"]["annotations"][key].as_str()
    }

    /// Who keeps the window in Git, or applies it from somewhere else.
    fn window_declared_by(&self) -> Option<&str> {
        self.declared_by(api::SUSPENDED_DURING).or_else(|| self.declared_by(api::SUSPEND_DURING))
    }

    fn into_ordered(self, notes: Vec<String>) -> Ordered {
        Ordered {
            generation: self.raw["metadata"]["generation"].as_i64().unwrap_or_default(),
            object: self.object,
            notes,
        }
    }
}

impl Orders {
    /// Suspends an object now, or while a window is open. `shows_window`: the keeper runs, so that the state of a window
    /// that is open can be shown at once.
    pub async fn suspend(&self, name: &str, order: &Suspension, shows_window: bool) -> Result<Ordered, OrderError> {
        for _ in 0..ATTEMPTS {
            let live = self.read(name).await?;
            refuse_suspension(&live, order)?;
            let fields = declared(&live, order, &self.by);
            let Some(live) = self.apply(&live, api::CLI_FIELD_MANAGER, fields).await? else { continue };
            let mut notes = notes_on_suspension(&live, order);
            let live = self.show(live, shows_window, &mut notes).await?;
            return Ok(live.into_ordered(notes));
        }
        Err(OrderError::Unsettled)
    }

    /// Resumes an object: its window, the keeper's field and what anybody else has suspended go. A window that Git keeps
    /// or that the settings bring stays, and does not suspend the object any more until it ends.
    pub async fn resume(&self, name: &str) -> Result<Ordered, OrderError> {
        for _ in 0..ATTEMPTS {
            let mut live = self.read(name).await?;
            let mut notes = notes_on_resume(&live);
            let stays = self.window_that_stays(&live);
            if let Some(opens) = stays.as_ref().filter(|stays| !stays.state.open).and_then(|stays| stays.state.until) {
                notes.push(format!("its window stays, and suspends it again at {}", time::format(opens)));
            }
            let open = stays.filter(|stays| stays.state.open);
            let yields = open.is_some();
            if let Some(stays) = open {
                let until = stays.state.until.unwrap_or(FOREVER);
                notes.push(match stays.state.until {
                    Some(until) => format!("{} stays; it is resumed until {}", stays.because, time::format(until)),
                    None => format!("{} stays, and does not suspend it any more", stays.because),
                });
                let fields = json!({ "metadata": { "annotations": { api::YIELDED_UNTIL: until.to_string() } } });
                let Some(yielded) = self.apply(&live, api::FIELD_MANAGER, fields).await? else { continue };
                live = yielded;
            }
            let Some(live) = self.merge(&live, cleared(&live, yields)).await? else { continue };
            let live = self.show(live, false, &mut notes).await?;
            return Ok(live.into_ordered(notes));
        }
        Err(OrderError::Unsettled)
    }

    /// Asks Flux to reconcile an object, and lets that pass inside a window until a deadline, or until the window ends.
    /// Returns false if no window has suspended it, so that nothing is to be suspended again.
    ///
    /// If nobody calls [`hold_again`](Self::hold_again), the keeper suspends it at the deadline.
    pub async fn let_through(
        &self,
        name: &str,
        token: &str,
        deadline: Timestamp,
    ) -> Result<(Ordered, bool), OrderError> {
        for _ in 0..ATTEMPTS {
            let live = self.read(name).await?;
            let object = &live.object;
            let held = object.is_held();
            let open = self.world.policy.effective(object, self.now).is_some_and(|effective| effective.state.open);
            if open && self.world.policy.native_kinds.iter().any(|kind| kind == object.kind) {
                return Err(refused("its controller honours the window itself; resume it instead".to_owned()));
            }
            let others = object.managers.iter().find(|manager| manager.name != api::FIELD_MANAGER);
            if object.is_suspended() && (!held || others.is_some()) {
                let by = others.map_or("somebody", |manager| manager.name.as_str());
                return Err(refused(format!("{by} has suspended it, which is no window; resume it first")));
            }
            // The request comes first: then a single reconciliation serves both the request and the resume.
            let request = json!({ "metadata": { "annotations": { REQUESTED_AT: token } } });
            let Some(live) = self.merge(&live, request).await? else { continue };
            if !held {
                return Ok((live.into_ordered(Vec::new()), false));
            }
            let until = live.object.held_until.map_or(deadline, |end| end.min(deadline));
            let fields = json!({ "metadata": { "annotations": { api::YIELDED_UNTIL: until.to_string() } } });
            let Some(live) = self.apply(&live, api::FIELD_MANAGER, fields).await? else { continue };
            return Ok((live.into_ordered(Vec::new()), true));
        }
        Err(OrderError::Unsettled)
    }

    /// Suspends an object again that was let through, if its window is still open.
    pub async fn hold_again(&self, name: &str, now: Timestamp) -> Result<Ordered, OrderError> {
        for _ in 0..ATTEMPTS {
            let live = self.read(name).await?;
            let open = self.world.policy.effective(&live.object, now).filter(|effective| effective.state.open);
            let fields = match &open {
                Some(open) => act::held(self.kind.switch, open.state.until.unwrap_or(FOREVER)),
                None => json!({}),
            };
            let Some(live) = self.apply(&live, api::FIELD_MANAGER, fields).await? else { continue };
            let mut notes = Vec::new();
            let live = self.show(live, false, &mut notes).await?;
            return Ok(live.into_ordered(notes));
        }
        Err(OrderError::Unsettled)
    }

    /// The names of all objects.
    pub async fn names(&self) -> Result<Vec<String>, OrderError> {
        let all = self.api.list_metadata(&ListParams::default()).await.map_err(failed("listing them"))?;
        Ok(all.items.into_iter().filter_map(|object| object.metadata.name).collect())
    }

    /// The windows that a resume does not remove: in Git, and in the settings.
    fn window_that_stays(&self, live: &Live) -> Option<Effective> {
        let mut object = live.object.clone();
        if live.window_declared_by().is_none() {
            object.during = None.into();
        }
        self.world.policy.effective(&object, self.now)
    }

    async fn read(&self, name: &str) -> Result<Live, OrderError> {
        let found = self.api.get_opt(name).await.map_err(failed("reading it"))?;
        let Some(found) = found else {
            return Err(OrderError::NotFound { existing: self.names().await.unwrap_or_default() });
        };
        let live = self.live(found)?;
        if live.object.is_deleting {
            return Err(refused("it is being deleted".to_owned()));
        }
        Ok(live)
    }

    fn live(&self, found: DynamicObject) -> Result<Live, OrderError> {
        let unreadable = || refused("the API server's answer cannot be read".to_owned());
        let raw = serde_json::to_value(found).map_err(|_| unreadable())?;
        let object = observe::read(&self.world.policy.zone, &self.resource, raw.clone()).ok_or_else(unreadable)?;
        Ok(Live { raw, object })
    }

    /// Declares these fields and no others as a field manager; `None` if the object has changed meanwhile.
    async fn apply(&self, live: &Live, manager: &str, mut fields: Value) -> Result<Option<Live>, OrderError> {
        let object = &live.object;
        fields["apiVersion"] = json!(object.api_version);
        fields["kind"] = json!(object.kind);
        // What was refused or noted was so for this version of the object, and for no other.
        fields["metadata"]["name"] = json!(object.name);
        fields["metadata"]["uid"] = json!(object.uid);
        fields["metadata"]["resourceVersion"] = json!(object.resource_version);
        let params = PatchParams::apply(manager).force();
        self.settle(self.api.patch(&object.name, &params, &Patch::Apply(fields)).await)
    }

    /// Merges a patch; `None` if the object has changed meanwhile.
    async fn merge(&self, live: &Live, mut patch: Value) -> Result<Option<Live>, OrderError> {
        patch["metadata"]["uid"] = json!(live.object.uid);
        patch["metadata"]["resourceVersion"] = json!(live.object.resource_version);
        let params = PatchParams { field_manager: Some(api::CLI_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.settle(self.api.patch(&live.object.name, &params, &Patch::Merge(patch)).await)
    }

    fn settle(&self, answer: Result<DynamicObject, kube::Error>) -> Result<Option<Live>, OrderError> {
        match answer {
            Ok(written) => self.live(written).map(Some),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(failed("writing it")(error)),
        }
    }

    /// Writes the state that users see: `status.suspended`, which a schema without it drops, and the condition. An object
    /// whose window is open is shown as suspended if `shows_window`, before the keeper suspends it.
    async fn show(&self, mut live: Live, shows_window: bool, notes: &mut Vec<String>) -> Result<Live, OrderError> {
        for _ in 0..ATTEMPTS {
            let object = &live.object;
            if !object.has_status {
                return Ok(live);
            }
            let open = self.world.policy.effective(object, self.now).filter(|_| shows_window);
            let open = open.filter(|effective| effective.state.open);
            let until = open.map(|effective| effective.state.until.unwrap_or(FOREVER));
            let shown = match until {
                Some(until) => act::simulate(object.clone(), &Action::Suspend(until)),
                None => object.clone(),
            };
            let mut status = json!({ "suspended": shown.is_suspended() });
            let wanted = wanted(&shown, &self.world, self.now).condition;
            if object.condition != wanted {
                status["conditions"] = json!(act::with_condition(&object.conditions, wanted.as_ref(), self.now));
            }
            let patch = json!({
                "metadata": { "uid": object.uid, "resourceVersion": object.resource_version }, "status": status,
            });
            let params =
                PatchParams { field_manager: Some(api::CLI_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            let answer = self.api.patch_status(&object.name, &params, &Patch::Merge(patch)).await;
            match self.settle(answer) {
                Ok(Some(written)) => return Ok(written),
                Ok(None) => live = self.read(&live.object.name).await?,
                Err(error) => {
                    notes.push(format!("its condition is left to the operator: {error}"));
                    return Ok(live);
                }
            }
        }
        Ok(live)
    }
}

/// What Git declares would be undone at its next reconciliation: it is not fought.
fn refuse_suspension(live: &Live, order: &Suspension) -> Result<(), OrderError> {
    let object = &live.object;
    if order.during.is_some() {
        if let Some(by) = live.declared_by(api::SUSPENDED_DURING) {
            return Err(refused(format!("{by} declares its annotation {}; change it in Git", api::SUSPENDED_DURING)));
        }
    } else if let Some(by) = object.declared_by().filter(|_| object.suspended == Some(false)) {
        return Err(refused(format!(
            "{by} declares {}, and would undo it; change that line in Git",
            match object.switch {
                Switch::Field => "suspend: false",
                Switch::Annotation(_) => "that it is reconciled",
            }
        )));
    }
    Ok(())
}

/// What the commands declare: this order, and what an earlier order has set and nobody has resumed.
fn declared(live: &Live, order: &Suspension, by: &str) -> Value {
    let object = &live.object;
    let mut annotations = Map::new();
    let before = live.annotation(api::SUSPENDED_DURING).filter(|_| object.order_has_window());
    let optional = [
        (api::SUSPENDED_DURING, order.during.as_deref().or(before).map(str::to_owned)),
        (api::REASON, order.reason.clone()),
        (api::BY, Some(by.to_owned()).filter(|by| !by.is_empty())),
        (api::SUSPENDED_UNTIL, order.until.map(|until| until.to_string())),
    ];
    annotations.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
    let sets_field = order.during.is_none() || (object.is_suspended() && object.is_managed_by(api::CLI_FIELD_MANAGER));
    let mut fields = json!({});
    if sets_field {
        match object.switch {
            Switch::Field => fields["spec"] = json!({ "suspend": true }),
            Switch::Annotation(key) => _ = annotations.insert(key.to_owned(), json!(api::DISABLED)),
        }
    }
    fields["metadata"] = json!({ "annotations": annotations });
    fields
}

fn notes_on_suspension(live: &Live, order: &Suspension) -> Vec<String> {
    let object = &live.object;
    let mut notes = Vec::new();
    if order.during.is_some() && object.is_suspended() && object.is_managed_by(api::CLI_FIELD_MANAGER) {
        notes.push(
            "it stays suspended outside of the window too, as ordered before; resume it first to change that"
                .to_owned(),
        );
    }
    if let (None, true, Some(window)) = (&order.during, object.order_has_window(), object.during.get()) {
        notes.push(format!("its window {} stays", window.quoted()));
    }
    notes
}

fn notes_on_resume(live: &Live) -> Vec<String> {
    let object = &live.object;
    let declared_by = object.declared_by().filter(|_| object.is_suspended());
    let note = |by| format!("{by} declares that it is suspended, and will suspend it again; change that in Git");
    declared_by.map(note).into_iter().collect()
}

/// The patch that removes every suspension, also of other users. A window that Git keeps stays, and so does a yield.
fn cleared(live: &Live, yields: bool) -> Value {
    let mut keys = vec![api::REASON, api::BY, api::SUSPENDED_UNTIL, api::HELD_UNTIL];
    keys.extend([api::SUSPENDED_DURING, api::SUSPEND_DURING].into_iter().filter(|key| live.declared_by(key).is_none()));
    if !yields {
        keys.push(api::YIELDED_UNTIL);
    }
    let mut patch = json!({});
    if live.object.is_suspended() {
        match live.object.switch {
            Switch::Field => patch["spec"] = json!({ "suspend": null }),
            Switch::Annotation(key) => keys.push(key),
        }
    }
    let removed = keys.into_iter().filter(|key| live.annotation(key).is_some());
    let annotations: Map<String, Value> = removed.map(|key| (key.to_owned(), Value::Null)).collect();
    if !annotations.is_empty() {
        patch["metadata"] = json!({ "annotations": annotations });
    }
    patch
}

fn refused(why: String) -> OrderError {
    OrderError::Refused(why)
}

fn failed(what: &'static str) -> impl Fn(kube::Error) -> OrderError {
    move |error| OrderError::Api { what, error: Box::new(error) }
}
