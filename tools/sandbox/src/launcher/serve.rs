//! The launcher's own loop. It ends when the server's end of the socket is closed, and
//! with it every tree.

use std::{
    collections::HashMap,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::PathBuf,
    process::ExitCode,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid},
};

use super::{
    prepared::{Prepared, Running},
    wire::{self, Message, Words},
};
use crate::{
    cgroup::Held,
    fault::{Fault, Step},
    init::Job,
    network,
    plan::Plan,
    sys,
};

// Folders walked at a time while nobody waits: some milliseconds at most.
const STEP: usize = 64;
// Before anybody waits for anything.
const FIRST: usize = 2000;

/// Serves one workspace over descriptor 0.
pub(crate) fn serve() -> ExitCode {
    let socket = sys::take_stdin();
    sys::close_from(3);
    let Ok(Some(message)) = wire::receive(&socket) else {
        return ExitCode::FAILURE;
    };
    let prepared = prepare(&message);
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(fault) => {
            let _ = wire::send(&socket, wire::FAILED, fault.to_line().as_bytes(), &[]);
            return ExitCode::FAILURE;
        }
    };
    prepared.scan.walk(FIRST);
    if wire::send(&socket, wire::DONE, &[], &[]).is_err() {
        return ExitCode::FAILURE;
    }
    let mut state = State {
        socket,
        prepared,
        running: HashMap::new(),
        settled: HashMap::new(),
    };
    while state.turn() {}
    state.end_all();
    ExitCode::SUCCESS
}

fn prepare(message: &Message) -> Result<Prepared, Fault> {
    let Some((held, plan)) = message.body.split_first() else {
        return Err(Fault::plain("the launcher got no plan"));
    };
    let plan: Plan = serde_json::from_slice(plan)
        .map_err(|error| Fault::plain(format!("the launcher cannot read the plan: {error}")))?;
    Prepared::new(plan, Held::from_byte(*held))
}

struct State {
    socket: OwnedFd,
    prepared: Prepared,
    running: HashMap<u64, Running>,
    settled: HashMap<u64, Vec<String>>,
}

impl State {
    /// One event; `false` when the server is gone.
    fn turn(&mut self) -> bool {
        let ids: Vec<u64> = self.running.keys().copied().collect();
        let mut events = vec![PollFd::new(&self.socket, PollFlags::IN)];
        for id in &ids {
            events.push(PollFd::new(&self.running[id].pidfd, PollFlags::IN));
        }
        let scanning = self.running.is_empty() && !self.prepared.scan.is_done();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Ok(ready) = poll(&mut events, scanning.then_some(&now)) else {
            return true;
        };
        if ready == 0 {
            drop(events);
            self.prepared.scan.walk(STEP);
            return true;
        }
        let ended: Vec<u64> = ids
            .iter()
            .zip(&events[1..])
            .filter(|(_, event)| !event.revents().is_empty())
            .map(|(id, _)| *id)
            .collect();
        let asked = !events[0].revents().is_empty();
        drop(events);
        for id in ended {
            self.settle(id);
        }
        !asked || self.answer()
    }

    fn answer(&mut self) -> bool {
        let Ok(Some(message)) = wire::receive(&self.socket) else {
            return false;
        };
        let answer = match message.kind {
            wire::SPAWN => self.spawn(message).map(|pidfd| (Vec::new(), pidfd)),
            wire::FINISH => Ok((self.finish(&message.body), None)),
            wire::LISTEN => listen(&message.body).map(|socket| (Vec::new(), Some(socket))),
            _ => Err(Fault::plain("the launcher does not know this message")),
        };
        match answer {
            Ok((body, descriptor)) => {
                let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
                wire::send(&self.socket, wire::DONE, &body, &descriptors).is_ok()
            }
            Err(fault) => {
                wire::send(&self.socket, wire::FAILED, fault.to_line().as_bytes(), &[]).is_ok()
            }
        }
    }

    fn spawn(&mut self, message: Message) -> Result<Option<OwnedFd>, Fault> {
        let unreadable = || Fault::plain("the launcher cannot read the command");
        let words = Words::parse(&message.body).ok_or_else(unreadable)?;
        let descriptors: [OwnedFd; 5] = message.descriptors.try_into().map_err(|_| unreadable())?;
        let [stdin, stdout, stderr, status, control] = descriptors;
        let path = |text: std::ffi::CString| {
            PathBuf::from(std::ffi::OsString::from_vec(text.into_bytes()))
        };
        let terminal = Some(path(words.terminal)).filter(|path| !path.as_os_str().is_empty());
        let job = Job {
            argv: words.argv,
            env: self.prepared.environment(words.env),
            cwd: self.prepared.folder(&path(words.cwd)),
            stdio: [stdin, stdout, stderr],
            terminal,
            status,
            control,
        };
        let running = self.prepared.start(job)?;
        let pidfd = running.pidfd.try_clone().step("duplicating a descriptor")?;
        self.running.insert(words.id, running);
        Ok(Some(pidfd))
    }

    /// Waits for a tree that is ending, undoes what must be undone, and keeps the names.
    fn settle(&mut self, id: u64) {
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        let _ = waitid(WaitId::Pid(running.pid), WaitIdOptions::EXITED);
        let names = running.settle();
        self.settled.insert(id, names);
        // For a caller who never asks.
        if self.settled.len() > 64 {
            self.settled.retain(|kept, _| *kept == id);
        }
        self.prepared.scan.restart();
    }

    fn finish(&mut self, body: &[u8]) -> Vec<u8> {
        let id = body.try_into().map_or(u64::MAX, u64::from_le_bytes);
        self.settle(id);
        self.settled
            .remove(&id)
            .unwrap_or_default()
            .join("\0")
            .into_bytes()
    }

    fn end_all(&mut self) {
        for running in self.running.values() {
            let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
        }
        let ids: Vec<u64> = self.running.keys().copied().collect();
        for id in ids {
            self.settle(id);
        }
    }
}

fn listen(body: &[u8]) -> Result<OwnedFd, Fault> {
    let port = body.try_into().map_or(0, u16::from_le_bytes);
    network::listener(port).step("listening on the private loopback")
}
