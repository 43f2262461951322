//! What holds for every namespace, however unusual, over any time.

use crate::support::generators::{HORIZON, any_subject, any_uses, any_workloads, any_world, hours, moment};
use crate::support::objects::Objects;
use crate::support::table::*;
use caretaker_core::keeper::population;
use caretaker_core::limits::{Breaker, Ledger, Limits, Pace, PopulationGroups, enforce};
use caretaker_core::simulate::{ExternalChange, SimulatedEventOf, Simulation};
use caretaker_core::{Next, Parsed, RuleSet as _, SignedDuration, Timestamp, time};
use caretaker_engine::Cache as _;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::{Action, Bookkeeping, SleepReason, after_action, after_step, steps};
use caretaker_namespaces::api::{self, Field};
use caretaker_namespaces::attribution::ActivityAt;
use caretaker_namespaces::judge::Rule;
use caretaker_namespaces::lint::lint;
use caretaker_namespaces::subject::{Deletion, Kind, Subject, World};
use caretaker_namespaces::workload::{ClaimPolicy, KubefreeTerm, Workload, WorkloadState};
use jiff::tz::TimeZone;
use proptest::option;
use proptest::prelude::*;

/// Four hours of each day.
const NIGHTLY: &str = "* 20-23 * * *";

/// Two deletions an hour, and a breaker that four at once open.
fn limits() -> Limits {
    let pace = Pace { limit: 2, fraction: 0.0, window: SignedDuration::from_hours(1) };
    let breaker = Breaker { min_count: 4, ..Breaker::default() };
    Limits { pace: [("delete".to_owned(), pace)].into(), breaker: Some(breaker) }
}

fn changes(uses: &[ActivityAt]) -> Vec<ExternalChange<Subject>> {
    uses.iter().map(ActivityAt::change).collect()
}

/// What the breaker guards: a sleep or a deletion that was concluded from idleness.
fn is_guarded(action: &Action) -> bool {
    matches!(action, Action::Sleep(SleepReason::Idle) | Action::Delete)
}

fn simulate(
    subjects: Vec<Subject>,
    world: &World,
    limits: Limits,
    uses: &[ActivityAt],
    stops: &[i64],
) -> Vec<SimulatedEventOf<Namespaces>> {
    let keeper = Namespaces::default();
    let mut simulation = Simulation::new(&keeper, world.clone(), subjects, limits, Ledger::default(), now());
    let ends = stops.iter().chain([&(HORIZON * 60)]).map(|m| now() + SignedDuration::from_mins(*m));
    ends.flat_map(|end| simulation.run(end, &changes(uses))).collect()
}

fn run(subject: &Subject, world: &World, uses: &[ActivityAt], stops: &[i64]) -> Vec<SimulatedEventOf<Namespaces>> {
    simulate(vec![subject.clone()], world, Limits::default(), uses, stops)
}

