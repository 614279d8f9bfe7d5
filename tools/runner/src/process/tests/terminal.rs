//! What a terminal is and does. Programs that live in one are in `programs`.

use super::*;

#[tokio::test]
async fn it_is_the_controlling_terminal_of_24_by_80() {
    let b = bench().await;
    let script = "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM && \
        echo control > /dev/tty && ps -o tpgid=,sid= -p $$ | awk -v pid=$$ '{ print $1 == pid, $2 == pid }' && \
        exec ls /proc/self/fd";
    let (text, status) = b.terminal_sh(script).await.ends().await;
    assert_eq!(status.exit_code, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("/dev/pts/"), "{text}");
    // `ls` puts a terminal's names in columns; 3 is the folder it reads.
    assert_eq!(
        lines[1..],
        ["24 80", "xterm-256color", "control", "1 1", "0  1  2  3"]
    );
    let (text, _) = b.run("tty; test -t 1 || echo pipe; (: > /dev/tty) 2>/dev/null || echo none; echo ${TERM-unset}").await;
    assert_eq!(text, "not a tty\npipe\nnone\nunset\n");
}

#[tokio::test]
async fn the_operators_own_terminal_type_is_kept() {
    let mut b = bench().await;
    b.home.env.push(("TERM".into(), "dumb".into()));
    let (text, _) = b.terminal(&["env"], "coreutils").await.ends().await;
    assert_eq!(text.matches("TERM=").count(), 1, "{text}");
    assert!(text.contains("TERM=dumb\r\n"), "{text}");
}

#[tokio::test]
async fn a_new_size_is_seen_and_signalled() {
    let b = bench().await;
    let mut t = b
        .terminal(
            &["bash", "-c", "trap 'stty size; exit 4' WINCH; stty size; echo up; while :; do read -t 0.05; done"],
            "bash",
        )
        .await;
    assert!(t.sees("up").await.starts_with("24 80\r\n"));
    t.resizes(u16::MAX, 1).await.expect("resized");
    t.sees("65535 1\r\n").await;
    let id = t.id.clone();
    assert_eq!(t.ends().await.1.exit_code, Some(4));
    let one = 1.try_into().expect("not zero");
    let error = b.all.resize(&id, one, one).await.expect_err("exited");
    assert_eq!(error.code(), Code::ProcessNotRunning);
    let pipes = b.start(&["cat"]).await;
    let error = b.all.resize(&pipes, one, one).await.expect_err("pipes");
    assert_eq!(error.code(), Code::ProcessNotTty);
    let error = b.all.resize(&ProcessId::mint(), one, one).await;
    assert_eq!(error.expect_err("unknown").code(), Code::ProcessNotFound);
}

#[tokio::test]
async fn exit_statuses_are_told_as_they_are() {
    let b = bench().await;
    for (script, code, signal) in [
        ("exit 3", Some(3), None),
        ("exit 137", Some(137), None),
        ("kill -9 $$", None, Some(9)),
        ("kill -SEGV $$", None, Some(11)),
        ("yes | head -1 > /dev/null", Some(0), None),
    ] {
        let (_, status) = b.terminal_sh(script).await.ends().await;
        assert_eq!(
            (status.termination, status.exit_code, status.signal),
            (Some(Termination::Exited), code, signal),
            "{script}"
        );
    }
    let mut t = b.terminal_sh("echo up; exec sleep 100").await;
    t.sees("up").await;
    b.all.terminate(&t.id).await.expect("ended");
    let status = t.ends().await.1;
    assert_eq!(
        (status.termination, status.signal, status.eof),
        (Some(Termination::Terminated), Some(15), true)
    );
}

#[tokio::test]
async fn the_tail_of_a_burst_is_never_lost() {
    let b = bench().await;
    let burst = "head -c 1000000 /dev/zero | tr '\\0' x; printf END";
    // Alone, with somebody else at the terminal when the command ends, and with a reader
    // that the command no longer is.
    for script in [
        burst.to_owned(),
        format!("sleep 100 & {burst}"),
        format!("exec 3>&1 < /dev/null > /dev/null 2>&1; ({burst}) >&3"),
    ] {
        for round in 0..10 {
            let id = b.terminal_sh(&script).await.id;
            let status = b.exit(&id).await;
            assert_eq!(
                (status.output_total, status.exit_code),
                (1_000_003, Some(0)),
                "{script} {round}"
            );
            let tail = b.all.output(&id, 999_990, HANG).await.expect("known");
            assert_eq!(tail.chunk, "xxxxxxxxxxEND");
        }
    }
}

#[tokio::test]
async fn a_flood_is_bounded_and_ends_with_ctrl_c() {
    let b = bench().await;
    let mut t = b.terminal(&["yes"], "coreutils").await;
    while t.cursor < 4 << 20 {
        let chunk = b.all.output(&t.id, t.cursor, HANG).await.expect("known");
        assert!(chunk.cursor > t.cursor && chunk.chunk.len() <= 64 * 1024);
        t.cursor = chunk.cursor;
    }
    t.types("\u{3}").await;
    let status = b.exit(&t.id).await;
    assert_eq!(
        (status.termination, status.signal),
        (Some(Termination::Exited), Some(2))
    );
    assert_eq!(
        status.output_total - status.output_retained_from,
        256 * 1024
    );
}

