//! Real programs do their work inside.

#![allow(clippy::unwrap_used)]

mod support;

use std::{fs, path::Path, process::Command};

use codespace_sandbox::Isolation;
use support::{Place, everyone, succeeds};

fn everywhere(work: impl Fn(&Place)) {
    for who in everyone() {
        for place in [Place::new(who), Place::partial(who)] {
            work(&place);
        }
    }
}

/// What tests/run installs.
fn needs(program: &str) {
    let found = ["/usr/bin", "/usr/local/bin"]
        .iter()
        .any(|folder| Path::new(folder).join(program).exists());
    assert!(found, "{program} is not here; tests/run installs it");
}

#[test]
fn shell_tools() {
    everywhere(|place| {
        // The pipe of this test is not the user's to open by name.
        let by_name = if place.who == support::Who::User {
            "echo out"
        } else {
            "echo out > /dev/stdout"
        };
        let said = succeeds(&place.sh(&format!("{by_name}; {}",
            "set -e; mkdir a b; echo x > a/f; mv a/f b/f; ln b/f a/g; ln -s b/f s; cat s; echo y > /dev/null
             head -c4 /dev/urandom | wc -c; mkfifo p; (echo piped > p &); cat p;
             echo in | cat /dev/stdin; touch -d 2001-01-01 b/f; chmod 600 b/f; truncate -s 10 b/f
             t=$(mktemp); echo t > $t; rm $t; flock b/f true; ps >/dev/null; df . >/dev/null; rm -r a b; sh -c 'yes | head -1'",
        )));
        assert!(said.contains("piped") && said.contains("out\n"), "{said}");
    });
}

#[test]
fn a_c_compiler() {
    needs("cc");
    everywhere(|place| {
        place.write(
            "m.c",
            "#include <stdio.h>\nint main(void) { puts(\"compiled\"); return 0; }\n",
        );
        assert!(succeeds(&place.sh("cc -O1 -o m m.c && ./m")).contains("compiled"));
    });
}

#[test]
fn python() {
    needs("python3");
    everywhere(|place| {
        succeeds(&place.sh("/usr/bin/python3 -m venv --without-pip env && env/bin/python -c 'import sys; print(sys.prefix)'"));
        let said = succeeds(&place.python(
            r#"
import asyncio, concurrent.futures, multiprocessing as mp, multiprocessing.shared_memory as sm, os, socket, subprocess, sys, tempfile, threading
def double(x): return 2 * x
async def main():
    p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(6*7)', stdout=subprocess.PIPE)
    out, _ = await p.communicate()
    print(out.decode().strip(), await asyncio.get_running_loop().run_in_executor(None, double, 4))
if __name__ == '__main__':
    a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'
    asyncio.run(main())
    # Without namespaces /dev/shm would be the host's, and named semaphores live there.
    if os.path.isdir('/home/codespace'):
        with mp.Pool(2) as pool: print(pool.map(double, [1, 2]))
        s = sm.SharedMemory(create=True, size=100); s.close(); s.unlink()
    with tempfile.TemporaryFile() as f: f.write(b'x')
    t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
    print('finished')
"#,
        ));
        assert!(said.contains("42 8") && said.contains("finished"), "{said}");
    });
}

#[test]
fn a_server_and_its_client() {
    needs("python3");
    everywhere(|place| {
        if place.plan.isolation == Isolation::Partial {
            return;
        }
        let said = succeeds(&place.python(
            r#"
import http.server, threading, urllib.request, socket
s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=s.serve_forever, daemon=True).start()
print(urllib.request.urlopen('http://127.0.0.1:%d/script.py' % s.server_port).status)
six = socket.create_server(('::1', 0), family=socket.AF_INET6)
u = socket.socket(socket.AF_UNIX); u.bind('here.sock'); u.listen()
c = socket.socket(socket.AF_UNIX); c.connect('here.sock')
socket.getaddrinfo('localhost', 80)
print(socket.if_nameindex())
"#,
        ));
        assert!(said.contains("200"), "{said}");
    });
}

#[test]
fn node() {
    needs("node");
    everywhere(|place| {
        let full = place.plan.isolation == Isolation::Full;
        place.write(
            "m.js",
            "const {Worker, isMainThread} = require('worker_threads');
             if (!isMainThread) { process.exit(0); }
             const r = require('child_process').spawnSync('echo', ['spawned']); console.log(r.stdout.toString());
             new Worker(__filename).on('exit', () => {
               if (!process.argv[2]) { console.log('finished'); return; }
               const s = require('http').createServer((q, a) => a.end('served')).listen(0, '127.0.0.1', () =>
                 require('http').get({port: s.address().port, host: '127.0.0.1'}, a => { a.on('data', d => console.log(d.toString())); a.on('end', () => { console.log('finished'); s.close(); }); }));
             });",
        );
        let said = succeeds(&place.sh(if full { "node m.js http" } else { "node m.js" }));
        assert!(
            said.contains("spawned") && said.contains("finished"),
            "{said}"
        );
        assert!(!full || said.contains("served"), "{said}");
    });
}

