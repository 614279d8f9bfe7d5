//! A hostile command. Whatever it tries, what lies outside stays as it was and unread.
//!
//! Every attempt runs as root, for another owner, and as an ordinary user, with
//! namespaces and without. A Python prelude gives raw system calls; an attempt prints
//! `ESCAPED` and why when it got somewhere.

#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use codespace_sandbox::Isolation;
use support::{Place, Who, everyone, succeeds, text};

const PRELUDE: &str = r#"
import ctypes, errno, fcntl, os, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
OUT, PORT, HOSTPID = sys.argv[1] if len(sys.argv) > 1 else '', 0, 0
def call(n, *a):
    a = [ctypes.c_char_p(x) if isinstance(x, bytes) else ctypes.c_long(x) if isinstance(x, int) else x for x in a]
    r = libc.syscall(ctypes.c_long(n), *a)
    return r if r >= 0 else -ctypes.get_errno()
def refused(what, r, *allowed):
    if r >= 0: print('ESCAPED', what, r)
    elif allowed and -r not in allowed: print('ESCAPED', what, 'answered', errno.errorcode.get(-r, r))
def attempt(what, f):
    try: r = f()
    except (OSError, subprocess.SubprocessError) as e: return e
    print('ESCAPED', what, r)
"#;

fn places() -> Vec<Place> {
    everyone()
        .into_iter()
        .flat_map(|who| [Place::new(who), Place::partial(who)])
        .collect()
}

/// Runs an attempt everywhere and checks the outside.
fn attempt_in(places: Vec<Place>, script: impl Fn(&Place) -> String) {
    for place in places {
        let before = place.outside_state();
        let head = format!(
            "{PRELUDE}\nOUT = {:?}\nROOT = {:?}\n",
            place.outside, place.root
        );
        let output = place.python(&(head + &script(&place) + "\nprint('done')\n"));
        let said = succeeds(&output);
        let note = format!("{:?} {:?}: {said}", place.who, place.plan.isolation);
        assert!(said.contains("done"), "{note}");
        assert!(!said.contains("ESCAPED"), "{note}");
        assert!(!said.contains("the secret"), "{note}");
        assert_eq!(place.outside_state(), before, "{note}");
    }
}

fn attempt(script: &str) {
    attempt_in(places(), |_| script.to_owned());
}

#[test]
fn files_outside_by_path() {
    attempt(
        r#"
for p in [OUT + '/secret', ROOT + '/../outside/secret', '/proc/self/root' + OUT + '/secret', '/proc/1/root' + OUT + '/secret', '/proc/self/cwd/../outside/secret', '/proc/thread-self/root' + OUT + '/secret']:
    attempt('read ' + p, lambda: open(p).read())
    attempt('write ' + p, lambda: open(p, 'r+'))
    attempt('truncate ' + p, lambda: os.truncate(p, 0))
    attempt('unlink ' + p, lambda: os.unlink(p))
attempt('create', lambda: open(OUT + '/new', 'w'))
attempt('list', lambda: os.listdir(OUT))
attempt('mkdir', lambda: os.mkdir(OUT + '/new'))
attempt('rename in', lambda: os.rename('script.py', OUT + '/script.py'))
attempt('rename out', lambda: os.rename(OUT + '/secret', 'taken'))
attempt('symlink there', lambda: os.symlink('x', OUT + '/link'))
attempt('hard link of it', lambda: os.link(OUT + '/secret', 'linked'))
attempt('hard link there', lambda: os.link('script.py', OUT + '/linked'))
"#,
    );
}

#[test]
fn files_outside_through_symlinks_and_races() {
    attempt(
        r#"
os.symlink(OUT, 'link'); os.symlink(OUT + '/secret', 'file')
attempt('read by link', lambda: open('file').read())
attempt('write by link', lambda: open('link/new', 'w'))
attempt('open the folder', lambda: os.listdir('link'))
os.mkdir('swap'); open('swap/secret', 'w').write('mine')
stop = False
def swap():
    while not stop:
        try:
            os.rename('swap', 'kept'); os.symlink(OUT, 'swap'); os.unlink('swap'); os.rename('kept', 'swap')
        except OSError: pass
t = threading.Thread(target=swap); t.start()
for i in range(3000):
    try:
        s = open('swap/secret').read()
        if 'the secret' in s: print('ESCAPED race read'); break
    except OSError: pass
    try: open('swap/new', 'w').close()
    except OSError: pass
stop = True; t.join()
"#,
    );
}

