//! Any subject and any world, for properties: mostly sane, sometimes not.

use std::sync::Arc;

use caretaker_core::{Parsed, SignedDuration, Timestamp};
use caretaker_namespaces::api::State;
use caretaker_namespaces::attribution::ActivityAt;
use caretaker_namespaces::subject::{Defaults, Deletion, HalfAwake, Kind, Policy, Subject, World};
use caretaker_namespaces::workload::{ClaimPolicy, KubefreeTerm, Workload, WorkloadKind, WorkloadState};
use proptest::option;
use proptest::prelude::*;

use crate::support::table::*;

pub const HORIZON: i64 = 600;

pub fn hours(range: std::ops::Range<i64>) -> impl Strategy<Value = SignedDuration> {
    // Minutes, so that deadlines of different subjects and labels rarely fall together by chance.
    (range.start * 60..range.end * 60).prop_map(SignedDuration::from_mins)
}

pub fn moment(range: std::ops::Range<i64>) -> impl Strategy<Value = Timestamp> {
    hours(range).prop_map(|ago| now() - ago)
}

pub fn any_state() -> impl Strategy<Value = (WorkloadKind, WorkloadState)> {
    let claims =
        prop_oneof![Just(ClaimPolicy::Retain), Just(ClaimPolicy::Delete), Just(ClaimPolicy::RetainWhileAsleep)];
    let scaled = (0_i32..5, option::of(0_i32..5), any::<bool>(), claims);
    let scaled = scaled.prop_map(|(replicas, recorded, by_caretaker, claims)| {
        let recorded = recorded.into();
        (WorkloadKind::StatefulSet, WorkloadState::Scaled { replicas, recorded, by_caretaker, claims })
    });
    let term = prop_oneof![3 => Just(KubefreeTerm::Absent), 1 => Just(KubefreeTerm::WithOthers), 1 => Just(KubefreeTerm::Alone)];
    let placed = (any::<bool>(), term)
        .prop_map(|(parked, kubefree)| (WorkloadKind::DaemonSet, WorkloadState::Placed { parked, kubefree }));
    let switched = (any::<bool>(), option::of(any::<bool>())).prop_map(|(suspended, recorded)| {
        (WorkloadKind::CronJob, WorkloadState::Scheduled { suspended, recorded: recorded.into() })
    });
    let paused = (option::of("[0-3]"), any::<bool>()).prop_map(|(paused_at, by_caretaker)| {
        (WorkloadKind::ScaledObject, WorkloadState::Paused { paused_at, by_caretaker })
    });
    prop_oneof![scaled, placed, switched, paused]
}

pub fn any_workloads() -> impl Strategy<Value = Vec<Workload>> {
    let rows = prop::collection::vec((any_state(), prop::bool::weighted(0.1), prop::bool::weighted(0.1)), 0..4);
    rows.prop_map(|rows| {
        let row = |(i, ((kind, state), excluded, own_sleep))| {
            let row = workload(kind, state);
            Workload { name: format!("w{i}"), excluded, own_sleep, ..row }
        };
        rows.into_iter().enumerate().map(row).collect()
    })
}

/// Sometimes with an open session, or with one that was open.
pub fn any_subject() -> impl Strategy<Value = Subject> {
    let session = option::weighted(0.2, moment(-1..100));
    let half_awake = (option::weighted(0.2, moment(0..100)), option::weighted(0.2, moment(0..100)));
    let rest = (session, any::<bool>(), half_awake);
    (any_empty_subject(), rest).prop_map(|(mut subject, (session, labelled, (half_awake, back_asleep)))| {
        (subject.half_awake_since, subject.put_back_at) = (half_awake.into(), back_asleep.into());
        subject.sessions = session.map(|since| [("x1".to_owned(), since)].into()).into();
        if !labelled {
            subject.last_activity = Parsed::Missing;
        }
        subject
    })
}

