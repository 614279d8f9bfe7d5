//! What an operator may write. Every key is here, those of parts that are not built
//! too: [`super::check`] refuses them by name instead of calling them unknown.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use figment::{
    Figment,
    error::Kind,
    providers::{Format, Toml},
};
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::{ConfigFault, env};

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct $name { $(pub(super) $field: Option<$type>,)* }
    };
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) server: Server,
    pub(super) admin: Admin,
    pub(super) auth: Auth,
    pub(super) store: Store,
    pub(super) runner: Runner,
    pub(super) sandbox: Sandbox,
    pub(super) limits: Limits,
    pub(super) audit: Audit,
    pub(super) workspaces: BTreeMap<String, Workspace>,
}

section! { Server {
    listen: String, public_url: String, allowed_hosts: Vec<String>, trusted_proxies: Vec<String>,
    sessions: bool, body_bytes: usize,
} }
section! { Admin { listen: String, } }
section! { Auth {
    mode: String, tokens: Vec<TokenEntry>, grants: Vec<toml::Value>, issuer: String, audience: String, jwks_url: String,
    jwks_file: String, scope_claim: String, group_claim: String, clock_skew_seconds: u64, user_header: String,
    group_header: String,
} }
section! { Store { path: String, durability: String, keep_days: u64, } }
section! { Runner { kind: String, } }
section! { Sandbox { mode: String, read: Vec<String>, write: Vec<String>, tmp_bytes: u64, } }
section! { Limits {
    read_bytes: usize, find_paths: usize, patch_file_bytes: u64, output_bytes: usize, process_seconds: u64,
    processes: usize, handles: usize, handle_seconds: u64, tasks: u64, memory_bytes: u64, hold_seconds: u64,
} }
section! { Audit { path: String, } }
section! { Workspace {
    root: String, profile: String, approvals: String, network: String, allow_domains: Vec<String>,
    allow_private: Vec<String>, env: BTreeMap<String, String>, protect: Vec<String>, debug: bool, process_seconds: u64,
    read: Vec<String>, write: Vec<String>,
} }

/// A named token: in clear, hashed, or in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenEntry {
    pub(super) name: String,
    pub(super) token: Option<String>,
    pub(super) token_sha256: Option<String>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) scopes: Vec<String>,
    pub(super) workspaces: Option<Vec<String>>,
}

impl std::fmt::Debug for TokenEntry {
    // The token must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenEntry")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The file's text, kept to tell the line of a fault.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) path: Option<PathBuf>,
    text: String,
}

impl Source {
    pub(super) fn read(path: Option<&Path>) -> Result<Self, ConfigFault> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            ConfigFault::new(
                "",
                format!("cannot be read: {error}; name a readable file with --config"),
            )
            .at(Some(path.to_owned()), None)
        })?;
        Ok(Self {
            path: Some(path.to_owned()),
            text,
        })
    }

    /// File and environment as one.
    pub(super) fn parse(&self) -> Result<File, ConfigFault> {
        if let Err(error) = DeTable::parse(&self.text) {
            let line = error.span().map(|span| self.line_at(span.start));
            return Err(
                ConfigFault::new("", error.message().to_owned()).at(self.path.clone(), line)
            );
        }
        if let Some(name) = env::misnamed() {
            return Err(ConfigFault::new(
                "",
                format!(
                    "the environment variable {name} names no key; it must be CODESPACE_SECTION__KEY"
                ),
            ));
        }
        Figment::new()
            .merge(Toml::string(&self.text))
            .merge(env::provider())
            .extract()
            .map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &figment::Error) -> ConfigFault {
        let mut path = error.path.clone();
        let message = match &error.kind {
            Kind::UnknownField(found, expected) => {
                // figment's path names the section already or not, depending on the provider.
                if path.last() != Some(found) {
                    path.push(found.clone());
                }
                let nearest = expected
                    .iter()
                    .min_by_key(|name| strsim::damerau_levenshtein(name, found));
                format!(
                    "is not a key; the nearest is {:?}",
                    nearest.copied().unwrap_or_default()
                )
            }
            kind => kind.to_string(),
        };
        let key = path.join(".");
        let message = match env::variable_of(&path) {
            Some(name) => format!("{message} (from the environment variable {name})"),
            None => message,
        };
        self.locate(ConfigFault::new(key, message))
    }

    /// Adds file and line to a fault whose key stands in the file.
    pub(super) fn locate(&self, fault: ConfigFault) -> ConfigFault {
        let line = self.line_of(fault.key());
        match line {
            Some(_) => fault.at(self.path.clone(), line),
            None => fault,
        }
    }

    fn line_of(&self, key: &str) -> Option<usize> {
        let table = DeTable::parse(&self.text).ok()?;
        let mut table = table.get_ref();
        let mut found = None;
        for part in key.split('.') {
            let (name, value) = table
                .iter()
                .find(|(name, _)| name.get_ref().as_ref() == part)?;
            found = Some(self.line_at(name.span().start));
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => break,
            }
        }
        found
    }

    fn line_at(&self, offset: usize) -> usize {
        self.text
            .as_bytes()
            .iter()
            .take(offset)
            .filter(|byte| **byte == b'\n')
            .count()
            + 1
    }
}
