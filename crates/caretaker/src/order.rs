//! `caretaker sleep` and `caretaker wake`: what a person orders.
//!
//! The order is written on the namespace, where the operator reads it, and carried out at once: the
//! same steps, each on condition of what was seen, so that it does not matter who comes first.

use anyhow::{Context, Result, bail};
use caretaker_core::{Parsed, Timestamp, Verdict, time};
use caretaker_engine::api::is_conflict;
use caretaker_engine::keep::Index as _;
use caretaker_engine::told;
use caretaker_namespaces::act::carry_out::{Hand, Judged, Undone, carry_out};
use caretaker_namespaces::act::{Action, steps};
use caretaker_namespaces::api::{self, Activity};
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::keep::observe_home;
use caretaker_namespaces::observe::{Manifest, resource};
use caretaker_namespaces::subject::{Kind, Subject, World};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::breaker::MANAGER;
use crate::cli::Order;
use crate::live::{self, Cluster};
use crate::output::{Answer, cell};
use crate::scene::{self, missing};

/// The operator may be at work on the same namespace; this often it is looked at again.
const TRIES: usize = 8;

/// Puts a namespace to sleep.
pub fn sleep(args: &Order, now: Timestamp) -> Result<Answer> {
    let until = args.length.map_or(api::FOREVER, |length| time::saturating_add(now, length));
    let order = |mut subject: Subject| {
        subject.hand_sleep_until = Parsed::Valid(until);
        subject.hand_wake_until = Parsed::Missing;
        subject
    };
    live::block_on(async {
        let mut scene = Ordering::read(args, now).await?;
        let subject = scene.subject().await?;
        let Verdict { rule, because, .. } = RULES.judge(&order(subject.clone()), &scene.world, now);
        if rule != "HandSleep" {
            bail!("namespace {} is not put to sleep: {rule}: {because}", args.namespace);
        }
        let annotations = json!({ api::HAND_SLEEP_UNTIL: until.to_string(), api::HAND_WAKE_UNTIL: null });
        scene.write(subject, annotations, order).await?;
        scene
            .until_settled(|subject, world, now| {
                let verdict = RULES.judge(subject, world, now);
                verdict.next.pending_action().copied().map(|action| (Some(verdict.rule), action))
            })
            .await?;
        let how_long = if until == api::FOREVER {
            "until it is woken by hand".to_owned()
        } else {
            format!("until {}", time::format(until))
        };
        Ok(scene.answer("asleep", &how_long))
    })
}

/// Wakes a namespace.
pub fn wake(args: &Order, now: Timestamp) -> Result<Answer> {
    let until = args.length.map(|length| time::saturating_add(now, length));
    live::block_on(async {
        let mut scene = Ordering::read(args, now).await?;
        let subject = scene.subject().await?;
        if let Some(phase) = &subject.inactive {
            bail!("namespace {} cannot be woken: its phase is {phase}", args.namespace);
        }
        let activity =
            Activity { at: now, by: "HandWake".to_owned(), user: whoami(&scene.client).await, uid: String::new() };
        let annotations = json!({
            api::ACTIVITY: activity.to_json(),
            api::HAND_WAKE_UNTIL: until.map(|t| t.to_string()),
            api::HAND_SLEEP_UNTIL: null,
        });
        let order = |mut subject: Subject| {
            subject.activity = Parsed::Valid(activity.clone());
            subject.hand_wake_until = until.into();
            subject.hand_sleep_until = Parsed::Missing;
            subject
        };
        scene.write(subject, annotations, order).await?;
        scene
            .until_settled(|subject, _, _| lies_down(subject).then_some((None, Action::Wake { restart: None })))
            .await?;
        let how_long = until
            .map_or_else(|| "as long as its labels say".to_owned(), |t| format!("at least until {}", time::format(t)));
        Ok(scene.answer("awake", &how_long))
    })
}

/// Whether anything is left of a sleep.
pub(crate) fn lies_down(subject: &Subject) -> bool {
    let marks = subject.asleep_since.is_set() || subject.announced_at.is_set() || subject.delete_at.is_set();
    let state = subject.state.value().is_none_or(|state| state != api::State::Normal);
    marks || state || subject.slept_by_hand || subject.workloads.iter().any(|w| w.raised().is_some())
}

/// Who gives the order, as the API server knows them; nobody, if it does not say.
async fn whoami(client: &Client) -> String {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let user = answer.ok().and_then(|review| review.status?.user_info?.username);
    user.unwrap_or_default()
}

