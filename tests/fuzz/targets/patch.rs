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
        Ok(if path.contains("new") {
            Entry::Absent
        } else {
            Entry::File(Arc::clone(&self.0))
        })
    }

    fn eol_crlf(&mut self, path: &str) -> Result<bool, Infallible> {
        Ok(path.len() % 2 == 0)
    }
}

fuzz_target!(|input: &[u8]| {
    // The patch, a NUL, the file.
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let text = parts.next().and_then(|text| std::str::from_utf8(text).ok());
    let file = parts.next().unwrap_or_default();
    if let Some(Ok(patch)) = text.map(Patch::parse) {
        let _ = plan(&patch, &mut Same(Arc::new(file.to_vec())));
    }
});
