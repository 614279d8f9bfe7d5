//! What a command's init writes to the status pipe: records of eight bytes.

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The program runs: its exec has succeeded.
    Started,
    /// The program could not be executed (errno); nothing has run.
    ExecFailed(i32),
    /// The sandbox could not be set up (errno, or 0); the step follows as text. Nothing
    /// has run.
    SetupFailed(i32),
    /// The command's own process has ended: its raw status, as wait(2) gives it.
    Ended(i32),
}

impl Report {
    /// The length of a record.
    pub const BYTES: usize = 8;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, value): (u32, i32) = match self {
            Self::Started => (1, 0),
            Self::ExecFailed(errno) => (2, errno),
            Self::SetupFailed(errno) => (3, errno),
            Self::Ended(status) => (4, status),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// Reads a record. `None` for anything that is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let kind = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        let value = i32::from_le_bytes(bytes.get(4..Self::BYTES)?.try_into().ok()?);
        match kind {
            1 => Some(Self::Started),
            2 => Some(Self::ExecFailed(value)),
            3 => Some(Self::SetupFailed(value)),
            4 => Some(Self::Ended(value)),
            _ => None,
        }
    }
}
