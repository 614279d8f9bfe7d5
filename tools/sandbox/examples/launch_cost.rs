//! What a launch costs: /bin/true through a launcher, bare, and in bubblewrap where that is
//! installed, in turns and in one run. Ratios count, not milliseconds.
//!
//! `cargo run --release -p codespace-sandbox --example launch_cost -- target/release/codespace-sandbox-helper`

// Real time is what is measured.
#![allow(clippy::disallowed_types)]

use std::{
    error::Error,
    ffi::CString,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use codespace_sandbox::{Isolation, Launcher, Plan};
use rustix::event::{PollFd, PollFlags, poll};

const ROUNDS: usize = 15;
const LAUNCHES: usize = 40;

type Outcome = Result<(), Box<dyn Error>>;
type Way = Box<dyn Fn() -> Outcome>;

fn main() -> Outcome {
    let exe: PathBuf = std::env::args_os()
        .nth(1)
        .ok_or("name the helper's executable")?
        .into();
    let helper = exe.clone();
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("work");
    std::fs::create_dir(&root)?;
    let plan = Plan::for_root(&root)?;
    let full = Launcher::start(&exe, &plan)?;
    let with_git = folder.path().join("git");
    std::fs::create_dir_all(with_git.join(".git/hooks"))?;
    std::fs::write(with_git.join(".git/config"), "")?;
    let git = Launcher::start(&exe, &Plan::for_root(&with_git)?)?;
    let partial = Launcher::start(
        &exe,
        &Plan {
            isolation: Isolation::Partial,
            scratch: Some(folder.path().join("scratch")),
            ..plan.clone()
        },
    )?;
    let plan_file = folder.path().join("plan.json");
    std::fs::write(&plan_file, serde_json::to_string(&plan)?)?;

    let mut ways: Vec<(&str, Way)> = vec![
        (
            "bare posix_spawn",
            Box::new(|| outside(Command::new("/bin/true"))),
        ),
        ("launcher", Box::new(move || inside(&full))),
        ("launcher, a git repository", Box::new(move || inside(&git))),
        (
            "launcher, no namespaces",
            Box::new(move || inside(&partial)),
        ),
        (
            "one-shot sandbox run",
            Box::new(move || {
                let mut command = Command::new(&exe);
                command.args(["sandbox", "run", "--plan"]).arg(&plan_file);
                command.args(["--", "/bin/true"]);
                outside(command)
            }),
        ),
    ];
    if Path::new("/usr/bin/bwrap").exists() {
        ways.push((
            "bwrap --unshare-all",
            Box::new(|| {
                let mut command = Command::new("/usr/bin/bwrap");
                command.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc"]);
                command.args(["--dev", "/dev", "/bin/true"]);
                outside(command)
            }),
        ));
    }
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, way), times) in ways.iter().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..LAUNCHES {
                way()?;
            }
            times.push(start.elapsed() / LAUNCHES as u32);
        }
    }
    let medians: Vec<f64> = times
        .into_iter()
        .map(|mut times| {
            times.sort();
            times[ROUNDS / 2].as_secs_f64() * 1000.0
        })
        .collect();
    for ((name, _), median) in ways.iter().zip(&medians) {
        println!("{name:<28}{:>6.1} x{median:>9.2} ms", median / medians[0]);
    }
    phases(&Launcher::start(&helper, &plan)?)
}

/// Where the time of one launch goes, as seen from outside.
fn phases(launcher: &Launcher) -> Outcome {
    let mut all: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS * LAUNCHES {
        let null = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        let argv = [CString::from(c"/bin/true")];
        let start = Instant::now();
        let spawned = launcher.spawn(&codespace_sandbox::Command {
            argv: &argv,
            env: &[],
            cwd: Path::new(""),
            stdio: [null.as_fd(), null.as_fd(), null.as_fd()],
            terminal: None,
        })?;
        all[0].push(start.elapsed());
        poll(&mut [PollFd::new(&spawned.status(), PollFlags::IN)], None)?;
        all[1].push(start.elapsed());
        poll(&mut [PollFd::new(&spawned.pidfd(), PollFlags::IN)], None)?;
        all[2].push(start.elapsed());
        spawned.finish()?;
        all[3].push(start.elapsed());
    }
    let names = ["exec known", "exit known", "tree gone", "settled"];
    for (name, times) in names.iter().zip(&mut all) {
        times.sort();
        let median = times[times.len() / 2];
        println!(
            "  launcher: {name:<16}{:>9.2} ms",
            median.as_secs_f64() * 1000.0
        );
    }
    Ok(())
}

fn outside(mut command: Command) -> Outcome {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {status}").into())
    }
}

fn inside(launcher: &Launcher) -> Outcome {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let argv = [CString::from(c"/bin/true")];
    let spawned = launcher.spawn(&codespace_sandbox::Command {
        argv: &argv,
        env: &[],
        cwd: Path::new(""),
        stdio: [null.as_fd(), null.as_fd(), null.as_fd()],
        terminal: None,
    })?;
    poll(&mut [PollFd::new(&spawned.pidfd(), PollFlags::IN)], None)?;
    let status = spawned.wait_status();
    spawned.finish()?;
    if status == Some(0) {
        Ok(())
    } else {
        Err(format!("{status:?}").into())
    }
}
