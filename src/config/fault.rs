//! What is wrong with a configuration, and where.

use std::{fmt, path::PathBuf};

/// A fault that stops the start: where, which key, what rule, what remedy.
#[derive(Debug)]
pub struct ConfigFault {
    file: Option<PathBuf>,
    line: Option<usize>,
    key: String,
    message: String,
}

impl ConfigFault {
    pub(super) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            file: None,
            line: None,
            key: key.into(),
            message: message.into(),
        }
    }

    pub(super) fn at(mut self, file: Option<PathBuf>, line: Option<usize>) -> Self {
        self.file = file;
        self.line = line;
        self
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigFault {}
