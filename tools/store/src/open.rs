//! Opens the store file: who may have it, with which mode and settings, and what is refused.

use std::{
    ffi::OsString,
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

use crate::{
    Durability, ledger,
    migrate::{self, Kind},
};

/// How long a statement waits for an outside tool (`sqlite3`, a backup) that has the file locked.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// The size a write-ahead log is cut back to whenever it starts over: twice what
/// SQLite lets it grow to before a checkpoint (1000 pages of 4 KiB).
pub(crate) const WAL_BYTES: i64 = 8 << 20;

/// Why a store could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenFault {
    /// Another server has this file.
    InUse {
        /// The store file.
        path: PathBuf,
    },
    /// The file system refused.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// A newer server wrote this file.
    NewerSchema {
        /// The store file.
        path: PathBuf,
        /// The version it has.
        found: i64,
        /// The newest version this build knows.
        known: i64,
    },
    /// The file is no SQLite database, or a damaged one.
    Damaged {
        /// The store file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The file is another program's database.
    Foreign {
        /// The store file.
        path: PathBuf,
    },
    /// SQLite refused for another reason.
    Sqlite {
        /// The store file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
}

impl fmt::Display for OpenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path } => write!(
                f,
                "store {} is in use by another server; stop that one, or give this one another store.path",
                path.display()
            ),
            Self::Io { path, .. } => write!(
                f,
                "store file {} cannot be opened; check that it is a plain file and that this user may write it and its folder",
                path.display()
            ),
            Self::NewerSchema { path, found, known } => write!(
                f,
                "store {} has schema {found}, this server knows up to {known}; run the newer server, or give this one another store.path",
                path.display()
            ),
            Self::Damaged { path, .. } => write!(
                f,
                "store {} is not a readable SQLite database; move it away (with its -wal and -shm) to start a new one, or restore a backup",
                path.display()
            ),
            Self::Foreign { path } => write!(
                f,
                "store {} is a database of another program and was left alone; give another store.path",
                path.display()
            ),
            Self::Sqlite { path, .. } => write!(
                f,
                "store {} cannot be opened by SQLite; check free space and permissions, and that no other program has it locked",
                path.display()
            ),
        }
    }
}

impl std::error::Error for OpenFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Damaged { source, .. } | Self::Sqlite { source, .. } => Some(source),
            Self::InUse { .. } | Self::NewerSchema { .. } | Self::Foreign { .. } => None,
        }
    }
}

/// An open store. Fields drop in order: the connection is closed before the lock is given up.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) conn: Connection,
    pub(crate) lock: Option<File>,
    /// What must still stand at its path for a commit to be worth anything.
    pub(crate) standing: Standing,
    /// By what journals know this store; `None` in memory.
    pub(crate) id: Option<String>,
}

/// The files of a store as they were opened. SQLite goes on writing into a file that was
/// removed or replaced, and such a commit is lost.
#[derive(Debug, Default)]
pub(crate) struct Standing(Vec<(PathBuf, (u64, u64))>);

impl Standing {
    fn of(paths: &[PathBuf]) -> io::Result<Self> {
        let known = |path: &PathBuf| Ok((path.clone(), identity(path)?));
        paths.iter().map(known).collect::<io::Result<_>>().map(Self)
    }

    /// The first that does not stand any more: one `stat` for each.
    pub(crate) fn lost(&self) -> Option<&Path> {
        let is_lost = |(path, known): &&(PathBuf, _)| identity(path).ok() != Some(*known);
        self.0.iter().find(is_lost).map(|(path, _)| path.as_path())
    }
}

/// What SQLite itself says when it finds out.
pub(crate) fn moved(path: &Path) -> rusqlite::Error {
    let what = format!("{} was removed or replaced", path.display());
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_READONLY_DBMOVED), Some(what))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Opens or creates the file, and holds it against every other server.
pub(crate) fn file(path: &Path, durability: Durability) -> Result<Opened, OpenFault> {
    let path = &real(path)?;
    let lock = lock(path)?;
    create(path)?;
    // No OPEN_URI: a file named `file:x?mode=memory` is a file of that name.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|source| sqlite(path, source))?;
    let conn = prepare(conn, path, durability)?;
    let id = ledger::identity(&conn).map_err(|source| sqlite(path, source))?;
    let names = ["", "-wal", ".lock"].map(|suffix| with_suffix(path, suffix));
    let standing = Standing::of(&names).map_err(|source| OpenFault::Io {
        path: path.clone(),
        source,
    })?;
    Ok(Opened {
        conn,
        lock: Some(lock),
        standing,
        id: Some(id),
    })
}