#[test]
fn go() {
    needs("go");
    for who in everyone() {
        let place = Place::new(who);
        place.write("go.mod", "module m\n\ngo 1.19\n");
        place.write(
            "m_test.go",
            "package m
             import (\"net\"; \"testing\")
             func TestListens(t *testing.T) {
               l, err := net.Listen(\"tcp\", \"127.0.0.1:0\")
               if err != nil { t.Fatal(err) }
               go func() { c, _ := l.Accept(); c.Write([]byte(\"hi\")); c.Close() }()
               c, err := net.Dial(\"tcp\", l.Addr().String())
               if err != nil { t.Fatal(err) }
               b := make([]byte, 2)
               if _, err := c.Read(b); err != nil || string(b) != \"hi\" { t.Fatal(err, string(b)) }
             }\n",
        );
        let said = succeeds(&place.sh("go test ./..."));
        assert!(said.contains("ok"), "{said}");
    }
}

#[test]
fn a_browser() {
    needs("chromium");
    for who in everyone() {
        let place = Place::new(who);
        place.write(
            "page.html",
            "<p id=p>before</p><script>document.getElementById('p').textContent = 'rend' + 'ered'</script>",
        );
        let said = succeeds(&place.sh(
            "chromium --headless --no-sandbox --disable-gpu --dump-dom \"file://$PWD/page.html\" 2>/dev/null",
        ));
        assert!(said.contains("rendered"), "{said}");
    }
}

/// The toolchain lives in a home folder, so it has to be granted.
#[test]
fn cargo() {
    let root = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .unwrap();
    let root = String::from_utf8_lossy(&root.stdout).trim().to_owned();
    everywhere(|place| {
        let mut plan = place.plan.clone();
        // Another user cannot reach root's home.
        if place.who != support::Who::Me {
            return;
        }
        plan.readable.push(root.clone().into());
        plan.env
            .insert("PATH".to_owned(), format!("{root}/bin:/usr/bin:/bin"));
        let mut granted = Place::new(place.who);
        if place.plan.isolation == Isolation::Partial {
            granted = Place::partial(place.who);
        }
        granted.plan.readable = plan.readable;
        granted.plan.env = plan.env;
        granted.write(
            "Cargo.toml",
            "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
        );
        granted.write(
            "src/lib.rs",
            "#[test]\nfn t() { assert!(std::thread::spawn(|| 7).join().unwrap() == 7); }\n",
        );
        let said = succeeds(&granted.sh("CARGO_HOME=$PWD/.cargo cargo test --offline 2>&1"));
        assert!(said.contains("1 passed"), "{said}");
    });
}

#[test]
fn a_debugger_only_where_it_is_allowed() {
    everywhere(|place| {
        let trace = "import ctypes, os, signal
pid = os.fork()
if pid == 0: signal.pause()
libc = ctypes.CDLL(None, use_errno=True)
print('attached' if libc.ptrace(16, pid, 0, 0) == 0 else 'refused')
os.kill(pid, 9)";
        assert!(succeeds(&place.python(trace)).contains("refused"));
        let mut open = match place.plan.isolation {
            Isolation::Full => Place::new(place.who),
            Isolation::Partial => Place::partial(place.who),
        };
        open.plan.debug = true;
        assert!(succeeds(&open.python(trace)).contains("attached"));
        let init = "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print('attached' if libc.ptrace(16, os.getppid(), 0, 0) == 0 else 'refused')";
        assert!(succeeds(&open.python(init)).contains("refused"));
    });
}

#[test]
fn extra_folders_are_granted_as_asked() {
    for who in everyone() {
        for partial in [false, true] {
            let mut place = if partial {
                Place::partial(who)
            } else {
                Place::new(who)
            };
            let outside = place.outside.clone();
            fs::write(outside.join("folder/file"), "inner\n").unwrap();
            place.plan.readable.push(outside.clone());
            place.plan.writable.push(outside.join("folder"));
            place.plan.hidden.push(outside.join("secret"));
            let script = format!(
                "cat {0}/secret; echo x > {0}/new; set -e; cat {0}/folder/file; echo x > {0}/folder/new",
                outside.display()
            );
            let said = succeeds(&place.sh(&script));
            assert!(
                said.contains("inner") && !said.contains("the secret"),
                "{said}"
            );
            assert!(!outside.join("new").exists() && outside.join("folder/new").exists());
        }
    }
}

#[test]
fn file_size_and_descriptors_are_limited() {
    everywhere(|place| {
        let mut place = match place.plan.isolation {
            Isolation::Full => Place::new(place.who),
            Isolation::Partial => Place::partial(place.who),
        };
        place.plan.limits.file_bytes = 4096;
        place.plan.limits.open_files = 50;
        let output = place.sh("ulimit -n; ulimit -c; head -c 10000 /dev/zero > big");
        let said = support::text(&output);
        assert!(said.starts_with("50\n0\n"), "{said}");
        assert_eq!(fs::metadata(place.root.join("big")).unwrap().len(), 4096);
        assert!(!output.status.success());
    });
}

#[test]
fn tmp_is_bounded() {
    for who in everyone() {
        let mut place = Place::new(who);
        place.plan.tmp_bytes = 1 << 20;
        let said = support::text(&place.sh("head -c 3000000 /dev/zero > /tmp/big; ls -l /tmp/big; head -c 3000000 /dev/zero > $HOME/big"));
        assert!(said.contains("No space left"), "{said}");
    }
}
