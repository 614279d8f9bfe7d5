//! Settings whose part is not built: refused, never ignored.

use super::{Checked, ConfigFault, file::File};

/// A setting whose part is not built is refused, never ignored.
pub(super) fn refuse_unbuilt(file: &File) -> Checked<()> {
    let unbuilt = |key: &str, what: &str| {
        Err(ConfigFault::new(
            key,
            format!("{what} is not built into this version; remove the key"),
        ))
    };
    let auth = &file.auth;
    match auth.mode.as_deref() {
        None | Some("none" | "bearer") => {}
        Some(mode @ ("jwt" | "proxy")) => {
            return Err(ConfigFault::new(
                "auth.mode",
                format!("{mode:?} is not built into this version; use \"none\" or \"bearer\""),
            ));
        }
        Some(mode) => {
            return Err(ConfigFault::new(
                "auth.mode",
                format!("{mode:?} is not one of \"none\", \"bearer\""),
            ));
        }
    }
    let auth_keys = [
        ("auth.grants", auth.grants.is_some()),
        ("auth.issuer", auth.issuer.is_some()),
        ("auth.audience", auth.audience.is_some()),
        ("auth.jwks_url", auth.jwks_url.is_some()),
        ("auth.jwks_file", auth.jwks_file.is_some()),
        ("auth.scope_claim", auth.scope_claim.is_some()),
        ("auth.group_claim", auth.group_claim.is_some()),
        ("auth.clock_skew_seconds", auth.clock_skew_seconds.is_some()),
        ("auth.user_header", auth.user_header.is_some()),
        ("auth.group_header", auth.group_header.is_some()),
    ];
    if let Some((key, _)) = auth_keys.iter().find(|(_, set)| *set) {
        return unbuilt(key, "login by JWT or by a proxy's headers");
    }
    if file
        .server
        .trusted_proxies
        .as_ref()
        .is_some_and(|list| !list.is_empty())
    {
        return unbuilt("server.trusted_proxies", "believing forwarded headers");
    }
    if file.limits.hold_seconds.is_some() {
        return unbuilt("limits.hold_seconds", "approval holds");
    }
    if file
        .audit
        .path
        .as_deref()
        .is_some_and(|path| !path.is_empty())
    {
        return unbuilt("audit.path", "the audit log");
    }
    for (name, workspace) in &file.workspaces {
        let key = |field: &str| format!("workspaces.{name}.{field}");
        if workspace
            .approvals
            .as_deref()
            .is_some_and(|mode| mode != "off")
        {
            return Err(ConfigFault::new(
                key("approvals"),
                "approval holds are not built into this version; use \"off\"",
            ));
        }
    }
    Ok(())
}
