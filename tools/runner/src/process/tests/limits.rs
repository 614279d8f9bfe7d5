//! What is capped, what is left behind, what it costs.

use super::*;

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
async fn many_short_commands_leave_nothing() {
    let b = bench().await;
    b.run("true").await;
    let before = (descriptors(), tasks(), zombies());
    for round in 0..200 {
        assert_eq!(
            b.run("(true &) ; echo x").await.1.exit_code,
            Some(0),
            "{round}"
        );
    }
    // A task ends just after it showed the exit.
    timeout(HANG, async {
        while (descriptors(), tasks(), zombies()) != before {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("nothing is left");
}

#[tokio::test]
async fn many_terminals_leave_nothing() {
    let b = bench().await;
    b.terminal_sh("true").await.ends().await;
    let before = (descriptors(), tasks(), zombies());
    for round in 0..300_u16 {
        let code = i32::from(round % 100);
        let (text, status) = b
            .terminal_sh(&format!("(sleep 100 &) ; echo x; exit {code}"))
            .await
            .ends()
            .await;
        assert_eq!((text.as_str(), status.exit_code), ("x\r\n", Some(code)));
    }
    for _ in 0..20 {
        // Refused after its terminal was made.
        let spec = ExecSpec {
            tty: true,
            ..spec(&["/no/such"])
        };
        let refused = b.all.exec(&b.home, spec, Box::new(())).await;
        let error = refused.expect_err("refused");
        assert!(error.message().contains("/no/such"), "{error}");
    }
    timeout(HANG, async {
        while (descriptors(), tasks(), zombies()) != before {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("nothing is left");
}