/// Kept independently of the judge: what anybody could have recorded from outside.
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

    fn sees(&mut self, event: &SimulatedEventOf<Namespaces>) {
        match event.action {
            Some(Action::Record(Bookkeeping::FirstSeen)) => self.used = Some(event.at),
            Some(Action::Record(Bookkeeping::Defaults(after))) => {
                (self.sleep_after, self.used) = (Some(after), Some(event.at));
            }
            Some(Action::Record(Bookkeeping::Restart(_) | Bookkeeping::HalfAwake | Bookkeeping::HalfAwakeOver)) => {
                (self.used, self.asleep, self.announced) = (Some(event.at), Some(event.at), None);
            }
            Some(Action::Record(Bookkeeping::Withdraw)) => self.announced = None,
            // A date that moves is announced again, and the notice counts from the first time; what was
            // announced before the last use was about an earlier idle time.
            Some(Action::Announce) => {
                let first = self.announced.filter(|at| self.used.is_none_or(|used| *at >= used));
                self.announced = Some(first.unwrap_or(event.at));
            }
            Some(
                Action::Sleep(SleepReason::Idle | SleepReason::Unfinished) | Action::Record(Bookkeeping::AsleepSince),
            ) => {
                self.asleep = Some(event.at);
            }
            // A manual sleep leads nowhere, nor does one by schedule.
            Some(
                Action::Sleep(SleepReason::Manual | SleepReason::Scheduled)
                | Action::Record(Bookkeeping::ManualSleep | Bookkeeping::ScheduledSleep),
            ) => {
                (self.asleep, self.announced) = (None, None);
            }
            Some(Action::Wake(restart)) => {
                (self.asleep, self.announced) = (None, None);
                if restart.is_some() {
                    self.used = Some(event.at);
                }
            }
            Some(Action::Delete | Action::Record(Bookkeeping::ManualSleepOver | Bookkeeping::LastActivity)) | None => {}
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
            // Without recorded activity, only the record of the sleep shows that it was idle.
            let session = subject.sessions.get().and_then(|all| all.values().max().copied());
            let session = session.map(|since| time::saturating_add(since, world.policy.max_session).min(event.at));
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
            if event.action == Some(Action::Delete) && world.policy.deletion_notice > 0.0 {
                let period = subject.delete_after.value().or(witness.sleep_after).expect("a label leads here");
                let of_this_idle_time = witness.announced.filter(|at| witness.used.is_none_or(|used| *at >= used));
                let notice = of_this_idle_time.map(|at| time::duration_between(at, event.at));
                prop_assert!(notice >= Some(period.mul_f64(world.policy.deletion_notice)), "{notice:?} of {period:?}");
            }
        }
    }

    #[test]
    fn never_deletes_what_nothing_proves_unused(
        subject in any_subject(),
        window in prop::sample::select(vec![None, Some("@always"), Some(NIGHTLY)]),
        world in any_world(),
        uses in any_uses(),
    ) {
        let parsed = api::read_window(api::SLEEP_DURING, window, &TimeZone::UTC);
        let subject = match subject.kind {
            Kind::Namespace => subject.change(|s| s.sleep_during = parsed),
            _ => subject.change(|s| s.namespace_sleep_during = parsed.get().cloned()),
        };
        let recorded = world.policy.proves_activity && subject.kind == Kind::Namespace;
        let may_be_deleted = world.policy.delete_without_activity_source || recorded;
        let idle = |event: &SimulatedEventOf<Namespaces>| {
            let report = world.last_report.expect("a report by another program");
            time::duration_between(report, event.at)
        };
        for event in run(&subject, &world, &uses, &[]) {
            if event.action != Some(Action::Delete) || may_be_deleted {
                continue;
            }
            let is_reported = subject.last_report().is_some() || uses.iter().any(|u| u.at <= event.at);
            prop_assert!(is_reported && world.last_report.is_some(), "no program reports: {event:?}");
            // The longest idle time that its labels can lead to, with the nights asleep that it spans, and a week.
            let sleep = subject.sleep_after.value().or(world.policy.defaults.as_ref().map(|d| d.sleep_after)).unwrap_or_default();
            let longest = subject.delete_after.value().unwrap_or_default().max(sleep + sleep);
            let longest = if window == Some(NIGHTLY) { longest.mul_f64(1.2) + span("4h") } else { longest };
            let week = SignedDuration::from_hours(7 * 24);
            prop_assert!(idle(&event) <= longest + week, "the reporter is silent for {:?}: {event:?}", idle(&event));
        }
    }

    #[test]
    fn never_touches_what_is_protected(subject in any_subject(), world in any_world(), uses in any_uses()) {
        let home = subject.namespace.clone().unwrap_or(subject.name.clone());
        let named = home.starts_with("kube-") || home.starts_with("prod-");
        let protected = named || subject.used_by_control_plane.is_some();
        let happened = run(&subject, &world, &uses, &[]);
        prop_assert!(subject.inactive.is_none() || happened.is_empty(), "{happened:?}");
        let helps = |action: Option<Action>| {
            matches!(action, None | Some(Action::Wake(_) | Action::Record(Bookkeeping::Withdraw)))
        };
        prop_assert!(!protected || happened.iter().all(|h| helps(h.action)), "{happened:?}");
        let harmed = happened.iter().filter_map(|h| h.action).any(|a| {
            matches!(a, Action::Sleep(_) | Action::Announce | Action::Delete)
        });
        prop_assert!(!subject.excluded || !harmed, "{happened:?}");
    }

    #[test]
    fn never_deletes_what_the_settings_keep(subject in any_subject(), world in any_world(), uses in any_uses()) {
        let policy = &world.policy;
        let with_claims = policy.retain_with_pvcs && subject.pvc_count > 0;
        let by_sleep_after = policy.deletion == Deletion::OnlyDeleteAfter && subject.delete_after.value().is_none();
        let kept = with_claims || by_sleep_after || policy.deletion == Deletion::Never;
        let happened = run(&subject, &world, &uses, &[]);
        let taken = happened.iter().any(|h| matches!(h.action, Some(Action::Announce | Action::Delete)));
        prop_assert!(!kept || !taken, "{happened:?}");
    }

    /// Its owner starts a Deployment in a namespace that is asleep, at any time. Seen from outside: from then on it runs,
    /// until something scales it down.
    #[test]
    fn never_deletes_what_runs_again(
        sleep in hours(1..100),
        delete in option::of(hours(1..200)),
        since in moment(0..300),
        started in (0..HORIZON * 60).prop_map(SignedDuration::from_mins),
        world in any_world(),
    ) {
        let mut subject = asleep("1h").with(scaled(0, Some(3)));
        (subject.sleep_after, subject.delete_after) = (Parsed::Valid(sleep), delete.into());
        (subject.asleep_since, subject.labelled) = (Parsed::Valid(since), true);
        let started = now() + started;
        let start = ExternalChange::<Subject> {
            at: started,
            subject: 0,
            change: Box::new(|mut subject| {
                subject.workloads = vec![scaled(2, Some(3))];
                subject
            }),
        };
        let keeper = Namespaces::default();
        let mut simulation =
            Simulation::new(&keeper, world, vec![subject], Limits::default(), Ledger::default(), now());
        let events = simulation.run(now() + SignedDuration::from_mins(HORIZON * 60), &[start]);
        // It runs until it is put to sleep once more.
        let mut runs = true;
        for event in events.iter().filter(|event| event.at >= started) {
            match event.action {
                Some(Action::Sleep(_)) => runs = false,
                Some(Action::Delete) => prop_assert!(!runs, "deleted at {}, started at {started}", event.at),
                _ => {}
            }
        }
    }

    #[test]
    fn sleep_then_wake_is_the_identity(workloads in any_workloads()) {
        // Awake, there is no record yet.
        let clean = |w: Workload| {
            let state = match w.state {
                WorkloadState::Scaled { replicas, claims, .. } => {
                    let claims = if claims == ClaimPolicy::RetainWhileAsleep { ClaimPolicy::Delete } else { claims };
                    WorkloadState::Scaled { replicas, recorded: Parsed::Missing, by_caretaker: false, claims }
                }
                WorkloadState::Placed { .. } => WorkloadState::Placed { parked: false, kubefree: KubefreeTerm::Absent },
                WorkloadState::Scheduled { suspended, .. } => WorkloadState::Scheduled { suspended, recorded: Parsed::Missing },
                WorkloadState::Paused { paused_at, .. } => WorkloadState::Paused { paused_at, by_caretaker: false },
            };
            Workload { state, own_sleep: false, ..w }
        };
        let mut subject = awake().sleep_after("1h");
        subject.workloads = workloads.into_iter().map(clean).collect();
        let before = subject.workloads.clone();

        let asleep = after_action(subject, &Action::Sleep(SleepReason::Idle), &World::default(), now()).unwrap();
        prop_assert!(asleep.workloads.iter().all(|w| w.excluded || !w.runs()));
        let woken = after_action(asleep, &Action::Wake(None), &World::default(), now()).unwrap();

        prop_assert_eq!(woken.workloads, before);
    }

    #[test]
    fn interrupted_anywhere_a_sleep_loses_no_count(workloads in any_workloads(), cut in 0_usize..8) {
        let mut subject = awake().sleep_after("1h").idle("2h");
        subject.workloads = workloads;
        let whole = after_action(subject.clone(), &Action::Sleep(SleepReason::Idle), &World::default(), now()).unwrap();

        let begun = steps(&Action::Sleep(SleepReason::Idle), &subject, &World::default(), now());
        let half = begun.iter().take(cut).try_fold(subject, after_step).unwrap();
        let finished = match Rule::judge(&half, &World::default(), now()).next {
            Next::Act { action, .. } => after_action(half, &action, &World::default(), now()).unwrap(),
            _ => half,
        };

        prop_assert_eq!(finished, whole);
    }

    #[test]
    fn judging_twice_is_judging_once(subject in any_subject(), world in any_world()) {
        let verdict = Rule::judge(&subject, &world, now());
        prop_assert_eq!(&verdict, &Rule::judge(&subject, &world, now()));
        let Some(action) = verdict.next.action().filter(|_| !matches!(verdict.next, Next::Wait { .. })) else { return Ok(()) };

        let Some(once) = after_action(subject, action, &world, now()) else { return Ok(()) };
        let again = Rule::judge(&once, &world, now());

        let same = again.rule == verdict.rule && again.next.action() == Some(action) && !matches!(again.next, Next::Wait { .. });
        prop_assert!(!same, "done once, and asked for again: {again:?}");
    }

    #[test]
    fn every_subject_comes_to_rest(subject in any_subject(), world in any_world()) {
        let mut subject = subject;
        for _ in 0..6 {
            let verdict = Rule::judge(&subject, &world, now());
            let (Next::Act { action, .. } | Next::Refuse { bookkeeping: Some(action) }) = verdict.next else { return Ok(()) };
            let Some(next) = after_action(subject, &action, &world, now()) else { return Ok(()) };
            subject = next;
        }
        prop_assert!(false, "still acting: {:?}", Rule::judge(&subject, &world, now()));
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
    fn many_subjects_under_limits_in_one_leap_equal_many(
        subjects in prop::collection::vec(any_subject(), 1..8), world in any_world(), uses in any_uses(),
        stops in prop::collection::btree_set(1..HORIZON * 60, 0..5),
    ) {
        let run = |stops: &[i64]| simulate(subjects.clone(), &world, limits(), &uses, stops);
        let stops: Vec<i64> = stops.into_iter().collect();
        let happened = run(&[]);
        prop_assert_eq!(&happened, &run(&stops));

        let deletions: Vec<Timestamp> = happened.iter().filter(|h| h.action == Some(Action::Delete)).map(|h| h.at).collect();
        for window in deletions.windows(3) {
            prop_assert!(time::duration_between(window[0], window[2]) >= SignedDuration::from_hours(1), "three within an hour: {window:?}");
        }
        let opened = happened.iter().position(|h| h.subject.is_none());
        let after = happened.iter().skip(opened.unwrap_or(happened.len()));
        prop_assert!(after.filter_map(|h| h.action).all(|a| !is_guarded(&a)), "an open breaker let something pass");
    }

    #[test]
    fn what_is_planned_is_what_is_simulated(subjects in prop::collection::vec(any_subject(), 1..8), world in any_world()) {
        let keeper = Namespaces::default();
        let just_after = now() + SignedDuration::from_nanos(1);
        let mut verdicts: Vec<_> = subjects.iter().map(|s| Rule::judge(s, &world, just_after)).collect();
        enforce(&mut verdicts, &PopulationGroups::default(), population(&keeper, &subjects), &limits(), &Ledger::default(), now());
        let planned: Vec<(usize, &str)> = verdicts
            .iter()
            .enumerate()
            .filter(|(_, v)| matches!(v.next, Next::Act { .. } | Next::Refuse { bookkeeping: Some(_) }))
            .map(|(i, v)| (i, v.rule.name()))
            .collect();

        let mut simulation = Simulation::new(&keeper, world, subjects.clone(), limits(), Ledger::default(), now());
        let happened = simulation.run(now() + SignedDuration::from_nanos(1), &[]);

        // The first thing that happens to each; what goes with its namespace does not act itself.
        let first = |i: usize| happened.iter().find(|h| h.subject == Some(i)).map(|h| h.rule.name());
        let gone_with = |i: usize| subjects.iter().enumerate().any(|(j, s)| {
            j != i && s.kind == Kind::Namespace && s.name == subjects[i].namespace_name()
                && happened.iter().any(|h| h.subject == Some(j) && h.action == Some(Action::Delete))
        });
        for (i, rule) in planned {
            prop_assert!(first(i) == Some(rule) || gone_with(i), "{i}: planned {rule}, simulated {:?}", first(i));
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in any::<String>()) {
        let field = Field::Label(api::SLEEP_AFTER);
        let _ = api::read_duration(field, Some(&text));
        let _ = api::read_time(field, Some(&text));
        let _ = api::read_count(field, Some(&text));
        let _ = api::read_bool(field, Some(&text));
        let _ = api::read_state(Some(&text));
        let _ = api::read_activity(Some(&text));
        let object = serde_json::json!({
            "metadata": { "name": text, "labels": { api::SLEEP_AFTER: text, api::STATE: text }, "annotations": { api::ACTIVITY: text } },
        });
        let mut seen = Objects::default();
        seen.apply("Namespace", &object);
        for subject in seen.cache().subjects() {
            let _ = Rule::judge(&subject, &World::default(), now());
            let _ = subject.facts(now());
        }
        let _ = lint("Namespace", &object, now());
    }
}
