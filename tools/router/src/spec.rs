//! What a tool says of itself.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::Scope;

/// What a tool does to its workspace; decides scope, profile and the list of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessClass {
    /// Looks, changes nothing.
    Reading,
    /// Changes files.
    Writing,
    /// Starts or drives a process.
    Running,
    /// Moves holds, works and intents.
    Coordinating,
}

impl AccessClass {
    /// The scope a caller needs.
    #[must_use]
    pub const fn scope(self) -> Scope {
        match self {
            AccessClass::Reading | AccessClass::Coordinating => Scope::Read,
            AccessClass::Writing => Scope::Write,
            AccessClass::Running => Scope::Exec,
        }
    }

    /// Whether a read-only workspace refuses it.
    #[must_use]
    pub const fn mutates(self) -> bool {
        matches!(self, AccessClass::Writing | AccessClass::Running)
    }
}

/// MCP's hints about a tool; clients decide by them whether to ask their user.
#[derive(Clone, Copy, Debug)]
pub struct Annotations {
    /// Changes nothing.
    pub read_only: bool,
    /// May overwrite or delete.
    pub destructive: bool,
    /// A second call with the same arguments changes nothing more.
    pub idempotent: bool,
    /// Reaches things outside the workspace.
    pub open_world: bool,
}

/// A tool's name, words, schemas and class.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// The wire name; also its metric label, hence static.
    pub name: &'static str,
    /// A few words for a person.
    pub title: &'static str,
    /// For a model: what it does, what it refuses, what to do next.
    pub description: &'static str,
    /// What it does to its workspace.
    pub class: AccessClass,
    /// MCP's hints.
    pub annotations: Annotations,
    /// JSON Schema of the arguments.
    pub input: Arc<Map<String, Value>>,
    /// JSON Schema of the result.
    pub output: Arc<Map<String, Value>>,
}
