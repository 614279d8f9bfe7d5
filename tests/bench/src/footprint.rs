//! How soon a server answers after its start, and how much memory it holds.

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    Effort, bare,
    client::{Client, Request},
    server::{Place, Programs},
    table::{Table, Target, median},
};

/// From the spawn to the answer to `tools/list`.
async fn start_http(programs: &Programs, place: &Place) -> Result<Duration> {
    let begun = Instant::now();
    let server = programs.serve(place)?;
    let mut client = Client::connect(&server.address).await?;
    let body = client
        .send(&Request::method("tools/list", &json!({})))
        .await?;
    let took = begun.elapsed();
    let answer: Value = serde_json::from_slice(body)?;
    has_tools(&answer)?;
    Ok(took)
}

/// The same over stdio, the handshake before it included.
fn start_stdio(programs: &Programs, place: &Place) -> Result<Duration> {
    let begun = Instant::now();
    let mut child = programs
        .codespace("stdio", place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" } } });
    writeln!(stdin, "{hello}")?;
    lines.next().context("an answer")??;
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    write!(stdin, "{ready}\n{list}\n")?;
    let answer = lines.next().context("an answer")??;
    let took = begun.elapsed();
    has_tools(&serde_json::from_str(&answer)?)?;
    drop(stdin);
    ensure!(child.wait()?.success(), "stdio did not end well");
    Ok(took)
}

fn has_tools(answer: &Value) -> Result<()> {
    let tools = answer["result"]["tools"].as_array().context("a list")?;
    ensure!(tools.iter().any(|tool| tool["name"] == "read"), "{answer}");
    Ok(())
}

pub(crate) async fn measure(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let place = Place::new()?;
    place.put("f", &bare::text())?;
    let (mut http, mut stdio) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(2, 30) {
        http.push(start_http(programs, &place).await?);
        stdio.push(start_stdio(programs, &place)?);
    }
    table.times("start to first answer, HTTP", median(http), &[], 20.0);
    table.times("start to first answer, stdio", median(stdio), &[], 20.0);

    let server = programs.serve(&place)?;
    let mut client = Client::connect(&server.address).await?;
    let arguments = json!({ "workspace_id": "w", "path": "f" });
    client.call("read", &arguments).await?;
    let idle = server.resident_kib()?;
    let mib = |kib: u64| kib as f64 / 1024.0;
    table.row(
        "memory, idle",
        format!("{:.1} MiB", mib(idle)),
        String::new(),
        (mib(idle), " MiB"),
        Target::AtMost(20.0),
    );
    let request = Request::tool("read", &arguments);
    let warm = effort.pick(50, 5_000);
    for _ in 0..warm {
        client.send(&request).await?;
    }
    let before = server.resident_kib()?;
    let reads = effort.pick(200, 100_000);
    for _ in 0..reads {
        client.send(&request).await?;
    }
    let after = server.resident_kib()?;
    table.row(
        &format!("memory, {reads} reads"),
        format!("{:.1} MiB", mib(after)),
        format!("before {:.1} MiB", mib(before)),
        (mib(after) - mib(before), " MiB more"),
        // The allocator's own noise.
        Target::AtMost(1.0),
    );
    Ok(())
}
