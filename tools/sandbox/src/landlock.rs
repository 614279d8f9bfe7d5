//! Landlock: the same policy as the mounts, once more, so that one layer failing is no
//! escape; and the only layer for files where there is no mount namespace.
//!
//! The rules are made once per workspace. They are tied to inodes, and the new root that
//! every command gets is the same tree of inodes. What the kernel is too old for is left
//! out; [`abi`] tells how much that is.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};

use crate::fault::{Fault, Step};

// The newest version whose rights are all understood here.
const KNOWN: ABI = ABI::V6;

/// The kernel's version, 0 without Landlock.
#[allow(unsafe_code)]
pub(crate) fn abi() -> u32 {
    // LANDLOCK_CREATE_RULESET_VERSION
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no structure (landlock_create_ruleset(2)).
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0usize,
            VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// What a path may be used for, and everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Read and execute.
    Read,
    /// Everything but making device files.
    Write,
    /// Read, write and ioctl, of files that exist.
    Devices,
}

impl Grant {
    fn access(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::from_read(KNOWN),
            Self::Write => AccessFs::from_all(KNOWN) & !(AccessFs::MakeChar | AccessFs::MakeBlock),
            Self::Devices => {
                AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev
            }
        }
    }
}

/// Makes the rules. `network`: TCP is left to the network namespace.
/// As a descriptor.
pub(crate) fn rules(grants: &[(PathBuf, Grant)], network: bool) -> Result<OwnedFd, Fault> {
    let fault =
        |error: &dyn std::fmt::Display| Fault::plain(format!("making Landlock rules: {error}"));
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .map_err(|error| fault(&error))?;
    if !network {
        rules = rules
            .handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)
            .map_err(|error| fault(&error))?;
    }
    let mut rules = rules.create().map_err(|error| fault(&error))?;
    for (path, grant) in grants {
        rules = add(rules, path, *grant)?;
    }
    Option::<OwnedFd>::from(rules).ok_or_else(|| Fault::plain("the kernel has no Landlock"))
}

fn add(rules: RulesetCreated, path: &Path, grant: Grant) -> Result<RulesetCreated, Fault> {
    let fault = |error: &dyn std::fmt::Display| {
        Fault::plain(format!("granting {} by Landlock: {error}", path.display()))
    };
    let target = PathFd::new(path).map_err(|error| fault(&error))?;
    let mut access = grant.access();
    if !path.is_dir() {
        // Rights that only folders have are refused for a file.
        access &= AccessFs::from_file(KNOWN);
    }
    rules
        .add_rule(PathBeneath::new(target, access))
        .map_err(|error| fault(&error))
}

/// Puts the rules in force for this process and what it starts, for good. Needs
/// no_new_privs.
#[allow(unsafe_code)]
pub(crate) fn enforce(rules: &OwnedFd) -> Result<(), Fault> {
    // SAFETY: a descriptor and no flags; no pointer.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).step("enforcing Landlock rules");
    }
    Ok(())
}
