//! Real processes. One test at a time: they count the server's children and
//! descriptors, and a daemon is somebody's for certain only while no other command runs.

mod end;
mod limits;
mod output;
mod programs;
mod start;
mod stdin;
mod terminal;

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use codespace_router::{Code, ProcessId, WorkspaceId};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};

use super::{Launch, ProcessLimits, Processes};
use crate::{ExecSpec, ProcessState, ProcessStatus, Termination};

static ALONE: Mutex<()> = Mutex::const_new(());
// A hang, not a measurement.
const HANG: Duration = Duration::from_secs(20);
const NO_WAIT: Duration = Duration::ZERO;

struct Bench {
    all: Processes,
    home: Launch,
    dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

async fn bench() -> Bench {
    bench_with(ProcessLimits {
        output_bytes: 256 * 1024,
        processes: 4,
        handles: 4,
        handle_time: HANG * 3,
    })
    .await
}

async fn bench_with(limits: ProcessLimits) -> Bench {
    let alone = ALONE.lock().await;
    let dir = tempfile::tempdir().expect("a folder");
    let env = vec![
        ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
        ("LANG".into(), "C.UTF-8".into()),
    ];
    let home = Launch {
        workspace: WorkspaceId::new("demo"),
        root: dir.path().to_owned(),
        env,
        time_limit: HANG * 5,
        confinement: None,
    };
    Bench {
        all: Processes::new(limits),
        home,
        dir,
        _alone: alone,
    }
}

impl Bench {
    async fn start(&self, command: &[&str]) -> ProcessId {
        self.all
            .exec(&self.home, spec(command), Box::new(()))
            .await
            .expect("started")
    }

    async fn sh(&self, script: &str) -> ProcessId {
        self.start(&["sh", "-c", script]).await
    }

    async fn fails(&self, command: &[&str]) -> codespace_router::ToolError {
        self.all
            .exec(&self.home, spec(command), Box::new(()))
            .await
            .expect_err("refused")
    }

    async fn exit(&self, id: &ProcessId) -> ProcessStatus {
        let status = self.all.status(id, HANG).await.expect("known");
        assert_eq!(status.state, ProcessState::Exited, "hangs: {status:?}");
        status
    }

    async fn text(&self, id: &ProcessId) -> String {
        let (mut cursor, mut text) = (0, String::new());
        loop {
            let chunk = timeout(HANG, self.all.output(id, cursor, HANG))
                .await
                .expect("no hang")
                .expect("known");
            assert!(
                chunk.eof || chunk.cursor > cursor,
                "an empty answer at the end of the wait"
            );
            text.push_str(&chunk.chunk);
            cursor = chunk.cursor;
            if chunk.eof {
                return text;
            }
        }
    }

    async fn run(&self, script: &str) -> (String, ProcessStatus) {
        let id = self.sh(script).await;
        (self.text(&id).await, self.exit(&id).await)
    }

    // The ids a script wrote to a file, once all of them are there.
    async fn pids(&self, file: &str, count: usize) -> Vec<i32> {
        timeout(HANG, async {
            loop {
                let text = fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
                let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
                if pids.len() >= count && text.ends_with('\n') {
                    return pids;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("the script writes its ids")
    }
}

fn spec(command: &[&str]) -> ExecSpec {
    ExecSpec {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        tty: false,
    }
}

/// Somebody at a command's terminal.
struct Typist<'a> {
    bench: &'a Bench,
    id: ProcessId,
    cursor: u64,
    unread: String,
}

impl Bench {
    /// Starts a command on a terminal; `package` has its program.
    async fn terminal(&self, command: &[&str], package: &str) -> Typist<'_> {
        let spec = ExecSpec {
            tty: true,
            ..spec(command)
        };
        let id = self.all.exec(&self.home, spec, Box::new(())).await;
        Typist {
            bench: self,
            id: id.unwrap_or_else(|error| panic!("is {package} installed? {error}")),
            cursor: 0,
            unread: String::new(),
        }
    }

    async fn terminal_sh(&self, script: &str) -> Typist<'_> {
        self.terminal(&["sh", "-c", script], "dash").await
    }
}

impl Typist<'_> {
    /// Takes the output up to the first `text`, waiting for it.
    async fn sees(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.unread.find(text) {
                return self.unread.drain(..at + text.len()).collect();
            }
            let chunk = timeout(HANG, self.bench.all.output(&self.id, self.cursor, HANG))
                .await
                .expect("no hang")
                .expect("known");
            assert!(
                !chunk.output_lost && chunk.cursor > self.cursor,
                "{text:?} never came, only {:?}",
                self.unread
            );
            self.unread.push_str(&chunk.chunk);
            self.cursor = chunk.cursor;
        }
    }

    async fn types(&self, keys: &str) {
        let taken = self.bench.all.write_stdin(&self.id, keys.as_bytes(), false);
        assert_eq!(taken.await.expect("taken"), keys.len());
    }

    async fn types_end(&self, keys: &str) {
        let taken = self.bench.all.write_stdin(&self.id, keys.as_bytes(), true);
        assert_eq!(taken.await.expect("taken"), keys.len());
    }

    async fn resizes(&self, rows: u16, cols: u16) -> Result<(), codespace_router::ToolError> {
        let size = |n: u16| n.try_into().expect("not zero");
        let done = self.bench.all.resize(&self.id, size(rows), size(cols));
        done.await
    }

    /// All that comes from here on, and the end.
    async fn ends(mut self) -> (String, ProcessStatus) {
        loop {
            let chunk = timeout(HANG, self.bench.all.output(&self.id, self.cursor, HANG))
                .await
                .expect("no hang")
                .expect("known");
            self.unread.push_str(&chunk.chunk);
            assert!(
                chunk.eof || chunk.cursor > self.cursor,
                "hangs: {:?}",
                self.unread
            );
            self.cursor = chunk.cursor;
            if chunk.eof {
                return (self.unread, self.bench.exit(&self.id).await);
            }
        }
    }
}

fn alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

// Pipes, terminals and pidfds: other tests of this process may open files meanwhile.
fn descriptors() -> usize {
    let open = fs::read_dir("/proc/self/fd")
        .expect("fds")
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok());
    open.filter(|target| {
        let target = target.to_string_lossy();
        ["pipe:", "pidfd", "/dev/pt"]
            .iter()
            .any(|kind| target.contains(kind))
    })
    .count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

fn zombies() -> usize {
    let me = format!(" {} ", std::process::id());
    let stats = fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains(") Z") && stat.contains(&me))
        .count()
}
