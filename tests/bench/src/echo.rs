//! `/bin/echo hi` until its output and exit code are known, beside a bare spawn; and how
//! many commands a second go on being started.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Effort,
    client::Client,
    server::{Place, Programs},
    table::{TURN, Table, Target, median},
};

/// What a client does that wants a short command's whole result: start it, wait for its
/// end, read all it said.
async fn ours(client: &mut Client) -> Result<()> {
    let arguments = json!({ "workspace_id": "w", "command": ["/bin/echo", "hi"] });
    let started = client.call("exec_command", &arguments).await?;
    let id = &started["process_id"];
    let waiting = json!({ "process_id": id, "wait_ms": 10_000 });
    let status = client.call("process_status", &waiting).await?;
    ensure!(
        status["state"] == "exited" && status["exit_code"] == 0,
        "another end: {status}"
    );
    let output = client
        .call("read_process", &json!({ "process_id": id }))
        .await?;
    ensure!(
        output["chunk"] == "hi\n" && output["eof"] == true,
        "another output: {output}"
    );
    Ok(())
}

fn bare() -> Result<()> {
    let output = Command::new("/bin/echo")
        .arg("hi")
        // What the server gives its commands: another LANG costs echo itself some 40 calls.
        .env_clear()
        .envs([
            ("PATH", "/usr/bin:/bin"),
            ("HOME", "/"),
            ("LANG", "C.UTF-8"),
        ])
        .stdin(Stdio::null())
        .output()
        .context("echo")?;
    ensure!(output.status.success() && output.stdout == b"hi\n");
    Ok(())
}

/// Starts a command and waits for its end.
async fn run(client: &mut Client, command: &[&str]) -> Result<()> {
    let arguments = json!({ "workspace_id": "w", "command": command });
    let started = client.call("exec_command", &arguments).await?;
    let waiting = json!({ "process_id": started["process_id"], "wait_ms": 10_000 });
    let status = client.call("process_status", &waiting).await?;
    ensure!(status["exit_code"] == 0, "another end: {status}");
    Ok(())
}

const OFF: &[(&str, &str)] = &[("CODESPACE_SANDBOX__MODE", "off")];

async fn echo(
    programs: &Programs,
    effort: Effort,
    table: &mut Table,
    (what, settings, most): (&str, &[(&str, &str)], f64),
) -> Result<()> {
    let place = Place::new()?;
    let server = programs.serve_with(&place, settings)?;
    let mut client = Client::connect(&server.address).await?;
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    ours(&mut client).await?;
    for _ in 0..effort.pick(1, 25) {
        for _ in 0..TURN {
            let begun = Instant::now();
            ours(&mut client).await?;
            mine.push(begun.elapsed());
        }
        for _ in 0..TURN {
            let begun = Instant::now();
            bare()?;
            theirs.push(begun.elapsed());
        }
    }
    table.times(what, median(mine), &[("bare spawn", median(theirs))], most);
    Ok(())
}

/// One command after another for some seconds, in a server that holds 100 MB of output:
/// what a launch costs must depend neither on that nor on how many there were.
async fn rate(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    const HELD: usize = 100;
    let place = Place::new()?;
    let server = programs.serve(&place)?;
    let mut client = Client::connect(&server.address).await?;
    for _ in 0..effort.pick(2, HELD) {
        run(&mut client, &["head", "-c", "1048576", "/dev/zero"]).await?;
    }
    let held = server.resident_kib()? / 1024;
    let mut rates = Vec::new();
    for _ in 0..effort.pick(1, 8) {
        let begun = Instant::now();
        let (mut count, long) = (0, Duration::from_millis(effort.pick(100, 1000) as u64));
        while begun.elapsed() < long {
            run(&mut client, &["/bin/true"]).await?;
            count += 1;
        }
        rates.push(f64::from(count) / begun.elapsed().as_secs_f64());
    }
    let last = rates[rates.len() - 1];
    table.row(
        "launches of /bin/true in turn",
        format!("{:.0}/s", median(rates.clone())),
        format!(
            "first second {:.0}/s, last {last:.0}/s, {held} MiB held",
            rates[0]
        ),
        (last, "/s"),
        Target::AtLeast(200.0),
    );
    Ok(())
}

pub(crate) async fn measure(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let off = ("exec /bin/echo hi, sandbox off", OFF, 1.5);
    echo(programs, effort, table, off).await?;
    let on = ("exec /bin/echo hi, sandbox required", &[][..], 2.5);
    echo(programs, effort, table, on).await?;
    rate(programs, effort, table).await
}
