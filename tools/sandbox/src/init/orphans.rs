//! The tree of a command that has no PID namespace: what descends from its init, which
//! inherits every orphan. Best effort: who forks faster than this looks may escape.

use std::{collections::BTreeSet, fs, thread::sleep, time::Duration};

use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::sys;

// A process that is not gone after that hangs in the kernel, or forks in a loop.
const ROUNDS: u32 = 400;

/// Ends all of them with SIGKILL and reaps those that can be.
pub(super) fn end_all() {
    for _ in 0..ROUNDS {
        signal_all(Signal::KILL);
        while let Ok(Some(_)) = sys::reap_any() {}
        if descendants().is_empty() {
            return;
        }
        sleep(Duration::from_millis(5));
    }
}

/// Signals every descendant that is found.
pub(super) fn signal_all(signal: Signal) {
    for pid in descendants() {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, signal);
        }
    }
}

fn descendants() -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut next = vec![getpid().as_raw_pid()];
    while let Some(parent) = next.pop() {
        for child in children(parent) {
            if found.insert(child) {
                next.push(child);
            }
        }
    }
    found
}

fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let mut all = Vec::new();
    for thread in threads.into_iter().flatten().flatten() {
        let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(
            list.split_ascii_whitespace()
                .filter_map(|text| text.parse::<i32>().ok()),
        );
    }
    all
}
