//! Writing to stdin.

use super::*;

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
