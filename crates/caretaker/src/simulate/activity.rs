//! Activity in a simulation: future activity from a file, or past activity from audit logs.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use caretaker_activity::state::ActivityState;
use caretaker_core::Timestamp;
use caretaker_namespaces::Namespaces;
use caretaker_namespaces::act::Action;
use caretaker_namespaces::attribution::{
    ActivityAt, AuditActivity, AuditLogReader, BlockedUser, apply_before, attribute_wakes, parse_activity_line,
    places_by_namespace, reset_to_start, uses_after_deletion,
};
use caretaker_namespaces::subject::Subject;

use crate::activity::each_line;
use crate::cli::SimulateArgs;
use crate::output::indented;
use crate::snapshot::{KeeperSnapshot, Snapshot, no_namespace};

/// The activity that the command line names.
#[derive(Default)]
pub(super) struct Activity {
    of_subjects: Vec<ActivityAt>,
    /// The audit logs, if it comes from some.
    audit: Option<AuditActivity>,
}

impl Activity {
    /// Reads it. What cannot be read is noted in the snapshot.
    pub(super) fn read(snapshot: &mut Snapshot, args: &SimulateArgs, now: Timestamp) -> Result<Self> {
        if args.activity.is_none() && args.audit.is_empty() {
            return Ok(Self::default());
        }
        let Some(namespaces) = snapshot.keeper::<Namespaces>() else {
            bail!("--activity and --audit are about namespaces; use that keeper as well: --keepers namespaces");
        };
        let (activity, notes) = if let Some(path) = &args.activity {
            let (of_subjects, notes) = read_lines(&path.display().to_string(), &read_text(path)?, &namespaces.subjects);
            (Self { of_subjects, audit: None }, notes)
        } else {
            let config = &snapshot.config.keepers.namespaces.activity;
            let state = ActivityState::new(config.filter(), config.poll_grace, config.max_session);
            let (mut reader, mut notes) = (AuditLogReader::new(state, config.max_session), Vec::new());
            for file in &args.audit {
                notes.extend(each_line(file, |line| reader.add_line(line, now))?);
            }
            let audit = reader.finish();
            if audit.span.is_none() {
                bail!("--audit: there is no event with a time in these files");
            }
            (Self { of_subjects: audit.of_subjects(&namespaces.subjects), audit: Some(audit) }, notes)
        };
        snapshot.incomplete |= !notes.is_empty();
        snapshot.notes.extend(notes);
        Ok(activity)
    }

    /// The first and the last event of the audit logs, counted or not.
    pub(super) fn span(&self) -> Option<(Timestamp, Timestamp)> {
        self.audit.as_ref().and_then(|audit| audit.span)
    }

    /// Brings the namespaces into the state that they have at the start, and adds the activity after it.
    pub(super) fn prepare(&self, snapshot: &mut Snapshot, start: Timestamp, end: Timestamp) {
        snapshot.notes.extend(self.audit.as_ref().and_then(|audit| audit.note_outside(start, end)));
        let Some(namespaces) = snapshot.keeper_mut::<Namespaces>() else { return };
        if self.audit.is_some() {
            namespaces.keeper = Arc::new(namespaces.keeper.recording_activity());
            let world = namespaces.world(start);
            reset_to_start(&mut namespaces.subjects, &mut namespaces.ledger, &world, start);
        }
        if self.audit.is_none() && !self.of_subjects.is_empty() {
            namespaces.feed.cache.assume_reports_until(end);
        }
        apply_before(start, &self.of_subjects, &mut namespaces.subjects);
        namespaces.external = self.of_subjects.iter().map(ActivityAt::change).collect();
    }

    /// Adds the user to each wake that an audit log shows one for.
    pub(super) fn attribute_wakes(&self, snapshot: &mut Snapshot) {
        if let Some(namespaces) = snapshot.keeper_mut::<Namespaces>() {
            namespaces.blocked_users = attribute_wakes(&namespaces.events, &self.of_subjects);
        }
    }

    /// The users who would have been blocked, and those who would have lost something.
    pub(super) fn show_users(&self, snapshot: &Snapshot) -> String {
        match snapshot.keeper::<Namespaces>().filter(|_| self.audit.is_some()) {
            Some(namespaces) => show_blocked_users(namespaces) + &show_lost_users(namespaces, &self.of_subjects),
            None => String::new(),
        }
    }
}

fn user_row(at: Timestamp, subject: &Subject, user: &BlockedUser) -> [String; 3] {
    let clock = at.strftime("%Y-%m-%d %H:%M:%S").to_string();
    [clock, subject.name.clone(), format!("{} ({})", user.user, user.what)]
}

/// The users who would have found a namespace asleep.
fn show_blocked_users(namespaces: &KeeperSnapshot<Namespaces>) -> String {
    let KeeperSnapshot { events, subjects, blocked_users, .. } = namespaces;
    let row = |(i, user): (&usize, &BlockedUser)| {
        let event = &events[*i];
        Some(user_row(event.at, &subjects[event.subject?], user))
    };
    let rows: Vec<[String; 3]> = blocked_users.iter().filter_map(row).collect();
    if rows.is_empty() {
        let slept = events.iter().any(|event| matches!(event.action, Some(Action::Sleep(_))));
        return if slept { "No user would have waited for a wake.\n".to_owned() } else { String::new() };
    }
    format!("\nUsers who would have waited for a wake:\n{}", indented(rows))
}

/// The users of namespaces that would have been deleted.
fn show_lost_users(namespaces: &KeeperSnapshot<Namespaces>, activity: &[ActivityAt]) -> String {
    let lost = uses_after_deletion(&namespaces.events, activity);
    let row = |(at, i, user): &(Timestamp, usize, BlockedUser)| user_row(*at, &namespaces.subjects[*i], user);
    let rows: Vec<[String; 3]> = lost.iter().map(row).collect();
    if rows.is_empty() {
        String::new()
    } else {
        format!("\nUsed after it would have been deleted:\n{}", indented(rows))
    }
}

fn read_text(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return std::io::read_to_string(std::io::stdin().lock()).context("reading standard input");
    }
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// Reads lines of activity. A line that cannot be read is noted; the others count.
fn read_lines(origin: &str, text: &str, subjects: &[Subject]) -> (Vec<ActivityAt>, Vec<String>) {
    let places = places_by_namespace(subjects);
    let (mut activity, mut notes) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let found = parse_activity_line(line).and_then(|(at, namespace)| match places.get(namespace.as_str()) {
            Some(places) => Ok((at, places)),
            None => Err(no_namespace(&namespace, places.keys().copied())),
        });
        match found {
            Ok((at, places)) => activity.extend(places.iter().map(|i| ActivityAt { at, subject: *i, who: None })),
            Err(reason) => notes.push(format!("{origin}:{}: {reason}", i + 1)),
        }
    }
    (activity, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_text_of_activity_causes_a_panic(
            text in "([\\[\\]{},:\"a-z0-9 \n\\\\-]|\"at\":|\"namespace\":|\"shop\"|\"[+-]?[0-9]{4,6}-[0-9]{2}-[0-9]{2}\"|\\{|\\}){0,40}",
            other in any::<String>(),
            start in any::<i32>(),
        ) {
            let mut subjects = [Subject { name: "shop".to_owned(), ..Subject::default() }];
            let start = Timestamp::from_second(start.into()).unwrap_or_default();
            for text in [text, other] {
                let (activity, notes) = read_lines("-", &text, &subjects);
                apply_before(start, &activity, &mut subjects);
                prop_assert_eq!(activity.len() + notes.len(), text.lines().filter(|l| !l.trim().is_empty()).count());
            }
        }
    }
}
