//! What holds for every namespace, however strange, over any stretch of time.

mod table;

use caretaker_core::limits::{Limits, Breaker, PopulationGroups, Ledger, Pace, enforce};
use caretaker_core::keeper::crowd;
use caretaker_core::simulate::{SimulatedEvent, Simulation, Use};
use caretaker_core::{Action as _, Next, Parsed, SignedDuration, Timestamp, time};
use caretaker_engine::keep::Index as _;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::{Action, Note, Sleep, after, after_all, steps};
use caretaker_namespaces::api::{self, Place, State};
use caretaker_namespaces::judge::RULES;
use caretaker_namespaces::observe::{Manifest, Observation};
use caretaker_namespaces::subject::{Fallback, Kind, Policy, Subject, World};
use caretaker_namespaces::workload::{Form, Term, Workload, WorkloadKind};
use proptest::option;
use proptest::prelude::*;
use table::*;

const HORIZON: i64 = 600;

fn hours(range: std::ops::Range<i64>) -> impl Strategy<Value = SignedDuration> {
    // Minutes, so that deadlines of different subjects and labels rarely fall together by chance.
    (range.start * 60..range.end * 60).prop_map(SignedDuration::from_mins)
}

fn moment(range: std::ops::Range<i64>) -> impl Strategy<Value = Timestamp> {
    hours(range).prop_map(|ago| now() - ago)
}

fn any_form() -> impl Strategy<Value = (WorkloadKind, Form)> {
    let scaled = (0_i32..5, option::of(0_i32..5), any::<bool>()).prop_map(|(replicas, record, ours)| {
        (WorkloadKind::StatefulSet, Form::Scaled { replicas, record: record.into(), ours })
    });
    let term = prop_oneof![3 => Just(Term::Absent), 1 => Just(Term::Beside), 1 => Just(Term::Alone)];
    let placed = (any::<bool>(), term)
        .prop_map(|(parked, kubefree)| (WorkloadKind::DaemonSet, Form::Placed { parked, kubefree }));
    let switched = (any::<bool>(), option::of(any::<bool>()))
        .prop_map(|(suspended, record)| (WorkloadKind::CronJob, Form::Switched { suspended, record: record.into() }));
    let paused = (option::of("[0-3]"), any::<bool>())
        .prop_map(|(paused, record)| (WorkloadKind::ScaledObject, Form::Paused { paused, record }));
    prop_oneof![scaled, placed, switched, paused]
}

fn any_workloads() -> impl Strategy<Value = Vec<Workload>> {
    let rows = prop::collection::vec((any_form(), prop::bool::weighted(0.1), prop::bool::weighted(0.1)), 0..4);
    rows.prop_map(|rows| {
        let row = |(i, ((kind, form), excluded, own_sleep))| {
            let row = workload(kind, form);
            Workload { name: format!("w{i}"), excluded, own_sleep, ..row }
        };
        rows.into_iter().enumerate().map(row).collect()
    })
}

/// Sometimes somebody is in it, or was.
fn any_subject() -> impl Strategy<Value = Subject> {
    (any_empty_subject(), option::weighted(0.2, moment(-1..100))).prop_map(|(mut subject, session)| {
        subject.sessions = session.map(|since| [("x1".to_owned(), since)].into()).into();
        subject
    })
}

/// Mostly sane, sometimes not.
fn any_empty_subject() -> impl Strategy<Value = Subject> {
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
            (workloads, (fallback, gone, home, serves, excluded, by_hand), claims, created),
        )| {
            let mut subject = awake().called(&name).kind(kind).in_state(state);
            subject.sleep_after = sleep.into();
            subject.delete_after = delete.into();
            subject.activity = Parsed::Missing;
            if let Some(at) = used {
                subject = subject.used_at(at);
            }
            subject.asleep_since = since.into();
            subject.announced_at = announced.into();
            subject.delete_at = delete_at.into();
            subject.hand_sleep_until = hand.into();
            subject.hand_wake_until = kept_awake.into();
            subject.workloads = workloads;
            subject.by_fallback = fallback;
            subject.inactive = gone.then(|| "Terminating".to_owned());
            subject.claims = claims;
            subject.home_asleep = home && kind != Kind::Namespace;
            subject.serves = serves.then(|| "APIService/v1".to_owned());
            subject.excluded = excluded;
            subject.slept_by_hand = by_hand;
            subject.created = created;
            subject.labelled = sleep.is_some() || delete.is_some();
            subject
        },
    )
}

