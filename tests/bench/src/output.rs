//! What a command that never stops talking costs: how much of its output goes through the
//! ring, and what it does to the calls beside it; and what commands that are silent cost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Effort, bare,
    client::{Client, Request},
    server::{Place, Programs},
    table::{Table, Target, median, millis},
};

/// What is written through the pipe.
const MIB: usize = 4096;
/// As many as a server lets live at once.
const SILENT: usize = 32;

async fn start(client: &mut Client, workspace: &str, command: &[&str]) -> Result<String> {
    let arguments = json!({ "workspace_id": workspace, "command": command });
    let started = client.call("exec_command", &arguments).await?;
    Ok(started["process_id"].as_str().context("an id")?.to_owned())
}

async fn reads(client: &mut Client, times: usize) -> Result<Duration> {
    let request = Request::tool("read", &json!({ "workspace_id": "quiet", "path": "f" }));
    let mut took = Vec::new();
    for _ in 0..times {
        let begun = Instant::now();
        client.send(&request).await?;
        took.push(begun.elapsed());
    }
    Ok(median(took))
}

/// Output as fast as a program can write it, and reads of another workspace meanwhile.
async fn chatty(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let (place, quiet) = (Place::new()?, Place::new()?);
    quiet.put("f", &bare::text())?;
    let server = programs.serve_beside(&place, &[("quiet".to_owned(), quiet.root())])?;
    let mut client = Client::connect(&server.address).await?;
    let total = effort.pick(64, MIB) << 20;
    let bytes = total.to_string();
    let alone = reads(&mut client, effort.pick(50, 2_000)).await?;
    // Blocks of a pipe's size: the writer is not what is measured.
    let writer = ["head", "-c", &bytes, "/dev/zero"];
    let begun = Instant::now();
    let id = start(&mut client, "w", &writer).await?;
    let mut reader = Client::connect(&server.address).await?;
    let beside = reads(&mut reader, effort.pick(5, 500)).await?;
    let waiting = json!({ "process_id": id, "wait_ms": 30_000 });
    let status = client.call("process_status", &waiting).await?;
    let took = begun.elapsed();
    ensure!(
        status["exit_code"] == 0 && status["output_total"] == total,
        "another end: {status}"
    );
    let rate = total as f64 / 1e6 / took.as_secs_f64();
    table.row(
        "output through the ring",
        format!("{rate:.0} MB/s"),
        format!(
            "a read meanwhile {}, alone {}",
            millis(beside),
            millis(alone)
        ),
        (rate, " MB/s"),
        Target::AtLeast(500.0),
    );
    Ok(())
}

/// Commands that do nothing, as many as there may be.
async fn silent(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let first = Place::new()?;
    let others: Vec<Place> = (1..SILENT).map(|_| Place::new()).collect::<Result<_>>()?;
    let beside: Vec<_> = (1..)
        .zip(&others)
        .map(|(at, place)| (format!("w{at}"), place.root()))
        .collect();
    let server = programs.serve_beside(&first, &beside)?;
    let mut client = Client::connect(&server.address).await?;
    for name in std::iter::once("w").chain(beside.iter().map(|(name, _)| name.as_str())) {
        start(&mut client, name, &["sleep", "600"]).await?;
    }
    let watched = Duration::from_millis(effort.pick(100, 5_000) as u64);
    let before = server.cpu_micros()?;
    tokio::time::sleep(watched).await;
    let used = (server.cpu_micros()? - before) as f64 / 1e3;
    table.row(
        &format!("server CPU, {SILENT} silent commands"),
        format!("{used:.0} ms"),
        format!("in {:.1} s", watched.as_secs_f64()),
        (used, " ms"),
        // One tick of the clock it is counted in.
        Target::AtMost(10.0),
    );
    Ok(())
}

pub(crate) async fn measure(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    chatty(programs, effort, table).await?;
    silent(programs, effort, table).await
}
