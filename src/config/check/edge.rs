//! Where the server listens, and under which names it is reached.

use std::{net::SocketAddr, path::PathBuf};

use super::{Checked, ConfigFault, Listen, Public, file};

pub(super) fn listen(text: Option<&str>) -> Checked<Listen> {
    let text = text.unwrap_or("127.0.0.1:8787");
    if let Some(path) = text.strip_prefix("unix:") {
        let path = PathBuf::from(path);
        if !path.is_absolute() {
            return Err(ConfigFault::new(
                "server.listen",
                "the path after unix: must be absolute",
            ));
        }
        return Ok(Listen::Unix(path));
    }
    text.parse().map(Listen::Tcp).map_err(|_| {
        ConfigFault::new(
            "server.listen",
            format!("{text:?} is neither ADDRESS:PORT (as 127.0.0.1:8787) nor unix:/PATH"),
        )
    })
}

pub(super) fn admin(text: Option<&str>) -> Checked<Option<SocketAddr>> {
    match text.unwrap_or("127.0.0.1:9464") {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ConfigFault::new(
                "admin.listen",
                format!("{text:?} is neither ADDRESS:PORT (as 127.0.0.1:9464) nor \"\" for none"),
            )
        }),
    }
}

pub(super) fn public(server: &file::Server) -> Checked<Public> {
    let mut public = Public {
        hosts: server.allowed_hosts.clone().unwrap_or_default(),
        ..Public::default()
    };
    if let Some(host) = public
        .hosts
        .iter()
        .find(|host| host.is_empty() || host.contains(['/', '*', ' ']))
    {
        return Err(ConfigFault::new(
            "server.allowed_hosts",
            format!("{host:?} is not a host name or host:port; wildcards are not allowed"),
        ));
    }
    if let Some(url) = &server.public_url {
        let bad = |why: &str| ConfigFault::new("server.public_url", format!("{url:?} {why}"));
        let uri: http::Uri = url.parse().map_err(|_| bad("is not a URL"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(bad("must be absolute, as https://code.example.com/tools"));
        };
        if !matches!(scheme, "http" | "https")
            || uri.query().is_some()
            || authority.as_str().contains('@')
        {
            return Err(bad("must be http or https, without user and query"));
        }
        public.hosts.push(authority.as_str().to_owned());
        public.origins.push(format!("{scheme}://{authority}"));
        public.prefix = uri.path().trim_end_matches('/').to_owned();
    }
    Ok(public)
}
