//! `CODESPACE_<SECTION>__<KEY>`: the environment's say.

use figment::providers::Env;

const PREFIX: &str = "CODESPACE_";

/// Only names with `__` are keys; other `CODESPACE_` names are not ours to judge.
pub(super) fn provider() -> Env {
    Env::prefixed(PREFIX)
        .filter(|name| name.as_str().contains("__"))
        .split("__")
}

/// The variable that sets the key at this path, if it is set.
pub(super) fn variable_of(path: &[String]) -> Option<String> {
    let name = format!("{PREFIX}{}", path.join("__").to_ascii_uppercase());
    std::env::var_os(&name).map(|_| name)
}
