//! The worker process, from its first instruction to its last.
//!
//! Its end is decided by the socket alone: when the gateway closes it, or is killed, every
//! tree is ended and the process exits. Signals meant for a whole terminal or service do
//! not end it, since the gateway still needs it to end in order.

use std::{
    io, os::unix::net::UnixStream, path::Path, process::ExitCode, sync::Arc, time::Duration,
};

use codespace_runner::{Confinement, InProcess, Runner};
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use rustix::fs::{Mode, OFlags};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    link::{FRAME, STREAMS, WINDOW},
    outbox::Outbox,
    preamble,
    service::Service,
    setup::{Logs, Told},
    wire::worker_server::WorkerServer,
};

// What a patch in the middle of its commit may still take; its journal serves if not.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Serves a gateway over descriptor 0 until it is gone. `exe` is the sandbox's helper
/// program, `logs` starts logging. To be called before any thread or runtime starts, by a
/// process that is not dumpable.
pub fn worker_main(exe: &Path, logs: impl FnOnce(&Logs)) -> ExitCode {
    match serve(exe, logs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("codespace worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(exe: &Path, logs: impl FnOnce(&Logs)) -> io::Result<()> {
    let socket = take_stdin()?;
    // A session of its own: no terminal's keys reach it, and whatever it leaves is told
    // from the gateway's other children. An error means that it leads one already.
    let _ = rustix::process::setsid();
    let (text, descriptors) = preamble::hear(&socket)?;
    let told = Told::parse(&text)?;
    logs(told.logs());
    let (outbox, events) = Outbox::new();
    let _ = metrics::set_global_recorder(outbox.recorder());
    let runner = Arc::new(told.runner(descriptors, exe)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(async {
        let found = Arc::clone(&runner);
        // What the machine can enforce is known by the time of the first command.
        tokio::task::spawn_blocking(move || {
            found.confinements().for_each(|confinement| {
                let _ = confinement.features();
            });
        });
        let service = Service::new(runner.clone(), outbox.clone(), events);
        let served = connection(socket, service, &outbox).await;
        end(&runner).await;
        served
    });
    runtime.shutdown_timeout(LAST_WORK);
    served
}

/// The socket, out of the way of everything that is started later: children get
/// descriptor 0 unless something else is put there.
fn take_stdin() -> io::Result<UnixStream> {
    use std::os::fd::AsFd;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket.into())
}

/// Serves HTTP/2 until the other end is closed.
async fn connection(socket: UnixStream, service: Service, outbox: &Outbox) -> io::Result<()> {
    // Caught, which is as good as ignored and is not inherited by commands.
    let _signals = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ];
    preamble::ready(&socket)?;
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UnixStream::from_std(socket)?;
    let service = WorkerServer::new(service)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    let serving = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(STREAMS)
        // Callers that leave reset streams as fast as they like: no attack.
        .max_pending_accept_reset_streams(STREAMS as usize)
        .max_local_error_reset_streams(None)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(service));
    let counting = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            outbox.flush();
        }
    };
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                // As good as closed.
                tracing::debug!(%error, "the gateway is gone");
            }
        }
        () = counting => {}
    }
    Ok(())
}

async fn end(runner: &Arc<InProcess>) {
    runner.shut_down().await;
    let runner = Arc::clone(runner);
    let ended = tokio::task::spawn_blocking(move || {
        runner
            .confinements()
            .for_each(|confinement| Confinement::shut_down(confinement));
    });
    let _ = ended.await;
}
