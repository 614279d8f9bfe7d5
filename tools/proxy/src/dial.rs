//! The one place that connects: decides, resolves once, and dials what it checked.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    address::{Reach, own_addresses},
    decision::Decision,
    host::{Host, Target},
    policy::{ALLOW_DOMAINS, ALLOW_PRIVATE, Policy},
    resolve::Resolve,
};

/// How long an attempt has the line for itself before the next address is tried beside it
/// (RFC 8305, 5, recommends 250 ms).
const STAGGER: Duration = Duration::from_millis(250);

/// A name with more addresses than this is tried at the first ones.
const ADDRESSES: usize = 16;

/// Connects on behalf of one workspace.
pub(crate) struct Dialer {
    pub(crate) policy: Arc<Policy>,
    pub(crate) resolver: Arc<dyn Resolve>,
    /// For the lookup, and again for the connection.
    pub(crate) patience: Duration,
}

/// Why there is no connection. What is said to the client names the host it asked for and
/// the key that would change it, and no address: an internal one is none of its business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Name,
    Address,
    Unknown,
    Unreachable(io::ErrorKind),
    TimedOut,
}

impl Dialer {
    /// Connects with `target` if it is allowed, and counts what became of it.
    pub(crate) async fn dial(&self, target: &Target) -> Result<TcpStream, Refusal> {
        let dialled = self.decide_and_dial(target).await;
        let decision = match &dialled {
            Ok(_) => Decision::Allowed,
            Err(refusal) => refusal.decision(),
        };
        decision.count();
        dialled
    }

    async fn decide_and_dial(&self, target: &Target) -> Result<TcpStream, Refusal> {
        // Before the lookup: a question to a name server carries data out as well.
        if !self.policy.allows(target) {
            return Err(Refusal::Name);
        }
        let found = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => timeout(self.patience, self.resolver.resolve(name))
                .await
                .map_err(|_| Refusal::TimedOut)?
                .map_err(|_| Refusal::Unknown)?,
        };
        if found.is_empty() {
            return Err(Refusal::Unknown);
        }
        // Without the list of its own addresses the host could be reached: nothing is dialled.
        let own = own_addresses().map_err(|error| Refusal::Unreachable(error.kind()))?;
        let addresses = self.permitted(target, &found, &own);
        if addresses.is_empty() {
            return Err(Refusal::Address);
        }
        let stream = timeout(self.patience, connect(addresses))
            .await
            .map_err(|_| Refusal::TimedOut)?
            .map_err(|error| Refusal::Unreachable(error.kind()))?;
        // A request is often one small write: with Nagle's delay each costs 40 ms.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    fn permitted(&self, target: &Target, found: &[IpAddr], own: &[IpAddr]) -> Vec<SocketAddr> {
        let permitted =
            |address: &&IpAddr| self.policy.allows_reach(target, Reach::of(**address, own));
        found
            .iter()
            .filter(permitted)
            .take(ADDRESSES)
            .map(|address| SocketAddr::new(*address, target.port))
            .collect()
    }

    /// What is said to a client, in a sentence or two.
    pub(crate) fn explain(&self, target: &Target, refusal: Refusal) -> String {
        let reason = match refusal {
            Refusal::Name => format!(
                "refused: {} does not list {target}",
                self.policy.key(ALLOW_DOMAINS)
            ),
            Refusal::Address => format!(
                "refused: {target} is at no public address, and {} does not list it",
                self.policy.key(ALLOW_PRIVATE)
            ),
            Refusal::Unknown => format!("{target}: the name was not found"),
            Refusal::Unreachable(kind) => format!("{target}: {kind}"),
            Refusal::TimedOut => format!("{target}: no answer in time"),
        };
        format!("codespace proxy: {reason}\n")
    }

    /// The key of the configuration that would lift a refusal.
    pub(crate) fn key(&self, refusal: Refusal) -> Option<String> {
        match refusal {
            Refusal::Name => Some(self.policy.key(ALLOW_DOMAINS)),
            Refusal::Address => Some(self.policy.key(ALLOW_PRIVATE)),
            Refusal::Unknown | Refusal::Unreachable(_) | Refusal::TimedOut => None,
        }
    }
}

/// The first address that answers, each next one starting a moment after the last, or at
/// once when one fails: a dead address family costs a quarter of a second, no more.
async fn connect(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    attempts.extend(waiting.next().map(TcpStream::connect));
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        tokio::select! {
            done = attempts.next() => match done {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => {
                    last = error;
                    attempts.extend(waiting.next().map(TcpStream::connect));
                }
                None => return Err(last),
            },
            () = sleep(STAGGER), if waiting.len() > 0 => {
                attempts.extend(waiting.next().map(TcpStream::connect));
            }
        }
    }
}

