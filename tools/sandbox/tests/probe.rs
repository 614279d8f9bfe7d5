//! The probe tells the truth, also where things are missing, and says what to do.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Command, Stdio};

use codespace_sandbox::{Features, Level, Plan};
use support::{NOBODY, Place, Who, everyone, helper, succeeds};

fn probe(mut command: Command) -> Features {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a shell script in fresh namespaces, as far as this user may make them.
fn in_namespaces(flags: &[&str], script: &str) -> Option<std::process::Output> {
    let output = Command::new("unshare")
        .args(flags)
        .args(["sh", "-c", script])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("unshare:") {
        eprintln!("left out: {text}");
        return None;
    }
    Some(output)
}

#[test]
fn what_it_says_can_be_done_is_done() {
    for who in everyone() {
        let features = match who {
            Who::Me => Features::probe(helper(), None).unwrap(),
            Who::Owner => Features::probe(helper(), Some((NOBODY, NOBODY))).unwrap(),
            Who::User => {
                let mut command = Command::new(helper());
                std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
                std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
                command.args(["sandbox", "probe", "--json"]);
                probe(command)
            }
        };
        for missing in &features.missing {
            assert!(
                !missing.why.is_empty() && !missing.remedy.is_empty(),
                "{missing:?}"
            );
        }
        if features.level() == Level::Full {
            succeeds(&Place::new(who).sh("true"));
        }
        if features.level() != Level::None {
            succeeds(&Place::partial(who).sh("true"));
        }
        assert!(features.describe().contains("sandbox "));
    }
}

#[test]
fn a_covered_proc_is_told_and_commands_run_without_one() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new(Who::Me);
    let plan = place.root.with_file_name("p.json");
    std::fs::write(&plan, serde_json::to_string(&place.plan).unwrap()).unwrap();
    let script = format!(
        "mount -t tmpfs x /proc/fs && {0} sandbox probe --json && {0} sandbox run --plan {1} -- sh -c 'ls -A /proc; echo ran'",
        helper().display(),
        plan.display()
    );
    let Some(output) = in_namespaces(&["-m"], &script) else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let (json, said) = text.split_once('\n').unwrap();
    let features: Features = serde_json::from_str(json).unwrap();
    assert!(
        !features.proc && features.level() == Level::Full,
        "{features:?}"
    );
    assert!(
        features
            .missing
            .iter()
            .any(|missing| missing.feature == "proc")
    );
    assert_eq!(said, "ran\n", "{output:?}");
}

#[test]
fn without_user_namespaces() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // The limit is each user namespace's own, so nobody else is affected by it.
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && {} sandbox probe --json",
        helper().display()
    );
    let flags = [
        "-U",
        "--map-root-user",
        "-m",
        "-p",
        "--fork",
        "--mount-proc",
    ];
    let Some(output) = in_namespaces(&flags, &script) else {
        return;
    };
    let features: Features =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert!(!features.user_ns, "{features:?}");
    let missing = features
        .missing
        .iter()
        .find(|missing| missing.feature == "user_ns")
        .unwrap();
    assert!(
        missing.remedy.contains("user.max_user_namespaces"),
        "{missing:?}"
    );
    // Root can do without.
    assert!(
        features.mount_ns && features.net_ns && features.pid_ns,
        "{features:?}"
    );

    let place = Place::new(Who::Me);
    let plan = place.root.with_file_name("p.json");
    std::fs::write(&plan, serde_json::to_string(&place.plan).unwrap()).unwrap();
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && {} sandbox run --plan {} -- sh -c 'touch made; grep CapEff /proc/self/status; echo ran'",
        helper().display(),
        plan.display()
    );
    let output = in_namespaces(&flags, &script).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "CapEff:\t0000000000000000\nran\n", "{output:?}");
}

#[test]
fn an_ordinary_user_without_namespaces_has_the_partial_sandbox() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --no-new-privs --bounding-set -all --inh-caps -all {} sandbox probe --json",
        helper().display()
    );
    let Some(output) = in_namespaces(&["-U", "--map-root-user"], &script) else {
        return;
    };
    let Ok(features) = serde_json::from_slice::<Features>(&output.stdout) else {
        panic!("{output:?}");
    };
    assert_eq!(features.level(), Level::Partial, "{features:?}");
    assert!(!features.mount_ns && !features.protect && !features.private_tmp);

    let place = Place::partial(Who::Me);
    let plan = place.root.with_file_name("p.json");
    std::fs::write(&plan, serde_json::to_string(&place.plan).unwrap()).unwrap();
    let script = format!(
        "exec setpriv --no-new-privs --bounding-set -all --inh-caps -all {} sandbox run --plan {} -- sh -c 'touch made; cat {}/secret; echo ran'",
        helper().display(),
        plan.display(),
        place.outside.display()
    );
    let output = in_namespaces(&["-U", "--map-root-user"], &script).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "ran\n",
        "{output:?}"
    );
    assert!(place.root.join("made").exists());
}

#[test]
fn plans_are_checked() {
    let place = Place::new(Who::Me);
    let good = place.plan.clone();
    good.check().unwrap();
    type Spoil = Box<dyn Fn(&mut Plan)>;
    let bad: Vec<(&str, Spoil)> = vec![
        ("root", Box::new(|plan| plan.root = "relative".into())),
        ("root", Box::new(|plan| plan.root = "/".into())),
        ("root", Box::new(|plan| plan.root = "/usr".into())),
        (
            "root",
            Box::new(|plan| plan.root = "/no/such/folder".into()),
        ),
        ("root", Box::new(|plan| plan.root = "/etc/passwd".into())),
        ("root", Box::new(|plan| plan.root_id = Some((1, 1)))),
        ("readable", Box::new(|plan| plan.readable.push("/".into()))),
        (
            "readable",
            Box::new(|plan| plan.readable.push("/a/../b".into())),
        ),
        (
            "readable",
            Box::new(|plan| plan.readable.push("/run".into())),
        ),
        (
            "writable",
            Box::new(|plan| plan.writable.push("/proc/self".into())),
        ),
        (
            "writable",
            Box::new(|plan| plan.writable.push("/home".into())),
        ),
        ("protect", Box::new(|plan| plan.protect.push("../x".into()))),
        ("protect", Box::new(|plan| plan.protect.push("/x".into()))),
        ("protect", Box::new(|plan| plan.protect.push("".into()))),
        (
            "env",
            Box::new(|plan| drop(plan.env.insert("A=B".into(), "x".into()))),
        ),
        (
            "scratch",
            Box::new(|plan| plan.isolation = codespace_sandbox::Isolation::Partial),
        ),
    ];
    for (word, spoil) in bad {
        let mut plan = good.clone();
        spoil(&mut plan);
        let fault = plan.check().unwrap_err();
        assert!(fault.to_string().contains(word), "{word}: {fault}");
        assert!(codespace_sandbox::Launcher::start(helper(), &plan).is_err());
    }
    assert!(
        serde_json::from_str::<Plan>("{\"root\":\"/x\",\"uid\":1,\"gid\":1,\"unknown\":1}")
            .is_err()
    );
}

#[test]
fn bad_arguments_are_usage() {
    for arguments in [
        vec!["sandbox"],
        vec!["sandbox", "run"],
        vec!["sandbox", "probe", "--as=x"],
        vec![],
        vec!["other"],
    ] {
        let output = Command::new(helper()).args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    // Not a server at the other end: it ends.
    let status = Command::new(helper())
        .args(["sandbox", "launcher"])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
}
