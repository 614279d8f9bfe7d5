//! Programs that people use at a terminal. Each test waits for what the program shows.

use super::*;

const CTRL_C: &str = "\u{3}";
const CTRL_Z: &str = "\u{1a}";
const ESCAPE: &str = "\u{1b}";

#[tokio::test]
async fn a_repl() {
    let b = bench().await;
    let mut t = b.terminal(&["python3", "-q", "-i"], "python3").await;
    t.sees(">>> ").await;
    t.types("6 * 7\n").await;
    t.sees("42\r\n").await;
    t.sees(">>> ").await;
    t.types("for i in range(2):\n  print('row', i * 10)\n\n")
        .await;
    t.sees("row 0\r\nrow 10\r\n").await;
    t.sees(">>> ").await;
    t.types_end("").await;
    assert_eq!(t.ends().await.1.exit_code, Some(0));
    let mut t = b.terminal(&["python3", "-q", "-i"], "python3").await;
    t.sees(">>> ").await;
    t.types("while True: print('bu' + 'sy')\n\n").await;
    t.sees("busy").await;
    t.types(CTRL_C).await;
    t.sees("KeyboardInterrupt").await;
    t.sees(">>> ").await;
    t.types("exit(3)\n").await;
    assert_eq!(t.ends().await.1.exit_code, Some(3));
}

#[tokio::test]
async fn job_control() {
    let b = bench().await;
    let mut t = b
        .terminal(&["bash", "--norc", "--noprofile", "-i"], "bash")
        .await;
    let first = t.sees("bash-").await;
    assert!(!first.contains("no job control"), "{first}");
    // A shell may lose what is typed while it hands its terminal over, so wait for it.
    t.types("echo i''n; cat\n").await;
    t.sees("in\r\n").await;
    t.types("hello\n").await;
    t.sees("hello\r\nhello\r\n").await;
    t.types(CTRL_Z).await;
    t.sees("Stopped").await;
    t.sees("bash-").await;
    t.types("jobs\n").await;
    t.sees("Stopped").await;
    t.sees("bash-").await;
    t.types("fg\n").await;
    t.sees("fg\r\n").await;
    t.sees("cat\r\n").await;
    t.types("again\n").await;
    t.sees("again\r\nagain\r\n").await;
    t.types(CTRL_C).await;
    t.sees("bash-").await;
    t.types("echo code=$?\n").await;
    t.sees("code=130\r\n").await;
    t.sees("bash-").await;
    t.types("exit 5\n").await;
    let status = t.ends().await.1;
    assert_eq!((status.exit_code, status.signal), (Some(5), None));
}

#[tokio::test]
async fn an_editor() {
    let b = bench().await;
    let vi = ["vi", "-u", "NONE", "-i", "NONE", "-n", "letter.txt"];
    let mut t = b.terminal(&vi, "vim-tiny").await;
    t.sees("letter.txt").await;
    t.types(&format!("ihello{ESCAPE}")).await;
    t.types(":echo 'now ' . &lines . ' by ' . &columns\r").await;
    t.sees("now 24 by 80").await;
    t.resizes(30, 100).await.expect("resized");
    // It draws anew, as far down as there are lines now.
    t.sees("\u{1b}[29;1H~").await;
    t.types(":echo 'now ' . &lines . ' by ' . &columns\r").await;
    t.sees("now 30 by 100").await;
    t.types(":wq\r").await;
    let (screen, status) = t.ends().await;
    assert_eq!(status.exit_code, Some(0), "{screen:?}");
    let written = fs::read_to_string(b.dir.path().join("letter.txt"));
    assert_eq!(written.expect("written"), "hello\n");
}

#[tokio::test]
async fn a_pager() {
    let b = bench().await;
    let text: String = (1..=500).map(|n| format!("line {n}\n")).collect();
    fs::write(b.dir.path().join("long.txt"), text).expect("written");
    let mut t = b.terminal(&["less", "long.txt"], "less").await;
    let page = t.sees("line 23").await;
    assert!(!page.contains("line 24"), "one page of 24 lines: {page:?}");
    t.types("G").await;
    t.sees("line 500").await;
    t.types("q").await;
    assert_eq!(t.ends().await.1.exit_code, Some(0));
}

#[tokio::test]
async fn a_full_screen_monitor() {
    let b = bench().await;
    let mut t = b.terminal(&["top"], "procps").await;
    t.sees("load average").await;
    t.sees("COMMAND").await;
    t.types("q").await;
    assert_eq!(t.ends().await.1.exit_code, Some(0));
}

#[tokio::test]
async fn a_password_is_not_echoed() {
    let b = bench().await;
    let script = "import getpass; print('got', len(getpass.getpass()))";
    let mut t = b.terminal(&["python3", "-c", script], "python3").await;
    let before = t.sees("Password: ").await;
    t.types("sesame\n").await;
    let (after, status) = t.ends().await;
    assert!(after.ends_with("got 6\r\n"), "{after:?}");
    assert!(!before.contains("sesame") && !after.contains("sesame"));
    assert_eq!(status.exit_code, Some(0));
}
