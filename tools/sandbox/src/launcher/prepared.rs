//! What is made once for a workspace, in the launcher or in a one-shot run, and the one
//! way a command is started from it.

use std::{
    ffi::CString,
    fs,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::process::{Pid, geteuid};

use crate::{
    cgroup::Held,
    fault::{Fault, Step},
    identity,
    init::{self, Confinement, Job},
    landlock::{self, Grant},
    mounts::{self, identity as folder_identity},
    network,
    plan::{HOME, Isolation, Plan, SYSTEM},
    protect::{self, Scan, Watch},
    seccomp::{Filter, Mode},
    sys::{self, Side},
};

/// Namespaces, rules and filter of one workspace.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    rules: OwnedFd,
    filter: Filter,
    change_user: bool,
    held: Held,
    pub(crate) scan: Scan,
}

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    watch: Watch,
}

impl Running {
    /// After the tree is gone: what of the protected had to be put back.
    pub(crate) fn settle(self) -> Vec<String> {
        self.watch.settle()
    }
}

impl Prepared {
    /// Turns this process, which must have one thread, into the workspace's launcher.
    /// `held`: what a control group limits.
    pub(crate) fn new(plan: Plan, held: Held) -> Result<Self, Fault> {
        plan.check()?;
        sys::default_signals();
        let full = plan.isolation == Isolation::Full;
        let mut change_user = false;
        if full {
            change_user = enter_namespaces(&plan)?;
            network::loopback_up()?;
            mounts::build(&plan)?;
        } else {
            identity::become_user(plan.uid, plan.gid)?;
            if let Some(scratch) = &plan.scratch {
                fs::create_dir_all(scratch).step("making the scratch folder")?;
                mounts::make_scratch_parts(&plan, scratch)?;
            }
        }
        identity::hide()?;
        let forbidden = identity::forbid_new_capabilities();
        if full {
            forbidden?;
        }
        // Else it takes capabilities that may be missing, and no_new_privs does the same.
        let rules = landlock::rules(&grants(&plan), full)?;
        let filter = Filter::new(Mode {
            debug: plan.debug,
            no_namespaces: !full,
        });
        let scan = Scan::new(&plan.root);
        Ok(Self {
            held,
            plan,
            rules,
            filter,
            change_user,
            scan,
        })
    }

    /// Starts a command. In the child this does not return.
    pub(crate) fn start(&self, job: Job) -> Result<Running, Fault> {
        let root = protect::open_root(&self.plan.root).step("opening the root")?;
        if let Some(id) = self.plan.root_id
            && folder_identity(&self.plan.root).ok() != Some(id)
        {
            return Err(Fault::plain("the root is no longer the folder it was"));
        }
        let watch = Watch::start(root, &self.scan.repositories(), &self.plan.protect);
        let flags = match self.plan.isolation {
            Isolation::Full => libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC,
            Isolation::Partial => 0,
        };
        let rules = match (&job.terminal, self.plan.isolation) {
            (Some(terminal), Isolation::Partial) => {
                let mut grants = grants(&self.plan);
                grants.push((terminal.clone(), Grant::Devices));
                landlock::rules(&grants, false)?
            }
            _ => self.rules.try_clone().step("duplicating the rules")?,
        };
        match sys::clone3(flags as u64).step("starting the first process of the tree")? {
            Side::Child => init::run(
                job,
                Confinement {
                    plan: &self.plan,
                    rules,
                    filter: &self.filter,
                    pins: watch.pins(),
                    change_user: self.change_user,
                    held: self.held,
                },
            ),
            Side::Parent { pid, pidfd } => Ok(Running { pid, pidfd, watch }),
        }
    }

    /// The plan's environment and the sandbox's own places, with a command's entries over
    /// them.
    pub(crate) fn environment(&self, own: Vec<CString>) -> Vec<CString> {
        let name = |entry: &CString| {
            let bytes = entry.as_bytes();
            let end = bytes.iter().position(|byte| *byte == b'=');
            bytes[..end.unwrap_or(bytes.len())].to_vec()
        };
        let taken: Vec<_> = own.iter().map(name).collect();
        let places = self.plan.own_env().into_iter().filter_map(|(name, path)| {
            CString::new([name.as_bytes(), b"=", path.as_os_str().as_encoded_bytes()].concat()).ok()
        });
        let places: Vec<_> = places.collect();
        let placed: Vec<_> = places.iter().map(name).collect();
        let base = self
            .plan
            .env
            .iter()
            .filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok())
            .filter(|entry| !placed.contains(&name(entry)));
        let mut all: Vec<_> = places
            .iter()
            .cloned()
            .chain(base)
            .filter(|entry| !taken.contains(&name(entry)))
            .collect();
        all.extend(own);
        all
    }

    /// A working folder of the plan's root.
    pub(crate) fn folder(&self, relative: &Path) -> PathBuf {
        if relative.as_os_str().is_empty() {
            self.plan.root.clone()
        } else {
            self.plan.root.join(relative)
        }
    }
}

