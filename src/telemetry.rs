//! Logs on stderr, and the Prometheus recorder with a word of help for every metric.

use std::io::IsTerminal;

use codespace_worker::Logs;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::{EnvFilter, fmt::format::FmtSpan};

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For a person; in colour on a terminal.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// From 50 µs, since a read takes less than a millisecond.
const BUCKETS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
    5.0, 30.0, 120.0,
];

/// Starts logging to stderr. `RUST_LOG` overrides what is shown.
pub fn init_logs(format: LogFormat) {
    start_logs(
        format,
        std::env::var(EnvFilter::DEFAULT_ENV).ok().as_deref(),
    );
}

/// How this server's worker is to log: as it does itself.
pub fn worker_logs(format: LogFormat) -> Logs {
    Logs {
        format: match format {
            LogFormat::Pretty => "pretty",
            LogFormat::Json => "json",
        }
        .to_owned(),
        filter: std::env::var(EnvFilter::DEFAULT_ENV).ok(),
    }
}

/// Starts a worker's logging.
pub fn init_worker_logs(logs: &Logs) {
    let format = match logs.format.as_str() {
        "json" => LogFormat::Json,
        _ => LogFormat::Pretty,
    };
    start_logs(format, logs.filter.as_deref());
}

fn start_logs(format: LogFormat, filter: Option<&str>) {
    // rmcp tells three lines a request at INFO.
    let filter = filter
        .and_then(|filter| EnvFilter::try_new(filter).ok())
        .unwrap_or_else(|| EnvFilter::new("info,rmcp=error"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::NONE)
        .with_target(false);
    // A second start in one process (tests) keeps the first subscriber.
    let _ = match format {
        LogFormat::Pretty => builder
            .with_ansi(std::io::stderr().is_terminal())
            .compact()
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// Installs the recorder and describes every metric.
///
/// # Errors
/// When a recorder is installed already.
pub fn init_metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    describe();
    Ok(handle)
}

fn describe() {
    let counters = [
        (
            "codespace_http_requests_total",
            "HTTP requests by route, method and status.",
        ),
        (
            "codespace_patch_files_total",
            "Files changed by applied patches, by kind.",
        ),
        (
            "codespace_process_exits_total",
            "Ended processes by termination.",
        ),
        (
            "codespace_process_output_bytes_total",
            "Bytes of output processes have written.",
        ),
        (
            "codespace_process_output_dropped_bytes_total",
            "Bytes of output dropped from full windows.",
        ),
    ];
    for (name, help) in counters {
        describe_counter!(name, help);
    }
    let gauges = [
        (
            "codespace_workspace_leases",
            "Held workspace leases by owner.",
        ),
        (
            "codespace_processes",
            "Live processes, by whether they have a terminal.",
        ),
        (
            "codespace_build_info",
            "Always 1; the labels tell the version.",
        ),
    ];
    for (name, help) in gauges {
        describe_gauge!(name, help);
    }
    let histograms = [
        (
            "codespace_http_request_duration_seconds",
            "Duration of HTTP requests until the response head.",
        ),
        (
            "codespace_process_duration_seconds",
            "Life of processes by termination.",
        ),
        (
            "codespace_process_spawn_seconds",
            "Time to start a process, by sandbox.",
        ),
        (
            "codespace_store_transaction_seconds",
            "Time of store transactions by kind.",
        ),
    ];
    for (name, help) in histograms {
        describe_histogram!(name, Unit::Seconds, help);
    }
    metrics::gauge!("codespace_build_info", "version" => env!("CARGO_PKG_VERSION"), "revision" => option_env!("CODESPACE_REVISION").unwrap_or("unknown")).set(1.0);
    // Exposed from the first scrape: a series that appears only with its first fault cannot be alerted on.
    codespace_layers::names::register("unknown");
    for name in [
        "codespace_process_output_bytes_total",
        "codespace_process_output_dropped_bytes_total",
    ] {
        metrics::counter!(name).absolute(0);
    }
    metrics::counter!("codespace_http_requests_total", "route" => "other", "method" => "GET", "status" => "200").absolute(0);
    metrics::counter!("codespace_patch_files_total", "kind" => "update").absolute(0);
    metrics::counter!("codespace_process_exits_total", "termination" => "exited").absolute(0);
    metrics::gauge!("codespace_workspace_leases", "owner" => "patch").set(0.0);
    metrics::gauge!("codespace_processes", "tty" => "false").set(0.0);
    let _ = metrics::histogram!("codespace_http_request_duration_seconds", "route" => "other", "method" => "GET", "status" => "200");
    let _ = metrics::histogram!("codespace_process_duration_seconds", "termination" => "exited");
    let _ = metrics::histogram!("codespace_process_spawn_seconds", "sandbox" => "none");
    let _ = metrics::histogram!("codespace_store_transaction_seconds", "kind" => "find");
}
