//! What this machine can do for a command, as it was tried, and what is missing.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

/// How much of the sandbox is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Landlock, seccomp, no capabilities, and mount, PID, IPC and network namespaces.
    Full,
    /// Landlock and seccomp, at least.
    Partial,
    /// Less than that.
    None,
}

/// How sure it is that a command's whole tree ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeKill {
    /// The kernel ends it, with the PID namespace or the cgroup.
    #[serde(rename = "certain")]
    Certain,
    /// By looking for survivors; a process that forks for ever may escape.
    #[serde(rename = "best-effort")]
    BestEffort,
}

/// Something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The field of [`Features`] it is about.
    pub feature: String,
    /// What was tried and what the kernel said.
    pub why: String,
    /// What an operator can do.
    pub remedy: String,
}

/// What was found by trying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// The kernel's Landlock version; 0 without.
    pub landlock_abi: u32,
    /// System call filters.
    pub seccomp: bool,
    /// An own user namespace with its ids mapped. Root can do without.
    pub user_ns: bool,
    /// An own root folder.
    pub mount_ns: bool,
    /// An own process tree.
    pub pid_ns: bool,
    /// /proc of that tree can be shown. Without it commands run without any /proc.
    pub proc: bool,
    /// An own loopback and nothing else.
    pub net_ns: bool,
    /// Own System V IPC.
    pub ipc_ns: bool,
    /// An own /tmp.
    pub private_tmp: bool,
    /// Read-only places in a writable workspace.
    pub protect: bool,
    /// How sure the end of a tree is.
    pub tree_kill: TreeKill,
    /// A limit on the number of tasks that holds for this user.
    pub cgroup_tasks: bool,
    /// A limit on the memory of a whole tree.
    pub cgroup_memory: bool,
    /// Why not, and what to do about it.
    pub missing: Vec<Missing>,
}

impl Features {
    /// Tries everything in a child, `exe sandbox probe`, as the user commands would run as
    /// (`None`: this process's user). Blocks for some 20 ms.
    ///
    /// # Errors
    /// When the helper cannot be started or answers nothing that can be understood.
    pub fn probe(exe: &Path, run_as: Option<(u32, u32)>) -> io::Result<Self> {
        let mut command = Command::new(exe);
        command.args(["sandbox", "probe", "--json"]);
        if let Some((uid, gid)) = run_as {
            command.arg(format!("--as={uid}:{gid}"));
        }
        let output = command
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .output()?;
        serde_json::from_slice(&output.stdout).map_err(|_| {
            io::Error::other(format!(
                "the sandbox probe did not answer ({}); is it the same program?",
                output.status
            ))
        })
    }

    /// Whether a plan with namespaces can be carried out, one without, or none.
    #[must_use]
    pub fn level(&self) -> Level {
        if self.landlock_abi == 0 || !self.seccomp {
            Level::None
        } else if self.mount_ns && self.pid_ns && self.ipc_ns && self.net_ns {
            Level::Full
        } else {
            Level::Partial
        }
    }

    /// For people: one line per feature, then what is missing.
    #[must_use]
    pub fn describe(&self) -> String {
        let word = |found: bool| if found { "yes" } else { "no" };
        let level = match self.level() {
            Level::Full => "full",
            Level::Partial => "partial",
            Level::None => "none",
        };
        let tree = match self.tree_kill {
            TreeKill::Certain => "certain",
            TreeKill::BestEffort => "best-effort",
        };
        let mut text = format!(
            "sandbox          {level}\nlandlock         ABI {}\n",
            self.landlock_abi
        );
        for (name, found) in [
            ("seccomp", self.seccomp),
            ("user namespace", self.user_ns),
            ("mount namespace", self.mount_ns),
            ("PID namespace", self.pid_ns),
            ("own /proc", self.proc),
            ("net namespace", self.net_ns),
            ("IPC namespace", self.ipc_ns),
            ("private /tmp", self.private_tmp),
            ("protected paths", self.protect),
            ("task limit", self.cgroup_tasks),
            ("memory limit", self.cgroup_memory),
        ] {
            text.push_str(&format!("{name:<17}{}\n", word(found)));
        }
        text.push_str(&format!("end of a tree    {tree}\n"));
        for missing in &self.missing {
            text.push_str(&format!(
                "missing {}: {}. {}\n",
                missing.feature, missing.why, missing.remedy
            ));
        }
        text
    }
}