#[test]
fn descriptors_that_lead_out() {
    attempt(
        r#"
for n in os.listdir('/proc/self/fd'):
    try: t = os.readlink('/proc/self/fd/' + n)
    except OSError: continue
    if int(n) > 2 and t.startswith('/') and not t.startswith((ROOT, '/proc')): print('ESCAPED inherited', n, t)
    if 'socket:' in t or 'anon_inode' in t: print('ESCAPED inherited', n, t)
fd = os.open('.', os.O_PATH)
attempt('openat up', lambda: os.open('../outside/secret', os.O_RDONLY, dir_fd=fd))
attempt('O_PATH then reopen', lambda: open('/proc/self/fd/%d' % os.open(OUT + '/secret', os.O_PATH)).read())
attempt('O_PATH folder', lambda: os.open('secret', os.O_RDONLY, dir_fd=os.open(OUT, os.O_PATH)))
r = call(304, fd, b'\0' * 64, 0); refused('open_by_handle_at', r, errno.EPERM)
r = call(303, -100, b'/', b'\x80\0\0\0' + b'\0' * 200, b'\0' * 8, 0); refused('name_to_handle_at', r, errno.EPERM)
"#,
    );
}

#[test]
fn attributes_outside() {
    // Without a mount namespace Landlock has no rights for these; the kernel's do.
    let full = places()
        .into_iter()
        .filter(|place| place.plan.isolation == Isolation::Full);
    attempt_in(full.collect(), |_| {
        r#"
for p in [OUT + '/secret', OUT]:
    attempt('chmod', lambda: os.chmod(p, 0o777))
    attempt('chown', lambda: os.chown(p, os.getuid(), os.getgid()))
    attempt('utime', lambda: os.utime(p, (1, 1)))
    attempt('xattr', lambda: os.setxattr(p, 'user.x', b'1'))
    attempt('stat', lambda: os.stat(p))
"#
        .to_owned()
    });
}

#[test]
fn system_files() {
    attempt(
        r#"
for p in ['/etc/shadow', '/etc/shadow-', '/etc/gshadow', '/etc/sudoers']:
    try: s = open(p).read()
    except OSError: continue
    if s: print('ESCAPED read', p)
for p in ['/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger', '/proc/sys/vm/drop_caches', '/sys/power/state', '/sys/kernel/uevent_helper', '/sys/fs/cgroup/pids/x']:
    attempt('write ' + p, lambda: open(p, 'w').write('x'))
for p in ['/proc/kcore', '/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/vsock', '/dev/kvm', '/dev/fuse']:
    attempt('open ' + p, lambda: open(p, 'rb').read(1))
for p in ['/usr/x', '/etc/x', '/opt/x', '/x', '/dev/x', '/sys/x', '/etc/passwd']:
    attempt('write ' + p, lambda: open(p, 'a'))
attempt('mknod', lambda: os.mknod('disk', 0o60600, os.makedev(254, 0)))
attempt('mknod char', lambda: os.mknod('mem', 0o20600, os.makedev(1, 1)))
"#,
    );
}

#[test]
fn other_processes() {
    let pid = std::process::id();
    attempt_in(places(), |place| {
        let full = place.plan.isolation == Isolation::Full;
        format!(
            r#"
HOST = {pid}
PP = os.getppid()
targets = [1, PP] if {full} else [HOST, PP, 1]
for p in targets:
    for f in ['environ', 'mem', 'root/etc/hostname', 'cwd', 'fd/0', 'exe', 'maps', 'auxv', 'stack']:
        if f in ('cwd', 'exe'): attempt('%d %s' % (p, f), lambda: os.readlink('/proc/%d/%s' % (p, f)))
        else: attempt('%d %s' % (p, f), lambda: open('/proc/%d/%s' % (p, f), 'rb').read(1) or 1/0)
for p in targets:
    refused('ptrace', call(101, 16, p, 0, 0), errno.EPERM)
    refused('process_vm_readv', call(310, p, 0, 0, 0, 0, 0), errno.EPERM)
    refused('kcmp', call(312, os.getpid(), p, 0, 0, 0), errno.EPERM)
    fd = call(434, p, 0)
    if fd >= 0: refused('pidfd_getfd', call(438, fd, 0, 0), errno.EPERM)
for p in targets:
    # PID 1 of the namespace may be signalled, and nothing comes of it.
    if p == 1 and {full}: os.kill(1, 9); os.kill(1, 15); os.kill(1, 19); continue
    attempt('kill %d' % p, lambda: os.kill(p, 0) if p != os.getpid() else 1/0)
if {full}:
    if len([n for n in os.listdir('/proc') if n.isdigit()]) > 5: print('ESCAPED sees processes')
    refused('prlimit', call(302, HOST, 7, 0, 0), errno.ESRCH, errno.EPERM)
"#,
            full = if full { "True" } else { "False" }
        )
    });
}

