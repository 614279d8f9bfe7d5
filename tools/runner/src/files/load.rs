//! What is there before a patch: each file read once, and known again at the commit.

use std::{cell::OnceCell, collections::HashMap, os::fd::OwnedFd, rc::Rc, sync::Arc};

use codespace_patch::Patch;
use codespace_router::{Code, ToolError};
use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fstat},
    io::Errno,
};
use sha2::{Digest, Sha256};

use super::{
    attributes::Attributes,
    glob::Glob,
    path,
    read::{label, version},
    root::{FileRoot, identity, open_beneath},
};

// Held folders: plenty for any patch a model writes, far below any limit on descriptors.
const MOST_HELD: usize = 128;

/// Folders held open by path, so that a name is looked up in the folder it was seen in.
#[derive(Debug, Default)]
pub(super) struct Folders {
    held: HashMap<String, Arc<OwnedFd>>,
    sure: bool,
}

impl Folders {
    /// From here on an open takes the root's spare descriptors before it fails.
    pub(super) fn sure(&mut self) {
        self.sure = true;
    }

    /// The folder at a normalised path; `""` is the root.
    pub(super) fn get(&mut self, root: &FileRoot, path: &str) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(held) = self.held.get(path) {
            return Ok(Arc::clone(held));
        }
        let asked = if path.is_empty() { "." } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = Arc::new(if self.sure {
            root.open_sure(root.fd(), asked, flags)?
        } else {
            open_beneath(root.fd(), asked, flags, Mode::empty())?
        });
        if self.held.len() >= MOST_HELD {
            self.held.clear();
        }
        self.held.insert(path.to_owned(), Arc::clone(&fd));
        Ok(fd)
    }
}

/// How a file looked when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    identity: (u64, u64),
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Seen {
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // The types differ between targets.
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            identity: identity(stat),
            size: stat.st_size,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }

    /// Whether it is the same file, though renamed, which sets its change time.
    pub(super) fn is_renamed(&self, now: &Seen) -> bool {
        Seen {
            changed: now.changed,
            ..*self
        } == *now
    }
}

/// A file as it was read.
#[derive(Debug)]
pub(super) struct FileSeen {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) seen: Seen,
    pub(super) attributes: Attributes,
    version: OnceCell<String>,
}

impl FileSeen {
    pub(super) fn version(&self) -> &str {
        self.version.get_or_init(|| version(&self.bytes))
    }

    /// The version of the bytes that take this file's place.
    pub(super) fn version_after(&self, bytes: &[u8]) -> String {
        if self.version.get().is_some() || bytes.len() < SHARED {
            return version(bytes);
        }
        let (before, after) = versions(&self.bytes, bytes);
        self.version.get_or_init(|| before);
        after
    }
}

impl FileRoot {
    /// Whether a patch names at most so many files of so many bytes together, and waits for
    /// no disk: then applying it takes less than a hop to another thread and back.
    #[must_use]
    pub fn is_light(&self, patch: &Patch, files: usize, bytes: u64) -> bool {
        let paths = patch.paths();
        let size = |path: &&str| {
            let file = open_beneath(self.fd(), path, OFlags::PATH, Mode::empty()).ok()?;
            u64::try_from(fstat(file).ok()?.st_size).ok()
        };
        // What is not there, or not to be looked at, is small: it is refused or made anew.
        !self.durable && paths.len() <= files && paths.iter().filter_map(size).sum::<u64>() <= bytes
    }
}

/// Below this a search for a common start saves nothing worth it.
const SHARED: usize = 64 * 1024;

/// The versions of both. Hashing is most of what a patch of a large file costs, so what
/// both begin with is hashed once.
fn versions(before: &[u8], after: &[u8]) -> (String, String) {
    const PIECE: usize = 4096;
    let pieces = before.chunks_exact(PIECE).zip(after.chunks_exact(PIECE));
    let same = pieces.take_while(|(one, other)| one == other).count() * PIECE;
    let start = Sha256::new_with_prefix(&after[..same]);
    let end = |bytes: &[u8]| label(&start.clone().chain_update(&bytes[same..]).finalize().into());
    (end(before), end(after))
}

/// What stands at a path.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Absent,
    File(Rc<FileSeen>),
    Directory,
    Special,
    TooLarge,
}

/// The workspace as one patch sees it.
pub(super) struct View<'a> {
    pub(super) root: &'a FileRoot,
    pub(super) folders: Folders,
    places: HashMap<String, Place>,
    line_rules: HashMap<String, Rc<Vec<(Glob, bool)>>>,
}

impl<'a> View<'a> {
    pub(super) fn new(root: &'a FileRoot) -> Self {
        Self {
            root,
            folders: Folders::default(),
            places: HashMap::new(),
            line_rules: HashMap::new(),
        }
    }

    /// What stands at a normalised path, read once.
    ///
    /// # Errors
    /// A symlink or a file on the way, a file over the limit, or the system's refusal.
    pub(super) fn place(&mut self, path: &str) -> Result<Place, ToolError> {
        if let Some(known) = self.places.get(path) {
            return Ok(known.clone());
        }
        let place = self.look(path)?;
        self.places.insert(path.to_owned(), place.clone());
        Ok(place)
    }

