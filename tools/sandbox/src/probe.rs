//! Finding out what works by doing it, each in a child that is thrown away.
//!
//! Version numbers and sysctls say little: containers, filters and security modules refuse
//! what a kernel has. They are read only to tell the operator why.

use std::{
    ffi::CStr,
    fs::{self, File},
    io::{Read, Write},
};

use rustix::{
    fs::CWD,
    mount::{MountFlags, MountPropagationFlags, OpenTreeFlags, mount, mount_change, open_tree},
    pipe::{PipeFlags, pipe_with},
    process::{WaitId, WaitIdOptions, geteuid, waitid},
};

use crate::{
    cgroup::Cgroup,
    fault::{Fault, Step},
    features::{Features, Missing, TreeKill},
    identity, landlock, network,
    seccomp::{self, Filter, Mode},
    sys::{self, Side},
};

/// Tries everything for the given user (`None`: this one). Only in a process of one thread.
pub(crate) fn probe(run_as: Option<(u32, u32)>) -> Features {
    let mut missing = Vec::new();
    let mut note = |feature: &str, result: Result<(), Fault>, remedy: &dyn Fn() -> String| {
        let found = result.is_ok();
        if let Err(fault) = result {
            missing.push(Missing {
                feature: feature.to_owned(),
                why: fault.to_string(),
                remedy: remedy(),
            });
        }
        found
    };
    let landlock_abi = landlock::abi();
    note(
        "landlock_abi",
        (landlock_abi > 0)
            .then_some(())
            .ok_or_else(|| Fault::plain("the kernel has no Landlock, or it is not switched on")),
        &|| {
            "Needs Linux 5.13 or later with `landlock` in the lsm= list of the kernel command line"
                .to_owned()
        },
    );
    let seccomp = note(
        "seccomp",
        in_child(0, run_as, Base::User, try_filter),
        &|| "Needs a kernel with CONFIG_SECCOMP_FILTER".to_owned(),
    );
    let user_ns = note(
        "user_ns",
        in_child(0, run_as, Base::Namespace, || Ok(())),
        &namespace_remedy,
    );
    // Root makes the other namespaces without a user namespace, too.
    let base = if user_ns {
        Base::Namespace
    } else {
        Base::Privileged
    };
    let new = |flag: libc::c_int, what: &'static str| {
        move || sys::unshare(flag).step(format!("making {what} namespace"))
    };
    let mount_ns = note(
        "mount_ns",
        in_child(0, run_as, base, || {
            new(libc::CLONE_NEWNS, "a mount")()?;
            try_mounts()
        }),
        &|| mount_remedy(user_ns),
    );
    let pid_ns = note(
        "pid_ns",
        in_child(0, run_as, base, || {
            new(libc::CLONE_NEWPID, "a PID")()?;
            in_child(0, None, Base::User, || Ok(()))
        }),
        &|| mount_remedy(user_ns),
    );
    let proc = pid_ns
        && mount_ns
        && note(
            "proc",
            in_child(0, run_as, base, || {
                new(libc::CLONE_NEWNS | libc::CLONE_NEWPID, "a mount and a PID")()?;
                in_child(0, None, Base::User, try_proc)
            }),
            &|| {
                "The visible /proc is partly covered, as in most containers: run the container with an unmasked /proc (systempaths=unconfined), or without one. Until then commands have no /proc"
                    .to_owned()
            },
        );
    let ipc_ns = note(
        "ipc_ns",
        in_child(0, run_as, base, new(libc::CLONE_NEWIPC, "an IPC")),
        &|| mount_remedy(user_ns),
    );
    let net_ns = note(
        "net_ns",
        in_child(0, run_as, base, || {
            new(libc::CLONE_NEWNET, "a network")()?;
            network::loopback_up()
        }),
        &|| mount_remedy(user_ns),
    );
    let uid = run_as.map_or_else(|| geteuid().as_raw(), |(uid, _)| uid);
    let cgroup = Cgroup::try_out();
    // An ordinary user's task limit is RLIMIT_NPROC; root does not feel that one.
    let tasks = cgroup.tasks || (uid != 0 && user_ns);
    note(
        "cgroup_tasks",
        if tasks {
            Ok(())
        } else {
            Err(cgroup.fault("pids"))
        },
        &cgroup_remedy,
    );
    note(
        "cgroup_memory",
        if cgroup.memory {
            Ok(())
        } else {
            Err(cgroup.fault("memory"))
        },
        &cgroup_remedy,
    );
    Features {
        landlock_abi,
        seccomp,
        user_ns,
        mount_ns,
        pid_ns,
        proc,
        net_ns,
        ipc_ns,
        private_tmp: mount_ns,
        protect: mount_ns,
        tree_kill: if pid_ns || cgroup.kill {
            TreeKill::Certain
        } else {
            TreeKill::BestEffort
        },
        cgroup_tasks: tasks,
        cgroup_memory: cgroup.memory,
        missing,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    /// As the user, nothing more.
    User,
    /// As the user, in a user namespace.
    Namespace,
    /// As whoever runs the probe.
    Privileged,
}