impl Refusal {
    fn decision(self) -> Decision {
        match self {
            Self::Name => Decision::DeniedName,
            Self::Address => Decision::DeniedAddress,
            Self::Unknown | Self::Unreachable(_) | Self::TimedOut => Decision::Failed,
        }
    }
}

// The resolver is anyone's type, and a policy holds names of hosts.
impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::Resolving;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpListener;

    /// Answers each question with the next of its lists, the last one for ever.
    struct Answers(Vec<Vec<&'static str>>, AtomicUsize);

    impl Resolve for Answers {
        fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
            let asked = self.1.fetch_add(1, Ordering::Relaxed);
            let answer = &self.0[asked.min(self.0.len() - 1)];
            let addresses = answer.iter().map(|text| text.parse().unwrap()).collect();
            Box::pin(std::future::ready(Ok(addresses)))
        }
    }

    fn dialer(private: &[String], answers: &[&[&'static str]]) -> (Dialer, Arc<Answers>) {
        let allow: Vec<String> = ["a.test", "b.test"].map(str::to_owned).to_vec();
        let allow = allow.iter().cloned().chain(private.iter().cloned());
        let answers = answers.iter().map(|answer| answer.to_vec()).collect();
        let answers = Arc::new(Answers(answers, AtomicUsize::new(0)));
        let dialer = Dialer {
            policy: Arc::new(Policy::parse("demo", allow, private).unwrap()),
            resolver: Arc::clone(&answers) as Arc<dyn Resolve>,
            patience: Duration::from_secs(5),
        };
        (dialer, answers)
    }

    fn target(text: &str) -> Target {
        Target::parse(text, None).unwrap()
    }

    #[tokio::test]
    async fn a_refused_name_is_never_looked_up() {
        let (dialer, answers) = dialer(&[], &[&["127.0.0.1"]]);
        let refused = dialer.dial(&target("c.test:443")).await.unwrap_err();
        assert_eq!(refused, Refusal::Name);
        assert_eq!(answers.1.load(Ordering::Relaxed), 0);
        assert_eq!(
            dialer.explain(&target("c.test:443"), refused),
            "codespace proxy: refused: workspaces.demo.allow_domains does not list c.test:443\n"
        );
    }

    #[tokio::test]
    async fn an_allowed_name_at_a_private_address() {
        for address in [
            "127.0.0.1",
            "::1",
            "10.0.0.1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
        ] {
            let (dialer, _) = dialer(&[], &[&[address]]);
            let refused = dialer.dial(&target("a.test:443")).await.unwrap_err();
            assert_eq!(refused, Refusal::Address, "{address}");
        }
    }

    #[tokio::test]
    async fn only_the_fine_addresses_of_a_name() {
        let (dialer, _) = dialer(&[], &[&["8.8.8.8"]]);
        let found: Vec<IpAddr> = ["127.0.0.1", "8.8.8.8", "::1", "2a00::1", "1.1.1.1"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let own = ["1.1.1.1".parse().unwrap()];
        let permitted = dialer.permitted(&target("a.test:443"), &found, &own);
        let fine = ["8.8.8.8:443", "[2a00::1]:443"].map(|text| text.parse().unwrap());
        assert_eq!(permitted, fine);
    }

    #[tokio::test]
    async fn one_lookup_a_connection_and_its_answer_is_dialled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let private = [format!("c.test:{port}")];
        // Were it asked twice, the second answer would lead to where nobody listens.
        let (dialer, answers) = dialer(&private, &[&["127.0.0.1"], &["127.0.0.2"]]);
        let stream = dialer.dial(&target(&private[0])).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
        assert_eq!(answers.1.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_next_address_when_one_is_dead() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let private = [format!("c.test:{}", listener.local_addr().unwrap().port())];
        let (dialer, _) = dialer(&private, &[&["127.0.0.2", "::1", "127.0.0.1"]]);
        assert!(dialer.dial(&target(&private[0])).await.is_ok());
    }

    #[tokio::test]
    async fn nobody_there() {
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap().port()
        };
        let private = [format!("c.test:{port}")];
        let (there, _) = dialer(&private, &[&["127.0.0.1"]]);
        let refused = there.dial(&target(&private[0])).await.unwrap_err();
        assert_eq!(
            refused,
            Refusal::Unreachable(io::ErrorKind::ConnectionRefused)
        );
        let (nowhere, _) = dialer(&private, &[&[]]);
        let refused = nowhere.dial(&target(&private[0])).await.unwrap_err();
        assert_eq!(refused, Refusal::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_server_that_is_silent() {
        struct Silent;
        impl Resolve for Silent {
            fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
                Box::pin(std::future::pending())
            }
        }
        let (mut dialer, _) = dialer(&[], &[&[]]);
        dialer.resolver = Arc::new(Silent);
        let refused = dialer.dial(&target("a.test:443")).await.unwrap_err();
        assert_eq!(refused, Refusal::TimedOut);
    }
}
