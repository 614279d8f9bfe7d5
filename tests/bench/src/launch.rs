//! One launch of `/bin/true` in the whole sandbox until its exit is known and its tree is
//! gone, without server and protocol around it, beside a bare spawn and bubblewrap's.

use std::{
    ffi::CString,
    fs::File,
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use codespace_sandbox::{Launcher, Plan};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::Instant;

use crate::{
    Effort,
    server::{Place, Programs},
    table::{TURN, Table, Target, median, millis},
};

/// What the launching process holds: no launch may cost more for it.
const HELD: usize = 100 << 20;

/// Roughly what the sandbox gives a command.
const BUBBLEWRAP: &str = "--unshare-all --ro-bind / / --proc /proc --dev /dev /bin/true";

fn sandboxed(launcher: &Launcher, null: &File, argv: &[CString]) -> Result<()> {
    let spawned = launcher.spawn(&codespace_sandbox::Command {
        argv,
        env: &[],
        cwd: Path::new(""),
        stdio: [null.as_fd(), null.as_fd(), null.as_fd()],
        terminal: None,
    })?;
    poll(&mut [PollFd::new(&spawned.pidfd(), PollFlags::IN)], None)?;
    ensure!(spawned.wait_status() == Some(0), "another end");
    spawned.finish()?;
    Ok(())
}

fn spawned(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| program.to_owned())?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

pub(crate) fn measure(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let place = Place::new()?;
    let mut plan = Plan::for_root(&place.root().canonicalize()?)?;
    plan.env.insert("PATH".into(), "/usr/bin:/bin".into());
    let launcher = Launcher::start(programs.codespace_program(), &plan)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let argv = [CString::from(c"/bin/true")];
    let held = vec![1u8; HELD];
    let bubblewrap: Vec<&str> = BUBBLEWRAP.split(' ').collect();
    let has_bubblewrap = spawned("bwrap", &bubblewrap).is_ok();
    let (mut ours, mut bare, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    sandboxed(&launcher, &null, &argv)?;
    for _ in 0..effort.pick(1, 25) {
        turn(&mut ours, || sandboxed(&launcher, &null, &argv))?;
        turn(&mut bare, || spawned("/bin/true", &[]))?;
        if has_bubblewrap {
            turn(&mut theirs, || spawned("bwrap", &bubblewrap))?;
        }
    }
    // Touched once more, so that it was held all the while.
    ensure!(held.iter().step_by(4096).all(|byte| *byte == 1));
    let (ours, bare) = (median(ours), median(bare));
    let beside = match theirs.is_empty() {
        true => "bwrap cannot be run here".to_owned(),
        false => {
            let theirs = median(theirs);
            format!("bwrap {} (x{:.2})", millis(theirs), ratio(ours, theirs))
        }
    };
    table.row(
        "launch of /bin/true, sandbox required",
        millis(ours),
        format!("bare spawn {}, {beside}", millis(bare)),
        (ratio(ours, bare), "x"),
        Target::AtMost(2.5),
    );
    Ok(())
}

fn turn(times: &mut Vec<Duration>, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..TURN {
        let begun = Instant::now();
        work()?;
        times.push(begun.elapsed());
    }
    Ok(())
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}