/// An order on its way.
struct Ordering<'a> {
    args: &'a Order,
    client: Client,
    world: World,
    now: Timestamp,
    done: Vec<String>,
    notes: Vec<String>,
}

impl<'a> Ordering<'a> {
    async fn read(args: &'a Order, now: Timestamp) -> Result<Self> {
        let client = Client::try_from(live::settings(&args.cluster).await?)?;
        let mut cluster = Cluster::default();
        cluster.read_own(&client).await;
        let config = scene::config(args.config.as_deref(), &cluster.settings)?;
        let world = World { policy: config.keepers.namespaces.policy(), last_gap: None };
        Ok(Self { args, client, world, now, done: Vec::new(), notes: cluster.notes })
    }

    async fn subject(&self) -> Result<Subject> {
        let name = &self.args.namespace;
        let seen = observe_home(&self.client, name).await.context("may this user read all of it?")?;
        let found = seen.at_home(&name.to_owned()).into_iter().find(|s| s.kind == Kind::Namespace);
        if let Some(subject) = found {
            return Ok(subject);
        }
        let mut names = Vec::new();
        // Only for a suggestion.
        let _ = resource("Namespace").list(&self.client, None, |ns: Manifest| names.push(ns.metadata.name)).await;
        bail!(missing(name, names.iter().map(String::as_str)))
    }

    /// Writes the order on the namespace.
    async fn write(
        &mut self,
        mut subject: Subject,
        annotations: Value,
        order: impl Fn(Subject) -> Subject,
    ) -> Result<()> {
        if self.args.dry_run {
            let ordered = order(subject);
            let verdict = RULES.judge(&ordered, &self.world, self.now);
            let action = match verdict.next.pending_action() {
                Some(action) => Some(*action),
                None => lies_down(&ordered).then_some(Action::Wake { restart: None }),
            };
            let steps = action.map(|action| steps(&action, &ordered, &self.world, self.now));
            self.done.extend(steps.iter().flatten().map(ToString::to_string));
            return Ok(());
        }
        for _ in 0..TRIES {
            let patch = json!({ "metadata": {
                "uid": subject.uid, "resourceVersion": subject.resource_version, "annotations": annotations,
            } });
            match resource("Namespace").patch::<Manifest>(&self.client, None, &subject.name, MANAGER, &patch).await {
                Ok(_) => return Ok(()),
                Err(e) if is_conflict(&e) => subject = self.subject().await?,
                Err(e) => bail!("writing namespace {}: {}", subject.name, told(&e)),
            }
        }
        bail!("namespace {} changes faster than it can be written; try again", self.args.namespace)
    }

    /// Carries out what is left to do, until nothing is.
    async fn until_settled(
        &mut self,
        what: impl Fn(&Subject, &World, Timestamp) -> Option<(Option<&'static str>, Action)>,
    ) -> Result<()> {
        if self.args.dry_run {
            return Ok(());
        }
        let mut last = None;
        for _ in 0..TRIES {
            let subject = self.subject().await?;
            let Some((rule, action)) = what(&subject, &self.world, self.now) else { return Ok(()) };
            let hand = Hand { client: &self.client, manager: MANAGER };
            let judged = Judged { subject: &subject, rule, action: &action };
            match carry_out(hand, judged, &self.world, self.now).await.0 {
                Ok(()) => {
                    let steps = steps(&action, &subject, &self.world, self.now);
                    self.done.extend(steps.iter().map(ToString::to_string));
                }
                // The operator was faster, or somebody else is at work: look again.
                Err(undone @ Undone::Changed(_)) => last = Some(undone),
                Err(undone) => bail!(
                    "namespace {}: {undone}; what was done stays, the rest is tried again by the operator",
                    self.args.namespace
                ),
            }
        }
        bail!(
            "namespace {} does not come to rest: {}",
            self.args.namespace,
            last.map(|e| e.to_string()).unwrap_or_default()
        )
    }

    fn answer(self, state: &str, how_long: &str) -> Answer {
        let would = if self.args.dry_run { "would be " } else { "" };
        let mut text = format!("namespace {}: {would}{state} {how_long}\n", self.args.namespace);
        for step in &self.done {
            text.push_str(&format!("  {}\n", cell(step)));
        }
        Answer { text, notes: self.notes, code: 0 }
    }
}
