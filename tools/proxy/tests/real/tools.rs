//! The package managers and git, with nothing set but the proxy's variables, the address
//! of their registry and its certificate.

use std::path::Path;

use crate::support::{Origin, run, same, succeed};

/// Makes the files that need a program to make, in the served folder.
const MAKE_WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("probe.py", "word = 'through'\n")
    info = "probe-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
"#;

const MAKE_TAR: &str = r#"
import io, sys, tarfile
path, pairs = sys.argv[1], sys.argv[2:]
with tarfile.open(path, "w:gz") as archive:
    for name, text in zip(pairs[::2], pairs[1::2]):
        entry = tarfile.TarInfo(name)
        entry.size = len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))
"#;

#[tokio::test]
async fn git() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    let work = origin.root().join("work");
    let bare = origin.root().join("bare.git");
    std::fs::create_dir(&work).unwrap();
    let content = vec![b'x'; 1_000_000];
    std::fs::write(work.join("file"), &content).unwrap();
    let git = |arguments: &str| {
        let mut command = origin.command("git", &proxy);
        command
            .current_dir(&work)
            .args(["-c", "user.name=n", "-c", "user.email=e@code.test"])
            .args(arguments.split(' '));
        command
    };
    succeed("git", &mut git("init -q")).await;
    succeed("git", &mut git("add .")).await;
    succeed("git", &mut git("commit -qm first")).await;
    succeed("git", git("clone -q --bare .").arg(&bare)).await;
    succeed("git", git("update-server-info").current_dir(&bare)).await;

    let url = format!("https://code.test:{}/bare.git", origin.https);
    let mut clone = origin.command("git", &proxy);
    clone.env("GIT_SSL_CAINFO", origin.certificate());
    succeed("git", clone.args(["clone", "-q", &url, "cloned"])).await;
    assert!(same(&origin.home().join("cloned/file"), &content));

    let mut refused = origin.command("git", &proxy);
    let output = run(
        "git",
        refused.args(["ls-remote", "https://other.test/x.git"]),
    )
    .await;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("403"), "{text}");
}

#[tokio::test]
async fn pip() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    // The interpreter itself: a shim in front of it would look for its own folder in HOME.
    let executable = ["-c", "import sys; print(sys.executable)"];
    let python = tokio::process::Command::new("python3")
        .args(executable)
        .output()
        .await;
    let python = String::from_utf8(python.unwrap().stdout).unwrap();
    let python = python.trim();
    let wheel = "probe-1.0-py3-none-any.whl";
    origin.put(
        "simple/probe/index.html",
        format!("<a href=\"{wheel}\">{wheel}</a>"),
    );
    let path = origin.root().join("simple/probe").join(wheel);
    succeed(
        "python3",
        origin
            .command(python, &proxy)
            .args(["-c", MAKE_WHEEL])
            .arg(path),
    )
    .await;

    let install = async |index: String| {
        let mut pip = origin.command(python, &proxy);
        pip.args("-m pip install --no-input --retries 1 --target packages probe".split(' '))
            .env("PIP_INDEX_URL", index)
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .env("PIP_CERT", origin.certificate());
        let output = run("python3", &mut pip).await;
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (refused, text) = install("https://other.test/simple".to_owned()).await;
    assert!(!refused, "{text}");
    assert!(
        text.contains("403 Refused by workspaces.demo.allow_domains"),
        "{text}"
    );
    let (installed, text) = install(format!("https://code.test:{}/simple", origin.https)).await;
    assert!(installed, "{text}");
    assert!(same(
        &origin.home().join("packages/probe.py"),
        b"word = 'through'\n"
    ));
}

#[tokio::test]
async fn cargo() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    let base = format!("https://code.test:{}", origin.https);
    let manifest = "[package]\nname = \"probe\"\nversion = \"1.0.0\"\nedition = \"2021\"\n";
    std::fs::create_dir_all(origin.root().join("crates")).unwrap();
    let archive = origin.root().join("crates/probe-1.0.0.crate");
    let mut tar = origin.command("python3", &proxy);
    tar.env("HOME", std::env::var_os("HOME").unwrap_or_default());
    tar.args(["-c", MAKE_TAR]).arg(&archive);
    tar.args([
        "probe-1.0.0/Cargo.toml",
        manifest,
        "probe-1.0.0/src/lib.rs",
        "",
    ]);
    succeed("python3", &mut tar).await;
    let sum = succeed(
        "openssl",
        origin
            .command("openssl", &proxy)
            .args(["dgst", "-sha256", "-r"])
            .arg(&archive),
    )
    .await;
    let sum = &sum[..64];
    origin.put(
        "index/config.json",
        format!("{{\"dl\":\"{base}/crates/{{crate}}-{{version}}.crate\"}}"),
    );
    origin.put(
        "index/pr/ob/probe",
        format!("{{\"name\":\"probe\",\"vers\":\"1.0.0\",\"deps\":[],\"cksum\":\"{sum}\",\"features\":{{}},\"yanked\":false}}\n"),
    );
    let project = origin.home().join("project");
    std::fs::create_dir_all(project.join("src")).unwrap();
    std::fs::write(project.join("src/lib.rs"), "").unwrap();
    std::fs::write(
        project.join("Cargo.toml"),
        "[package]\nname = \"user\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\
         [dependencies]\nprobe = { version = \"1\", registry = \"local\" }\n",
    )
    .unwrap();
    let mut fetch = origin.command(env!("CARGO"), &proxy);
    fetch
        .arg("fetch")
        .current_dir(&project)
        // The one beside it: a proxy for toolchains would look for its own folder in HOME.
        .env("RUSTC", Path::new(env!("CARGO")).with_file_name("rustc"))
        .env("CARGO_HOME", origin.home().join("cargo"))
        .env(
            "CARGO_REGISTRIES_LOCAL_INDEX",
            format!("sparse+{base}/index/"),
        )
        .env("CARGO_HTTP_CAINFO", origin.certificate());
    let text = succeed("cargo", &mut fetch).await;
    assert!(text.contains("Downloaded probe"), "{text}");
}

#[tokio::test]
async fn npm() {
    let origin = Origin::start().await;
    let proxy = origin.proxy();
    let base = format!("https://code.test:{}", origin.https);
    let package = "{\"name\":\"probe\",\"version\":\"1.0.0\",\"main\":\"index.js\"}";
    let mut tar = origin.command("python3", &proxy);
    tar.env("HOME", std::env::var_os("HOME").unwrap_or_default());
    tar.args(["-c", MAKE_TAR])
        .arg(origin.root().join("probe-1.0.0.tgz"));
    tar.args([
        "package/package.json",
        package,
        "package/index.js",
        "module.exports = 1\n",
    ]);
    succeed("python3", &mut tar).await;
    origin.put(
        "probe",
        format!(
            "{{\"name\":\"probe\",\"dist-tags\":{{\"latest\":\"1.0.0\"}},\"versions\":{{\"1.0.0\":\
             {{\"name\":\"probe\",\"version\":\"1.0.0\",\"dist\":{{\"tarball\":\"{base}/probe-1.0.0.tgz\"}}}}}}}}"
        ),
    );
    let mut install = origin.command("npm", &proxy);
    install
        .args(
            "install --no-audit --no-fund --no-update-notifier --fetch-retries=0 probe".split(' '),
        )
        .env("npm_config_registry", &base)
        .env("npm_config_cafile", origin.certificate());
    succeed("npm", &mut install).await;
    let installed = origin.home().join("node_modules/probe/index.js");
    assert!(same(&installed, b"module.exports = 1\n"));
}
