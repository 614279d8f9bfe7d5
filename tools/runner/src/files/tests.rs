//! Tests on real folders: the shared patch cases, escapes, races, and a crash after every
//! single step.

mod cases;
mod crash;
mod faults;
mod look;
mod speed;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use codespace_patch::Patch;
use codespace_router::{OperationId, ToolError};

use super::{FileLimits, FileRoot};
use crate::{Applied, PatchJob};

/// A root with its journal folder beside it, in a folder that is removed at the end.
pub(super) struct Bench {
    _all: tempfile::TempDir,
    pub(super) root: PathBuf,
    pub(super) journals: PathBuf,
    pub(super) files: Arc<FileRoot>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let all = tempfile::tempdir().unwrap();
        let root = all.path().join("root");
        let journals = all.path().join("journals");
        std::fs::create_dir(&root).unwrap();
        let files = open(&root, &journals);
        Self {
            _all: all,
            root,
            journals,
            files,
        }
    }

    pub(super) fn put(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Every file's bytes, our own leftovers included, and every folder as `None`.
    pub(super) fn tree(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut tree = BTreeMap::new();
        collect(&self.root, "", &mut tree);
        tree
    }

    pub(super) fn journal_count(&self) -> usize {
        std::fs::read_dir(&self.journals).unwrap().count()
    }
}

pub(super) fn open(root: &Path, journals: &Path) -> Arc<FileRoot> {
    let limits = FileLimits {
        read_bytes: 1 << 20,
        find_paths: 1000,
        patch_file_bytes: 64 << 20,
    };
    Arc::new(FileRoot::open(root, Some(journals), limits, false).unwrap())
}

fn collect(dir: &Path, prefix: &str, tree: &mut BTreeMap<String, Option<Vec<u8>>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{path}/"), tree);
            tree.insert(path, None);
        } else {
            // Reading a FIFO would wait for a writer.
            let bytes = entry
                .file_type()
                .unwrap()
                .is_file()
                .then(|| std::fs::read(entry.path()).unwrap());
            tree.insert(path, bytes);
        }
    }
}

pub(super) fn job(patch: &str) -> PatchJob {
    PatchJob {
        operation: OperationId::mint(),
        patch: Arc::new(Patch::parse(patch).unwrap()),
        text: patch.to_owned(),
        expected: BTreeMap::new(),
        check_only: false,
    }
}

pub(super) fn apply(bench: &Bench, patch: &str) -> Result<Applied, ToolError> {
    bench.files.apply(job(patch))
}

pub(super) fn keep(applied: Applied) {
    if let Some(undo) = applied.undo {
        block_on(undo.keep());
    }
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}