/// Whether the user is still to be changed, by each command's init.
fn enter_namespaces(plan: &Plan) -> Result<bool, Fault> {
    let others = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWCGROUP;
    if geteuid().is_root() && !user_namespaces_work(plan) {
        // Real root can do without a user namespace, where those are switched off.
        sys::unshare(others).step("making namespaces")?;
        return Ok(true);
    }
    identity::become_user(plan.uid, plan.gid)?;
    identity::enter_user_namespace()?;
    sys::unshare(others).step("making namespaces")?;
    Ok(false)
}

/// Tries in a child: there is no way back from having become another user.
fn user_namespaces_work(plan: &Plan) -> bool {
    let status = match sys::clone3(0) {
        Ok(Side::Child) => {
            let tried = identity::become_user(plan.uid, plan.gid)
                .and_then(|()| identity::enter_user_namespace())
                .and_then(|()| sys::unshare(libc::CLONE_NEWNS).step("trying"))
                // A folder in a place that only root can reach is for root to mount.
                .and_then(|()| fs::read_dir(&plan.root).step("trying"));
            sys::exit_now(i32::from(tried.is_err()))
        }
        Ok(Side::Parent { pid, .. }) => rustix::process::waitid(
            rustix::process::WaitId::Pid(pid),
            rustix::process::WaitIdOptions::EXITED,
        ),
        Err(_) => return false,
    };
    matches!(status, Ok(Some(status)) if status.exit_status() == Some(0))
}

fn grants(plan: &Plan) -> Vec<(PathBuf, Grant)> {
    let mut grants = Vec::new();
    let writable = plan.writable.iter().chain([&plan.root]);
    grants.extend(writable.map(|path| (path.clone(), Grant::Write)));
    if plan.isolation == Isolation::Full {
        grants.push((PathBuf::from("/"), Grant::Read));
        grants.push((PathBuf::from("/dev"), Grant::Devices));
        for own in ["/tmp", "/dev/shm", HOME] {
            grants.push((PathBuf::from(own), Grant::Write));
        }
        return grants;
    }
    let hidden = plan.hidden_paths();
    let system = SYSTEM
        .iter()
        .map(PathBuf::from)
        .chain([PathBuf::from("/proc")]);
    for path in system.chain(plan.readable_paths()) {
        readable_parts(&path, &hidden, &mut grants);
    }
    for device in ["null", "zero", "full", "random", "urandom", "tty", "ptmx"] {
        grants.push((Path::new("/dev").join(device), Grant::Devices));
    }
    for part in plan
        .scratch
        .iter()
        .flat_map(|path| [path.join("home"), path.join("tmp"), path.join("shm")])
    {
        grants.push((part, Grant::Write));
    }
    grants.retain(|(path, grant)| *grant == Grant::Write || path.exists());
    grants
}

/// A path, or what it holds but for the hidden: Landlock can only grant.
fn readable_parts(path: &Path, hidden: &[PathBuf], grants: &mut Vec<(PathBuf, Grant)>) {
    if hidden.iter().any(|hidden| path.starts_with(hidden)) {
        return;
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(path)) {
        // A link's target is granted by its own name.
        if fs::File::open(path).is_ok() {
            grants.push((path.to_owned(), Grant::Read));
        }
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        readable_parts(&entry.path(), hidden, grants);
    }
}

/// The three standard descriptors of this process, as a command's.
pub(crate) fn own_stdio() -> Result<[OwnedFd; 3], Fault> {
    let copy =
        |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().step("duplicating a descriptor");
    Ok([
        copy(std::io::stdin().as_fd())?,
        copy(std::io::stdout().as_fd())?,
        copy(std::io::stderr().as_fd())?,
    ])
}
