//! Which system calls a command may make.
//!
//! Allowed unless named: an allow list breaks with every new libc, and what may be done to
//! files, processes and the network is held by namespaces and Landlock. Refused is what
//! reaches around those (kernel interfaces with a history of holes, new namespaces, mounts,
//! other processes' memory). Numbers newer than this table do not exist (ENOSYS).

/// What becomes of one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Allow,
    Refuse(i32),
    /// Refused when an argument has any of the bits.
    RefuseBits {
        argument: u32,
        bits: u32,
        errno: i32,
    },
    /// Refused when the low half of an argument is listed.
    RefuseWords(Word),
    /// Refused unless the low half of an argument is listed.
    AllowWords(Word),
}

/// An argument and the values it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) argument: u32,
    pub(crate) values: &'static [u32],
    pub(crate) errno: i32,
}

/// What differs between plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mode {
    /// ptrace and reading other processes' memory within the command's own tree.
    pub(crate) debug: bool,
    /// Without namespaces there is nothing behind a socket or a System V segment that
    /// would keep it from the host's.
    pub(crate) no_namespaces: bool,
}

// The newest number known when this was written (Linux 6.19); the table is common to all
// architectures from 403 on.
pub(super) const NEWEST: u32 = 470;

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xC000_00B7;

// CLONE_NEWTIME, NS, CGROUP, UTS, IPC, USER, PID, NET (linux/sched.h). NEWTIME is a part
// of the exit signal in clone(2), which no program sets to 0x80.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32
    | 0x80;

// TIOCSTI types into the terminal, TIOCLINUX pastes into the console, TIOCSETD and the
// like need capabilities.
const TERMINAL_INPUT: &[u32] = &[libc::TIOCSTI as u32, 0x541C];
// Not packet, vsock, alg, bluetooth and the rest.
const FAMILIES: &[u32] = &[
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    libc::AF_NETLINK as u32,
];

/// Not there at all, so that libraries fall back: arguments behind a pointer (clone3)
/// cannot be looked at, and io_uring does file and socket work past this filter.
const ABSENT: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

const DEBUGGER: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
];

const REFUSED: &[libc::c_long] = &[
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // open_tree_attr
    467,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_memfd_secret,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// What outlives a command, or reaches others, when it has no IPC namespace.
const SHARED_IPC: &[libc::c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
];

/// The rule for a number. Everything above the newest known is absent.
pub(crate) fn rule(mode: Mode, number: u32) -> Rule {
    let is = |list: &[libc::c_long]| list.contains(&libc::c_long::from(number));
    if number > NEWEST || is(ABSENT) {
        return Rule::Refuse(libc::ENOSYS);
    }
    if is(REFUSED) || (is(DEBUGGER) && !mode.debug) || (is(SHARED_IPC) && mode.no_namespaces) {
        return Rule::Refuse(libc::EPERM);
    }
    if is(&[libc::SYS_clone]) {
        return Rule::RefuseBits {
            argument: 0,
            bits: NAMESPACES,
            errno: libc::EPERM,
        };
    }
    if is(&[libc::SYS_ioctl]) {
        return Rule::RefuseWords(Word {
            argument: 1,
            values: TERMINAL_INPUT,
            errno: libc::EPERM,
        });
    }
    if is(&[libc::SYS_socket]) {
        // Landlock cannot keep a command from the host's pathname sockets, so without a
        // new root there is no socket but a pair.
        return if mode.no_namespaces {
            Rule::Refuse(libc::EAFNOSUPPORT)
        } else {
            Rule::AllowWords(Word {
                argument: 0,
                values: FAMILIES,
                errno: libc::EAFNOSUPPORT,
            })
        };
    }
    if is(&[libc::SYS_socketpair]) {
        return Rule::AllowWords(Word {
            argument: 0,
            values: &[libc::AF_UNIX as u32],
            errno: libc::EAFNOSUPPORT,
        });
    }
    Rule::Allow
}
