//! Properties on random texts.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use codespace_patch::Patch;
use common::{Memory, edit, wrap};
use proptest::prelude::*;
use similar::{ChangeTag, TextDiff};

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec("[abc ]{0,2}", 0..24)
        .prop_map(|lines| lines.iter().map(|line| format!("{line}\n")).collect())
}

/// One hunk that quotes the whole file, so that its place is certain.
fn whole(old: &str, new: &str) -> String {
    let diff = TextDiff::from_lines(old, new);
    let line = |change: similar::Change<&str>| {
        let sign = match change.tag() {
            ChangeTag::Equal => ' ',
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
        };
        format!("{sign}{}", change.value())
    };
    diff.iter_all_changes().map(line).collect()
}

/// Hunks without context over lines that are all different.
fn sparse(kept: &[bool]) -> (String, String, String) {
    let (mut old, mut new, mut hunks) = (String::new(), String::new(), String::new());
    for (at, kept) in kept.iter().enumerate() {
        let ending = if at % 3 == 0 { "\r\n" } else { "\n" };
        old += &format!("line {at}{ending}");
        if *kept {
            new += &format!("line {at}{ending}");
        } else {
            new += &format!("new {at}{ending}");
            hunks += &format!("@@\n-line {at}\n+new {at}\n");
        }
    }
    (old, new, hunks)
}

proptest! {
    #[test]
    fn a_diff_gives_the_other_text(old in text(), new in text()) {
        let hunk = whole(&old, &new);
        prop_assume!(!hunk.is_empty());
        prop_assert_eq!(edit(&old, &format!("@@\n{hunk}")), new);
    }

    #[test]
    fn endings_survive(kept in proptest::collection::vec(any::<bool>(), 1..40)) {
        let (old, new, hunks) = sparse(&kept);
        prop_assume!(!hunks.is_empty());
        prop_assert_eq!(edit(&old, &hunks), new);
    }

    #[test]
    fn any_text_is_an_answer(text in any::<String>()) {
        let _ = Patch::parse(&text);
    }

    #[test]
    fn any_lines_are_an_answer(lines in proptest::collection::vec(prop_oneof![
        Just("@@".to_owned()), Just("@@ a".to_owned()), Just("*** End of File".to_owned()), Just(String::new()),
        Just("*** Update File: f".to_owned()), Just("*** Update File: g".to_owned()), Just("*** Move to: g".to_owned()),
        Just("*** Delete File: f".to_owned()), Just("*** Add File: f".to_owned()), Just("*** Add File: f/x".to_owned()),
        "[-+ ][ab]?", "[-+ ][ab]?", "[-+ ][ab]?", "[-+ ][ab]?", "[-+ ][ab]?",
    ], 0..14), file in "[ab\r\n]{0,12}") {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut tree = Memory::of(&[("f", &file)]);
        if let Ok(plan) = tree.plan(&wrap(&format!("*** Update File: f\n{body}"))) {
            tree.apply(&plan);
        }
    }
}
