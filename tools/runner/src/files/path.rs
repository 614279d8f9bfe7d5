//! Which paths may be asked for at all, and what a failed open means.
//!
//! The lexical rules only give a clear answer early. What keeps a path beneath the
//! root is the open itself (`root.rs`), since a name can change between any two looks.

use codespace_router::{Code, ToolError};
use rustix::io::Errno;

/// The longest path the system takes, its NUL aside: path_resolution(7).
const LONGEST: usize = 4095;

/// Refuses a path that no workspace has: absolute, with `..`, with NUL, or too long. None of
/// them is repeated in the answer.
pub(super) fn check(path: &str) -> Result<(), ToolError> {
    if path.len() > LONGEST {
        return Err(ToolError::new(
            Code::FileOperationFailed,
            format!(
                "a path of {} bytes is longer than the {LONGEST} there may be; nothing was done",
                path.len()
            ),
        ));
    }
    let why = if path.starts_with('/') {
        "it is absolute"
    } else if path.split('/').any(|part| part == "..") {
        "it contains `..`"
    } else if path.contains('\0') {
        "it contains NUL"
    } else {
        return Ok(());
    };
    Err(ToolError::new(
        Code::PathEscape,
        format!("this path is refused, since {why}; paths are relative to the workspace root"),
    ))
}

/// The folder and the last name of a normalised path.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Every folder above a normalised path, outermost first.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// What a failed open or look-up of `path` means to the client.
pub(super) fn refusal(path: &str, errno: Errno) -> ToolError {
    let (code, message) = match errno {
        Errno::LOOP => (
            Code::SymlinkRejected,
            format!(
                "a symbolic link stands on the path {path}; links are never followed, name the real path"
            ),
        ),
        Errno::NOENT => (
            Code::FileNotFound,
            format!("there is no file {path}; find lists those there are"),
        ),
        Errno::NOTDIR => (
            Code::PathNotDirectory,
            format!("a file stands where the path {path} wants a directory"),
        ),
        Errno::XDEV => (
            Code::PathEscape,
            format!("the path {path} leads outside the workspace"),
        ),
        // A socket cannot be opened; nor can a device without a driver.
        Errno::NXIO | Errno::NODEV => return special(path),
        other => (
            Code::FileOperationFailed,
            format!("{path}: {}", reason(other)),
        ),
    };
    ToolError::new(code, message).with_detail("path", path)
}

/// The refusal of what is not a regular file.
pub(super) fn special(path: &str) -> ToolError {
    ToolError::new(
        Code::SpecialFileRejected,
        format!("{path} is not a regular file (a directory, device, socket or FIFO); find lists the files"),
    )
    .with_detail("path", path)
}

/// The operating system's words for an error.
pub(super) fn reason(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    plain.to_ascii_lowercase()
}
