//! Servers under measurement: where their programs are, their lives, what they use.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// The two programs that are measured.
pub(crate) struct Programs {
    codespace: PathBuf,
    bench: PathBuf,
}

/// A folder that a server works in, with its state beside it. Removed at the end.
pub(crate) struct Place {
    all: TempDir,
}

/// A running server over HTTP; ended with its handle, or with this program.
pub(crate) struct Server {
    child: Child,
    /// Waits for the end of its stdin, which comes with this program's own end, however
    /// that comes about, and kills the server then.
    watcher: Child,
    pub(crate) address: String,
}

impl Programs {
    /// Builds the server in this program's own profile; it lands in the same folder.
    pub(crate) fn build() -> Result<Self> {
        let bench = std::env::current_exe()?;
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "-q", "-p", "codespace", "--manifest-path"]);
        cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        ensure!(cargo.status()?.success(), "the server could not be built");
        let codespace = bench.with_file_name("codespace");
        ensure!(
            codespace.exists(),
            "{} is missing: run this with cargo run",
            codespace.display()
        );
        Ok(Self { codespace, bench })
    }

    /// The command for the server on `place`, over the given transport.
    pub(crate) fn codespace(&self, transport: &str, place: &Place) -> Command {
        let mut command = Command::new(&self.codespace);
        command
            .args([transport, "--workspace"])
            .arg(format!("w={}", place.root().display()))
            .env("XDG_STATE_HOME", place.all.path().join("state"));
        command
    }

    pub(crate) fn serve(&self, place: &Place) -> Result<Server> {
        self.serve_with(place, &[])
    }

    /// With these variables set, which override the configuration's defaults.
    pub(crate) fn serve_with(&self, place: &Place, settings: &[(&str, &str)]) -> Result<Server> {
        let mut command = self.codespace("serve", place);
        command.envs(settings.iter().copied());
        Self::listening(command)
    }

    fn listening(mut command: Command) -> Result<Server> {
        command
            .args(["--listen", "127.0.0.1:0"])
            .env("CODESPACE_ADMIN__LISTEN", "127.0.0.1:0");
        Server::start(command)
    }

    /// With more workspaces, each named and with its root.
    pub(crate) fn serve_beside(
        &self,
        place: &Place,
        others: &[(String, PathBuf)],
    ) -> Result<Server> {
        let mut command = self.codespace("serve", place);
        for (name, root) in others {
            command.arg("--workspace");
            command.arg(format!("{name}={}", root.display()));
        }
        Self::listening(command)
    }

    /// The server's program, which is its sandbox helper too.
    pub(crate) fn codespace_program(&self) -> &Path {
        &self.codespace
    }

    pub(crate) fn bare(&self) -> Result<Server> {
        let mut command = Command::new(&self.bench);
        command.arg("bare");
        Server::start(command)
    }
}

impl Place {
    pub(crate) fn new() -> Result<Self> {
        let all = tempfile::tempdir()?;
        fs::create_dir(all.path().join("root"))?;
        Ok(Self { all })
    }

    /// The workspace `w`.
    pub(crate) fn root(&self) -> PathBuf {
        self.all.path().join("root")
    }

    pub(crate) fn put(&self, path: impl AsRef<Path>, content: &str) -> Result<()> {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        Ok(fs::write(path, content)?)
    }

    pub(crate) fn get(&self, path: impl AsRef<Path>) -> Result<String> {
        Ok(fs::read_to_string(self.root().join(path))?)
    }
}

impl Server {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let watcher = Command::new("sh")
            .args([
                "-c",
                r#"read -r _; kill -KILL "$0""#,
                &child.id().to_string(),
            ])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("a pipe")?).lines();
        let address = loop {
            let line = lines.next().context("the server ended at its start")??;
            if let Some((_, rest)) = line.split_once("listening  http://") {
                break rest.trim_end_matches("/mcp").to_owned();
            }
        };
        // Keeps the pipe open and empty, so that a log line never blocks.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self {
            child,
            watcher,
            address,
        })
    }

    /// User and system time so far, in microseconds; the kernel counts in clock ticks.
    pub(crate) fn cpu_micros(&self) -> Result<u64> {
        // Linux shows ticks of 10 ms to user space whatever its own clock: proc_pid_stat(5).
        const TICK: u64 = 10_000;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Field 2, the name, may hold anything; the rest begins after its last parenthesis.
        let (_, rest) = stat.rsplit_once(") ").context("a stat line")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(ticks * TICK)
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // First, so that it never kills another process that got the server's id.
        let _ = self.watcher.kill();
        let _ = self.watcher.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
