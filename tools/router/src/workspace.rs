//! A folder the operator registered.

use std::{fmt, sync::Arc};

/// A workspace's name in the config. It selects; it does not authenticate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspaceId(Arc<str>);

impl WorkspaceId {
    /// Wraps a name that config validation accepted.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl serde::Serialize for WorkspaceId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the operator allows in a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Read tools only.
    ReadOnly,
    /// Also patches and commands.
    WorkspaceWrite,
}

impl Profile {
    /// The name in config and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Profile::ReadOnly => "read-only",
            Profile::WorkspaceWrite => "workspace-write",
        }
    }
}

/// What the stack knows of a workspace. Where its files lie is the runner's affair.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Its id.
    pub id: WorkspaceId,
    /// What is allowed in it.
    pub profile: Profile,
    /// Paths below the root that no patch may touch, besides `.git`. Normalised, no trailing slash.
    pub protect: Arc<[String]>,
}
