//! Who may call: the bearer tokens.

use std::path::PathBuf;

use codespace_layers::Token;
use codespace_router::{Scope, Scopes};
use sha2::{Digest, Sha256};

use super::{Auth, Checked, ConfigFault, WorkspaceConfig, file};

pub(super) fn auth(
    auth: &file::Auth,
    workspaces: &[WorkspaceConfig],
) -> Checked<(Auth, Vec<PathBuf>)> {
    let shared = std::env::var("CODESPACE_HTTP_TOKEN")
        .ok()
        .filter(|token| !token.is_empty());
    let mode = auth
        .mode
        .as_deref()
        .unwrap_or(if shared.is_some() { "bearer" } else { "none" });
    let entries = auth.tokens.as_deref().unwrap_or_default();
    if mode == "none" {
        if shared.is_some() || !entries.is_empty() {
            return Err(ConfigFault::new(
                "auth.mode",
                "is \"none\" although tokens are given; use \"bearer\" or remove them",
            ));
        }
        return Ok((Auth::None, Vec::new()));
    }
    let mut tokens = Vec::new();
    let mut files = Vec::new();
    if let Some(token) = shared {
        tokens.push(Token::new(
            "default",
            Sha256::digest(token.as_bytes()).into(),
            Scopes::all_but_admin(),
            None,
        ));
    }
    for entry in entries {
        let fault = |why: String| ConfigFault::new("auth.tokens", format!("{}: {why}", entry.name));
        if entry.name.is_empty()
            || entries
                .iter()
                .filter(|other| other.name == entry.name)
                .count()
                > 1
        {
            return Err(fault("every token needs a name of its own".to_owned()));
        }
        let digest = match (&entry.token, &entry.token_sha256, &entry.token_file) {
            (Some(token), None, None) => digest(token).map_err(fault)?,
            (None, Some(hex), None) => {
                unhex(hex).ok_or_else(|| fault("token_sha256 must be 64 hex digits".to_owned()))?
            }
            (None, None, Some(path)) => {
                let path = std::path::absolute(path)
                    .map_err(|error| fault(format!("token_file: {error}")))?;
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| fault(format!("token_file: {error}")))?;
                files.push(path);
                digest(text.trim_end()).map_err(fault)?
            }
            _ => {
                return Err(fault(
                    "give exactly one of token, token_sha256 and token_file".to_owned(),
                ));
            }
        };
        let scopes = entry.scopes.iter().map(|name| {
            Scope::from_name(name).ok_or_else(|| {
                fault(format!(
                    "{name:?} is not a scope; they are read, write, exec, approve, steer, admin"
                ))
            })
        });
        let scopes: Scopes = scopes.collect::<Checked<Vec<_>>>()?.into_iter().collect();
        if let Some(id) = entry
            .workspaces
            .iter()
            .flatten()
            .find(|id| !workspaces.iter().any(|known| known.id.as_str() == *id))
        {
            return Err(fault(format!("{id:?} is not a workspace of this config")));
        }
        tokens.push(Token::new(
            &entry.name,
            digest,
            scopes,
            entry.workspaces.clone(),
        ));
    }
    if tokens.is_empty() {
        return Err(ConfigFault::new(
            "auth.tokens",
            "auth.mode = \"bearer\" needs a token, here or in CODESPACE_HTTP_TOKEN",
        ));
    }
    Ok((Auth::Bearer(tokens), files))
}

fn digest(token: &str) -> Result<[u8; 32], String> {
    if token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a token must have at least 16 visible ASCII characters".to_owned());
    }
    Ok(Sha256::digest(token.as_bytes()).into())
}

fn unhex(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
