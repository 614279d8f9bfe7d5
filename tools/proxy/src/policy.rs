//! Who may be reached: the rules of one workspace, as the configuration writes them.
//!
//! A list of what is allowed and nothing else, so that an empty or forgotten list is a
//! closed door. `allow_private` never opens a name by itself: it says that a host which
//! `allow_domains` lists may be at an address that is not public.

use std::{error::Error, fmt, net::IpAddr};

use crate::{
    address::Reach,
    host::{Host, Target, split_port},
};

/// The rules of one workspace.
///
/// ```
/// use codespace_proxy::Policy;
///
/// let policy = Policy::parse("demo", ["example.com", "*.example.com", "git.corp:8443"], ["git.corp:8443"])?;
/// let refused = Policy::parse("demo", ["https://example.com"], [""; 0]).unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "workspaces.demo.allow_domains: \"https://example.com\": an entry is a host or host:port, not a URL",
/// );
/// # Ok::<(), codespace_proxy::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    workspace: String,
    allow: Vec<Rule>,
    private: Vec<Rule>,
}

/// One entry of a list: a host, or all names below a domain, with its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    pattern: Pattern,
    /// Without a port of its own an entry means the web's: 80 and 443.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Host(Host),
    /// The domain with its leading dot; subdomains of every depth, not the domain itself.
    Below(String),
}

/// An entry that is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    workspace: String,
    key: &'static str,
    entry: String,
    rule: &'static str,
}

pub(crate) const ALLOW_DOMAINS: &str = "allow_domains";
pub(crate) const ALLOW_PRIVATE: &str = "allow_private";

impl PolicyError {
    /// The key of the workspace's section that holds the entry.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.key
    }
}

// === impl Policy ===

impl Policy {
    /// Reads the lists `allow_domains` and `allow_private` of `workspace`.
    ///
    /// # Errors
    /// The first entry that is no rule, with its key and the rule it broke.
    pub fn parse<T: AsRef<str>, U: AsRef<str>>(
        workspace: &str,
        allow_domains: impl IntoIterator<Item = T>,
        allow_private: impl IntoIterator<Item = U>,
    ) -> Result<Self, PolicyError> {
        Ok(Self {
            workspace: workspace.to_owned(),
            allow: rules(workspace, ALLOW_DOMAINS, allow_domains)?,
            private: rules(workspace, ALLOW_PRIVATE, allow_private)?,
        })
    }

    /// The key of the configuration that would change a decision, written in full.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("workspaces.{}.{key}", self.workspace)
    }

    /// Whether the host may be asked for at all.
    pub(crate) fn allows(&self, target: &Target) -> bool {
        self.allow.iter().any(|rule| rule.matches(target))
    }

    /// Whether `target` may be at an address of this `reach`.
    pub(crate) fn allows_reach(&self, target: &Target, reach: Reach) -> bool {
        match reach {
            Reach::Global => true,
            Reach::Local => self.private.iter().any(|rule| rule.matches(target)),
            // Credentials of the machine itself: a name must not lead there by its DNS record.
            Reach::Metadata => {
                matches!(target.host, Host::Address(_))
                    && self.private.iter().any(|rule| rule.matches(target))
            }
            Reach::Never => false,
        }
    }
}

fn rules<T: AsRef<str>>(
    workspace: &str,
    key: &'static str,
    entries: impl IntoIterator<Item = T>,
) -> Result<Vec<Rule>, PolicyError> {
    let rule = |entry: T| {
        Rule::parse(entry.as_ref()).map_err(|rule| PolicyError {
            workspace: workspace.to_owned(),
            key,
            entry: entry.as_ref().to_owned(),
            rule,
        })
    };
    entries.into_iter().map(rule).collect()
}

// === impl Rule ===

impl Rule {
    /// Reads one entry. The error is the rule of writing that was broken.
    fn parse(entry: &str) -> Result<Self, &'static str> {
        if entry.contains('/') || entry.contains('@') {
            return Err("an entry is a host or host:port, not a URL");
        }
        let (host, port) = split_port(entry)?;
        let pattern = match host.strip_prefix("*.") {
            Some(domain) => match Host::parse(domain)? {
                Host::Name(name) => Pattern::Below(format!(".{name}")),
                Host::Address(_) => return Err("an address has no subdomains"),
            },
            None if host.contains('*') => {
                return Err("a star stands only at the start, before a dot: *.example.com");
            }
            None => Pattern::Host(Host::parse(host)?),
        };
        Ok(Self { pattern, port })
    }

    fn matches(&self, target: &Target) -> bool {
        let port = match self.port {
            Some(port) => target.port == port,
            None => target.port == 80 || target.port == 443,
        };
        port && match (&self.pattern, &target.host) {
            (Pattern::Host(host), asked) => host == asked,
            (Pattern::Below(domain), Host::Name(name)) => {
                name.len() > domain.len() && name.ends_with(domain.as_str())
            }
            (Pattern::Below(_), Host::Address(IpAddr::V4(_) | IpAddr::V6(_))) => false,
        }
    }
}

