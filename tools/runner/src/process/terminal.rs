//! A command's terminal (pty(7)): its master side, which the server holds.
//!
//! Made with rustix, which is here anyway. portable-pty offers the same calls and brings
//! its own spawn (a fork that closes every descriptor), serial ports and a logger along;
//! none of it would be used.
//!
//! The command opens the slave by its name as its first descriptor (see `spawn`), and as
//! it leads a session without a terminal, that makes it the controlling one. The server
//! holds one descriptor of the slave too, until the whole tree is gone: as long as
//! somebody has it open the master never answers EIO, so EIO means exactly "nothing
//! more will come", also when a command closes its own three and opens `/dev/tty` later.
//! What was written before the last close is read before EIO comes.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open},
    io::Errno,
    pty::{OpenptFlags, openpt, ptsname, unlockpt},
    termios::{
        InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, Winsize, tcgetattr,
        tcsetattr, tcsetwinsize,
    },
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

use super::spawn;

/// Rows of a new terminal (contract, section 7).
pub(super) const ROWS: u16 = 24;
/// Columns of a new terminal.
pub(super) const COLS: u16 = 80;
/// The terminal type that programs are told.
pub(super) const TERM: &str = "xterm-256color";

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A new terminal, before anything runs on it.
pub(super) struct Pair {
    pub(super) master: OwnedFd,
    pub(super) slave: OwnedFd,
    /// The slave's path.
    pub(super) name: CString,
}

/// Opens a terminal of the initial size.
///
/// Errors are of a host without `/dev/pts`, or with no terminal left.
pub(super) fn open_pair() -> rustix::io::Result<Pair> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
    // No grantpt: devpts gives the slave to who opened the master.
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    // By name and not TIOCGPTPEER: what fails here would fail in the command, where it
    // would look like the program's fault. NOCTTY: it must not become the server's own.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = open(&name, flags, Mode::empty())?;
    let mut modes = tcgetattr(&slave)?;
    // Rubbing out takes a whole character, as the commands' LANG has it.
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&slave, OptionalActions::Now, &modes)?;
    tcsetwinsize(&slave, size(ROWS, COLS))?;
    Ok(Pair {
        master,
        slave,
        name,
    })
}

fn size(rows: u16, cols: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// The master of a running command's terminal.
pub(super) struct Terminal {
    master: AsyncFd<Master>,
    // Whether the line that is being typed holds anything; see `end_of_input`.
    line: Mutex<Line>,
}

/// An own type, so that nobody can swap the descriptor under its registration.
pub(super) struct Master(OwnedFd);

impl AsRawFd for Master {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Line {
    Empty,
    Begun,
}

impl Terminal {
    /// Registers the master with the runtime.
    pub(super) fn new(master: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            master: spawn::watch_master(Master(master))?,
            line: Mutex::new(Line::Empty),
        })
    }

    /// Reads what the command wrote; zero bytes are the end. One reader only.
    pub(super) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.master.poll_read_ready(cx))?;
            match guard.try_io(|master| Ok(rustix::io::read(&master.get_ref().0, &mut *buffer)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nobody has the slave open, and all they wrote was read.
                Ok(Err(error)) if Errno::from_io_error(&error) == Some(Errno::IO) => {
                    return Poll::Ready(Ok(0));
                }
                Ok(done) => return Poll::Ready(done),
                Err(_would_block) => {}
            }
        }
    }

    /// Types, as much as the terminal takes now; `WouldBlock` when that is nothing.
    pub(super) fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let write = |master: &Master| Ok(rustix::io::write(&master.0, data)?);
        let taken = match self.master.try_io(Interest::WRITABLE, write) {
            // What is known may be old, see `writable`.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                write(self.master.get_ref())?
            }
            done => done?,
        };
        if taken > 0
            && let Ok(modes) = tcgetattr(&self.master.get_ref().0)
        {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            *line = after(*line, &data[..taken], &modes);
        }
        Ok(taken)
    }

    /// Waits until the terminal may take more. Not only for the kernel's word: it gives
    /// none when a program throws its input away (tcflush(3)) instead of reading it.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match timeout(LOOK_AGAIN, self.master.writable()).await {
            Ok(ready) => ready.map(drop),
            Err(_look_again) => Ok(()),
        }
    }

    /// What to type so that a reader sees the end of its input: the EOF character
    /// (termios(3), VEOF; `^D`), twice when the line has begun, since the first then
    /// only hands that line over. A program that reads keys instead of lines gets the
    /// character once and does what it does with `^D`.
    pub(super) fn end_of_input(&self) -> Vec<u8> {
        let Ok(modes) = tcgetattr(&self.master.get_ref().0) else {
            return vec![4];
        };
        let line = *self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let canonical = modes.local_modes.contains(LocalModes::ICANON);
        let times = if canonical && line == Line::Begun {
            2
        } else {
            1
        };
        let code = modes.special_codes[SpecialCodeIndex::VEOF];
        // Zero: the program switched it off.
        vec![if code == 0 || !canonical { 4 } else { code }; times]
    }

    /// Sets the size. The foreground job gets SIGWINCH when it differs (tty_ioctl(4)).
    pub(super) fn resize(&self, rows: u16, cols: u16) -> rustix::io::Result<()> {
        tcsetwinsize(self.master.get_ref().0.as_fd(), size(rows, cols))
    }
}

/// Whether the line has begun after these keys. Rubbing out single characters is not
/// followed: at worst an end of input is then typed once too often.
fn after(line: Line, keys: &[u8], modes: &Termios) -> Line {
    // Keys that a program reads one by one are no line.
    if !modes.local_modes.contains(LocalModes::ICANON) {
        return Line::Empty;
    }
    let signals = modes.local_modes.contains(LocalModes::ISIG)
        && !modes.local_modes.contains(LocalModes::NOFLSH);
    let is = |key: u8, index| key != 0 && modes.special_codes[index] == key;
    let ends = |key: u8| {
        key == b'\n'
            || (key == b'\r' && modes.input_modes.contains(InputModes::ICRNL))
            || is(key, SpecialCodeIndex::VEOF)
            || is(key, SpecialCodeIndex::VEOL)
            || is(key, SpecialCodeIndex::VEOL2)
            || is(key, SpecialCodeIndex::VKILL)
            || (signals
                && (is(key, SpecialCodeIndex::VINTR)
                    || is(key, SpecialCodeIndex::VQUIT)
                    || is(key, SpecialCodeIndex::VSUSP)))
    };
    match keys.iter().rposition(|key| ends(*key)) {
        Some(last) if last + 1 == keys.len() => Line::Empty,
        None if keys.is_empty() => line,
        Some(_) | None => Line::Begun,
    }
}