    fn look(&mut self, path: &str) -> Result<Place, ToolError> {
        let (parent, name) = path::split(path);
        if name.is_empty() {
            return Ok(Place::Directory);
        }
        let folder = match self.folders.get(self.root, parent) {
            Ok(folder) => folder,
            Err(Errno::NOENT) if self.root.stands().is_ok() => return Ok(Place::Absent),
            // A link asked for as a folder is no folder: which of the two, a second look tells.
            Err(Errno::NOTDIR) => {
                let link = open_beneath(self.root.fd(), path, OFlags::PATH, Mode::empty());
                return Err(path::refusal(path, link.err().unwrap_or(Errno::NOTDIR)));
            }
            Err(errno) => return Err(self.root.refusal(path, errno)),
        };
        let file = match open_beneath(&*folder, name, OFlags::RDONLY, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Place::Absent),
            Err(Errno::NXIO | Errno::NODEV) => return Ok(Place::Special),
            Err(errno) => return Err(self.root.refusal(path, errno)),
        };
        let failed = |errno| path::refusal(path, errno);
        let stat = fstat(&file).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(Place::Directory),
            _ => return Ok(Place::Special),
        }
        let limit = self.root.limits.patch_file_bytes;
        let Some(bytes) = read_up_to(&file, &stat, limit).map_err(failed)? else {
            return Ok(Place::TooLarge);
        };
        Ok(Place::File(Rc::new(FileSeen {
            bytes: Arc::new(bytes),
            seen: Seen::of(&stat),
            attributes: Attributes::of(&file, &stat),
            version: OnceCell::new(),
        })))
    }

    /// Whether `.gitattributes` says `eol=crlf` for a path: gitattributes(5), without
    /// macros and without `.git/info/attributes`. A nearer file has the last word.
    pub(super) fn wants_crlf(&mut self, path: &str) -> Result<bool, ToolError> {
        let mut answer = false;
        for folder in std::iter::once("").chain(path::ancestors(path)) {
            let below = if folder.is_empty() {
                path
            } else {
                &path[folder.len() + 1..]
            };
            for (glob, crlf) in self.rules(folder)?.iter() {
                if glob.matches_path(below) {
                    answer = *crlf;
                }
            }
        }
        Ok(answer)
    }

    fn rules(&mut self, folder: &str) -> Result<Rc<Vec<(Glob, bool)>>, ToolError> {
        if let Some(known) = self.line_rules.get(folder) {
            return Ok(Rc::clone(known));
        }
        let file = if folder.is_empty() {
            ".gitattributes".to_owned()
        } else {
            format!("{folder}/.gitattributes")
        };
        // A link or a folder of this name says nothing; git does not follow it either.
        let rules = match self.look(&file) {
            Ok(Place::File(file)) => parse_rules(&String::from_utf8_lossy(&file.bytes)),
            Ok(_) => Vec::new(),
            Err(error) if error.code() == Code::SymlinkRejected => Vec::new(),
            Err(error) => return Err(error),
        };
        let rules = Rc::new(rules);
        self.line_rules.insert(folder.to_owned(), Rc::clone(&rules));
        Ok(rules)
    }
}

fn parse_rules(text: &str) -> Vec<(Glob, bool)> {
    let mut rules = Vec::new();
    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with(['#', '"', '[', '!']))
    {
        let mut words = line.split_ascii_whitespace();
        let Some(Ok(glob)) = words.next().map(Glob::parse) else {
            continue;
        };
        let mut crlf = None;
        for word in words {
            match word {
                "eol=crlf" => crlf = Some(true),
                "eol=lf" | "-eol" | "!eol" | "-text" | "binary" => crlf = Some(false),
                _ => {}
            }
        }
        if let Some(crlf) = crlf {
            rules.push((glob, crlf));
        }
    }
    rules
}

/// The refusal of a file over `limits.patch_file_bytes`.
pub(super) fn too_large(path: &str, limit: u64) -> ToolError {
    let path = &*path::shown(path);
    ToolError::new(
        Code::FileOperationFailed,
        format!("{path} is larger than a patch may touch ({limit} bytes, limits.patch_file_bytes); nothing was done"),
    )
    .with_detail("path", path)
    .with_detail("limit", limit)
}

// All of a file, or `None` when it is larger than `limit`.
fn read_up_to(file: &OwnedFd, stat: &Stat, limit: u64) -> Result<Option<Vec<u8>>, Errno> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > limit {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    loop {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(64 * 1024);
        }
        match rustix::io::read(file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => return Ok(Some(bytes)),
            // One short read at the expected size is the end; anything else reads on.
            Ok(_) if bytes.len() as u64 == size => return Ok(Some(bytes)),
            Ok(_) if bytes.len() as u64 > limit => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(other) => return Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_start_changes_no_version() {
        let before: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        for at in [0, 4095, 4096, 100_000, before.len() - 1] {
            let mut after = before.clone();
            after[at] ^= 1;
            after.truncate(before.len() - at % 7);
            assert_eq!(
                versions(&before, &after),
                (version(&before), version(&after))
            );
            assert_eq!(
                versions(&after, &before),
                (version(&after), version(&before))
            );
        }
        assert_eq!(versions(&before, b""), (version(&before), version(b"")));
    }
}
