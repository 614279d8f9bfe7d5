//! The first process of a command's tree: prepares, confines, starts the command, reaps,
//! tells the command's own status, and ends; the kernel then ends what is left.
//!
//! It has no signal handlers: the command may signal PID 1, and a handler would let it end
//! its own tree early. The default ones the kernel does not deliver to a PID 1. It is not
//! dumpable, so nothing of it can be read through /proc.

pub(crate) mod exec;
mod orphans;

use std::{
    ffi::CString,
    fs::File,
    io::Write,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, WaitId, WaitIdOptions, getpid, setsid, waitid},
};

use crate::{
    cgroup::Held,
    fault::{Fault, Step},
    identity, landlock,
    mounts::command::{self, Pin},
    plan::{Isolation, Plan},
    report::Report,
    seccomp::Filter,
    sys::{self, Side},
};

/// A command, as the launcher got it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: PathBuf,
    pub(crate) stdio: [OwnedFd; 3],
    /// Name of the slave that `stdio` is.
    pub(crate) terminal: Option<PathBuf>,
    /// Takes [`Report`]s.
    pub(crate) status: OwnedFd,
    /// A byte asks for the end of the tree; closed, it ends at once.
    pub(crate) control: OwnedFd,
}

/// What the launcher has made for all commands.
pub(crate) struct Confinement<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) rules: OwnedFd,
    pub(crate) filter: &'a Filter,
    pub(crate) pins: &'a [Pin],
    /// Root without a user namespace: the user is changed as late as here.
    pub(crate) change_user: bool,
    pub(crate) held: Held,
}

/// Runs as the first process of the new tree and never returns.
pub(crate) fn run(job: Job, confinement: Confinement<'_>) -> ! {
    let keep = [
        job.status.as_raw_fd(),
        job.control.as_raw_fd(),
        job.stdio[0].as_raw_fd(),
        job.stdio[1].as_raw_fd(),
        job.stdio[2].as_raw_fd(),
        confinement.rules.as_raw_fd(),
    ];
    sys::close_all_but(&keep);
    let mut status = match job.status.try_clone() {
        Ok(status) => File::from(status),
        Err(_) => sys::exit_now(1),
    };
    let full = confinement.plan.isolation == Isolation::Full;
    match begin(&job, confinement) {
        Ok(Ok((pid, signals))) => {
            tell(&mut status, Report::Started);
            let code = watch(&job, pid, &signals);
            if !full {
                // Before the status: who sees it may rely on the tree being gone.
                orphans::end_all();
            }
            if let Some(code) = code {
                tell(&mut status, Report::Ended(code));
            }
            sys::exit_now(0)
        }
        Ok(Err(errno)) => tell(&mut status, Report::ExecFailed(errno)),
        Err(fault) => {
            // In one piece, so that a reader of the record finds the text, too.
            let mut text = Report::SetupFailed(fault.errno).to_bytes().to_vec();
            text.extend(fault.step.bytes().take(1000));
            let _ = status.write_all(&text);
        }
    }
    sys::exit_now(1)
}

fn tell(status: &mut File, report: Report) {
    let _ = status.write_all(&report.to_bytes());
}

type Begun = Result<(i32, OwnedFd), i32>;

/// Everything up to the exec, whose error is the inner one.
fn begin(job: &Job, confinement: Confinement<'_>) -> Result<Begun, Fault> {
    let plan = confinement.plan;
    let full = plan.isolation == Isolation::Full;
    let signals = sys::pending_signals().step("watching for children")?;
    let _ = setsid();
    let slave = job.stdio[0].as_fd();
    let terminal = job.terminal.as_deref();
    if full {
        let terminal = terminal.map(|path| (path, slave));
        command::prepare(&plan.root, confinement.pins, terminal, plan.uid == 0)?;
    } else {
        rustix::process::set_child_subreaper(Some(getpid()))
            .step("becoming the reaper of the tree")?;
    }
    rustix::process::chdir(&job.cwd).step("entering the working folder")?;
    plan.limits
        .apply(confinement.held, full && !confinement.change_user)?;
    if confinement.change_user {
        identity::become_user(plan.uid, plan.gid)?;
        identity::hide()?;
    }
    identity::drop_capabilities()?;
    // Without a PID namespace the end of this process is not the end of its tree, which
    // it has to see to itself.
    let farewell = if full { libc::SIGKILL } else { libc::SIGTERM };
    sys::prctl(libc::PR_SET_PDEATHSIG, farewell as libc::c_ulong)
        .step("tying the tree to its launcher")?;
    let path = terminal.map(|path| {
        if full {
            Path::new("/dev/console")
        } else {
            path
        }
    });
    let path = path.and_then(|path| CString::new(path.as_os_str().as_encoded_bytes()).ok());
    let program = |env: &[CString]| {
        let name = job.argv.first().map(CString::as_c_str).unwrap_or_default();
        exec::find(name, env)
    };
    if full {
        landlock::enforce(&confinement.rules)?;
        confinement.filter.install()?;
        let program = match program(&job.env) {
            Ok(program) => program,
            Err(error) => return Ok(Err(error.raw_os_error())),
        };
        let start = start(job, &program, path.as_deref());
        return Ok(exec::spawn(&start)
            .map(|pid| (pid, signals))
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)));
    }
    fork_confined(job, path, &confinement, program).map(|begun| begun.map(|pid| (pid, signals)))
}

