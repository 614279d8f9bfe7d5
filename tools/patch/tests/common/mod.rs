//! A tree in memory.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use codespace_patch::{Entry, ErrorCode, Patch, PatchError, Plan, PlanError, Tree, plan};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    File(Vec<u8>),
    Directory,
    Special,
    Link,
    Huge,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub things: BTreeMap<String, Thing>,
    pub crlf: Vec<String>,
    pub loads: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Link,
    NotDirectory,
}

impl Tree for Memory {
    type Error = Refused;

    fn load(&mut self, path: &str) -> Result<Entry, Refused> {
        assert!(
            !self.loads.iter().any(|seen| seen == path),
            "{path} is loaded twice"
        );
        self.loads.push(path.to_owned());
        for (end, _) in path.match_indices('/') {
            match self.things.get(&path[..end]) {
                Some(Thing::Link) => return Err(Refused::Link),
                None | Some(Thing::Directory) => {}
                Some(Thing::File(_) | Thing::Special | Thing::Huge) => {
                    return Err(Refused::NotDirectory);
                }
            }
        }
        match self.things.get(path) {
            Some(Thing::File(bytes)) => Ok(Entry::File(Arc::new(bytes.clone()))),
            Some(Thing::Directory) => Ok(Entry::Directory),
            Some(Thing::Special) => Ok(Entry::Special),
            Some(Thing::Link) => Err(Refused::Link),
            Some(Thing::Huge) => Ok(Entry::TooLarge),
            None if self
                .things
                .keys()
                .any(|key| key.starts_with(&format!("{path}/"))) =>
            {
                Ok(Entry::Directory)
            }
            None => Ok(Entry::Absent),
        }
    }

    fn eol_crlf(&mut self, path: &str) -> Result<bool, Refused> {
        Ok(self.crlf.iter().any(|name| name == path))
    }
}

impl Memory {
    pub fn of(files: &[(&str, &str)]) -> Self {
        let things = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), Thing::File(text.as_bytes().to_vec())))
            .collect();
        Memory {
            things,
            ..Memory::default()
        }
    }

    pub fn plan(&mut self, text: &str) -> Result<Plan, PlanError<Refused>> {
        let patch = Patch::parse(text).map_err(PlanError::Patch)?;
        plan(&patch, self)
    }

    /// Carries a plan out.
    pub fn apply(&mut self, plan: &Plan) {
        for change in &plan.changes {
            if change.after.is_none() || change.moved_to.is_some() {
                self.things.remove(&change.path);
            }
        }
        for change in &plan.changes {
            if let Some(after) = &change.after {
                let path = change.moved_to.as_ref().unwrap_or(&change.path);
                self.things
                    .insert(path.clone(), Thing::File(after.to_vec()));
            }
        }
    }
}

/// The text of `f` after a patch of one Update of it.
#[track_caller]
pub fn edit(file: &str, hunks: &str) -> String {
    let mut tree = Memory::of(&[("f", file)]);
    let plan = tree
        .plan(&wrap(&format!("*** Update File: f\n{hunks}")))
        .unwrap_or_else(|error| panic!("{error:?}"));
    tree.apply(&plan);
    let Some(Thing::File(bytes)) = tree.things.get("f") else {
        panic!("the file is gone")
    };
    String::from_utf8(bytes.clone()).unwrap()
}

/// The error of such a patch.
#[track_caller]
pub fn refuse(file: &str, hunks: &str) -> PatchError {
    error(
        &mut Memory::of(&[("f", file)]),
        &format!("*** Update File: f\n{hunks}"),
    )
}

#[track_caller]
pub fn error(tree: &mut Memory, ops: &str) -> PatchError {
    match tree.plan(&wrap(ops)) {
        Err(PlanError::Patch(error)) => error,
        other => panic!("{other:?}"),
    }
}

pub fn wrap(ops: &str) -> String {
    format!("*** Begin Patch\n{ops}*** End Patch\n")
}

pub fn name(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidPatch | ErrorCode::TooLarge => "INVALID_PATCH",
        ErrorCode::FileNotFound => "FILE_NOT_FOUND",
        ErrorCode::AddFileExists => "ADD_FILE_EXISTS",
        ErrorCode::MoveDestinationExists => "MOVE_DESTINATION_EXISTS",
        ErrorCode::TooMuchWork => "LIMIT_EXCEEDED",
        ErrorCode::SpecialFile => "SPECIAL_FILE_REJECTED",
        ErrorCode::NotDirectory => "PATH_NOT_DIRECTORY",
        ErrorCode::PathEscape => "PATH_ESCAPE",
    }
}