#[tokio::test]
async fn a_command_may_let_its_terminal_go_and_take_it_again() {
    let b = bench().await;
    let script = "t=$(tty); exec < /dev/null > /dev/null 2>&1; sleep 0.1; echo late > /dev/tty; echo later > $t; exit 6";
    let (text, status) = b.terminal_sh(script).await.ends().await;
    assert_eq!(
        (text.as_str(), status.exit_code),
        ("late\r\nlater\r\n", Some(6))
    );
}

#[tokio::test]
async fn close_is_the_end_of_input_for_who_reads() {
    let b = bench().await;
    let script = "cat; echo one; cat; echo two; cat; echo three";
    let mut t = b.terminal_sh(script).await;
    t.types("a\n").await;
    t.sees("a\r\na\r\n").await;
    t.types_end("").await;
    assert_eq!(t.sees("one\r\n").await, "one\r\n");
    t.types("b").await;
    // The line has begun, in an earlier write.
    t.types_end("c").await;
    assert_eq!(t.sees("two\r\n").await, "bcbctwo\r\n");
    // A line that was taken back is empty again.
    t.types_end("d\u{15}").await;
    t.sees("three\r\n").await;
    let id = t.id.clone();
    assert_eq!(t.ends().await.1.exit_code, Some(0));
    let error = b.all.write_stdin(&id, b"x", false).await;
    let error = error.expect_err("exited");
    assert_eq!(error.code(), Code::ProcessNotFound);
    assert!(error.message().contains("has exited"), "{error}");
}

#[tokio::test]
async fn much_input_arrives_whole() {
    let b = bench().await;
    let mut t = b.terminal_sh("stty -echo; echo up; exec cat").await;
    t.sees("up\r\n").await;
    let lines = 5000;
    let text: String = (0..lines).map(|n| format!("line {n:025}\n")).collect();
    t.types_end(&text).await;
    let (seen, status) = t.ends().await;
    assert_eq!(status.exit_code, Some(0));
    assert!(seen == text.replace('\n', "\r\n"), "{} bytes", seen.len());
}

#[tokio::test]
async fn a_full_terminal_says_what_it_took() {
    let b = bench().await;
    let mut t = b
        .terminal_sh("stty raw -echo; echo up; exec sleep 100")
        .await;
    t.sees("up").await;
    tokio::time::pause();
    let taken = b.all.write_stdin(&t.id, &vec![b'x'; 1 << 20], true).await;
    let taken = taken.expect("taken");
    assert!(taken > 0 && taken < 1 << 20, "{taken}");
    // To the last byte, so that nothing is left for the end of input.
    while b.all.write_stdin(&t.id, b"x", false).await.expect("open") > 0 {}
    let error = b.all.write_stdin(&t.id, b"", true).await;
    tokio::time::resume();
    assert_eq!(error.expect_err("no room").code(), Code::Timeout);
    b.all.terminate(&t.id).await.expect("ended");
    assert_eq!(t.ends().await.1.signal, Some(15));
}

#[tokio::test]
async fn input_that_is_thrown_away_makes_room() {
    let b = bench().await;
    let script = "import sys, termios, time, tty\ntty.setraw(0)\nprint('up', flush=True)\n\
        while True: termios.tcflush(0, termios.TCIFLUSH); time.sleep(0.01)";
    let mut t = b.terminal(&["python3", "-c", script], "python3").await;
    t.sees("up").await;
    t.types(&"x".repeat(300_000)).await;
    b.all.terminate(&t.id).await.expect("ended");
}

#[tokio::test]
async fn jobs_of_other_groups_and_sessions_end_too() {
    let b = bench().await;
    for leave in [true, false] {
        let mut t = b
            .terminal(&["bash", "--norc", "--noprofile", "-i"], "bash")
            .await;
        t.types("rm -f pids; sleep 600 & echo $! >> pids; nohup sleep 600 & echo $! >> pids\n")
            .await;
        t.types("trap '' HUP TERM; (sleep 600 & echo $! >> pids; wait) & (setsid sh -c 'echo $$ >> pids; exec sleep 600' &)\n")
            .await;
        let pids = b.pids("pids", 4).await;
        t.types("echo re''ady\n").await;
        t.sees("ready").await;
        if leave {
            t.types("exit 5\nexit 5\n").await;
            let status = t.ends().await.1;
            assert_eq!((status.exit_code, status.eof), (Some(5), true));
        } else {
            b.all.terminate(&t.id).await.expect("ended");
            assert!(t.ends().await.1.eof);
        }
        assert!(pids.iter().all(|pid| !alive(*pid)), "{leave} {pids:?}");
    }
}
