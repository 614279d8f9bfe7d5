//! Any text as a path and as a glob, in a root with a way out of every kind: no panic, no byte
//! from outside, no name of a folder of the host in an error.
#![no_main]

use std::{fs, os::unix::fs::symlink, path::PathBuf, sync::LazyLock};

use codespace_runner::{FileLimits, FileRoot};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const SECRET: &str = "outside the root";

struct Ground {
    place: TempDir,
    files: FileRoot,
}

static GROUND: LazyLock<Ground> = LazyLock::new(|| {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir_all(root.join("folder/inner")).expect("folders");
    fs::write(place.path().join("secret"), SECRET).expect("a secret");
    fs::write(root.join("file"), "inside").expect("a file");
    fs::write(root.join("folder/inner/file"), "inside").expect("a file");
    for (name, target) in [
        ("a", PathBuf::from("../secret")),
        ("b", place.path().join("secret")),
        ("c", PathBuf::from("..")),
        ("folder/d", PathBuf::from("../..")),
        ("e", PathBuf::from("/proc/self/root")),
    ] {
        symlink(target, root.join(name)).expect("a link");
    }
    let limits = FileLimits {
        read_bytes: 4096,
        find_paths: 100,
        patch_file_bytes: 4096,
    };
    let files = FileRoot::open(&root, None, limits, false).expect("the root opens");
    Ground { place, files }
});

fuzz_target!(|text: &str| {
    let ground = &*GROUND;
    let host = ground.place.path().to_str().expect("UTF-8");
    match ground.files.read(text) {
        Ok(file) => assert_eq!(file.content, "inside", "{text:?}"),
        Err(error) => assert!(
            text.contains(host) || !error.message().contains(host),
            "{text:?}"
        ),
    }
    match ground.files.find(Some(text)) {
        Ok(found) => assert!(
            found
                .paths
                .iter()
                .all(|path| path == "file" || path == "folder/inner/file"),
            "{text:?}: {:?}",
            found.paths
        ),
        Err(error) => assert!(
            text.contains(host) || !error.message().contains(host),
            "{text:?}"
        ),
    }
});
