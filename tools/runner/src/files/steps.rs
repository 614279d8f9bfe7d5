//! The named steps of a transaction, so that a test can stop after any of them.
//!
//! Outside tests a step is nothing. In tests a probe may end the work there without
//! any clean-up, as `kill -9` would, or make the step fail.

use super::transaction::Fault;

#[cfg(not(test))]
#[derive(Debug, Default)]
pub(super) struct Steps(());

#[cfg(not(test))]
impl Steps {
    #[allow(clippy::unnecessary_wraps, clippy::unused_self)]
    pub(super) fn pass(&self, _: &str) -> Result<(), Fault> {
        Ok(())
    }

    #[allow(clippy::unused_self)]
    pub(super) fn exhausted(&self) -> bool {
        false
    }
}

#[cfg(test)]
pub(super) type Probe = Box<dyn FnMut(&str) -> Result<(), Fault> + Send>;

#[cfg(test)]
#[derive(Default)]
pub(super) struct Steps(
    std::sync::Mutex<Option<Probe>>,
    /// How many opens from now on find no descriptor left.
    pub(super) std::sync::Arc<std::sync::atomic::AtomicUsize>,
);

#[cfg(test)]
impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Steps")
    }
}

#[cfg(test)]
impl Steps {
    pub(super) fn pass(&self, step: &str) -> Result<(), Fault> {
        match self.0.lock().unwrap().as_mut() {
            Some(probe) => probe(step),
            None => Ok(()),
        }
    }

    pub(super) fn exhausted(&self) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        self.1
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            .is_ok()
    }

    pub(super) fn probe(&self, probe: Option<Probe>) {
        *self.0.lock().unwrap() = probe;
    }
}
