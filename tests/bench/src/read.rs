//! `read` of 4 KiB beside a bare rmcp tool that answers the same from memory.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    Effort, bare,
    client::{Client, Request},
    server::{Place, Programs, Server},
    table::{Table, Target, median, millis},
};

const CONNECTIONS: usize = 32;

/// One of the two servers, with what was measured of it.
struct Side {
    server: Server,
    clients: Vec<Client>,
    request: Arc<Request>,
    /// What every answer must be, byte for byte.
    answer: Arc<Vec<u8>>,
    calls: u64,
    cpu: u64,
    rates: Vec<f64>,
    waits: Vec<Duration>,
}

impl Side {
    async fn new(server: Server) -> Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(&server.address).await?);
        }
        let arguments = json!({ "workspace_id": "w", "path": "f" });
        let result = clients[0].call("read", &arguments).await?;
        ensure!(result["content"] == bare::text(), "another text: {result}");
        let request = Arc::new(Request::tool("read", &arguments));
        let answer = Arc::new(clients[0].send(&request).await?.to_vec());
        Ok(Self {
            server,
            clients,
            request,
            answer,
            calls: 0,
            cpu: 0,
            rates: Vec::new(),
            waits: Vec::new(),
        })
    }

    /// `each` calls on every connection at once. Not counted while warming up.
    async fn flood(&mut self, each: usize, counted: bool) -> Result<()> {
        let cpu = self.server.cpu_micros()?;
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for mut client in self.clients.drain(..) {
            let (request, answer) = (Arc::clone(&self.request), Arc::clone(&self.answer));
            tasks.spawn(async move {
                for _ in 0..each {
                    ensure!(client.send(&request).await? == *answer, "another answer");
                }
                Ok(client)
            });
        }
        while let Some(client) = tasks.join_next().await {
            self.clients.push(client??);
        }
        let calls = each * CONNECTIONS;
        if counted {
            self.rates
                .push(calls as f64 / begun.elapsed().as_secs_f64());
            self.cpu += self.server.cpu_micros()? - cpu;
            self.calls += calls as u64;
        }
        Ok(())
    }

    async fn one_at_a_time(&mut self, times: usize) -> Result<()> {
        for _ in 0..times {
            let begun = Instant::now();
            ensure!(self.clients[0].send(&self.request).await? == *self.answer);
            self.waits.push(begun.elapsed());
        }
        Ok(())
    }

    fn cpu_per_call(&self) -> f64 {
        self.cpu as f64 / self.calls as f64
    }
}

pub(crate) async fn measure(programs: &Programs, effort: Effort, table: &mut Table) -> Result<()> {
    let place = Place::new()?;
    place.put("f", &bare::text())?;
    let mut ours = Side::new(programs.serve(&place)?).await?;
    let mut theirs = Side::new(programs.bare()?).await?;
    let each = effort.pick(5, 500);
    for side in [&mut ours, &mut theirs] {
        side.flood(each / 2, false).await?;
    }
    for _ in 0..effort.pick(2, 9) {
        for side in [&mut ours, &mut theirs] {
            side.flood(each, true).await?;
            side.one_at_a_time(effort.pick(5, 300)).await?;
        }
    }
    // Pairs of neighbouring rounds: a busy moment of the machine falls on both of a pair.
    let pairs = ours.rates.iter().zip(&theirs.rates);
    let ratio = median(pairs.map(|(ours, theirs)| ours / theirs).collect());
    table.row(
        "read 4 KiB, 32 connections",
        format!("{:.0}/s", median(ours.rates.clone())),
        format!("bare rmcp {:.0}/s", median(theirs.rates.clone())),
        (ratio, "x"),
        Target::AtLeast(0.70),
    );
    let (mine, other) = (ours.cpu_per_call(), theirs.cpu_per_call());
    table.row(
        "read 4 KiB, server CPU per call",
        format!("{mine:.1} us"),
        format!("bare rmcp {other:.1} us"),
        // A short run may use less than one clock tick.
        (if other > 0.0 { mine / other } else { 0.0 }, "x"),
        Target::AtMost(1.4),
    );
    let (mine, other) = (median(ours.waits), median(theirs.waits));
    table.row(
        "read 4 KiB, one at a time",
        millis(mine),
        format!("bare rmcp {}", millis(other)),
        (mine.as_secs_f64() / other.as_secs_f64(), "x"),
        Target::None,
    );
    Ok(())
}
