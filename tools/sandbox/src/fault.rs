//! What went wrong while a sandbox was set up: the step, and what the kernel said.

use std::{fmt, io};

use rustix::io::Errno;

/// A failed step of the setup. The text names no secret and no host path but those of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was tried, as in "mounting /proc".
    pub step: String,
    /// The error number, 0 when it was not the kernel that refused.
    pub errno: i32,
}

impl Fault {
    pub(crate) fn plain(step: impl Into<String>) -> Self {
        Self {
            step: step.into(),
            errno: 0,
        }
    }

    /// As one line, for a pipe or a socket.
    pub(crate) fn to_line(&self) -> String {
        format!("{}:{}", self.errno, self.step)
    }

    pub(crate) fn from_line(line: &str) -> Self {
        let (errno, step) = line.split_once(':').unwrap_or(("0", line));
        Self {
            step: step.to_owned(),
            errno: errno.parse().unwrap_or(0),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == 0 {
            return f.write_str(&self.step);
        }
        let text = io::Error::from_raw_os_error(self.errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        write!(f, "{}: {text}", self.step)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        Self::other(fault)
    }
}

/// Names the step of an error.
pub(crate) trait Step<T> {
    fn step(self, what: impl Into<String>) -> Result<T, Fault>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn step(self, what: impl Into<String>) -> Result<T, Fault> {
        self.map_err(|error| Fault {
            step: what.into(),
            errno: error.raw_os_error(),
        })
    }
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, what: impl Into<String>) -> Result<T, Fault> {
        self.map_err(|error| Fault {
            errno: error.raw_os_error().unwrap_or(0),
            step: match error.raw_os_error() {
                Some(_) => what.into(),
                None => format!("{}: {error}", what.into()),
            },
        })
    }
}
