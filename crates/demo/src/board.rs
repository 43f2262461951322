//! What the demo knows at a moment: which steps happened, what each keeper sees, and what was said. Scenes and the
//! observer write to it, the screen reads it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;

/// A keeper, and with it the scene that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeper {
    Namespaces,
    Addresses,
    Windows,
    Runtimes,
    Containers,
}

impl Keeper {
    pub(super) const ALL: [Self; 5] =
        [Self::Namespaces, Self::Addresses, Self::Windows, Self::Runtimes, Self::Containers];

    /// The name as the journal has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Addresses => "addresses",
            Self::Windows => "windows",
            Self::Runtimes => "runtimes",
            Self::Containers => "containers",
        }
    }

    pub(super) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|keeper| keeper.name() == name)
    }

    /// What must happen, in this order.
    fn steps(self) -> &'static [&'static str] {
        match self {
            Self::Namespaces => &["asleep", "woken by a read"],
            Self::Addresses => &["4 leaked returned", "2 in use kept"],
            Self::Windows => &["frozen", "change held back", "thawed"],
            Self::Runtimes => &["has a runtime", "retired"],
            Self::Containers => &["2 orphans gone", "1 in use kept", "gone after its Sandbox"],
        }
    }
}

/// One thing that must happen.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) text: &'static str,
    pub(super) happened: Option<Duration>,
}

/// The scene of a keeper.
#[derive(Debug, Clone)]
pub(super) struct KeeperScene {
    pub(super) keeper: Keeper,
    pub(super) steps: Vec<Step>,
    /// Why it is not played.
    pub(super) left_out: Option<String>,
    /// Why it could not go on.
    pub(super) failed: Option<String>,
    /// The keeper's subjects, by kind.
    pub(super) sees: String,
    pub(super) next: Option<Next>,
}

impl KeeperScene {
    fn new(keeper: Keeper) -> Self {
        let steps = keeper.steps().iter().map(|text| Step { text, happened: None }).collect();
        Self { keeper, steps, left_out: None, failed: None, sees: String::new(), next: None }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.left_out.is_some() || self.steps.iter().all(|step| step.happened.is_some())
    }
}

/// What a keeper does next, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) what: String,
    pub(super) at: Timestamp,
}

/// Who says a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// The demo: what it does to the cluster.
    Story,
    /// The journal of a keeper.
    Journal(Keeper),
    /// Something went wrong.
    Trouble,
}

/// A line of what happens.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) at: Duration,
    pub(super) speaker: Speaker,
    pub(super) text: String,
}

/// Everything that is shown.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) began: Instant,
    pub(super) limit: Option<Duration>,
    pub(super) place: String,
    pub(super) scenes: Vec<KeeperScene>,
    pub(super) said: Vec<Said>,
    /// The last line of the view: what the reader can do.
    pub(super) hint: String,
}

impl State {
    pub(super) fn is_complete(&self) -> bool {
        self.scenes.iter().all(KeeperScene::is_complete)
    }

    /// What did not happen, a line each.
    pub(super) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for scene in self.scenes.iter().filter(|scene| !scene.is_complete()) {
            let steps = scene.steps.iter().filter(|step| step.happened.is_none());
            missing.extend(steps.map(|step| format!("{}: {}", scene.keeper.name(), step.text)));
        }
        missing
    }
}

/// The state, shared between the scenes, the observer and the screen.
pub(super) struct Board(Mutex<State>);

impl Board {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        let scenes = Keeper::ALL.map(KeeperScene::new).to_vec();
        let (place, hint) = (String::new(), "Ctrl-C ends it and removes everything".to_owned());
        Self(Mutex::new(State { began: Instant::now(), limit, place, scenes, said: Vec::new(), hint }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, keeper: Keeper, change: impl FnOnce(&mut KeeperScene)) {
        let mut state = self.state();
        if let Some(scene) = state.scenes.iter_mut().find(|scene| scene.keeper == keeper) {
            change(scene);
        }
    }

    fn add(&self, speaker: Speaker, text: impl Into<String>) {
        let mut state = self.state();
        let at = state.began.elapsed();
        state.said.push(Said { at, speaker, text: text.into() });
    }

    /// Says what the demo does.
    pub(super) fn say(&self, text: impl Into<String>) {
        self.add(Speaker::Story, text);
    }

    /// Repeats what a keeper has journaled.
    pub(super) fn journal(&self, keeper: Keeper, text: impl Into<String>) {
        self.add(Speaker::Journal(keeper), text);
    }

    /// Says what went wrong.
    pub(super) fn trouble(&self, text: impl Into<String>) {
        self.add(Speaker::Trouble, text);
    }

    /// Marks a step as done, because the demo has seen it in the cluster.
    ///
    /// # Panics
    /// If the keeper has no such step.
    pub(super) fn happened(&self, keeper: Keeper, text: &str) {
        let elapsed = self.state().began.elapsed();
        self.change(keeper, |scene| {
            let step = scene.steps.iter_mut().find(|step| step.text == text).expect("a step of this keeper");
            step.happened.get_or_insert(elapsed);
        });
    }

    /// Takes away a step that cannot be seen here.
    pub(super) fn drop_step(&self, keeper: Keeper, text: &str) {
        self.change(keeper, |scene| scene.steps.retain(|step| step.text != text));
    }

    pub(super) fn leave_out(&self, keeper: Keeper, why: impl Into<String>) {
        let why = why.into();
        self.say(format!("{} is left out: {why}", keeper.name()));
        self.change(keeper, |scene| scene.left_out = Some(why));
    }

    pub(super) fn fail(&self, keeper: Keeper, why: String) {
        self.trouble(format!("{}: {}", keeper.name(), why.lines().next().unwrap_or_default()));
        self.change(keeper, |scene| scene.failed = Some(why));
    }

    /// True if the scene of this keeper is played.
    pub(super) fn plays(&self, keeper: Keeper) -> bool {
        self.state().scenes.iter().any(|scene| scene.keeper == keeper && scene.left_out.is_none())
    }

    /// Sets what a keeper sees and does next.
    pub(super) fn sees(&self, keeper: Keeper, sees: String, next: Option<Next>) {
        self.change(keeper, |scene| (scene.sees, scene.next) = (sees, next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(board: &Board, keeper: Keeper) {
        for step in keeper.steps() {
            board.happened(keeper, step);
        }
    }

    #[test]
    fn it_is_complete_when_every_step_happened_or_its_scene_is_left_out() {
        let board = Board::new(None);
        for keeper in [Keeper::Namespaces, Keeper::Addresses, Keeper::Windows, Keeper::Runtimes] {
            complete(&board, keeper);
        }
        assert_eq!(
            board.state().missing(),
            ["containers: 2 orphans gone", "containers: 1 in use kept", "containers: gone after its Sandbox"]
        );
        assert!(!board.state().is_complete());

        board.leave_out(Keeper::Containers, "needs root");

        assert_eq!(board.state().missing(), Vec::<String>::new());
        assert!(board.state().is_complete());
    }

    #[test]
    fn a_scene_that_failed_is_not_complete() {
        let board = Board::new(None);
        for keeper in Keeper::ALL.into_iter().skip(1) {
            complete(&board, keeper);
        }

        board.happened(Keeper::Namespaces, "asleep");
        board.fail(Keeper::Namespaces, "nobody woke it".to_owned());

        assert_eq!(board.state().missing(), ["namespaces: woken by a read"]);
    }
}