fn start<'a>(
    job: &'a Job,
    program: &'a CString,
    terminal: Option<&'a std::ffi::CStr>,
) -> exec::Start<'a> {
    exec::Start {
        program,
        argv: &job.argv,
        env: &job.env,
        stdio: [
            job.stdio[0].as_fd(),
            job.stdio[1].as_fd(),
            job.stdio[2].as_fd(),
        ],
        terminal,
    }
}

/// A fork that confines itself and becomes the command; how far it came arrives over a
/// pipe that a successful exec closes.
fn fork_confined(
    job: &Job,
    terminal: Option<CString>,
    confinement: &Confinement<'_>,
    program: impl Fn(&[CString]) -> Result<CString, rustix::io::Errno>,
) -> Result<Result<i32, i32>, Fault> {
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("making a pipe")?;
    match sys::clone3(0).step("starting a process")? {
        Side::Child => {
            let work = || -> Result<i32, Fault> {
                landlock::enforce(&confinement.rules)?;
                confinement.filter.install()?;
                let program = match program(&job.env) {
                    Ok(program) => program,
                    Err(error) => return Ok(error.raw_os_error()),
                };
                let error = exec::become_command(&start(job, &program, terminal.as_deref()));
                Ok(error.raw_os_error().unwrap_or(libc::EIO))
            };
            let line = match work() {
                Ok(errno) => format!("{errno}"),
                Err(fault) => fault.to_line(),
            };
            let _ = File::from(writer).write_all(line.as_bytes());
            sys::exit_now(127)
        }
        Side::Parent { pid, .. } => {
            drop(writer);
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut File::from(reader), &mut text);
            if text.is_empty() {
                return Ok(Ok(pid.as_raw_pid()));
            }
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            match text.parse() {
                Ok(errno) => Ok(Err(errno)),
                Err(_) => Err(Fault::from_line(&text)),
            }
        }
    }
}

/// Reaps until the command's own process has ended: its raw status. `None` when the tree
/// is to end without one.
fn watch(job: &Job, pid: i32, signals: &OwnedFd) -> Option<i32> {
    loop {
        loop {
            match sys::reap_any() {
                Ok(Some((ended, status))) if ended == pid => return Some(status),
                Ok(Some(_)) => {}
                _ => break,
            }
        }
        let mut events = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&job.control, PollFlags::IN),
        ];
        if poll(&mut events, None).is_err() {
            continue;
        }
        let control = events[1].revents();
        let mut buffer = [0; 256];
        while let Some(signal) = sys::next_signal(signals) {
            // In a PID namespace anyone inside could have sent it.
            if signal == libc::SIGTERM && getpid() != Pid::INIT {
                return None;
            }
        }
        if control.contains(PollFlags::IN) {
            match rustix::io::read(&job.control, &mut buffer) {
                Ok(count) if buffer[..count].contains(&b'k') => return None,
                Ok(count) if count > 0 => {
                    end_politely();
                    continue;
                }
                _ => return None,
            }
        }
        if control.intersects(PollFlags::HUP | PollFlags::ERR) {
            return None;
        }
    }
}

/// SIGTERM to all, and SIGCONT, since a stopped process gets no other signal.
fn end_politely() {
    if getpid() == Pid::INIT {
        sys::signal_all(libc::SIGTERM);
        sys::signal_all(libc::SIGCONT);
    } else {
        orphans::signal_all(rustix::process::Signal::TERM);
        orphans::signal_all(rustix::process::Signal::CONT);
    }
}
