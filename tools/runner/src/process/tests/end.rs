//! How commands end, and what ends with them.

use super::*;

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
async fn whole_families_end_with_their_command() {
    let b = bench().await;
    for round in 0..40 {
        // Each dies before or after its children, and leaves them to the server or not.
        let script = "rm -f pids; for i in 1 2 3 4; do setsid sh -c 'sh -c \"sleep 600 & echo \\$! >> pids; wait\" & echo $! >> pids; wait' & done; \
            until [ $(cat pids 2>/dev/null | wc -l) = 8 ]; do sleep 0.01; done";
        b.run(script).await;
        let alive: Vec<_> = b.pids("pids", 8).await;
        let alive: Vec<_> = alive.into_iter().filter(|pid| super::alive(*pid)).collect();
        assert!(alive.is_empty(), "{round}: {alive:?}");
    }
}

#[tokio::test]
async fn an_orphan_that_ends_is_reaped_while_its_command_goes_on() {
    let b = bench().await;
    let id = b
        .sh("for i in 1 2 3; do (setsid sh -c 'echo $$ >> pids' &); done; sleep 600")
        .await;
    let orphans = b.pids("pids", 3).await;
    let reaped = timeout(HANG, async {
        while orphans.iter().any(|orphan| alive(*orphan)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    reaped.await.expect("no orphan is left behind");
    let status = b.all.status(&id, Duration::ZERO).await.expect("known");
    assert_eq!(status.state, ProcessState::Running);
    b.all.terminate(&id).await.expect("ended");
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
