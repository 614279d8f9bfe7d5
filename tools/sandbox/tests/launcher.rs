//! The server's side: starting, ending, telling the truth, leaving nothing behind.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::fd::AsFd,
    path::Path,
};

use codespace_sandbox::{Launcher, SpawnError};
use support::{Place, Who, everyone, helper, start, wait_readable};

// As root the launcher becomes a workspace's owner; `User` cannot be done in this process.
fn places() -> Vec<Place> {
    everyone()
        .into_iter()
        .filter(|who| *who != Who::User)
        .flat_map(|who| [Place::new(who), Place::partial(who)])
        .collect()
}

fn launch(place: &Place) -> Launcher {
    Launcher::start(helper(), &place.plan).unwrap()
}

// A launcher is not dumpable, so only root can look.
fn open_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn statuses_are_told_exactly() {
    for place in places() {
        let launcher = launch(&place);
        for (script, wanted) in [
            ("exit 0", 0),
            ("exit 7", 7 << 8),
            ("exit 137", 137 << 8),
            ("kill -KILL $$", 9),
            ("kill -TERM $$", 15),
            ("kill -SEGV $$", 11),
        ] {
            let (_, status, _) = start(&launcher, &["sh", "-c", script], &[]).unwrap().wait();
            assert_eq!(status, Some(wanted), "{script} {:?}", place.plan.isolation);
        }
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_told_with_its_errno() {
    for place in places() {
        let launcher = launch(&place);
        place.write("text", "no program");
        place.write("script", "#!/no/such/interpreter\n");
        for name in ["text", "script"] {
            let path = place.root.join(name);
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        for (program, wanted) in [
            ("no-such-program", libc::ENOENT),
            ("./missing", libc::ENOENT),
            ("./text", libc::ENOEXEC),
            ("./script", libc::ENOENT),
            ("/etc", libc::EACCES),
        ] {
            match start(&launcher, &[program], &[]) {
                Err(SpawnError::Exec(error)) => {
                    assert_eq!(error.raw_os_error(), Some(wanted), "{program}")
                }
                other => panic!("{program}: {:?}", other.err()),
            }
        }
        // And it still works.
        assert_eq!(start(&launcher, &["true"], &[]).unwrap().wait().1, Some(0));
    }
}

#[test]
fn input_output_environment_and_folder() {
    for place in places() {
        let launcher = launch(&place);
        let started = start(
            &launcher,
            &["sh", "-c", "pwd; cat; env; ls /proc/self/fd | wc -l"],
            &["EXTRA=1"],
        )
        .unwrap();
        fs::File::from(started.input.try_clone().unwrap())
            .write_all(b"typed\n")
            .unwrap();
        let (text, status, _) = started.wait();
        assert_eq!(status, Some(0), "{text}");
        assert!(
            text.starts_with(&format!("{}\ntyped\n", place.root.display())),
            "{text}"
        );
        assert!(text.contains("EXTRA=1") && text.contains("HOME="), "{text}");
        assert!(!text.contains("CARGO"), "{text}");
        // ls has one more for the folder it lists.
        assert!(text.ends_with("4\n"), "{text}");
    }
}

#[test]
fn large_arguments_pass() {
    let place = Place::new(Who::Me);
    let launcher = launch(&place);
    let long = "x".repeat(100_000);
    let argv = ["printf", "%s", &long, &long, &long];
    let (text, status, _) = start(&launcher, &argv, &[]).unwrap().wait();
    assert_eq!((text.len(), status), (300_000, Some(0)));
}

#[test]
fn daemons_end_with_the_command() {
    for place in places() {
        let launcher = launch(&place);
        let script = "trap '' TERM HUP; for i in 1 2 3 4 5; do setsid nohup sh -c 'trap \"\" TERM HUP; (sleep 987654 &) ; sleep 987654' >/dev/null 2>&1 & done; sleep 0.2; exit 3";
        let (_, status, _) = start(&launcher, &["sh", "-c", script], &[]).unwrap().wait();
        assert_eq!(status, Some(3 << 8));
        assert_eq!(sleepers("987654"), 0, "{:?}", place.plan.isolation);
    }
}

fn sleepers(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| {
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| {
                let text = String::from_utf8_lossy(&line).into_owned();
                text.starts_with("sleep") && text.contains(mark)
            })
        })
        .count()
}

#[test]
fn asked_to_end_and_made_to_end() {
    for place in places() {
        let launcher = launch(&place);
        let script =
            "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.05; done 2>/dev/null";
        let started = start(&launcher, &["sh", "-c", script], &[]).unwrap();
        wait_readable(&started.output);
        started.spawned.terminate();
        let (text, status, _) = started.wait();
        assert_eq!(status, Some(5 << 8), "{text}");
        assert!(text.contains("asked"), "{text}");

        let stubborn = start(
            &launcher,
            &[
                "sh",
                "-c",
                "trap '' TERM; echo ready; while :; do sleep 1; done",
            ],
            &[],
        )
        .unwrap();
        wait_readable(&stubborn.output);
        stubborn.spawned.terminate();
        assert!(
            stubborn
                .spawned
                .finish()
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        );
        stubborn.spawned.kill();
        let (_, status, _) = stubborn.wait();
        assert_eq!(status, None);
    }
}

#[test]
fn dropping_ends_the_tree_and_a_dead_launcher_is_an_error() {
    for place in places() {
        let launcher = launch(&place);
        let started = start(&launcher, &["sleep", "876543"], &[]).unwrap();
        let pidfd = started.spawned.pidfd().try_clone_to_owned().unwrap();
        drop(started);
        wait_readable(&pidfd);
        assert_eq!(sleepers("876543"), 0);

        let started = start(&launcher, &["sleep", "765432"], &[]).unwrap();
        let pid = rustix::process::Pid::from_raw(launcher.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait_readable(started.spawned.pidfd());
        assert_eq!(started.spawned.wait_status(), None);
        assert_eq!(sleepers("765432"), 0);
        assert!(started.spawned.finish().is_err());
        match start(&launcher, &["true"], &[]) {
            Err(SpawnError::Launcher(_)) => {}
            other => panic!("{:?}", other.err()),
        }
        // A new one takes its place.
        assert_eq!(
            start(&launch(&place), &["true"], &[]).unwrap().wait().1,
            Some(0)
        );
    }
}

#[test]
fn another_folder_in_the_roots_place_is_refused() {
    for place in places() {
        let launcher = launch(&place);
        let aside = place.root.with_file_name("aside");
        fs::rename(&place.root, &aside).unwrap();
        assert!(matches!(
            start(&launcher, &["true"], &[]),
            Err(SpawnError::Root)
        ));
        fs::create_dir(&place.root).unwrap();
        place.give(&place.root);
        assert!(matches!(
            start(&launcher, &["true"], &[]),
            Err(SpawnError::Root)
        ));
        assert!(Launcher::start(helper(), &place.plan).is_err());
        fs::remove_dir(&place.root).unwrap();
        fs::rename(&aside, &place.root).unwrap();
        assert_eq!(start(&launcher, &["true"], &[]).unwrap().wait().1, Some(0));
    }
}

#[test]
fn many_commands_leave_nothing_behind() {
    for place in places() {
        let launcher = launch(&place);
        for _ in 0..3 {
            start(&launcher, &["true"], &[]).unwrap().wait();
        }
        let theirs = open_descriptors(launcher.id());
        for _ in 0..100 {
            start(&launcher, &["true"], &[]).unwrap().wait();
            let _ = start(&launcher, &["no-such-program"], &[]);
        }
        // What did not start is cleared up after its error was told.
        while open_descriptors(launcher.id()) != theirs {
            std::thread::yield_now();
        }
        let id = launcher.id();
        drop(launcher);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}

#[test]
fn the_listening_socket_belongs_to_the_private_loopback() {
    let place = Place::new(Who::Me);
    let launcher = launch(&place);
    let listener = TcpListener::from(launcher.listener(0).unwrap());
    listener.set_nonblocking(false).unwrap();
    let port = listener.local_addr().unwrap().port();
    let accept = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let script = format!(
        "import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'hello')"
    );
    let (text, status, _) = start(&launcher, &["/usr/bin/python3", "-c", &script], &[])
        .unwrap()
        .wait();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(accept.join().unwrap(), "hello");
    // The host has nothing there.
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn home_and_tmp_last_as_long_as_the_launcher() {
    for place in places() {
        let launcher = launch(&place);
        let put = "echo kept > $HOME/file && echo kept > ${TMPDIR:-/tmp}/file";
        let (text, status, _) = start(&launcher, &["sh", "-c", put], &[]).unwrap().wait();
        assert_eq!(status, Some(0), "{text}");
        let get = "cat $HOME/file ${TMPDIR:-/tmp}/file";
        assert_eq!(
            start(&launcher, &["sh", "-c", get], &[]).unwrap().wait().0,
            "kept\nkept\n"
        );
        let other = Place::new(Who::Me);
        let other = launch(&other);
        let (text, ..) = start(&other, &["sh", "-c", "ls -A $HOME /tmp | grep file"], &[])
            .unwrap()
            .wait();
        assert_eq!(text, "");
    }
}

#[test]
fn a_terminal_is_the_controlling_one() {
    for place in places() {
        let launcher = launch(&place);
        let master = rustix::pty::openpt(
            rustix::pty::OpenptFlags::RDWR
                | rustix::pty::OpenptFlags::NOCTTY
                | rustix::pty::OpenptFlags::CLOEXEC,
        )
        .unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new())
            .unwrap()
            .into_string()
            .unwrap();
        let flags =
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
        let size = rustix::termios::Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&slave, size).unwrap();
        let argv = ["sh", "-c", "tty; stty size; echo to-tty > /dev/tty; trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done"].map(|word| std::ffi::CString::new(word).unwrap());
        let spawned = launcher
            .spawn(&codespace_sandbox::Command {
                argv: &argv,
                env: &[c"TERM=xterm-256color".to_owned()],
                cwd: Path::new(""),
                stdio: [slave.as_fd(), slave.as_fd(), slave.as_fd()],
                terminal: Some(Path::new(&name)),
            })
            .unwrap();
        drop(slave);
        let mut seen = String::new();
        let mut buffer = [0; 4096];
        while !seen.contains("ready") {
            let count = rustix::io::read(&master, &mut buffer).unwrap();
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        rustix::io::write(&master, b"\x03").unwrap();
        wait_readable(spawned.pidfd());
        assert_eq!(spawned.wait_status(), Some(9 << 8), "{seen}");
        assert!(seen.contains("24 80") && seen.contains("to-tty"), "{seen}");
        assert!(seen.contains("/dev/"), "{seen}");
    }
}

#[test]
fn task_and_memory_limits_hold_and_are_told() {
    for mut place in places() {
        place.plan.limits.tasks = 30;
        place.plan.limits.memory_bytes = 200 << 20;
        let launcher = launch(&place);
        let script = "import os, sys, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        count += 1
except OSError:
    pass
print(count)";
        let (text, _, ended) = start(&launcher, &["/usr/bin/python3", "-c", script], &[])
            .unwrap()
            .wait();
        let limited = text.trim().parse::<u32>().is_ok_and(|count| count <= 40);
        // uid 0 feels the cgroup only, and an ordinary user without namespaces counts others' processes.
        let sure = place.plan.isolation == codespace_sandbox::Isolation::Full;
        assert!(limited || !sure, "{text} {ended:?}");
        let script = "x = bytearray(600 << 20); print(len(x))";
        let (text, ..) = start(&launcher, &["/usr/bin/python3", "-c", script], &[])
            .unwrap()
            .wait();
        assert!(!text.contains("629145600"), "{text}");
    }
}

#[test]
fn a_killed_run_leaves_nothing() {
    for place in places() {
        let plan = place.root.with_file_name("kill.json");
        fs::write(&plan, serde_json::to_string(&place.plan).unwrap()).unwrap();
        let mut run = std::process::Command::new(helper())
            .args(["sandbox", "run", "--plan"])
            .arg(&plan)
            .args(["--", "sh", "-c", "setsid sleep 654321 & sleep 654321"])
            .spawn()
            .unwrap();
        while sleepers("654321") < 2 {
            std::thread::yield_now();
        }
        run.kill().unwrap();
        run.wait().unwrap();
        while sleepers("654321") > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn limits_are_told_when_control_groups_hold_them() {
    for mut place in places() {
        place.plan.limits.tasks = 20;
        let launcher = launch(&place);
        let features = codespace_sandbox::Features::probe(helper(), Some(place.ids())).unwrap();
        let script = "for i in $(seq 100); do sleep 5 & done 2>/dev/null; true";
        let (_, _, ended) = start(&launcher, &["sh", "-c", script], &[]).unwrap().wait();
        if features.cgroup_memory {
            assert_eq!(ended.limit_hit, Some(codespace_sandbox::LimitHit::Tasks));
        }
        let (_, _, ended) = start(&launcher, &["true"], &[]).unwrap().wait();
        assert_eq!(ended.limit_hit, None);
    }
}

#[test]
fn a_workspace_only_root_can_reach() {
    use std::os::unix::fs::PermissionsExt;
    for place in places().into_iter().filter(|place| place.who == Who::Owner) {
        if place.plan.isolation == codespace_sandbox::Isolation::Partial {
            continue;
        }
        let closed = place.root.parent().unwrap();
        fs::set_permissions(closed, fs::Permissions::from_mode(0o700)).unwrap();
        place.write(".git/hooks/keep", "");
        let launcher = launch(&place);
        let script = "id -u; touch made; echo x > .git/commondir; cat /proc/self/status; cat /etc/shadow; mount -t tmpfs x /tmp; chown 0 made; ls -ld $HOME /tmp; touch $HOME/x /tmp/x /dev/shm/x && echo written; cat /proc/1/environ; kill -9 1";
        let (said, status, ended) = start(&launcher, &["sh", "-c", script], &[]).unwrap().wait();
        assert!(
            said.starts_with(&format!("{}\n", support::NOBODY)),
            "{said}"
        );
        for line in [
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(said.contains(line), "{line} {said}");
        }
        assert!(
            said.contains("written") && !said.contains("root:"),
            "{said}"
        );
        assert_eq!(ended.protected, [".git/commondir"]);
        let made = fs::metadata(place.root.join("made")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), support::NOBODY);
        assert!(status.is_some());
    }
}
