//! What the tests stand on: an origin, a resolver that says what a test wants, a proxy in
//! front of both, and programs run with nothing but the proxy's variables.

use std::{
    collections::HashMap,
    future::ready,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use codespace_proxy::{Limits, Policy, Proxy, ProxyHandle, Resolve, Resolving};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

/// Where the tests' programs come from on Debian.
const PACKAGES: [(&str, &str); 5] = [
    ("cargo", "rustup"),
    ("npm", "npm"),
    ("openssl", "openssl"),
    ("python3", "python3 python3-pip"),
    ("curl", "curl"),
];

/// The web servers of `origin.py`, and a folder of their own.
pub(crate) struct Origin {
    place: TempDir,
    pub(crate) http: u16,
    pub(crate) https: u16,
    _child: Child,
}

impl Origin {
    pub(crate) async fn start() -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("root")).unwrap();
        std::fs::create_dir(place.path().join("home")).unwrap();
        let key = place.path().join("key.pem");
        let certificate = place.path().join("certificate.pem");
        let mut made = Command::new("openssl");
        made.args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(' '),
        )
        .args(["-subj", "/CN=code.test"])
        .args(["-addext", "subjectAltName=DNS:code.test"])
        .args(["-addext", "keyUsage=critical,digitalSignature,keyCertSign"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
        succeed("openssl", &mut made).await;
        let mut child = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/origin.py"))
            .args([&place.path().join("root"), &certificate, &key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| missing("python3", &error));
        let mut ports = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut ports).await.unwrap();
        let mut ports = ports.split_whitespace().map(|port| port.parse().unwrap());
        Self {
            http: ports.next().unwrap(),
            https: ports.next().unwrap(),
            place,
            _child: child,
        }
    }

    /// The folder that is served.
    pub(crate) fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// A folder for the clients.
    pub(crate) fn home(&self) -> PathBuf {
        self.place.path().join("home")
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.place.path().join("certificate.pem")
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// A proxy that lets `code.test` through to both servers, and nothing else.
    pub(crate) fn proxy(&self) -> ProxyHandle {
        let rules = [self.http, self.https].map(|port| format!("code.test:{port}"));
        proxy(&rules, &rules, Names::local(&["code.test"]))
    }

    /// `program`, with PATH, a HOME, the proxy's variables, and nothing else.
    pub(crate) fn command(&self, program: &str, proxy: &ProxyHandle) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home())
            .envs(ProxyHandle::environment(proxy.address()))
            .current_dir(self.home());
        command
    }

    /// What `curl` wrote, and its exit code.
    pub(crate) async fn curl(&self, proxy: &ProxyHandle, arguments: &[&str]) -> (i32, String) {
        let mut command = self.command("curl", proxy);
        command.args(["-sS", "--cacert"]).arg(self.certificate());
        let output = run("curl", command.args(arguments)).await;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        (output.status.code().unwrap(), text)
    }
}

/// Runs a program to its end; one that is not there fails the test, with what to install.
pub(crate) async fn run(program: &str, command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    output
        .await
        .unwrap_or_else(|error| missing(program, &error))
}

/// Runs a program that must succeed; what it wrote.
pub(crate) async fn succeed(program: &str, command: &mut Command) -> String {
    let output = run(program, command).await;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program}: {text}");
    text
}

fn missing(program: &str, error: &io::Error) -> ! {
    let package = PACKAGES.iter().find(|(name, _)| *name == program);
    let package = package.map_or(program, |(_, package)| package);
    panic!("{program} does not start ({error}): install {package}");
}

/// A name server. A name's answers come one a question, the last one for ever.
#[derive(Default)]
pub(crate) struct Names {
    answers: HashMap<String, Vec<Vec<IpAddr>>>,
    pub(crate) asked: AtomicUsize,
}

impl Names {
    /// These names, at the loopback.
    pub(crate) fn local(names: &[&str]) -> Arc<Self> {
        let mut all = Self::default();
        for name in names {
            all.add(name, &["127.0.0.1"]);
        }
        Arc::new(all)
    }

    /// One more answer for `name`.
    pub(crate) fn add(&mut self, name: &str, addresses: &[&str]) {
        let answer = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.answers
            .entry(name.to_owned())
            .or_default()
            .push(answer);
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let found = match self.answers.get(name) {
            Some(answers) => Ok(answers[asked.min(answers.len() - 1)].clone()),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        Box::pin(ready(found))
    }
}

pub(crate) fn proxy(allow: &[String], private: &[String], names: Arc<Names>) -> ProxyHandle {
    proxy_within(allow, private, names, Limits::default())
}

pub(crate) fn proxy_within(
    allow: &[String],
    private: &[String],
    names: Arc<Names>,
    limits: Limits,
) -> ProxyHandle {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let policy = Policy::parse("demo", allow, private).unwrap();
    Proxy::serve_within(listener, Arc::new(policy), names, limits).unwrap()
}

/// A connection with nothing in between but the test's own bytes.
pub(crate) struct Raw(pub(crate) BufReader<TcpStream>);

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).await.unwrap();
    }

    /// The head of an answer, and its body if it has a `Content-Length`.
    pub(crate) async fn answer(&mut self) -> (String, String) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).await.unwrap() > 0, "{head:?}");
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse().unwrap())
        });
        let mut body = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut body).await.unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// Everything until the other side ends, by whatever way.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest).await;
        rest
    }
}

/// Whether a file was fetched as it is.
pub(crate) fn same(path: &Path, content: &[u8]) -> bool {
    std::fs::read(path).unwrap() == content
}
