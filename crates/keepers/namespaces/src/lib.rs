//! The namespaces keeper: idle namespaces sleep, wake on activity, and are deleted when abandoned.
//!
//! # The story
//!
//! A team makes a namespace, uses it for a while and forgets it. Its owner, or the fallback, has
//! given it a label: `sleep-after: 24h`. An annotation says when it was last used. After a day of
//! silence its workloads are laid down: each keeps the record of how it was, in the same write. The
//! first use wakes it, with exactly what it had. If nobody comes for as long again, its deletion is
//! announced, and only after the announcement has stood for its time is the namespace deleted; any
//! use withdraws it.
//!
//! `delete-after` says how long the silence lasts until deletion. Alone, it deletes without sleep;
//! with a shorter `sleep-after`, it sleeps first; with a longer one, it never sleeps. The same
//! labels work on a single Deployment, and `delete-after` on a single Service.
//!
//! # The rooms
//!
//! [`api`] has the names on the wire. [`observe`] makes a [`subject::Subject`] out of API objects.
//! [`judge`] decides, and nothing else does. [`act`] has what can be done, as data, and does it.
//! The loop around it is the engine's; [`run`] is what the keeper has beside that.
//! [`record`] says when a use that was heard of is written down. [`lint`] finds what is wrong with
//! the labels before anything reads them in earnest.
//!
//! # What it never does
//!
//! Touch a protected namespace. Delete without an announcement, before the period, or what runs
//! again. Count silence that nobody listened to. Act on a label it cannot read.

pub mod act;
pub mod api;
pub mod judge;
pub mod keep;
pub mod lint;
pub mod observe;
pub mod record;
pub mod run;
pub mod subject;
pub mod workload;
mod works;

use caretaker_core::keeper::{Keeper, Name};
use caretaker_core::rules::RuleTable;
use caretaker_core::{Parsed, Timestamp};

use act::Action;
use api::Activity;
use subject::{Kind, Subject, World};

/// The keeper's name.
pub const NAME: &str = "namespaces";

/// The keeper.
#[derive(Debug, Clone, Copy)]
pub struct Namespaces;

impl Keeper for Namespaces {
    const NAME: &'static str = NAME;
    type Subject = Subject;
    type World = World;
    type Action = Action;

    fn rules() -> &'static RuleTable<Subject, World, Action> {
        &judge::RULES
    }

    fn name(subject: &Subject) -> Name<'_> {
        let (namespace, name, uid) = (subject.namespace.as_deref(), &subject.name, &subject.uid);
        Name { kind: subject.kind.name(), namespace, name, uid }
    }

    fn facts(subject: &Subject, now: Timestamp) -> Vec<(&'static str, String)> {
        subject.facts(now)
    }

    fn steps(subject: &Subject, action: &Action, world: &World, now: Timestamp) -> Vec<String> {
        act::steps(action, subject, world, now).iter().map(ToString::to_string).collect()
    }

    fn after(subject: Subject, action: &Action, world: &World, now: Timestamp) -> Option<Subject> {
        act::after_all(subject, action, world, now)
    }

    fn is_paced(subject: &Subject) -> bool {
        subject.kind == Kind::Namespace
    }

    fn used(mut subject: Subject, at: Timestamp) -> Subject {
        let known = subject.activity.get().map(|a| a.at);
        if known.is_none_or(|known| at > known) {
            let by = "Use".to_owned();
            subject.activity = Parsed::Valid(Activity { at, by, user: String::new(), uid: String::new() });
        }
        subject
    }

    fn bond(subject: &Subject) -> Option<&str> {
        Some(subject.home())
    }

    fn beside(mut subject: Subject, other: &Subject, action: &Action, now: Timestamp) -> Option<Subject> {
        if other.kind != Kind::Namespace {
            return Some(subject);
        }
        match action {
            Action::Delete => return None,
            Action::Sleep(_) => subject.home_asleep = true,
            Action::Wake { restart } => {
                subject.home_asleep = false;
                if *restart == Some("HandSleepOver") {
                    (subject.home_hand_until, subject.home_woken) = (None, Some(now));
                }
            }
            Action::Label(_) | Action::Announce => {}
        }
        Some(subject)
    }
}