#[test]
fn kernel_interfaces() {
    attempt(
        r#"
names = dict(ptrace=101, mount=165, umount2=166, open_tree=428, move_mount=429, fsopen=430, fsmount=432, fspick=433, mount_setattr=442, open_tree_attr=467,
  pivot_root=155, chroot=161, setns=308, bpf=321, perf_event_open=298, userfaultfd=323, keyctl=250, add_key=248, request_key=249,
  fanotify_init=300, memfd_secret=447, init_module=175, finit_module=313, delete_module=176, kexec_load=246, reboot=169, swapon=167,
  settimeofday=164, clock_settime=227, adjtimex=159, syslog=103, quotactl=179, acct=163, iopl=172, ioperm=173, modify_ldt=154, sethostname=170, process_madvise=440, pidfd_getfd=438)
for name, n in names.items(): refused(name, call(n, 0, 0, 0, 0, 0, 0), errno.EPERM)
for flags in [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80]:
    refused('unshare', call(272, flags), errno.EPERM)
    refused('clone', call(56, flags | 17, 0, 0, 0, 0), errno.EPERM)
for n in [435, 425, 426, 427, 471, 600, 0x40000000 + 59, 0x40000000 + 101]: refused('absent %x' % n, call(n, 0, 0, 0, 0), errno.ENOSYS)
for fam in [17, 40, 38, 31, 44, 21, 30, 16 + 30]: attempt('family %d' % fam, lambda: socket.socket(fam, socket.SOCK_DGRAM))
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
"#,
    );
}

#[test]
fn privileges() {
    attempt(
        r#"
st = open('/proc/self/status').read()
for line in ('CapPrm', 'CapEff', 'CapInh', 'CapAmb'):
    if (line + ':\t0000000000000000') not in st: print('ESCAPED', line)
if 'NoNewPrivs:\t1' not in st: print('ESCAPED no_new_privs')
me = os.getuid()
for f in [lambda: os.setuid(me + 1), lambda: os.setgroups([0]), lambda: os.setgid(me + 12)]: attempt('ids', f)
r = subprocess.run(['su', '-c', 'id -u'], stdin=subprocess.DEVNULL, capture_output=True, text=True) if me else None
if r and r.stdout.strip() == '0': print('ESCAPED su')
import shutil
shutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o6755)
s = subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout.strip()
if s != str(me): print('ESCAPED setuid', s)
attempt('chown', lambda: os.chown('id', me + 7, -1))
"#,
    );
}

#[test]
fn the_network() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_nonblocking(true).unwrap();
    tcp.set_nonblocking(true).unwrap();
    let (port, datagrams) = (
        tcp.local_addr().unwrap().port(),
        udp.local_addr().unwrap().port(),
    );
    attempt_in(places(), |_| {
        format!(
            r#"
for host in ['127.0.0.1', '127.0.0.53', '192.0.2.1', '8.8.8.8', '169.254.169.254']:
    attempt('tcp ' + host, lambda: socket.create_connection((host, {port}), timeout=20))
for host in ['127.0.0.1', '8.8.8.8']:
    try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'leak', (host, {datagrams}))
    except OSError: pass
attempt('ipv6', lambda: socket.create_connection(('2001:4860:4860::8888', 53), timeout=20))
attempt('dns', lambda: socket.gethostbyname('example.com'))
"#
        )
    });
    assert!(tcp.accept().is_err());
    assert!(udp.recv(&mut [0; 16]).is_err());
}

