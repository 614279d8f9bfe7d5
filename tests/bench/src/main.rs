//! What CodeSpace costs, from outside, beside what the same work costs without it.
//!
//! ```sh
//! cargo run --release -p codespace-bench              # about two minutes; prints one table
//! cargo run --release -p codespace-bench -- read exec # these rows only; patch, launch, output, start are the others
//! cargo run -p codespace-bench -- --quick             # a few rounds; a smoke test
//! ```
//!
//! The server is built in the same profile and started as a user would start it: real
//! listener, ledger and journal on disk. Every answer is checked; a wrong one ends the
//! run with an error. Times decide nothing: a missed target is only marked, so that the
//! smoke test holds on any machine. Absolute times tell of the machine as much as of the
//! program, so each stands beside its counterpart, measured in turns in the same run:
//!
//! | row | what is timed | beside |
//! |---|---|---|
//! | read, calls/s | `read` of 4 KiB over 32 connections | an rmcp server whose tool answers the same from memory |
//! | read, server CPU | user and system time of the server per such call | the same of that server |
//! | read, one at a time | one connection, from request to answer | the same of that server |
//! | one hunk | `apply_patch` of a 100-line file, journal and ledger included | `git apply`, its start included |
//! | 200 files | one patch, a line in each | `git apply` |
//! | 200,000 lines | one line near the end | `git apply`, and `patch` |
//! | echo | `exec_command`, `process_status`, `read_process`: until exit code and output are known; without a sandbox and with all of it | a spawn with a pipe, read to its end, waited for |
//! | launches | commands started and waited for, in turn, by a server that holds 100 MB of output | the first second |
//! | launch | `/bin/true` in the whole sandbox until its tree is gone, without a server, by a process that holds 100 MB | a bare spawn, and `bwrap` |
//! | output | a command that writes as fast as it can, until all of it went through the ring | a `read` meanwhile, and alone |
//! | silent commands | CPU time of a server with 32 live commands | |
//! | start | from the spawn of the server to its first answer | |
//! | memory | resident when idle; before and after many reads | |
//!
//! Medians, except for rates. The client lives on one thread and parses no answer while
//! the rates are taken (it compares bytes), so as to leave the server its share.

mod bare;
mod client;
mod echo;
mod footprint;
mod launch;
mod output;
mod patch;
mod read;
mod server;
mod table;

use anyhow::{Result, ensure};

use crate::{server::Programs, table::Table};

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    quick: bool,
}

impl Effort {
    /// `full` rounds, or `quick` ones.
    fn pick(self, quick: usize, full: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        // The other end of the comparison: this program again, as a bare server.
        ["bare"] => bare::serve(),
        ["--quick", rows @ ..] => measure(Effort { quick: true }, rows),
        rows => measure(Effort { quick: false }, rows),
    }
}

const ROWS: [&str; 6] = ["read", "patch", "exec", "launch", "output", "start"];

fn measure(effort: Effort, rows: &[&str]) -> Result<()> {
    ensure!(
        rows.iter().all(|row| ROWS.contains(row)),
        "usage: codespace-bench [--quick] [{}]...",
        ROWS.join("|")
    );
    let wanted = |row: &str| rows.is_empty() || rows.contains(&row);
    let programs = Programs::build()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut table = Table::default();
    runtime.block_on(async {
        if wanted("read") {
            read::measure(&programs, effort, &mut table).await?;
        }
        if wanted("patch") {
            patch::measure(&programs, effort, &mut table).await?;
        }
        if wanted("exec") {
            echo::measure(&programs, effort, &mut table).await?;
        }
        if wanted("launch") {
            launch::measure(&programs, effort, &mut table)?;
        }
        if wanted("output") {
            output::measure(&programs, effort, &mut table).await?;
        }
        if wanted("start") {
            footprint::measure(&programs, effort, &mut table).await?;
        }
        anyhow::Ok(())
    })?;
    print!("{table}");
    Ok(())
}
