//! Real processes. One test at a time: they count the server's children and
//! descriptors, and a daemon is somebody's for certain only while no other command runs.

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
    }
}

fn alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_left_over_child_does_not_hold_the_end_up() {
    let b = bench().await;
    let (text, status) = b.run("sleep 60 & echo $! > pid; echo done").await;
    assert_eq!(
        (text.as_str(), status.exit_code, status.eof),
        ("done\n", Some(0), true)
    );
    assert!(!alive(b.pids("pid", 1).await[0]));
}

#[tokio::test]
async fn a_fast_exit_keeps_stderr_and_code() {
    let b = bench().await;
    let (text, status) = b.run("echo boom >&2; exit 1").await;
    assert_eq!(
        (text.as_str(), status.exit_code, status.termination),
        ("boom\n", Some(1), Some(Termination::Exited))
    );
}

#[tokio::test]
async fn exit_statuses_are_told_as_they_are() {
    let b = bench().await;
    let (_, status) = b.run("kill -9 $$").await;
    assert_eq!(
        (status.termination, status.signal, status.exit_code),
        (Some(Termination::Exited), Some(9), None)
    );
    let (_, status) = b.run("exit 137").await;
    assert_eq!((status.signal, status.exit_code), (None, Some(137)));
}

#[tokio::test]
async fn sigpipe_ends_a_writer() {
    let b = bench().await;
    let (text, status) = b.run("yes | head -1").await;
    assert_eq!((text.as_str(), status.exit_code), ("y\n", Some(0)));
}

#[tokio::test]
async fn a_command_starts_with_defaults_and_three_descriptors() {
    let b = bench().await;
    // Ignored and blocked here, as after nohup; undone below.
    let old = rustix_signal_setup();
    let (text, _) = b
        .run("exec grep -E '^Sig(Blk|Ign)' /proc/self/status")
        .await;
    old();
    assert_eq!(
        text,
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
    );
    let stray = fs::File::open("/dev/null").expect("null");
    rustix::io::fcntl_setfd(&stray, rustix::io::FdFlags::empty()).expect("inheritable");
    let id = b.start(&["ls", "/proc/self/fd"]).await;
    assert_eq!(
        b.text(&id).await,
        "0\n1\n2\n3\n",
        "3 is the folder ls reads"
    );
    let id = b.start(&["env"]).await;
    assert_eq!(
        b.text(&id).await,
        "PATH=/usr/local/bin:/usr/bin:/bin\nLANG=C.UTF-8\n"
    );
}

#[allow(unsafe_code)]
fn rustix_signal_setup() -> impl FnOnce() {
    use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};
    // SAFETY: ignoring a signal and restoring its default runs no code of ours.
    unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn).expect("ignored") };
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), None).expect("blocked");
    move || {
        // SAFETY: as above.
        unsafe { signal(Signal::SIGHUP, SigHandler::SigDfl).expect("default") };
        pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&set), None).expect("unblocked");
    }
}

#[tokio::test]
async fn stdin_is_read_to_its_end() {
    let b = bench().await;
    let id = b.start(&["tac"]).await;
    assert_eq!(
        b.all.status(&id, NO_WAIT).await.expect("known").state,
        ProcessState::Running
    );
    assert_eq!(
        b.all
            .write_stdin(&id, b"a\nb\n", true)
            .await
            .expect("taken"),
        4
    );
    assert_eq!(b.text(&id).await, "b\na\n");
    assert_eq!(b.exit(&id).await.exit_code, Some(0));
}

