//! `codespace sandbox …`: what the helper does, by its arguments.

use std::{
    ffi::{CString, OsStr, OsString},
    fs::{self, File},
    io::Read,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::Path,
    process::ExitCode,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{WaitId, WaitIdOptions, waitid},
};

use crate::{
    cgroup::Cgroup,
    fault::{Fault, Step},
    init::Job,
    launcher::{
        self,
        prepared::{Prepared, own_stdio},
        serve,
    },
    plan::Plan,
    probe,
    report::Report,
    sys::{self, Side},
};

// As env(1) and others do for their own failures.
const SETUP_FAILED: u8 = 125;

const USAGE: &str = "usage: codespace sandbox probe [--json] [--as=UID:GID]
       codespace sandbox prepare --plan FILE|-
       codespace sandbox run --plan FILE|- -- COMMAND [ARGUMENT]...";

/// Runs the helper. To be called at the very start of `main`, before any runtime or
/// thread, with the arguments after the program's name, the first of which is `sandbox`.
#[must_use]
pub fn helper_main(args: &[OsString]) -> ExitCode {
    let words: Vec<&str> = args
        .iter()
        .map(|word| word.to_str().unwrap_or(""))
        .collect();
    match words.as_slice() {
        ["sandbox", "probe", rest @ ..] => run_probe(rest),
        ["sandbox", "launcher"] => serve::serve(),
        ["sandbox", "prepare", "--plan", _] => {
            match read_plan(&args[3]).and_then(|plan| plan.check()) {
                Ok(()) => {
                    println!("the plan can be carried out as far as can be told without doing it");
                    ExitCode::SUCCESS
                }
                Err(fault) => refuse(&fault),
            }
        }
        ["sandbox", "run", "--plan", _, "--", _, ..] => match run(&args[3], &args[5..]) {
            Ok(status) => status,
            Err(fault) => refuse(&fault),
        },
        _ => usage(),
    }
}

fn refuse(fault: &Fault) -> ExitCode {
    eprintln!("codespace sandbox: {fault}");
    ExitCode::from(SETUP_FAILED)
}

fn read_plan(from: &OsStr) -> Result<Plan, Fault> {
    let text = if from == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(from)
    };
    serde_json::from_str(&text.step("reading the plan")?)
        .map_err(|error| Fault::plain(format!("the plan: {error}")))
}

/// One command, without a launcher that is kept.
fn run(plan: &OsStr, command: &[OsString]) -> Result<ExitCode, Fault> {
    let plan = read_plan(plan)?;
    // A stranger's descriptors are none of the command's business.
    sys::close_from(3);
    let cgroup = Cgroup::create(&plan.limits);
    // A member cannot remove its group, so one of two processes stays outside.
    match sys::clone3(0).step("starting a process")? {
        Side::Child => sys::exit_now(i32::from(
            run_inside(plan, &cgroup, command).unwrap_or_else(|fault| {
                eprintln!("codespace sandbox: {fault}");
                SETUP_FAILED
            }),
        )),
        Side::Parent { pid, .. } => {
            let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).step("waiting")?;
            let code = status.and_then(|status| status.exit_status());
            Ok(ExitCode::from(code.map_or(SETUP_FAILED, |code| code as u8)))
        }
    }
}

fn run_inside(plan: Plan, cgroup: &Cgroup, command: &[OsString]) -> Result<u8, Fault> {
    let parent = rustix::process::getppid();
    if rustix::process::geteuid().is_root() {
        for fd in &own_stdio()? {
            // A person's terminal stays theirs.
            if !rustix::termios::isatty(fd) {
                launcher::give(fd.as_fd(), plan.uid, plan.gid).step("giving the output away")?;
            }
        }
    }
    let held = cgroup.join(std::process::id());
    let mut prepared = Prepared::new(plan, held)?;
    // Becoming another user undoes this, so it comes after.
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
        .step("tying the run to its parent")?;
    if rustix::process::getppid() != parent {
        return Err(Fault::plain("the run's parent is gone"));
    }

    while !prepared.scan.is_done() {
        prepared.scan.walk(1000);
    }
    let words = |word: &OsString| {
        CString::new(word.as_bytes()).map_err(|_| Fault::plain("an argument holds a NUL"))
    };
    let (status, their_status) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
    let (their_control, control) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
    let job = Job {
        argv: command.iter().map(words).collect::<Result<_, _>>()?,
        env: prepared.environment(Vec::new()),
        cwd: prepared.folder(Path::new("")),
        stdio: own_stdio()?,
        terminal: None,
        status: their_status,
        control: their_control,
    };
    let running = prepared.start(job)?;
    let mut reports = File::from(status);
    let mut record = [0; Report::BYTES];
    let mut code = SETUP_FAILED;
    while reports.read_exact(&mut record).is_ok() {
        match Report::parse(&record) {
            Some(Report::Started) => {}
            Some(Report::Ended(status)) => code = shell_code(status),
            Some(Report::ExecFailed(errno)) => {
                eprintln!(
                    "codespace sandbox: {}",
                    std::io::Error::from_raw_os_error(errno)
                );
                code = if errno == libc::ENOENT { 127 } else { 126 };
            }
            Some(Report::SetupFailed(errno)) => {
                let mut step = String::new();
                let _ = reports.read_to_string(&mut step);
                return Err(Fault { step, errno });
            }
            None => break,
        }
    }
    let _ = waitid(WaitId::Pid(running.pid), WaitIdOptions::EXITED);
    drop(control);
    for name in running.settle() {
        eprintln!("codespace sandbox: put back {name}");
    }
    Ok(code)
}

/// As shells tell it: the exit code, or 128 and the signal.
fn shell_code(status: i32) -> u8 {
    if status & 0x7F == 0 {
        (status >> 8) as u8
    } else {
        128 + (status & 0x7F) as u8
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn run_probe(rest: &[&str]) -> ExitCode {
    let (mut json, mut run_as) = (false, None);
    for word in rest {
        match word.strip_prefix("--as=") {
            _ if *word == "--json" => json = true,
            Some(ids) => match ids.split_once(':').map(|(u, g)| (u.parse(), g.parse())) {
                Some((Ok(uid), Ok(gid))) => run_as = Some((uid, gid)),
                _ => return usage(),
            },
            None => return usage(),
        }
    }
    let features = probe::probe(run_as);
    if json {
        match serde_json::to_string(&features) {
            Ok(text) => println!("{text}"),
            Err(_) => return ExitCode::FAILURE,
        }
    } else {
        print!("{}", features.describe());
    }
    ExitCode::SUCCESS
}
