//! A life that ends where a fault says so.

use std::future::Future;

use kube::{Client, Config};

use super::{Fault, Faults};

/// How a life ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Life<T> {
    /// It did all it wanted.
    Lived(T),
    /// It was killed in the middle of it.
    Died,
}

/// Runs `life` as if in a process of its own, which dies where `faults` say so.
///
/// It has a thread and a runtime to itself. From the moment of death on no call of it gets through,
/// and the runtime is dropped; until that is done, other tasks may run a few more lines, but none
/// that the server sees. What it knew is gone, what the server knows remains.
///
/// # Panics
/// If `life` panics, so that an assertion in it fails the test; if no client can be made.
pub fn mortal<T, F, Fut>(faults: &Faults, config: Config, life: F) -> Life<T>
where
    T: Send,
    F: FnOnce(Client) -> Fut + Send,
    Fut: Future<Output = T>,
{
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let outcome = runtime.block_on(async {
                let client = faults.client(config).expect("a client");
                tokio::select! {
                    biased;
                    () = faults.death() => Life::Died,
                    value = life(client) => Life::Lived(value),
                }
            });
            // Blocking work that is under way cannot be stopped; nobody waits for it.
            runtime.shutdown_background();
            outcome
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `scenario` once for each call that it makes, with that call at fault, until a run makes no
/// call left to strike. Returns how many calls were struck.
///
/// # Panics
/// If more than `most` runs are struck: a scenario whose calls never end proves nothing.
pub fn for_every_call(fault: Fault, most: usize, mut scenario: impl FnMut(usize, &Faults)) -> usize {
    for n in 1..=most + 1 {
        let faults = Faults::none().at(n, fault);
        scenario(n, &faults);
        if !faults.struck() {
            return n - 1;
        }
    }
    panic!("{fault:?} struck in all of the first {most} calls: does the scenario ever end?");
}
