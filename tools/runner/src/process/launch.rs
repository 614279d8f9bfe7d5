//! From an argument vector to a started leader and our ends of its streams.

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use codespace_router::{Code, ToolError, WorkspaceId};
use codespace_sandbox::{Command, SpawnError};
use rustix::{
    fs::{Access, AtFlags, FileType, Mode, OFlags, accessat, fstat, open, statat},
    io::Errno,
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};

use super::{
    bare::Leader,
    confined::{Confinement, Verdict},
    spawn, terminal,
    tree::Tree,
};
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
    /// What keeps them in; `None` to run with the server's own rights.
    pub confinement: Option<Arc<Confinement>>,
}

pub(super) struct Launched {
    pub(super) tree: Tree,
    pub(super) ends: Ends,
    /// What is around it, as metrics name it.
    pub(super) sandbox: &'static str,
}

/// Our ends of a command's streams.
pub(super) enum Ends {
    Pipes { stdin: OwnedFd, output: OwnedFd },
    // The slave is to be held until the tree is gone, see `terminal`.
    Terminal { master: OwnedFd, slave: OwnedFd },
}

/// Starts the command. With a sandbox it blocks for as long as the launcher takes.
///
/// # Errors
/// `PROCESS_SPAWN_FAILED`, naming the workspace when its root is to blame and the
/// program when that is. Nothing runs then.
pub(super) fn launch(home: &Launch, spec: &ExecSpec) -> Result<Launched, ToolError> {
    let words = Words::new(home, spec)?;
    let Some(confinement) = &home.confinement else {
        return bare(home, spec, &words);
    };
    match confinement.verdict() {
        Verdict::Full => confined(home, spec, &words, confinement, true),
        Verdict::Partial => confined(home, spec, &words, confinement, false),
        Verdict::None => bare(home, spec, &words),
        Verdict::Refused(why) => Err(failed(format!("{why}. Nothing was started"))),
    }
}

/// What becomes of the argument vector and the environment.
struct Words {
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Words {
    fn new(home: &Launch, spec: &ExecSpec) -> Result<Self, ToolError> {
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
        if argv.first().is_none_or(|name| name.is_empty()) {
            return Err(ToolError::new(
                Code::InvalidCommand,
                "the command has no program; nothing was started",
            ));
        }
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
        Ok(Self { argv, env })
    }
}

/// A pipe for stdin and one for the merged output.
struct Pipes {
    child_stdin: OwnedFd,
    stdin: OwnedFd,
    child_output: OwnedFd,
    output: OwnedFd,
}

impl Pipes {
    fn new() -> Result<Self, ToolError> {
        let (child_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC).map_err(no_pipe)?;
        let (output, child_output) = pipe_with(PipeFlags::CLOEXEC).map_err(no_pipe)?;
        let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
        Ok(Self {
            child_stdin,
            stdin,
            child_output,
            output,
        })
    }
}

fn bare(home: &Launch, spec: &ExecSpec, words: &Words) -> Result<Launched, ToolError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root =
        open(&home.root, flags, Mode::empty()).map_err(|error| no_root(home, error.into()))?;
    let path = home
        .env
        .iter()
        .find(|(key, _)| key == "PATH")
        .map(|(_, value)| value.as_os_str());
    let program =
        find(&root, &words.argv[0], path).map_err(|error| blame(&spec.command[0], error))?;
    let start = |streams| spawn::Start {
        program: &program,
        argv: &words.argv,
        env: &words.env,
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
        let pipes = Pipes::new()?;
        let held = [&pipes.stdin, &pipes.output]
            .into_iter()
            .map(|pipe| Ok(format!("pipe:[{}]", fstat(pipe)?.st_ino).into()))
            .collect::<Result<_, _>>()
            .map_err(no_pipe)?;
        let start = start(spawn::Streams::Pipes {
            stdin: pipes.child_stdin.as_fd(),
            output: pipes.child_output.as_fd(),
        });
        let leader = Leader::start(held, || spawn::spawn(&start));
        let (stdin, output) = (pipes.stdin, pipes.output);
        (leader, Ends::Pipes { stdin, output })
    };
    let leader = leader.map_err(|error| blame(&spec.command[0], error))?;
    Ok(Launched {
        tree: Tree::Bare(leader),
        ends,
        sandbox: "none",
    })
}

fn confined(
    home: &Launch,
    spec: &ExecSpec,
    words: &Words,
    confinement: &Confinement,
    full: bool,
) -> Result<Launched, ToolError> {
    let spawn = |stdio, terminal: Option<&Path>| {
        let command = Command {
            argv: &words.argv,
            env: &words.env,
            cwd: Path::new(""),
            stdio,
            terminal,
        };
        confinement
            .spawn(&command, full)
            .map_err(|error| match error {
                SpawnError::Exec(error) => blame(&spec.command[0], error),
                SpawnError::Root => no_root(home, io::ErrorKind::NotFound.into()),
                error @ (SpawnError::Setup(_) | SpawnError::Launcher(_)) => failed(format!(
                    "{error}. Nothing was started; `codespace check` tells what this machine can enforce"
                )),
            })
    };
    let (tree, ends) = if spec.tty {
        let pair = terminal::open_pair().map_err(no_terminal)?;
        let name = Path::new(OsStr::from_bytes(pair.name.as_bytes()));
        let tree = spawn([pair.slave.as_fd(); 3], Some(name))?;
        let (master, slave) = (pair.master, pair.slave);
        (tree, Ends::Terminal { master, slave })
    } else {
        let pipes = Pipes::new()?;
        let output = pipes.child_output.as_fd();
        let tree = spawn([pipes.child_stdin.as_fd(), output, output], None)?;
        let (stdin, output) = (pipes.stdin, pipes.output);
        (tree, Ends::Pipes { stdin, output })
    };
    Ok(Launched {
        tree: Tree::Confined(tree),
        ends,
        sandbox: if full { "linux-sandbox" } else { "partial" },
    })
}

fn no_root(home: &Launch, error: io::Error) -> ToolError {
    failed(format!(
        "the root of workspace {} cannot be entered ({}); nothing was started. Its operator has to put it back",
        home.workspace,
        reason(error)
    ))
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
