//! Who makes a call.

use std::sync::{Arc, LazyLock};

/// What a caller may do. `admin` is the operator's: audit and every workspace in the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Look at files, processes, operations.
    Read,
    /// Apply patches.
    Write,
    /// Run commands; write to, resize and end processes.
    Exec,
    /// Resolve approval holds.
    Approve,
    /// Write and order intents.
    Steer,
    /// Operate the server.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 6] = [
        Scope::Read,
        Scope::Write,
        Scope::Exec,
        Scope::Approve,
        Scope::Steer,
        Scope::Admin,
    ];

    /// The name in config and tokens.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Exec => "exec",
            Scope::Approve => "approve",
            Scope::Steer => "steer",
            Scope::Admin => "admin",
        }
    }

    /// The scope with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.as_str() == name)
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope there is.
    #[must_use]
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Every scope but `admin`: what the local caller and a single shared token get.
    #[must_use]
    pub fn all_but_admin() -> Self {
        Scope::ALL
            .into_iter()
            .filter(|scope| *scope != Scope::Admin)
            .collect()
    }

    /// Whether the set holds `scope`.
    #[must_use]
    pub fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(
            scopes
                .into_iter()
                .fold(0, |set, scope| set | (1 << scope as u8)),
        )
    }
}

/// How a caller was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// The process at the other end of stdin.
    Local,
    /// `auth.mode = "none"`: whoever reaches the listener.
    None,
    /// A named bearer token.
    Bearer,
}

/// Who makes a call: a subject, what it may do, and where. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    subject: String,
    scopes: Scopes,
    workspaces: Option<Vec<String>>,
    how: Authentication,
}

impl Caller {
    /// A caller. `subject` scopes operation keys; `workspaces: None` means every one.
    #[must_use]
    pub fn new(
        subject: String,
        scopes: Scopes,
        workspaces: Option<Vec<String>>,
        how: Authentication,
    ) -> Self {
        Self(Arc::new(Inner {
            subject,
            scopes,
            workspaces,
            how,
        }))
    }

    /// The one caller of a stdio server.
    #[must_use]
    pub fn local() -> Self {
        Self::new(
            "local".to_owned(),
            Scopes::all_but_admin(),
            None,
            Authentication::Local,
        )
    }

    /// The one caller all HTTP clients are under `auth.mode = "none"`.
    #[must_use]
    pub fn anonymous() -> Self {
        // Asked for by every request.
        static ANONYMOUS: LazyLock<Caller> = LazyLock::new(|| {
            Caller::new(
                "anonymous".to_owned(),
                Scopes::all_but_admin(),
                None,
                Authentication::None,
            )
        });
        ANONYMOUS.clone()
    }

    /// What operation keys are scoped to; never a secret.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.0.subject
    }

    /// What this caller may do.
    #[must_use]
    pub fn scopes(&self) -> Scopes {
        self.0.scopes
    }

    /// How it was authenticated.
    #[must_use]
    pub fn authentication(&self) -> Authentication {
        self.0.how
    }

    /// Whether the workspace with this id exists for this caller.
    #[must_use]
    pub fn sees(&self, workspace: &str) -> bool {
        self.0
            .workspaces
            .as_ref()
            .is_none_or(|ids| ids.iter().any(|id| id == workspace))
    }
}