fn any_world() -> impl Strategy<Value = World> {
    let fallback = option::weighted(0.3, any::<bool>());
    let announce = prop_oneof![1 => Just(0.0), 4 => Just(0.1), 1 => Just(0.5)];
    (fallback, announce, option::weighted(0.2, moment(0..100))).prop_map(|(fallback, announce, last_gap)| {
        let fallback = fallback.map(|delete_claims| Fallback { sleep_after: Fallback::SLEEP_AFTER, delete_claims });
        let policy = Policy {
            protected: vec![wildmatch::WildMatch::new("prod-*")],
            fallback,
            announce,
            session: Policy::SESSION,
        };
        World { policy, last_gap }
    })
}

fn any_uses() -> impl Strategy<Value = Vec<Use>> {
    let at = (0..HORIZON * 60).prop_map(|m| now() + SignedDuration::from_mins(m));
    prop::collection::vec(at.prop_map(|at| Use { at, subject: 0 }), 0..6)
}

/// Two deletions an hour, and a breaker that four at once open.
fn limits() -> Limits {
    let pace = Pace { limit: 2, fraction: 0.0, window: SignedDuration::from_hours(1) };
    let breaker = Breaker { min_count: 4, ..Breaker::default() };
    Limits { pace: [("delete".to_owned(), pace)].into(), breaker: Some(breaker) }
}

fn run(subject: &Subject, world: &World, uses: &[Use], stops: &[i64]) -> Vec<SimulatedEvent<Action>> {
    let mut simulation = Simulation::<Namespaces>::new(
        world.clone(),
        vec![subject.clone()],
        Limits::default(),
        Ledger::default(),
        now(),
    );
    let ends = stops.iter().chain([&(HORIZON * 60)]).map(|m| now() + SignedDuration::from_mins(*m));
    ends.flat_map(|end| simulation.run(end, uses)).collect()
}

/// Kept beside the judge and without it: what anybody could have noted down from outside.
struct Witness {
    used: Option<Timestamp>,
    asleep: Option<Timestamp>,
    announced: Option<Timestamp>,
    sleep_after: Option<SignedDuration>,
}

impl Witness {
    fn new(subject: &Subject) -> Self {
        Self {
            used: subject.activity.get().map(|a| a.at),
            asleep: subject.asleep_since.value().filter(|_| subject.is_asleep()),
            announced: subject.announced_at.value(),
            sleep_after: subject.sleep_after.value(),
        }
    }

    fn sees(&mut self, event: &SimulatedEvent<Action>) {
        match event.action {
            Some(Action::Label(Note::FirstSeen)) => self.used = Some(event.at),
            Some(Action::Label(Note::Fallback(after))) => {
                (self.sleep_after, self.used) = (Some(after), Some(event.at));
            }
            Some(Action::Label(Note::Restart)) => {
                (self.used, self.asleep, self.announced) = (Some(event.at), Some(event.at), None);
            }
            Some(Action::Label(Note::Withdraw)) => self.announced = None,
            // A date that moves is announced again, and the notice counts from the first time; what was
            // announced before the last use was about another silence.
            Some(Action::Announce) => {
                let first = self.announced.filter(|at| self.used.is_none_or(|used| *at >= used));
                self.announced = Some(first.unwrap_or(event.at));
            }
            Some(Action::Sleep(Sleep::Idle | Sleep::Unfinished) | Action::Label(Note::AsleepSince)) => {
                self.asleep = Some(event.at);
            }
            // A sleep by hand leads nowhere.
            Some(Action::Sleep(Sleep::ByHand) | Action::Label(Note::ByHand)) => {
                (self.asleep, self.announced) = (None, None);
            }
            Some(Action::Wake { restart }) => {
                (self.asleep, self.announced) = (None, None);
                if restart.is_some() {
                    self.used = Some(event.at);
                }
            }
            Some(Action::Delete | Action::Label(Note::HandOver)) | None => {}
        }
    }
}

