//! The command line: load, build, wait for the end.

#![allow(
    unreachable_pub,
    missing_docs,
    reason = "a program has no public items; modules speak to each other"
)]

mod app;
mod banner;
mod catalogue;
mod config;
mod confine;
mod facts;
mod handler;
mod recovery;
#[cfg(test)]
mod reference;
mod resolve;
mod stack;
mod telemetry;
mod transport;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    config::{Config, Overrides},
    telemetry::LogFormat,
    transport::{admin::Admin, http, stdio},
};

/// Connections, two for each process, files at work, and room.
const DESCRIPTORS: u64 = 16_384;

/// A call is some hundred small allocations, freed on whichever worker ends it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The execution layer of coding agents, served over MCP.
#[derive(Parser)]
#[command(name = "codespace", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// How logs are written to stderr.
    #[arg(long, global = true, value_enum, default_value = "pretty")]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Serve MCP over Streamable HTTP at /mcp.
    Serve(Serve),
    /// Serve MCP over stdin and stdout.
    Stdio(Common),
    /// Validate the configuration and print what would be in force.
    Check(Serve),
}

#[derive(Args)]
struct Common {
    /// A TOML file; see the README for its keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A folder to work in; `:ro` allows reading only. May be given several times.
    #[arg(long = "workspace", value_name = "NAME=DIR[:ro]")]
    workspaces: Vec<String>,
}

#[derive(Args)]
struct Serve {
    #[command(flatten)]
    common: Common,
    /// ADDRESS:PORT or unix:/PATH.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
}

fn main() -> ExitCode {
    // The sandbox's helper: before any thread or runtime, and without the rest of this program.
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "sandbox") {
        return codespace_sandbox::helper_main(&arguments);
    }
    let cli = Cli::parse();
    let _logs = telemetry::init_logs(cli.log_format);
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::tell(&format!("codespace: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    harden()?;
    let (common, listen, http) = match &command {
        Command::Serve(serve) | Command::Check(serve) => {
            (&serve.common, serve.listen.clone(), true)
        }
        Command::Stdio(common) => (common, None, false),
    };
    let overrides = Overrides {
        config: common.config.clone(),
        listen,
        workspaces: common.workspaces.clone(),
        http,
    };
    let config = Config::load(&overrides)?;
    if matches!(command, Command::Check(_)) {
        return banner::check(&config);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    let served = runtime.block_on(async {
        match command {
            Command::Serve(_) => serve(&config).await,
            Command::Stdio(_) => serve_stdio(&config).await,
            Command::Check(_) => Ok(()),
        }
    });
    // stdin's reader thread cannot be interrupted; nothing else is left to wait for.
    runtime.shutdown_background();
    served
}

/// No core dumps, no reading of this process's memory by another: it holds tokens. And as
/// many descriptors as the operator allows at all: the usual 1,024 are few for a server.
fn harden() -> Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With far more, programs that close every number there could be get slow.
        let wanted = hard.min(DESCRIPTORS);
        if soft < wanted {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
        }
    }
    nix::sys::prctl::set_dumpable(false).context("the process cannot be made non-dumpable")?;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0)
        .context("core dumps cannot be turned off")?;
    Ok(())
}

async fn serve(config: &Config) -> Result<()> {
    let stop = stop_on_signal()?;
    // Without a place to tell them metrics would only be gathered.
    let metrics = config
        .admin
        .map(|address| telemetry::init_metrics().map(|metrics| (address, metrics)))
        .transpose()?;
    let app = App::build(config, vec!["streamable-http"]).await?;
    let server = http::Server::bind(config, app.handler.clone()).await?;
    let name = server.name();
    let ready = Arc::new(AtomicBool::new(true));
    let admin = match metrics {
        None => None,
        Some((address, metrics)) => {
            let admin = Admin {
                metrics,
                store: app.store.clone(),
                ready: Arc::clone(&ready),
            };
            Some(admin.start(address).await?)
        }
    };
    telemetry::tell(&banner::serve(
        config,
        &name,
        admin.as_deref(),
        &app.store_note,
    ));
    // Readiness goes first, so that a proxy sends its next calls elsewhere.
    let stopped = async {
        stop.cancelled().await;
        ready.store(false, Ordering::Relaxed);
    };
    let drained = app.shut_down().shared();
    // Serving does not wait for the sandbox to be probed.
    let ((), ()) = tokio::join!(tell_enforced(&app), server.serve(stopped, drained.clone()));
    // All connections may have ended before the drain did.
    drained.await;
    tracing::info!("stopped");
    Ok(())
}

async fn tell_enforced(app: &App) {
    let facts = app.facts.clone().await;
    telemetry::tell(&banner::enforced(&facts));
}

async fn serve_stdio(config: &Config) -> Result<()> {
    let stop = stop_on_signal()?;
    let app = App::build(config, vec!["stdio"]).await?;
    telemetry::tell(&banner::stdio(config, &app.store_note));
    let drained = app.shut_down().shared();
    let serving = stdio::serve(
        app.handler.clone(),
        config.body_bytes,
        stop,
        drained.clone(),
    );
    let ((), served) = tokio::join!(tell_enforced(&app), serving);
    drained.await;
    served
}

/// Cancelled by the first signal that asks for an end: a closed terminal does, too, unless
/// the server was started to outlive it (nohup).
fn stop_on_signal() -> Result<CancellationToken> {
    use nix::sys::signal::Signal;
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    for wanted in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGHUP,
    ] {
        if wanted == Signal::SIGHUP && is_ignored(wanted) {
            continue;
        }
        let mut caught = signal(SignalKind::from_raw(wanted as i32))
            .with_context(|| format!("{wanted} cannot be caught"))?;
        let told = stop.clone();
        tokio::spawn(async move {
            caught.recv().await;
            told.cancel();
        });
    }
    Ok(stop)
}

/// Whether whoever started the server had the signal ignored (proc_pid_status(5)).
fn is_ignored(signal: nix::sys::signal::Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal as i32 - 1)) != 0)
}
