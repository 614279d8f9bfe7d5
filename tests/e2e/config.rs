//! A bad config stops the start, and says where and why.

use std::fs;

use crate::support::program;

fn refusal(text: &str) -> String {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    fs::write(root.join("file"), "").expect("a file");
    std::os::unix::fs::symlink(&root, place.path().join("link")).expect("a link");
    let config = place.path().join("codespace.toml");
    fs::write(
        &config,
        text.replace("{}", place.path().to_str().expect("a path")),
    )
    .expect("a config");
    let output = program()
        .args(["check", "--config"])
        .arg(&config)
        .env("XDG_STATE_HOME", place.path().join("state"))
        .output()
        .expect("it runs");
    assert!(!output.status.success(), "{text} was accepted");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn faults_name_file_line_key_and_remedy() {
    let good = "[workspaces.demo]\nroot = \"{}/root\"\n";
    let rows = [
        (
            "[server]\nlisten = \"nonsense\"\n",
            "codespace.toml:2: server.listen",
        ),
        ("[server]\nlissten = \"127.0.0.1:1\"\n", "listen"),
        ("[server]\nlisten = \n", "codespace.toml:2"),
        ("[server]\nlisten = \"0.0.0.0:8787\"\n", "auth.mode"),
        ("[auth]\nmode = \"jwt\"\n", "codespace.toml:2: auth.mode"),
        ("[auth]\nmode = \"proxy\"\n", "not built"),
        ("[auth]\nmode = \"bearer\"\n", "auth.tokens"),
        (
            "[sandbox]\nmode = \"required\"\n",
            "codespace.toml:2: sandbox.mode",
        ),
        ("[runner]\nkind = \"remote\"\n", "runner.kind"),
        // `check` looks at the store, too: this file is no database.
        ("[store]\npath = \"{}/codespace.toml\"\n", "store.path"),
        ("[limits]\nread_bytes = 0\n", "limits.read_bytes"),
        ("[audit]\npath = \"/tmp/audit\"\n", "audit.path"),
        (
            "[store]\npath = \"{}/root/store.sqlite\"\n",
            "contains the store",
        ),
        (
            "[workspaces.other]\nroot = \"{}/missing\"\n",
            "workspaces.other.root",
        ),
        (
            "[workspaces.other]\nroot = \"{}/root/file\"\n",
            "not a folder",
        ),
        ("[workspaces.other]\nroot = \"{}/link\"\n", "symbolic link"),
        ("[workspaces.other]\nroot = \"{}\"\n", "contain"),
        (
            "[workspaces.other]\nroot = \"{}/root\"\napprovals = \"confirm\"\n",
            "approvals",
        ),
        (
            "[workspaces.other]\nroot = \"{}/root\"\nnetwork = \"enabled\"\n",
            "network",
        ),
    ];
    for (text, wanted) in rows {
        let told = refusal(&format!("{text}{good}"));
        assert!(
            told.contains(wanted),
            "{text}\nwanted {wanted:?}, told: {told}"
        );
    }
    assert!(refusal("").contains("--workspace"));
}