/// Some thousand cases; more where `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig { cases: asked.cases.max(3_000), failure_persistence: None, ..asked }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn never_deletes_before_the_period(subject in any_subject(), world in any_world(), uses in any_uses()) {
        let mut witness = Witness::new(&subject);
        let delete = subject.delete_after.value();
        for event in run(&subject, &world, &uses, &[]) {
            let known = uses.iter().map(|u| u.at).filter(|at| *at <= event.at).max();
            witness.used = witness.used.max(known);
            witness.sees(&event);
            if event.action != Some(Action::Delete) {
                continue;
            }
            let sleep = witness.sleep_after.filter(|_| subject.kind != Kind::Service);
            // Without any record of use, silence is vouched for only by the record of the sleep.
            let session = subject.sessions.get().and_then(|all| all.values().max().copied());
            let session = session.map(|since| time::saturating_add(since, world.policy.session).min(event.at));
            let limits = [world.last_gap, subject.created, session];
            let since = |t: Timestamp| limits.into_iter().flatten().fold(t, Timestamp::max);
            let lasts = |t: Timestamp| time::duration_between(since(t), event.at);
            let silent = witness.used.or(witness.asleep).map(lasts);
            let slept = witness.asleep.map(lasts);
            match (sleep, delete) {
                (None, None) => prop_assert!(false, "deleted without a label"),
                (None, Some(d)) => prop_assert!(silent >= Some(d), "{silent:?} < {d:?}"),
                (Some(s), Some(d)) if d <= s => prop_assert!(silent >= Some(d), "{silent:?} < {d:?}"),
                (Some(s), Some(d)) => {
                    prop_assert!(silent >= Some(d), "{silent:?} < {d:?}");
                    prop_assert!(slept >= Some(d - s), "asleep {slept:?} < {:?}", d - s);
                }
                (Some(s), None) => prop_assert!(slept >= Some(s), "asleep {slept:?} < {s:?}"),
            }
        }
    }

    #[test]
    fn never_deletes_without_an_announcement(subject in any_subject(), world in any_world(), uses in any_uses()) {
        let mut witness = Witness::new(&subject);
        for event in run(&subject, &world, &uses, &[]) {
            let known = uses.iter().map(|u| u.at).filter(|at| *at <= event.at).max();
            witness.used = witness.used.max(known);
            witness.sees(&event);
            if event.action == Some(Action::Delete) && world.policy.announce > 0.0 {
                let period = subject.delete_after.value().or(witness.sleep_after).expect("a label leads here");
                let of_this_silence = witness.announced.filter(|at| witness.used.is_none_or(|used| *at >= used));
                let notice = of_this_silence.map(|at| time::duration_between(at, event.at));
                prop_assert!(notice >= Some(period.mul_f64(world.policy.announce)), "{notice:?} of {period:?}");
            }
        }
    }

    #[test]
    fn never_touches_what_is_protected(subject in any_subject(), world in any_world(), uses in any_uses()) {
        let home = subject.namespace.clone().unwrap_or(subject.name.clone());
        let named = home.starts_with("kube-") || home.starts_with("prod-");
        let protected = named || subject.serves.is_some() || subject.inactive.is_some();
        let happened = run(&subject, &world, &uses, &[]);
        prop_assert!(!protected || happened.is_empty(), "{happened:?}");
        let harmed = happened.iter().filter_map(|h| h.action).any(|a| a.guarded() || a == Action::Announce);
        prop_assert!(!subject.excluded || !harmed, "{happened:?}");
    }

    #[test]
    fn never_deletes_what_runs_again(subject in any_subject(), world in any_world()) {
        let verdict = RULES.judge(&subject, &world, now());
        let held = subject.is_asleep() && subject.workloads.iter().any(|w| w.runs() || w.excluded);
        prop_assert!(!held || !matches!(verdict.next, Next::Act { action: Action::Delete, .. }), "{verdict:?}");
    }

    #[test]
    fn sleep_then_wake_is_the_identity(workloads in any_workloads()) {
        // Awake, there is no record yet.
        let clean = |w: Workload| {
            let form = match w.form {
                Form::Scaled { replicas, .. } => Form::Scaled { replicas, record: Parsed::Missing, ours: false },
                Form::Placed { .. } => Form::Placed { parked: false, kubefree: Term::Absent },
                Form::Switched { suspended, .. } => Form::Switched { suspended, record: Parsed::Missing },
                Form::Paused { paused, .. } => Form::Paused { paused, record: false },
            };
            Workload { form, own_sleep: false, ..w }
        };
        let mut subject = awake().sleep_after("1h");
        subject.workloads = workloads.into_iter().map(clean).collect();
        let before = subject.workloads.clone();

        let asleep = after_all(subject, &Action::Sleep(Sleep::Idle), &World::default(), now()).unwrap();
        prop_assert!(asleep.workloads.iter().all(|w| w.excluded || !w.runs()));
        let woken = after_all(asleep, &Action::Wake { restart: None }, &World::default(), now()).unwrap();

        prop_assert_eq!(woken.workloads, before);
    }

    #[test]
    fn cut_short_anywhere_a_sleep_loses_no_count(workloads in any_workloads(), cut in 0_usize..8) {
        let mut subject = awake().sleep_after("1h").idle("2h");
        subject.workloads = workloads;
        let whole = after_all(subject.clone(), &Action::Sleep(Sleep::Idle), &World::default(), now()).unwrap();

        let begun = steps(&Action::Sleep(Sleep::Idle), &subject, &World::default(), now());
        let half = begun.iter().take(cut).try_fold(subject, after).unwrap();
        let finished = match RULES.judge(&half, &World::default(), now()).next {
            Next::Act { action, .. } => after_all(half, &action, &World::default(), now()).unwrap(),
            _ => half,
        };

        prop_assert_eq!(finished, whole);
    }

    #[test]
    fn judging_twice_is_judging_once(subject in any_subject(), world in any_world()) {
        let verdict = RULES.judge(&subject, &world, now());
        prop_assert_eq!(&verdict, &RULES.judge(&subject, &world, now()));
        let Some(action) = verdict.next.action().filter(|_| !matches!(verdict.next, Next::Wait { .. })) else { return Ok(()) };

        let Some(once) = after_all(subject, action, &world, now()) else { return Ok(()) };
        let again = RULES.judge(&once, &world, now());

        let same = again.rule == verdict.rule && again.next.action() == Some(action) && !matches!(again.next, Next::Wait { .. });
        prop_assert!(!same, "done once, and asked for again: {again:?}");
    }

    #[test]
    fn every_subject_comes_to_rest(subject in any_subject(), world in any_world()) {
        let mut subject = subject;
        for _ in 0..6 {
            let verdict = RULES.judge(&subject, &world, now());
            let (Next::Act { action, .. } | Next::Refuse { bookkeeping: Some(action) }) = verdict.next else { return Ok(()) };
            let Some(next) = after_all(subject, &action, &world, now()) else { return Ok(()) };
            subject = next;
        }
        prop_assert!(false, "still acting: {:?}", RULES.judge(&subject, &world, now()));
    }

    #[test]
    fn one_leap_equals_many(
        subject in any_subject(), world in any_world(), uses in any_uses(),
        stops in prop::collection::btree_set(1..HORIZON * 60, 0..8),
    ) {
        let stops: Vec<i64> = stops.into_iter().collect();
        prop_assert_eq!(run(&subject, &world, &uses, &[]), run(&subject, &world, &uses, &stops));
    }

    #[test]
    fn many_subjects_under_bounds_in_one_leap_equal_many(
        subjects in prop::collection::vec(any_subject(), 1..8), world in any_world(), uses in any_uses(),
        stops in prop::collection::btree_set(1..HORIZON * 60, 0..5),
    ) {
        let run = |stops: &[i64]| {
            let mut simulation = Simulation::<Namespaces>::new(world.clone(), subjects.clone(), limits(), Ledger::default(), now());
            let ends = stops.iter().chain([&(HORIZON * 60)]).map(|m| now() + SignedDuration::from_mins(*m));
            ends.flat_map(|end| simulation.run(end, &uses)).collect::<Vec<_>>()
        };
        let stops: Vec<i64> = stops.into_iter().collect();
        let happened = run(&[]);
        prop_assert_eq!(&happened, &run(&stops));

        let deletions: Vec<Timestamp> = happened.iter().filter(|h| h.action == Some(Action::Delete)).map(|h| h.at).collect();
        for window in deletions.windows(3) {
            prop_assert!(time::duration_between(window[0], window[2]) >= SignedDuration::from_hours(1), "three within an hour: {window:?}");
        }
        let opened = happened.iter().position(|h| h.subject.is_none());
        let after = happened.iter().skip(opened.unwrap_or(happened.len()));
        prop_assert!(after.filter_map(|h| h.action).all(|a| !a.guarded()), "an open breaker let something pass");
    }

    #[test]
    fn what_is_planned_is_what_is_simulated(subjects in prop::collection::vec(any_subject(), 1..8), world in any_world()) {
        let just_after = now() + SignedDuration::from_nanos(1);
        let mut verdicts: Vec<_> = subjects.iter().map(|s| RULES.judge(s, &world, just_after)).collect();
        enforce(&mut verdicts, &PopulationGroups::default(), crowd::<Namespaces>(&subjects), &limits(), &Ledger::default(), now());
        let planned: Vec<(usize, &str)> = verdicts
            .iter()
            .enumerate()
            .filter(|(_, v)| matches!(v.next, Next::Act { .. } | Next::Refuse { bookkeeping: Some(_) }))
            .map(|(i, v)| (i, v.rule))
            .collect();

        let mut simulation = Simulation::<Namespaces>::new(world, subjects.clone(), limits(), Ledger::default(), now());
        let happened = simulation.run(now() + SignedDuration::from_nanos(1), &[]);

        // The first thing that happens to each; what goes with its namespace does not act itself.
        let first = |i: usize| happened.iter().find(|h| h.subject == Some(i)).map(|h| h.rule);
        let gone_with = |i: usize| subjects.iter().enumerate().any(|(j, s)| {
            j != i && s.kind == Kind::Namespace && s.name == subjects[i].home()
                && happened.iter().any(|h| h.subject == Some(j) && h.action == Some(Action::Delete))
        });
        for (i, rule) in planned {
            prop_assert!(first(i) == Some(rule) || gone_with(i), "{i}: planned {rule}, simulated {:?}", first(i));
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in any::<String>()) {
        let place = Place::Label(api::SLEEP_AFTER);
        let _ = api::read_duration(place, Some(&text));
        let _ = api::read_time(place, Some(&text));
        let _ = api::read_count(place, Some(&text));
        let _ = api::read_bool(place, Some(&text));
        let _ = api::read_state(Some(&text));
        let _ = api::read_activity(Some(&text));
        let object = serde_json::json!({
            "metadata": { "name": text, "labels": { api::SLEEP_AFTER: text, api::STATE: text }, "annotations": { api::ACTIVITY: text } },
        });
        let object: Manifest = serde_json::from_value(object).unwrap();
        let mut seen = Observation::default();
        seen.add("Namespace", &object);
        for subject in seen.subjects() {
            let _ = RULES.judge(&subject, &World::default(), now());
            let _ = subject.facts(now());
        }
        let _ = caretaker_namespaces::lint::lint("Namespace", &object, now());
    }
}
