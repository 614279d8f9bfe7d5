//! `CODESPACE_<SECTION>__<KEY>`: the environment's say.

use figment::providers::Env;

const PREFIX: &str = "CODESPACE_";

/// Only names with `__` are keys; other `CODESPACE_` names are not ours to judge.
pub(super) fn provider() -> Env {
    Env::prefixed(PREFIX)
        .filter(|name| name.as_str().contains("__"))
        .split("__")
}

/// A name with `__` that cannot be a key.
pub(super) fn misnamed() -> Option<String> {
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .find(|name| {
            name.strip_prefix(PREFIX).is_some_and(|key| {
                key.contains("__") && key.split("__").any(|part| part.is_empty() || part == "_")
            })
        })
}

/// The variable that sets the key at this path, if it is set.
pub(super) fn variable_of(path: &[String]) -> Option<String> {
    let name = format!("{PREFIX}{}", path.join("__").to_ascii_uppercase());
    std::env::var_os(&name).map(|_| name)
}