#[tokio::test]
async fn a_dead_stdin_is_not_found() {
    let b = bench().await;
    let id = b.start(&["cat"]).await;
    assert_eq!(b.all.write_stdin(&id, b"", true).await.expect("closed"), 0);
    let error = b
        .all
        .write_stdin(&id, b"", true)
        .await
        .expect_err("closed twice");
    assert_eq!(error.code(), Code::ProcessNotFound);
    b.exit(&id).await;
    let error = b
        .all
        .write_stdin(&id, b"x", false)
        .await
        .expect_err("exited");
    assert_eq!(
        (error.code(), error.message().contains("has exited")),
        (Code::ProcessNotFound, true)
    );
    for _ in 0..50 {
        // As near to the exit as it gets.
        let id = b.start(&["true"]).await;
        if let Err(error) = b.all.write_stdin(&id, b"x", false).await {
            assert_eq!(error.code(), Code::ProcessNotFound);
        }
        b.exit(&id).await;
    }
    let error = b
        .all
        .write_stdin(&ProcessId::mint(), b"x", false)
        .await
        .expect_err("unknown");
    assert_eq!(error.code(), Code::ProcessNotFound);
}

#[tokio::test]
async fn a_mebibyte_goes_through_cat_unread() {
    let b = bench().await;
    let id = b.start(&["cat"]).await;
    assert_eq!(
        b.all
            .write_stdin(&id, &vec![b'x'; 1 << 20], true)
            .await
            .expect("taken"),
        1 << 20
    );
    let status = b.exit(&id).await;
    assert_eq!(
        (status.output_total, status.output_retained_from),
        (1 << 20, (1 << 20) - 256 * 1024)
    );
}

#[tokio::test]
async fn a_full_pipe_says_what_it_took() {
    let b = bench().await;
    let id = b.start(&["sleep", "100"]).await;
    tokio::time::pause();
    let taken = b
        .all
        .write_stdin(&id, &vec![b'x'; 1 << 20], true)
        .await
        .expect("taken");
    tokio::time::resume();
    assert!(taken > 0 && taken < 1 << 20);
    b.all.terminate(&id).await.expect("ended");
    assert_eq!(b.exit(&id).await.signal, Some(15));
}

#[tokio::test]
async fn a_flood_is_bounded_and_a_gap_is_told() {
    let b = bench().await;
    let id = b.start(&["yes"]).await;
    let mut cursor = 0;
    while cursor < 4 << 20 {
        let chunk = timeout(HANG, b.all.output(&id, cursor, HANG))
            .await
            .expect("no hang")
            .expect("known");
        assert!(chunk.cursor > cursor && chunk.chunk.len() <= 64 * 1024);
        cursor = chunk.cursor;
    }
    b.all.terminate(&id).await.expect("ended");
    let status = b.exit(&id).await;
    assert_eq!(
        (
            status.termination,
            status.output_total - status.output_retained_from
        ),
        (Some(Termination::Terminated), 256 * 1024)
    );
    let chunk = b.all.output(&id, 0, NO_WAIT).await.expect("known");
    assert!(
        chunk.output_lost
            && chunk.retained_from == status.output_retained_from
            && chunk.retained_from > 0
    );
    assert_eq!(chunk.cursor, chunk.retained_from + 64 * 1024);
    let end = b.all.output(&id, u64::MAX, HANG).await.expect("known");
    assert_eq!(
        (end.cursor, end.eof, end.chunk.as_str()),
        (status.output_total, true, "")
    );
}

