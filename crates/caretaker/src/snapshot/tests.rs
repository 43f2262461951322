//! Limits on what the operator has recorded, whatever it is.

use super::*;
use std::cell::RefCell;

use caretaker_core::limits::{Breaker, Limits, Pace};
use caretaker_core::{EngineRule, RuleId, SignedDuration, Timestamp};
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::judge::Rule;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn keeper() -> Vec<Box<dyn DynKeeper>> {
    vec![keepers::by_name(&Config::default(), caretaker_namespaces::NAME).expect("a keeper")]
}

/// Namespaces that have been idle for longer than they may be, with this ledger in the operator's state.
fn due(count: usize, ledger: &str) -> Result<Snapshot> {
    let mut files = RawFiles::default();
    for i in 0..count {
        let text = format!(
            "kind: Namespace\nmetadata:\n  name: ns-{i}\n  labels:\n    sleepmode.kubefree.com/sleep-after: 2h\n  annotations:\n    sleepmode.kubefree.com/activity-status: '{{\"LastActivityTime\":\"1969-12-01T00:00:00Z\"}}'\n"
        );
        files.add("a.yaml".into(), text.into_bytes());
    }
    let state = [(caretaker_namespaces::NAME.to_owned(), ledger.to_owned())].into();
    let mut snapshot = Snapshot::default();
    snapshot.load_files("", &mut ManifestSet::split(&files), &keeper(), &state)?;
    Ok(snapshot)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_recorded_ledger_causes_a_panic(
        text in "(\\{|\\}|\\[|\\]|,|:|\"open\"|\"since\"|\"because\"|\"admitted\"|\"recentDestructive\"|\"[0-9]{4}-[0-9]{2}-[0-9]{2}T00:00:00Z\"|null| ){0,20}",
        other in any::<String>(),
    ) {
        let _ = (due(0, &text), due(0, &other));
    }
}

#[test]
fn no_times_in_a_ledger_cause_a_panic() {
    let subjects = RefCell::new(due(10, "{}").expect("a snapshot"));
    let done = proptest::collection::vec((0..9999_i32, 1..13_u8), 0..20);
    let strategy = (done, 0..5_usize, 0.0..1.0_f64, 0..i32::MAX);
    let outcome = TestRunner::new(config()).run(&strategy, |(done, count, fraction, now)| {
        let times: Vec<String> =
            done.iter().map(|(year, month)| format!("\"{year:04}-{month:02}-01T00:00:00Z\"")).collect();
        let times = times.join(",");
        let text = format!("{{\"admitted\":{{\"sleep\":[{times}]}},\"recentDestructive\":[{times}]}}");
        let mut recorded = due(0, &text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let ledger = recorded.keeper_mut::<Namespaces>().map(|namespaces| namespaces.ledger.clone());
        let mut subjects = subjects.borrow_mut();
        let namespaces = subjects.keeper_mut::<Namespaces>().expect("the keeper");
        namespaces.ledger = ledger.expect("a ledger");
        prop_assert_eq!(namespaces.ledger.recent_destructive.len(), done.len());
        let window = SignedDuration::from_hours(1);
        namespaces.limits = Limits {
            pace: [("sleep".to_owned(), Pace { limit: count, fraction, window })].into(),
            breaker: Some(Breaker { min_count: count, min_fraction: fraction, window }),
        };

        let verdicts = namespaces.limited_verdicts(Timestamp::from_second(now.into())?);
        let expected: [RuleId<Rule>; 3] =
            [RuleId::Keeper(Rule::SleepAfterElapsed), EngineRule::Paced.into(), EngineRule::BreakerOpen.into()];
        prop_assert!(verdicts.iter().all(|v| expected.contains(&v.rule)), "{:?}", verdicts);
        prop_assert_eq!(verdicts.len(), 10);
        Ok(())
    });
    outcome.expect("no panic");
}
