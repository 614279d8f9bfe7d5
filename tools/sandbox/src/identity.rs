//! Who the sandbox is: user and group, the user namespace, and no capability in the end.
//!
//! The id map must be written before any exec (one with unmapped ids loses every
//! capability), and a non-dumpable process cannot write its own; so the order is: become
//! the user, dumpable, unshare, maps, and non-dumpable for the rest of its life.

use std::fs;

use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

use crate::{
    fault::{Fault, Step},
    sys,
};

// linux/securebits.h: NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each locked.
// KEEP_CAPS stays off, locked too.
const SECURE_BITS: u64 = 0b1110_1111;
const LAST_CAPABILITY: u64 = 63;

/// Becomes the user a plan names. Anyone but root can only stay who they are.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<(), Fault> {
    if geteuid().is_root() {
        let already = (geteuid().as_raw(), getegid().as_raw()) == (uid, gid);
        return match sys::set_ids(uid, gid) {
            // A root without capabilities stays in its groups, as an ordinary user does.
            Err(error) if already && error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
            result => result.step("becoming the owner of the workspace"),
        };
    }
    if geteuid().as_raw() != uid {
        return Err(Fault::plain(
            "the plan names another user, which only root can become",
        ));
    }
    Ok(())
}

/// Makes a user namespace in which this user and group are themselves and nobody else is.
pub(crate) fn enter_user_namespace() -> Result<(), Fault> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    sys::prctl(libc::PR_SET_DUMPABLE, 1).step("becoming dumpable")?;
    sys::unshare(libc::CLONE_NEWUSER).step("making a user namespace")?;
    fs::write("/proc/self/setgroups", "deny").step("denying setgroups")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).step("mapping the user")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).step("mapping the group")?;
    Ok(())
}

/// Not readable through /proc by anyone, no core dumps. After the maps.
pub(crate) fn hide() -> Result<(), Fault> {
    sys::prctl(libc::PR_SET_DUMPABLE, 0)
        .map(drop)
        .step("becoming non-dumpable")
}

/// Makes sure that no program executed from here on gains a capability, uid 0 or not.
/// What this process has already stays.
pub(crate) fn forbid_new_capabilities() -> Result<(), Fault> {
    for capability in 0..=LAST_CAPABILITY {
        // The kernel knows fewer; the first unknown one is EINVAL.
        if sys::prctl(libc::PR_CAPBSET_DROP, capability).is_err() {
            if capability == 0 {
                return Err(Fault::plain("emptying the capability bounding set"));
            }
            break;
        }
    }
    sys::prctl(libc::PR_SET_SECUREBITS, SECURE_BITS)
        .map(drop)
        .step("locking the secure bits")
}

/// Gives up every capability and the way to new ones.
pub(crate) fn drop_capabilities() -> Result<(), Fault> {
    let _ = clear_ambient_capability_set();
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).step("dropping capabilities")?;
    set_no_new_privs(true).step("setting no_new_privs")
}
