//! What a command starts with, and what a failed start tells.

use super::*;

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
