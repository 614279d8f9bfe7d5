//! Limits of a command's tree: by control group where there is one ([`crate::cgroup`]),
//! and as resource limits, which hold for each process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::Held,
    fault::{Fault, Step},
};

/// What a command may use. 0 is no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Processes and threads at a time.
    pub tasks: u32,
    /// Memory of the whole tree, files in the private /tmp included; without a control
    /// group the data of each process.
    pub memory_bytes: u64,
    /// The size of any one file that is written.
    pub file_bytes: u64,
    /// Open descriptors of each process.
    pub open_files: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tasks: 512,
            memory_bytes: 0,
            file_bytes: 0,
            open_files: 0,
        }
    }
}

impl Limits {
    /// Sets the resource limits of this process and what it starts, but for what a control
    /// group holds: whichever refuses first is the one that counts it. `own_count`: the
    /// kernel counts this sandbox's tasks, not all of the user's.
    pub(crate) fn apply(&self, held: Held, own_count: bool) -> Result<(), Fault> {
        lower(Resource::Core, 0)?;
        if self.tasks > 0 && own_count && !held.tasks {
            // The launcher and init are counted with the command.
            lower(Resource::Nproc, u64::from(self.tasks) + 3)?;
        }
        if self.memory_bytes > 0 && !held.memory {
            lower(Resource::Data, self.memory_bytes)?;
        }
        if self.file_bytes > 0 {
            lower(Resource::Fsize, self.file_bytes)?;
        }
        if self.open_files > 0 {
            lower(Resource::Nofile, self.open_files)?;
        }
        Ok(())
    }
}

fn lower(resource: Resource, most: u64) -> Result<(), Fault> {
    let now = getrlimit(resource);
    let most = now.maximum.map_or(most, |maximum| maximum.min(most));
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(resource, limit).step(format!("setting the limit {resource:?}"))
}
