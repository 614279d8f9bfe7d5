//! A workspace, something outside it, and ways to run a command in the sandbox.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations
)]

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    io::Read,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::{MetadataExt, PermissionsExt, chown},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use codespace_sandbox::{Isolation, Launcher, Plan, SpawnError, Spawned};
use rustix::{
    event::{PollFd, PollFlags, poll},
    pipe::{PipeFlags, pipe_with},
};

pub const NOBODY: u32 = 65534;

/// Whose sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The user of the tests.
    Me,
    /// Root's, for a workspace of somebody else.
    Owner,
    /// An ordinary user's.
    User,
}

/// Everyone this test process can be.
pub fn everyone() -> Vec<Who> {
    if rustix::process::geteuid().is_root() {
        vec![Who::Me, Who::Owner, Who::User]
    } else {
        vec![Who::Me]
    }
}

/// The helper, where every user can execute it.
pub fn helper() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("codespace-helper-{}", std::process::id()));
        // Those of earlier runs; nothing runs at the end of a test program.
        for entry in fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let dead = |pid: &str| !Path::new("/proc").join(pid).exists();
            if name.strip_prefix("codespace-helper-").is_some_and(dead) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let copy = folder.join("helper");
        fs::copy(env!("CARGO_BIN_EXE_codespace-sandbox-helper"), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        copy
    })
}

pub struct Place {
    pub who: Who,
    folder: tempfile::TempDir,
    pub root: PathBuf,
    pub outside: PathBuf,
    pub plan: Plan,
}

impl Place {
    pub fn new(who: Who) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (root, outside) = (folder.path().join("work"), folder.path().join("outside"));
        for path in [&root, &outside] {
            fs::create_dir(path).unwrap();
        }
        fs::write(outside.join("secret"), "the secret\n").unwrap();
        fs::create_dir(outside.join("folder")).unwrap();
        let mut this = Self {
            who,
            folder,
            plan: Plan::for_root(&root).unwrap(),
            root,
            outside,
        };
        this.give(&this.root.clone());
        // What the command's user could touch, were it not for the sandbox.
        for path in ["", "secret", "folder"] {
            this.give(&this.outside.join(path));
        }
        let (uid, gid) = this.ids();
        (this.plan.uid, this.plan.gid) = (uid, gid);
        let path = "/usr/local/bin:/usr/bin:/bin";
        this.plan.env = [("PATH", path), ("LANG", "C.UTF-8")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        this
    }

    pub fn partial(who: Who) -> Self {
        let mut this = Self::new(who);
        let scratch = this.folder.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        this.give(&scratch);
        this.plan.scratch = Some(scratch);
        this.plan.isolation = Isolation::Partial;
        this
    }

    pub fn ids(&self) -> (u32, u32) {
        match self.who {
            Who::Me => (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            _ => (NOBODY, NOBODY),
        }
    }

    pub fn give(&self, path: &Path) {
        let (uid, gid) = self.ids();
        chown(path, Some(uid), Some(gid)).unwrap();
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.root.join(name);
        let mut parent = self.root.clone();
        for part in Path::new(name).parent().unwrap().components() {
            parent.push(part);
            if !parent.exists() {
                fs::create_dir(&parent).unwrap();
                self.give(&parent);
            }
        }
        fs::write(&path, text).unwrap();
        self.give(&path);
        path
    }

    /// Runs a command by `sandbox run`.
    pub fn run(&self, command: &[&str]) -> Output {
        let plan = self.folder.path().join("plan.json");
        fs::write(&plan, serde_json::to_string(&self.plan).unwrap()).unwrap();
        let mut helper = Command::new(helper());
        helper
            .args(["sandbox", "run", "--plan"])
            .arg(&plan)
            .arg("--");
        helper
            .args(command)
            .env_clear()
            .env("SECRET_OF_THE_SERVER", "1");
        helper.stdin(Stdio::null());
        if self.who == Who::User {
            helper.uid(NOBODY).gid(NOBODY);
        }
        helper.output().unwrap()
    }

    pub fn sh(&self, script: &str) -> Output {
        self.run(&["sh", "-c", script])
    }

    pub fn python(&self, script: &str) -> Output {
        self.write("script.py", script);
        self.run(&["/usr/bin/python3", "script.py"])
    }

    /// Every name, mode, owner, time and content outside.
    pub fn outside_state(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut next = vec![self.outside.clone()];
        while let Some(path) = next.pop() {
            let now = fs::symlink_metadata(&path).unwrap();
            let content = if now.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let text = format!(
                "{:o} {}:{} {} {} {} {content:?}",
                now.mode(),
                now.uid(),
                now.gid(),
                now.mtime(),
                now.mtime_nsec(),
                now.nlink()
            );
            if now.is_dir() {
                next.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
            found.insert(path, text);
        }
        found
    }
}

pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[track_caller]
pub fn succeeds(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{:?}\n{}",
        output.status,
        text(output)
    );
    text(output)
}

/// A command started through a launcher, with its output.
pub struct Started {
    pub spawned: Spawned,
    pub output: OwnedFd,
    pub input: OwnedFd,
}

pub fn start(launcher: &Launcher, argv: &[&str], env: &[&str]) -> Result<Started, SpawnError> {
    let strings = |list: &[&str]| -> Vec<CString> {
        list.iter()
            .map(|text| CString::new(*text).unwrap())
            .collect()
    };
    let (argv, env) = (strings(argv), strings(env));
    let (stdin, input) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (output, stdout) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let spawned = launcher.spawn(&codespace_sandbox::Command {
        argv: &argv,
        env: &env,
        cwd: Path::new(""),
        stdio: [stdin.as_fd(), stdout.as_fd(), stdout.as_fd()],
        terminal: None,
    })?;
    Ok(Started {
        spawned,
        output,
        input,
    })
}

impl Started {
    /// Waits for the tree's end: output and raw status.
    pub fn wait(self) -> (String, Option<i32>, codespace_sandbox::Ended) {
        drop(self.input);
        let mut text = Vec::new();
        fs::File::from(self.output).read_to_end(&mut text).unwrap();
        wait_readable(self.spawned.pidfd());
        let status = self.spawned.wait_status();
        let ended = self.spawned.finish().unwrap();
        (String::from_utf8_lossy(&text).into_owned(), status, ended)
    }
}

pub fn wait_readable(fd: impl AsFd) {
    let fd = fd.as_fd();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
}
