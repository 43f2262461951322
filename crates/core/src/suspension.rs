//! Objects that are left alone for a while: a window in an annotation holds back a keeper's work on its object.
//!
//! Pure, as pace and breaker are, and before them: what a window holds back is neither counted nor in the way of others.
//! Held back is what takes something away, and what else a keeper says to be [`suspendable`](crate::ActionKind), whether
//! it is inferred or ordered by a schedule or a person. What completes something half done never is.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::parsed::{InvalidValue, quoted};
use crate::window::Window;
use crate::{Action, Cause, EngineRule, Next, RuleSet, Verdict, time};

/// Annotation: the window in which work on the object is held back.
pub const SUSPENDED_DURING: &str = "reconcile.fluxcd.io/suspendedDuring";
/// The same in the other spelling of the specification; the first wins.
pub const SUSPEND_DURING: &str = "reconcile.fluxcd.io/suspendDuring";

/// The annotation as it stands on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowAnnotation {
    /// Its key: one of the two spellings.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What the other spelling says, if both are on the object and differ.
    pub other: Option<String>,
}

impl WindowAnnotation {
    /// An annotation alone.
    #[must_use]
    pub fn new(key: &'static str, value: &str) -> Self {
        Self { key, value: value.to_owned(), other: None }
    }

    /// The annotation that counts, of an object whose annotations are found by `annotation`.
    pub fn find<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        match (annotation(SUSPENDED_DURING), annotation(SUSPEND_DURING)) {
            (Some(value), other) => {
                let other = other.filter(|other| *other != value).map(str::to_owned);
                Some(Self { other, ..Self::new(SUSPENDED_DURING, value) })
            }
            (None, value) => value.map(|value| Self::new(SUSPEND_DURING, value)),
        }
    }

    /// What is wrong if both spellings are on the object and differ.
    #[must_use]
    pub fn conflict(&self) -> Option<InvalidValue> {
        let value = self.other.clone()?;
        Some(InvalidValue {
            field: format!("annotation {SUSPEND_DURING}"),
            value,
            reason: format!("annotation {SUSPENDED_DURING} says something else, and counts"),
            remedy: "remove it".to_owned(),
        })
    }
}

/// The window on an object, if it can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspension {
    annotation: WindowAnnotation,
    window: Result<Window, Box<InvalidValue>>,
}

impl Suspension {
    /// Reads an annotation. A window that names no zone is in `default_zone`.
    #[must_use]
    pub fn parse(annotation: WindowAnnotation, default_zone: &TimeZone) -> Self {
        let window = Window::parse(&annotation.value, default_zone).map_err(|error| {
            let mut invalid = error.in_field(&format!("annotation {}", annotation.key), &annotation.value);
            invalid.remedy.push_str(", or remove the annotation");
            Box::new(invalid)
        });
        Self { annotation, window }
    }

    /// The annotation that it was read from.
    #[must_use]
    pub fn annotation(&self) -> &WindowAnnotation {
        &self.annotation
    }

    /// What is wrong with it, if it cannot be read.
    #[must_use]
    pub fn invalid(&self) -> Option<&InvalidValue> {
        self.window.as_ref().err().map(|invalid| &**invalid)
    }

    /// True if it is open at a time; one that cannot be read is not.
    #[must_use]
    pub fn is_open(&self, at: Timestamp) -> bool {
        self.window.as_ref().is_ok_and(|window| window.is_open(at))
    }

    /// Whether it is open, and until when, for people.
    #[must_use]
    pub fn describe(&self, now: Timestamp) -> String {
        let window = match &self.window {
            Ok(window) => window,
            Err(invalid) => return format!("{} ({})", quoted(&invalid.value), invalid.reason),
        };
        let (open, edge) = (window.is_open(now), window.next_edge(now).map(|edge| time::format(edge.at)));
        let state = match (open, edge) {
            (true, Some(end)) => format!("open until {end}"),
            (true, None) => "open, without an end".to_owned(),
            (false, Some(start)) => format!("opens at {start}"),
            (false, None) => "never opens".to_owned(),
        };
        format!("{window} ({state})")
    }

    /// Holds a verdict back, in place, if it asks for an action now that the window does not allow: it waits until the
    /// window closes, or is refused if the window cannot be read. True if it is held back.
    pub fn hold_back<R: RuleSet, A: Action>(&self, verdict: &mut Verdict<R, A>, now: Timestamp) -> bool {
        let Next::Act { action, cause, .. } = &verdict.next else { return false };
        let kind = action.kind();
        if !kind.suspendable || *cause == Cause::Completion {
            return false;
        }
        let due = format!("{} is due ({}: {})", kind.name, verdict.rule, verdict.because);
        match &self.window {
            Ok(window) if !window.is_open(now) => return false,
            Ok(window) => {
                let held = format!("{due}, but the window {} on its object holds it back", window.quoted());
                verdict.rule = EngineRule::Suspended.into();
                (verdict.next, verdict.because) = match window.next_edge(now) {
                    Some(end) => {
                        let because = format!("{held} until {}", time::format(end.at));
                        (Next::Wait { until: end.at, then: action.clone() }, because)
                    }
                    None => (Next::Nothing, format!("{held}, and has no end")),
                };
            }
            // What takes nothing away does not wait for somebody to correct the window.
            Err(_) if !kind.destructive => return false,
            Err(invalid) => {
                verdict.rule = EngineRule::InvalidWindow.into();
                verdict.because = format!("{due}, but {invalid}");
                verdict.next = Next::Refuse { bookkeeping: None };
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
