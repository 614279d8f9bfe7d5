//! Limits on a whole tree, by control groups, where this server may make them.
//!
//! One group per launcher, which joins it once: with version 1, writing an id to
//! cgroup.procs may take several milliseconds, which no launch should pay. Commands
//! inherit it. Made, read and removed by the server's side, since the launcher has no
//! access to the files once it is confined.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread::sleep,
    time::Duration,
};

use crate::{fault::Fault, limits::Limits};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Where a controller's groups are, and which of the two interfaces it has.
#[derive(Clone, Debug)]
struct Place {
    folder: PathBuf,
    unified: bool,
}

/// What a trial found.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) tasks: bool,
    pub(crate) memory: bool,
    pub(crate) kill: bool,
}

impl Trial {
    pub(crate) fn fault(&self, controller: &str) -> Fault {
        Fault::plain(format!(
            "no cgroup with the {controller} controller can be made here"
        ))
    }
}

/// Which limits a control group holds; the others are left to resource limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) tasks: bool,
    pub(crate) memory: bool,
}

impl Held {
    pub(crate) fn to_byte(self) -> u8 {
        u8::from(self.tasks) | u8::from(self.memory) << 1
    }

    pub(crate) fn from_byte(byte: u8) -> Self {
        Self {
            tasks: byte & 1 != 0,
            memory: byte & 2 != 0,
        }
    }
}

/// Refusals the kernel has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) tasks: u64,
    pub(crate) memory: u64,
}

/// A group of one launcher, removed on drop.
#[derive(Debug)]
pub(crate) struct Cgroup {
    tasks: Option<Place>,
    memory: Option<Place>,
}

impl Cgroup {
    /// Makes a group and removes it again.
    pub(crate) fn try_out() -> Trial {
        let limits = Limits {
            tasks: 64,
            memory_bytes: 1 << 30,
            ..Limits::default()
        };
        let group = Self::create(&limits);
        let kill = [&group.tasks, &group.memory]
            .into_iter()
            .flatten()
            .any(|place| place.unified && place.folder.join("cgroup.kill").exists());
        Trial {
            tasks: group.tasks.is_some(),
            memory: group.memory.is_some(),
            kill,
        }
    }

    /// Makes what can be made of a group with these limits.
    pub(crate) fn create(limits: &Limits) -> Self {
        let name = format!(
            "codespace-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let mut this = Self {
            tasks: None,
            memory: None,
        };
        if limits.tasks > 0 {
            // The launcher and a command's init count, too.
            let most = u64::from(limits.tasks) + 3;
            this.tasks = make("pids", &name, &[("pids.max", "pids.max", most)]);
        }
        if limits.memory_bytes > 0 {
            let most = limits.memory_bytes;
            this.memory = make(
                "memory",
                &name,
                &[("memory.max", "memory.limit_in_bytes", most)],
            );
        }
        this
    }

    /// Moves a process in, and so all it will start. What is limited by that.
    pub(crate) fn join(&self, pid: u32) -> Held {
        let enter = |place: &Option<Place>| {
            place.as_ref().is_some_and(|place| {
                fs::write(place.folder.join("cgroup.procs"), pid.to_string()).is_ok()
            })
        };
        Held {
            tasks: enter(&self.tasks),
            memory: enter(&self.memory),
        }
    }

    /// How often a limit was met.
    pub(crate) fn counts(&self) -> Counts {
        let tasks = self
            .tasks
            .as_ref()
            .map_or(0, |place| number(&place.folder.join("pids.events"), "max"));
        let memory = self.memory.as_ref().map_or(0, |place| {
            let file = if place.unified {
                "memory.events"
            } else {
                "memory.oom_control"
            };
            number(&place.folder.join(file), "oom_kill")
        });
        Counts { tasks, memory }
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        let same =
            matches!((&self.tasks, &self.memory), (Some(a), Some(b)) if a.folder == b.folder);
        self.tasks
            .iter()
            .chain(self.memory.iter().filter(move |_| !same))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for place in self.places() {
            // Members that were killed leave a moment later.
            for _ in 0..100 {
                match fs::remove_dir(&place.folder) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        sleep(Duration::from_millis(2));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Removes what servers that were killed have left. A group with a member stays.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| {
            let (owner, _) = name.strip_prefix("codespace-")?.split_once('-')?;
            owner.parse::<u32>().ok()
        });
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn number(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

fn make(controller: &str, name: &str, settings: &[(&str, &str, u64)]) -> Option<Place> {
    for (parent, unified) in parents(controller) {
        let place = Place {
            folder: parent.join(name),
            unified,
        };
        sweep(&parent);
        let fresh = fs::create_dir(&place.folder);
        if fresh
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists)
        {
            continue;
        }
        let set = settings.iter().all(|(v2, v1, value)| {
            let file = if unified { v2 } else { v1 };
            fs::write(place.folder.join(file), value.to_string()).is_ok()
        });
        // A group we cannot move a process of ours into is of no use.
        if set
            && fs::OpenOptions::new()
                .write(true)
                .open(place.folder.join("cgroup.procs"))
                .is_ok()
        {
            return Some(place);
        }
        if fresh.is_ok() {
            let _ = fs::remove_dir(&place.folder);
        }
    }
    None
}

/// Folders below which a group with this controller may be made, likeliest first.
fn parents(controller: &str) -> Vec<(PathBuf, bool)> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|name| name == controller) {
            if let Some(mount) = mounted(&mounts, "cgroup", Some(controller)) {
                found.push((mount.join(path), false));
            }
        } else if id == "0"
            && controllers.is_empty()
            && let Some(mount) = mounted(&mounts, "cgroup2", None)
        {
            let own = mount.join(path);
            // Processes may not live in a group that hands a controller on, so with a
            // service's own subgroup it is the parent that has it.
            for folder in [
                Some(own.as_path()),
                own.parent().filter(|folder| folder.starts_with(&mount)),
            ]
            .into_iter()
            .flatten()
            {
                let control = folder.join("cgroup.subtree_control");
                let has = |text: String| text.split_whitespace().any(|name| name == controller);
                if !fs::read_to_string(&control).is_ok_and(has) {
                    let _ = fs::write(&control, format!("+{controller}"));
                }
                if fs::read_to_string(&control).is_ok_and(has) {
                    found.push((folder.to_owned(), true));
                }
            }
        }
    }
    found
}

/// Where a cgroup file system is mounted (proc_pid_mountinfo(5)).
fn mounted(mounts: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut back = back.split(' ');
        let (is, options) = (back.next()?, back.nth(1)?);
        let wanted =
            is == kind && option.is_none_or(|option| options.split(',').any(|name| name == option));
        wanted.then(|| front.split(' ').nth(4).map(PathBuf::from))?
    })
}
