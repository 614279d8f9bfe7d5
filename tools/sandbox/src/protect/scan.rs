//! Where the repositories are.
//!
//! The root's own `.git` is looked at for every command. Finding those deeper down means
//! walking the tree, which is too dear for a launch: it is done once at the start and in
//! small steps while nothing else is to do, after each command.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

// Folders; a tree beyond that is known in part.
const MOST: usize = 50_000;
const DEEPEST: usize = 32;
// Each costs every launch some mounts.
const MOST_REPOSITORIES: usize = 256;

/// A walk in progress, and what the last whole one found.
#[derive(Debug)]
pub(crate) struct Scan {
    root: PathBuf,
    open: Vec<(PathBuf, usize)>,
    walked: usize,
    fresh: BTreeSet<PathBuf>,
    known: BTreeSet<PathBuf>,
}

impl Scan {
    pub(crate) fn new(root: &Path) -> Self {
        let mut scan = Self {
            root: root.to_owned(),
            open: Vec::new(),
            walked: 0,
            fresh: BTreeSet::new(),
            known: BTreeSet::new(),
        };
        scan.restart();
        scan
    }

    /// Begins anew; what was known stays known until the walk is done.
    pub(crate) fn restart(&mut self) {
        self.open = vec![(PathBuf::new(), 0)];
        self.walked = 0;
        self.fresh.clear();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// Looks at up to `folders` more.
    pub(crate) fn walk(&mut self, folders: usize) {
        for _ in 0..folders {
            let Some((folder, depth)) = self.open.pop() else {
                return;
            };
            self.walked += 1;
            self.look(&folder, depth);
            if self.walked >= MOST {
                self.open.clear();
            }
            if self.open.is_empty() {
                self.adopt();
            }
        }
    }

    /// Those already known come first: a command could make any number of others.
    fn adopt(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        self.known.retain(|path| fresh.contains(path));
        for path in fresh {
            if self.known.len() >= MOST_REPOSITORIES {
                break;
            }
            self.known.insert(path);
        }
    }

    fn look(&mut self, folder: &Path, depth: usize) {
        // By path and not by descriptor: the result is only a hint, every use resolves it
        // again without symlinks.
        let entries = fs::read_dir(self.root.join(folder)).into_iter().flatten();
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            if entry.file_name() == ".git" {
                self.fresh.insert(path);
            } else if depth < DEEPEST && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.open.push((path, depth + 1));
            }
        }
    }

    /// The repositories, the root's own always among them.
    pub(crate) fn repositories(&self) -> Vec<PathBuf> {
        let mut all = self.known.clone();
        let room = MOST_REPOSITORIES.saturating_sub(all.len());
        all.extend(self.fresh.iter().take(room).cloned());
        all.insert(PathBuf::from(".git"));
        all.into_iter().collect()
    }
}
