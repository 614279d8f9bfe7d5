//! Any text as a patch, on a tree where every path holds the same arbitrary bytes: an error or a plan, never a panic.
#![no_main]

use std::convert::Infallible;
use std::sync::Arc;

use codespace_patch::{Entry, Patch, Tree, plan};
use libfuzzer_sys::fuzz_target;

struct Same(Arc<Vec<u8>>);

impl Tree for Same {
    type Error = Infallible;

    fn load(&mut self, path: &str) -> Result<Entry, Infallible> {
        Ok(if path.contains("new") { Entry::Absent } else { Entry::File(Arc::clone(&self.0)) })
    }

    fn eol_crlf(&mut self, path: &str) -> Result<bool, Infallible> {
        Ok(path.len() % 2 == 0)
    }
}

fuzz_target!(|input: (&str, &[u8])| {
    let (text, file) = input;
    if let Ok(patch) = Patch::parse(text) {
        let _ = plan(&patch, &mut Same(Arc::new(file)));
    }
});
