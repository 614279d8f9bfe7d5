//! From an argument vector to a started leader and our ends of its streams.

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    time::Duration,
};

use codespace_router::{Code, ToolError, WorkspaceId};
use rustix::{
    fs::{Access, AtFlags, FileType, Mode, OFlags, accessat, fstat, open, statat},
    io::Errno,
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};

use super::{spawn, terminal, tree::Leader};
use crate::ExecSpec;

// Room for a writer to go on while we copy. The kernel takes the memory as it fills.
const PIPE_BYTES: usize = 256 * 1024;

/// Where and how a workspace's commands run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Whose command it is.
    pub workspace: WorkspaceId,
    /// Its root, the command's working folder.
    pub root: PathBuf,
    /// The whole environment; its `PATH` finds the program.
    pub env: Vec<(OsString, OsString)>,
    /// When the tree is ended.
    pub time_limit: Duration,
}

pub(super) struct Launched {
    pub(super) leader: Leader,
    pub(super) ends: Ends,
}

/// Our ends of a command's streams.
pub(super) enum Ends {
    Pipes { stdin: OwnedFd, output: OwnedFd },
    // The slave is to be held until the tree is gone, see `terminal`.
    Terminal { master: OwnedFd, slave: OwnedFd },
}

/// Starts the command.
///
/// # Errors
/// `PROCESS_SPAWN_FAILED`, naming the workspace when its root is to blame and the
/// program when that is. Nothing runs then.
pub(super) fn launch(home: &Launch, spec: &ExecSpec) -> Result<Launched, ToolError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = open(&home.root, flags, Mode::empty()).map_err(|error| {
        failed(format!("the root of workspace {} cannot be entered ({}); nothing was started. Its operator has to put it back", home.workspace, reason(error.into())))
    })?;
    let argv = spec
        .command
        .iter()
        .map(|word| CString::new(word.as_str()))
        .collect::<Result<Vec<_>, _>>();
    let argv = argv.map_err(|_| {
        ToolError::new(
            Code::InvalidCommand,
            "an argument holds a NUL; nothing was started",
        )
    })?;
    let Some(name) = argv.first().filter(|name| !name.is_empty()) else {
        return Err(ToolError::new(
            Code::InvalidCommand,
            "the command has no program; nothing was started",
        ));
    };
    let mut env: Vec<CString> = home
        .env
        .iter()
        .filter_map(|(key, value)| {
            CString::new([key.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        })
        .collect();
    // The operator's own word on the terminal type is left alone.
    if spec.tty && !home.env.iter().any(|(key, _)| key == "TERM") {
        env.extend(CString::new(format!("TERM={}", terminal::TERM)));
    }
    let path = home
        .env
        .iter()
        .find(|(key, _)| key == "PATH")
        .map(|(_, value)| value.as_os_str());
    let program = find(&root, name, path).map_err(|error| blame(&spec.command[0], error))?;
    let start = |streams| spawn::Start {
        program: &program,
        argv: &argv,
        env: &env,
        cwd: root.as_fd(),
        streams,
    };
    let (leader, ends) = if spec.tty {
        let pair = terminal::open_pair().map_err(no_terminal)?;
        let start = start(spawn::Streams::Terminal(&pair.name));
        let held = vec![OsStr::from_bytes(pair.name.as_bytes()).to_owned()];
        let leader = Leader::start(held, || spawn::spawn(&start));
        let (master, slave) = (pair.master, pair.slave);
        (leader, Ends::Terminal { master, slave })
    } else {
        let (child_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC).map_err(no_pipe)?;
        let (output, child_output) = pipe_with(PipeFlags::CLOEXEC).map_err(no_pipe)?;
        let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
        let held = [&stdin, &output]
            .into_iter()
            .map(|pipe| Ok(format!("pipe:[{}]", fstat(pipe)?.st_ino).into()))
            .collect::<Result<_, _>>()
            .map_err(no_pipe)?;
        let start = start(spawn::Streams::Pipes {
            stdin: child_stdin.as_fd(),
            output: child_output.as_fd(),
        });
        let leader = Leader::start(held, || spawn::spawn(&start));
        (leader, Ends::Pipes { stdin, output })
    };
    let leader = leader.map_err(|error| blame(&spec.command[0], error))?;
    Ok(Launched { leader, ends })
}

fn failed(message: String) -> ToolError {
    ToolError::new(Code::ProcessSpawnFailed, message)
}

fn no_pipe(error: Errno) -> ToolError {
    failed(format!(
        "the server could not make a pipe ({}); nothing was started",
        reason(error.into())
    ))
}

fn no_terminal(error: Errno) -> ToolError {
    failed(format!(
        "the server could not make a terminal ({}); nothing was started. Try again, or leave tty out",
        reason(error.into())
    ))
}

fn blame(program: &str, error: io::Error) -> ToolError {
    let hint = match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => "no such program, or its interpreter is missing",
        Some(Errno::ACCESS) => "it is not executable",
        Some(Errno::NOEXEC) => "it is no program; a script needs a #! line",
        Some(Errno::TOOBIG) => "its arguments and environment are too long",
        _ => &reason(error),
    };
    failed(format!(
        "{program:?} could not be started: {hint}. Nothing was started"
    ))
}

fn reason(error: io::Error) -> String {
    let text = error.to_string();
    // std adds " (os error N)", which tells a client nothing.
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The file to execute: as execvp(3) finds it, with the command's own `PATH` and
/// working folder.
fn find(root: &OwnedFd, name: &CString, path: Option<&OsStr>) -> io::Result<CString> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.clone());
    }
    let mut fault = Errno::NOENT;
    for folder in path
        .unwrap_or(OsStr::new("/bin:/usr/bin"))
        .as_bytes()
        .split(|byte| *byte == b':')
    {
        let folder = if folder.is_empty() {
            b".".as_slice()
        } else {
            folder
        };
        let Ok(candidate) = CString::new([folder, b"/", name.as_bytes()].concat()) else {
            continue;
        };
        match accessat(root, &candidate, Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => {
                let stat = statat(root, &candidate, AtFlags::empty());
                if stat.is_ok_and(|stat| {
                    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                }) {
                    return Ok(candidate);
                }
                fault = Errno::ACCESS;
            }
            Err(Errno::ACCESS) => fault = Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(fault.into())
}