// === impl PolicyError ===

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            workspace,
            key,
            entry,
            rule,
        } = self;
        write!(f, "workspaces.{workspace}.{key}: {entry:?}: {rule}")
    }
}

impl Error for PolicyError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], private: &[&str]) -> Policy {
        Policy::parse("demo", allow, private).unwrap()
    }

    fn allows(allow: &[&str], target: &str) -> bool {
        policy(allow, &[]).allows(&Target::parse(target, None).unwrap())
    }

    #[test]
    fn what_a_rule_opens() {
        for (rule, target, allowed) in [
            ("example.com", "example.com:443", true),
            ("example.com", "EXAMPLE.com.:80", true),
            ("Example.COM.", "example.com:443", true),
            ("example.com", "example.com:8443", false),
            ("example.com", "www.example.com:443", false),
            ("example.com", "example.com.evil.test:443", false),
            ("example.com", "notexample.com:443", false),
            ("*.example.com", "www.example.com:443", true),
            ("*.example.com", "a.b.example.com:443", true),
            ("*.example.com", "example.com:443", false),
            ("*.example.com", "notexample.com:443", false),
            ("*.example.com:8443", "a.example.com:8443", true),
            ("*.example.com:8443", "a.example.com:443", false),
            ("host:8443", "host:8443", true),
            ("host:8443", "host:443", false),
            ("192.0.2.1", "192.0.2.1:443", true),
            ("192.0.2.1", "192.0.2.2:443", false),
            ("[2001:db8::1]:22", "[2001:DB8:0::1]:22", true),
            ("*.example.com", "192.0.2.1:443", false),
        ] {
            assert_eq!(allows(&[rule], target), allowed, "{rule} {target}");
        }
        assert!(!allows(&[], "example.com:443"));
        assert!(allows(&["a.test", "b.test"], "b.test:80"));
    }

    #[test]
    fn what_is_no_rule() {
        for (entry, rule) in [
            ("", "the host is missing"),
            (
                "*",
                "a star stands only at the start, before a dot: *.example.com",
            ),
            (
                "a.*.com",
                "a star stands only at the start, before a dot: *.example.com",
            ),
            ("*.", "the host is missing"),
            ("*.1.2.3.4", "an address has no subdomains"),
            (
                "https://a.test",
                "an entry is a host or host:port, not a URL",
            ),
            ("a.test/x", "an entry is a host or host:port, not a URL"),
            ("a.test:", "a port is a number from 1 to 65535"),
            ("a.test:*", "a port is a number from 1 to 65535"),
            ("::1", "an IPv6 address goes in brackets"),
            (
                " a.test",
                "a name consists of letters, digits, hyphens and dots",
            ),
            (
                "bücher.test",
                "a name is ASCII; write an international name in its xn-- form",
            ),
        ] {
            let error = Policy::parse("demo", [""; 0], [entry]).unwrap_err();
            let text = format!("workspaces.demo.allow_private: {entry:?}: {rule}");
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn what_allow_private_opens() {
        let policy = policy(&["a.test"], &["a.test:443", "169.254.169.254:80"]);
        let reach =
            |target: &str, reach| policy.allows_reach(&Target::parse(target, None).unwrap(), reach);
        assert!(reach("b.test:1", Reach::Global));
        assert!(reach("a.test:443", Reach::Local));
        assert!(!reach("a.test:80", Reach::Local));
        assert!(!reach("b.test:443", Reach::Local));
        assert!(!reach("a.test:443", Reach::Metadata));
        assert!(!reach("a.test:443", Reach::Never));
        assert!(reach("169.254.169.254:80", Reach::Metadata));
        assert!(!reach("169.254.169.254:443", Reach::Metadata));
        // A private host is not allowed by being private.
        assert!(!policy.allows(&Target::parse("169.254.169.254:80", None).unwrap()));
    }
}