/// Runs `work` in a child, with further namespace `flags`, and tells how it went.
fn in_child(
    flags: u64,
    run_as: Option<(u32, u32)>,
    base: Base,
    work: impl FnOnce() -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
    match sys::clone3(flags).step("starting a process")? {
        Side::Child => {
            drop(reader);
            let result = (|| {
                if let Some((uid, gid)) = run_as
                    && base != Base::Privileged
                {
                    identity::become_user(uid, gid)?;
                }
                if base == Base::Namespace {
                    identity::enter_user_namespace()?;
                }
                work()
            })();
            if let Err(fault) = &result {
                let _ = File::from(writer).write_all(fault.to_line().as_bytes());
            }
            sys::exit_now(i32::from(result.is_err()));
        }
        Side::Parent { pid, .. } => {
            drop(writer);
            let mut text = String::new();
            let _ = File::from(reader).read_to_string(&mut text);
            let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED)
                .ok()
                .flatten()
                .and_then(|status| status.exit_status());
            match status {
                Some(0) => Ok(()),
                _ if text.is_empty() => Err(Fault::plain("the trial process was killed")),
                _ => Err(Fault::from_line(&text)),
            }
        }
    }
}

fn try_filter() -> Result<(), Fault> {
    if !seccomp::available() {
        return Err(Fault::plain("the kernel has no system call filters"));
    }
    rustix::thread::set_no_new_privs(true).step("setting no_new_privs")?;
    Filter::new(Mode::default()).install()
}

fn try_mounts() -> Result<(), Fault> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("making mounts private")?;
    let tree = open_tree(
        CWD,
        "/usr",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE,
    )
    .step("copying a mount (Linux 5.2)")?;
    let empty: &CStr = c"";
    sys::add_mount_attributes(
        std::os::fd::AsFd::as_fd(&tree),
        empty,
        libc::MOUNT_ATTR_RDONLY,
        true,
    )
    .step("making a mount read-only (Linux 5.12)")?;
    mount("tmpfs", "/usr", "tmpfs", MountFlags::empty(), c"size=64k").step("mounting a tmpfs")
}

fn try_proc() -> Result<(), Fault> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("making mounts private")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).step("mounting /proc")
}

fn sysctl(path: &str) -> Option<i64> {
    fs::read_to_string(format!("/proc/sys/{path}"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn namespace_remedy() -> String {
    if sysctl("user/max_user_namespaces") == Some(0) {
        return "Set the sysctl user.max_user_namespaces to more than 0".to_owned();
    }
    if sysctl("kernel/unprivileged_userns_clone") == Some(0) {
        return "Set the sysctl kernel.unprivileged_userns_clone to 1, or run the server as root"
            .to_owned();
    }
    if let Some(text) = apparmor_remedy() {
        return text;
    }
    "A container or a system call filter refuses it: allow unshare and clone with namespace flags there".to_owned()
}

fn apparmor_remedy() -> Option<String> {
    (sysctl("kernel/apparmor_restrict_unprivileged_userns") == Some(1)).then(|| {
        "AppArmor restricts user namespaces: give the program a profile with `userns,`, or set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0".to_owned()
    })
}

fn mount_remedy(user_ns: bool) -> String {
    if !user_ns {
        return "Comes with user_ns, or with CAP_SYS_ADMIN".to_owned();
    }
    apparmor_remedy().unwrap_or_else(|| {
        "Needs Linux 5.12 or later, and a container or security module that allows it".to_owned()
    })
}

fn cgroup_remedy() -> String {
    "Run the server as root, or as a systemd service with Delegate=yes and DelegateSubgroup=server"
        .to_owned()
}