#[tokio::test]
async fn half_a_character_is_nothing_new() {
    let b = bench().await;
    let id = b
        .sh(r"printf '\342\206'; read x; printf '\222'; read x; printf '\342'")
        .await;
    timeout(HANG, async {
        while b
            .all
            .status(&id, NO_WAIT)
            .await
            .expect("known")
            .output_total
            < 2
        {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("written");
    assert_eq!(
        b.all
            .output(&id, 0, Duration::from_millis(1))
            .await
            .expect("known")
            .cursor,
        0
    );
    b.all.write_stdin(&id, b"\n", false).await.expect("taken");
    let chunk = b.all.output(&id, 0, HANG).await.expect("known");
    assert_eq!(
        (chunk.chunk.as_str(), chunk.cursor, chunk.eof),
        ("→", 3, false)
    );
    b.all.write_stdin(&id, b"\n", false).await.expect("taken");
    let chunk = b.all.output(&id, 3, HANG).await.expect("known");
    assert_eq!((chunk.chunk.as_str(), chunk.eof), ("\u{fffd}", true));
}

#[tokio::test]
async fn terminate_ends_the_tree_and_may_be_repeated() {
    let b = bench().await;
    let id = b.sh("for i in 1 2; do sh -c 'sleep 100 & echo $! >> pids; wait' & echo $! >> pids; done; wait").await;
    let pids = b.pids("pids", 4).await;
    let (one, two) = tokio::join!(b.all.terminate(&id), b.all.terminate(&id));
    assert!(one.is_ok() && two.is_ok());
    assert_eq!(
        b.all.status(&id, NO_WAIT).await.expect("known").termination,
        Some(Termination::Terminated)
    );
    assert!(pids.iter().all(|pid| !alive(*pid)));
    b.all.terminate(&id).await.expect("a no-op");
}

#[tokio::test]
async fn a_handler_gets_its_time_and_no_code_is_told() {
    let b = bench().await;
    let id = b
        .sh("trap 'echo got; exit 7' TERM; echo up; while :; do sleep 0.05; done")
        .await;
    b.all.output(&id, 0, HANG).await.expect("up");
    b.all.terminate(&id).await.expect("ended");
    assert!(b.text(&id).await.ends_with("got\n"));
    let status = b.exit(&id).await;
    assert_eq!(
        (status.termination, status.exit_code, status.signal),
        (Some(Termination::Terminated), None, None)
    );
}

#[tokio::test]
async fn the_time_limit_ends_what_ignores_sigterm() {
    let mut b = bench().await;
    b.home.time_limit = Duration::from_millis(300);
    let id = b.sh("trap '' TERM; mkfifo p; while :; do echo x; done > p & cat p > /dev/null & echo $! > pid; sleep 100; sleep 100").await;
    let status = b.exit(&id).await;
    assert_eq!(
        (status.termination, status.signal, status.eof),
        (Some(Termination::Timeout), Some(9), true)
    );
    assert!(!alive(b.pids("pid", 1).await[0]));
}

#[tokio::test]
async fn daemons_end_with_their_command() {
    let b = bench().await;
    let daemons = "touch pids; setsid sh -c 'echo $$ >> pids; exec sleep 600' & \
        (setsid sh -c '(echo started; exec sleep 600) > /dev/null 2>&1 < /dev/null & echo $! >> pids' &) ; \
        while [ $(wc -l < pids) -lt 2 ]; do sleep 0.01; done; ";
    let (_, status) = b.run(daemons).await;
    assert_eq!(status.exit_code, Some(0));
    let pids = b.pids("pids", 2).await;
    assert!(
        pids.iter().all(|pid| !alive(*pid)),
        "after the leader's exit"
    );
    fs::remove_file(b.dir.path().join("pids")).expect("removed");
    let id = b.sh(&format!("{daemons} touch ready; sleep 600")).await;
    let pids = b.pids("pids", 2).await;
    b.all.terminate(&id).await.expect("ended");
    assert!(pids.iter().all(|pid| !alive(*pid)), "after terminate");
}

#[tokio::test]
async fn another_commands_daemon_is_left_alone() {
    let b = bench().await;
    let first = b.sh("(setsid sh -c '(exec sleep 600) > /dev/null 2>&1 < /dev/null & echo $! >> pids' &); sleep 600").await;
    let daemon = b.pids("pids", 1).await[0];
    assert_eq!(b.run("exit 3").await.1.exit_code, Some(3));
    assert!(alive(daemon));
    b.all.terminate(&first).await.expect("ended");
    assert!(!alive(daemon));
}

#[tokio::test]
async fn who_sees_the_exit_finds_the_workspace_free() {
    struct Keep(Arc<AtomicBool>);
    impl Drop for Keep {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let b = bench().await;
    for _ in 0..20 {
        let free = Arc::new(AtomicBool::new(false));
        let id = b
            .all
            .exec(&b.home, spec(&["echo", "hi"]), Box::new(Keep(free.clone())))
            .await
            .expect("started");
        assert_eq!(b.text(&id).await, "hi\n");
        assert!(free.load(Ordering::SeqCst) && b.all.live() == 0);
    }
    let free = Arc::new(AtomicBool::new(false));
    let refused = b
        .all
        .exec(&b.home, spec(&["/no/such"]), Box::new(Keep(free.clone())))
        .await;
    assert!(refused.is_err() && free.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_failed_start_blames_the_right_thing() {
    let mut b = bench().await;
    fs::write(b.dir.path().join("plain"), "echo").expect("written");
    for (program, why) in [
        ("no-such", "no such program"),
        ("./plain", "not executable"),
        ("/", "not executable"),
    ] {
        let error = b.fails(&[program]).await;
        assert_eq!(error.code(), Code::ProcessSpawnFailed);
        assert!(
            error.message().contains(program) && error.message().contains(why),
            "{error}"
        );
    }
    let moved = b.dir.path().join("moved");
    b.home.root = b.dir.path().join("root");
    fs::create_dir(&b.home.root).expect("made");
    fs::rename(&b.home.root, &moved).expect("renamed");
    let error = b.fails(&["pwd"]).await;
    assert_eq!(error.code(), Code::ProcessSpawnFailed);
    let message = error.message();
    assert!(
        message.contains("workspace demo") && !message.contains("pwd") && !message.contains("/tmp"),
        "{message}"
    );
    assert_eq!(b.all.live(), 0);
}

#[tokio::test]
async fn handles_and_live_processes_are_capped() {
    let b = bench_with(ProcessLimits {
        output_bytes: 100,
        processes: 1,
        handles: 2,
        handle_time: HANG * 3,
    })
    .await;
    let id = b.start(&["sleep", "100"]).await;
    assert_eq!(b.fails(&["true"]).await.code(), Code::LimitExceeded);
    assert_eq!(b.all.workspace_of(&id), Some(WorkspaceId::new("demo")));
    b.all.terminate(&id).await.expect("ended");
    let mut last = id.clone();
    for _ in 0..2 {
        assert!(b.all.workspace_of(&last).is_some());
        last = b.start(&["true"]).await;
        b.exit(&last).await;
    }
    assert_eq!(b.all.workspace_of(&id), None, "the oldest goes first");
    tokio::time::pause();
    tokio::time::advance(HANG * 3).await;
    assert_eq!(
        b.all
            .status(&last, NO_WAIT)
            .await
            .expect_err("expired")
            .code(),
        Code::ProcessNotFound
    );
}

#[tokio::test]
async fn shutdown_ends_everything_and_refuses_more() {
    let b = bench().await;
    let ids = [b.sh("sleep 100").await, b.start(&["cat"]).await];
    b.all.shut_down().await;
    for id in &ids {
        assert_eq!(b.exit(id).await.termination, Some(Termination::Terminated));
    }
    assert_eq!(
        (b.fails(&["true"]).await.code(), b.all.live()),
        (Code::ProcessSpawnFailed, 0)
    );
}

#[tokio::test]
async fn many_short_commands_leave_nothing() {
    let b = bench().await;
    b.run("true").await;
    let before = (pipes(), tasks(), zombies());
    for round in 0..200 {
        assert_eq!(
            b.run("(true &) ; echo x").await.1.exit_code,
            Some(0),
            "{round}"
        );
    }
    // A task ends just after it showed the exit.
    timeout(HANG, async {
        while (pipes(), tasks(), zombies()) != before {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("nothing is left");
}

fn pipes() -> usize {
    let open = fs::read_dir("/proc/self/fd")
        .expect("fds")
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok());
    open.filter(|target| {
        target.to_string_lossy().starts_with("pipe:") || target.to_string_lossy().contains("pidfd")
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
