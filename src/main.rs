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
#[cfg(test)]
mod reference;
mod resolve;
mod settle;
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
    /// Read, patch and run for a server that started this process (internal).
    #[command(hide = true)]
    Worker,
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
    if matches!(cli.command, Command::Worker) {
        return worker();
    }
    telemetry::init_logs(cli.log_format);
    match run(cli.command, cli.log_format) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("codespace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The worker: everything it needs to know comes over its stdin.
fn worker() -> ExitCode {
    if let Err(error) = harden() {
        eprintln!("codespace worker: {error:#}");
        return ExitCode::FAILURE;
    }
    codespace_worker::worker_main(confine::OWN_PROGRAM.as_ref(), telemetry::init_worker_logs)
}

fn run(command: Command, log_format: LogFormat) -> Result<()> {
    harden()?;
    let (common, listen, http) = match &command {
        Command::Serve(serve) | Command::Check(serve) => {
            (&serve.common, serve.listen.clone(), true)
        }
        Command::Stdio(common) => (common, None, false),
        Command::Worker => return Ok(()),
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
            Command::Serve(_) => serve(&config, log_format).await,
            Command::Stdio(_) => serve_stdio(&config, log_format).await,
            Command::Check(_) | Command::Worker => Ok(()),
        }
    });
    // stdin's reader thread cannot be interrupted; nothing else is left to wait for.
    runtime.shutdown_background();
    served
}

/// No core dumps, no reading of this process's memory by another: it holds tokens.
fn harden() -> Result<()> {
    nix::sys::prctl::set_dumpable(false).context("the process cannot be made non-dumpable")?;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0)
        .context("core dumps cannot be turned off")?;
    Ok(())
}

async fn serve(config: &Config, log_format: LogFormat) -> Result<()> {
    let stop = stop_on_signal()?;
    let metrics = telemetry::init_metrics()?;
    let app = App::build(config, vec!["streamable-http"], log_format).await?;
    let server = http::Server::bind(config, app.handler.clone()).await?;
    let name = server.name();
    let ready = Arc::new(AtomicBool::new(true));
    let admin = match config.admin {
        None => None,
        Some(address) => {
            let admin = Admin {
                metrics,
                store: app.store.clone(),
                ready: Arc::clone(&ready),
            };
            Some(admin.start(address).await?)
        }
    };
    // Serving does not wait for what is told of it.
    let told = async {
        let facts = app.facts.clone().await;
        let admin = admin.as_deref();
        let text = banner::serve(config, &name, admin, &app.store_note, &facts);
        eprint!("{text}");
    };
    // Readiness goes first, so that a proxy sends its next calls elsewhere.
    let stopped = async {
        stop.cancelled().await;
        ready.store(false, Ordering::Relaxed);
    };
    let drained = app.shut_down().shared();
    let ((), ()) = tokio::join!(told, server.serve(stopped, drained.clone()));
    // All connections may have ended before the drain did.
    drained.await;
    tracing::info!("stopped");
    Ok(())
}

async fn serve_stdio(config: &Config, log_format: LogFormat) -> Result<()> {
    let stop = stop_on_signal()?;
    let app = App::build(config, vec!["stdio"], log_format).await?;
    let told = async {
        let facts = app.facts.clone().await;
        eprint!("{}", banner::stdio(config, &app.store_note, &facts));
    };
    let serving = stdio::serve(app.handler.clone(), config.body_bytes, stop.cancelled());
    let ((), served) = tokio::join!(told, serving);
    app.shut_down().await;
    served
}

/// Cancelled by the first SIGTERM or SIGINT.
fn stop_on_signal() -> Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be caught")?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        told.cancel();
    });
    Ok(stop)
}
