//! What became of a connection that a client asked for, as a closed set.

/// The counter of connections asked for, by `decision`: see [`Decision`].
pub const CONNECTIONS_TOTAL: &str = "codespace_proxy_connections_total";

/// What became of a connection that a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed, and the other side answered.
    Allowed,
    /// `allow_domains` does not list the host with its port.
    DeniedName,
    /// The host is only at addresses that are not public, and `allow_private` does not list it.
    DeniedAddress,
    /// Allowed, but not found or not reached.
    Failed,
    /// Not a request this proxy understands.
    Malformed,
}

impl Decision {
    /// Every decision, for a registry that shows each series from the start.
    pub const ALL: [Self; 5] = [
        Self::Allowed,
        Self::DeniedName,
        Self::DeniedAddress,
        Self::Failed,
        Self::Malformed,
    ];

    /// The value of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::DeniedName => "denied_name",
            Self::DeniedAddress => "denied_address",
            Self::Failed => "failed",
            Self::Malformed => "malformed",
        }
    }

    pub(crate) fn count(self) {
        metrics::counter!(CONNECTIONS_TOTAL, "decision" => self.as_str()).increment(1);
    }
}
