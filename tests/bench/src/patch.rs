//! `apply_patch` end to end beside `git apply` and `patch` of the same change.

use std::{
    fmt::Write as _,
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Effort,
    client::{Client, Request},
    server::{Place, Programs},
    table::{TURN, Table, median},
};

/// Files of numbered lines, of which one line each round is changed in each file.
struct Files {
    names: Vec<String>,
    lines: usize,
    /// The line that changes, from 0.
    at: usize,
}

impl Files {
    fn content(&self, version: usize) -> String {
        let mut text = String::new();
        for line in 0..self.lines {
            let _ = match line == self.at {
                true => writeln!(text, "value {version}"),
                false => writeln!(text, "line number {line}"),
            };
        }
        text
    }

    fn put(&self, place: &Place) -> Result<()> {
        let content = self.content(0);
        self.names
            .iter()
            .try_for_each(|name| place.put(name, &content))
    }

    /// From `version` to the next, as V4A.
    fn v4a(&self, version: usize) -> String {
        let (before, after, next) = (self.at - 1, self.at + 1, version + 1);
        let mut text = String::from("*** Begin Patch\n");
        for name in &self.names {
            let _ = write!(
                text,
                "*** Update File: {name}\n@@\n line number {before}\n-value {version}\n+value {next}\n line number {after}\n"
            );
        }
        text + "*** End Patch\n"
    }

    /// The same as a unified diff.
    fn diff(&self, version: usize) -> String {
        let (before, at, after, next) = (self.at - 1, self.at, self.at + 1, version + 1);
        let mut text = String::new();
        for name in &self.names {
            let _ = write!(
                text,
                "--- a/{name}\n+++ b/{name}\n@@ -{at},3 +{at},3 @@\n line number {before}\n-value {version}\n+value {next}\n line number {after}\n"
            );
        }
        text
    }

    fn check(&self, place: &Place, version: usize) -> Result<()> {
        let wanted = self.content(version);
        for name in &self.names {
            ensure!(place.get(name)? == wanted, "{name} is not at {version}");
        }
        Ok(())
    }
}

/// Runs a patch program on the place's root with the diff on its stdin.
fn run(program: &[&str], place: &Place, diff: &str) -> Result<Duration> {
    let begun = Instant::now();
    let mut child = Command::new(program[0])
        .args(&program[1..])
        .current_dir(place.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("{} could not be started", program[0]))?;
    child
        .stdin
        .take()
        .context("a pipe")?
        .write_all(diff.as_bytes())?;
    ensure!(child.wait()?.success(), "{} failed", program[0]);
    Ok(begun.elapsed())
}

const GIT: &[&str] = &["git", "apply", "-"];
const PATCH: &[&str] = &["patch", "-p1", "-s"];

async fn one(
    programs: &Programs,
    table: &mut Table,
    what: &str,
    files: &Files,
    rounds: usize,
    (most, others): (f64, &[&'static [&'static str]]),
) -> Result<()> {
    let place = Place::new()?;
    files.put(&place)?;
    let mut beside = Vec::new();
    for program in others {
        let place = Place::new()?;
        files.put(&place)?;
        beside.push((program, place, Vec::new()));
    }
    let server = programs.serve(&place)?;
    let mut client = Client::connect(&server.address).await?;
    let mut times = Vec::new();
    let versions: Vec<usize> = (0..=rounds).collect();
    for turn in versions.chunks(TURN) {
        for &version in turn {
            let arguments = json!({ "workspace_id": "w", "patch": files.v4a(version) });
            let request = Request::tool("apply_patch", &arguments);
            let begun = Instant::now();
            let answer = client.send(&request).await?;
            times.push(begun.elapsed());
            let answer = String::from_utf8_lossy(answer);
            ensure!(
                answer.contains(r#""status":"applied""#) && answer.contains(r#""isError":false"#),
                "not applied: {answer}"
            );
        }
        for (program, place, theirs) in &mut beside {
            for &version in turn {
                theirs.push(run(program, place, &files.diff(version))?);
            }
        }
    }
    // The first round warmed up.
    times.remove(0);
    for (_, _, theirs) in &mut beside {
        theirs.remove(0);
    }
    files.check(&place, rounds + 1)?;
    let mut others = Vec::new();
    for (program, place, theirs) in beside {
        files.check(&place, rounds + 1)?;
        others.push((program[0], median(theirs)));
    }
    table.times(what, median(times), &others, most);
    Ok(())
}

pub(crate) async fn measure(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let hundred = Files {
        names: vec!["src/main.rs".to_owned()],
        lines: 100,
        at: 50,
    };
    let rounds = effort.pick(3, 400);
    let what = "patch, one hunk, 100 lines";
    one(programs, table, what, &hundred, rounds, (1.0, &[GIT])).await?;
    let many = Files {
        names: (0..200).map(|at| format!("d{}/{at}", at % 10)).collect(),
        ..hundred
    };
    // Few: ext4 steps over inodes that were freed in the last minutes, so each round is slower,
    // for every program.
    let rounds = effort.pick(2, 12);
    let what = "patch, 200 files";
    one(programs, table, what, &many, rounds, (30.0, &[GIT])).await?;
    let long = Files {
        names: vec!["long".to_owned()],
        lines: 200_000,
        at: 199_990,
    };
    let rounds = effort.pick(2, 40);
    let what = "patch, end of 200,000 lines";
    one(programs, table, what, &long, rounds, (20.0, &[GIT, PATCH])).await
}
