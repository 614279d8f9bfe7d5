//! `/bin/echo hi` until its output and exit code are known, beside a bare spawn.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Effort,
    client::Client,
    server::{Place, Programs},
    table::{Table, median},
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

pub(crate) async fn measure(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let place = Place::new()?;
    let server = programs.serve(&place)?;
    let mut client = Client::connect(&server.address).await?;
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    ours(&mut client).await?;
    for _ in 0..effort.pick(3, 500) {
        let begun = Instant::now();
        ours(&mut client).await?;
        mine.push(begun.elapsed());
        let begun = Instant::now();
        bare()?;
        theirs.push(begun.elapsed());
    }
    let what = "exec /bin/echo hi, to its end";
    table.times(what, median(mine), &[("bare spawn", median(theirs))], 1.5);
    Ok(())
}
