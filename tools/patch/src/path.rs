//! The lexical part of the path check.

use crate::error::ErrorCode;

/// Why a path in a patch cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFault {
    /// Nothing is left of the path (`""`, `"."`).
    Empty,
    /// It ends in `/` or `/.`, so it names a directory.
    TrailingSlash,
    /// It starts with `/`.
    Absolute,
    /// One of its components is `..`.
    Parent,
    /// It holds a NUL byte.
    Nul,
}

impl PathFault {
    /// The class of error this fault is reported as.
    pub fn code(self) -> ErrorCode {
        match self {
            PathFault::Empty | PathFault::TrailingSlash => ErrorCode::InvalidPatch,
            PathFault::Absolute | PathFault::Parent | PathFault::Nul => ErrorCode::PathEscape,
        }
    }

    /// What is wrong, in words that never repeat the path.
    pub fn reason(self) -> &'static str {
        match self {
            PathFault::Empty => "the path is empty",
            PathFault::TrailingSlash => "the path names a directory; name a file",
            PathFault::Absolute => "the path is absolute; give it relative to the workspace root",
            PathFault::Parent => "the path contains `..`; give it relative to the workspace root",
            PathFault::Nul => "the path contains a NUL byte",
        }
    }
}

/// Brings a path to its one spelling: no `.` components and no doubled `/`.
///
/// `\` and `~` are ordinary characters. Symbolic links are the caller's matter.
///
/// # Errors
/// [`PathFault`] for a path that is absolute, has a `..` component or a NUL byte (escapes), or is empty or
/// names a directory (invalid). Escapes win over the rest.
pub fn normalize(path: &str) -> Result<String, PathFault> {
    if path.contains('\0') {
        return Err(PathFault::Nul);
    }
    if path.starts_with('/') {
        return Err(PathFault::Absolute);
    }
    if path.split('/').any(|part| part == "..") {
        return Err(PathFault::Parent);
    }
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.is_empty() {
        return Err(PathFault::Empty);
    }
    if path.ends_with('/') || path.ends_with("/.") {
        return Err(PathFault::TrailingSlash);
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling() {
        for (given, wanted) in [
            ("a", "a"),
            ("./a//b", "a/b"),
            ("a/./b", "a/b"),
            ("~/x", "~/x"),
            ("a\\b", "a\\b"),
            ("...", "..."),
        ] {
            assert_eq!(normalize(given).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn faults() {
        for (given, wanted) in [
            ("", PathFault::Empty),
            (".", PathFault::Empty),
            ("./", PathFault::Empty),
            ("d/", PathFault::TrailingSlash),
            ("d/.", PathFault::TrailingSlash),
            ("/a", PathFault::Absolute),
            ("/", PathFault::Absolute),
            ("../a", PathFault::Parent),
            ("a/../b", PathFault::Parent),
            ("a/..", PathFault::Parent),
            ("../", PathFault::Parent),
            ("a\0b", PathFault::Nul),
        ] {
            assert_eq!(normalize(given), Err(wanted), "{given:?}");
        }
    }
}