/// What would stand in the way of opening the file. Nothing is created, migrated or kept.
pub(crate) fn check(path: &Path) -> Result<(), OpenFault> {
    if !path.exists() {
        return Ok(());
    }
    let path = &real(path)?;
    let _lock = lock(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|source| sqlite(path, source))?;
    recognise(&conn, path).map(|_| ())
}

/// A store that is gone with the process.
pub(crate) fn memory() -> Result<Opened, OpenFault> {
    let path = Path::new(":memory:");
    let conn = Connection::open_in_memory().map_err(|source| sqlite(path, source))?;
    Ok(Opened {
        conn: prepare(conn, path, Durability::Process)?,
        lock: None,
        standing: Standing::default(),
        id: None,
    })
}

fn prepare(
    mut conn: Connection,
    path: &Path,
    durability: Durability,
) -> Result<Connection, OpenFault> {
    let fault = |source| sqlite(path, source);
    conn.busy_timeout(BUSY).map_err(fault)?;
    // Before the first write: a file that is refused is left as it was.
    let done = recognise(&conn, path)?;
    settings(&conn, durability).map_err(fault)?;
    migrate::run(&mut conn, done).map_err(fault)?;
    // A missing table is better found now than by the first call.
    ledger::probe(&conn).map_err(fault)?;
    Ok(conn)
}

/// The schema version of a file that may be opened.
fn recognise(conn: &Connection, path: &Path) -> Result<i64, OpenFault> {
    let known = migrate::known();
    match migrate::inspect(conn).map_err(|source| sqlite(path, source))? {
        Kind::Fresh => Ok(0),
        Kind::Store(found) if found > known => Err(OpenFault::NewerSchema {
            path: path.to_owned(),
            found,
            known,
        }),
        Kind::Store(done) => Ok(done),
        Kind::Foreign => Err(OpenFault::Foreign {
            path: path.to_owned(),
        }),
    }
}

fn settings(conn: &Connection, durability: Durability) -> rusqlite::Result<()> {
    // In WAL mode NORMAL survives the death of the process, and FULL (a sync of each
    // commit) also power loss: https://sqlite.org/pragma.html#pragma_synchronous
    let synchronous = match durability {
        Durability::Process => "NORMAL",
        Durability::Full => "FULL",
    };
    // The answer is the mode in force; a database in memory stays "memory".
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", synchronous)?;
    conn.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES, |_| Ok(()))?;
    conn.pragma_update(None, "foreign_keys", true)?;
    // Nothing in a file decides what functions run.
    conn.pragma_update(None, "trusted_schema", false)?;
    // 8 MiB of pages: the index over random ids stays in memory at some 100,000 records.
    conn.pragma_update(None, "cache_size", -8192)?;
    conn.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// The file behind links, so that two names of one file share one lock.
fn real(path: &Path) -> Result<PathBuf, OpenFault> {
    let fault = |source| OpenFault::Io {
        path: path.to_owned(),
        source,
    };
    match path.canonicalize() {
        Ok(real) => return Ok(real),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fault(error)),
    }
    let Some(name) = path.file_name() else {
        return Err(fault(io::ErrorKind::InvalidFilename.into()));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(fault)?;
    Ok(parent.canonicalize().map_err(fault)?.join(name))
}

/// The lock lies beside the store: closing any descriptor of the store file itself would
/// drop SQLite's own locks (<https://sqlite.org/howtocorrupt.html>, section 2.2). Opened
/// close-on-exec as all of std's files are, so no command inherits it.
fn lock(path: &Path) -> Result<File, OpenFault> {
    let beside = with_suffix(path, ".lock");
    let fault = |source| OpenFault::Io {
        path: beside.clone(),
        source,
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&beside)
        .map_err(fault)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenFault::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(fault(source)),
    }
}

/// Creates the file with its mode before SQLite sees it, which gives its WAL the same mode.
fn create(path: &Path) -> Result<(), OpenFault> {
    let fault = |source| OpenFault::Io {
        path: path.to_owned(),
        source,
    };
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Ok(_) => match path.parent() {
            // The name itself must survive power loss, too.
            Some(parent) => File::open(parent)
                .and_then(|dir| dir.sync_all())
                .map_err(fault),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(fault(error)),
    }
}

fn sqlite(path: &Path, source: rusqlite::Error) -> OpenFault {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            OpenFault::Damaged { path, source }
        }
        _ => OpenFault::Sqlite { path, source },
    }
}