#[test]
fn unix_sockets_of_the_host() {
    let name = format!("codespace-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let hidden = UnixListener::bind_addr(&address).unwrap();
    hidden.set_nonblocking(true).unwrap();
    let places = places();
    // They listen for as long as the test lives.
    let bind = |place: &Place| {
        let path = place.outside.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        place.give(&path);
        listener
    };
    let _listeners: Vec<_> = places.iter().map(bind).collect();
    attempt_in(places, |_| {
        format!(
            r#"
def reach(a):
    s = socket.socket(socket.AF_UNIX); s.connect(a); return a
attempt('abstract', lambda: reach('\0{name}'))
attempt('pathname', lambda: reach(OUT + '/socket'))
for p in ['/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/systemd/private']: attempt(p, lambda: reach(p))
a, b = socket.socketpair(); a.send(b'x')
if b.recv(1) != b'x': print('ESCAPED socketpair')
"#
        )
    });
    assert!(hidden.accept().is_err());
}

#[test]
fn system_v_ipc() {
    attempt(
        r#"
r = call(29, 0x5EC8E7, 4096, 0o1666)
if r >= 0: print('made', r)
r = call(68, 0x5EC8E7, 0o1666)
"#,
    );
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    assert!(!segments.contains(&format!("{}", 0x5EC8E7)), "{segments}");
    let queues = fs::read_to_string("/proc/sysvipc/msg").unwrap_or_default();
    assert!(!queues.contains(&format!("{}", 0x5EC8E7)), "{queues}");
}

#[test]
fn terminal_input() {
    attempt(
        r#"
import pty
try: m, s = pty.openpty()
except OSError: s = 0
for fd in {0, 1, 2, s}:
    for req in (0x5412, 0x541C, 0x5412 | (1 << 40)):
        r = call(16, fd, req, b'x'); refused('ioctl %x' % req, r, errno.EPERM)
"#,
    );
}

#[test]
fn descriptors_of_the_starter_do_not_reach_the_command() {
    for place in places().into_iter().filter(|place| place.who != Who::User) {
        // A shell opens 7 and 9 and does not mark them; then starts the helper.
        let plan = place.root.with_file_name("leak.json");
        fs::write(&plan, serde_json::to_string(&place.plan).unwrap()).unwrap();
        let script = format!(
            "exec 7<{}/secret 9<{}; exec {} sandbox run --plan {} -- sh -c 'ls /proc/self/fd; cat <&7; cat /proc/self/fd/9/secret'",
            place.outside.display(),
            place.outside.display(),
            support::helper().display(),
            plan.display()
        );
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let said = text(&output);
        assert!(!said.contains("the secret"), "{said}");
        assert!(
            String::from_utf8_lossy(&output.stdout).starts_with("0\n1\n2\n3\n"),
            "{said}"
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).lines().count(),
            4,
            "{said}"
        );
    }
}

#[test]
fn programs_in_c_get_no_further() {
    for place in places() {
        place.write(
            "try.c",
            r#"#define _GNU_SOURCE
#include <signal.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char stack[65536];
static int child(void *x) { (void)x; return 0; }
int main(void) {
    if (clone(child, stack + sizeof stack, CLONE_NEWUSER | SIGCHLD, 0) >= 0) puts("ESCAPED userns");
    if (unshare(CLONE_NEWUSER) == 0) puts("ESCAPED unshare");
    if (mount("none", "/tmp", "tmpfs", 0, 0) == 0) puts("ESCAPED mount");
    if (umount2("/proc", MNT_DETACH) == 0) puts("ESCAPED umount");
    if (chroot(".") == 0) puts("ESCAPED chroot");
    /* 32-bit entry: the filter kills the process. */
    pid_t p = fork();
    if (p == 0) {
        long r;
        __asm__ volatile("int $0x80" : "=a"(r) : "a"(20L));
        puts("ESCAPED int80"); fflush(stdout); _exit(0);
    }
    int s; waitpid(p, &s, 0);
    if (!WIFSIGNALED(s)) puts("ESCAPED not killed");
    puts("done");
    return 0;
}
"#,
        );
        let output = place.sh("cc -o try try.c && ./try");
        let said = succeeds(&output);
        assert!(
            said.contains("done") && !said.contains("ESCAPED"),
            "{:?} {said}",
            place.who
        );
    }
}

#[test]
fn nothing_of_the_server_is_in_the_environment() {
    for place in places() {
        let output = place.sh("env; cat /proc/self/environ");
        assert!(!succeeds(&output).contains("SECRET_OF_THE_SERVER"));
    }
}
