//! A crash is settled by whichever server comes next, under any name and any store, and the
//! record says so wherever it is asked for.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;
use tempfile::TempDir;

use crate::support::{Server, program};

struct Place {
    all: TempDir,
}

impl Place {
    fn new() -> Self {
        let all = tempfile::tempdir().expect("a folder");
        fs::create_dir(all.path().join("root")).expect("a root");
        fs::write(all.path().join("root/a"), "1\n").expect("a file");
        fs::write(all.path().join("root/b"), "1\n").expect("a file");
        Self { all }
    }

    fn root(&self) -> PathBuf {
        self.all.path().join("root")
    }

    fn state(&self) -> PathBuf {
        self.all.path().join("state")
    }

    fn start(&self, with: impl FnOnce(&mut Command)) -> Server {
        Server::start_on(&self.state(), with)
    }

    fn plain(&self) -> Server {
        let root = self.root();
        self.start(|command| name(command, "w", &root))
    }

    /// What a crash between two exchanges leaves, made by hand from an applied patch:
    /// the record is running, the journal stands, one file is new and one is old.
    fn crashed(&self, start: impl Fn() -> Server) {
        for round in 0..400_u64 {
            let mut server = start();
            server.send_call("apply_patch", json!({
                "workspace_id": "w", "operation_key": format!("k{round}"),
                "patch": "*** Begin Patch\n*** Update File: a\n-1\n+2\n*** Update File: b\n-1\n+2\n*** End Patch\n",
            }));
            std::thread::sleep(std::time::Duration::from_micros(200 * (round % 40)));
            server.kill();
            if self
                .journals()
                .iter()
                .any(|name| name.starts_with("op_") && !name.contains('.'))
            {
                fs::write(self.all.path().join("key"), format!("k{round}")).expect("noted");
                return;
            }
            start().kill();
            for file in ["a", "b"] {
                fs::write(self.root().join(file), "1\n").expect("a file");
            }
        }
        panic!("no kill hit a patch");
    }

    fn key(&self) -> String {
        fs::read_to_string(self.all.path().join("key")).expect("noted")
    }

    fn journals(&self) -> Vec<String> {
        let Ok(folders) = fs::read_dir(self.state().join("codespace/journals")) else {
            return Vec::new();
        };
        folders
            .flat_map(|folder| fs::read_dir(folder.expect("an entry").path()).expect("a folder"))
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect()
    }

    fn files(&self) -> [String; 2] {
        ["a", "b"].map(|file| fs::read_to_string(self.root().join(file)).expect("it is there"))
    }

    fn is_settled(&self) {
        let [a, b] = self.files();
        assert_eq!(a, b);
        let names: Vec<_> = fs::read_dir(self.root()).expect("a folder").collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    fn status_is_true(&self, server: &mut Server) {
        let told = server.call("operation_status", json!({ "operation_key": self.key() }));
        let is = match self.files()[0].as_str() {
            "1\n" => "failed_rolled_back",
            _ => "applied",
        };
        assert_eq!(told["status"], is, "{told}");
    }
}

/// Ends it in good order, so that the store is free at once.
fn end(mut server: Server) {
    server.close_stdin();
    server.wait();
}

fn name(command: &mut Command, name: &str, root: &Path) {
    command
        .arg("--workspace")
        .arg(format!("{name}={}", root.display()));
}

#[test]
fn a_renamed_workspace_is_settled_and_recorded() {
    let place = Place::new();
    place.crashed(|| place.plain());
    end(place.start(|command| name(command, "x", &place.root())));
    place.is_settled();
    // The record is seen by those who may use the workspace it names.
    place.status_is_true(&mut place.plain());
    assert!(place.journals().is_empty(), "{:?}", place.journals());
}

#[test]
fn another_set_of_workspaces_settles_the_files_and_leaves_word() {
    let place = Place::new();
    place.crashed(|| place.plain());
    let other = place.all.path().join("other");
    fs::create_dir(&other).expect("a root");
    let mut server = place.start(|command| {
        name(command, "w", &place.root());
        name(command, "o", &other);
    });
    place.is_settled();
    let unknown = server.call("operation_status", json!({ "operation_key": place.key() }));
    assert_eq!(unknown["code"], "OPERATION_NOT_FOUND", "{unknown}");
    end(server);
    let mut server = place.plain();
    place.status_is_true(&mut server);
    assert!(place.journals().is_empty(), "{:?}", place.journals());
}

#[test]
fn a_server_in_memory_leaves_nothing_to_strangers() {
    let place = Place::new();
    let memory = |root: PathBuf| {
        place.start(move |command| {
            name(command, "w", &root);
            command.env("CODESPACE_STORE__PATH", ":memory:");
        })
    };
    place.crashed(|| memory(place.root()));
    let stranger = place.all.path().join("stranger");
    fs::create_dir(&stranger).expect("a root");
    fs::write(stranger.join("a"), "2\n").expect("a file");
    memory(stranger.clone()).kill();
    assert_eq!(fs::read_to_string(stranger.join("a")).expect("it"), "2\n");
    let _server = place.plain();
    place.is_settled();
    assert!(place.journals().is_empty(), "{:?}", place.journals());
}

#[test]
fn a_name_given_to_another_folder_is_no_end_of_its_patches() {
    let place = Place::new();
    let store = place.all.path().join("given.sqlite");
    let given = |root: PathBuf| {
        let store = store.clone();
        place.start(move |command| {
            name(command, "w", &root);
            command.env("CODESPACE_STORE__PATH", store);
        })
    };
    place.crashed(|| given(place.root()));
    let stranger = place.all.path().join("stranger");
    fs::create_dir(&stranger).expect("a root");
    let mut server = given(stranger.clone());
    let told = server.call("operation_status", json!({ "operation_key": place.key() }));
    // The kill may have come after the record and before the journal went.
    let is_true = told["status"] == "unknown" || place.files() == ["2\n", "2\n"];
    assert!(is_true, "{told}");
    assert_eq!(fs::read_dir(&stranger).expect("it").count(), 0);
    end(server);
    let mut server = given(place.root());
    place.is_settled();
    place.status_is_true(&mut server);
}

#[test]
fn journals_in_a_root_are_refused() {
    let place = Place::new();
    let mut command = program();
    command
        .arg("stdio")
        .env("XDG_STATE_HOME", place.root().join("state"))
        .env("CODESPACE_STORE__PATH", ":memory:");
    name(&mut command, "w", &place.root());
    let output = command.output().expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("journals"), "{said}");
    assert!(!place.root().join("state").exists());
}

#[test]
fn a_store_removed_under_a_server_refuses_patches() {
    let place = Place::new();
    let store = place.all.path().join("given.sqlite");
    let mut server = place.start(|command| {
        name(command, "w", &place.root());
        command.env("CODESPACE_STORE__PATH", &store);
    });
    fs::remove_file(&store).expect("removed");
    let refused = server.call(
        "apply_patch",
        json!({
            "workspace_id": "w",
            "patch": "*** Begin Patch\n*** Update File: a\n-1\n+2\n*** End Patch\n",
        }),
    );
    assert_eq!(refused["code"], "STORE_UNAVAILABLE", "{refused}");
    assert_eq!(place.files(), ["1\n", "1\n"]);
}
