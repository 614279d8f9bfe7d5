//! Keeping commands from planting what git on the host would run later.
//!
//! A command may write to its repository, but hooks, configuration and the files that
//! point git to other configuration would be executed by whoever uses git in the
//! workspace next, outside any sandbox. Landlock has no deny and a file that is missing
//! cannot be a mount. So: what exists when a command starts is pinned by mounts
//! ([`Watch::pins`]), and when its tree has ended, what appeared or changed is put back
//! and named ([`Watch::settle`]). A repository that a command itself makes is its own.

mod place;
mod scan;

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use place::State;
pub(crate) use place::open_root;
pub(crate) use scan::Scan;

use crate::mounts::command::Pin;

/// What happens to a watched place after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Whatever it was before is what it is again.
    PutBack,
    /// Only an appearance is undone: a change may be the host's own.
    Remove,
    /// Like `PutBack`, but the one thing git itself writes there may appear.
    PutBackUnlessOwn,
}

/// What was there when a command started.
#[derive(Debug)]
pub(crate) struct Watch {
    root: OwnedFd,
    pins: Vec<Pin>,
    before: BTreeMap<PathBuf, (After, State)>,
    repositories: Vec<PathBuf>,
}

impl Watch {
    /// Looks at every repository of the list (paths of `.git`, relative to the root) and
    /// at the further protected paths.
    pub(crate) fn start(root: OwnedFd, repositories: &[PathBuf], protect: &[PathBuf]) -> Self {
        let mut watch = Self {
            root,
            pins: Vec::new(),
            before: BTreeMap::new(),
            repositories: Vec::new(),
        };
        for git in repositories {
            watch.add_repository(git);
        }
        for path in protect {
            if watch.add(path.clone(), After::Remove) {
                watch.pin(path, true);
            }
        }
        watch
    }

    /// What to mount, outer places first.
    pub(crate) fn pins(&self) -> &[Pin] {
        &self.pins
    }

    fn add_repository(&mut self, git: &Path) {
        match place::kind(&self.root, git) {
            Some(place::Kind::Folder) => {
                self.repositories.push(git.to_owned());
                self.pin(git, false);
                for (path, after) in watched(&self.root, git) {
                    if self.add(path.clone(), after) {
                        self.pin(&path, true);
                    }
                }
            }
            Some(place::Kind::File) => {
                // A linked worktree's or a submodule's: it says where the repository is.
                self.add(git.to_owned(), After::PutBack);
                self.pin(git, true);
            }
            Some(place::Kind::Link) => {
                self.add(git.to_owned(), After::PutBack);
                if let Some(target) = place::link_beneath(&self.root, git) {
                    self.add_repository_at(&target);
                }
            }
            None => {}
        }
    }

    // What a `.git` link leads to, if that is a folder: links are followed once.
    fn add_repository_at(&mut self, target: &Path) {
        if matches!(place::kind(&self.root, target), Some(place::Kind::Folder)) {
            self.add_repository(target);
        }
    }

    fn pin(&mut self, path: &Path, read_only: bool) {
        // The kernel bounds the mounts of a namespace. What is past this is put back only.
        const MOST_PINS: usize = 4000;
        if self.pins.len() >= MOST_PINS {
            return;
        }
        self.pins.push(Pin {
            path: path.to_owned(),
            read_only,
        });
    }

    /// Remembers a place; whether there is anything.
    fn add(&mut self, path: PathBuf, after: After) -> bool {
        let state = match after {
            // What was there is never put back, so it need not be read.
            After::Remove if place::exists(&self.root, &path) => State::Other,
            After::Remove => State::Absent,
            _ => State::read(&self.root, &path),
        };
        let there = state != State::Absent;
        self.before.insert(path, (after, state));
        there
    }

    /// Compares with now, puts back what must be, and names it. The tree must be gone.
    pub(crate) fn settle(self) -> Vec<String> {
        let mut named = Vec::new();
        let mut now: BTreeMap<PathBuf, After> = self
            .before
            .iter()
            .map(|(path, (after, _))| (path.clone(), *after))
            .collect();
        for git in &self.repositories {
            for (path, after) in watched(&self.root, git) {
                now.entry(path).or_insert(after);
            }
        }
        for (path, after) in now {
            let absent = State::Absent;
            let before = self.before.get(&path).map_or(&absent, |(_, state)| state);
            if after == After::Remove && *before != State::Absent {
                continue;
            }
            let found = State::read(&self.root, &path);
            if found.is_same(before) {
                continue;
            }
            let wrong = match after {
                After::PutBack | After::Remove => true,
                After::PutBackUnlessOwn => !(*before == State::Absent && found.is_text(b"../..\n")),
            };
            if !wrong {
                continue;
            }
            let done = before.restore(&self.root, &path);
            let note = if done { "" } else { " (could not be put back)" };
            named.push(format!("{}{note}", path.display()));
        }
        named
    }
}

/// The places of a repository that decide what git runs, those that are missing included.
fn watched(root: &OwnedFd, git: &Path) -> Vec<(PathBuf, After)> {
    let mut found = vec![
        (git.join("config"), After::Remove),
        (git.join("hooks"), After::Remove),
        (git.join("commondir"), After::PutBack),
        (git.join("config.worktree"), After::PutBack),
    ];
    for name in place::names(root, &git.join("worktrees")) {
        let tree = git.join("worktrees").join(name);
        found.push((tree.join("commondir"), After::PutBackUnlessOwn));
        found.push((tree.join("config.worktree"), After::PutBack));
    }
    modules(root, git, 0, &mut found);
    found
}

fn modules(root: &OwnedFd, git: &Path, depth: usize, found: &mut Vec<(PathBuf, After)>) {
    // A submodule's name may have slashes, and a submodule has modules of its own.
    const DEEPEST: usize = 6;
    const MOST: usize = 4000;
    let folder = if depth == 0 {
        git.join("modules")
    } else {
        git.to_owned()
    };
    for name in place::names(root, &folder) {
        let module = folder.join(&name);
        if found.len() > MOST || place::kind(root, &module) != Some(place::Kind::Folder) {
            continue;
        }
        let is_module = ["HEAD", "config", "objects", "hooks", "commondir"]
            .iter()
            .any(|part| place::kind(root, &module.join(part)).is_some());
        if is_module {
            for part in ["config", "hooks", "commondir", "config.worktree"] {
                found.push((module.join(part), After::PutBack));
            }
            if place::kind(root, &module.join("modules")).is_some() && depth < DEEPEST {
                modules(root, &module.join("modules"), depth + 1, found);
            }
        } else if depth < DEEPEST {
            modules(root, &module, depth + 1, found);
        }
    }
}