/// Mostly sane, sometimes not.
pub fn any_empty_subject() -> impl Strategy<Value = Subject> {
    let name = prop_oneof![8 => "[a-c]", 1 => Just("kube-system".to_owned()), 1 => Just("prod-a".to_owned())];
    let kind = prop_oneof![8 => Just(Kind::Namespace), 1 => Just(Kind::Deployment), 1 => Just(Kind::Service)];
    let state = prop_oneof![
        4 => Just(State::Normal), 1 => Just(State::Sleeping), 3 => Just(State::Sleep), 1 => Just(State::Deleting)
    ];
    let labels = (option::weighted(0.7, hours(1..100)), option::weighted(0.5, hours(1..200)));
    let times = (
        option::weighted(0.8, moment(0..300)),
        option::weighted(0.6, moment(0..300)),
        option::weighted(0.3, moment(0..100)),
        option::weighted(0.2, moment(-100..100)),
        option::weighted(0.15, moment(-100..100)),
        option::weighted(0.1, moment(-100..100)),
    );
    let rare = || prop::bool::weighted(0.1);
    let rest = (
        any_workloads(),
        (rare(), rare(), rare(), rare(), rare(), rare()),
        0_usize..2,
        option::weighted(0.3, moment(0..300)),
    );
    (name, kind, state, labels, times, rest).prop_map(
        |(
            name,
            kind,
            state,
            (sleep, delete),
            (used, since, announced, delete_at, hand, kept_awake),
            (workloads, (defaults, gone, home, called, excluded, manual), pvcs, created),
        )| {
            let mut subject = awake().called(&name).kind(kind).in_state(state);
            subject.sleep_after = sleep.into();
            subject.delete_after = delete.into();
            (subject.activity, subject.last_activity) = (Parsed::Missing, Parsed::Missing);
            if let Some(at) = used {
                subject = subject.used_at(at);
            }
            subject.asleep_since = since.into();
            subject.announced_at = announced.into();
            subject.delete_at = delete_at.into();
            subject.sleep_until = hand.into();
            subject.awake_until = kept_awake.into();
            subject.workloads = workloads;
            subject.default_policy = defaults;
            subject.inactive = gone.then(|| "Terminating".to_owned());
            subject.pvc_count = pvcs;
            subject.namespace_asleep = home && kind != Kind::Namespace;
            subject.used_by_control_plane = called.then(|| "APIService/v1".to_owned());
            subject.excluded = excluded;
            subject.manual_sleep = manual;
            subject.created = created;
            subject.labelled = sleep.is_some() || delete.is_some();
            subject
        },
    )
}

pub fn any_world() -> impl Strategy<Value = World> {
    let defaults = option::weighted(0.3, any::<bool>());
    let notice = prop_oneof![1 => Just(0.0), 4 => Just(0.1), 1 => Just(0.5)];
    let deletion = prop_oneof![
        4 => Just(Deletion::AsSpecified), 1 => Just(Deletion::OnlyDeleteAfter), 1 => Just(Deletion::Never)
    ];
    let half_awake = prop_oneof![2 => Just(HalfAwake::Leave), 1 => Just(HalfAwake::Wake), 1 => Just(HalfAwake::Sleep)];
    let settings = (defaults, notice, deletion, prop::bool::weighted(0.2), half_awake);
    let source = (any::<bool>(), prop::bool::weighted(0.2));
    let times = (option::weighted(0.2, moment(0..100)), option::weighted(0.8, moment(0..800)));
    (settings, source, times).prop_map(|(settings, source, (last_gap, last_report))| {
        let (defaults, deletion_notice, deletion, retain_with_pvcs, half_awake) = settings;
        let (proves_activity, delete_without_activity_source) = source;
        let sleep_after = Defaults::SLEEP_AFTER;
        let policy = Policy {
            protected: vec![wildmatch::WildMatch::new("prod-*")],
            defaults: defaults.map(|delete_with_pvcs| Defaults { sleep_after, delete_with_pvcs }),
            deletion_notice,
            deletion,
            retain_with_pvcs,
            half_awake,
            records_activity: proves_activity,
            proves_activity,
            delete_without_activity_source,
            ..Policy::default()
        };
        World { policy: Arc::new(policy), last_gap, last_report }
    })
}

pub fn any_uses() -> impl Strategy<Value = Vec<ActivityAt>> {
    let at = (0..HORIZON * 60).prop_map(|m| now() + SignedDuration::from_mins(m));
    prop::collection::vec(at.prop_map(|at| ActivityAt { at, subject: 0, who: None }), 0..6)
}
