//! Runs code as a process that dies at a chosen call.

use std::future::Future;

use kube::{Client, Config};

use super::{Fault, Faults};

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Life<T> {
    /// It returned this value.
    Lived(T),
    /// A fault killed it.
    Died,
}

/// Runs `life` like a separate process that dies at a fault [`Fault::DieBefore`] or [`Fault::DieAfter`].
///
/// `life` runs on its own thread and runtime. At its death the layer holds back all its calls, and the
/// runtime is dropped. Other tasks may run until then, but no call of theirs reaches the server. The state
/// in memory is lost; the state on the server remains.
///
/// # Panics
/// If `life` panics, so that an assertion in it fails the test; or if the client cannot be created.
pub fn mortal<T, F, Fut>(faults: &Faults, config: Config, life: F) -> Life<T>
where
    T: Send,
    F: FnOnce(Client) -> Fut + Send,
    Fut: Future<Output = T>,
{
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the Tokio runtime starts");
            let outcome = runtime.block_on(async {
                let client = faults.client(config).expect("the client settings are valid");
                tokio::select! {
                    biased;
                    () = faults.death() => Life::Died,
                    value = life(client) => Life::Lived(value),
                }
            });
            // Does not wait for blocking tasks, which cannot be stopped.
            runtime.shutdown_background();
            outcome
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `scenario` with the fault at its first call, then at its second, and so on, until a run makes fewer
/// calls than that. Returns the number of runs in which the fault occurred.
///
/// # Panics
/// If the fault occurs in more than `most` runs, because the scenario may then make calls without end.
pub fn for_every_call(fault: Fault, most: usize, mut scenario: impl FnMut(usize, &Faults)) -> usize {
    for n in 1..=most + 1 {
        let faults = Faults::none().at(n, fault);
        scenario(n, &faults);
        if !faults.struck() {
            return n - 1;
        }
    }
    panic!(
        "the scenario makes more than {most} calls: {fault:?} occurred at each; raise the limit or end the scenario"
    );
}
