//! The journal, the folders, and the new bytes beside their targets: everything that can
//! run out of space or rights does so here, while nothing has changed yet.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, fsync, mkdirat};
use rustix::io::Errno;

use super::{
    journal::{self, write_all},
    path,
    root::open_beneath,
    transaction::{Fault, Transaction},
};

impl Transaction {
    /// Writes the journal, then stages every new file.
    pub(super) fn prepare(&mut self) -> Result<(), Fault> {
        self.write_journal()?;
        self.make_folders()?;
        for index in 0..self.works.len() {
            self.stage(index)?;
        }
        if self.root.durable {
            self.sync_folders()
        } else {
            Ok(())
        }
    }

    fn write_journal(&mut self) -> Result<(), Fault> {
        self.root.steps.pass("write the journal")?;
        let bytes = self
            .journal
            .encode()
            .map_err(|_| Fault::Journal(Errno::INVAL))?;
        let journals = self.root.journals().ok_or(Fault::Journal(Errno::BADF))?;
        let dir = journals.standing().map_err(Fault::Journal)?;
        let name = self.journal.operation.as_str();
        journal::write(dir.as_fd(), name, &bytes, self.root.durable).map_err(Fault::Journal)
    }

    fn make_folders(&mut self) -> Result<(), Fault> {
        for path in &self.journal.folders {
            self.root.steps.pass("make a folder")?;
            let (parent, name) = path::split(path);
            let failed = |errno| Fault::Os(errno, path.clone());
            let parent = self.folders.get(&self.root, parent).map_err(failed)?;
            match mkdirat(&*parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => self.made.push(path.clone()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    fn stage(&mut self, index: usize) -> Result<(), Fault> {
        let Some(bytes) = self.works[index].after.clone() else {
            return Ok(());
        };
        let steps = std::sync::Arc::clone(&self.root);
        steps.steps.pass("create a staged file")?;
        let durable = self.root.durable;
        let like = self.works[index].like.clone();
        let (folder, effect) = self.at(index)?;
        let failed = |errno| Fault::Os(errno, effect.path.clone());
        // Nobody may read the bytes of a private file before it has its mode.
        let mode = if like.is_some() { 0o600 } else { 0o666 };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = open_beneath(&*folder, &effect.staged, flags, Mode::from_raw_mode(mode))
            .map_err(failed)?;
        steps.steps.pass("write a staged file")?;
        write_all(&file, &bytes).map_err(failed)?;
        if let Some(like) = like {
            like.attributes.give(&file);
        }
        if durable {
            fsync(&file).map_err(failed)
        } else {
            Ok(())
        }
    }
}
